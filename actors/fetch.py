"""FetchWorker: reads coins at a tip version through a read-only handle of its own, many keys at a time.

Validation and speculation are separate groups of threads, so that a check never queues behind prefetch. Nothing is ever
written, and nothing of a client's is kept.
"""

import threading
import time
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import ray

from actors.answers import answers
from models.coins.codec import OUTPOINT_SIZE
from models.coins.coin import Coin
from models.coins.following import FollowingView
from models.consensus.context import TipVersion
from models.errors import CoinsReadError, StaleView, TxCollectionError
from models.messages import FlatCoin, FlatTip, pack_batch, unpack_tip
from models.storage.reader import CoinsReader

__all__ = ["FetchWorker"]

LOOK_AGAIN = 0.02  # seconds


class FetchWorker:
    """One per host by default."""

    RAY_OPTIONS: ClassVar[dict[str, Any]] = {
        "num_cpus": 0,
        "max_restarts": 0,
        "concurrency_groups": {"validation": 8, "speculation": 2, "control": 4},
    }

    def __init__(self, store: str, threads: int, block_cache: int, tip: FlatTip | None, patience: float = 0.0):
        """`store` may be a replica's directory: its owner may be some milliseconds behind a new tip, and is waited for
        `patience` seconds."""
        self._view = FollowingView(
            Path(store).expanduser() / "chainstate",
            threads,
            block_cache,
            (lambda path, best: _open_when_there(path, best, block_cache, patience)) if patience else None,
        )
        self._requests = {"validation": 0, "speculation": 0}
        self._keys = {"validation": 0, "speculation": 0}
        self._largest = {"validation": 0, "speculation": 0}
        self._gates = {name: threading.Event() for name in ("speculation", "answers", "validation")}
        self._waiting = dict.fromkeys(self._gates, 0)
        for gate in self._gates.values():
            gate.set()
        self._failures: list[str] = []
        if tip is not None:
            try:
                self._view.read([], unpack_tip(tip))
            except TxCollectionError:
                pass  # the first request opens it

    @ray.method(concurrency_group="validation")
    @answers
    def read(self, tip: FlatTip, *outpoints: bytes) -> tuple[np.ndarray, np.ndarray]:
        """Observations (a packed CoinBatch) of joined 36-byte outpoints at `tip`, for a check that waits for them."""
        self._pass("validation")
        return self._read("validation", b"".join(outpoints), tip)

    @ray.method(concurrency_group="control")
    def ready(self, tip: FlatTip) -> bool:
        """Whether this worker can read at `tip`, as one beside a replica that is catching up cannot."""
        try:
            self._view.read(b"", unpack_tip(tip))
        except TxCollectionError:
            return False
        return True

    @ray.method(concurrency_group="speculation")
    @answers
    def prefetch(self, outpoints: bytes, tip: FlatTip) -> tuple[np.ndarray, np.ndarray]:
        """The same for a collection whose client is away."""
        self._pass("speculation")
        answer = self._read("speculation", outpoints, tip)
        self._pass("answers")
        return answer

    def _pass(self, gate: str) -> None:
        """Waits while an exercise holds this gate."""
        if not self._gates[gate].is_set():
            self._waiting[gate] += 1
            self._gates[gate].wait()
            self._waiting[gate] -= 1

    def _read(self, group: str, outpoints: bytes, tip: FlatTip) -> tuple[np.ndarray, np.ndarray]:
        if self._failures:
            raise CoinsReadError(self._failures.pop())
        count = len(outpoints) // OUTPOINT_SIZE
        self._requests[group] += 1
        self._keys[group] += count
        self._largest[group] = max(self._largest[group], count)
        return pack_batch(self._view.read(outpoints, unpack_tip(tip)))

    @ray.method(concurrency_group="control")
    def tip_moved(
        self,
        before: tuple[int, int],
        tip: FlatTip,
        spent: list[bytes],
        created: list[FlatCoin],
    ) -> None:
        """One block's changes; a worker that is not at `before` opens its handle anew at the next request."""
        coins = [(coin[0], Coin(*coin[1:])) for coin in created]
        self._view.follow(TipVersion(*before), unpack_tip(tip), spent, coins)

    @ray.method(concurrency_group="control")
    def reopen(self) -> None:
        """Lets go of the handle and its caches; the next request opens it anew."""
        self._view.forget()

    @ray.method(concurrency_group="control")
    def drill(
        self,
        hold: bool | None = None,
        fail: str | None = None,
        hold_answers: bool | None = None,
        hold_checks: bool | None = None,
    ) -> None:
        """For exercises: hold or release speculative reads, the answers to those already read, or the reads of checks;
        or make the next read fail with a text."""
        for name, held in (("speculation", hold), ("answers", hold_answers), ("validation", hold_checks)):
            if held is not None:
                (self._gates[name].clear if held else self._gates[name].set)()
        if fail is not None:
            self._failures.append(fail)

    @ray.method(concurrency_group="control")
    def stats(self) -> dict[str, Any]:
        """Counters since the start."""
        return {
            "requests": dict(self._requests),
            "keys": dict(self._keys),
            "largest": dict(self._largest),  # keys of one request
            "opens": self._view.opens,
            "version": self._view.version,
            "waiting": dict(self._waiting),  # at a gate that an exercise holds
        }

    @ray.method(concurrency_group="control")
    def ping(self) -> str:
        """Answers as long as the process lives."""
        return "fetch"


def _open_when_there(path: Path, best: bytes, block_cache: int, patience: float) -> CoinsReader:
    """A reader at the block `best`, once the database's owner has written it. Raises StaleView after `patience`."""
    limit = time.monotonic() + patience
    while True:
        try:
            return CoinsReader.open(path, expect_best=best, block_cache=block_cache)
        except StaleView:
            if time.monotonic() > limit:
                raise
            time.sleep(LOOK_AGAIN)
