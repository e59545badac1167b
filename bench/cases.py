"""The flows that are timed, each as a client drives it. A case prepares one cold sample, times it, and looks at the
verdict's block afterwards: what is not the fixture's block is refused.
"""

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bench.errors import RefusedSample
from bench.fixtures import Fixture, block_weight
from bench.nodes import COUNTED, BenchNode
from bench.samples import Sample
from models.consensus.verdict import Verdict
from models.wire.block import HEADER_SIZE, decode_block

__all__ = ["ASSEMBLE", "CASES", "COMPLETE", "ONE_MISSING", "Case", "round_trip"]

SILENCE = 0.05  # seconds that a real client's round trip leaves
Flow = Callable[[BenchNode, Fixture, Sample], None]


@dataclass(frozen=True, slots=True)
class Case:
    """A named flow, and whether the mempool has to hold every transaction for it."""

    name: str
    complete: bool
    flow: Flow

    def sample(self, bench_node: BenchNode, fixture: Fixture) -> Sample:
        """One sample, cold. Raises RefusedSample for a verdict that is not valid or a block that is another."""
        cooling = bench_node.cool()
        sample = Sample(self.name, bench_node.name, 0.0, cold=cooling.cold, resident=cooling.resident)
        sample.storage["index"] = cooling.index_read
        gc.collect()
        try:
            self.flow(bench_node, fixture, sample)
        finally:
            bench_node.rest()
        return sample


class _Phases:
    """Reads counters between phases, outside the timing."""

    def __init__(self, bench_node: BenchNode, sample: Sample):
        self._node = bench_node
        self._sample = sample
        self._counters = bench_node.counters()
        self._storage = bench_node.storage_read()

    def end(self, phase: str) -> None:
        counters, storage = self._node.counters(), self._node.storage_read()
        self._sample.requests[phase] = {key: counters[key] - self._counters[key] for key in COUNTED}
        known = storage is not None and self._storage is not None
        self._sample.storage[phase] = storage - self._storage if known else None  # type: ignore[operator]
        self._sample.cache_entries, self._sample.cache_bytes = counters["cache_entries"], counters["cache_bytes"]
        self._counters, self._storage = counters, storage


def _check(sample: Sample, verdict: Verdict, fixture: Fixture, block: bytes | None) -> None:
    """Refuses what is not the fixture's block, valid."""
    where = f"{sample.case} on {sample.configuration}"
    if not verdict.ok or block is None:
        raise RefusedSample(f"{where}: the verdict was {verdict.kind.value} {verdict.reason or ''} {verdict.debug}")
    if block[HEADER_SIZE:] == fixture.block.raw[HEADER_SIZE:]:
        sample.weight = fixture.weight
    else:
        sample.weight = block_weight(decode_block(block))
        raise RefusedSample(
            f"{where}: a valid block of weight {sample.weight}, but not the fixture's of {fixture.weight}"
        )
    sample.inside = dict(verdict.timings or {})


def _one_missing(silence: float, one_call: bool) -> Flow:
    def flow(bench_node: BenchNode, fixture: Fixture, sample: Sample) -> None:
        node, late = bench_node.node, [fixture.transactions[fixture.late].raw]
        wtxids, prevhash, coinbase = fixture.wtxids, fixture.prevhash, fixture.coinbase
        phases = _Phases(bench_node, sample)
        begun = time.perf_counter()
        with node.collect_txs(wtxids) as collection:
            collection.unknown_tx_pos()
            retained = collection.wait_prefetched()
            sample.prep_ms = (time.perf_counter() - begun) * 1000
            sample.retained_entries = retained["observations"] + retained["probes"]
            sample.retained_bytes = retained["observed_bytes"]
            phases.end("preparation")
            collection.unknown_tx_pos()  # the client's last word before its round trip; counting took it a while
            if silence:
                time.sleep(silence)
            begun = time.perf_counter()
            if one_call:
                verdict = collection.make_template(prevhash, coinbase, missing=late)
            else:
                collection.add_missing_txs(late)
                verdict = collection.make_template(prevhash, coinbase)
            sample.ms = (time.perf_counter() - begun) * 1000
            phases.end("verdict")
            _check(sample, verdict, fixture, verdict.template.block if verdict.ok else None)

    return flow


def _complete(bench_node: BenchNode, fixture: Fixture, sample: Sample) -> None:
    node, wtxids, prevhash, coinbase = bench_node.node, fixture.wtxids, fixture.prevhash, fixture.coinbase
    phases = _Phases(bench_node, sample)
    begun = time.perf_counter()
    collection = node.collect_txs(wtxids)
    collection.unknown_tx_pos()
    verdict = collection.make_template(prevhash, coinbase)
    sample.ms = (time.perf_counter() - begun) * 1000
    with collection:
        phases.end("verdict")
        _check(sample, verdict, fixture, verdict.template.block if verdict.ok else None)


def _assemble(bench_node: BenchNode, fixture: Fixture, sample: Sample) -> None:
    phases = _Phases(bench_node, sample)
    begun = time.perf_counter()
    verdict = bench_node.node.assemble_template()
    sample.ms = (time.perf_counter() - begun) * 1000
    phases.end("verdict")
    template: Any = verdict.template
    if not verdict.ok:
        _check(sample, verdict, fixture, None)
    expected = fixture.manifest["fees"], sorted(tx.raw for tx in fixture.transactions)
    if (template.fees, sorted(template.transactions)) != expected:
        raise RefusedSample(
            f"assemble on {bench_node.name}: {len(template.transactions)} transactions with {template.fees} satoshis "
            f"of fees instead of {len(expected[1])} with {expected[0]}"
        )
    sample.weight = block_weight(decode_block(template.block))
    sample.inside = dict(verdict.timings or {})


def round_trip(seconds: float) -> Case:
    """The client is away for a time that does not depend on us; whatever is ready then is ready."""

    def flow(bench_node: BenchNode, fixture: Fixture, sample: Sample) -> None:
        late = [fixture.transactions[fixture.late].raw]
        phases = _Phases(bench_node, sample)
        with bench_node.node.collect_txs(fixture.wtxids) as collection:
            if seconds:
                time.sleep(seconds)
            begun = time.perf_counter()
            verdict = collection.make_template(fixture.prevhash, fixture.coinbase, missing=late)
            sample.ms = (time.perf_counter() - begun) * 1000
            phases.end("all")
            _check(sample, verdict, fixture, verdict.template.block if verdict.ok else None)

    return Case(f"round trip {seconds * 1000:g} ms", False, flow)


ONE_MISSING: tuple[Case, ...] = (
    Case("one-missing, one call, after 50 ms", False, _one_missing(SILENCE, True)),
    Case("one-missing, one call, back to back", False, _one_missing(0, True)),
    Case("one-missing, two calls, after 50 ms", False, _one_missing(SILENCE, False)),
    Case("one-missing, two calls, back to back", False, _one_missing(0, False)),
)
COMPLETE = Case("complete", True, _complete)
ASSEMBLE = Case("assemble", True, _assemble)
CASES: tuple[Case, ...] = (*ONE_MISSING, COMPLETE, ASSEMBLE)
