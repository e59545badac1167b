"""The store's node as the follower sees it: its actors, found by name, found again when the node was restarted."""

import asyncio
import socket
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import ray

from actors.pool import id_of
from actors.supervisor import SUPERVISOR
from cluster.follow import TargetLost
from cluster.runtime import NodeFile, NoNode, ensure_ray, namespace_of
from models.consensus.context import Tip
from models.consensus.params import ChainParams, get_params
from models.errors import Busy, InternalError, StaleView, WorkerLost
from models.messages import unpack_tip, unwrap
from models.wire.hashes import split_hashes

__all__ = ["RayTarget"]

PATIENCE = 60.0  # seconds for any answer but that to a block
BLOCK_PATIENCE = 600.0  # seconds; a block of large scripts on a slow machine


class RayTarget:
    """`models` and actors do the work; this only asks. See `cluster.follow.Target`."""

    def __init__(self, store: Path, rejoin: bool = True):
        """`rejoin`: the node is another process's and may be started anew, with another Ray, while we run."""
        self.on_join: Callable[[], None] = lambda: None  # Ray puts its own signal handlers in place of others
        self._store = store
        self._namespace = namespace_of(store)
        self._rejoin = rejoin
        self._session = ""  # of the Ray that we joined
        self._supervisor: Any = None
        self._directory: dict[str, Any] = {}

    async def connect(self) -> ChainParams:
        """Finds the node's actors."""
        self._directory = {}
        if self._rejoin:
            await asyncio.to_thread(self._join)
            self.on_join()
        try:
            self._supervisor = await asyncio.to_thread(ray.get_actor, SUPERVISOR, self._namespace)
        except (ValueError, ray.exceptions.RayError):
            raise TargetLost(f"no node runs on {self._store}: start one with `txcollection up`") from None
        self._directory = await self._answer(self._supervisor, "directory", PATIENCE)
        return get_params(**await self._ask("chainstate", "params"))

    def _join(self) -> None:
        """Joins the Ray of the node that runs now. One that has ended is left at once: Ray ends a process that waits
        for it for a minute."""
        try:
            node = NodeFile.read(self._store)
        except NoNode as error:
            self._leave()
            raise TargetLost(str(error)) from None
        if not _answers(node.address):
            self._leave()
            raise TargetLost(f"the Ray at {node.address}, in which the node on {self._store} ran, has ended")
        if ray.is_initialized() and self._session and self._session != node.session:
            self._leave()
        try:
            ensure_ray(node.address)
        except NoNode as error:
            raise TargetLost(str(error)) from None
        self._session = node.session

    def _leave(self) -> None:
        if ray.is_initialized():
            ray.shutdown()
        self._session = ""

    async def _answer(self, actor: Any, method: str, patience: float, *args: Any) -> Any:
        try:
            return unwrap(await asyncio.wait_for(getattr(actor, method).remote(*args), patience))
        except ray.exceptions.RayActorError as error:
            if actor != self._supervisor:
                self._supervisor.lost.remote(id_of(actor), f"died under {method}, asked by the follower")
            raise TargetLost(f"an actor of the node on {self._store} is gone ({type(error).__name__})") from None
        except ray.exceptions.RayError as error:
            raise TargetLost(f"the node on {self._store} does not answer ({type(error).__name__})") from None
        except TimeoutError:
            raise TargetLost(f"no answer from the node on {self._store} in {patience:g} s") from None
        except (Busy, WorkerLost, StaleView) as error:
            raise TargetLost(f"the node on {self._store}: {error}") from None

    async def _ask(self, kind: str, method: str, *args: Any, patience: float = PATIENCE) -> Any:
        chosen = self._directory.get(kind)
        actor = chosen[-1] if isinstance(chosen, list) and chosen else chosen
        if not actor:
            raise TargetLost(f"the node on {self._store} has no {kind} actor at this moment")
        return await self._answer(actor, method, patience, *args)

    async def tip(self) -> Tip:
        """See Target."""
        return unpack_tip(await self._ask("chainstate", "tip"))

    async def best_block(self) -> bytes:
        """See Target."""
        return await self._ask("chainstate", "best_block")

    async def headers(self, start: int, count: int) -> list[bytes]:
        """See Target."""
        return await self._ask("chainstate", "headers", start, count)

    async def knows(self, block_hash: bytes) -> bool:
        """See Target."""
        return await self._ask("chainstate", "block_info", block_hash) is not None

    async def add_headers(self, headers: list[bytes]) -> None:
        """See Target."""
        await self._ask("chainstate", "add_headers", headers)

    async def submit(self, raw: bytes) -> str | None:
        """See Target. An error of ours inside counts as one: it is not tried for ever."""
        return await self._ask("template", "submit_block", raw, patience=BLOCK_PATIENCE)

    async def mempool_ids(self) -> tuple[list[bytes], list[bytes]]:
        """See Target."""
        txids, wtxids = await self._ask("mempool", "ids")
        return _split(txids), _split(wtxids)

    async def mirror(self, gone: Iterable[bytes], raws: Sequence[bytes]) -> tuple[int, int]:
        """See Target."""
        removed, added = await self._ask("mempool", "mirror", b"".join(gone), list(raws))
        return removed, added


def _answers(address: str) -> bool:
    """Whether somebody listens at host:port."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=2.0).close()
    except (OSError, ValueError):
        return False
    return True


def _split(joined: bytes) -> list[bytes]:
    if len(joined) % 32:
        raise InternalError(f"{len(joined)} bytes are no list of ids")
    return split_hashes(joined)
