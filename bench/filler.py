"""Millions of coins in standard serialisation, for a database as large as a real one. Keys are made in order, prefix by
prefix, whole columns at a time, so that LevelDB sorts nothing and compacts nothing: 130 million take some minutes.

They are a function of the seed. Nothing here decides what else the database holds: coins to be hidden among the filler
are merged in, and the record of the best block comes last.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import plyvel

from models.coins.codec import COIN_PREFIX, KEY_SIZE, obfuscate
from models.storage.coinsdb import CoinsOwner, open_leveldb
from models.storage.reader import BEST_BLOCK_KEY

__all__ = ["BYTES_PER_COIN", "FIRST_HEIGHT", "filler_chunks", "load_filler", "region_count"]

BYTES_PER_COIN = 75  # on disk, about
PREFIXES = 256  # chunks, by the first byte of the txid
FIRST_HEIGHT = 64  # of a filler coin: from here on the height takes two bytes, as on any real chain
WRITE_BUFFER = 48 << 20  # bytes; one such buffer becomes one table of about 32 MiB, the size that Core's tables have
BATCH = 50_000  # records
REGION = 2 << 20  # bytes
FIRST_KEY = COIN_PREFIX + bytes(33)
BEHIND_COINS = b"D"

Progress = Callable[[int, int], None]

#: Share of the coins, stored form before the payload (type or size, then template bytes), payload bytes (SPEC 3.1).
SCRIPTS: tuple[tuple[float, bytes, int], ...] = (
    (0.40, b"\x1c\x00\x14", 20),  # P2WPKH: 22 bytes, size 28 with the six special types
    (0.25, b"\x00", 20),  # P2PKH
    (0.15, b"\x01", 20),  # P2SH
    (0.20, b"\x28\x51\x20", 32),  # P2TR
)


def _varint(numbers: np.ndarray, size: int) -> np.ndarray:
    """Core's VARINT of numbers that all take `size` bytes, as rows of bytes."""
    rows = np.empty((len(numbers), size), np.uint8)
    rest = numbers.astype(np.int64)
    for at in range(size - 1, -1, -1):
        rows[:, at] = (rest & 0x7F) | (0x80 if at < size - 1 else 0)
        rest = (rest >> 7) - 1
    return rows


def _amounts(rng: np.random.Generator, count: int) -> np.ndarray:
    """Compressed amounts whose VARINT takes four bytes: 0.0235 to 3 BTC, about."""
    whole = rng.integers(235_000, 3_000_000, count)
    return 1 + 10 * (9 * whole + rng.integers(0, 9, count)) + rng.integers(0, 2, count)


def _keys(rng: np.random.Generator, prefix: int, count: int) -> list[bytes]:
    rows = np.empty((count, 34), np.uint8)
    rows[:, 0] = COIN_PREFIX[0]
    rows[:, 1] = prefix
    rows[:, 2:33] = np.frombuffer(rng.bytes(31 * count), np.uint8).reshape(count, 31)
    rows[:, 33] = rng.integers(0, 4, count)
    order = np.argsort(np.ascontiguousarray(rows[:, 2:10]).view(">u8").ravel().astype(np.uint64))
    return np.ascontiguousarray(rows[order]).view("V34").ravel().tolist()


def _values(rng: np.random.Generator, count: int, tip_height: int, xor_key: bytes) -> np.ndarray:
    """Stored values, obfuscated, as an array of bytes objects."""
    values = np.empty(count, object)
    kinds = rng.choice(len(SCRIPTS), count, p=[share for share, _, _ in SCRIPTS])
    for kind, (_, head, payload) in enumerate(SCRIPTS):
        at = np.flatnonzero(kinds == kind)
        codes = rng.integers(FIRST_HEIGHT, tip_height + 1, len(at)) << 1
        size = 6 + len(head) + payload
        rows = np.empty((len(at), size), np.uint8)
        rows[:, :2] = _varint(codes, 2)
        rows[:, 2:6] = _varint(_amounts(rng, len(at)), 4)
        rows[:, 6 : 6 + len(head)] = np.frombuffer(head, np.uint8)
        rows[:, 6 + len(head) :] = np.frombuffer(rng.bytes(payload * len(at)), np.uint8).reshape(len(at), payload)
        rows ^= np.frombuffer((xor_key * (size // KEY_SIZE + 1))[:size], np.uint8)
        values[at] = rows.view(f"V{size}").ravel().tolist()
    return values


def filler_chunks(
    seed: str, count: int, tip_height: int, xor_key: bytes
) -> Iterator[tuple[int, list[bytes], list[bytes]]]:
    """(first byte of the txids, database keys in order, obfuscated values) of `count` coins, a chunk at a time.

    Heights run from FIRST_HEIGHT to `tip_height`, which must not be lower.
    """
    for prefix in range(PREFIXES):
        share = count // PREFIXES + (prefix < count % PREFIXES)
        start = int.from_bytes(sha256(f"{seed}/filler/{prefix}".encode()).digest()[:16], "little")
        rng = np.random.Generator(np.random.Philox(key=start))
        keys = _keys(rng, prefix, share)
        yield prefix, keys, _values(rng, share, tip_height, xor_key).tolist()


def _open_for_loading(path: Path) -> Any:
    """As `open_leveldb`, but with a write buffer that makes large tables."""
    return plyvel.DB(
        str(path),
        paranoid_checks=True,
        write_buffer_size=WRITE_BUFFER,
        max_open_files=1000,
        block_size=4096,
        block_restart_interval=16,
        max_file_size=32 << 20,
        bloom_filter_bits=10,
        compression=None,
    )


def load_filler(
    path: Path,
    seed: str,
    count: int,
    tip_height: int,
    hidden: Mapping[bytes, bytes],
    best_block: bytes,
    progress: Progress | None = None,
) -> None:
    """Makes the coins database `path` of `count` filler coins and the `hidden` ones (database key -> plain value).

    Until the best block is written, last of all, nobody takes it for a database of coins.
    """
    with CoinsOwner(path, create=True) as owner:
        xor_key = owner.xor_key
    by_prefix: dict[int, list[tuple[bytes, bytes]]] = {}
    for key in sorted(hidden):
        by_prefix.setdefault(key[1], []).append((key, obfuscate(hidden[key], xor_key)))
    database = _open_for_loading(path)
    done = 0
    for prefix, keys, values in filler_chunks(seed, count, tip_height, xor_key):
        for key, value in by_prefix.get(prefix, []):
            at = bisect_left(keys, key)
            keys.insert(at, key)
            values.insert(at, value)
        for start in range(0, len(keys), BATCH):
            batch = database.write_batch()
            put = batch.put
            for key, value in zip(keys[start : start + BATCH], values[start : start + BATCH], strict=True):
                put(key, value)
            batch.write()
        done += len(keys)
        if progress:
            progress(done, count + len(hidden))
    database.close()
    # Opening it again turns what is left of the log into a table of its own; the best block follows in another, so that
    # no table spans all keys and would be merged with all others.
    database = _open_for_loading(path)
    database.compact_range(start=COIN_PREFIX + b"\xff", stop=BEHIND_COINS)
    database.put(BEST_BLOCK_KEY, obfuscate(best_block, xor_key), sync=True)
    database.close()
    open_leveldb(path).close()


def region_count(database: Any, keys: list[bytes]) -> tuple[int, int]:
    """(distinct regions of 2 MiB that the keys lie in, regions in all), by LevelDB's own estimate of where keys are."""
    touched = {database.approximate_size(FIRST_KEY, key) // REGION for key in keys}
    return len(touched), -(-database.approximate_size(FIRST_KEY, BEHIND_COINS) // REGION)
