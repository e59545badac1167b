"""The chain behind the coins: which block is the tip, what the next one must be, how blocks are stored, connected and
taken back, which branch has most work. It owns the store's databases and is the only writer; it does not judge blocks,
it applies those that were judged elsewhere, and refuses to if the tip has moved meanwhile.

A change of the tip is one synced database batch. Everything else (headers, bodies, undo data) is written before it and
can be written twice, so a crash between any two steps leaves a tip that was published, or the one before it.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from models.coins.coin import Coin
from models.consensus import reasons as r
from models.consensus.context import BlockContext, Tip, TipVersion, make_context
from models.consensus.params import ChainParams
from models.consensus.verdict import Kind
from models.errors import InternalError, StaleView, StoreError
from models.script.classes import is_unspendable
from models.storage.headers import HeaderIndex
from models.storage.store import Store
from models.wire.block import Block, BlockHeader, decode_block
from models.wire.hashes import to_display

__all__ = ["Chain", "ChainHeaders", "Change", "Delta", "Step"]

log = logging.getLogger("txcollection")

KEEP_BLOCKS = 288  # bodies and undo data of the active chain, as a pruned Core keeps
VALID_TREE, VALID_TRANSACTIONS, VALID_SCRIPTS = 2, 3, 5
VALID_MASK = 7
HAVE_DATA, HAVE_UNDO = 8, 16
FAILED_VALID, FAILED_CHILD = 32, 64
FAILED = FAILED_VALID | FAILED_CHILD


class ChainHeaders:
    """models.consensus.pow.HeaderChain over the branch that ends at record `end` of a header index."""

    def __init__(self, headers: HeaderIndex, end: int):
        self._headers = headers
        self._end = end

    def _header(self, height: int) -> BlockHeader:
        return self._headers.header(self._headers.ancestor(self._end, height))

    def time(self, height: int) -> int:
        """Unix time of the header at `height`."""
        return self._header(height).time

    def bits(self, height: int) -> int:
        """Compact target of the header at `height`."""
        return self._header(height).bits

    def version(self, height: int) -> int:
        """Version of the header at `height`, signed."""
        return self._header(height).version

    def median_time_past(self, height: int) -> int:
        """BIP113 median of the header at `height` and up to ten before it."""
        return self._headers.median_time_past(self._headers.ancestor(self._end, height))


@dataclass(frozen=True, slots=True)
class Delta:
    """How the coins changed with one change of the tip: what a reader of the state before must lay over it."""

    before: TipVersion
    tip: Tip
    prev_hash: bytes  # the tip before
    spent: list[bytes]  # outpoints, 36 bytes
    created: list[tuple[bytes, Coin]]
    connected: bool  # False: a block was taken back
    block_hash: bytes  # the block connected or taken back


@dataclass(frozen=True, slots=True)
class Change:
    """What one block does to the coins of somebody who stands before it: for a replica that has fallen behind."""

    before: bytes  # the best block that it applies to
    after: bytes
    spent: list[bytes]  # outpoints, 36 bytes
    created: list[tuple[bytes, Coin]]


@dataclass(frozen=True, slots=True)
class Step:
    """The next thing to do on the way to the branch with most work. `raw` is the block to judge and connect."""

    connect: bool
    block_hash: bytes
    raw: bytes = b""


@dataclass
class _Overlay:
    """Net changes of one block: a coin created and spent inside it leaves no trace."""

    created: dict[bytes, Coin] = field(default_factory=dict)
    spent: dict[bytes, None] = field(default_factory=dict)


class Chain:
    """One open store. Not safe for concurrent use; the one process that owns it calls it from one thread at a time."""

    def __init__(self, store: Store, params: ChainParams):
        self.store = store
        self.params = params
        self.headers: HeaderIndex = store.headers
        self._n = 0
        self._context: BlockContext | None = None
        self._wanted: set[int] = self._branches_ahead()
        self._arrival: dict[int, int] = dict.fromkeys(self._wanted, 1)  # by record; what is not here was first (0)

    # What is served ---------------------------------------------------------------------------------------------

    @property
    def tip(self) -> Tip:
        """The current tip with its version."""
        i = self.headers.tip
        return Tip(self.headers.hash(i), self.headers.height(i), TipVersion(self.store.epoch, self._n))

    def context(self) -> BlockContext:
        """What the block on top of the tip must be; worked out once per tip."""
        if self._context is None or self._context.tip.version != self.tip.version:
            self._context = self._make_context(self.headers.tip, self.tip)
        return self._context

    def context_on(self, parent_hash: bytes) -> BlockContext | None:
        """The context of a block on top of any known header; None if that is unknown. Coins of it are not known."""
        i = self.headers.find(parent_hash)
        if i is None:
            return None
        if i == self.headers.tip:
            return self.context()
        tip = Tip(parent_hash, self.headers.height(i), TipVersion(self.store.epoch, -1))
        return self._make_context(i, tip)

    def _make_context(self, parent: int, tip: Tip) -> BlockContext:
        height = self.params.activation["bip34"]
        ancestor = None
        if height <= tip.height:
            ancestor = self.headers.hash(self.headers.ancestor(parent, height))
        chain = ChainHeaders(self.headers, parent)
        return make_context(self.params, chain, tip, self.headers.times_by_height, ancestor)

    def proposal_preface(self, block_hash: bytes) -> r.Reason | None:
        """What Core's proposal mode answers of a block that is in its index already (rpc/mining.cpp)."""
        i = self.headers.find(block_hash)
        if i is None:
            return None
        status = self.headers.status(i)
        if status & FAILED:
            return r.DUPLICATE_INVALID
        if status & VALID_MASK >= VALID_SCRIPTS:
            return r.DUPLICATE
        return r.DUPLICATE_INCONCLUSIVE

    def classify(self, prevhash: bytes) -> Kind:
        """What a prevhash that is not the tip is: behind it, beside it, or unknown (SPEC 1.1)."""
        i = self.headers.find(prevhash)
        if i is None:
            return Kind.AHEAD
        return Kind.STALE if self.headers.is_active(i) else Kind.FORK

    def body(self, block_hash: bytes) -> bytes:
        """A stored block. Raises StoreError if it is not kept (any more)."""
        raw = self.store.archive.get_block(block_hash)
        if raw is None:
            raise StoreError(f"the body of block {to_display(block_hash)} is not kept in the store")
        return raw

    # Blocks come in ---------------------------------------------------------------------------------------------

    def look_up(self, header: BlockHeader) -> tuple[r.Reason | None, bool]:
        """Core's `AcceptBlockHeader` as far as the index decides: (reason to refuse, whether the body is here)."""
        i = self.headers.find(header.hash)
        if i is not None:
            if self.headers.status(i) & FAILED:
                return r.DUPLICATE_INVALID, False
            stored = self.store.archive.has_block(header.hash) or self.headers.is_active(i)
            return None, stored
        parent = self.headers.find(header.prev_hash)
        if parent is None:
            return r.PREV_BLK_NOT_FOUND, False
        if self.headers.status(parent) & FAILED:
            return r.BAD_PREVBLK, False
        return None, False

    def add_header(self, header: BlockHeader) -> int:
        """Puts a header that passed its checks into the index; its record number. Harmless when it is there."""
        i = self.headers.find(header.hash)
        return self.headers.append(header, VALID_TREE, 0) if i is None else i

    def store_block(self, block: Block) -> None:
        """Keeps a block that passed every check that needs no coins; it becomes a candidate for the best branch."""
        i = self.add_header(block.header)
        self.store.archive.put_block(block.raw)
        status = self.headers.status(i)
        if status & VALID_MASK < VALID_TRANSACTIONS:
            status = status & ~VALID_MASK | VALID_TRANSACTIONS
        self.headers.set_status(i, status | HAVE_DATA, len(block.transactions))
        if not self.headers.is_active(i):
            self._wanted.add(i)
            self._arrival.setdefault(i, len(self._arrival) + 2)

    def mark_failed(self, block_hash: bytes) -> None:
        """Remembers that a block is invalid, and with it every descendant."""
        i = self.headers.find(block_hash)
        if i is None:
            raise InternalError(f"a block that is not in the index was found invalid: {to_display(block_hash)}")
        self.headers.mark_failed(i, FAILED_VALID)
        self._wanted = {j for j in self._wanted if not self.headers.status(j) & FAILED}

    def _branches_ahead(self) -> set[int]:
        """At open: stored blocks off the active chain that may be part of a branch with more work."""
        found = set()
        for block_hash in self.store.archive.hashes():
            i = self.headers.find(block_hash)
            if i is not None and not self.headers.is_active(i) and not self.headers.status(i) & FAILED:
                found.add(i)
        return found

    def _connectable(self, i: int) -> bool:
        """Whether every block from the active chain up to record i has its body here."""
        while not self.headers.is_active(i):
            if self.headers.status(i) & FAILED or not self.store.archive.has_block(self.headers.hash(i)):
                return False
            i = self.headers.parent(i)
        return True

    def _rank(self, i: int) -> tuple[int, int]:
        return self.headers.chain_work(i), -self._arrival.get(i, 0)

    def next_step(self) -> Step | None:
        """One step towards the branch with most work, of equal ones that whose end arrived first (Core:
        `CBlockIndexWorkComparator`); None when the tip is its end."""
        best = self.headers.tip
        for i in sorted(self._wanted):
            if self._rank(i) > self._rank(best) and not self.headers.is_active(i) and self._connectable(i):
                best = i
        if best == self.headers.tip:
            return None
        fork = self.headers.fork_point(best)
        if fork != self.headers.tip:
            return Step(False, self.headers.hash(self.headers.tip))
        i = self.headers.ancestor(best, self.headers.height(fork) + 1)
        block_hash = self.headers.hash(i)
        return Step(True, block_hash, self.body(block_hash))

    # The tip changes --------------------------------------------------------------------------------------------

    def connect(self, block_hash: bytes, expected: TipVersion) -> Delta:
        """Makes a stored block, judged valid at the tip version `expected`, the new tip.

        Raises StaleView if the tip is another by now; nothing has changed then.
        """
        before = self._at(expected)
        i = self.headers.find(block_hash)
        if i is None or self.headers.parent(i) != self.headers.tip:
            raise StaleView(f"block {to_display(block_hash)} does not build on the tip {to_display(before.hash)}")
        block = decode_block(self.body(block_hash))
        overlay, undo = self._spend(block, self.headers.height(i))
        self.store.archive.put_undo(block_hash, undo)
        status = self.headers.status(i) & ~VALID_MASK | VALID_SCRIPTS | HAVE_DATA | HAVE_UNDO
        self.headers.set_status(i, status, len(block.transactions))
        return self._publish(before, i, overlay, True, block_hash)

    def disconnect(self, expected: TipVersion) -> Delta:
        """Takes the tip back. Raises StoreError if its body or undo data is not kept any more (or it is genesis)."""
        before = self._at(expected)
        i = self.headers.tip
        if self.headers.height(i) == 0:
            raise StoreError("the genesis block cannot be taken back")
        block_hash = before.hash
        block = decode_block(self.body(block_hash))
        undo = self.store.archive.get_undo(block_hash)
        if undo is None:
            raise StoreError(f"undo data of block {to_display(block_hash)} is not kept: it cannot be taken back")
        overlay = self._unspend(block, undo)
        self._wanted.add(i)
        return self._publish(before, self.headers.parent(i), overlay, False, block_hash)

    def _at(self, expected: TipVersion) -> Tip:
        tip = self.tip
        if tip.version != expected:
            raise StaleView(f"the tip moved: {tuple(expected)} was asked for, {tuple(tip.version)} is served")
        return tip

    def recover(self) -> bool:
        """To be called before a change: after a write of coins that failed, opens their database anew.

        True if the failed change proves to be on disk: then the tip has moved, and its version with it. Raises
        StoreError while there is still no room.
        """
        if not self.store.coins.failed:
            return False
        self.store.coins.recover()
        i = self.headers.find(self.store.coins.best_block)
        if i is None:
            raise InternalError(f"the coins are at an unknown block {to_display(self.store.coins.best_block)}")
        if i == self.headers.tip:
            return False
        self._move_to(i)
        return True

    def _move_to(self, i: int) -> None:
        self.headers.set_tip(i)
        self._n += 1
        self._context = None
        self._wanted.discard(i)

    def _publish(self, before: Tip, i: int, overlay: _Overlay, connected: bool, block_hash: bytes) -> Delta:
        spent, created = list(overlay.spent), list(overlay.created.items())
        self.store.coins.apply(spent, created, self.headers.hash(i))
        self._move_to(i)
        if connected:
            self._prune()
        return Delta(before.version, self.tip, before.hash, spent, created, connected, block_hash)

    def _spend(self, block: Block, height: int) -> tuple[_Overlay, list[list[Coin]]]:
        """Net changes and undo data of a valid block (Core: `UpdateCoins`)."""
        overlay = _Overlay()
        undo: list[list[Coin]] = []
        read = self.store.coins.get
        for number, tx in enumerate(block.transactions):
            if number:
                coins = []
                for prevout in tx.prevouts:
                    coin = overlay.created.pop(prevout, None)
                    if coin is None:
                        coin = read(prevout)
                        if coin is None or prevout in overlay.spent:
                            raise InternalError(
                                f"a block judged valid spends a coin that is not there: {prevout.hex()}"
                            )
                        overlay.spent[prevout] = None
                    coins.append(coin)
                undo.append(coins)
            for vout, (value, script) in enumerate(zip(tx.values, tx.script_pubkeys, strict=True)):
                if not is_unspendable(script):
                    outpoint = tx.txid + vout.to_bytes(4, "little")
                    overlay.created[outpoint] = Coin(value, height, number == 0, script)
        return overlay, undo

    def _unspend(self, block: Block, undo: list[list[Coin]]) -> _Overlay:
        """The reverse (Core: `DisconnectBlock`)."""
        if len(undo) != len(block.transactions) - 1:
            raise StoreError(
                f"undo data of block {to_display(block.header.hash)} is of {len(undo)} transactions, the block has "
                f"{len(block.transactions) - 1}"
            )
        overlay = _Overlay()
        for number in range(len(block.transactions) - 1, -1, -1):
            tx = block.transactions[number]
            for vout, script in enumerate(tx.script_pubkeys):
                outpoint = tx.txid + vout.to_bytes(4, "little")
                if not is_unspendable(script) and overlay.created.pop(outpoint, None) is None:
                    overlay.spent[outpoint] = None
            if number:
                for prevout, coin in zip(tx.prevouts, undo[number - 1], strict=True):
                    overlay.created[prevout] = coin
        return overlay

    def changes_from(self, block_hash: bytes, most: int) -> list[Change]:
        """The first changes, `most` of them at most, that lead from the coins of a block to those of the tip.

        Raises StoreError if the block is not known, or what lies between is not kept any more.
        """
        i = self.headers.find(block_hash)
        if i is None:
            raise StoreError(f"block {to_display(block_hash)} is not known here: replicate again")
        changes: list[Change] = []
        while not self.headers.is_active(i) and len(changes) < most:
            parent = self.headers.parent(i)
            undo = self.store.archive.get_undo(self.headers.hash(i))
            if undo is None:
                raise StoreError(f"undo data of block {to_display(self.headers.hash(i))} is not kept: replicate again")
            overlay = self._unspend(decode_block(self.body(self.headers.hash(i))), undo)
            changes.append(self._change(i, parent, overlay))
            i = parent
        if not self.headers.is_active(i):
            return changes
        end = min(self.headers.tip_height, self.headers.height(i) + most - len(changes))
        for height in range(self.headers.height(i) + 1, end + 1):
            child = self.headers.active(height)
            block = decode_block(self.body(self.headers.hash(child)))
            changes.append(self._change(i, child, _net(block, height)))
            i = child
        return changes

    def _change(self, before: int, after: int, overlay: _Overlay) -> Change:
        created = list(overlay.created.items())
        return Change(self.headers.hash(before), self.headers.hash(after), list(overlay.spent), created)

    def _prune(self) -> None:
        """Drops bodies and undo data of the active chain that lie deeper than KEEP_BLOCKS; branches are kept."""
        height = self.headers.tip_height - KEEP_BLOCKS
        if height > 0:
            try:
                self.store.archive.drop(self.headers.hash(self.headers.active(height)))
            except OSError as error:  # the tip has moved already; what is left takes room and no more
                log.warning("a block of height %d was not dropped: %s", height, error)

    def activate(self, judge: Callable[[bytes, BlockContext], r.Reason | None]) -> list[Delta]:
        """Follows the branch with most work to its end in one process; `judge` answers of each block to connect."""
        deltas = []
        while (step := self.next_step()) is not None:
            if not step.connect:
                deltas.append(self.disconnect(self.tip.version))
            elif judge(step.raw, self.context()) is None:
                deltas.append(self.connect(step.block_hash, self.tip.version))
            else:
                self.mark_failed(step.block_hash)
        return deltas


def _net(block: Block, height: int) -> _Overlay:
    """What a connected block changes, which nothing needs to be read for."""
    overlay = _Overlay()
    for number, tx in enumerate(block.transactions):
        for prevout in tx.prevouts if number else ():
            if overlay.created.pop(prevout, None) is None:
                overlay.spent[prevout] = None
        for vout, (value, script) in enumerate(zip(tx.values, tx.script_pubkeys, strict=True)):
            if not is_unspendable(script):
                overlay.created[tx.txid + vout.to_bytes(4, "little")] = Coin(value, height, number == 0, script)
    return overlay
