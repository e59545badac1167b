"""Makes a replica of a store's coins in a directory, for fetch workers on another host: fetched through Ray from the
node that serves the store, or, where the store is at hand and nobody serves it, by a checkpoint of hard links.

The replica appears under its name when it is complete and on disk. From then on an actor there keeps it at the tip.
"""

import json
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray

from models.errors import StoreError, WorkerLost
from models.messages import unwrap
from models.storage.checkpoint import checkpoint
from models.storage.coinsdb import CoinsOwner
from models.storage.durable import disk_errors, fsync_path
from models.storage.storeinfo import StoreInfo

__all__ = ["Replica", "of_node", "of_store"]

PIECE = 8 << 20  # bytes in one message
AHEAD = 4  # pieces asked for before they are written
PATIENCE = 600.0  # seconds for one answer
INFO_FILE = "replica.json"

Progress = Callable[[int, int], None]  # bytes done, bytes in all


@dataclass(frozen=True)
class Replica:
    """What was made."""

    path: Path
    best_block: bytes  # whose coins it has, internal order
    bytes: int


def of_store(store: Path, target: Path) -> Replica:
    """From a store that is at hand. Raises StoreError."""
    StoreInfo.load(store)
    with _Making(target) as made:
        result = checkpoint(store / "chainstate", made / "chainstate")
        best_block = _finish(made)
    return Replica(target, best_block, result.bytes)


def of_node(chainstate: Any, target: Path, progress: Progress = lambda *_: None) -> Replica:
    """From the chainstate actor of a running node. Raises StoreError, WorkerLost if that dies meanwhile."""
    try:
        with _Making(target) as made:
            name, files = unwrap(ray.get(chainstate.make_handout.remote(), timeout=PATIENCE))
            try:
                _fetch(chainstate, name, files, made / "chainstate", progress)
            finally:
                chainstate.drop_handout.remote(name)
            best_block = _finish(made)
    except ray.exceptions.RayActorError:
        raise WorkerLost("the owner of the store died while its coins were fetched: begin again") from None
    except ray.exceptions.GetTimeoutError:
        raise StoreError(f"no answer from the owner of the store in {PATIENCE:g} s: begin again") from None
    return Replica(target, best_block, sum(files.values()))


def _fetch(chainstate: Any, name: str, files: dict[str, int], target: Path, progress: Progress) -> None:
    target.mkdir()
    total, done = sum(files.values()), 0
    pieces = [(file, at) for file, size in files.items() for at in range(0, size, PIECE)]
    for file in files:
        (target / file).touch()
    asked: list[Any] = []
    for number, (file, _) in enumerate(pieces):
        while len(asked) < len(pieces) and len(asked) <= number + AHEAD:
            asked.append(chainstate.read_handout.remote(name, *pieces[len(asked)], PIECE))
        data = unwrap(ray.get(asked[number], timeout=PATIENCE))
        asked[number] = None  # its memory is shared with the other side's
        with disk_errors(target / file, "write"), (target / file).open("ab") as handle:
            handle.write(data)
        done += len(data)
        progress(done, total)
    for file, size in files.items():
        if (target / file).stat().st_size != size:
            raise StoreError(f"{file} came with another size than it was said to have: begin again")
        fsync_path(target / file)


def _finish(made: Path) -> bytes:
    """Opens what was copied, so that LevelDB has seen it, and says of which block it is."""
    with CoinsOwner(made / "chainstate") as coins:
        best_block = coins.best_block
    fields = {"best_block": best_block[::-1].hex(), "made": int(time.time())}
    with disk_errors(made / INFO_FILE, "write"):
        (made / INFO_FILE).write_text(json.dumps(fields) + "\n")
    fsync_path(made)
    return best_block


class _Making:
    """A directory beside the target that becomes it, or vanishes."""

    def __init__(self, target: Path):
        self._target = target
        self._made = target.with_name(f".{target.name}.replicate-{os.getpid()}")

    def __enter__(self) -> Path:
        target = self._target
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise StoreError(f"{target} exists already: remove it first, or choose another place")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            self._made.mkdir()
        except OSError as error:
            raise StoreError(f"cannot make {self._made}: {error.strerror}") from None
        return self._made

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            try:
                self._made.rename(self._target)
                fsync_path(self._target.parent)
                return
            except OSError as error:
                shutil.rmtree(self._made, ignore_errors=True)
                raise StoreError(f"cannot put the replica in its place {self._target}: {error.strerror}") from None
        shutil.rmtree(self._made, ignore_errors=True)
