"""A block in the making: what is known of its transactions and coins, worked out as it comes in, judged at the end.

A draft belongs to one declaration. It is told segments of transactions, observations of coins, absences for BIP30 and
scripts that were verified elsewhere; it never reads anything itself. What it learned of coins holds for one tip version
and is dropped with it; transactions, wiring and verified scripts stay. The coinbase is not part of it: one draft is
judged with many coinbases, and leaves each judgement unchanged.
"""

from collections.abc import Iterable

import numpy as np

from models.coins.columns import UNKNOWN, CoinBatch, CoinColumns
from models.consensus.connect import RESULT_ROW, evaluate
from models.consensus.context import BlockContext, TipVersion
from models.consensus.layout import FROM_DATABASE, SPENT_BEFORE, Rewire, Segment, spends_of
from models.consensus.table import COINBASE, TX_ROW, TxRecord, TxTable
from models.errors import InternalError

__all__ = ["PROBE_ABSENT", "PROBE_PRESENT", "PROBE_UNKNOWN", "BlockDraft"]

(PROBE_UNKNOWN, PROBE_ABSENT, PROBE_PRESENT) = range(3)  # BIP30: is any output of a transaction already unspent?
(SCRIPT_UNKNOWN, SCRIPT_GOOD) = range(2)


class _Part:
    """A segment with its coins and results."""

    __slots__ = ("coins", "complete", "fresh", "segment", "wired")

    def __init__(self, segment: Segment):
        self.segment = segment
        self.coins = CoinColumns(len(segment.table.ins))
        self.fresh = True  # results are not worked out yet
        self.complete = False  # every coin was observed
        self.wired = False  # coins that come from the block itself are filled in


