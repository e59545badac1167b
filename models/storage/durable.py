"""Writing so that a crash leaves either the old file or the new one, and never half of one."""

import os
from pathlib import Path

from models.storage.faults import fault_point

__all__ = ["fsync_path", "write_atomic"]

TEMPORARY = ".tmp"  # suffix of files that are being written; whatever bears it after a crash is rubbish


def fsync_path(path: Path) -> None:
    """Flushes a file, or a directory's entries, to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


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
