"""Core's mempool.dat, versions 1 and 2 (SPEC 3.3): candidates for a mempool, not a valid one.

Entries can be in conflict, expired or invalid on today's chain; their order is usually parents first, and nobody may
rely on it. A file that ends early keeps what was whole, as in Core.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from models.errors import DecodeError, StoreError
from models.storage.blockfiles import xor_at
from models.storage.durable import write_atomic
from models.wire.compactsize import read_compact_size, write_compact_size
from models.wire.transaction import parse_transaction

__all__ = ["MempoolDump", "MempoolEntry", "check_version", "read_mempool", "write_mempool"]

PLAIN_VERSION = 1
XOR_VERSION = 2
VERSION_SIZE = 8
KEY_SIZE = 8


@dataclass(frozen=True, slots=True)
class MempoolEntry:
    """One transaction as it was dumped."""

    raw: bytes  # with witness
    time: int  # when it entered the mempool, Unix seconds
    fee_delta: int  # in satoshis, by prioritisetransaction


@dataclass(slots=True)
class MempoolDump:
    """What a mempool.dat held."""

    version: int
    entries: list[MempoolEntry] = field(default_factory=list)
    fee_deltas: dict[bytes, int] = field(default_factory=dict)  # txid -> satoshis, of transactions not in the mempool
    unbroadcast: list[bytes] = field(default_factory=list)  # txids
    truncated: int | None = None  # the byte of the file at which it ends early or stops making sense
    warnings: list[str] = field(default_factory=list)


def _version(head: bytes, path: Path) -> int:
    if len(head) < VERSION_SIZE:
        return 0
    version = int.from_bytes(head, "little")
    if version not in (PLAIN_VERSION, XOR_VERSION):
        raise StoreError(
            f"{path} has version {version}; versions {PLAIN_VERSION} and {XOR_VERSION} are known. "
            "Move the file away to go on without the node's mempool"
        )
    return version


def check_version(path: Path) -> None:
    """Raises `StoreError` if the file is of a version we do not know."""
    with path.open("rb") as handle:
        _version(handle.read(VERSION_SIZE), path)


def _take(buf: bytes, pos: int, size: int) -> tuple[bytes, int]:
    if pos + size > len(buf):
        raise DecodeError(f"end of data at byte {pos}: {size} bytes were expected")
    return buf[pos : pos + size], pos + size


def _take_number(buf: bytes, pos: int) -> tuple[int, int]:
    data, pos = _take(buf, pos, 8)
    return int.from_bytes(data, "little", signed=True), pos


def read_mempool(path: Path) -> MempoolDump:
    """Reads a mempool.dat. Raises `StoreError` for an unknown version or an unreadable file.

    Whatever is whole before the first damage is returned; `truncated` and `warnings` then say where it ends.
    """
    try:
        stored = path.read_bytes()
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error}") from error
    dump = MempoolDump(_version(stored[:VERSION_SIZE], path))
    pos = VERSION_SIZE
    buf = stored
    count = done = 0
    try:
        if dump.version == 0:
            raise DecodeError(f"end of data: a version takes {VERSION_SIZE} bytes")
        if dump.version == XOR_VERSION:
            size, pos = read_compact_size(stored, pos)
            if size != KEY_SIZE:
                raise DecodeError(f"a key of {size} bytes instead of {KEY_SIZE}")
            key, pos = _take(stored, pos, KEY_SIZE)
            buf = stored[:pos] + xor_at(stored[pos:], key, pos)
        data, pos = _take(buf, pos, 8)
        count = int.from_bytes(data, "little")
        while done < count:
            tx, after = parse_transaction(buf, pos)
            time, after = _take_number(buf, after)
            fee_delta, after = _take_number(buf, after)
            dump.entries.append(MempoolEntry(tx.raw, time, fee_delta))
            pos = after
            done += 1
        number, pos = read_compact_size(buf, pos)
        for _ in range(number):
            txid, after = _take(buf, pos, 32)
            dump.fee_deltas[txid], pos = _take_number(buf, after)
        number, pos = read_compact_size(buf, pos)
        for _ in range(number):
            txid, pos = _take(buf, pos, 32)
            dump.unbroadcast.append(txid)
    except DecodeError as error:
        dump.truncated = min(pos, len(stored))
        dump.warnings.append(
            f"{path} ends early at byte {dump.truncated} ({error}): {done} of {count} transactions were whole"
        )
    return dump


def write_mempool(path: Path, entries: Sequence[MempoolEntry]) -> None:
    """Writes a mempool.dat of version 2 with a fresh key; the old file stays until the new one is on disk."""
    key = os.urandom(KEY_SIZE)
    payload = b"".join(
        (
            len(entries).to_bytes(8, "little"),
            *(
                entry.raw
                + entry.time.to_bytes(8, "little", signed=True)
                + entry.fee_delta.to_bytes(8, "little", signed=True)
                for entry in entries
            ),
            write_compact_size(0),
            write_compact_size(0),
        )
    )
    head = XOR_VERSION.to_bytes(VERSION_SIZE, "little") + write_compact_size(KEY_SIZE) + key
    write_atomic(path, head, xor_at(payload, key, len(head)), place="mempool")
