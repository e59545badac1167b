"""The coins database as its owner has it: LevelDB through plyvel, in Core's own format, with Core's options (SPEC 3.1).

A block is one synced batch, coins and best block together, so every state that a crash can leave is the state at some
tip. No key of ours is ever put into it. The owner is the only writer; readers are `models.storage.reader`.
"""

import errno
import hashlib
import os
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import plyvel

from models.coins.codec import COIN_PREFIX, KEY_SIZE, coin_key, decode_coin, encode_coin, obfuscate, outpoint_of_key
from models.coins.coin import Coin
from models.errors import CoinsReadError, StoreCorrupt, StoreError, StoreInUse
from models.storage.durable import probe_room, refused_text
from models.storage.faults import fault_point
from models.storage.levelcheck import read_state
from models.storage.levelfiles import CURRENT
from models.storage.reader import BEST_BLOCK_KEY, HEAD_BLOCKS_KEY, OBFUSCATION_KEY, parse_obfuscation_key
from models.wire.compactsize import write_compact_size
from models.wire.hashes import ZERO_HASH, to_display

__all__ = ["CoinsHasher", "CoinsOwner", "UtxoStats", "leveldb_text", "open_leveldb"]

LEGACY_COINS_PREFIX = b"c"  # Core: DB_COINS, before 0.15; Core takes any key from here on for one
WRITE_BUFFER = 4 << 20  # in bytes: a reader's open replays the whole log
BLOCK_CACHE = 4 << 20  # in bytes
BULK_BATCH = 16 << 20  # in bytes, for loading a whole set
RECOVERY_ROOM = WRITE_BUFFER + (1 << 20)  # in bytes: an open writes the log's coins to a table, and a new manifest

_LOCK_HELD = ("already held by process", os.strerror(errno.EAGAIN))

_open_paths: set[str] = set()
_open_paths_lock = threading.Lock()


def leveldb_text(error: Exception) -> str:
    """What LevelDB says; plyvel passes its texts on as bytes."""
    return " ".join(part.decode("utf-8", "replace") if isinstance(part, bytes) else str(part) for part in error.args)


def open_leveldb(path: Path, create: bool = False) -> Any:
    """Opens a LevelDB directory of ours read-write, with Core's options (dbwrapper.cpp `GetOptions`).

    Raises `StoreInUse` if another process has it open, `StoreCorrupt` if it is damaged, `StoreError` otherwise.
    """
    try:
        return plyvel.DB(
            str(path),
            create_if_missing=create,
            error_if_exists=create,
            paranoid_checks=True,
            write_buffer_size=WRITE_BUFFER,
            max_open_files=1000,
            lru_cache_size=BLOCK_CACHE,
            block_size=4096,
            block_restart_interval=16,
            max_file_size=32 << 20,
            bloom_filter_bits=10,
            compression=None,  # plyvel's default, Snappy, is unreadable for Core
        )
    except plyvel.CorruptionError as error:
        raise StoreCorrupt(f"{path} is damaged: {leveldb_text(error)}; import the store again") from error
    except plyvel.Error as error:
        text = leveldb_text(error)
        if text.startswith("IO error: lock ") and any(held in text for held in _LOCK_HELD):
            raise StoreInUse(f"{path} is in use by another process; stop it, or connect to it") from error
        raise refused_text(path, "open", text) from error


def _check_log_is_there(path: Path) -> None:
    """The log that the manifest names. LevelDB makes it before it says so, and goes on without it in silence: with
    older coins if it was removed, with wrong ones if the manifest is one from before."""
    state = read_state(path, may_end_early=True)
    file = path / f"{state.log_number:06d}.log"
    if state.log_number and not file.is_file():  # none is named in a database that was repaired and not opened since
        raise StoreCorrupt(
            f"{file} is missing, or {path / state.manifest}, which names it, was cut; import the store again"
        )


@dataclass(frozen=True, slots=True)
class UtxoStats:
    """What Core's `gettxoutsetinfo` says about a set of coins."""

    best_block: bytes  # internal order
    txouts: int
    total_amount: int  # in satoshis
    hash_serialized_3: str  # display hex


