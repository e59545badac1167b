"""How the transactions of one block hang together: which inputs spend an earlier transaction of the same block, which
outpoints are spent twice. Transactions may arrive in any order; the positions are known from the start.

Nothing here knows of coins. What a segment learns later (a parent arrives, an earlier spender arrives) is reported
back, so that whoever holds observations can take it in.
"""

from dataclasses import dataclass

import numpy as np

from models.consensus.table import TxTable

__all__ = ["FROM_DATABASE", "SPENT_BEFORE", "BlockLayout", "Rewire", "Segment", "spends_of"]

FROM_DATABASE = -1
SPENT_BEFORE = -2  # an earlier transaction of the block spends the same outpoint


@dataclass(slots=True)
class Segment:
    """Transactions that arrived together. `positions` (from 1, the coinbase being 0) ascend with the table.

    `source` says for each input where its coin comes from: the position of the parent in this block, FROM_DATABASE or
    SPENT_BEFORE.
    """

    positions: np.ndarray
    table: TxTable
    source: np.ndarray


@dataclass(frozen=True, slots=True)
class Rewire:
    """An input of an earlier segment whose coin turns out to come from elsewhere."""

    segment: int
    input: int
    source: int


FEW_SEGMENTS = 4  # up to here columns are compared; beyond, an index over all inputs pays
FEW_WORDS = 16  # up to here each is compared on its own
FILTER_BITS = 20
FILTER_MASK = np.uint64((1 << FILTER_BITS) - 1)


def spends_of(table: TxTable, txid: bytes) -> list[int]:
    """Inputs of `table` whose prevout is an output of `txid`, ascending."""
    word = np.frombuffer(txid[:8], "<u8")[0]
    found = np.flatnonzero(table.prev_words == word).tolist()
    return [at for at in found if table.ins["prevout"][at].tobytes()[:32] == txid]


def _among(words: np.ndarray, few: np.ndarray) -> np.ndarray:
    """Which of `words` may be in `few`: all that are, and hardly any other."""
    if len(few) > FEW_WORDS:
        seen = np.zeros(1 << FILTER_BITS, bool)  # lets some others through; whoever asks compares in full
        seen[few & FILTER_MASK] = True
        return seen[words & FILTER_MASK]
    hit = np.zeros(len(words), bool)
    for word in few:
        hit |= words == word
    return hit


class BlockLayout:
    """The wiring of one block, built segment by segment."""

    __slots__ = ("_children", "_position_of_txid", "_spenders", "segments")

    def __init__(self) -> None:
        self.segments: list[Segment] = []
        self._position_of_txid: dict[bytes, int] = {}
        # Indices over all inputs, made when they are first needed: outpoint -> (position, segment, input) of its
        # earliest spender, and txid -> (segment, input) of what spends its outputs.
        self._spenders: dict[bytes, tuple[int, int, int]] | None = None
        self._children: dict[bytes, list[tuple[int, int]]] | None = None

    def add(self, positions: np.ndarray, table: TxTable) -> list[Rewire]:
        """Takes in transactions at ascending `positions`; returns what changed for inputs added before."""
        late = self._take_txids(positions, table.txids())
        segment = Segment(positions, table, np.full(len(table.ins), FROM_DATABASE, np.int32))
        owners = np.repeat(positions, table.rows["n_in"])
        self._find_parents(segment, owners)
        rewires = self._late_parents(late) if self.segments else []
        number = len(self.segments)
        self.segments.append(segment)
        if self._children is not None:
            self._index_children(number)
        return rewires + self._double_spends(number, owners)

    def _take_txids(self, positions: np.ndarray, txids: list[bytes]) -> dict[bytes, int]:
        """The new transactions' ids with the position of the first of that id in the whole block."""
        known = self._position_of_txid
        late = dict(zip(reversed(txids), reversed(positions.tolist()), strict=True))  # the first of equals stays
        if not known:
            known.update(late)
            return late
        for txid, position in late.items():
            if known.setdefault(txid, position) > position:
                known[txid] = position
            late[txid] = known[txid]
        return late

    def _find_parents(self, segment: Segment, owners: np.ndarray) -> None:
        """Links inputs to transactions of this block that stand before them; a child before its parent finds none."""
        known = self._position_of_txid
        if len(owners) <= FEW_WORDS or len(self.segments) > FEW_SEGMENTS:
            candidates = list(range(len(owners)))
        else:
            tables = [*(other.table for other in self.segments), segment.table]
            hits = [_among(segment.table.prev_words, table.txid_words) for table in tables]
            candidates = np.flatnonzero(np.logical_or.reduce(hits)).tolist()
        for at in candidates:
            parent = known.get(segment.table.ins["prevout"][at].tobytes()[:32])
            if parent is not None and parent < owners[at]:
                segment.source[at] = parent

    def _late_parents(self, late: dict[bytes, int]) -> list[Rewire]:
        """Inputs added before whose parent is among `late` and stands before them."""
        if self._children is None and len(self.segments) > FEW_SEGMENTS:
            self._children = {}
            for number in range(len(self.segments)):
                self._index_children(number)
        rewires = []
        for number, at, txid in self._children_of(late):
            segment = self.segments[number]
            owner = int(segment.positions[np.searchsorted(segment.table.in_start, at, side="right") - 1])
            parent = late[txid]
            current = int(segment.source[at])
            if parent < owner and current != SPENT_BEFORE and (current == FROM_DATABASE or parent < current):
                segment.source[at] = parent
                rewires.append(Rewire(number, at, parent))
        return rewires

    def _children_of(self, late: dict[bytes, int]) -> list[tuple[int, int, bytes]]:
        """(segment, input, txid) of every input that spends an output of one of `late`."""
        if self._children is not None:
            index = self._children
            return [(number, at, txid) for txid in late if txid in index for number, at in index[txid]]
        words = np.frombuffer(b"".join([txid[:8] for txid in late]), "<u8")
        found = []
        for number, segment in enumerate(self.segments):
            for at in np.flatnonzero(_among(segment.table.prev_words, words)).tolist():
                txid = segment.table.ins["prevout"][at].tobytes()[:32]
                if txid in late:
                    found.append((number, at, txid))
        return found

    def _index_children(self, number: int) -> None:
        assert self._children is not None
        for at, prevout in enumerate(self.segments[number].table.prevouts()):
            self._children.setdefault(prevout[:32], []).append((number, at))

    def _double_spends(self, number: int, owners: np.ndarray) -> list[Rewire]:
        """Of several transactions that spend one outpoint, all but the first in block order find it spent."""
        if self._spenders is None:
            if len(self.segments) <= FEW_SEGMENTS and not self._may_clash(number):
                return []
            self._spenders = {}
            rewires = []
            for earlier in range(number):
                segment = self.segments[earlier]
                rewires += self._index_spenders(earlier, np.repeat(segment.positions, segment.table.rows["n_in"]))
            return rewires + self._index_spenders(number, owners)
        return self._index_spenders(number, owners)

    def _may_clash(self, number: int) -> bool:
        """Whether the new segment may spend an outpoint twice, or one that another segment spends."""
        words = self.segments[number].table.outpoint_words
        ordered = np.sort(words)
        if (ordered[1:] == ordered[:-1]).any():
            return True
        return any(_among(other.table.outpoint_words, words).any() for other in self.segments[:number])

    def _index_spenders(self, number: int, owners: np.ndarray) -> list[Rewire]:
        spenders = self._spenders
        assert spenders is not None
        rewires: list[Rewire] = []
        prevouts = self.segments[number].table.prevouts()
        for at, (owner, prevout) in enumerate(zip(owners.tolist(), prevouts, strict=True)):
            first = spenders.setdefault(prevout, (owner, number, at))
            if first[0] == owner:
                continue  # its own entry; within one transaction it is CheckTransaction's matter
            if first[0] < owner:
                loser = (number, at)
            else:
                spenders[prevout] = (owner, number, at)
                loser = first[1:]
            segment = self.segments[loser[0]]
            if segment.source[loser[1]] != SPENT_BEFORE:
                segment.source[loser[1]] = SPENT_BEFORE
                rewires.append(Rewire(loser[0], loser[1], SPENT_BEFORE))
        return rewires
