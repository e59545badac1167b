"""Regtest blocks and transactions for tests, serialised by hand, so that nothing under test builds its own input.

Every output is OP_TRUE (or what a test asks for), which an empty scriptSig spends; every block has the proof of work
that regtest asks for.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from struct import pack

OP_TRUE = b"\x51"
OP_RETURN = b"\x6a"
REGTEST_BITS = 0x207FFFFF
REGTEST_TARGET = 0x7FFFFF << 8 * (0x20 - 3)
SUBSIDY = 5_000_000_000  # satoshis, until block 150
HALVING = 150
SPACING = 600  # seconds between our blocks
Output = int | tuple[int, bytes]  # satoshis (to OP_TRUE), or satoshis and scriptPubKey


def sha256d(data: bytes) -> bytes:
    return hashlib.sha256(hashlib.sha256(data).digest()).digest()


def display(hash_: bytes) -> str:
    return hash_[::-1].hex()


def compact_size(n: int) -> bytes:
    if n < 253:
        return bytes((n,))
    return b"\xfd" + pack("<H", n) if n < 1 << 16 else b"\xfe" + pack("<I", n)


def subsidy(height: int) -> int:
    return SUBSIDY >> height // HALVING


@dataclass(frozen=True)
class Tx:
    """A transaction without witness: its id is its wtxid."""

    raw: bytes
    outputs: tuple[tuple[int, bytes], ...]

    @property
    def txid(self) -> bytes:
        return sha256d(self.raw)

    @property
    def id(self) -> str:
        return display(self.txid)

    def coin(self, n: int = 0) -> "TestCoin":
        return TestCoin(self.txid, n, self.outputs[n][0])


@dataclass(frozen=True)
class TestCoin:
    """An output that can be spent."""

    __test__ = False
    txid: bytes
    n: int
    value: int

    @property
    def outpoint(self) -> bytes:
        return self.txid + pack("<I", self.n)


def _outputs(outputs: Sequence[Output]) -> tuple[tuple[int, bytes], ...]:
    return tuple(output if isinstance(output, tuple) else (output, OP_TRUE) for output in outputs)


def _serialise(
    version: int, inputs: Sequence[tuple[bytes, bytes, int]], outputs: Sequence[tuple[int, bytes]], locktime: int
) -> bytes:
    ins = b"".join(prevout + compact_size(len(sig)) + sig + pack("<I", sequence) for prevout, sig, sequence in inputs)
    outs = b"".join(pack("<q", value) + compact_size(len(script)) + script for value, script in outputs)
    return (
        pack("<i", version) + compact_size(len(inputs)) + ins + compact_size(len(outputs)) + outs + pack("<I", locktime)
    )


def spend(
    coins: Sequence[TestCoin],
    outputs: Sequence[Output] | None = None,
    *,
    fee: int = 1000,
    version: int = 2,
    locktime: int = 0,
    sequence: int = 0xFFFFFFFF,
    script_sig: bytes = b"",
) -> Tx:
    """Spends coins; one output of their sum less `fee` (satoshis) unless `outputs` says otherwise."""
    made = _outputs([sum(coin.value for coin in coins) - fee] if outputs is None else outputs)
    inputs = [(coin.outpoint, script_sig, sequence) for coin in coins]
    return Tx(_serialise(version, inputs, made, locktime), made)


def split(coin: TestCoin, parts: int, fee: int = 1000) -> Tx:
    """One coin into `parts` equal ones."""
    return spend([coin], [(coin.value - fee) // parts] * parts)


def coinbase(height: int, outputs: Sequence[Output] | None = None, tag: bytes = b"") -> Tx:
    """A coinbase for the block at `height`; by default one output of the subsidy. `tag` makes it another one."""
    if height <= 16:
        push = bytes((0x50 + height,))
    else:
        number = height.to_bytes((height.bit_length() + 8) // 8, "little")
        push = bytes((len(number),)) + number
    script_sig = push + bytes((len(tag) + 1, 0)) + tag
    made = _outputs([subsidy(height)] if outputs is None else outputs)
    return Tx(_serialise(2, [(bytes(32) + b"\xff" * 4, script_sig, 0xFFFFFFFF)], made, 0), made)


def merkle_root(hashes: Sequence[bytes]) -> bytes:
    level = list(hashes)
    while len(level) > 1:
        if len(level) % 2:
            level.append(level[-1])
        level = [sha256d(level[i] + level[i + 1]) for i in range(0, len(level), 2)]
    return level[0]


def header(prev_hash: bytes, root: bytes, time: int, nonce: int, version: int = 0x20000000) -> bytes:
    return pack("<i", version) + prev_hash + root + pack("<III", time, REGTEST_BITS, nonce)


def has_work(head: bytes) -> bool:
    return int.from_bytes(sha256d(head), "little") <= REGTEST_TARGET


@dataclass(frozen=True)
class TestBlock:
    """A block with proof of work."""

    __test__ = False
    raw: bytes
    height: int
    time: int
    transactions: tuple[Tx, ...]

    @property
    def hash(self) -> bytes:
        return sha256d(self.raw[:80])

    @property
    def id(self) -> str:
        return display(self.hash)

    def with_nonce(self, work: bool) -> "TestBlock":
        """The same block with another nonce, with or without proof of work."""
        nonce = 1 << 20
        while has_work(head := self.raw[:76] + pack("<I", nonce)) != work:
            nonce += 1
        return TestBlock(head + self.raw[80:], self.height, self.time, self.transactions)


def mine(
    prev_hash: bytes,
    height: int,
    time: int,
    transactions: Sequence[Tx] = (),
    *,
    first: Tx | None = None,
    fees: int = 0,
    tag: bytes = b"",
) -> TestBlock:
    """A block on top of `prev_hash` (internal order); its coinbase claims subsidy and `fees` unless `first` is one."""
    everything = (first or coinbase(height, [subsidy(height) + fees], tag), *transactions)
    root = merkle_root([tx.txid for tx in everything])
    nonce = 0
    while not has_work(head := header(prev_hash, root, time, nonce)):
        nonce += 1
    raw = head + compact_size(len(everything)) + b"".join(tx.raw for tx in everything)
    return TestBlock(raw, height, time, everything)


def on_top(
    parent: TestBlock, transactions: Sequence[Tx] = (), *, first: Tx | None = None, fees: int = 0, tag: bytes = b""
) -> TestBlock:
    """The next block after another one."""
    return mine(parent.hash, parent.height + 1, parent.time + SPACING, transactions, first=first, fees=fees, tag=tag)
