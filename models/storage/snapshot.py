"""UTXO snapshots as Core's `dumptxoutset` writes them, version 2 (SPEC 3.5): read as a stream, and written.

    "utxo" ff, u16 version, magic 4, base hash 32, u64 number of coins
    then per transaction: txid 32, CompactSize n, n times (CompactSize output number, coin as in the database, plain)

The file says nothing of the base block's height; whoever knows it can have the coins' heights checked.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from types import TracebackType

from models.coins.codec import encode_coin, read_coin
from models.coins.coin import Coin
from models.consensus.params import MAX_MONEY
from models.errors import DecodeError, NetworkMismatch, StoreCorrupt, StoreError
from models.storage.coinsdb import CoinsHasher
from models.storage.durable import TEMPORARY, fsync_path
from models.wire.compactsize import read_compact_size, write_compact_size
from models.wire.hashes import to_display

__all__ = ["SnapshotHeader", "SnapshotReader", "write_snapshot"]

SNAPSHOT_MAGIC = b"utxo\xff"
VERSION = 2
HEADER_SIZE = 5 + 2 + 4 + 32 + 8
COUNT_OFFSET = 5 + 2 + 4 + 32
CHUNK = 4 << 20  # in bytes, read at once
LARGEST_ITEM = 64 << 10  # in bytes: more than a coin with the largest spendable script takes
PROGRESS_STEP = 1 << 16  # coins between two calls of the progress callback
LAST_OUTPUT = 0xFFFF_FFFF  # an output number that stands for "none"

Progress = Callable[[int, int], None]  # coins done, coins in all


@dataclass(frozen=True, slots=True)
class SnapshotHeader:
    """The first 51 bytes."""

    magic: bytes  # of the network
    base_hash: bytes  # of the block whose coins these are, internal order
    coins: int


class SnapshotReader:
    """One pass over a snapshot file. After `coins` has ended, the whole file was checked, and the sums are there."""

    def __init__(self, path: Path | str, magic: bytes | None = None) -> None:
        """Reads the header. Raises `StoreError` for another kind of file or version, `NetworkMismatch` for another
        network than the one whose `magic` is given."""
        self.path = Path(path)
        self.max_height = 0  # the largest height of a coin seen so far
        self._hasher = CoinsHasher()
        try:
            self._handle = self.path.open("rb")
        except OSError as error:
            raise StoreError(f"cannot open {path}: {error.strerror}") from error
        try:
            self.header = self._read_header(magic)
        except BaseException:
            self._handle.close()
            raise
        self._buffer = b""
        self._pos = 0
        self._before = HEADER_SIZE  # bytes of the file in front of the buffer

    def _read_header(self, magic: bytes | None) -> SnapshotHeader:
        head = self._handle.read(HEADER_SIZE)
        if head[:5] != SNAPSHOT_MAGIC:
            raise StoreError(f"{self.path} is no UTXO snapshot as dumptxoutset writes it")
        version = int.from_bytes(head[5:7], "little")
        if len(head) >= 7 and version != VERSION:
            raise StoreError(f"{self.path} has snapshot version {version}; version {VERSION} is known")
        if len(head) < HEADER_SIZE:
            raise StoreCorrupt(f"{self.path} ends early, within its header")
        if magic is not None and head[7:11] != magic:
            raise NetworkMismatch(f"{self.path} is of the network with magic {head[7:11].hex()}, not {magic.hex()}")
        return SnapshotHeader(head[7:11], head[11:COUNT_OFFSET], int.from_bytes(head[COUNT_OFFSET:], "little"))

    @property
    def hash_serialized_3(self) -> str:
        """Display hex over all coins, once `coins` has ended."""
        return to_display(self._hasher.finish())

    @property
    def total_amount(self) -> int:
        """The satoshis of all coins seen so far."""
        return self._hasher.total_amount

    def _fill(self) -> None:
        """Makes sure that the next item is whole in the buffer, if the file has it."""
        if len(self._buffer) - self._pos >= LARGEST_ITEM:
            return
        more = self._handle.read(CHUNK)
        if more:
            self._before += self._pos
            self._buffer = self._buffer[self._pos :] + more
            self._pos = 0

    def _fault(self, text: str) -> StoreCorrupt:
        return StoreCorrupt(f"{self.path}, byte {self._before + self._pos}: {text}")

    def coins(self, base_height: int | None = None, progress: Progress | None = None) -> Iterator[tuple[bytes, Coin]]:
        """All (outpoint, coin), in database order.

        Raises `StoreCorrupt` naming the byte for what Core refuses when loading (`PopulateAndValidateSnapshot`,
        validation.cpp): a file that ends early or goes on, a coin above `base_height`, an amount out of range, a
        group larger than what is left; and for transactions out of order, which Core never writes.
        """
        left = self.header.coins
        txid = b""
        while left:
            txid, group = self._group_head(txid, left)
            seen: set[int] = set()
            for _ in range(group):
                outpoint, coin = self._coin(txid, base_height)
                seen.add(int.from_bytes(outpoint[32:], "little"))
                self._hasher.add(outpoint, coin)
                self.max_height = max(self.max_height, coin.height)
                left -= 1
                if progress and left % PROGRESS_STEP == 0:
                    progress(self.header.coins - left, self.header.coins)
                yield outpoint, coin
            if len(seen) != group:
                raise self._fault(f"transaction {to_display(txid)} has an output twice")
        self._fill()
        if self._pos < len(self._buffer):
            raise self._fault("there are bytes behind the last coin")

    def _group_head(self, before: bytes, left: int) -> tuple[bytes, int]:
        self._fill()
        txid = self._buffer[self._pos : self._pos + 32]
        if len(txid) < 32:
            raise self._fault(f"the file ends early: {left} coins are missing")
        if txid <= before:
            raise self._fault(f"transaction {to_display(txid)} is out of order")
        try:
            group, pos = read_compact_size(self._buffer, self._pos + 32)
        except DecodeError as error:
            raise self._fault(str(error)) from error
        if not 0 < group <= left:
            raise self._fault(f"transaction {to_display(txid)} has {group} coins, but {left} are left")
        self._pos = pos
        return txid, group

    def _coin(self, txid: bytes, base_height: int | None) -> tuple[bytes, Coin]:
        self._fill()
        try:
            vout, pos = read_compact_size(self._buffer, self._pos, range_check=False)
            coin, pos = read_coin(self._buffer, pos)
        except (DecodeError, StoreCorrupt) as error:
            raise self._fault(f"a coin of transaction {to_display(txid)} is cut off or damaged: {error}") from error
        if vout >= LAST_OUTPUT:
            raise self._fault(f"output number {vout} of transaction {to_display(txid)} is out of range")
        if base_height is not None and coin.height > base_height:
            raise self._fault(f"a coin of height {coin.height} is above the base block's height {base_height}")
        if not 0 <= coin.value <= MAX_MONEY:
            raise self._fault(f"a coin of {coin.value} satoshis is out of range")
        self._pos = pos
        return txid + vout.to_bytes(4, "little"), coin

    def close(self) -> None:
        """Closes the file."""
        self._handle.close()

    def __enter__(self) -> "SnapshotReader":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def write_snapshot(path: Path, magic: bytes, base_hash: bytes, coins: Iterable[tuple[bytes, Coin]]) -> int:
    """Writes a snapshot of coins that come in database order; returns how many there were.

    The file appears under its name when it is complete and on disk.
    """
    new = path.with_name(path.name + TEMPORARY)
    count = 0
    with new.open("wb") as handle:
        head = SNAPSHOT_MAGIC + VERSION.to_bytes(2, "little") + magic + base_hash
        handle.write(head + bytes(8))
        for txid, group in groupby(coins, key=lambda item: item[0][:32]):
            records = [
                write_compact_size(int.from_bytes(outpoint[32:], "little")) + encode_coin(coin)
                for outpoint, coin in group
            ]
            count += len(records)
            handle.write(b"".join((txid, write_compact_size(len(records)), *records)))
        handle.seek(COUNT_OFFSET)
        handle.write(count.to_bytes(8, "little"))
        handle.flush()
        os.fsync(handle.fileno())
    new.replace(path)
    fsync_path(path.parent)
    return count
