"""`bench peer`: the same block, on the same chain, to our node and to Bitcoin Core, in one run and one table. BITCOIND
in the environment names the program; without it Core's column says so.
"""

import os
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.corenode import CoreNode, core_node
from bench.errors import BenchError, RefusedSample
from bench.fixtures import Fixture
from bench.nodes import BenchNode, running_nodes, working_directory
from models.storage.store import Store

__all__ = ["AFTER_LAST", "CACHED", "CORE", "FIRST", "OURS", "PeerRuns", "bitcoind_of", "run_peer"]

FIRST = "the whole block, first time"
CACHED = "the whole block, scripts known"
AFTER_LAST = "after its last transaction"
OURS, CORE = "txcollection", "Bitcoin Core"
NO_BITCOIND = "not measured: BITCOIND is not set (BITCOIND=/path/to/bitcoind txcollection bench peer)"
SETTINGS: dict[str, dict[str, Any]] = {
    OURS: {"prefetch": "on", "validation_fetch": "parallel"},
    "first": {"mempool_verify": "off", "speculate_scripts": "off"},
}

Progress = Callable[[str, int, int], None]


@dataclass
class PeerRuns:
    """Milliseconds by (who, what); `why_empty` says why Core's column is."""

    ms: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    why_empty: str = ""
    core_version: str = ""

    def add(self, who: str, what: str, took: float) -> None:
        """One more sample."""
        self.ms.setdefault((who, what), []).append(took)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        rows = [{"who": who, "what": what, "ms": values} for (who, what), values in self.ms.items()]
        return {"rows": rows, "why_empty": self.why_empty, "core_version": self.core_version}


def bitcoind_of(environment: Mapping[str, str] = os.environ) -> Path | None:
    """The program that BITCOIND names. Raises BenchError if there is no such program."""
    name = environment.get("BITCOIND")
    if not name:
        return None
    found = shutil.which(name)
    if found is None:
        raise BenchError(f"BITCOIND={name} is no program that can be run")
    return Path(found)


def _blocks(fixture: Fixture) -> list[bytes]:
    """The fixture's chain without its genesis block, lowest first."""
    with Store.open(fixture.store, write=False) as store:
        headers = store.headers
        hashes = [headers.hash(headers.active(height)) for height in range(1, headers.tip_height + 1)]
        blocks = [store.archive.get_block(block_hash) for block_hash in hashes]
    if any(raw is None for raw in blocks):
        raise BenchError("the fixture's store does not keep all of its blocks: make it again")
    return [raw for raw in blocks if raw is not None]


def run_peer(
    fixture: Fixture,
    directory: Path,
    bitcoind: Path | None,
    samples: int,
    progress: Progress | None = None,
    **overrides: Any,
) -> PeerRuns:
    """Both, `samples` times, in turn. Core is started anew for every first time: a proposal leaves its scripts cached.

    `overrides` are settings of our nodes. Raises BenchError for a fixture with coins that no block made.
    """
    if fixture.manifest["filler"]:
        raise BenchError("a peer needs a chain of whole blocks: use the small fixture")
    runs = PeerRuns()
    show = progress or (lambda *_: None)
    with working_directory(directory) as work:
        if bitcoind is None:
            runs.why_empty = NO_BITCOIND
            with running_nodes(fixture, work, SETTINGS, **overrides) as nodes:
                _our_samples(nodes, fixture, runs, samples, show)
            return runs
        with core_node(bitcoind, work / "core", fixture.now) as core:
            runs.core_version = core.version()
            _feed(core, fixture, show)
            with running_nodes(fixture, work, SETTINGS, **overrides) as nodes:
                _our_samples(nodes, fixture, runs, samples, show, core)
    return runs


def _feed(core: CoreNode, fixture: Fixture, show: Progress) -> None:
    blocks = _blocks(fixture)
    for number, raw in enumerate(blocks):
        show("blocks to Bitcoin Core", number, len(blocks))
        answer = core.call("submitblock", raw.hex())
        if answer is not None:
            raise BenchError(f"Bitcoin Core refuses block {number + 1} of the fixture's chain: {answer}")
    best = core.call("getbestblockhash")
    if best != fixture.prevhash:
        raise BenchError(f"Bitcoin Core is at {best} instead of {fixture.prevhash}")


def _our_samples(
    nodes: Mapping[str, BenchNode],
    fixture: Fixture,
    runs: PeerRuns,
    samples: int,
    show: Progress,
    core: CoreNode | None = None,
) -> None:
    body = CoreNode.prepare(
        "getblocktemplate", {"mode": "proposal", "rules": ["segwit"], "data": fixture.block.raw.hex()}
    )
    for number in range(-1, samples):
        show("proposals", number + 1, samples + 1)
        taken = [(OURS, FIRST, _whole(nodes["first"], fixture)), (OURS, CACHED, _declared(nodes[OURS], fixture))]
        nodes[OURS].set_mempool(fixture, complete=False)
        taken.append((OURS, AFTER_LAST, _late(nodes[OURS], fixture)))
        nodes[OURS].set_mempool(fixture, complete=True)
        if core is not None:
            core.stop()
            core.start()
            taken += [(CORE, FIRST, _proposal(core, body)), (CORE, CACHED, _proposal(core, body))]
        if number >= 0:
            for who, what, took in taken:
                runs.add(who, what, took)


def _proposal(core: CoreNode, body: bytes) -> float:
    begun = time.perf_counter()
    reason = core.send(body)
    took = (time.perf_counter() - begun) * 1000
    if reason is not None:
        raise RefusedSample(f"Bitcoin Core answers {reason} to the fixture's block")
    return took


def _valid(verdict: Any, took: float) -> float:
    if not verdict.ok:
        raise RefusedSample(f"our node answers {verdict.reason} to the fixture's block")
    return took


def _whole(bench_node: BenchNode, fixture: Fixture) -> float:
    begun = time.perf_counter()
    verdict = bench_node.node.check_block(fixture.block.raw, proposal=True)
    return _valid(verdict, (time.perf_counter() - begun) * 1000)


def _declared(bench_node: BenchNode, fixture: Fixture) -> float:
    begun = time.perf_counter()
    with bench_node.node.collect_txs(fixture.wtxids) as collection:
        verdict = collection.make_template(fixture.prevhash, fixture.coinbase)
        return _valid(verdict, (time.perf_counter() - begun) * 1000)


def _late(bench_node: BenchNode, fixture: Fixture) -> float:
    with bench_node.node.collect_txs(fixture.wtxids) as collection:
        collection.wait_prefetched()
        time.sleep(0.05)
        raws = [fixture.transactions[fixture.late].raw]
        begun = time.perf_counter()
        verdict = collection.make_template(fixture.prevhash, fixture.coinbase, missing=raws)
        return _valid(verdict, (time.perf_counter() - begun) * 1000)
