"""A consistent copy of a LevelDB directory that another process has open and may be writing: hard links, no lock.

The source is only read. Two guards make the copy sound. The files are noted before and after, and an attempt during
which their set changed is thrown away. And every table that the copied manifest does not name is unlinked before
LevelDB may open the copy: the source may still be writing it, and recovery would truncate it through the link.
"""

import errno
import logging
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from models.errors import StoreError
from models.storage.durable import fsync_path
from models.storage.levelfiles import CURRENT, note_files, table_names, table_number
from models.storage.reader import CONFIG_FILE, live_tables

__all__ = ["CheckpointResult", "checkpoint"]

MAX_ATTEMPTS = 200
RETRY_PAUSE = 0.01  # in seconds

# Another file system; another owner's file under fs.protected_hardlinks; a file system without links; too many links.
NO_LINK = {errno.EXDEV, errno.EPERM, errno.EACCES, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS}

Gate = Callable[[str], None]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CheckpointResult:
    """How a checkpoint was made."""

    linked: int  # tables that share their bytes with the source
    copied: int  # tables that had to be copied
    attempts: int
    bytes: int  # of the whole copy
    copied_because: str | None  # why tables were copied, for the user; None if none were


def checkpoint(source: Path, target: Path, gate: Gate | None = None) -> CheckpointResult:
    """Copies the LevelDB directory `source` to `target`, which must not exist.

    Raises `StoreError` if the source is none, or changed during every attempt. On any error `target` is removed. `gate`
    is for tests: it is called with "noted", "copied" and "linked" as an attempt goes on.
    """
    if target.exists():
        raise StoreError(f"cannot make a checkpoint in {target}: it exists already")
    problem = ""
    for attempt in range(1, MAX_ATTEMPTS + 1):
        if attempt > 1:
            time.sleep(RETRY_PAUSE)
        target.mkdir(parents=True)
        try:
            result = _attempt(source, target, attempt, gate)
        except FileNotFoundError as error:  # the source removed a file between two of our steps
            result, problem = None, str(error)
        except BaseException:
            shutil.rmtree(target, ignore_errors=True)
            raise
        if result is not None:
            return result
        shutil.rmtree(target)
        log.debug("checkpoint attempt %d of %s refused: %s", attempt, source, problem or "its files changed")
    raise StoreError(
        f"cannot make a checkpoint of {source}: its files changed during {MAX_ATTEMPTS} attempts; "
        f"try again when the node is less busy {problem}".rstrip()
    )


def _attempt(source: Path, target: Path, attempt: int, gate: Gate | None) -> CheckpointResult | None:
    """One attempt; None if the source's files changed meanwhile."""
    before = note_files(source)
    if gate:
        gate("noted")
    # Logs in their order: a later one is copied only after the earlier one is complete.
    for name in (CURRENT, before.manifest, *before.logs):
        shutil.copyfile(source / name, target / name)
    if gate:
        gate("copied")
    copied: set[str] = set()
    because: str | None = None
    tables = table_names(source)
    for name in tables:
        try:
            os.link(source / name, target / name)
        except OSError as error:
            if error.errno not in NO_LINK:
                raise
            because = f"hard links to {source} are not possible ({error.strerror}): its tables were copied"
            shutil.copyfile(source / name, target / name)
            copied.add(name)
    if gate:
        gate("linked")
    if note_files(source) != before:
        return None
    live = live_tables(target)
    kept = [name for name in tables if table_number(name) in live]
    for name in set(tables) - set(kept):
        (target / name).unlink()
    for name in (CURRENT, before.manifest, *before.logs, *(name for name in kept if name in copied)):
        fsync_path(target / name)
    (target / CONFIG_FILE).unlink(missing_ok=True)
    fsync_path(target)
    size = sum(entry.stat().st_size for entry in target.iterdir())
    still_copied = len(copied.intersection(kept))
    return CheckpointResult(len(kept) - still_copied, still_copied, attempt, size, because)
