"""The nodes of a bench: one for each configuration, all in one Ray, each on a copy of the fixture's store whose tables
are hard links. Here they are made cold before a sample, and their counters are read.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray

from actors.supervisor import SUPERVISOR
from bench.disk import PageCache, is_cold, storage_bytes_read
from bench.errors import BenchError
from bench.fixtures import Fixture
from cluster import Cluster
from cluster.runtime import ensure_ray, namespace_of
from models.messages import pack_tip, unwrap
from models.storage.processes import is_running

__all__ = [
    "CONFIGURATIONS",
    "COUNTED",
    "FOUR",
    "BenchNode",
    "Cooling",
    "link_store",
    "running_nodes",
    "working_directory",
]

#: The settings that differ between configurations. The baseline reads as a plain TxCollection does.
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "baseline": {"prefetch": "off", "validation_fetch": "serial", "read_through_cache": "on", "mempool_outputs": "off"},
    "prefetch only": {"prefetch": "on", "validation_fetch": "serial", "mempool_outputs": "off"},
    "parallel only": {"prefetch": "off", "validation_fetch": "parallel"},
    "both": {"prefetch": "on", "validation_fetch": "parallel"},
    "both, 2 threads": {"prefetch": "on", "validation_fetch": "parallel", "fetch_threads": 2, "local_reads": 0},
}
FOUR = ("baseline", "prefetch only", "parallel only", "both")

#: Of every node of a bench: nothing dies here, so no spares; an open collection is not swept away during a long sample.
COMMON: dict[str, Any] = {"spare_workers": 0, "log_level": "error"}
# Ray warns on standard output of more processes than it would start at a time; here there are many on purpose.
STARTUP_CONCURRENCY = ("RAY_worker_maximum_startup_concurrency", "64")
NOT_COPIED = {"lock", "node.json", "node.log", "tip"}


#: Counters of which a sample shows the difference. Fallback: what a check reads itself, wherever it is read.
COUNTED = (
    *("prefetches", "prefetch_keys", "peeks", "fallback_reads", "fallback_keys"),
    *("local_reads", "reads", "read_keys", "serial_reads"),
)


@dataclass(frozen=True, slots=True)
class Cooling:
    """How a sample was prepared. Bytes; None where the system does not say."""

    resident: int | None  # of the fixture's files, still in the page cache afterwards
    index_read: int | None  # from storage, to open the databases anew

    @property
    def cold(self) -> bool:
        """Whether the page cache was seen to be empty."""
        return is_cold(self.resident)


@dataclass
class BenchNode:
    """A node with the handles that a bench needs beyond what clients have."""

    name: str
    node: Cluster
    cache: PageCache
    _pids: list[int] = field(default_factory=list)

    def directory(self) -> dict[str, Any]:
        """Actor handles by kind."""
        supervisor: Any = ray.get_actor(SUPERVISOR, namespace=namespace_of(self.node.store))
        return unwrap(ray.get(supervisor.directory.remote()))

    def refresh_pids(self) -> None:
        """Finds the worker processes again, after some were started."""
        self._pids = list(self.node.pids().values())

    @property
    def pids(self) -> list[int]:
        """Process ids of all actors."""
        if not self._pids:
            self.refresh_pids()
        return self._pids

    def storage_read(self) -> int | None:
        """Bytes that all actors together have read from storage so far."""
        return storage_bytes_read(self.pids)

    def cool(self) -> Cooling:
        """Empties the coins cache, opens every database anew, and drops the fixture's files from the page cache.

        A reader that has just opened its database holds its index in memory; everything else is read again.
        """
        handles = self.directory()
        before = self.storage_read()
        ray.get(handles["chainstate"].drop_caches.remote())
        everyone = [h for kind in handles.values() for h in (kind if isinstance(kind, list) else [kind])]
        ray.get([handle.reopen.remote() for handle in everyone if hasattr(handle, "reopen")])
        self.cache.drop()
        tip = pack_tip(self.node.tip())
        opening: list[Any] = [worker.read.remote(tip) for worker in handles["fetch"]]
        opening += [handle.warm_up.remote() for handle in everyone if hasattr(handle, "warm_up")]
        for answer in ray.get(opening):
            unwrap(answer)
        after = self.storage_read()
        return Cooling(self.cache.drop(), _difference(before, after))

    def rest(self) -> None:
        """Unmaps the tables that the owner of the database has read; they are the other nodes' tables as well."""
        owner = self.directory()["chainstate"]
        if hasattr(owner, "reopen"):
            unwrap(ray.get(owner.reopen.remote()))

    def counters(self) -> dict[str, int]:
        """Requests and sizes that the report shows, summed over the actors of a kind."""
        stats = self.node.stats()
        totals = dict.fromkeys(COUNTED, 0)
        for name, values in stats.items():
            kind = name.rpartition("-")[0]
            if kind == "fetch":
                totals["reads"] += values["requests"]["validation"]
                totals["read_keys"] += values["keys"]["validation"]
                totals["prefetches"] += values["requests"]["speculation"]
                totals["prefetch_keys"] += values["keys"]["speculation"]
            elif kind == "chainstate":
                for key in ("serial_reads", "peeks", "cache_entries", "cache_bytes"):
                    totals[key] = values[key]
            elif kind in ("template", "collection"):
                for key in ("fallback_reads", "fallback_keys", "local_reads"):
                    totals[key] += values[key]
        return totals

    def set_mempool(self, fixture: Fixture, complete: bool) -> None:
        """Puts the late transaction into the mempool, or takes it out; returns when all scripts are verified."""
        late = fixture.wtxids[fixture.late]
        there = self.node.transactions([late])[0] is not None
        if complete and not there:
            self.node.mempool_add([fixture.transactions[fixture.late].raw])
        elif there and not complete:
            self.node.mempool_remove(late)
        self.node.wait_mempool()


