"""Block headers and whole blocks as they cross the network (Core: primitives/block.h)."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from struct import Struct

from models.errors import DecodeError
from models.wire.compactsize import read_compact_size, write_compact_size
from models.wire.hashes import sha256d
from models.wire.transaction import Transaction, parse_transaction

__all__ = ["HEADER_SIZE", "SEEN_TOGETHER", "Block", "BlockHeader", "decode_block", "serialize_block"]

HEADER_SIZE = 80
MIN_TRANSACTION_SIZE = 10
SEEN_TOGETHER = 1536  # transactions

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


def decode_block(
    raw: bytes, allow_trailing: bool = True, seen: Callable[[int, list[Transaction]], None] | None = None
) -> Block:
    """Parses a block with witnesses. Bytes after it are ignored, as Core's RPC does, unless `allow_trailing` is False.

    `seen` is told of transactions as they are parsed, SEEN_TOGETHER at a time: the position of the first, and they.
    Raises DecodeError. A block with no transactions parses.
    """
    raw = bytes(raw)
    header = BlockHeader.parse(raw)
    count, pos = read_compact_size(raw, HEADER_SIZE)
    if count * MIN_TRANSACTION_SIZE > len(raw) - pos:
        raise DecodeError(f"end of data: {count} transactions cannot fit into {len(raw) - pos} bytes")
    transactions = []
    for _ in range(count):
        tx, pos = parse_transaction(raw, pos)
        transactions.append(tx)
        if seen is not None and len(transactions) % SEEN_TOGETHER == 0:
            seen(len(transactions) - SEEN_TOGETHER, transactions[-SEEN_TOGETHER:])
    if seen is not None and (last := len(transactions) % SEEN_TOGETHER):
        seen(len(transactions) - last, transactions[-last:])
    if pos != len(raw):
        if not allow_trailing:
            raise DecodeError(f"{len(raw) - pos} trailing bytes after the block")
        raw = raw[:pos]
    return Block(header, transactions, raw)


def serialize_block(header: BlockHeader, raw_transactions: list[bytes]) -> bytes:
    """Network serialisation of a block from its header and raw transactions, coinbase first."""
    return b"".join((header.serialize(), write_compact_size(len(raw_transactions)), *raw_transactions))
