"""Hands a consistent copy of the coins database to somebody who cannot reach its files, piece by piece.

The copy is a checkpoint of hard links in the store, gone when it was handed out, or when the store is opened again.
"""

import secrets
import shutil
from pathlib import Path

from models.errors import StoreError
from models.storage.checkpoint import checkpoint

__all__ = ["Handout"]

PREFIX = ".handout-"
MOST = 4  # copies at a time: each keeps tables from being removed


class Handout:
    """The copies of one store that are being fetched."""

    def __init__(self, store: Path):
        """Removes what an earlier process left."""
        self._store = store
        for left in store.glob(f"{PREFIX}*"):
            shutil.rmtree(left, ignore_errors=True)
        self._files: dict[str, dict[str, int]] = {}

    def make(self) -> tuple[str, dict[str, int]]:
        """A new copy: its name, and its files with their sizes in bytes. Raises StoreError."""
        if len(self._files) >= MOST:
            raise StoreError(f"{MOST} copies of the coins are being fetched already: try again later")
        name = secrets.token_hex(8)
        copy = self._store / f"{PREFIX}{name}" / "chainstate"
        self._files[name] = {}
        try:
            checkpoint(self._store / "chainstate", copy)
            self._files[name] = {file.name: file.stat().st_size for file in copy.iterdir()}
        except BaseException:
            self.drop(name)
            raise
        return name, self._files[name]

    def read(self, name: str, file: str, start: int, size: int) -> bytes:
        """Some bytes of a file of a copy. Raises StoreError for a copy or file that is not there."""
        if file not in self._files.get(name, {}):
            raise StoreError(f"the copy {name} of the coins is not here, or has no file {file}: begin again")
        with (self._store / f"{PREFIX}{name}" / "chainstate" / file).open("rb") as handle:
            handle.seek(start)
            return handle.read(size)

    def drop(self, name: str) -> None:
        """Removes a copy. Harmless when it is not there."""
        if self._files.pop(name, None) is not None:
            shutil.rmtree(self._store / f"{PREFIX}{name}", ignore_errors=True)
