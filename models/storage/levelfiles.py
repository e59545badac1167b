"""The files of a LevelDB directory, looked at from outside: which there are, and whether their set has changed.

Tables never change once the manifest names them; a new table set shows in `CURRENT`, in the manifest's size or in the
names of the logs. Whoever reads a directory beside its writer compares these before and after (`note_files`).
Nothing here opens, locks or writes anything.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from models.errors import StoreCorrupt, StoreError

__all__ = ["CURRENT", "FilesNote", "log_names", "note_files", "table_names", "table_number"]

CURRENT = "CURRENT"
MANIFEST = re.compile(r"MANIFEST-\d+\Z")
TABLE = re.compile(r"(\d+)\.(?:ldb|sst)\Z")
LOG = re.compile(r"\d+\.log\Z")


@dataclass(frozen=True, slots=True)
class FilesNote:
    """What tells one state of a directory's files from the next."""

    manifest: str  # file name, the content of CURRENT
    manifest_size: int  # in bytes
    logs: tuple[str, ...]  # sorted names


def log_names(path: Path) -> tuple[str, ...]:
    """Sorted names of the write-ahead logs in a directory."""
    return tuple(sorted(entry.name for entry in path.iterdir() if LOG.match(entry.name)))


def table_names(path: Path) -> list[str]:
    """Names of all table files in a directory, live or not."""
    return sorted(entry.name for entry in path.iterdir() if TABLE.match(entry.name))


def table_number(name: str) -> int:
    """The number of a table file from its name with or without a leading path (RocksDB says .sst for an .ldb)."""
    match = TABLE.search(name.rsplit("/", 1)[-1])
    if match is None:
        raise StoreError(f"not the name of a table file: {name!r}")
    return int(match.group(1))


def note_files(path: Path) -> FilesNote:
    """Notes the state of a LevelDB directory's files.

    Raises `StoreError` if it is no LevelDB directory, `StoreCorrupt` if `CURRENT` is not a manifest's name, and
    FileNotFoundError if its writer changed the manifest in this very moment (try again).
    """
    current = path / CURRENT
    if not current.is_file():
        raise StoreError(f"{path} is no LevelDB directory: it has no file CURRENT")
    manifest = current.read_bytes().rstrip(b"\n").decode("ascii", "replace")
    if not MANIFEST.match(manifest):
        raise StoreCorrupt(f"{current} does not name a manifest but {manifest[:40]!r}")
    return FilesNote(manifest, (path / manifest).stat().st_size, log_names(path))
