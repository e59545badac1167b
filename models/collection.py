"""TxCollection as a state machine (Core: node/tx_collection.cpp; SPEC 1): which transactions a client declared, which
of them are known, and what the coins they spend were observed to be. It reads nothing and waits for nobody.

Retained observations live here, packed, within one byte budget together with the queue of what is still to be asked.
They belong to one tip version and are dropped with it; the declaration itself outlives any number of tips.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from models.coins.columns import ABSENT, COIN, IN_BLOCK, UNKNOWN, CoinBatch, CoinColumns
from models.consensus.context import TipVersion
from models.consensus.layout import FROM_DATABASE, BlockLayout, Rewire, Segment
from models.consensus.params import MAX_COLLECTION_TXS, MAX_INPUTS_PER_BLOCK
from models.consensus.table import COINBASE, TxRecord, TxTable, starts_of
from models.errors import ClientError, DecodeError, InternalError
from models.script.jobs import ScriptJob
from models.wire.block import Teller
from models.wire.hashes import from_display, split_hashes, to_display
from models.wire.transaction import Transaction, decode_transaction

__all__ = ["COLLECTION_BUDGET", "PrefetchBatch", "TxCollection", "check_wtxids", "parse_wtxids"]

COLLECTION_BUDGET = 8 * 1024 * 1024  # bytes, queue and observations together (SPEC 1.8)
MANY_JOBS = 64  # script jobs of one segment from which on its coins are unpacked together
QUEUED_INPUT = 36  # bytes that one queued outpoint is charged
PROBE_ENTRY = 1  # bytes that one remembered BIP30 answer takes


def parse_wtxids(wtxids: Sequence[str]) -> bytes:
    """Checks a declaration's list (SPEC 1.2) and returns its hashes joined, 32 bytes each in internal order.

    Raises ClientError with Core's text: too many, then what is no hash, then duplicates.
    """
    if len(wtxids) > MAX_COLLECTION_TXS:
        raise ClientError(f"too many wtxids ({len(wtxids)} > {MAX_COLLECTION_TXS})")
    blob = _hashes_of(wtxids)
    if blob is None:
        blob = b"".join([from_display(wtxid, "wtxid") for wtxid in wtxids])
    heads = np.sort(np.frombuffer(blob, "<u8")[::4])
    if (heads[1:] == heads[:-1]).any():  # otherwise no two hashes are equal
        check_wtxids(split_hashes(blob))
    return blob


def _hashes_of(wtxids: Sequence[str]) -> bytes | None:
    """The hashes joined, all turned round at once; None if any of them is no hash."""
    try:
        joined = "".join(wtxids)
        if len(joined) != 64 * len(wtxids) or not all(map((64).__eq__, map(len, wtxids))):
            return None
        blob = bytes.fromhex(joined)
    except (TypeError, ValueError):
        return None
    if len(blob) * 2 != len(joined):  # fromhex skips white space
        return None
    return np.frombuffer(blob, np.uint8).reshape(-1, 32)[:, ::-1].tobytes()


def check_wtxids(hashes: Sequence[bytes]) -> None:
    """The checks of a declaration's list that is in internal order already. Raises ClientError with Core's text."""
    if len(hashes) > MAX_COLLECTION_TXS:
        raise ClientError(f"too many wtxids ({len(hashes)} > {MAX_COLLECTION_TXS})")
    if len(set(hashes)) != len(hashes):
        seen: set[bytes] = set()
        for wtxid in hashes:
            if wtxid in seen:
                raise ClientError(f"duplicate wtxid {to_display(wtxid)}")
            seen.add(wtxid)


@dataclass(frozen=True, slots=True)
class PrefetchBatch:
    """Work for one request to a fetch worker: inputs of one segment, or BIP30 probes of transactions' outputs."""

    version: TipVersion
    generation: int  # of the queue it came from: every start and every drop begins a new one
    segment: int  # -1 for probes
    inputs: np.ndarray  # input indices, or block positions for probes
    outpoints: list[bytes]
    counts: np.ndarray | None = None  # outputs per transaction, for probes


@dataclass(slots=True)
class Arrival:
    """What a supply changed: the new segment's number (None: nothing new) and the inputs of others that it rewired."""

    segment: int | None
    rewires: list[Rewire]


