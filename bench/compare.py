"""`bench compare`: every case on every configuration, samples interleaved, warm-ups first, then all of it again with
the configurations in reverse order; and what each length of a client's round trip hides.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray

from bench.cases import CASES, Case, round_trip
from bench.errors import RefusedSample
from bench.fixtures import Fixture
from bench.nodes import CONFIGURATIONS, FOUR, BenchNode, running_nodes, working_directory
from bench.samples import Sample, Summary, summarise
from models.messages import pack_tip, unpack_batch, unwrap

__all__ = ["KNOWN_INPUTS", "TRIPS", "ColdReads", "Comparison", "Effort", "compare"]

KNOWN_INPUTS = "known-input-prep"
TRIPS = (0, 10, 20, 30, 50, 75, 100, 150, 200)  # milliseconds
COLD_READS = 3  # samples

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Effort:
    """How many samples of each case on each configuration, after how many warm-ups."""

    warm_ups: int
    samples: int
    trip_samples: int  # at each length of the round trip, after one warm-up
    repeat: bool = True  # once more with the configurations in reverse order

    @classmethod
    def default(cls, fixture: Fixture) -> "Effort":
        """As the design text's benches: 5 + 101 on a small database, 3 + 31 on a large one."""
        return cls(3, 31, 5) if fixture.manifest["filler"] else cls(5, 101, 15)


@dataclass(slots=True)
class ColdReads:
    """All of the block's coins read by the workers alone, by phase: milliseconds and bytes from storage."""

    index_bytes: list[int | None] = field(default_factory=list)
    coins_ms: list[float] = field(default_factory=list)
    coins_bytes: list[int | None] = field(default_factory=list)
    probes_ms: list[float] = field(default_factory=list)
    probes_bytes: list[int | None] = field(default_factory=list)


@dataclass
class Comparison:
    """Everything that was measured."""

    configurations: list[str]
    samples: list[Sample] = field(default_factory=list)
    trips: list[Sample] = field(default_factory=list)
    reads: ColdReads = field(default_factory=ColdReads)
    refused: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def of(self, case: str, configuration: str, run: int | None = None) -> list[Sample]:
        """Samples of a case without its warm-ups."""
        return [
            s
            for s in self.samples
            if s.case == case and s.configuration == configuration and not s.warm_up and run in (None, s.run)
        ]

    def preparations(self, configuration: str) -> list[Sample]:
        """Samples that have a preparation, which is the case `known-input-prep`."""
        return [s for s in self.samples if s.configuration == configuration and not s.warm_up and s.prep_ms is not None]

    def time(self, case: str, configuration: str, run: int | None = None) -> Summary | None:
        """Median and quartiles of a case, milliseconds."""
        if case == KNOWN_INPUTS:
            return summarise(s.prep_ms for s in self.preparations(configuration) if run in (None, s.run))  # type: ignore[misc]
        return summarise(s.ms for s in self.of(case, configuration, run))

    def trip(self, milliseconds: float, configuration: str) -> Summary | None:
        """Median and quartiles after a round trip of that length."""
        name = f"round trip {milliseconds:g} ms"
        found = [s.ms for s in self.trips if s.case == name and s.configuration == configuration and not s.warm_up]
        return summarise(found)

    @property
    def cases(self) -> list[str]:
        """Names of the cases that were measured, in order."""
        names = list(dict.fromkeys(s.case for s in self.samples))
        return [KNOWN_INPUTS, *names] if any(s.prep_ms is not None for s in self.samples) else names

    @property
    def warm_samples(self) -> int:
        """How many samples were taken although the page cache could not be seen to be empty."""
        return sum(not s.cold for s in [*self.samples, *self.trips] if not s.warm_up)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        summaries = [
            {"case": case, "configuration": name, "run": run, **summary.to_dict()}
            for case in self.cases
            for name in self.configurations
            for run in (None, 1, 2)
            if (summary := self.time(case, name, run)) is not None
        ]
        return {
            "configurations": {name: CONFIGURATIONS.get(name, {}) for name in self.configurations},
            "summaries": summaries,
            "cold_reads": {name: getattr(self.reads, name) for name in ColdReads.__dataclass_fields__},
            "page_cache_dropped": self.warm_samples == 0,
            "samples_not_cold": self.warm_samples,
            "refused": self.refused,
            "seconds": round(self.seconds, 1),
            "samples": [s.to_dict() for s in self.samples],
            "round_trips": [s.to_dict() for s in self.trips],
        }