class CoinsHasher:
    """Computes `hash_serialized_3` over coins in database order (Core: kernel/coinstats.cpp, HASH_SERIALIZED).

    Core hashes the outputs of one transaction by number, which differs from key order from output 16,512 on; so one
    transaction's coins are held back until the next begins.
    """

    def __init__(self) -> None:
        self.txouts = 0
        self.total_amount = 0  # in satoshis
        self._sha = hashlib.sha256()
        self._txid = b""
        self._group: list[tuple[int, bytes]] = []

    def add(self, outpoint: bytes, coin: Coin) -> None:
        """Takes the next coin; all coins of one transaction must follow each other."""
        if outpoint[:32] != self._txid:
            self._flush()
            self._txid = outpoint[:32]
        self.txouts += 1
        self.total_amount += coin.value
        self._group.append(
            (
                int.from_bytes(outpoint[32:], "little"),
                outpoint
                + (coin.height << 1 | coin.coinbase).to_bytes(4, "little")
                + coin.value.to_bytes(8, "little", signed=True)
                + write_compact_size(len(coin.script))
                + coin.script,
            )
        )

    def _flush(self) -> None:
        if len(self._group) > 1:
            self._group.sort()
        self._sha.update(b"".join(record for _, record in self._group))
        self._group.clear()

    def finish(self) -> bytes:
        """The hash over all coins taken so far, 32 bytes in internal order."""
        self._flush()
        return hashlib.sha256(self._sha.digest()).digest()


