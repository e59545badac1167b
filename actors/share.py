"""Whose turn it is at work that only one can do at a time, such as an event loop's or a parse.

Turns are handed out by start-time fair queueing: each client's clock runs with the time that its own work takes, and
whoever's clock is furthest behind goes next. So among many who always want more each gets the same share, and somebody
who comes with little goes before all of them, once the work in hand is done. Work may block the event loop: between two
turns the loop runs once, so that whoever has become ready meanwhile is in the queue.
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import asynccontextmanager

__all__ = ["FairShare"]

MANY_CLOCKS = 1000  # beyond these, clocks that say no more than the common one are thrown away


class FairShare:
    """One turn at a time. `clock` in seconds is for tests."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter):
        self._clock = clock
        self._now = 0.0  # the clock of whoever had the last turn; newcomers start from it
        self._used: dict[Hashable, float] = {}
        self._waiting: dict[Hashable, deque[asyncio.Future[None]]] = {}
        self._taken = False

    @property
    def waiting(self) -> int:
        """How many wait for a turn."""
        return sum(map(len, self._waiting.values()))

    @asynccontextmanager
    async def turn(self, client: Hashable) -> AsyncIterator[None]:
        """Waits for a turn and holds it."""
        if self._taken:
            await self._queue(client)
        self._taken = True
        start = self._now = max(self._now, self._used.get(client, 0.0))
        begun = self._clock()
        try:
            yield
        finally:
            self._used[client] = start + self._clock() - begun
            asyncio.get_running_loop().call_soon(self._pass_on)  # others who are ready now join the queue before

    async def _queue(self, client: Hashable) -> None:
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if client not in self._waiting:
            self._waiting[client] = deque()
            self._used[client] = max(self._now, self._used.get(client, 0.0))
        self._waiting[client].append(place)
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():
                self._pass_on()  # it was given the turn in the same moment
            else:
                self._leave(client, place)
            raise

    def _leave(self, client: Hashable, place: asyncio.Future[None]) -> None:
        self._waiting[client].remove(place)
        if not self._waiting[client]:
            del self._waiting[client]

    def _pass_on(self) -> None:
        """Gives the turn to whoever's clock is furthest behind; it stays taken meanwhile."""
        if not self._waiting:
            self._taken = False
            if len(self._used) > MANY_CLOCKS:
                self._used = {client: used for client, used in self._used.items() if used > self._now}
            return
        client = min(self._waiting, key=self._used.__getitem__)
        place = self._waiting[client].popleft()
        if not self._waiting[client]:
            del self._waiting[client]
        place.set_result(None)
