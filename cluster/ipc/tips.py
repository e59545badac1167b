"""Waiting for the tip to change: the published tip is looked at every few milliseconds, and only while somebody waits.

The look costs microseconds (`models.storage.tipfile`), asks nobody and needs no message to arrive.
"""

import asyncio
import math
from pathlib import Path

from models.consensus.context import Tip, TipVersion
from models.errors import StoreError
from models.storage.tipfile import TipReader

__all__ = ["LONGEST", "Interrupt", "TipWatch", "seconds_of"]

PERIOD = 0.003  # seconds between looks
LONGEST = 10 * 365 * 86_400.0  # seconds: what no time-out, or an endless one, is taken for


def seconds_of(milliseconds: float) -> float:
    """A client's time-out in seconds: never negative, never more than years, and zero for what is no number."""
    if math.isnan(milliseconds) or milliseconds <= 0:
        return 0.0
    return min(milliseconds / 1000, LONGEST)


class Interrupt:
    """Ends the waits of one object. Raised while nobody waits, it ends the next one, as Core's flag does."""

    def __init__(self) -> None:
        self._raised = False
        self.waiters: set[asyncio.Future[bool]] = set()

    def set(self) -> None:
        """Ends every wait that is under way, or else the next."""
        waiting = [waiter for waiter in self.waiters if not waiter.done()]
        for waiter in waiting:
            waiter.set_result(True)
        self._raised = not waiting

    def take(self) -> bool:
        """Whether one is pending; it is then used up."""
        raised, self._raised = self._raised, False
        return raised


class TipWatch:
    """The published tip of one store."""

    def __init__(self, store: Path):
        self._reader = TipReader(store)
        self._waiters: dict[asyncio.Future[bool], TipVersion] = {}  # with the version that each has seen
        self._looking: asyncio.Task[None] | None = None

    def tip(self) -> Tip:
        """The tip as it is now. Raises StoreError if the file is damaged."""
        return self._reader.read()

    def close(self) -> None:
        """Lets go of the file."""
        if self._looking is not None:
            self._looking.cancel()
        self._reader.close()

    async def wait(self, known: bytes, seconds: float, interrupt: Interrupt) -> Tip | None:
        """The tip once it is another than `known` (a hash), or whichever it is when the time is up; None if the wait
        was interrupted."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while not interrupt.take():
            tip = self.tip()
            left = deadline - loop.time()
            if tip.hash != known or left <= 0:
                return tip
            if await self._woken(tip.version, left, interrupt):
                return None
        return None

    async def _woken(self, seen: TipVersion, seconds: float, interrupt: Interrupt) -> bool:
        """Returns when the tip is of another version than `seen`, or the time is up; True for an interrupt."""
        waiter: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiters[waiter] = seen
        interrupt.waiters.add(waiter)
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look())
        try:
            async with asyncio.timeout(seconds):
                return await waiter
        except TimeoutError:
            return False
        finally:
            del self._waiters[waiter]
            interrupt.waiters.discard(waiter)

    async def _look(self) -> None:
        while self._waiters:
            await asyncio.sleep(PERIOD)
            try:
                version: TipVersion | None = self.tip().version
            except StoreError:
                version = None  # each of them looks again, and meets the error itself
            for waiter, seen in self._waiters.items():
                if seen != version and not waiter.done():
                    waiter.set_result(False)
