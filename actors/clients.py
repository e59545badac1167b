"""What each client may have and ask for in one collection process. Whatever is above a limit is answered `Busy` at
once, before anything is done or kept for it, so that nothing grows and nobody else waits.

A client is a `Cluster` object, a JSON-RPC session or a connection to the socket; the gateways count too, over all
processes, and refuse earlier.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from models.errors import Busy
from models.quotas import check_collections, check_pending, check_supplied

__all__ = ["Clients", "Holding"]

BURST = 1.0  # seconds' worth of calls that may come at once
MOST_PENDING = 512  # calls of all clients; fewer than Ray lets run at a time, so that a refusal still gets through
MANY_CLIENTS = 1000  # beyond these, clients that hold nothing are forgotten now and then


@dataclass(slots=True)
class Holding:
    """One client's part."""

    collections: int = 0
    supplied: int = 0  # bytes
    pending: int = 0
    tokens: float = 0.0  # calls it may make at once
    refilled: float = 0.0

    @property
    def empty(self) -> bool:
        """Whether it holds nothing."""
        return not (self.collections or self.supplied or self.pending)


class Clients:
    """Limits come from the settings: those for all clients together are divided by the number of processes that may
    hold collections, those for one client are what it may have here. `clock` in seconds is for tests."""

    def __init__(self, settings: dict[str, Any], clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        processes = settings["collection_actors"]
        self._most_collections = max(settings["max_collections"] // processes, 1)
        self._most_bytes = settings["collections_bytes"] // processes
        self._collections_each = settings["max_collections_per_client"]
        self._supplied_each = settings["supplied_bytes_per_client"]
        self._pending_each = settings["pending_calls_per_client"]
        self._rate = settings["calls_per_second_per_client"]
        self._of: dict[str, Holding] = {}
        self._collections = 0
        self._pending = 0  # calls under way
        self._bytes = 0  # held for all clients together
        self.refused = 0

    def of(self, client: str) -> Holding:
        """What a client has."""
        found = self._of.get(client)
        if found is None:
            if len(self._of) >= MANY_CLIENTS:
                self._of = {name: holding for name, holding in self._of.items() if not holding.empty}
            found = self._of[client] = Holding(tokens=max(self._rate * BURST, 1.0), refilled=self._clock())
        return found

    @property
    def nbytes(self) -> int:
        """Bytes of all that is held for clients."""
        return self._bytes

    @contextmanager
    def calling(self, client: str) -> Iterator[Holding]:
        """Counts a call while it is answered. Raises Busy for one too many at a time, or too soon."""
        holding = self.of(client)
        with self._refusals():
            check_pending(holding.pending, self._pending_each)
            if self._pending >= MOST_PENDING:
                raise Busy(f"{self._pending} calls wait for an answer here, the most that are allowed")
            self._spend_token(holding)
        holding.pending += 1
        self._pending += 1
        try:
            yield holding
        finally:
            holding.pending -= 1
            self._pending -= 1

    def _spend_token(self, holding: Holding) -> None:
        if not self._rate:
            return
        now = self._clock()
        tokens = holding.tokens + (now - holding.refilled) * self._rate
        holding.tokens, holding.refilled = min(tokens, max(self._rate * BURST, 1.0)), now
        if holding.tokens < 1.0:
            raise Busy(f"this client asks more than {self._rate} times a second, the most that is allowed")
        holding.tokens -= 1.0

    def open(self, client: str, size: int) -> None:
        """Takes room for one more collection of `size` bytes. Raises Busy if there is none."""
        holding = self.of(client)
        with self._refusals():
            check_collections(holding.collections, self._collections_each)
            if self._collections >= self._most_collections:
                raise Busy(f"{self._collections} collections are open here, the most that are allowed")
        self.take(size)
        holding.collections += 1
        self._collections += 1

    def close(self, client: str, size: int, supplied: int) -> None:
        """Gives back the room of a collection, `size` bytes, and the `supplied` raw bytes that came from the client."""
        holding = self.of(client)
        holding.collections -= 1
        holding.supplied -= supplied
        self._collections -= 1
        self._bytes -= size

    def take(self, size: int) -> None:
        """Takes room for `size` bytes more of an open collection. Raises Busy if there is none."""
        with self._refusals():
            if self._bytes + size > self._most_bytes:
                raise Busy(
                    f"open collections take {self._bytes} bytes here; {size} more are above the {self._most_bytes} "
                    "allowed"
                )
        self._bytes += size

    def give_back(self, size: int) -> None:
        """Room that was taken for what turned out to be there already."""
        self._bytes -= size

    def supply(self, client: str, size: int) -> None:
        """Takes `size` of the raw bytes that the client may have supplied. Raises Busy if they are too many.

        What they take here, parsed, is taken by `take` once it is known.
        """
        holding = self.of(client)
        with self._refusals():
            check_supplied(holding.supplied, size, self._supplied_each)
        holding.supplied += size

    def unsupply(self, client: str, size: int) -> None:
        """Supplied bytes that were not kept."""
        self.of(client).supplied -= size

    @contextmanager
    def _refusals(self) -> Iterator[None]:
        """Counts them."""
        try:
            yield
        except Busy:
            self.refused += 1
            raise

    def stats(self) -> dict[str, int]:
        """Counters since the start, and what is held now."""
        return {"clients": len(self._of), "held_bytes": self._bytes, "refused": self.refused}
