"""`bench scripts`: the first full validation of a block of which no script is known yet, against the kernel verifying
the same inputs on two threads in one process, which is the least that it can take.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.errors import RefusedSample
from bench.fixtures import Fixture
from bench.goals import Goal
from bench.nodes import BenchNode, running_nodes, working_directory
from bench.samples import summarise
from models.coins.codec import coin_key, decode_coin, obfuscate
from models.script.jobs import ScriptJob
from models.script.verify import ALL_FLAGS, verify_batch
from models.storage.reader import CoinsReader

__all__ = ["KERNEL", "ScriptRuns", "goals_of_scripts", "run_scripts"]

KERNEL, WHOLE, SUPPLIED = "the kernel alone, two threads", "check_block, the whole block", "collection, all supplied"
KERNEL_THREADS = 2
BOUND = 1.5  # times the kernel's time
SETTINGS: dict[str, dict[str, Any]] = {"first validation": {"mempool_verify": "off", "speculate_scripts": "off"}}

Progress = Callable[[str, int, int], None]


@dataclass(slots=True)
class ScriptRuns:
    """Milliseconds of each way, one value per sample; and what our checks say of themselves."""

    ms: dict[str, list[float]] = field(default_factory=lambda: {KERNEL: [], WHOLE: [], SUPPLIED: []})
    inside: list[dict[str, float]] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {"ms": self.ms, "inside": self.inside}


def script_jobs(fixture: Fixture) -> list[ScriptJob]:
    """What the kernel needs: each raw transaction with (satoshis, scriptPubKey) of the coins that it spends."""
    reader = CoinsReader.open(fixture.chainstate)
    try:
        jobs = []
        for tx in fixture.transactions:
            spent = []
            for value in reader.multi_get([coin_key(prevout) for prevout in tx.prevouts]):
                if value is None:
                    raise RefusedSample("a coin of the fixture is not in its database: make it again")
                coin = decode_coin(obfuscate(value, reader.xor_key))
                spent.append((coin.value, coin.script))
            jobs.append((tx.raw, spent))
        return jobs
    finally:
        reader.close()


def run_scripts(fixture: Fixture, directory: Path, samples: int, progress: Progress | None = None) -> ScriptRuns:
    """All ways in turn, `samples` times after one warm-up. Coins are in the databases' caches; scripts never are."""
    jobs = script_jobs(fixture)
    runs = ScriptRuns()
    ways: dict[str, Callable[[BenchNode], float]] = {
        KERNEL: lambda _: _kernel(jobs),
        WHOLE: lambda node: _whole(node, fixture, runs),
        SUPPLIED: lambda node: _supplied(node, fixture, runs),
    }
    with (
        working_directory(directory) as work,
        running_nodes(fixture, work, SETTINGS, with_mempool=False) as nodes,
    ):
        node = nodes["first validation"]
        for number in range(-1, samples):
            for name, way in ways.items():
                if progress:
                    progress(name, number + 1, samples + 1)
                took = way(node)
                if number >= 0:
                    runs.ms[name].append(took)
    return runs


def _kernel(jobs: list[ScriptJob]) -> float:
    begun = time.perf_counter()
    firsts = verify_batch(jobs, ALL_FLAGS, threads=KERNEL_THREADS)
    took = (time.perf_counter() - begun) * 1000
    if any(first >= 0 for first in firsts):
        raise RefusedSample("the kernel refused a script of the fixture: make it again")
    return took


def _whole(bench_node: BenchNode, fixture: Fixture, runs: ScriptRuns) -> float:
    begun = time.perf_counter()
    verdict = bench_node.node.check_block(fixture.block.raw, check_pow=True)
    took = (time.perf_counter() - begun) * 1000
    return _valid(verdict, took, fixture, runs)


def _supplied(bench_node: BenchNode, fixture: Fixture, runs: ScriptRuns) -> float:
    raws = [tx.raw for tx in fixture.transactions]
    begun = time.perf_counter()
    with bench_node.node.collect_txs(fixture.wtxids) as collection:
        verdict = collection.make_template(fixture.prevhash, fixture.coinbase, missing=raws)
        took = (time.perf_counter() - begun) * 1000
    return _valid(verdict, took, fixture, runs)


def _valid(verdict: Any, took: float, fixture: Fixture, runs: ScriptRuns) -> float:
    """Refuses a verdict that is not valid, or for which scripts were remembered."""
    run = (verdict.timings or {}).get("scripts_run")
    if not verdict.ok or run != fixture.manifest["inputs"]:
        raise RefusedSample(
            f"first validation: {verdict.kind.value} {verdict.reason or ''}, {run} scripts were run instead of "
            f"{fixture.manifest['inputs']}"
        )
    runs.inside.append(dict(verdict.timings))
    return took


def goals_of_scripts(runs: ScriptRuns) -> list[Goal]:
    """Each of our ways against the kernel."""
    kernel = summarise(runs.ms[KERNEL])
    goals = []
    for name in (WHOLE, SUPPLIED):
        ours = summarise(runs.ms[name])
        if kernel and ours:
            goals.append(Goal(f"{name}, against the kernel", round(ours.median / kernel.median, 2), BOUND, "x"))
    return goals
