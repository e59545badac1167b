"""A chain and a mempool for tests, and blocks and transactions for them. They trust what a test gives them; the UTXO
hash is computed here, by the book, so it can judge.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from struct import pack

from models.consensus.params import get_params
from models.script.classes import is_unspendable
from models.wire.block import Block, decode_block
from models.wire.transaction import Transaction, decode_transaction
from tests.actors.blocks import compact_size, has_work, header, merkle_root, sha256d, subsidy

__all__ = ["GENESIS", "OP_TRUE", "WITNESS_OP_TRUE", "BranchTip", "Entry", "FakeChain", "mine_block", "spend_coin"]

OP_TRUE = b"\x51"
WITNESS_OP_TRUE = b"\x00\x20" + hashlib.sha256(OP_TRUE).digest()  # P2WSH of OP_TRUE
GENESIS = get_params("regtest").genesis_block


# Blocks and transactions ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BranchTip:
    """A block to build on."""

    hash: bytes
    height: int
    time: int


def spend_coin(
    outpoint: bytes, value: int, outputs: int = 2, fee: int = 1000, witness: bool = False, to_witness: bool = False
) -> Transaction:
    """Spends an OP_TRUE coin (`witness`: the P2WSH of OP_TRUE) into equal outputs of the same kind as `to_witness`."""
    script = WITNESS_OP_TRUE if to_witness else OP_TRUE
    share = (value - fee) // outputs
    body = b"\x01" + outpoint + b"\x00" + b"\xfd\xff\xff\xff" + compact_size(outputs)
    body += (pack("<q", share) + compact_size(len(script)) + script) * outputs
    if witness:
        stack = b"\x01" + compact_size(len(OP_TRUE)) + OP_TRUE
        return decode_transaction(pack("<i", 2) + b"\x00\x01" + body + stack + bytes(4))
    return decode_transaction(pack("<i", 2) + body + bytes(4))


def _coinbase(height: int, witness_root: bytes | None, tag: bytes, parts: int) -> bytes:
    if height <= 16:
        push = bytes((0x50 + height,))
    else:
        number = height.to_bytes((height.bit_length() + 8) // 8, "little")
        push = bytes((len(number),)) + number
    script_sig = push + compact_size(len(tag) + 1)[:1] + b"\x00" + tag
    outputs = [(subsidy(height) // parts, OP_TRUE)] * parts
    if witness_root is not None:
        outputs.append((0, b"\x6a\x24\xaa\x21\xa9\xed" + sha256d(witness_root + bytes(32))))
    raw = pack("<i", 2) + (b"" if witness_root is None else b"\x00\x01")
    raw += b"\x01" + bytes(32) + b"\xff" * 4 + compact_size(len(script_sig)) + script_sig + b"\xff" * 4
    raw += compact_size(len(outputs))
    raw += b"".join(pack("<q", value) + compact_size(len(script)) + script for value, script in outputs)
    return raw + (b"" if witness_root is None else b"\x01\x20" + bytes(32)) + bytes(4)


def mine_block(
    parent: BranchTip, transactions: Sequence[Transaction] = (), tag: bytes = b"", parts: int = 1, spacing: int = 60
) -> bytes:
    """The next block, with proof of work and, where a transaction has a witness, the commitment to it."""
    height = parent.height + 1
    has_witness = any(tx.has_witness for tx in transactions)
    root = merkle_root([bytes(32), *(tx.wtxid for tx in transactions)]) if has_witness else None
    first = _coinbase(height, root, tag, parts)
    txids = [decode_transaction(first).txid, *(tx.txid for tx in transactions)]
    merkle = merkle_root(txids)
    nonce = 0
    while not has_work(head := header(parent.hash, merkle, parent.time + spacing, nonce)):
        nonce += 1
    return head + compact_size(len(txids)) + first + b"".join(tx.raw for tx in transactions)


# The fake's chain and mempool -----------------------------------------------------------------------------------------


@dataclass
class Entry:
    block: Block
    height: int
    order: int
    spent: dict[bytes, tuple[int, int, bool, bytes]] = field(default_factory=dict)


class FakeChain:
    """Block tree, coins and mempool. `publish(topic, body)` is told what Core would publish."""

    def __init__(self, publish: Callable[[str, bytes], None]):
        self._publish = publish
        genesis = decode_block(GENESIS)
        self.entries: dict[bytes, Entry] = {genesis.header.hash: Entry(genesis, 0, 0)}
        self.active: list[bytes] = [genesis.header.hash]
        self.coins: dict[bytes, tuple[int, int, bool, bytes]] = {}  # outpoint -> satoshis, height, coinbase, script
        self.mempool: dict[bytes, Transaction] = {}
        self.spenders: dict[bytes, bytes] = {}  # outpoint -> txid of the mempool's spender
        self.sequence = 1

    @property
    def best(self) -> bytes:
        return self.active[-1]

    def add_block(self, raw: bytes) -> bytes:
        """Takes in a block whose parent is known and follows the longest branch; its hash."""
        block = decode_block(raw)
        block_hash = block.header.hash
        if block_hash in self.entries:
            return block_hash
        height = self.entries[block.header.prev_hash].height + 1
        self.entries[block_hash] = Entry(block, height, len(self.entries))
        if height >= len(self.active):
            self._activate(block_hash)
        return block_hash

    def _activate(self, block_hash: bytes) -> None:
        branch: list[bytes] = []
        while (
            self.entries[block_hash].height >= len(self.active)
            or self.active[self.entries[block_hash].height] != block_hash
        ):
            branch.append(block_hash)
            block_hash = self.entries[block_hash].block.header.prev_hash
        back: list[Transaction] = []
        while self.best != block_hash:
            back = self._disconnect() + back
        for following in reversed(branch):
            self._connect(following)
        for tx in back:  # Core: MaybeUpdateMempoolForReorg
            self.add_transaction(tx.raw)
        for txid in list(self.mempool):
            tx = self.mempool.get(txid)
            if tx is not None and not all(self._available(prevout) for prevout in tx.prevouts):
                self.remove(txid)
        self._publish("rawblock", self.entries[self.best].block.raw)

    def _connect(self, block_hash: bytes) -> None:
        entry = self.entries[block_hash]
        entry.spent = {}
        for number, tx in enumerate(entry.block.transactions):
            for prevout in tx.prevouts if number else ():
                entry.spent[prevout] = self.coins.pop(prevout)
            for vout, (value, script) in enumerate(zip(tx.values, tx.script_pubkeys, strict=True)):
                if not is_unspendable(script):
                    self.coins[tx.txid + pack("<I", vout)] = (value, entry.height, number == 0, script)
        self.active.append(block_hash)
        for tx in entry.block.transactions[1:]:
            if tx.txid in self.mempool:
                self._take_out(tx.txid)
                self.sequence += 1  # counted, and not told
        for tx in entry.block.transactions[1:]:
            for prevout in tx.prevouts:
                if prevout in self.spenders:
                    self.remove(self.spenders[prevout])
        for tx in entry.block.transactions:
            self._publish("rawtx", tx.raw)
        self._publish("sequence", block_hash[::-1] + b"C")

    def _disconnect(self) -> list[Transaction]:
        block_hash = self.active.pop()
        entry = self.entries[block_hash]
        made = set()
        for tx in entry.block.transactions:
            for vout in range(len(tx.values)):
                made.add(tx.txid + pack("<I", vout))
                self.coins.pop(tx.txid + pack("<I", vout), None)
        self.coins.update((outpoint, coin) for outpoint, coin in entry.spent.items() if outpoint not in made)
        for tx in entry.block.transactions:
            self._publish("rawtx", tx.raw)
        self._publish("sequence", block_hash[::-1] + b"D")
        return entry.block.transactions[1:]

    # mempool

    def _available(self, prevout: bytes) -> bool:
        parent = self.mempool.get(prevout[:32])
        if parent is not None:
            return int.from_bytes(prevout[32:], "little") < len(parent.values)
        coin = self.coins.get(prevout)
        return coin is not None and not (coin[2] and len(self.active) - coin[1] < 100)

    def add_transaction(self, raw: bytes) -> bool:
        """Takes in a transaction whose coins are there; what spends them already is replaced."""
        tx = decode_transaction(raw)
        if tx.txid in self.mempool or not all(self._available(prevout) for prevout in tx.prevouts):
            return False
        for prevout in tx.prevouts:
            if prevout in self.spenders:
                self.remove(self.spenders[prevout])
        self.mempool[tx.txid] = tx
        self.spenders.update((prevout, tx.txid) for prevout in tx.prevouts)
        self._publish("rawtx", tx.raw)
        self._publish("sequence", tx.txid[::-1] + b"A" + pack("<Q", self.sequence))
        self.sequence += 1
        return True

    def remove(self, txid: bytes) -> None:
        """Takes a transaction out, and what spends it."""
        tx = self.mempool.get(txid)
        if tx is None:
            return
        for vout in range(len(tx.values)):
            child = self.spenders.get(txid + pack("<I", vout))
            if child is not None:
                self.remove(child)
        self._take_out(txid)
        self._publish("sequence", txid[::-1] + b"R" + pack("<Q", self.sequence))
        self.sequence += 1

    def _take_out(self, txid: bytes) -> None:
        tx = self.mempool.pop(txid)
        for prevout in tx.prevouts:
            if self.spenders.get(prevout) == txid:
                del self.spenders[prevout]

    def utxo_hash(self) -> str:
        """hash_serialized_3 (Core: kernel/coinstats.cpp), by the book."""
        sha = hashlib.sha256()
        order = sorted(self.coins, key=lambda o: (o[:32], int.from_bytes(o[32:], "little")))
        for outpoint in order:
            value, height, coinbase, script = self.coins[outpoint]
            sha.update(
                outpoint + pack("<I", height << 1 | coinbase) + pack("<q", value) + compact_size(len(script)) + script
            )
        return hashlib.sha256(sha.digest()).digest()[::-1].hex()
