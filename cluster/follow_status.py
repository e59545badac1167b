"""What the follower is doing, for people and for other processes: one record, and a small file in the store.

The file is `follow.json`: a gateway's health check and `txcollection status` read it without asking the follower. It
is removed when the follower ends; one whose writer died says so by its process id and its time.
"""

import json
import os
import time
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

__all__ = ["FollowState", "FollowStatus", "StatusFile", "read_status"]

STATUS_FILE = "follow.json"
REFRESH = 5.0  # seconds after which an unchanged status is written again


class FollowState(StrEnum):
    """Where it stands. Only `following` means that the store is where the node is."""

    CONNECTING = "connecting"
    WAITING = "waiting"  # one of the two sides does not answer; it is tried again
    DOWNLOADING = "initial-download"  # the node itself is not where its network is
    HEADERS = "headers"  # for a store from a snapshot
    CATCHING_UP = "catching-up"
    FOLLOWING = "following"
    APART = "apart"  # the node's chain has no more work than ours, and is another
    STOPPED = "stopped"


@dataclass(slots=True)
class FollowStatus:
    """One moment. Counters are since the start of the follower; heights are -1 where they are not known."""

    node: str  # its URL
    state: FollowState = FollowState.CONNECTING
    detail: str = ""  # one sentence: why it waits, what is wrong
    height: int = -1  # of the store's tip
    tip: str = ""  # display hex
    node_height: int = -1
    node_headers: int = -1
    mempool: int = 0  # transactions that the node's mempool held at the last comparison
    blocks: int = 0  # given to the store
    headers: int = 0  # given to the store
    reorgs: int = 0  # times that the node's chain did not go on from the store's tip
    transactions_added: int = 0
    transactions_removed: int = 0
    gaps: int = 0  # in the numbers of ZMQ messages
    repairs: int = 0  # comparisons over RPC that found a difference which no message had told
    reconnects: int = 0  # times that one of the two sides was lost

    @property
    def ready(self) -> bool:
        """Whether the store is where the node is, and the node where its network is."""
        return self.state is FollowState.FOLLOWING

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {**asdict(self), "state": self.state.value, "ready": self.ready}


class StatusFile:
    """Keeps `follow.json` in a store up to date."""

    def __init__(self, store: Path):
        self._path = store / STATUS_FILE
        self._last: dict[str, Any] = {}
        self._written = 0.0

    def show(self, status: FollowStatus) -> None:
        """Writes it if it has changed, or if the last time was long ago. A full disk does not stop the follower."""
        fields = status.to_dict()
        now = time.time()
        if fields == self._last and now - self._written < REFRESH:
            return
        new = self._path.with_suffix(f".{os.getpid()}.tmp")
        try:
            new.write_text(json.dumps({**fields, "pid": os.getpid(), "written": int(now)}), encoding="utf-8")
            new.replace(self._path)
        except OSError:
            return
        self._last, self._written = fields, now

    def remove(self) -> None:
        """Harmless when it is not there, or belongs to another process by now."""
        fields = read_status(self._path.parent)
        if fields is not None and fields.get("pid") == os.getpid():
            self._path.unlink(missing_ok=True)


def read_status(store: Path) -> dict[str, Any] | None:
    """What a follower of this store says of itself: the fields of `FollowStatus`, with `pid`, `written` (Unix seconds)
    and `alive`. None if there is none."""
    try:
        fields = json.loads((store / STATUS_FILE).read_text(encoding="utf-8"))
        pid = int(fields["pid"])
        fields["alive"] = _alive(pid)
    except (OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None
    return fields


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
