"""Solved blocks: to the node that the store follows, which tells the network, and to the store; to the store alone
where there is no such node.
"""

import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

from cluster.followed import Followed
from cluster.node_rpc import NodeRpc
from models.consensus import reasons as r
from models.errors import NodeError, TxCollectionError

__all__ = ["Solutions", "Submit"]

#: Submits a block: Core's reason and debug text, no reason for one that was accepted and is new.
Submit = Callable[[bytes], Awaitable[tuple[str | None, str]]]

log = logging.getLogger("txcollection.ipc")


class Solutions:
    """For one store. Which node is followed is looked up for every block, since followers come and go."""

    def __init__(self, store: Path, to_store: Submit):
        self._store = store
        self._to_store = to_store
        self._node: tuple[Followed, NodeRpc] | None = None

    async def submit(self, block: bytes) -> tuple[str | None, str]:
        """The followed node's answer if there is one, else the store's.

        Raises NodeError if the node could not be asked; the block is in the store nevertheless.
        """
        followed = Followed.load(self._store)
        if followed is None:
            return await self._to_store(block)
        try:
            reason = await (await self._rpc(followed)).call("submitblock", block.hex())
        except NodeError as error:
            log.warning("a solved block did not reach the node at %s: %s", followed.url, error)
            here, _ = await self._to_store(block)
            answer = here or "accepted"
            raise NodeError(f"the block did not reach {followed.url}: {error} (the store answers: {answer})") from None
        if reason in (None, r.DUPLICATE.text):
            await self._into_store(block)
        return reason, ""

    async def _into_store(self, block: bytes) -> None:
        """The follower would bring it too, a moment later; whoever submitted it is to see it at once."""
        try:
            await self._to_store(block)
        except TxCollectionError as error:
            log.warning("a block that the node has accepted waits for the follower: %s", error)

    async def _rpc(self, followed: Followed) -> NodeRpc:
        if self._node is None or self._node[0] != followed:
            await self.close()
            self._node = (followed, followed.rpc())
        return self._node[1]

    async def close(self) -> None:
        """Closes the connection to the node."""
        if self._node is not None:
            await self._node[1].close()
            self._node = None
