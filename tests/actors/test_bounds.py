"""Bounds: eight collections prefetch at once and a ninth works without, a slot comes back when its collection closes or
its actor dies, and a budget that is spent stops speculation without a change of any verdict.
"""

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

from models.errors import CollectionLost
from tests.actors.blocks import TestCoin, Tx, spend
from tests.actors.small_chain import SmallChain
from tests.actors.watching import Counters, drill, stats_of, until

SLOTS = 8
OBSERVATION = 24  # bytes of one packed observation without its script
QUEUED = 36  # bytes of one queued outpoint


@pytest.fixture(scope="module")
def node(module_node: Callable[..., Any]) -> Any:
    return module_node(collection_actors=SLOTS, collection_warm=1)


def declarations(coins: list[TestCoin], n: int) -> list[tuple[Tx, Tx]]:
    """Pairs of a transaction for the mempool (two inputs) and one to be supplied (one input)."""
    return [(spend(coins[3 * i : 3 * i + 2]), spend(coins[3 * i + 2 : 3 * i + 3])) for i in range(n)]


def test_eight_collections_prefetch_and_the_ninth_works_without(node: Any, small_chain: SmallChain) -> None:
    pairs = declarations(small_chain.coins, SLOTS + 2)
    node.mempool_add([known.raw for known, _ in pairs])
    opened = [node.collect_txs([known.id, late.id]) for known, late in pairs]
    stats = [collection.wait_prefetched() for collection in opened]
    assert [s["prefetching"] for s in stats] == [True] * SLOTS + [False] * 2
    assert [s["observations"] for s in stats] == [2] * SLOTS + [0] * 2
    assert len(stats_of(node, "collection")) == SLOTS
    assert sum(actor["slot_used"] for actor in stats_of(node, "collection")) == SLOTS
    for collection, (_, late) in zip(opened, pairs, strict=True):
        collection.add_missing_txs([late.raw])
        assert collection.make_template(small_chain.tip.id).ok
    for collection in opened:
        collection.close()
    assert not any(actor["slot_used"] for actor in stats_of(node, "collection"))
    assert [actor["open"] for actor in stats_of(node, "collection")] == [0] * SLOTS


def test_a_collection_that_closes_frees_its_slot(node: Any, small_chain: SmallChain) -> None:
    pairs = declarations(small_chain.coins, SLOTS + 1)
    opened = [node.collect_txs([known.id, late.id]) for known, late in pairs[:SLOTS]]
    try:
        opened[3].close()
        opened[3] = node.collect_txs([tx.id for tx in pairs[SLOTS]])
        assert opened[3].wait_prefetched()["prefetching"] is True
    finally:
        for collection in opened:
            collection.close()


def test_a_collection_complete_at_creation_takes_no_slot(node: Any, small_chain: SmallChain) -> None:
    known, late = declarations(small_chain.coins, 1)[0]
    complete = [node.collect_txs([known.id]) for _ in range(3)]
    assert not any(actor["slot_used"] for actor in stats_of(node, "collection"))
    with node.collect_txs([known.id, late.id]) as collection:
        assert collection.wait_prefetched()["prefetching"] is True
    for collection in complete:
        collection.close()


@pytest.mark.cluster
def test_an_actor_that_dies_frees_its_slot_and_its_collection_is_lost(node: Any, small_chain: SmallChain) -> None:
    pairs = declarations(small_chain.coins, SLOTS + 1)
    opened = [node.collect_txs([known.id, late.id]) for known, late in pairs[:SLOTS]]
    try:
        pids = node.pids()
        victim = next(name for name, stats in node.stats().items() if name.startswith("collection"))
        os.kill(pids[victim], signal.SIGKILL)
        until(lambda: victim not in node.stats(), "the dead actor left the directory")
        lost = []
        for collection in opened:
            try:
                assert collection.wait_prefetched()["prefetching"] is True
            except CollectionLost:
                lost.append(collection)
        assert len(lost) == 1
        with pytest.raises(CollectionLost, match="declare it again"):
            lost[0].make_template(small_chain.tip.id)
        with node.collect_txs([tx.id for tx in pairs[SLOTS]]) as again:
            assert again.wait_prefetched()["prefetching"] is True
            assert len(stats_of(node, "collection")) == SLOTS
        # The template actor keeps nothing of a declaration whose actor is gone.
        for collection in opened:
            collection.close()
        until(lambda: sum(s["drafts"] for s in stats_of(node, "template")) == 0, "every draft was dropped")
    finally:
        for collection in opened:
            collection.close()


