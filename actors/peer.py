"""One actor of which there is one (chainstate, mempool), as an async actor sees it: a question to one that died waits
for the replacement that the supervisor puts in, and is asked once more there, unless it would write.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import ray

from models.errors import WorkerLost
from models.messages import unwrap

__all__ = ["REPLACEMENT_PATIENCE", "Peer"]

REPLACEMENT_PATIENCE = 15.0  # seconds for a replacement; one takes two or three, with a large database a few more


class Peer:
    """The handle of an actor. `report(handle, why)` tells the supervisor that it is to be replaced."""

    def __init__(self, kind: str, report: Callable[[Any, str], None]):
        self.kind = kind
        self.handle: Any = None
        self._report = report
        self._lost: set[Any] = set()
        self._changed = asyncio.Event()

    def set(self, handle: Any) -> bool:
        """The supervisor's word; True if this is another actor than before. One that was seen dead is not taken."""
        if handle is None or handle in self._lost or handle == self.handle:
            return False
        self.handle = handle
        self._changed.set()
        self._changed = asyncio.Event()
        return True

    def lose(self, handle: Any, why: str = "died under a call") -> None:
        """It was seen dead."""
        if handle is None or handle in self._lost:
            return
        self._lost.add(handle)
        if self.handle == handle:
            self.handle = None
        self._report(handle, why)

    async def there(self) -> Any:
        """The handle, as soon as there is one. Raises WorkerLost if nobody puts one in."""
        if self.handle is None:
            try:
                async with asyncio.timeout(REPLACEMENT_PATIENCE):
                    while self.handle is None:
                        await self._changed.wait()
            except TimeoutError:
                raise WorkerLost(
                    f"the {self.kind} actor is gone and no other one has started yet: ask again, or see the node's log"
                ) from None
        return self.handle

    async def call(self, method: str, *args: Any, again: bool = True) -> Any:
        """The value that `method` answers with, or the error that it raises.

        Raises WorkerLost when two of them died under it; without `again` when the first did: whether what it was asked
        for was done is not known then.
        """
        return (await self.call_kept(method, *args, again=again))[1]

    async def call_kept(self, method: str, *args: Any, again: bool = True) -> tuple[Any, Any]:
        """The same with Ray's reference to the answer in front, by which it is passed on without a copy."""
        for attempt in range(2):
            handle = await self.there()
            try:
                reference = getattr(handle, method).remote(*args)
                return reference, unwrap(await reference)
            except ray.exceptions.RayActorError:
                self.lose(handle)
                if not again:
                    raise WorkerLost(
                        f"the {self.kind} actor died under {method}; whether it was done is not known, ask again"
                    ) from None
                if attempt:
                    raise WorkerLost(f"two {self.kind} actors died under {method}") from None
        raise AssertionError("unreachable")
