"""Killing a node's processes from a test, and asking until it answers again.

`again` is what a careful client does: it repeats a question that was answered with an error saying so. Its patience
is a guard against hanging and no measure of time.
"""

import os
import signal
import time
from collections.abc import Callable
from typing import Any, TypeVar

import ray

from models.errors import Busy, CollectionLost, StaleView, WorkerLost

T = TypeVar("T")

PATIENCE = 90.0  # seconds
KINDS = ("chainstate", "mempool", "fetch", "script", "template", "collection")


def first_of(node: Any, kind: str) -> str:
    """The name of the actor of a kind that serves first; spares are not among them."""
    return next(name for name in node.stats() if name.startswith(kind))


def _pid(_: Any) -> int:
    return os.getpid()


def kill(node: Any, kind: str, collection: Any = None) -> int:
    """SIGKILL to the process of one actor of a kind, of collection actors that which holds `collection`; its id."""
    if kind == "collection" and collection is not None:
        pid = ray.get(collection._actor.__ray_call__.remote(_pid))
    else:
        pid = node.pids()[kind if kind == "supervisor" else first_of(node, kind)]
    os.kill(pid, signal.SIGKILL)
    return pid


def again(question: Callable[[], T], lost_too: bool = False) -> T:
    """The answer, asking again while actors are replaced. `lost_too`: the question makes its collection anew."""
    passing = (WorkerLost, Busy, StaleView, CollectionLost) if lost_too else (WorkerLost, Busy, StaleView)
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return question()
        except passing:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def alive(pid: int) -> bool:
    """Whether a process is there and is no zombie."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
