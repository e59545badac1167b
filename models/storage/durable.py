"""Writing so that a crash leaves either the old file or the new one, and never half of one."""

import os
from contextlib import suppress
from pathlib import Path

from models.errors import StoreError
from models.storage.faults import fault_point

__all__ = ["fsync_path", "probe_room", "write_at", "write_atomic"]

TEMPORARY = ".tmp"  # suffix of files that are being written; whatever bears it after a crash is rubbish


def fsync_path(path: Path) -> None:
    """Flushes a file, or a directory's entries, to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_at(handle: int, data: bytes, offset: int, path: Path) -> None:
    """Writes all of `data` at an offset of an open file, whose `path` is for the message. Raises `StoreError`."""
    try:
        while data:
            written = os.pwrite(handle, data, offset)  # a disk that fills up takes a part without a word
            data, offset = data[written:], offset + written
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror}") from error


def probe_room(directory: Path, size: int) -> None:
    """Raises `StoreError` if `size` bytes cannot be written to a file in `directory`; leaves nothing there."""
    probe = directory / f"room{TEMPORARY}"
    try:
        with probe.open("wb") as handle:
            handle.write(bytes(size))
            handle.flush()
            os.fsync(handle.fileno())
    except OSError as error:
        raise StoreError(f"cannot write to {directory}: {error.strerror}") from error
    finally:
        with suppress(OSError):
            probe.unlink()


def write_atomic(path: Path, *parts: bytes, place: str = "file") -> None:
    """Writes a file under a temporary name, flushes it, and renames it. `place` names its fault points."""
    new = path.with_name(path.name + TEMPORARY)
    with new.open("wb") as handle:
        for part in parts:
            handle.write(part)
        handle.flush()
        os.fsync(handle.fileno())
    fault_point(f"{place}.before_rename")
    new.replace(path)
    fsync_path(path.parent)
    fault_point(f"{place}.after_rename")