class BlockDraft:
    """Facts of a block with `count` transactions beside the coinbase. Positions count from 1; the coinbase is 0."""

    def __init__(self, count: int):
        self.count = count
        self.rows = np.zeros(count + 1, TX_ROW)
        self.results = np.zeros(count + 1, RESULT_ROW)
        self.filled = np.zeros(count + 1, bool)
        self.probes = np.zeros(count + 1, np.uint8)
        self.scripts = np.zeros(count + 1, np.uint8)
        self.script_flags: int | None = None
        self.version: TipVersion | None = None
        self._parts: list[_Part] = []
        self._where = np.full((count + 1, 2), -1, np.int32)  # segment and index in it, by position

    # What the draft is told -------------------------------------------------------------------------------------

    def add(self, segment: Segment, rewires: Iterable[Rewire] = ()) -> None:
        """Takes in a segment, and what its arrival changed for inputs of earlier ones (see `BlockLayout.add`)."""
        number = len(self._parts)
        self._parts.append(_Part(segment))
        self.rows[segment.positions] = segment.table.rows
        self.filled[segment.positions] = True
        self._where[segment.positions, 0] = number
        self._where[segment.positions, 1] = np.arange(len(segment.table))
        for rewire in rewires:
            self._parts[rewire.segment].segment.source[rewire.input] = rewire.source
            self._parts[rewire.segment].fresh = True
            self._parts[rewire.segment].wired = False

    def begin(self, version: TipVersion, script_flags: int) -> None:
        """Says which tip the observations to come belong to; what was known of another tip is dropped."""
        if self.version == version:
            return
        self.forget_coins()
        self.version = version
        if self.script_flags != script_flags:
            self.scripts[:] = SCRIPT_UNKNOWN
            self.script_flags = script_flags

    def forget_coins(self) -> None:
        """Drops every observation; transactions and verified scripts stay."""
        self.version = None
        self.probes[:] = PROBE_UNKNOWN
        for part in self._parts:
            part.coins = CoinColumns(len(part.segment.table.ins))
            part.fresh = True
            part.complete = False
            part.wired = False

    def observe(self, segment: int, inputs: np.ndarray, batch: CoinBatch, version: TipVersion) -> bool:
        """Observations of inputs of a segment; False, and nothing kept, if they are of another tip version."""
        if version != self.version:
            return False
        part = self._parts[segment]
        part.coins.put(inputs, batch)
        part.fresh = True
        return True

    def probed(self, positions: np.ndarray, states: np.ndarray, version: TipVersion) -> bool:
        """BIP30 answers for transactions, PROBE_ABSENT or PROBE_PRESENT; False if they are of another tip version."""
        if version != self.version:
            return False
        self.probes[positions] = states
        return True

    def scripts_good(self, positions: np.ndarray, flags: int) -> None:
        """Transactions whose scripts all pass under `flags`."""
        if self.script_flags is None:
            self.script_flags = flags
        if flags == self.script_flags:
            self.scripts[positions] = SCRIPT_GOOD

    # What the draft wants to know -------------------------------------------------------------------------------

    def missing(self) -> np.ndarray:
        """Positions of transactions that have not arrived."""
        return np.flatnonzero(~self.filled[1:]) + 1

    def unobserved(self) -> list[tuple[int, np.ndarray]]:
        """(segment, inputs) whose coins must come from the database and were not observed yet."""
        wanted = []
        for number, part in enumerate(self._parts):
            if part.complete:
                continue
            ask = (part.coins.rows["state"] == UNKNOWN) & (part.segment.source == FROM_DATABASE)
            ask &= ~self._coinbase_inputs(part)
            inputs = np.flatnonzero(ask)
            if len(inputs):
                wanted.append((number, inputs))
        return wanted

    def unprobed(self) -> np.ndarray:
        """Positions whose outputs must still be looked for (BIP30)."""
        return np.flatnonzero(self.filled[1:] & (self.probes[1:] == PROBE_UNKNOWN)) + 1

    def outpoints_of_inputs(self, segment: int, inputs: np.ndarray) -> list[bytes]:
        """The outpoints that inputs of a segment spend."""
        return np.ascontiguousarray(self._parts[segment].segment.table.ins["prevout"][inputs]).tolist()

    def outpoints_of_outputs(self, positions: np.ndarray) -> tuple[list[bytes], np.ndarray]:
        """All outputs of transactions, as outpoints, and how many each has."""
        counts = self.rows["n_out"][positions].astype(np.int64)
        txids = np.ascontiguousarray(self.rows["txid"][positions]).tolist()
        outpoints = [
            txid + n.to_bytes(4, "little")
            for txid, count in zip(txids, counts.tolist(), strict=True)
            for n in range(count)
        ]
        return outpoints, counts

    def unverified(self) -> np.ndarray:
        """Positions whose scripts are not known to pass."""
        return np.flatnonzero(self.filled[1:] & (self.scripts[1:] == SCRIPT_UNKNOWN)) + 1

    def script_job(self, position: int) -> tuple[bytes, list[tuple[int, bytes]]]:
        """What verifying a transaction's scripts takes: its raw bytes, and (satoshis, scriptPubKey) of each input."""
        number, index = self._where[position].tolist()
        part = self._parts[number]
        table = part.segment.table
        start, end = int(table.in_start[index]), int(table.in_start[index + 1])
        return table.raw(index), [part.coins.spent_output(at) for at in range(start, end)]

    def prevout(self, position: int, input: int) -> bytes:
        """The outpoint that an input of the transaction at `position` spends."""
        number, index = self._where[position].tolist()
        table = self._parts[number].segment.table
        return table.ins["prevout"][int(table.in_start[index]) + input].tobytes()

    def raw(self, position: int) -> bytes:
        """Serialisation with witness of the transaction at `position`."""
        number, index = self._where[position].tolist()
        return self._parts[number].segment.table.raw(index)

    # Working out ------------------------------------------------------------------------------------------------

    def work_out(self, context: BlockContext) -> None:
        """Evaluates every segment whose coins are all known and whose results are not up to date.

        Called whenever there is time for it; a second call does nothing.
        """
        for part in self._parts:
            if not part.fresh:
                continue
            if not part.wired:
                self._fill_from_block(part, context.height)
                part.wired = True
            ask = (part.coins.rows["state"] == UNKNOWN) & ~self._coinbase_inputs(part)
            part.complete = not ask.any()
            if part.complete:
                results = evaluate(part.segment.table, part.coins.rows, context, context.script_flags)
                self.results[part.segment.positions] = results
                part.fresh = False

    def results_with(self, coinbase: TxRecord, context: BlockContext, flags: int) -> np.ndarray:
        """Results of the whole block in order, for one coinbase, all coins being known; the draft is left as it was."""
        self.work_out(context)
        if any(part.fresh for part in self._parts):
            raise InternalError("a block was judged before its coins were known")
        results = self.results.copy()
        table = TxTable.from_records([coinbase])
        for part in self._parts:
            spends = spends_of(part.segment.table, coinbase.txid)
            if spends or flags != context.script_flags:  # the latter: a block of history that is exempt from rules
                rows = self._with_coinbase(part, spends, table, context.height)
                results[part.segment.positions] = evaluate(part.segment.table, rows, context, flags)
        results[0] = evaluate(table, CoinColumns(len(table.ins)).rows, context, flags)[0]
        return results

    def _with_coinbase(self, part: _Part, spends: list[int], coinbase: TxTable, height: int) -> np.ndarray:
        """A copy of a segment's coins in which inputs that spend this block's own coinbase find it."""
        rows = part.coins.rows.copy()
        for at in spends:
            if part.segment.source[at] == SPENT_BEFORE:
                continue
            vout = int.from_bytes(part.segment.table.ins["prevout"][at].tobytes()[32:], "little")
            scratch = CoinColumns(1)
            if vout < len(coinbase.outs) and not coinbase.outs["unspendable"][vout]:
                scratch.put_in_block(0, *coinbase.output(0, vout), height, True)
            else:
                scratch.put_absent(0)
            rows[at] = scratch.rows[0]
        return rows

    def _coinbase_inputs(self, part: _Part) -> np.ndarray:
        table = part.segment.table
        return np.repeat(table.rows["flags"] & COINBASE != 0, table.rows["n_in"])

    def _fill_from_block(self, part: _Part, height: int) -> None:
        """Gives inputs that spend this block's own outputs their coins; the rest of the wiring becomes absences."""
        source = part.segment.source
        for at in np.flatnonzero(source == SPENT_BEFORE).tolist():
            part.coins.put_absent(at)
        children = np.flatnonzero(source >= 0)
        if not len(children):
            return
        prevouts = np.ascontiguousarray(part.segment.table.ins["prevout"][children]).tolist()
        for at, prevout, parent in zip(children.tolist(), prevouts, source[children].tolist(), strict=True):
            number, index = self._where[parent].tolist()
            table = self._parts[number].segment.table
            vout = int.from_bytes(prevout[32:], "little")
            if vout >= int(table.rows["n_out"][index]) or table.outs["unspendable"][table.out_start[index] + vout]:
                part.coins.put_absent(at)
                continue
            value, script = table.output(index, vout)
            part.coins.put_in_block(at, value, script, height, False)

    @property
    def nbytes(self) -> int:
        """Packed bytes of what was observed of coins."""
        return sum(part.coins.nbytes for part in self._parts)
