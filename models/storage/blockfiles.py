"""Core's block and undo files, blk*.dat and rev*.dat, read only (SPEC 3.4).

Every byte may be XORed with a key of 8 bytes by its absolute position in the file. Positions come from the block
index and point at the block itself, behind the magic and the size; nothing is ever found by scanning.
"""

import os
import re
from pathlib import Path

from models.coins.codec import KEY_SIZE, read_txout, read_varint
from models.coins.coin import Coin
from models.errors import DecodeError, StoreCorrupt, StoreError
from models.wire.compactsize import read_compact_size
from models.wire.hashes import sha256d

__all__ = ["MAGIC_SIZE", "BlockFiles", "parse_undo", "xor_at"]

MAGIC_SIZE = 4
PREFIX_SIZE = 8  # magic and size before every record
HASH_SIZE = 32
UINT32_MAX = 0xFFFF_FFFF
MAX_RECORD = 0x0200_0000  # in bytes; Core: MAX_SIZE, serialize.h
BLOCK_FILE = re.compile(r"blk\d{5,}\.dat\Z")


def xor_at(data: bytes, key: bytes, offset: int) -> bytes:
    """XORs bytes that lie at `offset` of a file with the file's key; its own inverse."""
    if not any(key):
        return data
    shift = offset % KEY_SIZE
    turned = key[shift:] + key[:shift]
    size = len(data)
    mask = int.from_bytes((turned * (size // KEY_SIZE + 1))[:size], "little")
    return (int.from_bytes(data, "little") ^ mask).to_bytes(size, "little")


def parse_undo(raw: bytes) -> list[list[Coin]]:
    """An undo record (CBlockUndo) -> for every transaction but the coinbase, the coins it spent, in input order.

    Raises `StoreCorrupt` where it is not exactly one record. Source: Core undo.h.
    """
    try:
        count, pos = read_compact_size(raw, 0)
        transactions: list[list[Coin]] = []
        for _ in range(count):
            inputs, pos = read_compact_size(raw, pos)
            coins: list[Coin] = []
            for _ in range(inputs):
                code, pos = read_varint(raw, pos, UINT32_MAX)
                if code >> 1:
                    _, pos = read_varint(raw, pos)  # where old versions kept the transaction's version
                value, script, pos = read_txout(raw, pos)
                coins.append(Coin(value, code >> 1, bool(code & 1), script))
            transactions.append(coins)
    except DecodeError as error:
        raise StoreCorrupt(f"undo record: {error}") from error
    if pos != len(raw):
        raise StoreCorrupt(f"undo record of {len(raw)} bytes has {len(raw) - pos} bytes too many")
    return transactions


class BlockFiles:
    """The blocks/ directory of a node. Files are opened for each read and never written."""

    def __init__(self, path: Path) -> None:
        """Reads xor.dat. Raises `StoreError` if that file has another size than 8 bytes."""
        self.path = path
        key_file = path / "xor.dat"
        self.key = key_file.read_bytes() if key_file.is_file() else bytes(KEY_SIZE)
        if len(self.key) != KEY_SIZE:
            raise StoreError(f"{key_file} has {len(self.key)} bytes instead of {KEY_SIZE}")

    def first_magic(self) -> bytes | None:
        """The network magic before the first block of the oldest file that has one; None without any block."""
        if not self.path.is_dir():
            return None
        for file in sorted(entry for entry in self.path.iterdir() if BLOCK_FILE.match(entry.name)):
            with file.open("rb") as handle:
                stored = handle.read(PREFIX_SIZE)
            magic = xor_at(stored, self.key, 0)[:MAGIC_SIZE]
            if len(magic) == MAGIC_SIZE and any(magic) and any(stored):
                return magic
        return None

    def _record(self, name: str, position: int, extra: int) -> tuple[bytes, bytes]:
        """The record whose data begin at `position`, and `extra` bytes behind it."""
        file = self.path / name
        start = position - PREFIX_SIZE
        if start < 0:
            raise StoreCorrupt(f"{file}: no record can begin at byte {position}")
        try:
            with file.open("rb") as handle:
                handle.seek(start)
                prefix = xor_at(handle.read(PREFIX_SIZE), self.key, start)
                size = int.from_bytes(prefix[MAGIC_SIZE:], "little")
                if len(prefix) < PREFIX_SIZE or not 0 < size <= MAX_RECORD:
                    raise StoreCorrupt(f"{file}: there is no record at byte {position}")
                if position + size + extra > os.fstat(handle.fileno()).st_size:  # before room for it is made
                    raise StoreCorrupt(f"{file}: the record at byte {position} is cut off")
                data = xor_at(handle.read(size + extra), self.key, position)
        except OSError as error:
            raise StoreError(f"cannot read {file}: {error.strerror}") from error
        if len(data) < size + extra:
            raise StoreCorrupt(f"{file}: the record at byte {position} is cut off")
        return data[:size], data[size:]

    def read_block(self, file: int, position: int, block_hash: bytes) -> bytes:
        """The bytes of a block with witnesses. Raises `StoreCorrupt` if another block lies there."""
        raw, _ = self._record(f"blk{file:05d}.dat", position, 0)
        if sha256d(raw[:80]) != block_hash:
            raise StoreCorrupt(f"{self.path}/blk{file:05d}.dat: the block at byte {position} is another one")
        return raw

    def read_undo(self, file: int, position: int, prev_hash: bytes) -> list[list[Coin]]:
        """The coins a block spent, as `parse_undo` gives them. Raises `StoreCorrupt` if the checksum is wrong.

        `prev_hash` is the hash of the block's parent, which the checksum covers.
        """
        raw, checksum = self._record(f"rev{file:05d}.dat", position, HASH_SIZE)
        if sha256d(prev_hash + raw) != checksum:
            raise StoreCorrupt(f"{self.path}/rev{file:05d}.dat: wrong checksum of the record at byte {position}")
        return parse_undo(raw)
