"""Who may ask for heavy work next, when many clients want it at once.

A client that has nothing under way always starts at once, so nobody waits for somebody else's long validation here.
Beyond that, whoever has least under way comes first, so a client with many threads gets no more than one with one.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager

__all__ = ["Turns"]


class Turns:
    """`capacity` heavy calls side by side, and one of each client in any case."""

    def __init__(self, capacity: int):
        self._capacity = capacity
        self._running: dict[Hashable, int] = {}
        self._total = 0
        self._waiting: OrderedDict[Hashable, deque[asyncio.Future[None]]] = OrderedDict()

    @asynccontextmanager
    async def turn(self, client: Hashable) -> AsyncIterator[None]:
        """Waits for a turn and holds it."""
        if client not in self._running or (self._total < self._capacity and not self._waiting):
            self._begin(client)
        else:
            await self._queue(client)
        try:
            yield
        finally:
            self._end(client)

    def _begin(self, client: Hashable) -> None:
        self._running[client] = self._running.get(client, 0) + 1
        self._total += 1

    async def _queue(self, client: Hashable) -> None:
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(client, deque()).append(place)
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():
                self._end(client)  # it was given the turn in the same moment
            else:
                self._leave(client, place)
            raise

    def _leave(self, client: Hashable, place: asyncio.Future[None]) -> None:
        queue = self._waiting.get(client)
        if queue is not None and place in queue:
            queue.remove(place)
            if not queue:
                del self._waiting[client]

    def _end(self, client: Hashable) -> None:
        self._total -= 1
        self._running[client] -= 1
        if not self._running[client]:
            del self._running[client]
            self._grant_to(client)  # whoever has nothing under way starts at once
        while self._waiting and self._total < self._capacity:
            self._grant_to(min(self._waiting, key=lambda waiting: self._running.get(waiting, 0)))

    def _grant_to(self, client: Hashable) -> None:
        queue = self._waiting.get(client)
        while queue:
            place = queue.popleft()
            if queue:
                self._waiting.move_to_end(client)
            else:
                del self._waiting[client]
            if not place.done():
                self._begin(client)
                place.set_result(None)
                return
