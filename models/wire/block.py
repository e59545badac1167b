"""Block headers and whole blocks as they cross the network (Core: primitives/block.h)."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from struct import Struct
from typing import Generic, TypeVar

from models.errors import DecodeError
from models.wire.compactsize import read_compact_size, write_compact_size
from models.wire.hashes import sha256d
from models.wire.transaction import Transaction, parse_transaction

__all__ = ["HEADER_SIZE", "Block", "BlockHeader", "Teller", "decode_block", "serialize_block"]

HEADER_SIZE = 80
MIN_TRANSACTION_SIZE = 10
FIRST_GROUP = 192  # transactions that a Teller tells of first
LARGEST_GROUP = 1536

_HEADER = Struct("<i32s32sIII")


@dataclass(frozen=True)
class BlockHeader:
    """The 80 bytes that are hashed. Hashes in internal order, `version` signed, `time` in Unix seconds."""

    version: int
    prev_hash: bytes
    merkle_root: bytes
    time: int
    bits: int
    nonce: int

    @classmethod
    def parse(cls, buf: bytes, pos: int = 0) -> "BlockHeader":
        """Reads 80 bytes at `pos`. Raises DecodeError if there are fewer."""
        if pos + HEADER_SIZE > len(buf):
            raise DecodeError(f"end of data: a block header takes {HEADER_SIZE} bytes, got {max(len(buf) - pos, 0)}")
        return cls(*_HEADER.unpack_from(buf, pos))

    def serialize(self) -> bytes:
        """The 80 bytes."""
        return _HEADER.pack(self.version, self.prev_hash, self.merkle_root, self.time, self.bits, self.nonce)

    @cached_property
    def hash(self) -> bytes:
        """Block hash, internal order."""
        return sha256d(self.serialize())


@dataclass(frozen=True)
class Block:
    """A parsed block. `raw` is what was parsed, without trailing bytes."""

    header: BlockHeader
    transactions: list[Transaction]
    raw: bytes


T = TypeVar("T")


class Teller(Generic[T]):
    """Tells of a growing list in groups, while it grows: a small one first, so that who listens has something to do,
    each of the next twice as large, up to a bound. `seen` gets the index of a group's first item, and the group."""

    def __init__(self, seen: Callable[[int, list[T]], None]):
        self._seen = seen
        self._told = 0
        self._size = FIRST_GROUP

    def grown(self, items: list[T]) -> None:
        """One more item is in the list."""
        if len(items) - self._told == self._size:
            self._tell(items)
            self._size = min(2 * self._size, LARGEST_GROUP)

    def ended(self, items: list[T]) -> None:
        """That was the last."""
        if len(items) > self._told:
            self._tell(items)

    def _tell(self, items: list[T]) -> None:
        self._seen(self._told, items[self._told :])
        self._told = len(items)


def decode_block(
    raw: bytes, allow_trailing: bool = True, seen: Callable[[int, list[Transaction]], None] | None = None
) -> Block:
    """Parses a block with witnesses. Bytes after it are ignored, as Core's RPC does, unless `allow_trailing` is False.

    `seen` is told of transactions as they are parsed, as by a `Teller`: the position of the first, and they.
    Raises DecodeError. A block with no transactions parses.
    """
    raw = bytes(raw)
    header = BlockHeader.parse(raw)
    count, pos = read_compact_size(raw, HEADER_SIZE)
    if count * MIN_TRANSACTION_SIZE > len(raw) - pos:
        raise DecodeError(f"end of data: {count} transactions cannot fit into {len(raw) - pos} bytes")
    transactions: list[Transaction] = []
    teller = None if seen is None else Teller(seen)
    for _ in range(count):
        tx, pos = parse_transaction(raw, pos)
        transactions.append(tx)
        if teller is not None:
            teller.grown(transactions)
    if teller is not None:
        teller.ended(transactions)
    if pos != len(raw):
        if not allow_trailing:
            raise DecodeError(f"{len(raw) - pos} trailing bytes after the block")
        raw = raw[:pos]
    return Block(header, transactions, raw)


def serialize_block(header: BlockHeader, raw_transactions: list[bytes]) -> bytes:
    """Network serialisation of a block from its header and raw transactions, coinbase first."""
    return b"".join((header.serialize(), write_compact_size(len(raw_transactions)), *raw_transactions))
