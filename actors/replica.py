"""ReplicaActor: owns a copy of the coins database on another host and applies to it what each block changes, so that
fetch workers there find the current tip. It judges nothing and is asked nothing by clients.
"""

import asyncio
import contextlib
from pathlib import Path
from typing import Any, ClassVar

from actors.answers import answers
from models.coins.coin import Coin
from models.errors import StoreError, TxCollectionError
from models.messages import FlatCoin, unwrap
from models.storage.coinsdb import CoinsOwner
from models.wire.hashes import to_display

__all__ = ["REPLICA_RESOURCE", "ReplicaActor"]

REPLICA_RESOURCE = "txcollection_replica"  # of a Ray node: one that has a replica
AT_ONCE = 2  # blocks asked for together
AGAIN = 2.0  # seconds until it is tried again to catch up


class ReplicaActor:
    """One per host with a replica."""

    RAY_OPTIONS: ClassVar[dict[str, Any]] = {"num_cpus": 0, "max_restarts": 0, "max_concurrency": 100}

    def __init__(self, replica: str):
        path = Path(replica).expanduser()
        if not (path / "chainstate").is_dir():
            raise StoreError(f"no replica in {path} on this host: make one with `txcollection replicate --to {path}`")
        self._coins = CoinsOwner(path / "chainstate")
        self._chainstate: Any = None
        self._turn = asyncio.Lock()
        self._catching_up: asyncio.Task[None] | None = None
        self._trouble = ""
        self._counts = {"applied": 0, "caught_up": 0}

    async def wire(self, directory: dict[str, Any]) -> None:
        """Whom to ask for what was missed."""
        self._chainstate = directory["chainstate"]
        self._catch_up_soon()

    async def tip_moved(self, before: bytes, after: bytes, spent: list[bytes], created: list[FlatCoin]) -> None:
        """One block's changes; whoever is not at the block `before` asks for what lies between."""
        async with self._turn:
            if self._coins.best_block == before:
                await asyncio.to_thread(self._apply, after, spent, created)
                self._counts["applied"] += 1
                return
        self._catch_up_soon()

    def _apply(self, after: bytes, spent: list[bytes], created: list[FlatCoin]) -> None:
        self._coins.apply(spent, [(coin[0], Coin(*coin[1:])) for coin in created], after)

    def _catch_up_soon(self) -> None:
        if self._catching_up is None or self._catching_up.done():
            self._catching_up = asyncio.create_task(self._catch_up())

    async def _catch_up(self) -> None:
        while self._chainstate is not None:
            try:
                async with self._turn:
                    if not await self._some_steps():
                        self._trouble = ""
                        return
            except TxCollectionError as error:
                self._trouble = str(error)
                await asyncio.sleep(AGAIN)
            except Exception as error:  # its owner died: the next `wire` names another
                self._trouble = f"{type(error).__name__}"
                return

    async def _some_steps(self) -> bool:
        """Applies the next changes; False if there are none."""
        changes = unwrap(await self._chainstate.changes_from.remote(self._coins.best_block, AT_ONCE))
        for before, after, spent, created in changes:
            if before == self._coins.best_block:
                await asyncio.to_thread(self._apply, after, spent, created)
                self._counts["caught_up"] += 1
        return bool(changes)

    @answers
    async def utxo_hash(self) -> tuple[bytes, str]:
        """The block whose coins are here, and their hash_serialized_3. Reads all of them."""
        async with self._turn:
            stats = await asyncio.to_thread(self._coins.utxo_stats)
        return stats.best_block, stats.hash_serialized_3

    async def stats(self) -> dict[str, Any]:
        """Counters, and why it is behind if it is."""
        return {**self._counts, "tip": to_display(self._coins.best_block), "trouble": self._trouble}

    async def ping(self) -> str:
        """Answers as long as the process lives."""
        return "replica"

    @answers
    async def close(self) -> None:
        """Closes the database."""
        self._chainstate = None
        if self._catching_up is not None:
            self._catching_up.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._catching_up
        async with self._turn:
            self._coins.close()