class TxCollection:
    """One declaration. Positions that clients see start at 0 and leave the coinbase out; segments count it as 0."""

    def __init__(self, wtxids: Sequence[bytes], budget: int = COLLECTION_BUDGET):
        """`wtxids` as `parse_wtxids` checked them, in block order."""
        self.wtxids = list(wtxids)
        self.budget = budget
        self.layout = BlockLayout()
        self.segments: list[Segment] = self.layout.segments
        self.prefetching = False
        self.version: TipVersion | None = None
        self.coins: list[CoinColumns] = []
        self.probe_hits = np.zeros(0, bool)  # by position: was one of its outputs found to be unspent already?
        self.speculation_stopped = ""  # why, once a budget was spent or the workers were gone
        self.verified = np.zeros(len(self.wtxids) + 1, bool)  # scripts known to pass, by block position
        self.script_flags: int | None = None
        self._position = {wtxid: i for i, wtxid in enumerate(self.wtxids)}
        self._known = np.zeros(len(self.wtxids), bool)
        self._where = np.full((len(self.wtxids) + 1, 2), -1, np.int32)  # segment and index in it, by block position
        self._probe = False
        self._generation = 0
        self._queue: dict[int, np.ndarray] = {}  # segment -> inputs waiting, oldest segment first
        self._probe_queue: dict[int, np.ndarray] = {}  # segment -> transactions whose outputs wait
        self._new = np.zeros(len(self.wtxids) + 1, bool)  # by block position: outputs known not to be coins yet
        self._new_at: TipVersion | None = None  # the tip at which they are
        self._queued = self._in_flight = 0  # inputs
        self._probes_queued = self._probes_in_flight = self._probes_kept = 0  # outputs
        self._observed = self._observed_bytes = 0  # of inputs
        self._script_news: set[int] = set()  # segments of which more may be ready for verification
        self._handed = np.zeros(len(self.wtxids) + 1, bool)  # given out for verification

    def __len__(self) -> int:
        return len(self.wtxids)

    # The declaration --------------------------------------------------------------------------------------------

    def unknown_tx_pos(self) -> list[int]:
        """Positions still missing, ascending (SPEC 1.3)."""
        return np.flatnonzero(~self._known).tolist()

    @property
    def complete(self) -> bool:
        """Whether every transaction is known."""
        return bool(self._known.all())

    def take_known(self, positions: np.ndarray, table: TxTable) -> Arrival:
        """Transactions that the mempool had when the collection was made; `positions` (from 0) ascend."""
        return self._add(positions, table)

    def check_supply(
        self, raws: Sequence[bytes | None], seen: Callable[[np.ndarray, list[Transaction]], None] | None = None
    ) -> list[TxRecord]:
        """All checks of `add_missing_txs` (SPEC 1.4), before anything changes; returns the parsed transactions.

        `seen` is told of what is new as soon as it is parsed, positions in the block and transactions.
        Raises ClientError with Core's text. The count comes first, then each transaction in order.
        """
        if len(raws) > len(self.wtxids):
            raise ClientError(f"too many transactions ({len(raws)} > {len(self.wtxids)})")
        transactions: list[Transaction | None] = []
        teller = None if seen is None else Teller(partial(self._show, seen))
        for number, raw in enumerate(raws):  # as in Core, where bytes are deserialised before the method is entered
            try:
                transactions.append(decode_transaction(raw) if raw else None)
            except DecodeError as error:
                raise DecodeError(f"transaction {number} of {len(raws)} does not decode: {error}") from None
            if teller is not None:
                teller.grown(transactions)
        if teller is not None:
            teller.ended(transactions)
        records = []
        supplied: set[bytes] = set()
        for tx in transactions:
            if tx is None:
                raise ClientError("unexpected null transaction")
            if tx.wtxid not in self._position:
                raise ClientError(f"unexpected wtxid {to_display(tx.wtxid)}")
            if tx.wtxid in supplied:
                raise ClientError(f"duplicate wtxid {to_display(tx.wtxid)}")
            supplied.add(tx.wtxid)
            if not self._known[self._position[tx.wtxid]]:
                records.append(TxRecord.of(tx))
        return records

    def _show(
        self,
        seen: Callable[[np.ndarray, list[Transaction]], None],
        _first: int,
        transactions: list[Transaction | None],
    ) -> None:
        new = [tx for tx in transactions if tx is not None and tx.wtxid in self._position]
        new = [tx for tx in new if not self._known[self._position[tx.wtxid]]]
        seen(np.array([self._position[tx.wtxid] + 1 for tx in new], np.int64), new)

    def take_supplied(self, records: Sequence[TxRecord]) -> Arrival:
        """Fills empty positions with transactions that `check_supply` passed; what is known already stays."""
        fresh = {self._position[record.wtxid]: record for record in records}
        positions = sorted(position for position in fresh if not self._known[position])
        if not positions:
            return Arrival(None, [])
        return self._add(np.array(positions), TxTable.from_records([fresh[position] for position in positions]))

    def _add(self, positions: np.ndarray, table: TxTable) -> Arrival:
        if not len(positions):
            return Arrival(None, [])
        rewires = self.layout.add(positions + 1, table)
        self._known[positions] = True
        number = len(self.segments) - 1
        self._where[positions + 1, 0] = number
        self._where[positions + 1, 1] = np.arange(len(table))
        self._script_news.update([number, *(rewire.segment for rewire in rewires)])
        self.coins.append(CoinColumns(len(table.ins) if self.version is not None else 0))
        if self.version is not None:
            self._queue_segment(number)
        return Arrival(number, rewires)

    # Speculation ------------------------------------------------------------------------------------------------

    @property
    def nbytes(self) -> int:
        """Bytes of queue and observations together, exactly as the budget counts them."""
        return self.queue_bytes + self.observed_bytes

    @property
    def queue_bytes(self) -> int:
        """Bytes of what is queued or asked for and not yet answered."""
        inputs, probes = self._queued + self._in_flight, self._probes_queued + self._probes_in_flight
        return inputs * QUEUED_INPUT + probes * PROBE_ENTRY

    @property
    def observed_bytes(self) -> int:
        """Bytes of retained observations, coins and absences."""
        return self._observed_bytes + self._probes_kept * PROBE_ENTRY

    @property
    def queued(self) -> int:
        """Inputs waiting to be asked for."""
        return self._queued

    @property
    def observations(self) -> int:
        """Coins and absences of inputs retained."""
        return self._observed

    @property
    def probes_observed(self) -> int:
        """Answers retained for BIP30: outputs that were looked for."""
        return self._probes_kept

    def take_new_outputs(self, positions: np.ndarray, version: TipVersion) -> None:
        """Block positions of transactions whose outputs are known, at this tip, not to be coins yet (BIP30)."""
        self._new[:] = False
        self._new[positions] = True
        self._new_at = version

    def start(self, version: TipVersion, probe: bool) -> None:
        """Begins to prefetch at a tip: queues the inputs of all known transactions, and BIP30 probes with `probe`.

        What was observed before is dropped first, also of the same tip.
        """
        self.drop_observations()
        self.prefetching = True
        self.version = version
        self._probe = probe
        self.coins = [CoinColumns(len(segment.table.ins)) for segment in self.segments]
        self.probe_hits = np.zeros(len(self.wtxids) + 1 if probe else 0, bool)
        for number in range(len(self.segments)):
            self._queue_segment(number)

    def drop_observations(self) -> None:
        """Forgets every coin and absence, and the queue; answers under way will be refused. The declaration stays.

        Nothing more is queued until the next start.
        """
        self.version = None
        self.coins = [CoinColumns(0) for _ in self.segments]
        self.probe_hits = np.zeros(0, bool)
        self.speculation_stopped = ""
        self._generation += 1
        self._clear_queue()
        self._in_flight = self._probes_in_flight = self._probes_kept = 0
        self._observed = self._observed_bytes = 0
        self._handed[:] = False

    def stop_speculation(self, why: str) -> None:
        """Empties the queue for good at this tip; observations stay, and answers under way are still taken."""
        self.speculation_stopped = self.speculation_stopped or why
        self._clear_queue()

    def _clear_queue(self) -> None:
        self._queue.clear()
        self._probe_queue.clear()
        self._queued = self._probes_queued = 0

    def _queue_segment(self, number: int) -> None:
        if self.speculation_stopped:
            return
        segment = self.segments[number]
        owners_coinbase = np.repeat(segment.table.rows["flags"] & COINBASE != 0, segment.table.rows["n_in"])
        inputs = np.flatnonzero((segment.source == FROM_DATABASE) & ~owners_coinbase)
        room = min(MAX_INPUTS_PER_BLOCK - self._queued, (self.budget - self.nbytes) // QUEUED_INPUT)
        inputs = inputs[: max(room, 0)]
        if len(inputs):
            self._queue[number] = inputs
            self._queued += len(inputs)
        outputs = len(segment.table.outs)
        if self._probe and outputs and self.nbytes + outputs * PROBE_ENTRY <= self.budget:
            known = self._new[segment.positions] & (self.version == self._new_at)
            asked = np.flatnonzero(~known)
            if len(asked):
                self._probe_queue[number] = asked
            wanted = int(segment.table.rows["n_out"][asked].sum())
            self._probes_queued += wanted
            self._probes_kept += outputs - wanted

    def next_batch(self, limit: int) -> PrefetchBatch | None:
        """The next request of at most `limit` outpoints, inputs before probes; None when there is nothing to ask.

        A transaction's outputs are never split, so one with more than `limit` makes a larger request.
        """
        if self.version is None:
            return None
        while self._queue:
            number = next(iter(self._queue))
            inputs, rest = np.split(self._queue[number], [limit])
            if len(rest):
                self._queue[number] = rest
            else:
                del self._queue[number]
            self._queued -= len(inputs)
            inputs = inputs[self.segments[number].source[inputs] == FROM_DATABASE]  # a parent may have arrived since
            if len(inputs):
                self._in_flight += len(inputs)
                outpoints = self._outpoints(number, inputs)
                return PrefetchBatch(self.version, self._generation, number, inputs, outpoints)
        if self._probe_queue:
            return self._next_probes(self.version, limit)
        return None

    def _next_probes(self, version: TipVersion, limit: int) -> PrefetchBatch:
        number, waiting = next(iter(self._probe_queue.items()))
        segment = self.segments[number]
        counts = segment.table.rows["n_out"][waiting].astype(np.int64)
        take = max(int(np.searchsorted(np.cumsum(counts), limit, side="right")), 1)
        if take < len(counts):
            self._probe_queue[number] = waiting[take:]
        else:
            del self._probe_queue[number]
        asked, counts = waiting[:take], counts[:take]
        outputs = int(counts.sum())
        self._probes_queued -= outputs
        self._probes_in_flight += outputs
        txids = np.ascontiguousarray(segment.table.rows["txid"][asked]).tolist()
        outpoints = [
            txid + n.to_bytes(4, "little")
            for txid, count in zip(txids, counts.tolist(), strict=True)
            for n in range(count)
        ]
        positions = segment.positions[asked]
        return PrefetchBatch(version, self._generation, -1, positions, outpoints, counts)

    def take_batch(self, batch: PrefetchBatch, answer: CoinBatch, version: TipVersion) -> bool:
        """Retains an answer. False, with nothing kept, if it is of another tip version or the budget is spent.

        A spent budget stops speculation: validation reads the rest. Raises InternalError for an answer that cannot
        belong to the request.
        """
        if not self._answered(batch) or version != self.version:
            return False
        if len(answer) != len(batch.outpoints):
            raise InternalError(f"{len(batch.outpoints)} outpoints were asked for, {len(answer)} were answered")
        probe = batch.counts is not None
        cost = len(answer) * PROBE_ENTRY if probe else CoinColumns.cost_of(answer)
        if self.nbytes + cost > self.budget:
            self.stop_speculation("budget spent")
            return False
        if batch.counts is None:
            self._put(batch.segment, batch.inputs, answer)
            return True
        self._probes_kept += len(answer)
        ends = np.cumsum(batch.counts)
        hits = np.concatenate(([0], np.cumsum(answer.rows["state"] != ABSENT)))
        self.probe_hits[batch.inputs] = hits[ends] - hits[ends - batch.counts] > 0
        return True

    def give_up(self, batch: PrefetchBatch) -> None:
        """A request that got no answer: its inputs are left to validation."""
        self._answered(batch)

    def _answered(self, batch: PrefetchBatch) -> bool:
        """Takes a request off the account; False if it is of a queue that was dropped since."""
        if batch.generation != self._generation:
            return False
        if batch.counts is None:
            self._in_flight -= len(batch.outpoints)
        else:
            self._probes_in_flight -= len(batch.outpoints)
        return True

    def _put(self, segment: int, inputs: np.ndarray, answer: CoinBatch) -> None:
        coins = self.coins[segment]
        count, size = coins.observed, coins.nbytes
        coins.put(inputs, answer)
        self._observed += coins.observed - count
        self._observed_bytes += coins.nbytes - size
        self._script_news.add(segment)

    @property
    def idle(self) -> bool:
        """Whether nothing is queued (answers may still be under way)."""
        return not self._queue and not self._probe_queue

    def peek_plan(self) -> list[tuple[int, np.ndarray, list[bytes]]]:
        """(segment, inputs, outpoints) of everything queued, for a look into the owner's coins cache."""
        return [(number, inputs, self._outpoints(number, inputs)) for number, inputs in self._queue.items()]

    def take_cached(self, segment: int, inputs: np.ndarray, answer: CoinBatch, version: TipVersion) -> bool:
        """Retains coins that the cache held, and takes their inputs off the queue; False and nothing kept as above."""
        if version != self.version or self.nbytes + CoinColumns.cost_of(answer) > self.budget:
            return False
        self._put(segment, inputs, answer)
        queued = self._queue.get(segment)
        if queued is not None:
            left = queued[~np.isin(queued, inputs)]
            self._queued -= len(queued) - len(left)
            if len(left):
                self._queue[segment] = left
            else:
                del self._queue[segment]
        return True

    def _outpoints(self, segment: int, inputs: np.ndarray) -> list[bytes]:
        return np.ascontiguousarray(self.segments[segment].table.ins["prevout"][inputs]).tolist()

    def observed_inputs(self, segment: int) -> np.ndarray:
        """Indices of inputs whose coin or absence is retained."""
        coins = self.coins[segment]
        return np.flatnonzero(coins.rows["state"] != UNKNOWN)

    # Scripts ----------------------------------------------------------------------------------------------------

    def begin_scripts(self, flags: int) -> None:
        """Says under which flags scripts are verified; passes under other flags are forgotten."""
        if self.script_flags != flags:
            self.verified[:] = False
            self._handed[:] = False
            self._script_news.update(range(len(self.segments)))
            self.script_flags = flags

    def script_jobs(self, segment: int) -> list[tuple[int, ScriptJob]]:
        """(block position, job) of transactions of a segment whose scripts are unknown and whose coins are all here.

        A transaction is given out once for a tip and flags; quick where nothing has come in since the last call.
        """
        part, coins = self.segments[segment], self.coins[segment]
        if segment not in self._script_news or len(coins) != len(part.table.ins):
            return []
        self._script_news.discard(segment)
        state = coins.rows["state"]
        ready = (state == COIN) | (state == IN_BLOCK) | (part.source >= 0)
        held = starts_of(ready)
        whole = held[part.table.in_start[1:]] - held[part.table.in_start[:-1]] == part.table.rows["n_in"]
        whole &= part.table.rows["flags"] & COINBASE == 0
        whole &= ~(self.verified | self._handed)[part.positions]
        self._handed[part.positions[whole]] = True
        indices = np.flatnonzero(whole).tolist()
        spent = self.coins[segment].spent_outputs() if len(indices) >= MANY_JOBS else None
        return [(int(part.positions[i]), self._script_job(segment, i, spent)) for i in indices]

    def _script_job(self, segment: int, i: int, spent: Sequence[tuple[int, bytes]] | None) -> ScriptJob:
        part = self.segments[segment]
        start, end = int(part.table.in_start[i]), int(part.table.in_start[i + 1])
        return part.table.raw(i), [self._spent_output(segment, at, spent) for at in range(start, end)]

    def _spent_output(self, segment: int, at: int, spent: Sequence[tuple[int, bytes]] | None) -> tuple[int, bytes]:
        """Value and scriptPubKey of the coin an input spends, from the database (`spent`: all of a segment's, where
        they were unpacked together) or from this very block."""
        part = self.segments[segment]
        parent = int(part.source[at])
        if parent < 0:
            return spent[at] if spent is not None else self.coins[segment].spent_output(at)
        number, i = self._where[parent].tolist()
        vout = int.from_bytes(part.table.ins["prevout"][at].tobytes()[32:], "little")
        table = self.segments[number].table
        if vout < int(table.rows["n_out"][i]):
            return table.output(i, vout)
        return 0, b""  # no such output: whatever the script says, the check finds the input missing first

    def raws(self) -> list[bytes]:
        """Every transaction in block order. The collection must be complete."""
        return [self.segments[number].table.raw(i) for number, i in self._where[1:].tolist()]