def compare(
    fixture: Fixture,
    directory: Path,
    effort: Effort | None = None,
    configurations: Sequence[str] = FOUR,
    cases: Sequence[Case] = CASES,
    trips: Iterable[float] = TRIPS,
    progress: Progress | None = None,
    **overrides: Any,
) -> Comparison:
    """Runs it all; `directory` takes the nodes' copies, `overrides` are settings of every node."""
    effort = effort or Effort.default(fixture)
    progress = progress or (lambda *_: None)
    begun = time.monotonic()
    result = Comparison(list(configurations))
    with (
        working_directory(directory) as work,
        running_nodes(fixture, work, configurations, **overrides) as nodes,
    ):
        for run in (1, 2) if effort.repeat else (1,):
            order = list(nodes.values()) if run == 1 else list(nodes.values())[::-1]
            for case in cases:
                _prepare(order, fixture, case)
                total = effort.warm_ups + effort.samples
                for number in range(total):
                    label = f"{case.name}{' (reverse order)' if run == 2 else ''}"
                    progress(label, number, total)
                    for bench_node in order:
                        _take(result, result.samples, case, bench_node, fixture, run, number - effort.warm_ups)
        for milliseconds in trips if effort.trip_samples else ():
            case = round_trip(milliseconds / 1000)
            _prepare(list(nodes.values()), fixture, case)
            for number in range(1 + effort.trip_samples):
                progress(case.name, number, 1 + effort.trip_samples)
                for bench_node in nodes.values():
                    _take(result, result.trips, case, bench_node, fixture, 1, number - 1)
        reader = nodes.get("both") or next(iter(nodes.values()))
        for number in range(COLD_READS):
            progress("cold reads", number, COLD_READS)
            _read_cold(result.reads, reader, fixture)
    result.seconds = time.monotonic() - begun
    return result


def _prepare(order: Sequence[BenchNode], fixture: Fixture, case: Case) -> None:
    for bench_node in order:
        bench_node.set_mempool(fixture, case.complete)


def _take(
    result: Comparison,
    into: list[Sample],
    case: Case,
    bench_node: BenchNode,
    fixture: Fixture,
    run: int,
    number: int,
) -> None:
    """One sample; `number` is negative for a warm-up."""
    try:
        sample = case.sample(bench_node, fixture)
    except RefusedSample as refused:
        result.refused.append(str(refused))
        return
    sample.run, sample.number, sample.warm_up = run, number, number < 0
    into.append(sample)


def _read_cold(reads: ColdReads, bench_node: BenchNode, fixture: Fixture) -> None:
    """The block's coins, then the outputs that BIP30 looks for, straight from the fetch workers."""
    cooling = bench_node.cool()
    reads.index_bytes.append(cooling.index_read)
    workers, tip = bench_node.directory()["fetch"], pack_tip(bench_node.node.tip())
    for outpoints, times, sizes in (
        (fixture.outpoints, reads.coins_ms, reads.coins_bytes),
        (fixture.probes, reads.probes_ms, reads.probes_bytes),
    ):
        shares = [b"".join(outpoints[n :: len(workers)]) for n in range(len(workers))]
        before = bench_node.storage_read()
        begun = time.perf_counter()
        answers = ray.get([w.read.remote(tip, share) for w, share in zip(workers, shares, strict=True)])
        times.append((time.perf_counter() - begun) * 1000)
        after = bench_node.storage_read()
        sizes.append(None if before is None or after is None else after - before)
        if sum(len(unpack_batch(unwrap(answer))) for answer in answers) != len(outpoints):
            raise RefusedSample("the workers answered for fewer coins than they were asked for")
