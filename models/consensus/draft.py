"""A block in the making: what is known of its transactions and coins, worked out as it comes in, judged at the end.

A draft belongs to one declaration. It is told segments of transactions, observations of coins, absences for BIP30 and
scripts that were verified elsewhere; it never reads anything itself. What it learned of coins holds for one tip version
and is dropped with it; transactions, wiring and verified scripts stay. The coinbase is not part of it: one draft is
judged with many coinbases, and leaves each judgement unchanged.
"""

from collections.abc import Iterable, Iterator

import numpy as np

from models.coins.columns import (
    ABSENT,
    COIN,
    COIN_ROW,
    IN_BLOCK,
    SPECIAL_SCRIPTS,
    UNKNOWN,
    CoinBatch,
    CoinColumns,
    take_slices,
)
from models.consensus.connect import RESULT_ROW, evaluate
from models.consensus.context import BlockContext, TipVersion
from models.consensus.layout import FROM_DATABASE, SPENT_BEFORE, Rewire, Segment, spends_of
from models.consensus.table import COINBASE, TX_ROW, TxRecord, TxTable, starts_of
from models.errors import InternalError, StaleView

__all__ = ["PROBE_ABSENT", "PROBE_PRESENT", "PROBE_UNKNOWN", "BlockDraft"]

(PROBE_UNKNOWN, PROBE_ABSENT, PROBE_PRESENT) = range(3)  # BIP30: is any output of a transaction already unspent?
(SCRIPT_UNKNOWN, SCRIPT_GOOD) = range(2)


MANY_JOBS = 64  # of one segment: from here on its coins are unpacked together


