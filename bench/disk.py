"""The disk under a bench: what file system it is, how far it reads ahead, and its page cache, of which only the bench's
own files are dropped. What was dropped is looked at afterwards (`mincore`), never assumed.
"""

import ctypes
import mmap
import os
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.errors import BenchError

__all__ = ["Mount", "PageCache", "is_cold", "mount_of", "read_ahead_kb", "refuse_memory", "storage_bytes_read"]

MEMORY_FILE_SYSTEMS = {"tmpfs", "ramfs", "devtmpfs"}
_OCTAL = re.compile(r"\\([0-7]{3})")  # how the kernel writes a blank in a path
SLACK = 256 * 1024  # bytes that may stay: filter, index and first blocks, which the owner maps when it opens its tables


@dataclass(frozen=True, slots=True)
class Mount:
    """The mounted file system that holds a path."""

    kind: str  # such as ext4
    device: str  # "major:minor"


def _unescape(text: str) -> str:
    return _OCTAL.sub(lambda match: chr(int(match[1], 8)), text)


def mount_of(path: Path, table: Path = Path("/proc/self/mountinfo")) -> Mount | None:
    """The mount under `path`, None where the system does not tell (elsewhere than Linux)."""
    try:
        lines = table.read_text().splitlines()
    except OSError:
        return None
    path = path.resolve()
    best, found = -1, None
    for line in lines:
        left, _, right = line.partition(" - ")
        fields = left.split()
        point = Path(_unescape(fields[4]))
        if path.is_relative_to(point) and len(point.parts) >= best:  # of two on one point the later one is seen
            best, found = len(point.parts), Mount(right.split()[0], fields[2])
    return found


def refuse_memory(path: Path, table: Path = Path("/proc/self/mountinfo")) -> None:
    """Raises BenchError if `path` lies on a file system that is memory: reading from it says nothing about a disk."""
    mount = mount_of(path, table)
    if mount is not None and mount.kind in MEMORY_FILE_SYSTEMS:
        raise BenchError(f"{path} is on a {mount.kind}, which is memory: name a directory on a disk with --dir")


def read_ahead_kb(path: Path) -> int | None:
    """How far the kernel reads ahead on the device under `path`, in KiB; None where it does not say."""
    mount = mount_of(path)
    if mount is None:
        return None
    try:
        return int(Path(f"/sys/class/bdi/{mount.device}/read_ahead_kb").read_text())
    except (OSError, ValueError):
        return None


def storage_bytes_read(pids: Iterable[int]) -> int | None:
    """Bytes that these processes together have had read from storage since they began; None if that is not known."""
    total = 0
    for pid in pids:
        try:
            text = Path(f"/proc/{pid}/io").read_text()
        except OSError:
            return None
        total += int(text.split("read_bytes:")[1].split()[0])
    return total


class PageCache:
    """The page cache of the files below some directories, each file once however many names it has."""

    def __init__(self, directories: Iterable[Path]):
        self._directories = list(directories)
        self.can_drop = sys.platform == "linux" and hasattr(os, "posix_fadvise")

    def _files(self) -> list[Path]:
        found: dict[tuple[int, int], Path] = {}
        for directory in self._directories:
            for path in directory.rglob("*"):
                try:
                    if path.is_file():
                        stat = path.stat()
                        found.setdefault((stat.st_dev, stat.st_ino), path)
                except OSError:  # a database may remove a file of its own under us
                    continue
        return list(found.values())

    def drop(self) -> int | None:
        """Writes back and drops these files' pages; bytes that stayed, None where nothing can be dropped.

        Pages that a process has mapped and touched stay.
        """
        if not self.can_drop:
            return None
        resident = 0
        for path in self._files():
            try:
                handle = os.open(path, os.O_RDONLY)
            except OSError:
                continue
            try:
                os.fsync(handle)
                os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
                resident += _resident(handle)
            finally:
                os.close(handle)
        return resident

    def resident(self) -> int | None:
        """Bytes of these files that are in the page cache now; None where that is not known."""
        if not self.can_drop:
            return None
        total = 0
        for path in self._files():
            try:
                handle = os.open(path, os.O_RDONLY)
            except OSError:
                continue
            try:
                total += _resident(handle)
            finally:
                os.close(handle)
        return total


def is_cold(resident: int | None) -> bool:
    """Whether a drop did what it should."""
    return resident is not None and resident <= SLACK


def _resident(handle: int) -> int:
    """Bytes of an open file in the page cache."""
    size = os.fstat(handle).st_size
    if not size:
        return 0
    pages = -(-size // mmap.PAGESIZE)
    vector = np.zeros(pages, np.uint8)
    with mmap.mmap(handle, 0, access=mmap.ACCESS_READ) as view:
        start = np.frombuffer(view, np.uint8).ctypes.data
        answer = _mincore(start, size, vector.ctypes.data)
    if answer:
        raise OSError(ctypes.get_errno(), "mincore")
    return int((vector & 1).sum()) * mmap.PAGESIZE


def _libc_mincore() -> "ctypes._NamedFuncPointer":
    function = ctypes.CDLL(None, use_errno=True).mincore
    function.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
    function.restype = ctypes.c_int
    return function


_mincore = _libc_mincore() if sys.platform == "linux" else lambda *_: 0
