"""`bench sweep`: all cold coins of a block, read by fetch workers, for numbers of workers, threads and batch sizes."""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import ray

from bench.errors import RefusedSample
from bench.fixtures import Fixture
from bench.nodes import BenchNode, running_nodes, working_directory
from bench.samples import summarise
from models.messages import pack_tip, unpack_batch, unwrap

__all__ = ["ALL_AT_ONCE", "BATCHES", "THREADS", "WORKERS", "SweepRow", "sweep"]

WORKERS = (1, 2, 4)
THREADS = (2, 8, 32)
BATCHES = (128, 512, 2048, 0)
ALL_AT_ONCE = 0  # as a batch size: one request for each worker
IN_FLIGHT = 4  # requests under way for each worker, as one collection has
#: A node with nothing in it but what reads.
BARE: dict[str, Any] = {"script_workers": 1, "template_actors": 1, "collection_warm": 0, "validation_fetch": "parallel"}

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class SweepRow:
    """One combination; milliseconds (median and quartiles) and every sample, bytes from storage (median)."""

    workers: int
    threads: int
    batch: int
    median: float
    low: float
    high: float
    samples: list[float]
    storage: float | None
    cold: bool

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


def sweep(
    fixture: Fixture,
    directory: Path,
    workers: Sequence[int] = WORKERS,
    threads: Sequence[int] = THREADS,
    batches: Sequence[int] = BATCHES,
    samples: int = 3,
    progress: Progress | None = None,
) -> list[SweepRow]:
    """A node for each number of workers and threads; every batch size on it, `samples` times, interleaved."""
    rows = []
    combinations = [(w, t) for w in workers for t in threads]
    with working_directory(directory) as work:
        for done, (count, each) in enumerate(combinations):
            if progress:
                progress(f"{count} workers, {each} threads", done, len(combinations))
            settings = {"sweep": {**BARE, "fetch_workers": count, "fetch_threads": each}}
            with running_nodes(fixture, work, settings, with_mempool=False) as nodes:
                rows += _rows(nodes["sweep"], fixture, count, each, batches, samples)
    return rows


def _rows(
    bench_node: BenchNode, fixture: Fixture, workers: int, threads: int, batches: Sequence[int], samples: int
) -> list[SweepRow]:
    found: dict[int, list[tuple[float, int | None, bool]]] = {batch: [] for batch in batches}
    for number in range(-1, samples):
        for batch in batches:
            one = _read_all(bench_node, fixture, batch)
            if number >= 0:
                found[batch].append(one)
    rows = []
    for batch, taken in found.items():
        times = [ms for ms, _, _ in taken]
        sizes = [size for _, size, _ in taken if size is not None]
        summary = summarise(times)
        if summary:
            spread = summary.median, summary.low, summary.high
            cold = all(cold for _, _, cold in taken)
            rows.append(SweepRow(workers, threads, batch, *spread, times, median(sizes) if sizes else None, cold))
    return rows


def _read_all(bench_node: BenchNode, fixture: Fixture, batch: int) -> tuple[float, int | None, bool]:
    """(milliseconds, bytes from storage, cold before) of reading every coin, a few requests under way at a time."""
    cooling = bench_node.cool()
    handles, tip = bench_node.directory()["fetch"], pack_tip(bench_node.node.tip())
    outpoints = fixture.outpoints
    size = batch or -(-len(outpoints) // len(handles))
    todo = [b"".join(outpoints[at : at + size]) for at in range(0, len(outpoints), size)]
    before = bench_node.storage_read()
    begun = time.perf_counter()
    running: dict[Any, Any] = {}
    got = 0
    idle = [handle for handle in handles for _ in range(IN_FLIGHT)]
    while todo or running:
        while todo and idle:
            handle = idle.pop(0)
            running[handle.prefetch.remote(todo.pop(0), tip)] = handle
        done, _ = ray.wait(list(running))
        for reference in done:
            idle.append(running.pop(reference))
            got += len(unpack_batch(unwrap(ray.get(reference))))
    took = (time.perf_counter() - begun) * 1000
    after = bench_node.storage_read()
    if got != len(outpoints):
        raise RefusedSample(f"{got} answers for {len(outpoints)} coins")
    return took, None if before is None or after is None else after - before, cooling.cold
