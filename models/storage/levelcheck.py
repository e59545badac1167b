"""Checks the files of a LevelDB directory byte by byte, without LevelDB: every block and record against its checksum,
and that nothing lies between them that no checksum covers. The directory is only read, and nobody may be writing it.

    CURRENT            the name of the manifest
    MANIFEST-n, n.log  records in blocks of 32,768 bytes: crc32c 4, length u16, type 1, payload
    n.ldb              blocks, each with a type byte and a crc32c behind it; at the end 48 bytes that lead to the others

(LevelDB: doc/log_format.md, doc/table_format.md, db/version_edit.cc.) Checksums are computed for all blocks of a file
at once in numpy, since Python has no crc32c.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from models.errors import StoreCorrupt, StoreError
from models.storage.levelfiles import CURRENT, note_files

__all__ = ["LevelState", "check_log", "check_table", "crc32c", "crc32c_many", "read_state", "table_path"]

POLYNOMIAL = 0x82F63B78  # Castagnoli, reflected
MASK_DELTA = 0xA282EAD8  # LevelDB: util/crc32c.h, checksums of checksums are no good idea
CHUNK = 256  # bytes of one step of the combination

LOG_BLOCK = 32_768
LOG_HEADER = 7
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4

FOOTER = 48
TABLE_MAGIC = (0xDB4775248B80FB57).to_bytes(8, "little")
TRAILER = 5  # type byte and checksum behind each block
PLAIN, SNAPPY = 0, 1
COMPARATOR = b"leveldb.BytewiseComparator"


# crc32c ---------------------------------------------------------------------------------------------------------------


def _byte_table() -> np.ndarray:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> 1) ^ np.uint32(POLYNOMIAL), table >> 1).astype(np.uint32)
    return table


_TABLE = _byte_table()


def _advance(states: np.ndarray, count: int) -> np.ndarray:
    """Registers after `count` zero bytes."""
    for _ in range(count):
        states = _TABLE[states & 0xFF] ^ (states >> 8)
    return states


def _chunk_tables() -> list[np.ndarray]:
    """What CHUNK zero bytes make of each byte of a register: the operation is linear, so the four are added up."""
    return [_advance(np.arange(256, dtype=np.uint32) << np.uint32(8 * byte), CHUNK) for byte in range(4)]


_CHUNK_TABLES = _chunk_tables()
_PAIR_TABLE = _advance(np.arange(1 << 16, dtype=np.uint32), 2)  # two bytes at once


def _advance_chunk(states: np.ndarray) -> np.ndarray:
    tables = _CHUNK_TABLES
    return (
        tables[0][states & 0xFF]
        ^ tables[1][(states >> 8) & 0xFF]
        ^ tables[2][(states >> 16) & 0xFF]
        ^ tables[3][states >> 24]
    )


def crc32c_many(data: bytes, starts: Sequence[int], lengths: Sequence[int]) -> np.ndarray:
    """crc32c of pieces of `data`, each of at least four bytes, as u4.

    Every piece is cut into chunks from its end, all chunks are worked on together, and then put together.
    """
    pieces = len(starts)
    if not pieces:
        return np.zeros(0, np.uint32)
    counts = np.array([-(-length // CHUNK) for length in lengths], np.int64)
    first = np.concatenate(([0], np.cumsum(counts)))
    padded = np.zeros(int(first[-1]) * CHUNK, np.uint8)
    source = np.frombuffer(data, np.uint8)
    for number, (start, length) in enumerate(zip(starts, lengths, strict=True)):
        end = int(first[number + 1]) * CHUNK
        padded[end - length : end] = source[start : start + length]
        padded[end - length : end - length + 4] ^= 0xFF  # the register starts with all ones
    columns = np.ascontiguousarray(padded.view("<u2").reshape(-1, CHUNK // 2).T)
    chunks = np.zeros(columns.shape[1], np.uint32)
    for column in columns:
        chunks = _PAIR_TABLE.take((chunks & 0xFFFF) ^ column) ^ (chunks >> 16)
    order = np.argsort(-counts, kind="stable")
    states = np.zeros(pieces, np.uint32)
    for step in range(int(counts.max())):
        there = order[: int(np.count_nonzero(counts > step))]
        states[there] = _advance_chunk(states[there]) ^ chunks[first[there] + step]
    return ~states


def crc32c(data: bytes) -> int:
    """crc32c of at least four bytes."""
    return int(crc32c_many(data, [0], [len(data)])[0])


def _masked(checksums: np.ndarray) -> np.ndarray:
    """As LevelDB stores them."""
    return (((checksums >> 15) | (checksums << np.uint32(17))) + np.uint32(MASK_DELTA)).astype(np.uint32)


# Records --------------------------------------------------------------------------------------------------------------


def check_log(path: Path, may_end_early: bool = False) -> list[bytes]:
    """The records of a log or manifest. Raises StoreCorrupt naming the file and the byte.

    `may_end_early`: what is being written may end within its last record, as a crash also leaves it.
    """
    data = _read(path)
    pieces: list[tuple[int, int, int]] = []  # start of the header, length, type
    at = 0
    ended_early: int | None = None
    while at < len(data):
        room = LOG_BLOCK - at % LOG_BLOCK
        if room < LOG_HEADER:
            if any(data[at : at + room]):
                raise _fault(path, at, "the rest of a block is not empty")
            at += room
            continue
        length = int.from_bytes(data[at + 4 : at + 6], "little")
        if at + LOG_HEADER + length > len(data) or at + LOG_HEADER > len(data):
            ended_early = at
            break
        if LOG_HEADER + length > room:
            raise _fault(path, at, "a record goes on beyond its block")
        kind = data[at + 6]
        if not FULL <= kind <= LAST:
            raise _fault(path, at, f"a record of the unknown type {kind}")
        pieces.append((at, length, kind))
        at += LOG_HEADER + length
    _check_records(path, data, pieces)
    records, whole = _join(path, data, pieces)
    if (ended_early is not None or not whole) and not may_end_early:
        where = ended_early if ended_early is not None else len(data)
        raise _fault(path, where, "it ends within a record")
    return records


def _check_records(path: Path, data: bytes, pieces: list[tuple[int, int, int]]) -> None:
    short = [(at, length) for at, length, _ in pieces if length < 3]  # type and payload together are below four bytes
    for at, length in short:
        register = 0xFFFFFFFF
        for byte in data[at + 6 : at + LOG_HEADER + length]:
            register = int(_TABLE[(register ^ byte) & 0xFF]) ^ (register >> 8)
        wanted = int(_masked(np.array([register ^ 0xFFFFFFFF], np.uint32))[0])
        if wanted != int.from_bytes(data[at : at + 4], "little"):
            raise _fault(path, at, "the checksum of a record is wrong")
    long = [(at, length) for at, length, _ in pieces if length >= 3]
    found = _masked(crc32c_many(data, [at + 6 for at, _ in long], [length + 1 for _, length in long]))
    for (at, _), checksum in zip(long, found.tolist(), strict=True):
        if checksum != int.from_bytes(data[at : at + 4], "little"):
            raise _fault(path, at, "the checksum of a record is wrong")


def _join(path: Path, data: bytes, pieces: list[tuple[int, int, int]]) -> tuple[list[bytes], bool]:
    """Records of one or several pieces, and whether the last one is complete."""
    records: list[bytes] = []
    parts: list[bytes] = []
    inside = False
    for at, length, kind in pieces:
        if inside != (kind in (MIDDLE, LAST)):
            raise _fault(path, at, "the pieces of a record are out of order")
        parts.append(data[at + LOG_HEADER : at + LOG_HEADER + length])
        inside = kind in (FIRST, MIDDLE)
        if not inside:
            records.append(b"".join(parts))
            parts = []
    return records, not inside


# Tables ---------------------------------------------------------------------------------------------------------------


def check_table(path: Path, size: int) -> int:
    """Checks a table file of the size that the manifest names; its number of data blocks. Raises StoreCorrupt."""
    data = _read(path)
    if len(data) != size:
        raise StoreCorrupt(f"{path} has {len(data)} bytes, the manifest says {size}")
    if size < FOOTER or data[-8:] != TABLE_MAGIC:
        raise _fault(path, max(size - 8, 0), "it does not end as a table does")
    footer = data[-FOOTER:-8]
    meta_at, meta_size, pos = _handle(path, footer, 0)
    index_at, index_size, pos = _handle(path, footer, pos)
    if any(footer[pos:]):
        raise _fault(path, size - FOOTER + pos, "the end of the table holds what should be empty")
    end = size - FOOTER
    for at, length in ((meta_at, meta_size), (index_at, index_size)):
        if at + length + TRAILER > end:
            raise _fault(path, size - FOOTER, "a block would lie outside the file")
    _check_blocks(path, data, [(meta_at, meta_size), (index_at, index_size)])
    blocks = list(_entries(path, data, index_at, index_size))
    covered = sorted([*blocks, *_entries(path, data, meta_at, meta_size), (meta_at, meta_size), (index_at, index_size)])
    at = 0
    for start, length in covered:
        if start != at or start + length + TRAILER > end:
            raise _fault(path, at, "the blocks do not follow each other")
        at = start + length + TRAILER
    if at != end:
        raise _fault(path, at, "there are bytes that belong to no block")
    _check_blocks(path, data, covered)
    return len(blocks)


def _check_blocks(path: Path, data: bytes, blocks: Sequence[tuple[int, int]]) -> None:
    found = _masked(crc32c_many(data, [at for at, _ in blocks], [length + 1 for _, length in blocks]))
    for (at, length), checksum in zip(blocks, found.tolist(), strict=True):
        end = at + length + 1
        if checksum != int.from_bytes(data[end : end + 4], "little"):
            raise _fault(path, at, "the checksum of a block is wrong")
        if data[end - 1] != PLAIN:
            raise _fault(path, at, f"a block is compressed (type {data[end - 1]}), which Bitcoin Core cannot read")


def _handle(path: Path, data: bytes, pos: int) -> tuple[int, int, int]:
    at, pos = _varint(path, data, pos)
    size, pos = _varint(path, data, pos)
    return at, size, pos


def _varint(path: Path, data: bytes, pos: int) -> tuple[int, int]:
    value = shift = 0
    while pos < len(data) and shift < 64:
        byte = data[pos]
        value |= (byte & 0x7F) << shift
        pos += 1
        if byte < 0x80:
            return value, pos
        shift += 7
    raise StoreCorrupt(f"{path} is damaged: a number in it has no end")


def _entries(path: Path, data: bytes, at: int, size: int) -> Iterator[tuple[int, int]]:
    """The handles that an index block or the meta index block holds."""
    block = data[at : at + size]
    restarts = int.from_bytes(block[-4:], "little")
    end = size - 4 - 4 * restarts
    if end < 0:
        raise _fault(path, at, "an index block makes no sense")
    pos = 0
    while pos < end:
        _, pos = _varint(path, block, pos)
        unshared, pos = _varint(path, block, pos)
        length, pos = _varint(path, block, pos)
        value = block[pos + unshared : pos + unshared + length]
        start, count, used = _handle(path, value, 0)
        if used != length or pos + unshared + length > end:
            raise _fault(path, at, "an index block makes no sense")
        yield start, count
        pos += unshared + length


# The directory --------------------------------------------------------------------------------------------------------


@dataclass
class LevelState:
    """What a manifest says: the tables in use with their sizes in bytes, and from which log on the logs count."""

    manifest: str
    tables: dict[int, int] = field(default_factory=dict)
    log_number: int = 0
    previous_log: int = 0


def read_state(directory: Path, may_end_early: bool = False) -> LevelState:
    """The state that CURRENT and the manifest describe. Raises StoreCorrupt or StoreError naming the file.

    With `may_end_early` the manifest's last record may be cut off, as a crash leaves it, and counts for nothing.
    """
    current = directory / CURRENT
    if not current.is_file():
        raise StoreCorrupt(f"{current} is missing")
    try:
        note = note_files(directory)
    except FileNotFoundError as error:
        others = sorted(file.name for file in directory.glob("MANIFEST-*"))
        if others:
            named = Path(error.filename).name
            raise StoreCorrupt(f"{current} is damaged: it names {named}, and here is {others[0]}") from None
        raise StoreCorrupt(f"{error.filename} is missing, and {current} names it") from None
    except StoreError as error:
        raise StoreCorrupt(str(error)) from None
    if current.read_bytes() != note.manifest.encode() + b"\n":
        raise StoreCorrupt(f"{current} is damaged: it must hold a manifest's name and a line feed")
    state = LevelState(note.manifest)
    path = directory / note.manifest
    records = check_log(path, may_end_early)
    if not records:
        raise StoreCorrupt(f"{path} is empty")
    for record in records:
        _apply_edit(path, record, state)
    return state


def _apply_edit(path: Path, record: bytes, state: LevelState) -> None:
    """One change of the set of tables (LevelDB: VersionEdit)."""
    pos = 0

    def number() -> int:
        nonlocal pos
        value, pos = _varint(path, record, pos)
        return value

    def text() -> bytes:
        nonlocal pos
        size = number()
        pos += size
        if pos > len(record):
            raise StoreCorrupt(f"{path} is damaged: a record ends early")
        return record[pos - size : pos]

    while pos < len(record):
        tag = number()
        if tag == 1:
            comparator = text()
            if comparator != COMPARATOR:
                raise StoreCorrupt(f"{path} is of a database with another order of keys: {comparator!r}")
        elif tag == 2:
            state.log_number = number()
        elif tag in (3, 4):
            number()
        elif tag == 5:
            number()
            text()
        elif tag == 6:
            number()
            state.tables.pop(number(), None)
        elif tag == 7:
            number()
            table = number()
            state.tables[table] = number()
            text()
            text()
        elif tag == 9:
            state.previous_log = number()
        else:
            raise StoreCorrupt(f"{path} is damaged: a record has the unknown field {tag}")


def table_path(directory: Path, number: int) -> Path:
    """The file of a table: .ldb, or .sst as old versions named it."""
    old = directory / f"{number:06d}.sst"
    return old if old.is_file() else directory / f"{number:06d}.ldb"


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise StoreCorrupt(f"{path} is missing") from None
    except OSError as error:
        raise StoreCorrupt(f"{path} cannot be read: {error.strerror}") from None


def _fault(path: Path, at: int, what: str) -> StoreCorrupt:
    return StoreCorrupt(f"{path} is damaged at byte {at}: {what}")
