"""Bodies and undo data of recent blocks and of branches, one file each, in the store's index/ directory.

    blocks/<hash>.blk    "TXCBLCK1", SHA-256 of the rest, the block with witnesses
    undo/<hash>.undo     "TXCUNDO1", SHA-256 of the rest, msgpack: per transaction but the coinbase a list of
                         [value, height, coinbase, script], one per input

Names bear the display form of the block hash. Undoing a block with a damaged body would spoil the coins, so every read
checks the whole file.
"""

import hashlib
import logging
from collections.abc import Collection, Sequence
from pathlib import Path

import msgpack

from models.coins.codec import UINT64_MAX
from models.coins.coin import Coin
from models.errors import StoreCorrupt
from models.storage.durable import TEMPORARY, disk_error, disk_errors, write_atomic
from models.wire.hashes import from_display, sha256d, to_display

__all__ = ["BlockArchive"]

BLOCK_MAGIC = b"TXCBLCK1"
UNDO_MAGIC = b"TXCUNDO1"
PREFIX_SIZE = 8 + 32
HEADER_SIZE = 80
INT32_MAX = 0x7FFF_FFFF

log = logging.getLogger(__name__)


def _coin_of(value: int, height: int, coinbase: bool, script: bytes) -> Coin:
    """The coin of a row. Raises TypeError or ValueError for anything that was never written."""
    if not (type(value) is type(height) is int and type(coinbase) is bool and type(script) is bytes):
        raise TypeError("a row is no coin")
    if not (0 <= value <= UINT64_MAX and 0 <= height <= INT32_MAX):
        raise ValueError(f"a coin of {value} satoshis at height {height}")
    return Coin(value, height, coinbase, script)


class BlockArchive:
    """Block bodies and undo data by block hash (internal order)."""

    def __init__(self, path: Path | str, write: bool = True) -> None:
        """Opens the two directories below `path`; with `write` makes them, and removes what a crash left half done."""
        self._blocks = Path(path) / "blocks"
        self._undo = Path(path) / "undo"
        if not write:
            return
        for directory in (self._blocks, self._undo):
            with disk_errors(directory, "write to"):
                directory.mkdir(parents=True, exist_ok=True)
                for left in directory.glob(f"*{TEMPORARY}"):
                    log.info("removing %s, which a crash left behind", left)
                    left.unlink()

    def _block_file(self, block_hash: bytes) -> Path:
        return self._blocks / f"{to_display(block_hash)}.blk"

    def _undo_file(self, block_hash: bytes) -> Path:
        return self._undo / f"{to_display(block_hash)}.undo"

    @staticmethod
    def _put(file: Path, magic: bytes, payload: bytes, place: str) -> None:
        write_atomic(file, magic, hashlib.sha256(payload).digest(), payload, place=place)

    @staticmethod
    def _get(file: Path, magic: bytes) -> bytes | None:
        try:
            stored = file.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise disk_error(file, "read", error) from error
        payload = stored[PREFIX_SIZE:]
        if stored[:8] != magic or stored[8:PREFIX_SIZE] != hashlib.sha256(payload).digest():
            raise StoreCorrupt(f"{file} is damaged: its checksum is wrong")
        return payload

    def put_block(self, raw: bytes) -> bytes:
        """Stores a block (network serialisation with witnesses) and returns its hash. On disk when it returns."""
        block_hash = sha256d(raw[:HEADER_SIZE])
        if not self.has_block(block_hash):
            self._put(self._block_file(block_hash), BLOCK_MAGIC, raw, "archive.block")
        return block_hash

    def get_block(self, block_hash: bytes) -> bytes | None:
        """The block, None if it is not kept. Raises `StoreCorrupt` naming the file if it is damaged."""
        file = self._block_file(block_hash)
        raw = self._get(file, BLOCK_MAGIC)
        if raw is not None and sha256d(raw[:HEADER_SIZE]) != block_hash:
            raise StoreCorrupt(f"{file} holds another block")
        return raw

    def put_undo(self, block_hash: bytes, spent: Sequence[Sequence[Coin]]) -> None:
        """Stores the coins a block spent: per transaction but the coinbase, in input order. On disk when it returns."""
        rows = [[(coin.value, coin.height, coin.coinbase, coin.script) for coin in coins] for coins in spent]
        self._put(self._undo_file(block_hash), UNDO_MAGIC, msgpack.packb(rows), "archive.undo")

    def get_undo(self, block_hash: bytes) -> list[list[Coin]] | None:
        """What `put_undo` stored, None if it is not kept. Raises `StoreCorrupt` naming the file if it is damaged."""
        file = self._undo_file(block_hash)
        payload = self._get(file, UNDO_MAGIC)
        if payload is None:
            return None
        try:
            return [[_coin_of(*row) for row in coins] for coins in msgpack.unpackb(payload)]
        except (ValueError, TypeError, msgpack.UnpackException) as error:
            raise StoreCorrupt(f"{file} is damaged: it holds no undo data ({error})") from None

    def has_block(self, block_hash: bytes) -> bool:
        """Whether the body of a block is kept."""
        return self._block_file(block_hash).is_file()

    def has_undo(self, block_hash: bytes) -> bool:
        """Whether the undo data of a block are kept."""
        return self._undo_file(block_hash).is_file()

    def hashes(self) -> set[bytes]:
        """The hashes of all blocks whose body is kept."""
        return {from_display(file.stem) for file in self._blocks.glob("*.blk")}

    def prune(self, keep: Collection[bytes]) -> int:
        """Removes every body and undo record whose block hash is not in `keep`; returns how many files went."""
        names = {to_display(block_hash) for block_hash in keep}
        gone = [file for file in (*self._blocks.glob("*.blk"), *self._undo.glob("*.undo")) if file.stem not in names]
        for file in gone:
            file.unlink(missing_ok=True)
        return len(gone)

    def drop(self, block_hash: bytes) -> None:
        """Removes one block's body and undo record; harmless when they are not kept."""
        self._block_file(block_hash).unlink(missing_ok=True)
        self._undo_file(block_hash).unlink(missing_ok=True)