@pytest.mark.parametrize("budget", [0, QUEUED, 12 * QUEUED])
def test_a_spent_budget_stops_speculation_and_the_check_reads_the_rest(
    budget: int, chain_node: Callable[..., Any], small_chain: SmallChain
) -> None:
    node = chain_node(collection_budget=budget, batch_outpoints=2, batches_in_flight=1)
    good = [spend(small_chain.coins[2 * i : 2 * i + 2]) for i in range(10)]
    late = spend(small_chain.coins[20:22])
    bad = spend([small_chain.coins[22], TestCoin(b"\x07" * 32, 1, 5)])
    node.mempool_add([tx.raw for tx in good])
    drill(node, "fetch", hold=True)
    with node.collect_txs([*(tx.id for tx in good), late.id]) as collection:
        assert collection.stats()["bytes"] <= budget
        drill(node, "fetch", hold=False)
        stats = collection.wait_prefetched()
        assert stats["budget"] == budget
        assert stats["bytes"] <= budget
        assert stats["observed_bytes"] <= budget
        assert stats["observations"] < 20
        collection.add_missing_txs([late.raw])
        assert collection.wait_prefetched()["bytes"] <= budget
        for _ in range(2):
            verdict = collection.make_template(small_chain.tip.id)
            assert verdict.ok
            assert collection.stats()["bytes"] <= budget
    with node.collect_txs([*(tx.id for tx in good), bad.id]) as collection:
        verdict = collection.make_template(small_chain.tip.id, missing=[bad.raw])
        assert verdict.reason == "bad-txns-inputs-missingorspent"
        assert (verdict.offender.position, verdict.offender.input) == (11, 1)


def test_bytes_are_counted_exactly(node: Any, small_chain: SmallChain) -> None:
    """Coins of OP_TRUE outputs: 24 bytes each and one of script; a BIP30 answer takes one byte."""
    known, late = spend(small_chain.coins[:7]), spend(small_chain.coins[7:8])
    node.mempool_add([known.raw])
    with node.collect_txs([known.id, late.id]) as collection:
        stats = collection.wait_prefetched()
        assert (stats["observed_bytes"], stats["queue_bytes"]) == (7 * (OBSERVATION + 1) + 1, 0)
        assert stats["bytes"] == stats["observed_bytes"]
        assert sum(actor["bytes"] for actor in stats_of(node, "collection")) == stats["bytes"]
        drill(node, "fetch", hold=True)
        collection.add_missing_txs([late.raw])
        assert collection.stats()["queue_bytes"] == QUEUED + 1
        drill(node, "fetch", hold=False)
        stats = collection.wait_prefetched()
        assert (stats["observed_bytes"], stats["queue_bytes"]) == (8 * (OBSERVATION + 1) + 2, 0)


def test_status_of_a_node_tells_bytes_counts_and_hits(node: Any, small_chain: SmallChain) -> None:
    known, late = spend(small_chain.coins[:2]), spend(small_chain.coins[2:3])
    before = Counters(node)
    with node.collect_txs([known.id, late.id]) as collection:
        node.mempool_add([known.raw])
        collection.wait_prefetched()
        all_of_them = node.stats()
        kinds = {name.rpartition("-")[0] for name in all_of_them} - {""}
        assert kinds == {"chainstate", "mempool", "fetch", "script", "template", "collection"}
        assert all(isinstance(stats, dict) and "error" not in stats for stats in all_of_them.values())
        collection.make_template(small_chain.tip.id, missing=[known.raw, late.raw])
        assert before.since()["judge.fallback_keys"] > 0
