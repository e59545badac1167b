"""TxCollection as a state machine (Core: node/tx_collection.cpp; SPEC 1): which transactions a client declared, which
of them are known, and what the coins they spend were observed to be. It reads nothing and waits for nobody.

Retained observations live here, packed, within one byte budget together with the queue of what is still to be asked.
They belong to one tip version and are dropped with it; the declaration itself outlives any number of tips.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from models.coins.columns import COIN, IN_BLOCK, UNKNOWN, CoinBatch, CoinColumns
from models.consensus.context import TipVersion
from models.consensus.layout import FROM_DATABASE, BlockLayout, Rewire, Segment
from models.consensus.params import MAX_COLLECTION_TXS, MAX_INPUTS_PER_BLOCK
from models.consensus.table import COINBASE, TxRecord, TxTable
from models.errors import ClientError, DecodeError
from models.wire.hashes import ZERO_HASH, from_display, to_display
from models.wire.merkle import merkle_root
from models.wire.transaction import decode_transaction

__all__ = ["COLLECTION_BUDGET", "PrefetchBatch", "TxCollection", "parse_wtxids"]

COLLECTION_BUDGET = 8 * 1024 * 1024  # bytes, queue and observations together (SPEC 1.8)
QUEUED_INPUT = 36  # bytes that one queued outpoint is charged
ScriptJob = tuple[bytes, list[tuple[int, bytes]]]  # raw transaction, (satoshis, scriptPubKey) of each input
PROBE_ENTRY = 1  # bytes that one remembered BIP30 answer takes


def parse_wtxids(wtxids: Sequence[str]) -> list[bytes]:
    """Checks a declaration's list (SPEC 1.2) and returns its hashes in internal order.

    Raises ClientError with Core's text: too many, then what is no hash, then duplicates.
    """
    if len(wtxids) > MAX_COLLECTION_TXS:
        raise ClientError(f"too many wtxids ({len(wtxids)} > {MAX_COLLECTION_TXS})")
    try:
        joined = "".join(wtxids)
        hashes = None
        if len(joined) == 64 * len(wtxids) and all(map((64).__eq__, map(len, wtxids))):
            blob = bytes.fromhex(joined)
            if len(blob) * 2 == len(joined):  # fromhex skips white space
                hashes = [blob[at : at + 32][::-1] for at in range(0, len(blob), 32)]
    except (TypeError, ValueError):
        hashes = None
    if hashes is None:
        hashes = [from_display(wtxid, "wtxid") for wtxid in wtxids]
    if len(set(hashes)) != len(hashes):
        seen: set[bytes] = set()
        for wtxid in hashes:
            if wtxid in seen:
                raise ClientError(f"duplicate wtxid {to_display(wtxid)}")
            seen.add(wtxid)
    return hashes


@dataclass(frozen=True, slots=True)
class PrefetchBatch:
    """Work for one request to a fetch worker: inputs of one segment, or BIP30 probes of transactions' outputs."""

    version: TipVersion
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
        """`wtxids` as `parse_wtxids` returned them, in block order."""
        self.wtxids = list(wtxids)
        self.budget = budget
        self.layout = BlockLayout()
        self.segments: list[Segment] = self.layout.segments
        self.prefetching = False
        self.version: TipVersion | None = None
        self.coins: list[CoinColumns] = []
        self.probe_hits: dict[int, bool] = {}  # position -> whether one of its outputs is unspent already
        self.speculation_stopped = ""  # why, once a budget was spent or the workers were gone
        self.verified = np.zeros(len(self.wtxids) + 1, bool)  # scripts known to pass, by block position
        self.script_flags: int | None = None
        self._position = {wtxid: i for i, wtxid in enumerate(self.wtxids)}
        self._known = np.zeros(len(self.wtxids), bool)
        self._witness_root: bytes | None = None
        self._queue: deque[tuple[int, np.ndarray]] = deque()
        self._queued = 0
        self._probe_queue: deque[np.ndarray] = deque()
        self._probes_queued = 0
        self._probes_kept = 0
        self._in_flight = 0

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

    @property
    def witness_root(self) -> bytes:
        """Root over the declared wtxids with a zero hash for the coinbase (BIP141), known before the transactions."""
        if self._witness_root is None:
            self._witness_root, _ = merkle_root([ZERO_HASH, *self.wtxids])
        return self._witness_root

    def take_known(self, positions: np.ndarray, table: TxTable) -> Arrival:
        """Transactions that the mempool had when the collection was made; `positions` (from 0) ascend."""
        return self._add(positions, table)

    def check_supply(self, raws: Sequence[bytes | None]) -> list[TxRecord]:
        """All checks of `add_missing_txs` (SPEC 1.4), before anything changes; returns the parsed transactions.

        Raises ClientError with Core's text. The count comes first, then each transaction in order.
        """
        if len(raws) > len(self.wtxids):
            raise ClientError(f"too many transactions ({len(raws)} > {len(self.wtxids)})")
        transactions = []
        for number, raw in enumerate(raws):  # as in Core, where bytes are deserialised before the method is entered
            try:
                transactions.append(decode_transaction(raw) if raw else None)
            except DecodeError as error:
                raise DecodeError(f"transaction {number} of {len(raws)} does not decode: {error}") from None
        records = []
        seen: set[bytes] = set()
        for tx in transactions:
            if tx is None:
                raise ClientError("unexpected null transaction")
            if tx.wtxid not in self._position:
                raise ClientError(f"unexpected wtxid {to_display(tx.wtxid)}")
            if tx.wtxid in seen:
                raise ClientError(f"duplicate wtxid {to_display(tx.wtxid)}")
            seen.add(tx.wtxid)
            if not self._known[self._position[tx.wtxid]]:
                records.append(TxRecord.of(tx))
        return records

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
        self.coins.append(CoinColumns(len(table.ins) if self.prefetching else 0))
        if self.prefetching and self.version is not None:
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
        return (self._queued + self._in_flight) * QUEUED_INPUT + self._probes_queued * PROBE_ENTRY

    @property
    def observed_bytes(self) -> int:
        """Bytes of retained observations, coins and absences."""
        return sum(coins.nbytes for coins in self.coins) + self._probes_kept * PROBE_ENTRY

    @property
    def queued(self) -> int:
        """Inputs waiting to be asked for."""
        return self._queued

    @property
    def observations(self) -> int:
        """Coins and absences of inputs retained."""
        return sum(coins.observed for coins in self.coins)

    @property
    def probes_observed(self) -> int:
        """Absences retained for BIP30: outputs looked for and not found."""
        return self._probes_kept

    def start(self, version: TipVersion, probe: bool) -> None:
        """Begins to prefetch at a tip: queues the inputs of all known transactions, and BIP30 probes with `probe`.

        What was observed of another tip is dropped first.
        """
        self.drop_observations()
        self.prefetching = True
        self.version = version
        self._probe = probe
        self.coins = [CoinColumns(len(segment.table.ins)) for segment in self.segments]
        for number in range(len(self.segments)):
            self._queue_segment(number)

    def drop_observations(self) -> None:
        """Forgets every coin and absence, and the queue. The declaration stays."""
        self.version = None
        self.coins = [CoinColumns(0) for _ in self.segments]
        self.probe_hits = {}
        self.speculation_stopped = ""
        self._queue.clear()
        self._probe_queue.clear()
        self._queued = self._probes_queued = self._probes_kept = self._in_flight = 0

    def stop_speculation(self, why: str) -> None:
        """Empties the queue for good at this tip; observations stay."""
        self.speculation_stopped = self.speculation_stopped or why
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
        if len(inputs) > room:
            inputs = inputs[: max(room, 0)]
        if len(inputs):
            self._queue.append((number, inputs))
            self._queued += len(inputs)
        if self._probe:
            outputs = int(segment.table.rows["n_out"].sum(dtype=np.int64))
            if self.nbytes + outputs * PROBE_ENTRY <= self.budget:
                self._probe_queue.append(segment.positions)
                self._probes_queued += outputs

    _probe = False

    def next_batch(self, limit: int) -> PrefetchBatch | None:
        """The next request of at most `limit` outpoints, inputs before probes; None when there is nothing to ask."""
        if self.version is None:
            return None
        if self._queue:
            number, inputs = self._queue.popleft()
            if len(inputs) > limit:
                self._queue.appendleft((number, inputs[limit:]))
                inputs = inputs[:limit]
            self._queued -= len(inputs)
            self._in_flight += len(inputs)
            return PrefetchBatch(self.version, number, inputs, self._outpoints(number, inputs))
        if self._probe_queue:
            return self._next_probes(limit)
        return None

    def _next_probes(self, limit: int) -> PrefetchBatch:
        positions = self._probe_queue.popleft()
        rows = self._rows_at(positions)
        ends = np.cumsum(rows["n_out"], dtype=np.int64)
        take = max(int(np.searchsorted(ends, limit, side="right")), 1)
        if take < len(positions):
            self._probe_queue.appendleft(positions[take:])
        rows, positions = rows[:take], positions[:take]
        counts = rows["n_out"].astype(np.int64)
        txids = np.ascontiguousarray(rows["txid"]).tolist()
        outpoints = [
            txid + n.to_bytes(4, "little")
            for txid, count in zip(txids, counts.tolist(), strict=True)
            for n in range(count)
        ]
        assert self.version is not None
        return PrefetchBatch(self.version, -1, positions, outpoints, counts)

    def _rows_at(self, positions: np.ndarray) -> np.ndarray:
        for segment in self.segments:
            at = np.searchsorted(segment.positions, positions[0])
            if at < len(segment.positions) and segment.positions[at] == positions[0]:
                return segment.table.rows[np.searchsorted(segment.positions, positions)]
        raise KeyError(int(positions[0]))

    def take_batch(self, batch: PrefetchBatch, answer: CoinBatch, version: TipVersion) -> bool:
        """Retains an answer. False, with nothing kept, if it is of another tip version or the budget is spent.

        A spent budget stops speculation: validation reads the rest.
        """
        if version != self.version or batch.version != self.version:
            return False
        if batch.segment >= 0:
            self._in_flight -= len(batch.inputs)
            if self.nbytes + CoinColumns.cost_of(answer) > self.budget:
                self.stop_speculation("budget spent")
                return False
            self.coins[batch.segment].put(batch.inputs, answer)
            return True
        assert batch.counts is not None
        outputs = int(batch.counts.sum())
        self._probes_queued = max(self._probes_queued - outputs, 0)
        if self.nbytes + outputs * PROBE_ENTRY > self.budget:
            self.stop_speculation("budget spent")
            return False
        self._probes_kept += outputs
        ends = np.cumsum(batch.counts)
        hits = np.concatenate(([0], np.cumsum(answer.rows["state"] > 1)))
        found = hits[ends] - hits[ends - batch.counts] > 0
        self.probe_hits.update(zip(batch.inputs.tolist(), found.tolist(), strict=True))
        return True

    def give_up(self, batch: PrefetchBatch) -> None:
        """A request that got no answer: its inputs are left to validation."""
        if batch.version != self.version:
            return
        if batch.segment >= 0:
            self._in_flight -= len(batch.inputs)
        elif batch.counts is not None:
            self._probes_queued = max(self._probes_queued - int(batch.counts.sum()), 0)

    @property
    def idle(self) -> bool:
        """Whether nothing is queued (answers may still be under way)."""
        return not self._queue and not self._probe_queue

    def peek_plan(self) -> list[tuple[int, np.ndarray, list[bytes]]]:
        """(segment, inputs, outpoints) of everything queued, for a look into the owner's coins cache."""
        return [(number, inputs, self._outpoints(number, inputs)) for number, inputs in self._queue]

    def take_cached(self, segment: int, inputs: np.ndarray, answer: CoinBatch, version: TipVersion) -> bool:
        """Retains coins that the cache held, and takes their inputs off the queue."""
        if version != self.version or self.nbytes + CoinColumns.cost_of(answer) > self.budget:
            return False
        self.coins[segment].put(inputs, answer)
        for _ in range(len(self._queue)):
            number, queued = self._queue.popleft()
            if number == segment:
                left = queued[~np.isin(queued, inputs)]
                self._queued -= len(queued) - len(left)
                queued = left
            if len(queued):
                self._queue.append((number, queued))
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
            self.script_flags = flags

    def script_jobs(self, segment: int) -> list[tuple[int, ScriptJob]]:
        """(block position, job) of transactions of a segment whose scripts are unknown and whose coins are all here."""
        part = self.segments[segment]
        if len(self.coins[segment]) != len(part.table.ins):
            return []  # it does not prefetch
        ready = np.isin(self.coins[segment].rows["state"], (COIN, IN_BLOCK)) | (part.source >= 0)
        held = np.concatenate(([0], np.cumsum(ready)))
        whole = held[part.table.in_start[1:]] - held[part.table.in_start[:-1]] == part.table.rows["n_in"]
        whole &= (part.table.rows["flags"] & COINBASE == 0) & ~self.verified[part.positions]
        return [(int(part.positions[i]), self._script_job(segment, int(i))) for i in np.flatnonzero(whole)]

    def _script_job(self, segment: int, i: int) -> ScriptJob:
        part = self.segments[segment]
        start, end = int(part.table.in_start[i]), int(part.table.in_start[i + 1])
        return part.table.raw(i), [self._spent_output(segment, at) for at in range(start, end)]

    def _spent_output(self, segment: int, at: int) -> tuple[int, bytes]:
        """Value and scriptPubKey of the coin an input spends, from the database or from this very block."""
        parent = int(self.segments[segment].source[at])
        if parent < 0:
            return self.coins[segment].spent_output(at)
        vout = int.from_bytes(self.segments[segment].table.ins["prevout"][at].tobytes()[32:], "little")
        for other in self.segments:
            i = int(np.searchsorted(other.positions, parent))
            if i < len(other.positions) and other.positions[i] == parent:
                if vout < int(other.table.rows["n_out"][i]):
                    return other.table.output(i, vout)
                break
        return 0, b""  # no such output: the script fails, and the check finds the input missing first

    def raws(self) -> list[bytes]:
        """Every transaction in block order. The collection must be complete."""
        found: dict[int, bytes] = {}
        for segment in self.segments:
            for i, position in enumerate(segment.positions.tolist()):
                found[position] = segment.table.raw(i)
        return [found[position] for position in range(1, len(self.wtxids) + 1)]
