"""Transactions that might be declared, by wtxid, each parsed once and packed; and which scripts are known to pass.

It is a list of candidates, not a judge: nothing is refused for policy, and an entry may turn out to be invalid. Of two
transactions that spend the same coin the later one stays, as after a replacement in the node that it was told by.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from models.consensus.context import TipVersion
from models.consensus.table import TxRecord
from models.errors import ClientError
from models.wire.hashes import to_display
from models.wire.transaction import decode_transaction

__all__ = ["Mempool", "MempoolEntry", "NewOutputs", "ScriptCache"]

DEFAULT_BOUND = 300_000_000  # bytes, as Core's -maxmempool


@dataclass(slots=True)
class MempoolEntry:
    """One transaction. Fee and sigop cost are None until its coins were seen."""

    record: TxRecord
    prevouts: list[bytes]
    fee: int | None = None  # satoshis
    sigop_cost: int | None = None
    locked: bool = False  # by a lock time or BIP68, or spends an immature coinbase: not for the next block
    children: set[bytes] = field(default_factory=set)  # wtxids
    new_in: int = -1  # the era of `NewOutputs` in which none of its outputs was found among the coins

    @property
    def weight(self) -> int:
        """Weight units."""
        row = self.record.row
        total, base = int.from_bytes(row[72:76], "little"), int.from_bytes(row[76:80], "little")
        return 3 * base + total


class NewOutputs:
    """Whose outputs are known not to be among the coins (BIP30), at the latest tip that was followed.

    An absence outlives a block that is connected: what that creates belongs to the block's own transactions, and those
    leave the mempool. A block that is taken back may bring any coin back, and so may whatever was not seen: a new era
    begins then, and all is to be looked for again.
    """

    def __init__(self) -> None:
        self.era = 0
        self.version: TipVersion | None = None  # of the tip that absences hold for

    def begin(self, version: TipVersion) -> None:
        """Nothing is known; what is looked for from now on is at this tip, or a later one."""
        self.era += 1
        self.version = version

    def follow(self, version: TipVersion, block_connected: bool) -> None:
        """The tip is another one; `block_connected`: by one block more, whose transactions have left the mempool."""
        if self.version is not None and version <= self.version:
            return
        next_one = self.version is not None and version == (self.version.epoch, self.version.n + 1)
        if next_one and block_connected:
            self.version = version
        else:
            self.begin(version)

    def forget(self) -> None:
        """Whoever tells of tips is another one."""
        self.era += 1
        self.version = None

    def knows(self, entry: MempoolEntry) -> bool:
        """Whether this entry's outputs are known to be new."""
        return entry.new_in == self.era


class ScriptCache:
    """Which transactions' scripts all pass, and under which flags; only passes, bounded, the oldest forgotten first."""

    def __init__(self, bound: int):
        self._bound = bound
        self._passed: OrderedDict[bytes, int] = OrderedDict()  # wtxid -> the flags of the latest pass

    def __len__(self) -> int:
        return len(self._passed)

    def add(self, wtxids: Iterable[bytes], flags: int) -> None:
        """Remembers passes."""
        for wtxid in wtxids:
            self._passed[wtxid] = flags
        while len(self._passed) > self._bound:
            self._passed.popitem(last=False)

    def knows(self, wtxids: Sequence[bytes], flags: int) -> list[bool]:
        """Which of `wtxids` are known to pass under exactly these flags."""
        return [passed == flags for passed in map(self._passed.get, wtxids)]


