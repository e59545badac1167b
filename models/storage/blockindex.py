"""Core's block index (blocks/index), read once from a copy when a store is made (SPEC 3.2).

Gives every header the node knows with its status and where its block lies. The copy is a checkpoint of ours: opening
it lets LevelDB recover it, which must never happen to the node's own directory.
"""

import struct
from pathlib import Path

import numpy as np
import plyvel

from models.coins.codec import UINT32_MAX, obfuscate, read_varint
from models.errors import StoreCorrupt, StoreError
from models.storage.coinsdb import leveldb_text, open_leveldb
from models.storage.reader import OBFUSCATION_KEY, parse_obfuscation_key
from models.wire.hashes import sha256d, to_display

__all__ = [
    "ENTRY",
    "FAILED",
    "FAILED_CHILD",
    "FAILED_MASK",
    "HAVE_DATA",
    "HAVE_UNDO",
    "parent_positions",
    "parse_record",
    "read_block_index",
    "spread_failure",
]

# Core: enum BlockStatus, chain.h
HAVE_DATA = 8
HAVE_UNDO = 16
FAILED = 32
FAILED_CHILD = 64
FAILED_MASK = FAILED | FAILED_CHILD

HEADER_SIZE = 80
INT32_MAX = 0x7FFF_FFFF
BLOCK_PREFIX = b"b"  # Core: DB_BLOCK_INDEX, node/blockstorage.cpp

#: One entry. Hashes are 32 bytes in internal order; file and positions are 0 where there are no data.
ENTRY = np.dtype(
    [
        ("hash", "V32"),
        ("height", "<i4"),
        ("status", "<u4"),
        ("n_tx", "<u4"),
        ("file", "<i4"),
        ("data_pos", "<u4"),
        ("undo_pos", "<u4"),
        ("header", "V80"),
    ]
)
_ENTRY = struct.Struct("<32siIIiII80s")


def parse_record(key: bytes, value: bytes) -> bytes:
    """One record as the bytes of an `ENTRY` (Core: CDiskBlockIndex, chain.h). Raises `StoreCorrupt`."""
    _, pos = read_varint(value, 0)  # a version nobody reads
    height, pos = read_varint(value, pos, INT32_MAX)
    status, pos = read_varint(value, pos, UINT32_MAX)
    n_tx, pos = read_varint(value, pos, UINT32_MAX)
    file = data_pos = undo_pos = 0
    if status & (HAVE_DATA | HAVE_UNDO):
        file, pos = read_varint(value, pos, INT32_MAX)
    if status & HAVE_DATA:
        data_pos, pos = read_varint(value, pos, UINT32_MAX)
    if status & HAVE_UNDO:
        undo_pos, pos = read_varint(value, pos, UINT32_MAX)
    header = value[pos : pos + HEADER_SIZE]
    if len(header) != HEADER_SIZE or sha256d(header) != key[1:]:
        raise StoreCorrupt(f"the record of block {to_display(key[1:])} does not hold its header")
    return _ENTRY.pack(key[1:], height, status, n_tx, file, data_pos, undo_pos, header)


def first_words(hashes: np.ndarray) -> np.ndarray:
    """The first eight bytes of each of n hashes (V32, contiguous or not) as numbers to sort and search by."""
    return np.ascontiguousarray(hashes).view("<u8").reshape(-1, 4)[:, 0]


def parent_positions(hashes: np.ndarray, parents: np.ndarray) -> np.ndarray:
    """For every parent hash its position in `hashes` (both V32), -1 where it is not among them."""
    words = first_words(hashes)
    order = np.argsort(words, kind="stable")
    wanted = first_words(parents)
    found = np.searchsorted(words[order], wanted)
    found[found == len(order)] = 0
    positions = order[found].astype(np.int64)
    same = hashes[positions] == parents
    # Two hashes that agree in eight bytes: rare enough to be looked at one by one.
    for i in np.flatnonzero(~same & (words[positions] == wanted)):
        equal = np.flatnonzero(hashes == parents[i])
        if len(equal):
            positions[i], same[i] = equal[0], True
    positions[~same] = -1
    return positions


def spread_failure(status: np.ndarray, parents: np.ndarray) -> None:
    """Marks every descendant of a failed block as failed, in place (Core: LoadBlockIndex, node/blockstorage.cpp).

    `parents` holds positions, -1 for none.
    """
    while True:
        failed = (status & FAILED_MASK) != 0
        inherits = ~failed & (parents >= 0) & failed[parents]
        if not inherits.any():
            return
        status[inherits] |= FAILED_CHILD


def read_block_index(path: Path) -> np.ndarray:
    """All entries of the block index in our copy `path`, sorted by height, as an array of `ENTRY`.

    Descendants of failed blocks are marked failed. Raises `StoreCorrupt` for damaged records, a block without its
    parent, or heights that do not follow each other; `StoreError` if there is no block at all.
    """
    packed = bytearray()
    db = open_leveldb(path)
    try:
        key = parse_obfuscation_key(db.get(OBFUSCATION_KEY, verify_checksums=True), path)
        plain = not any(key)
        with db.iterator(prefix=BLOCK_PREFIX, verify_checksums=True, fill_cache=False) as records:
            for record, value in records:
                packed += parse_record(record, value if plain else obfuscate(value, key))
    except plyvel.Error as error:
        raise StoreCorrupt(f"{path} is damaged: {leveldb_text(error)}") from error
    except StoreCorrupt as error:
        raise StoreCorrupt(f"{path} is damaged: {error}") from error
    finally:
        db.close()
    if not packed:
        raise StoreError(f"{path} holds no block at all: the node has not started up completely")
    entries = np.frombuffer(packed, dtype=ENTRY)
    entries = entries[np.lexsort((first_words(entries["hash"]), entries["height"]))]
    parents = parent_positions(entries["hash"], prev_hashes(entries["header"]))
    genesis = entries["height"] == 0
    if genesis.sum() != 1 or (parents[~genesis] < 0).any():
        raise StoreCorrupt(f"{path} is damaged: it has blocks without their parent")
    if (entries["height"][~genesis] != entries["height"][parents[~genesis]] + 1).any():
        raise StoreCorrupt(f"{path} is damaged: heights do not follow each other")
    spread_failure(entries["status"], parents)
    return entries


def prev_hashes(headers: np.ndarray) -> np.ndarray:
    """The parents' hashes (V32) of n headers (V80)."""
    columns = np.ascontiguousarray(headers).view(np.uint8).reshape(-1, HEADER_SIZE)
    return np.ascontiguousarray(columns[:, 4:36]).view("V32").reshape(-1)