class _Part:
    """A segment with its coins."""

    __slots__ = ("asks", "coins", "complete", "pending", "source", "table")

    def __init__(self, segment: Segment):
        self.table = segment.table
        self.source = segment.source.copy()  # the draft's own, as later segments rewire it
        self.asks = np.repeat(self.table.rows["flags"] & COINBASE == 0, self.table.rows["n_in"])  # spends a coin
        self.forget_coins()

    def forget_coins(self) -> None:
        self.coins = CoinColumns(len(self.table.ins))
        self.complete = False  # every coin is known and the results are worked out
        self.pending = np.flatnonzero(self.source != FROM_DATABASE)  # inputs whose coins the block itself decides

    def unknown(self) -> np.ndarray:
        return self.asks & (self.coins.rows["state"] == UNKNOWN)


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
        self.generation = 0  # goes up with every loss of observations, also where the version comes back
        self._parts: list[_Part] = []
        self._positions: list[np.ndarray] = []  # of each part's transactions
        self._changed: set[int] = set()  # parts to look at again
        self._where = np.full((count + 1, 2), -1, np.int32)  # segment and index in it, by position

    # What the draft is told -------------------------------------------------------------------------------------

    def add(self, segment: Segment, rewires: Iterable[Rewire] = ()) -> None:
        """Takes in a segment, and what its arrival changed for inputs of earlier ones (see `BlockLayout.add`)."""
        number = len(self._parts)
        self._parts.append(_Part(segment))
        self._positions.append(segment.positions)
        self._changed.add(number)
        self.rows[segment.positions] = segment.table.rows
        self.filled[segment.positions] = True
        self._where[segment.positions, 0] = number
        self._where[segment.positions, 1] = np.arange(len(segment.table))
        by_part: dict[int, list[int]] = {}
        for rewire in rewires:
            self._parts[rewire.segment].source[rewire.input] = rewire.source
            by_part.setdefault(rewire.segment, []).append(rewire.input)
        for number, inputs in by_part.items():
            part = self._parts[number]
            part.pending = np.union1d(part.pending, inputs)
            part.complete = False
            self._changed.add(number)

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
        self.generation += 1
        self.probes[:] = PROBE_UNKNOWN
        for part in self._parts:
            part.forget_coins()
        self._changed = set(range(len(self._parts)))

    def observe(self, segment: int, inputs: np.ndarray, batch: CoinBatch, version: TipVersion) -> bool:
        """Observations of inputs of a segment; False, and nothing kept, if they are of another tip version."""
        if version != self.version:
            return False
        self._parts[segment].coins.put(inputs, batch)
        self._changed.add(segment)
        return True

    def observe_wanted(self, wanted: Iterable[tuple[int, np.ndarray]], batch: CoinBatch, version: TipVersion) -> None:
        """Observations, one after another, of what `unobserved` told of."""
        at = 0
        for segment, inputs in wanted:
            self.observe(segment, inputs, CoinBatch(batch.rows[at : at + len(inputs)], batch.arena), version)
            at += len(inputs)

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
            inputs = np.flatnonzero(part.unknown() & (part.source == FROM_DATABASE))
            if len(inputs):
                wanted.append((number, inputs))
        return wanted

    def unprobed(self) -> np.ndarray:
        """Positions whose outputs must still be looked for (BIP30)."""
        return np.flatnonzero(self.filled[1:] & (self.probes[1:] == PROBE_UNKNOWN)) + 1

    def observed(self) -> Iterator[tuple[np.ndarray, CoinBatch]]:
        """Copies of what the database was seen to hold: per segment, outpoints (V36) and their observations."""
        for part in self._parts:
            inputs = np.flatnonzero(part.asks & (part.source == FROM_DATABASE) & ~part.unknown())
            yield part.table.ins["prevout"][inputs], part.coins.take(inputs)

    def tables(self) -> Iterator[tuple[np.ndarray, TxTable]]:
        """Per segment, the positions of its transactions and their columns, which never change."""
        for part, positions in zip(self._parts, self._positions, strict=True):
            yield positions, part.table

    def outpoints_of_inputs(self, segment: int, inputs: np.ndarray) -> bytes:
        """The outpoints that inputs of a segment spend, joined."""
        return self._parts[segment].table.ins["prevout"][inputs].tobytes()

    def outpoints_wanted(self, wanted: Iterable[tuple[int, np.ndarray]]) -> bytes:
        """The outpoints of what `unobserved` told of, joined."""
        return b"".join([self.outpoints_of_inputs(segment, inputs) for segment, inputs in wanted])

    def outpoints_of_outputs(self, positions: np.ndarray) -> tuple[bytes, np.ndarray]:
        """All outputs of transactions, as joined outpoints, and how many each has."""
        counts = self.rows["n_out"][positions].astype(np.int64)
        outpoints = np.empty(int(counts.sum()), [("txid", "V32"), ("vout", "<u4")])
        outpoints["txid"] = np.repeat(self.rows["txid"][positions], counts)
        outpoints["vout"] = np.arange(len(outpoints)) - np.repeat(np.cumsum(counts) - counts, counts)
        return outpoints.tobytes(), counts

    def unverified(self) -> np.ndarray:
        """Positions whose scripts are not known to pass."""
        return np.flatnonzero(self.filled[1:] & (self.scripts[1:] == SCRIPT_UNKNOWN)) + 1

    def coins_seen(self, positions: np.ndarray) -> bool:
        """Whether the database was seen to hold every coin that these transactions spend."""
        for number, index in self._where[positions].tolist():
            part = self._parts[number]
            start, end = int(part.table.in_start[index]), int(part.table.in_start[index + 1])
            if (part.coins.rows["state"][start:end] != COIN).any() or (part.source[start:end] != FROM_DATABASE).any():
                return False
        return True

    def spend_database(self, positions: np.ndarray) -> np.ndarray:
        """Which of these transactions spend coins of the database and nothing else, one bool each."""
        found = np.zeros(self.count + 1, bool)
        for part, own in zip(self._parts, self._positions, strict=True):
            others = starts_of(part.source != FROM_DATABASE)
            found[own] = others[part.table.in_start[1:]] == others[part.table.in_start[:-1]]
        return found[positions]

    def script_jobs(
        self, positions: np.ndarray, generation: int | None = None
    ) -> Iterator[tuple[bytes, list[tuple[int, bytes]]]]:
        """`script_job` of many positions, made as they are asked for.

        The iterator raises StaleView if the draft is told of another tip before the last one is made: after now, or
        after it was at `generation`.
        """
        return self._script_jobs(positions, self.generation if generation is None else generation)

    def _script_jobs(self, positions: np.ndarray, generation: int) -> Iterator[tuple[bytes, list[tuple[int, bytes]]]]:
        numbers = self._where[positions, 0]
        outputs: dict[int, tuple[list[tuple[int, bytes]], list[int]]] = {}
        for position, number in zip(positions.tolist(), numbers.tolist(), strict=True):
            if self.generation != generation:
                raise StaleView("the tip moved while the scripts of a block were made ready")
            if number not in outputs:
                if np.count_nonzero(numbers == number) < MANY_JOBS:
                    yield self.script_job(position)
                    continue
                part = self._parts[number]
                outputs[number] = part.coins.spent_outputs(), part.table.in_start.tolist()
            spent, starts = outputs[number]
            index = int(self._where[position, 1])
            yield self._parts[number].table.raw(index), spent[starts[index] : starts[index + 1]]

    def script_job(self, position: int) -> tuple[bytes, list[tuple[int, bytes]]]:
        """What verifying a transaction's scripts takes: its raw bytes, and (satoshis, scriptPubKey) of each input."""
        number, index = self._where[position].tolist()
        part = self._parts[number]
        table = part.table
        start, end = int(table.in_start[index]), int(table.in_start[index + 1])
        return table.raw(index), [part.coins.spent_output(at) for at in range(start, end)]

    def prevout(self, position: int, input: int) -> bytes:
        """The outpoint that an input of the transaction at `position` spends."""
        number, index = self._where[position].tolist()
        table = self._parts[number].table
        return table.ins["prevout"][int(table.in_start[index]) + input].tobytes()

    def raw(self, position: int) -> bytes:
        """Serialisation with witness of the transaction at `position`."""
        number, index = self._where[position].tolist()
        return self._parts[number].table.raw(index)

    # Working out ------------------------------------------------------------------------------------------------

    def work_out(self, context: BlockContext) -> None:
        """Evaluates every segment whose coins are all known and whose results are not up to date.

        Called whenever there is time for it; a second call does nothing.
        """
        for number in sorted(self._changed):
            part = self._parts[number]
            if len(part.pending):
                self._fill_from_block(part, context.height)
            if not part.unknown().any():
                part.complete = True
                results = evaluate(part.table, part.coins.rows, context, context.script_flags)
                self.results[self._positions[number]] = results
        self._changed.clear()

    def results_with(self, coinbase: TxRecord, context: BlockContext, flags: int) -> np.ndarray:
        """Results of the whole block in order, for one coinbase, all coins being known; the draft is left as it was."""
        self.work_out(context)
        if not all(part.complete for part in self._parts):
            raise InternalError("a block was judged before its coins were known")
        results = self.results.copy()
        table = TxTable.from_records([coinbase])
        for part, positions in zip(self._parts, self._positions, strict=True):
            spends = spends_of(part.table, coinbase.txid)
            if spends or flags != context.script_flags:  # the latter: a block of history that is exempt from rules
                rows = self._with_coinbase(part, np.array(spends, np.int64), table, context.height)
                results[positions] = evaluate(part.table, rows, context, flags)
        results[0] = evaluate(table, CoinColumns(len(table.ins)).rows, context, flags)[0]
        return results

    def _with_coinbase(self, part: _Part, spends: np.ndarray, coinbase: TxTable, height: int) -> np.ndarray:
        """A copy of a segment's coins, in which inputs that spend this block's own coinbase find it, scripts apart."""
        rows = part.coins.rows.copy()
        spends = spends[part.source[spends] != SPENT_BEFORE]
        vouts = part.table.vouts(spends)
        made = vouts < len(coinbase.outs)
        made[made] = coinbase.outs["unspendable"][vouts[made]] == 0
        coins = np.zeros(len(spends), COIN_ROW)
        coins["state"] = np.where(made, IN_BLOCK, ABSENT)
        outs = coinbase.outs[vouts[made]]
        for name, values in (("value", outs["value"]), ("script_class", outs["script_class"])):
            coins[name][made] = values
        coins["height"], coins["coinbase"] = height, 1
        rows[spends] = coins
        return rows

    def _fill_from_block(self, part: _Part, height: int) -> None:
        """Gives inputs that spend this block's own outputs their coins; what was spent or never made is absent."""
        inputs, part.pending = part.pending, part.pending[:0]
        sources = part.source[inputs]
        vouts = part.table.vouts(inputs)
        coins = np.zeros(len(inputs), COIN_ROW)
        coins["state"] = ABSENT
        scripts = [np.zeros(0, np.uint8)]
        used = 0
        children = np.flatnonzero(sources >= 0)  # the others are spent before
        where = self._where[sources[children]]
        order = np.argsort(where[:, 0], kind="stable")
        numbers, firsts = np.unique(where[order, 0], return_index=True)
        for number, here in zip(numbers.tolist(), np.split(order, firsts)[1:], strict=True):
            table = self._parts[number].table
            index, at = where[here, 1], children[here]
            made = vouts[at] < table.rows["n_out"][index]
            index, at = index[made], at[made]
            out = table.out_start[index] + vouts[at]
            spendable = table.outs["unspendable"][out] == 0
            out, at = out[spendable], at[spendable]
            outs = table.outs[out]
            pieces, starts = take_slices(table.scripts, table.script_start[out], outs["script_size"])
            coins["value"][at], coins["script_class"][at] = outs["value"], outs["script_class"]
            coins["script_type"][at] = outs["script_size"] + SPECIAL_SCRIPTS
            coins["script_at"][at] = starts + used
            coins["height"][at], coins["state"][at] = height, IN_BLOCK
            scripts.append(pieces)
            used += len(pieces)
        part.coins.replace(inputs, CoinBatch(coins, np.concatenate(scripts)))

    @property
    def nbytes(self) -> int:
        """Packed bytes of what was observed of coins."""
        return sum(part.coins.nbytes for part in self._parts)