class Mempool:
    """Candidates within a bound of packed bytes."""

    def __init__(self, bound: int = DEFAULT_BOUND):
        self.bound = bound
        self.nbytes = 0
        self.evicted = 0
        self._entries: dict[bytes, MempoolEntry] = {}  # wtxid -> entry, oldest first
        self._by_txid: dict[bytes, bytes] = {}  # txid -> wtxid
        self._spender: dict[bytes, bytes] = {}  # outpoint -> wtxid

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, wtxid: bytes) -> bool:
        return wtxid in self._entries

    def entries(self) -> Iterable[tuple[bytes, MempoolEntry]]:
        """All of them, oldest first."""
        return self._entries.items()

    def get(self, wtxid: bytes) -> MempoolEntry | None:
        """One entry by wtxid, internal order."""
        return self._entries.get(wtxid)

    def by_txid(self, txid: bytes) -> MempoolEntry | None:
        """One entry by txid, internal order."""
        wtxid = self._by_txid.get(txid)
        return None if wtxid is None else self._entries[wtxid]

    def add(self, raw: bytes) -> bytes | None:
        """Takes in one transaction; its wtxid, or None if it, or one with the same txid, is here already.

        Raises DecodeError for bytes that are no transaction, ClientError for a coinbase, one without inputs or outputs,
        or one larger than the whole bound.
        """
        tx = decode_transaction(raw)
        if tx.is_coinbase:
            raise ClientError(f"a coinbase cannot be in the mempool: {to_display(tx.txid)}")
        if not tx.prevouts or not tx.values:
            raise ClientError(
                f"a transaction without inputs or outputs cannot be in the mempool: {to_display(tx.txid)}"
            )
        if tx.wtxid in self._entries or tx.txid in self._by_txid:
            return None
        entry = MempoolEntry(TxRecord.of(tx), tx.prevouts)
        if entry.record.nbytes > self.bound:
            raise ClientError(
                f"transaction {to_display(tx.txid)} is larger than the mempool's bound of {self.bound} bytes"
            )
        for prevout in tx.prevouts:
            if prevout in self._spender:
                self.remove(self._spender[prevout], with_descendants=True)
        self._insert(tx.wtxid, tx.txid, entry)
        while self.nbytes > self.bound:
            self._evict(tx.wtxid)
        return tx.wtxid

    def _insert(self, wtxid: bytes, txid: bytes, entry: MempoolEntry) -> None:
        self._entries[wtxid] = entry
        self._by_txid[txid] = wtxid
        self.nbytes += entry.record.nbytes
        for prevout in entry.prevouts:
            self._spender[prevout] = wtxid
            parent = self._by_txid.get(prevout[:32])
            if parent is not None:
                self._entries[parent].children.add(wtxid)
        for vout in range(entry.record.n_out):  # a child may have come before its parent
            child = self._spender.get(txid + vout.to_bytes(4, "little"))
            if child is not None:
                entry.children.add(child)

    def _evict(self, newest: bytes) -> None:
        """Makes room: the oldest entry goes first, with what spends it; the newest only if it is the last."""
        victim = next((wtxid for wtxid in self._entries if wtxid != newest), newest)
        self.evicted += len(self.remove(victim, with_descendants=True))

    def remove(self, wtxid: bytes, with_descendants: bool = False) -> list[MempoolEntry]:
        """Takes an entry out (and what spends its outputs); the entries removed, none if it is not here."""
        removed = []
        todo = [wtxid]
        while todo:
            current = todo.pop()
            entry = self._entries.pop(current, None)
            if entry is None:
                continue
            removed.append(entry)
            self.nbytes -= entry.record.nbytes
            del self._by_txid[entry.record.txid]
            for prevout in entry.prevouts:
                if self._spender.get(prevout) == current:
                    del self._spender[prevout]
                parent = self._by_txid.get(prevout[:32])
                if parent is not None:
                    self._entries[parent].children.discard(current)
            if with_descendants:
                todo.extend(entry.children)
        return removed

    def is_spent(self, outpoint: bytes) -> bool:
        """Whether a transaction here spends this outpoint (36 bytes)."""
        return outpoint in self._spender

    def lookup(self, wtxids: Sequence[bytes]) -> tuple[np.ndarray, list[MempoolEntry]]:
        """Which of `wtxids` are here: ascending positions (int64) and their entries."""
        found = list(map(self._entries.get, wtxids))
        entries = [entry for entry in found if entry is not None]
        if len(entries) == len(found):
            return np.arange(len(found)), entries
        return np.flatnonzero([entry is not None for entry in found]), entries

    def block_connected(self, transactions: Iterable[tuple[bytes, list[bytes]]]) -> int:
        """Drops what a block (txid, prevouts of each transaction) confirmed or conflicts with; how many went."""
        gone = 0
        for txid, prevouts in transactions:
            confirmed = self._by_txid.get(txid)
            if confirmed is not None:
                gone += len(self.remove(confirmed))
            for prevout in prevouts:
                spender = self._spender.get(prevout)
                if spender is not None:
                    gone += len(self.remove(spender, with_descendants=True))
        return gone

    def to_look_at(self, everything: bool) -> list[bytes]:
        """wtxids whose facts may have changed with the tip: what was locked or unknown; everything after a reorg.

        Fees and sigop costs never change, since a txid commits to the coins spent; locks open as the chain grows.
        """
        return [w for w, entry in self._entries.items() if everything or entry.locked or entry.fee is None]
