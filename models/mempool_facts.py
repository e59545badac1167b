"""What mempool transactions' coins say of them: fee, sigop cost, locks, and which scripts are still to be run.

The same rules as in a check, on a handful of transactions as if they stood in the next block beside their mempool
parents. Nothing of it decides a verdict, except scripts that pass, which are remembered.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from models.coins.columns import ABSENT, CoinBatch, CoinColumns
from models.consensus.block_checks import nonfinal
from models.consensus.connect import evaluate
from models.consensus.context import BlockContext
from models.consensus.table import TxTable
from models.mempool import Mempool, MempoolEntry, NewOutputs, ScriptCache
from models.script.jobs import ScriptJob

__all__ = ["FactsBatch"]


class FactsBatch:
    """Some entries of a mempool and the coins they spend."""

    def __init__(
        self, pool: Mempool, wtxids: Sequence[bytes], context: BlockContext, new_outputs: NewOutputs | None = None
    ):
        """With `new_outputs` the transactions' own outputs are looked for too, where the next block must not make
        anything that is there already."""
        self._context = context
        self._entries: list[MempoolEntry] = [e for e in map(pool.get, wtxids) if e is not None]
        self._table = TxTable.from_records([entry.record for entry in self._entries])
        self._coins = CoinColumns(len(self._table.ins))
        self.outpoints: list[bytes] = []  # to be read from the database, 36 bytes each
        self._new_outputs = new_outputs
        self._era = new_outputs.era if new_outputs else -1
        self._unseen: list[MempoolEntry] = []  # whose outputs are to be looked for (BIP30)
        self._asked: list[int] = []
        for at, prevout in enumerate(self._table.prevouts()):
            parent = pool.by_txid(prevout[:32])
            if parent is None:
                self.outpoints.append(prevout)
                self._asked.append(at)
                continue
            try:
                value, script = parent.record.output(int.from_bytes(prevout[32:], "little"))
                self._coins.put_in_block(at, value, script, context.height, False)
            except IndexError:
                self._coins.put_absent(at)
        if new_outputs is not None and context.bip30:
            self._unseen = [entry for entry in self._entries if not new_outputs.knows(entry)]
            for entry in self._unseen:
                txid = entry.record.txid
                self.outpoints += [txid + vout.to_bytes(4, "little") for vout in range(entry.record.n_out)]

    def observe(self, batch: CoinBatch) -> None:
        """The answer for `outpoints`."""
        spent = len(self._asked)
        self._coins.put(np.array(self._asked, np.int64), CoinBatch(batch.rows[:spent], batch.arena))
        if self._new_outputs is None or self._new_outputs.era != self._era:
            return
        at = spent
        for entry in self._unseen:
            if (batch.rows["state"][at : at + entry.record.n_out] == ABSENT).all():
                entry.new_in = self._era
            at += entry.record.n_out

    def evaluate(self) -> None:
        """Writes fee, sigop cost and locks into the entries; those with a broken rule keep no fee."""
        if not self._entries:
            return
        results = evaluate(self._table, self._coins.rows, self._context, self._context.script_flags)
        late = nonfinal(self._table.rows, self._context, self._context.median_time_past)
        for entry, result, is_late in zip(self._entries, results, late.tolist(), strict=True):
            immature = int(result["depth"]) > 0
            good = result["code"] == 0
            entry.fee = int(result["fee"]) if good else None
            entry.sigop_cost = int(result["sigop_cost"])
            entry.locked = bool(result["locked"]) or is_late or immature

    def script_jobs(self, cache: ScriptCache, flags: int) -> list[tuple[bytes, ScriptJob]]:
        """(wtxid, job) of every transaction whose coins are all there and whose scripts are not known to pass."""
        known = cache.knows([entry.record.wtxid for entry in self._entries], flags)
        missing = self._coins.rows["state"] == ABSENT
        jobs = []
        for i, (entry, passed) in enumerate(zip(self._entries, known, strict=True)):
            start, end = int(self._table.in_start[i]), int(self._table.in_start[i + 1])
            if passed or missing[start:end].any():
                continue
            spent = [self._coins.spent_output(at) for at in range(start, end)]
            jobs.append((entry.record.wtxid, (entry.record.raw, spent)))
        return jobs


def chunked(jobs: Sequence[tuple[bytes, ScriptJob]], inputs: int) -> Iterator[list[tuple[bytes, ScriptJob]]]:
    """Groups of jobs with about `inputs` inputs each; a job is never split."""
    chunk: list[tuple[bytes, ScriptJob]] = []
    size = 0
    for job in jobs:
        chunk.append(job)
        size += len(job[1][1])
        if size >= inputs:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk
