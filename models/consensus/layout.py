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


def spends_of(table: TxTable, txid: bytes) -> list[int]:
    """Inputs of `table` whose prevout is an output of `txid`, ascending; one pass over the packed rows."""
    haystack = table.ins.tobytes()
    width = table.ins.dtype.itemsize
    found = []
    at = haystack.find(txid)
    while at >= 0:
        if at % width == 0:  # the prevout opens the row
            found.append(at // width)
        at = haystack.find(txid, at + 1)
    return found


class BlockLayout:
    """The wiring of one block, built segment by segment."""

    __slots__ = ("_by_prev_txid", "_position_of_txid", "_spenders", "segments")

    def __init__(self) -> None:
        self.segments: list[Segment] = []
        self._position_of_txid: dict[bytes, int] = {}
        self._spenders: dict[bytes, tuple[int, int, int]] = {}  # outpoint -> (position, segment, input), the earliest
        self._by_prev_txid: dict[bytes, list[tuple[int, int]]] | None = None

    def add(self, positions: np.ndarray, table: TxTable) -> list[Rewire]:
        """Takes in transactions at ascending `positions`; returns what changed for inputs added before."""
        index = len(self.segments)
        known = self._position_of_txid
        late = {}
        for position, txid in zip(positions.tolist(), table.txids(), strict=True):
            if known.setdefault(txid, position) > position:
                known[txid] = position
            late[txid] = known[txid]
        prevouts = table.prevouts()
        owners = np.repeat(positions, table.rows["n_in"])
        parents = [known.get(prevout[:32], FROM_DATABASE) for prevout in prevouts]
        source = np.array(parents, np.int32)
        source[source >= owners] = FROM_DATABASE  # a child before its parent finds nothing in the block
        rewires = self._late_parents(late) if index else []
        self._index_prevouts(index, prevouts)
        segment = Segment(positions, table, source)
        self.segments.append(segment)
        rewires += self._double_spends(index, prevouts, owners)
        return rewires

    def _index_prevouts(self, index: int, prevouts: list[bytes]) -> None:
        if self._by_prev_txid is not None:
            for number, prevout in enumerate(prevouts):
                self._by_prev_txid.setdefault(prevout[:32], []).append((index, number))

    def _late_parents(self, late: dict[bytes, int]) -> list[Rewire]:
        """Inputs added before whose parent is among `late` and stands before them."""
        scan = self._by_prev_txid is None and len(late) <= 4 and len(self.segments) <= 4
        children = [child for txid in late for child in self._children(txid)] if scan else self._indexed(late)
        rewires = []
        for number, at, txid in children:
            segment = self.segments[number]
            owner = int(segment.positions[np.searchsorted(segment.table.in_start, at, side="right") - 1])
            parent = late[txid]
            current = int(segment.source[at])
            if parent < owner and current != SPENT_BEFORE and (current == FROM_DATABASE or parent < current):
                segment.source[at] = parent
                rewires.append(Rewire(number, at, parent))
        return rewires

    def _children(self, txid: bytes) -> list[tuple[int, int, bytes]]:
        """Inputs that spend `txid`, by a scan of the packed prevouts: quick for a late transaction or two."""
        return [(n, at, txid) for n, segment in enumerate(self.segments) for at in spends_of(segment.table, txid)]

    def _indexed(self, late: dict[bytes, int]) -> list[tuple[int, int, bytes]]:
        """The same through an index over all inputs, for many late transactions or many small segments."""
        if self._by_prev_txid is None:
            self._by_prev_txid = {}
            for number, segment in enumerate(self.segments):
                self._index_prevouts(number, segment.table.prevouts())
        index = self._by_prev_txid
        return [(number, at, txid) for txid in late if txid in index for number, at in index[txid]]

    def _double_spends(self, index: int, prevouts: list[bytes], owners: np.ndarray) -> list[Rewire]:
        """Of several transactions that spend one outpoint, all but the first in block order find it spent."""
        spenders = self._spenders
        before = len(spenders)
        rewires: list[Rewire] = []
        entries = zip(owners.tolist(), prevouts, strict=True)
        if before == 0 and len(set(prevouts)) == len(prevouts):
            spenders.update({prevout: (owner, index, at) for at, (owner, prevout) in enumerate(entries)})
            return rewires
        for at, (owner, prevout) in enumerate(entries):
            first = spenders.setdefault(prevout, (owner, index, at))
            if first == (owner, index, at) or first[0] == owner:
                continue  # within one transaction it is CheckTransaction's matter
            if first[0] < owner:
                loser = (index, at)
            else:
                spenders[prevout] = (owner, index, at)
                loser = first[1:]
            self.segments[loser[0]].source[loser[1]] = SPENT_BEFORE
            rewires.append(Rewire(loser[0], loser[1], SPENT_BEFORE))
        return rewires