def _difference(before: int | None, after: int | None) -> int | None:
    return None if before is None or after is None else after - before


def link_store(source: Path, target: Path) -> None:
    """A copy of a store that nobody has open; its tables, which never change, are hard links where that is possible."""
    for path in sorted(source.rglob("*")):
        relative = path.relative_to(source)
        if path.is_dir():
            (target / relative).mkdir(parents=True, exist_ok=True)
        elif relative.name not in NOT_COPIED:
            (target / relative).parent.mkdir(parents=True, exist_ok=True)
            if path.suffix == ".ldb":
                try:
                    os.link(path, target / relative)
                    continue
                except OSError:
                    pass
            shutil.copy2(path, target / relative)


@contextmanager
def working_directory(directory: Path) -> Iterator[Path]:
    """A directory below `directory` for the copies of this run; what killed runs left is removed."""
    prefix = ".run-"
    for left in directory.glob(f"{prefix}*"):
        if not is_running(left.name.removeprefix(prefix).partition("-")[0]):
            shutil.rmtree(left, ignore_errors=True)
    directory.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f"{prefix}{os.getpid()}-", dir=directory))
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


@contextmanager
def running_nodes(
    fixture: Fixture,
    work: Path,
    configurations: Sequence[str] | Mapping[str, dict[str, Any]],
    with_mempool: bool = True,
    **overrides: Any,
) -> Iterator[dict[str, BenchNode]]:
    """One node for each configuration (names of CONFIGURATIONS, or names with settings), ended with the context."""
    chosen = configurations if isinstance(configurations, Mapping) else {n: CONFIGURATIONS[n] for n in configurations}
    stores = {}
    for number, name in enumerate(chosen):
        stores[name] = work / f"node-{number}"
        link_store(fixture.store, stores[name])
        if not with_mempool:
            (stores[name] / "mempool.dat").unlink(missing_ok=True)
    cache = PageCache([store / "chainstate" for store in stores.values()])
    os.environ.setdefault(*STARTUP_CONCURRENCY)
    owns_ray = ensure_ray("local", overrides.get("object_store_memory"))
    nodes: dict[str, BenchNode] = {}
    try:
        for name, settings in chosen.items():
            node = Cluster.start(store=stores[name], now=fixture.now, **{**COMMON, **settings, **overrides})
            nodes[name] = BenchNode(name, node, cache)
        for bench_node in nodes.values():
            bench_node.node.wait_mempool()
            if with_mempool and len(bench_node.node.mempool_wtxids()) != len(fixture.wtxids):
                raise BenchError(f"the mempool of the {bench_node.name} node is not the fixture's: make it again")
        yield nodes
    finally:
        for bench_node in nodes.values():
            bench_node.node.close()
        if owns_ray:
            ray.shutdown()
        for store in stores.values():
            shutil.rmtree(store, ignore_errors=True)
