"""`bench memory`: what eight full declarations cost while they prefetch, in memory that no other process shares."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.errors import BenchError
from bench.fixtures import Fixture
from bench.goals import Goal
from bench.nodes import CONFIGURATIONS, BenchNode, running_nodes, working_directory

__all__ = ["COLLECTIONS", "MemoryUse", "goals_of_memory", "measure_memory"]

COLLECTIONS = 8
PER_COLLECTION = 16  # MiB, the goal
MIB = 1 << 20

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Sums over all actors, in bytes of USS: what would come free if they ended."""

    idle: int  # as a node starts, with one collection process
    processes: int  # with eight of them, each of which has held a declaration of one transaction
    full: int  # and eight full declarations, all prefetched
    by_kind: dict[str, tuple[int, int]]  # of the actors: (before the declarations, with them)
    retained: list[int]  # bytes of queue and observations that each collection counts itself

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


def _uss(pids: dict[str, int]) -> dict[str, int]:
    try:
        import psutil
    except ImportError:
        raise BenchError("measuring memory needs the package psutil: pip install 'txcollection[dev]'") from None
    return {name: psutil.Process(pid).memory_full_info().uss for name, pid in pids.items()}


def _by_kind(sizes: dict[str, int]) -> dict[str, int]:
    kinds: dict[str, int] = {}
    for name, size in sizes.items():
        kind = name.rpartition("-")[0] or name
        kinds[kind] = kinds.get(kind, 0) + size
    return kinds


def measure_memory(fixture: Fixture, directory: Path, progress: Progress | None = None) -> MemoryUse:
    """Idle, then with all processes, then with all declarations."""
    show = progress or (lambda *_: None)
    with (
        working_directory(directory) as work,
        running_nodes(fixture, work, {"both": CONFIGURATIONS["both"]}) as nodes,
    ):
        bench_node = nodes["both"]
        bench_node.set_mempool(fixture, complete=False)
        idle = sum(_uss(bench_node.node.pids()).values())
        _open_and_close(bench_node, fixture, show)
        before = _uss(bench_node.node.pids())
        with ExitStack() as open_ones:
            collections = []
            for number in range(COLLECTIONS):
                show("full declarations", number, COLLECTIONS)
                collections.append(open_ones.enter_context(bench_node.node.collect_txs(fixture.wtxids)))
            counted = [collection.wait_prefetched() for collection in collections]
            if not all(stats["prefetching"] and not stats["stopped"] for stats in counted):
                raise BenchError("not all eight collections could prefetch: is collection_actors set to less?")
            after = _uss(bench_node.node.pids())
    kinds_before, kinds_after = _by_kind(before), _by_kind(after)
    return MemoryUse(
        idle,
        sum(before.values()),
        sum(after.values()),
        {kind: (kinds_before.get(kind, 0), size) for kind, size in kinds_after.items()},
        [stats["bytes"] for stats in counted],
    )


def _open_and_close(bench_node: BenchNode, fixture: Fixture, show: Progress) -> None:
    """Makes every process of the pool start and do each thing once, so that what they import is not counted later."""
    late = fixture.late
    names = [fixture.wtxids[late - 1], fixture.wtxids[late]]
    with ExitStack() as open_ones:
        for number in range(COLLECTIONS):
            show("collection processes", number, COLLECTIONS)
            open_ones.enter_context(bench_node.node.collect_txs(names)).wait_prefetched()


def goals_of_memory(use: MemoryUse) -> list[Goal]:
    """Beyond the idle processes. What a process of Ray's takes by itself is shown, and is not a collection's."""
    beyond = (use.full - use.processes) / MIB
    what = f"{COLLECTIONS} full declarations, beyond idle processes"
    return [Goal(what, round(beyond, 1), COLLECTIONS * PER_COLLECTION, "MiB")]
