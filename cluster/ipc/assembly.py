"""Templates of our own, made once for all clients that ask for the same at about the same time: a node with many
clients that wait for fees would otherwise do little else.
"""

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from models.consensus.context import TipVersion
from models.errors import StaleView

if TYPE_CHECKING:
    from cluster.ipc.node import Node

__all__ = ["Assembly", "CreateOptions"]

KEPT = 1.0  # seconds
TRIES = 3  # while the tip moves


@dataclass(frozen=True)
class CreateOptions:
    """How a template of our own is made: weight units and sigop cost that are kept free for the coinbase."""

    reserved_weight: int
    reserved_sigops: int


@dataclass
class _Made:
    begun: float  # loop time
    version: TipVersion
    task: "asyncio.Task[tuple[Any, ...]]"


class Assembly:
    """The newest template for each set of options."""

    def __init__(self, node: "Node"):
        self._node = node
        self._newest: dict[CreateOptions, _Made] = {}

    async def get(self, options: CreateOptions, age: float) -> tuple[Any, ...]:
        """A packed verdict on a block of our own that was begun on this tip at most `age` seconds ago."""
        loop = asyncio.get_running_loop()
        found = self._newest.get(options)
        version = self._node.tips.tip().version
        if found is None or found.begun < loop.time() - age or found.version != version:
            found = _Made(loop.time(), version, asyncio.create_task(self._make(options)))
            self._newest[options] = found
            loop.call_later(KEPT, self._forget, options, found)
        return await asyncio.shield(found.task)

    def _forget(self, options: CreateOptions, made: _Made) -> None:
        if self._newest.get(options) is made:
            del self._newest[options]
        if made.task.done() and not made.task.cancelled():
            made.task.exception()  # whoever waited for it has seen it

    async def _make(self, options: CreateOptions) -> tuple[Any, ...]:
        for attempt in range(TRIES):
            try:
                return await self._node.assemble(options.reserved_weight, options.reserved_sigops)
            except StaleView:
                if attempt == TRIES - 1:
                    raise
                await asyncio.sleep(0.01)
        raise AssertionError("unreachable")
