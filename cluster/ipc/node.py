"""The running node as this process sees it: its actors, its tip, and what all clients share.

It joins the node's Ray as one more client and holds nothing that another process could miss.
"""

import os
import time
from pathlib import Path
from typing import Any

import ray

from actors.supervisor import SUPERVISOR
from cluster.gateway.peers import Peers
from cluster.ipc.assembly import Assembly
from cluster.ipc.awake import Awake
from cluster.ipc.solutions import Solutions, Submit
from cluster.ipc.speculation import Speculations
from cluster.ipc.tips import TipWatch
from cluster.ipc.turns import Turns
from cluster.runtime import NodeFile, NoNode, ensure_ray
from models.consensus.context import BlockContext, TipVersion
from models.consensus.params import ChainParams
from models.errors import ClientError
from models.messages import unwrap
from models.storage.storeinfo import StoreInfo
from models.wire.block import BlockHeader

__all__ = ["Node", "join"]

ANSWER_TIMEOUT = 60.0  # seconds for the node to answer when it is joined
HEAVY_CALLS = max(2, min(os.cpu_count() or 2, 8))  # validations and templates side by side, see `Turns`
MAX_TIP_AGE = 24 * 3600  # seconds (Core: DEFAULT_MAX_TIP_AGE)


class Node:
    """One node. `submit` takes solved blocks."""

    def __init__(
        self, store: Path, supervisor: Any, directory: dict[str, Any], now: int | None = None, heartbeat: float = 0.01
    ):
        """`heartbeat` in seconds, see `Awake`."""
        self.awake = Awake(heartbeat)
        self.peers = Peers()
        self.peers.set_directory(directory)
        self.tips = TipWatch(store)
        self.turns = Turns(HEAVY_CALLS)
        self.assembly = Assembly(self)
        self.speculations = Speculations()
        self.params: ChainParams = StoreInfo.load(store).params()
        self.solutions = Solutions(store, self._submit_to_store)
        self.submit: Submit = self.solutions.submit
        self._supervisor = supervisor
        self._now = now
        self._context: BlockContext | None = None
        self._tip_header: tuple[TipVersion, BlockHeader] | None = None
        self._caught_up = False

    def now(self) -> int:
        """Unix time, or the time that stands for it."""
        return self._now or int(time.time())

    async def ping(self) -> None:
        """Raises RayError if the node does not live any more."""
        await self._supervisor.ping.remote()

    async def context(self) -> BlockContext:
        """What the block on top of the tip must be; asked for once per tip."""
        version = self.tips.tip().version
        if self._context is None or self._context.tip.version != version:
            self._context = await self.peers.ask("chainstate", "context")
        return self._context

    async def tip_header(self) -> BlockHeader:
        """Header of the tip; asked for once per tip."""
        tip = self.tips.tip()
        if self._tip_header is None or self._tip_header[0] != tip.version:
            self._tip_header = (tip.version, await self.header_at(tip.height))
        return self._tip_header[1]

    async def header_at(self, height: int) -> BlockHeader:
        """A header of the active chain. Raises ClientError beyond its end."""
        found = await self.peers.ask("chainstate", "headers", height, 1) if height >= 0 else []
        if not found:
            raise ClientError(f"no block at height {height}")
        return BlockHeader.parse(found[0])

    async def is_initial_block_download(self) -> bool:
        """Whether the tip was never less than a day old since this process began (Core: `IsInitialBlockDownload`)."""
        if not self._caught_up:
            header = await self.tip_header()
            self._caught_up = header.time >= self.now() - MAX_TIP_AGE
        return not self._caught_up

    async def _submit_to_store(self, block: bytes) -> tuple[str | None, str]:
        return await self.peers.ask("template", "submit_as_is", block, self._now, again=False)

    async def check_block(self, block: bytes, check_pow: bool, check_merkle_root: bool) -> tuple[Any, ...]:
        """A packed verdict on a whole block; raises DecodeError."""
        return await self.peers.ask("template", "check_block", block, check_pow, check_merkle_root, False, self._now)

    async def assemble(self, reserved_weight: int, reserved_sigops: int) -> tuple[Any, ...]:
        """A packed verdict on a block of our own; StaleView if the tip moves meanwhile."""
        return await self.peers.ask("template", "assemble", None, self._now, reserved_weight, reserved_sigops)

    async def close(self) -> None:
        """Leaves the node as it is."""
        self.tips.close()
        await self.solutions.close()


def join(store: Path, now: int | None = None, heartbeat: float = 0.01) -> Node:
    """The node that serves a store. Raises NoNode if none runs."""
    found = NodeFile.read(store)
    gone = NoNode(f"no node runs on {store} any more: start one with `txcollection up --store {store}`")
    if found.ended:
        raise gone
    ensure_ray(found.address)
    try:
        supervisor = ray.get_actor(SUPERVISOR, namespace=found.namespace)
        answer: Any = ray.get(supervisor.directory.remote(), timeout=ANSWER_TIMEOUT)
        directory = unwrap(answer)
    except (ValueError, ray.exceptions.RayError):
        raise gone from None
    return Node(store, supervisor, directory, now, heartbeat)