class CoinsOwner:
    """The one writer of a coins database. Reads verify checksums and raise `CoinsReadError`, never answer "absent"."""

    def __init__(self, path: Path | str, create: bool = False) -> None:
        """Opens the database; with `create` makes an empty one, with a random obfuscation key as Core does.

        Raises `StoreInUse` if it is open already, here or elsewhere, `StoreError` for a database that is unfinished,
        older than Core 0.15, or of a form we do not know, `StoreCorrupt` for a damaged one.
        """
        self.path = Path(path)
        self.failed = ""  # why the last write failed; nothing more is written then, see `recover`
        self._real_path = os.path.realpath(self.path)
        if not create and not (self.path / CURRENT).is_file():
            raise StoreError(f"{path} is no coins database: it has no file CURRENT")
        with _open_paths_lock:
            if self._real_path in _open_paths:
                raise StoreInUse(f"{path} is open already in this process")
            _open_paths.add(self._real_path)
        self._db: Any = None
        try:
            if not create:
                _check_log_is_there(self.path)
            self._db = open_leveldb(self.path, create)
            if create:
                self._db.put(OBFUSCATION_KEY, bytes((KEY_SIZE,)) + os.urandom(KEY_SIZE), sync=True)
            self.xor_key = parse_obfuscation_key(self._read(OBFUSCATION_KEY), self.path)
            self.best_block = ZERO_HASH if create else self._load_best_block()
        except BaseException:
            self.close()
            raise

    def _load_best_block(self) -> bytes:
        if self._read(HEAD_BLOCKS_KEY) is not None:
            raise StoreError(
                f"{self.path} lies between two tips (record H): the node was writing it or died over it; "
                "import again once the node has finished, or start and stop the node first"
            )
        with self._db.iterator(start=LEGACY_COINS_PREFIX, include_value=False) as keys:
            if next(keys, None) is not None:
                raise StoreError(
                    f"{self.path} was written by Bitcoin Core before 0.15: upgrade it with a later Core first"
                )
        value = self._read(BEST_BLOCK_KEY)
        if value is None:
            raise StoreError(f"{self.path} holds no best block (record B): it is empty or was never completed")
        best_block = obfuscate(value, self.xor_key)
        if len(best_block) != 32:
            raise StoreCorrupt(f"{self.path}: the best block record has {len(best_block)} bytes instead of 32")
        return best_block

    def _read(self, key: bytes) -> bytes | None:
        if self._db is None:
            raise CoinsReadError(f"{self.path} is closed")
        try:
            return self._db.get(key, verify_checksums=True)
        except (plyvel.Error, RuntimeError) as error:  # RuntimeError: closed under us
            raise CoinsReadError(f"cannot read {self.path}: {leveldb_text(error)}") from error

    def get_raw(self, key: bytes) -> bytes | None:
        """The value (still obfuscated) under a database key, None if it is absent. Raises `CoinsReadError`."""
        return self._read(key)

    def get(self, outpoint: bytes) -> Coin | None:
        """The coin of an outpoint of 36 bytes, None if it is absent. Raises `CoinsReadError`."""
        value = self._read(coin_key(outpoint))
        if value is None:
            return None
        try:
            return decode_coin(obfuscate(value, self.xor_key))
        except StoreCorrupt as error:
            raise CoinsReadError(f"cannot read {self.path}: {leveldb_text(error)}") from error

    def has(self, outpoint: bytes) -> bool:
        """Whether the coin of an outpoint is unspent. Raises `CoinsReadError`."""
        return self._read(coin_key(outpoint)) is not None

    def apply(self, spent: Iterable[bytes], created: Iterable[tuple[bytes, Coin]], best_block: bytes) -> None:
        """Removes the coins of `spent` (outpoints), adds `created` and moves the best block: one synced batch.

        When it returns, all of it is on disk; whatever happens before, none of it is. Where an outpoint is in both,
        it is created. Raises `StoreError` if it cannot be written.
        """
        key = self.xor_key
        batch = self._batch()
        for outpoint in spent:
            batch.delete(coin_key(outpoint))
        for outpoint, coin in created:
            batch.put(coin_key(outpoint), obfuscate(encode_coin(coin), key))
        batch.put(BEST_BLOCK_KEY, obfuscate(best_block, key))
        fault_point("coins.before_batch")
        self._write(batch)
        fault_point("coins.after_batch")
        self.best_block = best_block

    def bulk_load(self, coins: Iterable[tuple[bytes, Coin]], best_block: bytes) -> None:
        """Fills an empty database with a whole set, in batches, the best block last.

        Until it returns the database has no best block and nobody serves it. Fast when coins come in key order.
        """
        key = self.xor_key
        batch = self._batch()
        size = 0
        for outpoint, coin in coins:
            value = obfuscate(encode_coin(coin), key)
            batch.put(coin_key(outpoint), value)
            size += len(value) + 40
            if size >= BULK_BATCH:
                self._write(batch)
                fault_point("coins.bulk_batch")
                batch = self._batch()
                size = 0
        batch.put(BEST_BLOCK_KEY, obfuscate(best_block, key))
        self._write(batch)
        self.best_block = best_block

    def _batch(self) -> Any:
        if self._db is None:
            raise StoreError(f"{self.path} is closed")
        return self._db.write_batch(sync=True)

    def _write(self, batch: Any) -> None:
        if self.failed:
            raise StoreError(f"cannot write {self.path} after an earlier write failed: {self.failed}")
        try:
            batch.write()
        except (plyvel.Error, RuntimeError) as error:
            self.failed = leveldb_text(error)
            raise refused_text(self.path, "write", self.failed) from error

    def recover(self) -> None:
        """After a write that failed: opens the database anew, which sees how much of it reached the log.

        LevelDB would go on behind the half of a record that a full disk has left in its log, and refuse, or lose, all
        that comes after it when it opens the next time. Reads go on until there is room. Raises `StoreError` if there
        is none yet; `best_block` may be that of the write that failed.
        """
        probe_room(self.path, RECOVERY_ROOM)
        if self._db is not None:
            self._db.close()
            self._db = None
        self._db = open_leveldb(self.path)
        self.best_block = self._load_best_block()
        self.failed = ""

    def iterate(self) -> Iterator[tuple[bytes, Coin]]:
        """All (outpoint, coin) in key order, as they are at the first step. Raises `CoinsReadError`."""
        if self._db is None:
            raise CoinsReadError(f"{self.path} is closed")
        yield from self._iterate(self._db)

    def _iterate(self, source: Any) -> Iterator[tuple[bytes, Coin]]:
        key = self.xor_key
        try:
            with source.iterator(prefix=COIN_PREFIX, verify_checksums=True, fill_cache=False) as records:
                for record, value in records:
                    yield outpoint_of_key(record), decode_coin(obfuscate(value, key))
        except (plyvel.Error, RuntimeError, StoreCorrupt) as error:
            raise CoinsReadError(f"cannot read {self.path}: {leveldb_text(error)}") from error

    def utxo_stats(self) -> UtxoStats:
        """Counts and hashes the whole set at one moment, in bounded memory. Raises `CoinsReadError`."""
        if self._db is None:
            raise CoinsReadError(f"{self.path} is closed")
        with self._db.snapshot() as snapshot:
            best = snapshot.get(BEST_BLOCK_KEY, verify_checksums=True)
            if best is None:
                raise CoinsReadError(f"{self.path} has no best block yet")
            hasher = CoinsHasher()
            for outpoint, coin in self._iterate(snapshot):
                hasher.add(outpoint, coin)
        digest = hasher.finish()
        return UtxoStats(obfuscate(best, self.xor_key), hasher.txouts, hasher.total_amount, to_display(digest))

    def close(self) -> None:
        """Closes the database and gives up its lock. Harmless when closed already."""
        if self._db is not None:
            self._db.close()
            self._db = None
        with _open_paths_lock:
            _open_paths.discard(self._real_path)

    def __enter__(self) -> "CoinsOwner":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
