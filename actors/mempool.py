"""MempoolActor: transactions by wtxid with their parsed facts, and the cache of scripts that are known to pass.

What is admitted is looked at in the background: its coins are read and its scripts verified while nobody waits for it.
"""

import asyncio
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from actors.answers import answers
from actors.peer import Peer
from actors.pool import WorkerPool, id_of
from models.assembly import Candidate, select
from models.consensus.context import BlockContext
from models.consensus.table import TxTable
from models.errors import ClientError, TxCollectionError
from models.mempool import Mempool, MempoolEntry, NewOutputs, ScriptCache
from models.mempool_facts import FactsBatch, chunked
from models.messages import FlatTip, unpack_batch
from models.script.jobs import pack_jobs
from models.storage.mempooldat import read_mempool
from models.wire.block import decode_block
from models.wire.hashes import split_hashes, to_display
from models.wire.transaction import decode_transaction

__all__ = ["MempoolActor"]

BATCH = 256  # transactions looked at together in the background


class MempoolActor:
    """One per store."""

    RAY_OPTIONS: ClassVar[dict[str, Any]] = {"num_cpus": 0, "max_restarts": 0, "max_concurrency": 1000}

    def __init__(self, settings: dict[str, Any]):
        self._settings = settings
        self._pool = Mempool(settings["mempool_bytes"])
        self._scripts = ScriptCache(settings["script_cache_entries"])
        self._fetch = WorkerPool("fetch", self._report)
        self._verify = WorkerPool("script", self._report)
        self._supervisor: Any = None
        self._chainstate = Peer("chainstate", self._report)
        self._context: BlockContext | None = None
        self._new = NewOutputs()
        self._todo: asyncio.Queue[bytes] = asyncio.Queue()
        self._pending = 0
        self._settled = asyncio.Event()
        self._settled.set()
        self._worker: asyncio.Task[None] | None = None
        self._counts = {"lookups": 0, "found": 0, "verified": 0, "loaded": 0, "skipped": 0}
        self._warnings: list[str] = []

    def _report(self, worker: Any, why: str) -> None:
        if self._supervisor is not None:
            self._supervisor.lost.remote(id_of(worker), why)

    async def wire(self, directory: dict[str, Any]) -> None:
        """Whom to ask for coins and scripts."""
        self._supervisor = directory["supervisor"]
        if self._chainstate.set(directory["chainstate"]):
            self._new.forget()
            for wtxid in self._pool.to_look_at(everything=True):
                self._queue(wtxid)
        self._fetch.set_members(directory["fetch"])
        self._verify.set_members(directory["script"])
        self._context = None
        if self._worker is None and self._settings["mempool_verify"] == "on":
            self._worker = asyncio.create_task(self._work())

    @answers
    async def load(self, path: str) -> dict[str, Any]:
        """Takes in a mempool.dat of Core's; what it loaded, and warnings about what it could not."""
        file = Path(path)
        if not file.is_file():
            return {"loaded": 0, "warnings": []}
        dump = read_mempool(file)
        self._warnings = list(dump.warnings)
        loaded = 0
        for i, entry in enumerate(dump.entries):
            loaded += self._admit(entry.raw)
            if i % 100 == 99:
                await asyncio.sleep(0)
        self._counts["loaded"] += loaded
        return {"loaded": loaded, "warnings": self._warnings}

    def _admit(self, raw: bytes) -> bool:
        try:
            wtxid = self._pool.add(raw)
        except ClientError:
            self._counts["skipped"] += 1
            return False
        if wtxid is None:
            return False
        self._queue(wtxid)
        return True

    def _queue(self, wtxid: bytes) -> None:
        if self._settings["mempool_verify"] == "on":
            self._pending += 1
            self._settled.clear()
            self._todo.put_nowait(wtxid)

    @answers
    async def add(self, raws: list[bytes]) -> list[str | None]:
        """Admits transactions; display wtxid of each new one, None for those already here. Raises ClientError."""
        added = []
        for raw in raws:
            wtxid = self._pool.add(raw)
            if wtxid is not None:
                self._queue(wtxid)
            added.append(None if wtxid is None else to_display(wtxid))
        return added

    @answers
    async def remove(self, wtxid: bytes) -> bytes:
        """Takes one transaction out and returns its bytes. Raises ClientError if it is not here."""
        removed = self._pool.remove(wtxid)
        if not removed:
            raise ClientError(f"no transaction with wtxid {to_display(wtxid)} in the mempool")
        return removed[0].record.raw

    @answers
    async def lookup(self, flags: int, *pieces: bytes) -> dict[str, np.ndarray] | None:
        """Which of joined 32-byte wtxids are here: columns of their facts, `positions`, `verified` (scripts), and `new`
        (outputs, at the tip version `new_at`; see `NewOutputs`)."""
        wtxids = b"".join(pieces)
        split = split_hashes(wtxids)
        positions, entries = self._pool.lookup(split)
        self._counts["lookups"] += 1
        self._counts["found"] += len(entries)
        if not entries:
            return None
        found = split if len(entries) == len(split) else [split[i] for i in positions.tolist()]
        columns = self._columns(entries, found, flags)
        columns["positions"] = positions
        return columns

    def _columns(self, entries: list[MempoolEntry], wtxids: list[bytes], flags: int) -> dict[str, np.ndarray]:
        columns = TxTable.from_records([entry.record for entry in entries]).to_columns()
        columns["verified"] = np.array(self._scripts.knows(wtxids, flags), bool)
        era = self._new.era
        columns["new"] = np.array([entry.new_in == era for entry in entries], bool)
        columns["new_at"] = np.array(self._new.version or (0, 0), np.int64)
        return columns

    @answers
    async def verified(self, wtxids: bytes, flags: int) -> np.ndarray:
        """Which of joined 32-byte wtxids have scripts that are known to pass under these flags, one bool each."""
        split = split_hashes(wtxids)
        return np.array(self._scripts.knows(split, flags), bool)

    @answers
    async def transactions(self, ids: list[bytes], by_wtxid: bool) -> list[bytes | None]:
        """Raw transactions by txid or wtxid; None for what is not here."""
        entries = [self._pool.get(i) if by_wtxid else self._pool.by_txid(i) for i in ids]
        return [entry.record.raw if entry else None for entry in entries]

    @answers
    async def output(self, outpoint: bytes) -> tuple[bytes | None, bool]:
        """For people: the raw transaction that makes this output, if it is here, and whether one here spends it."""
        entry = self._pool.by_txid(outpoint[:32])
        return (entry.record.raw if entry else None), self._pool.is_spent(outpoint)

    @answers
    async def wtxids(self) -> list[bytes]:
        """All wtxids, oldest first."""
        return [wtxid for wtxid, _ in self._pool.entries()]

    @answers
    async def ids(self) -> tuple[bytes, bytes]:
        """Joined txids and joined wtxids of all transactions, in one order."""
        records = [entry.record for _, entry in self._pool.entries()]
        return b"".join([r.txid for r in records]), b"".join([r.wtxid for r in records])

    @answers
    async def mirror(self, gone: bytes, raws: list[bytes]) -> tuple[int, int]:
        """What a followed node says: joined txids that left its mempool, then transactions that entered it. One that is
        here with another witness is replaced. How many went and came; what can be no candidate is skipped."""
        removed = added = 0
        for txid in split_hashes(gone):
            entry = self._pool.by_txid(txid)
            removed += entry is not None and len(self._pool.remove(entry.record.wtxid))
        for i, raw in enumerate(raws):
            tx = decode_transaction(raw)
            entry = self._pool.by_txid(tx.txid)
            if entry is not None and entry.record.wtxid != tx.wtxid:
                removed += len(self._pool.remove(entry.record.wtxid))
            added += self._admit(raw)
            if i % 100 == 99:
                await asyncio.sleep(0)
        return removed, added

    @answers
    async def passed(self, wtxids: list[bytes], flags: int) -> None:
        """Remembers scripts of mempool transactions that were verified for a declaration."""
        self._scripts.add([wtxid for wtxid in wtxids if wtxid in self._pool], flags)

    @answers
    async def choose(self, reserved_weight: int, reserved_sigops: int, refused: list[bytes]) -> dict[str, Any]:
        """Transactions for the next block, parents first, best package fee rate first, none of `refused` (txids).

        Columns as of `lookup`, with `fees` (satoshis) and `sigops` (cost) of each, and the `flags` of `verified`.
        """
        await self._settled.wait()
        usable, unusable = [], list(refused)
        for _, entry in self._pool.entries():
            if entry.fee is None or entry.locked:
                unusable.append(entry.record.txid)
            else:
                usable.append(Candidate.of(entry))
        chosen = select(usable, reserved_weight, reserved_sigops, unusable)
        entries = [entry for entry in (self._pool.by_txid(c.txid) for c in chosen) if entry is not None]
        flags = self._context.script_flags if self._context else 0
        columns: dict[str, Any] = self._columns(entries, [entry.record.wtxid for entry in entries], flags)
        columns["flags"] = flags
        columns["fees"] = np.array([entry.fee for entry in entries], np.int64)
        columns["sigops"] = np.array([entry.sigop_cost for entry in entries], np.int64)
        return columns

    # In the background ------------------------------------------------------------------------------------------

    async def _work(self) -> None:
        while True:
            wtxids = [await self._todo.get()]
            while len(wtxids) < BATCH and not self._todo.empty():
                wtxids.append(self._todo.get_nowait())
            try:
                await self._look_at(wtxids)
            except TxCollectionError:
                pass  # it stays a candidate; a check that declares it will read and verify
            finally:
                self._pending -= len(wtxids)
                if self._pending <= 0:
                    self._settled.set()

    async def _look_at(self, wtxids: list[bytes]) -> None:
        if self._context is None:
            self._context = await self._chainstate.call("context")
        context = self._context
        if self._new.version is None:
            self._new.begin(context.tip.version)
        batch = FactsBatch(
            self._pool, wtxids, context, self._new if self._settings["mempool_outputs"] == "on" else None
        )
        deadline = self._settings["read_deadline_s"]
        if batch.outpoints:
            t = context.tip
            tip = (t.hash, t.height, t.version.epoch, t.version.n)
            flat = await self._fetch.call("prefetch", b"".join(batch.outpoints), tip, deadline=deadline)
            batch.observe(unpack_batch(flat))
        batch.evaluate()
        flags = context.script_flags
        jobs = batch.script_jobs(self._scripts, flags)
        size = self._settings["batch_script_inputs"]
        for chunk in chunked(jobs, size):
            firsts = await self._verify.run(
                "speculate",
                flags,
                *pack_jobs([job for _, job in chunk]),
                deadline=self._settings["script_deadline_s"],
                reserve=1,
            )
            passed = [wtxid for (wtxid, _), first in zip(chunk, firsts, strict=True) if first < 0]
            self._scripts.add(passed, flags)
            self._counts["verified"] += len(passed)

    async def tip_moved(self, tip: FlatTip, context: BlockContext, connected: bool, raw: bytes | None) -> None:
        """Drops what a block confirmed or conflicts with; takes back what a block that was taken back held. Without a
        block: the tip's header became known."""
        if self._context is None or self._context.tip.version < context.tip.version:
            self._context = context
        block = decode_block(raw) if raw is not None else None
        era = self._new.era
        self._new.follow(context.tip.version, connected and block is not None)
        if block is None:
            pass
        elif connected:
            self._pool.block_connected([(tx.txid, tx.prevouts) for tx in block.transactions[1:]])
        else:
            for tx in block.transactions[1:]:
                self._admit(tx.raw)
        for wtxid in self._pool.to_look_at(everything=not connected or self._new.era != era):
            self._queue(wtxid)

    @answers
    async def settled(self) -> None:
        """Returns when everything admitted so far has been looked at."""
        await self._settled.wait()

    async def stats(self) -> dict[str, Any]:
        """Sizes and counters."""
        return {
            **self._counts,
            "transactions": len(self._pool),
            "bytes": self._pool.nbytes,
            "bound": self._pool.bound,
            "evicted": self._pool.evicted,
            "scripts_known": len(self._scripts),
            "unsettled": self._pending,
            "warnings": self._warnings,
        }

    async def ping(self) -> str:
        """Answers as long as the process lives."""
        return "mempool"
