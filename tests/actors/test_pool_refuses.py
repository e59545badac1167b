"""Speculation when the pool of readers is stopped, has one worker, or loses workers in the middle of a batch: it goes
on elsewhere or ends without a sound, and the check reads the rest to the same verdict.
"""

import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import ray

from models.errors import WorkerLost
from models.messages import unwrap
from tests.actors.blocks import TestCoin, Tx, spend
from tests.actors.small_chain import SmallChain
from tests.actors.watching import Counters, actors, drill, judged, until

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def node(module_node: Callable[..., Any]) -> Any:
    return module_node(fetch_workers=2, batch_outpoints=4, batches_in_flight=2)


@pytest.fixture(scope="module")
def coins(small_chain: SmallChain) -> Iterator[TestCoin]:
    return iter(small_chain.coins)


@pytest.fixture
def pair(node: Any, coins: Iterator[TestCoin]) -> Iterator[tuple[Tx, Tx]]:
    known, late = spend([next(coins) for _ in range(16)]), spend([next(coins)])
    node.mempool_add([known.raw])
    yield known, late
    node.mempool_remove(known.id)


def kill_fetch_workers(node: Any, number: int) -> None:
    """SIGKILL; returns when the supervisor has put others in."""
    before = [name for name in node.stats() if name.startswith("fetch")]
    pids = node.pids()
    for name in before[:number]:
        os.kill(pids[name], signal.SIGKILL)
    until(
        lambda: (
            len(now := [name for name in node.stats() if name.startswith("fetch")]) == len(before)
            and not set(before[:number]) & set(now)
        ),
        "the dead workers were replaced",
    )


def wire_without_fetch_workers(node: Any, stopped: bool) -> None:
    node._refresh()
    directory = {**node._directory, **({"fetch": []} if stopped else {})}
    ray.get([h.wire.remote(directory) for kind in ("collection", "template") for h in directory[kind]])


def test_a_batch_whose_worker_dies_is_read_by_the_other_one(
    node: Any, pair: tuple[Tx, Tx], small_chain: SmallChain
) -> None:
    known, late = pair
    drill(node, "fetch", hold=True)
    survivor = actors(node, "fetch")[1]
    with node.collect_txs([known.id, late.id]) as collection:
        until(lambda: collection.stats()["batches"] == 2, "a batch lies at each worker")
        os.kill(node.pids()[next(n for n in node.stats() if n.startswith("fetch"))], signal.SIGKILL)
        ray.get(survivor.drill.remote(hold=False))
        stats = collection.wait_prefetched()
        assert (stats["observations"], stats["stopped"]) == (16, "")
        assert ray.get(survivor.stats.remote())["keys"]["speculation"] >= 8
        assert collection.make_template(small_chain.tip.id, missing=[late.raw]).ok
    until(lambda: len(actors(node, "fetch")) == 2 and survivor in actors(node, "fetch"), "the dead one was replaced")


def test_a_batch_that_took_two_workers_ends_speculation_and_the_check_waits_for_others(
    node: Any, pair: tuple[Tx, Tx], small_chain: SmallChain
) -> None:
    known, late = pair
    drill(node, "fetch", hold=True)
    with node.collect_txs([known.id, late.id]) as collection:
        until(lambda: collection.stats()["batches"] == 2, "a batch lies at each worker")
        kill_fetch_workers(node, 2)
        stats = collection.wait_prefetched()
        assert stats["observations"] == 0
        assert stats["stopped"].startswith("WorkerLost")
        assert stats["queued"] == stats["queue_bytes"] == 0
        verdict = collection.make_template(small_chain.tip.id, missing=[late.raw])
        assert verdict.ok
        assert verdict.timings["coins_read"] == 17 + 2 + 2


def test_a_stopped_pool_ends_speculation_and_the_owner_reads_for_the_check(
    node: Any, pair: tuple[Tx, Tx], small_chain: SmallChain
) -> None:
    known, late = pair
    wire_without_fetch_workers(node, stopped=True)
    before = Counters(node)
    try:
        with node.collect_txs([known.id, late.id]) as collection:
            stats = collection.wait_prefetched()
            assert stats["observations"] == 0
            assert stats["stopped"].startswith("WorkerLost")
            assert collection.make_template(small_chain.tip.id, missing=[late.raw]).ok
            bad = spend([TestCoin(b"\x33" * 32, 0, 7777)])
        with node.collect_txs([known.id, bad.id]) as collection:
            assert collection.make_template(small_chain.tip.id, missing=[bad.raw]).reason == (
                "bad-txns-inputs-missingorspent"
            )
        since = before.since()
        assert since["speculation_requests"] == since["validation_requests"] == 0
        assert since["chainstate.serial_reads"] > 0
        assert since["chainstate.cache_entries"] == 0
    finally:
        wire_without_fetch_workers(node, stopped=False)


def test_a_check_under_which_two_workers_die_is_a_typed_error_and_the_next_one_is_served(
    node: Any, pair: tuple[Tx, Tx], small_chain: SmallChain
) -> None:
    known, late = pair
    with node.collect_txs([known.id, late.id]) as collection:
        collection.add_missing_txs([late.raw])
        collection.wait_prefetched()
        before = retries(node)
        drill(node, "fetch", hold_checks=True)
        asked = collection._actor.make_template.remote(collection._key, small_chain.tip.hash, None, [], None, None)
        killed = []
        for death in (1, 2):
            [worker] = until(lambda: with_a_check(node), "the check's read lies at a worker")
            killed.append(worker)
            os.kill(ray.get(worker.__ray_call__.remote(lambda _: os.getpid())), signal.SIGKILL)
            until(lambda deaths=death: retries(node) == before + deaths, "the death was seen")
        with pytest.raises(WorkerLost, match="two fetch workers died under one request"):
            unwrap(ray.get(asked, timeout=30))
        until(
            lambda: len(now := actors(node, "fetch")) == 2 and not any(handle in killed for handle in now),
            "others were put in",
        )
        drill(node, "fetch", hold_checks=False)
        assert collection.make_template(small_chain.tip.id).ok


def retries(node: Any) -> int:
    return judged(node, "retries")


def with_a_check(node: Any) -> list[Any]:
    """Fetch workers at which the read of a check waits."""
    try:
        return [worker for worker in actors(node, "fetch") if ray.get(worker.stats.remote())["waiting"]["validation"]]
    except ray.exceptions.RayActorError:
        return []


def test_one_worker_that_dies_in_the_middle_of_a_batch(chain_node: Callable[..., Any], small_chain: SmallChain) -> None:
    node = chain_node(fetch_workers=1, batch_outpoints=4, batches_in_flight=1)
    known, late = spend(small_chain.coins[:16]), spend(small_chain.coins[16:17])
    node.mempool_add([known.raw])
    drill(node, "fetch", hold=True)
    with node.collect_txs([known.id, late.id]) as collection:
        until(lambda: collection.stats()["batches"] == 1, "a batch lies at the worker")
        kill_fetch_workers(node, 1)
        stats = collection.wait_prefetched()
        assert stats["stopped"].startswith("WorkerLost")
        assert collection.make_template(small_chain.tip.id, missing=[late.raw]).ok
    with node.collect_txs([known.id, late.id]) as collection:  # the next one prefetches with the replacement
        assert collection.wait_prefetched()["observations"] == 16
