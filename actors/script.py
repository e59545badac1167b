"""ScriptWorker: runs scripts through libbitcoinkernel in a process that holds nothing else, because the library ends
the process on a bug and its calls cannot be interrupted.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import ray

from actors.answers import answers
from models.script.jobs import unpack_jobs
from models.script.verify import verify_batch

__all__ = ["ScriptWorker"]


class ScriptWorker:
    """One for each core, and one that speculation does not use."""

    RAY_OPTIONS: ClassVar[dict[str, Any]] = {
        "num_cpus": 0,
        "max_restarts": 0,
        "concurrency_groups": {"validation": 2, "speculation": 1, "control": 2},
    }

    def __init__(self, threads: int):
        self._threads = threads
        self._jobs = {"validation": 0, "speculation": 0}
        self._inputs = {"validation": 0, "speculation": 0}
        self._begun: dict[str, float] = {}
        self._gates = {name: threading.Event() for name in ("speculation", "validation")}
        for gate in self._gates.values():
            gate.set()

    @ray.method(concurrency_group="validation")
    @answers
    def verify(self, flags: int, *packed: Any) -> list[int]:
        """First failing input of each job, or -1. A check waits.

        `packed` is what `pack_jobs` makes of the jobs, and last the name by which `running` calls them.
        """
        return self._verify("validation", flags, *packed)

    @ray.method(concurrency_group="speculation")
    @answers
    def speculate(self, flags: int, *packed: Any) -> list[int]:
        """The same ahead of time, in small batches."""
        return self._verify("speculation", flags, *packed)

    @contextmanager
    def _at(self, name: str) -> Iterator[None]:
        self._begun[name] = time.monotonic()
        try:
            yield
        finally:
            self._begun.pop(name, None)

    @ray.method(concurrency_group="control")
    def running(self) -> dict[str, float]:
        """Calls under way by name, and the seconds since each began."""
        now = time.monotonic()
        return {name: now - begun for name, begun in list(self._begun.items())}

    def _verify(self, group: str, flags: int, *packed: Any) -> list[int]:
        *pieces, name = packed
        with self._at(name):
            self._gates[group].wait()
            jobs = unpack_jobs(pieces)
            self._jobs[group] += len(jobs)
            self._inputs[group] += sum(len(spent) for _, spent in jobs)
            return verify_batch(jobs, flags, self._threads)

    @ray.method(concurrency_group="control")
    def drill(self, hold: bool | None = None, stall: float | None = None, hold_checks: bool | None = None) -> None:
        """For exercises: hold or release speculation, or the scripts of checks; or keep a thread busy for seconds."""
        for name, held in (("speculation", hold), ("validation", hold_checks)):
            if held is not None:
                (self._gates[name].clear if held else self._gates[name].set)()
        if stall is not None:
            time.sleep(stall)

    @ray.method(concurrency_group="control")
    def stats(self) -> dict[str, Any]:
        """Counters since the start."""
        return {"jobs": dict(self._jobs), "inputs": dict(self._inputs)}

    @ray.method(concurrency_group="control")
    def ping(self) -> str:
        """Answers as long as the process lives."""
        return "script"
