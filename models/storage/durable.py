"""Writing so that a crash leaves either the old file or the new one, and never half of one."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from models.errors import StoreError, StoreUnwritable
from models.storage.faults import fault_point

__all__ = ["disk_error", "disk_errors", "fsync_path", "probe_room", "refused_text", "write_at", "write_atomic"]

TEMPORARY = ".tmp"  # suffix of files that are being written; whatever bears it after a crash is rubbish
_MAKE_ROOM = "make room on its disk"
_ADVICE = {
    errno.ENOSPC: _MAKE_ROOM,
    errno.EDQUOT: _MAKE_ROOM,
    errno.EFBIG: "raise the limit on the size of files (ulimit -f)",
    errno.EROFS: "mount its file system for writing, or put the store elsewhere",
    errno.EACCES: "give the user that runs this the right to, or put the store elsewhere",
    errno.EPERM: "give the user that runs this the right to, or put the store elsewhere",
    errno.EMFILE: "raise the limit on open files (ulimit -n)",
}


def disk_error(path: Path | str, doing: str, error: OSError) -> StoreError:
    """The typed error for what the operating system said of a file; `doing` completes "cannot"."""
    advice = _ADVICE.get(error.errno or 0)
    kind = StoreError if advice is None or error.errno == errno.EMFILE else StoreUnwritable
    cause = error.strerror or str(error)
    if error.filename and str(error.filename) != str(path):
        cause += f" ({error.filename})"
    return kind(f"cannot {doing} {path}: {cause}{'; ' + advice if advice else ''}")


def refused_text(path: Path | str, doing: str, text: str) -> StoreError:
    """The same for what a library says in words: it passes on the operating system's."""
    for number in _ADVICE:
        if os.strerror(number) in text:
            return disk_error(path, doing, OSError(number, text))
    return StoreError(f"cannot {doing} {path}: {text}")


@contextmanager
def disk_errors(path: Path | str, doing: str) -> Iterator[None]:
    """What the operating system refuses inside is raised as a `StoreError` that names the path."""
    try:
        yield
    except OSError as error:
        raise disk_error(path, doing, error) from error


def fsync_path(path: Path) -> None:
    """Flushes a file, or a directory's entries, to disk. Raises `StoreError`."""
    with disk_errors(path, "flush"):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def write_at(handle: int, data: bytes, offset: int, path: Path) -> None:
    """Writes all of `data` at an offset of an open file, whose `path` is for the message. Raises `StoreError`."""
    with disk_errors(path, "write"):
        while data:
            written = os.pwrite(handle, data, offset)  # a disk that fills up takes a part without a word
            data, offset = data[written:], offset + written


def probe_room(directory: Path, size: int) -> None:
    """Raises `StoreError` if `size` bytes cannot be written to a file in `directory`; leaves nothing there."""
    probe = directory / f"room{TEMPORARY}"
    try:
        with probe.open("wb") as handle:
            handle.write(bytes(size))
            handle.flush()
            os.fsync(handle.fileno())
    except OSError as error:
        raise disk_error(directory, "write to", error) from error
    finally:
        with suppress(OSError):
            probe.unlink()


def write_atomic(path: Path, *parts: bytes, place: str = "file") -> None:
    """Writes a file under a temporary name, flushes it, and renames it. `place` names its fault points.

    Raises `StoreError` that names the file; what was written of the new one is taken away then.
    """
    new = path.with_name(path.name + TEMPORARY)
    with disk_errors(path, "write"):
        try:
            with new.open("wb") as handle:
                for part in parts:
                    handle.write(part)
                handle.flush()
                os.fsync(handle.fileno())
        except OSError:
            with suppress(OSError):
                new.unlink()
            raise
        fault_point(f"{place}.before_rename")
        new.replace(path)
    fsync_path(path.parent)
    fault_point(f"{place}.after_rename")
