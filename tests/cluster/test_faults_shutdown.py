"""A node that is closed while prefetch and validation run: it ends, every open call is answered with a typed error or
its result, no process and no lock is left, and nothing that writes was done twice.
"""

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from cluster.runtime import NodeFile, NoNode
from models.errors import TxCollectionError
from models.storage.store import Store
from tests.actors.blocks import on_top, spend
from tests.actors.small_chain import QUIET, SmallChain
from tests.actors.watching import drill, stats_of, until

pytestmark = pytest.mark.cluster

HANG_GUARD = 30.0  # seconds; what it takes is a figure and not this test's matter


def outcome(call: Future[Any]) -> str:
    """What a call came to; anything but a result or an error of ours fails the test."""
    try:
        call.result(timeout=HANG_GUARD)
    except TxCollectionError as error:
        assert str(error)
        return type(error).__name__
    return "answered"


def nothing_is_left(node: Any, path: Path, pids: dict[str, int]) -> None:
    until(lambda: not [name for name, pid in pids.items() if psutil.pid_exists(pid)], "every process has ended")
    with pytest.raises(NoNode):
        NodeFile.read(path)
    with Store.open(path) as store:  # the lock is free
        assert store.coins.best_block


@pytest.mark.parametrize("held", [True, False], ids=["held", "running"])
def test_closing_while_everything_is_under_way(
    held: bool, start_node: Callable[..., Any], small_chain: SmallChain
) -> None:
    path = small_chain.store()
    node = start_node(path, **{**QUIET, "batch_outpoints": 4, "fetch_workers": 2, "script_workers": 2})
    pids = node.pids()
    known, late = spend(small_chain.coins[:60]), spend(small_chain.coins[60:62])
    node.mempool_add([known.raw])
    block = on_top(small_chain.tip, [late])
    waiting = [node.collect_txs([known.id, late.id]) for _ in range(3)]
    waiting[1].add_missing_txs([late.raw])
    if held:
        drill(node, "fetch", hold=True, hold_checks=True)
        drill(node, "script", hold=True, hold_checks=True)
    fresh = node.collect_txs([known.id, late.id])
    tip = small_chain.tip.id
    with ThreadPoolExecutor(16) as threads:
        calls = {
            "make_template": threads.submit(waiting[1].make_template, tip),
            "make_template, all at once": threads.submit(fresh.make_template, tip, None, [late.raw]),
            "wait_prefetched": threads.submit(waiting[0].wait_prefetched),
            "check_block": threads.submit(node.check_block, block.raw),
            "submit_block": threads.submit(node.submit_block, block.raw),
            "assemble": threads.submit(node.assemble_template),
            "utxo_stats": threads.submit(node.utxo_stats),
        }
        if held:
            until(
                lambda: (
                    sum(s["waiting"]["validation"] + s["waiting"]["speculation"] for s in stats_of(node, "fetch")) >= 4
                ),
                "reads of checks and of speculation are under way",
            )
        begun = time.monotonic()
        node.close()
        assert time.monotonic() - begun < HANG_GUARD
        outcomes = {name: outcome(call) for name, call in calls.items()}
    if held:
        assert outcomes["make_template"] == outcomes["make_template, all at once"] == "CollectionLost"
        assert outcomes["check_block"] != "answered"
    nothing_is_left(node, path, pids)
    with Store.open(path) as store:
        assert store.served_tip().hash in (small_chain.tip.hash, block.hash)
        if outcomes["submit_block"] == "answered" and not held:
            assert store.served_tip().hash == block.hash


def test_after_the_end_every_call_is_a_typed_error(start_node: Callable[..., Any], small_chain: SmallChain) -> None:
    path = small_chain.store()
    node = start_node(path, **QUIET)
    tx = spend(small_chain.coins[:1])
    collection = node.collect_txs([tx.id])
    node.close()
    node.close()
    calls: list[Callable[[], Any]] = [
        node.tip,
        node.utxo_stats,
        node.stats,
        node.pids,
        node.disconnect_tip,
        lambda: node.submit_block(small_chain.tip.raw),
        lambda: node.check_block(small_chain.tip.raw),
        lambda: node.collect_txs([tx.id]),
        lambda: node.mempool_add([tx.raw]),
        lambda: node.coins([(tx.id, 0)]),
        collection.unknown_tx_pos,
        lambda: collection.add_missing_txs([tx.raw]),
        lambda: collection.make_template(small_chain.tip.id),
        collection.stats,
    ]
    for call in calls:
        with pytest.raises(TxCollectionError):
            call()
    collection.close()
    assert "closed" in repr(node)


def test_a_client_that_joined_leaves_the_node_alone_and_frees_its_collections(
    chain_node: Callable[..., Any], small_chain: SmallChain
) -> None:
    from cluster import Cluster

    node = chain_node()
    guest = Cluster.connect(node.store)
    tx = spend(small_chain.coins[:1])
    guest.collect_txs([tx.id])
    mine = node.collect_txs([tx.id])
    assert sum(actor["open"] for actor in stats_of(node, "collection")) == 2
    guest.close()
    until(lambda: sum(actor["open"] for actor in stats_of(node, "collection")) == 1, "the guest's was freed")
    assert mine.make_template(small_chain.tip.id, missing=[tx.raw]).ok


def test_a_block_is_connected_once_however_often_it_is_submitted(
    chain_node: Callable[..., Any], small_chain: SmallChain
) -> None:
    node = chain_node(template_actors=2)
    block = on_top(small_chain.tip, [spend(small_chain.coins[:1])])
    with ThreadPoolExecutor(8) as threads:
        answers = sorted(map(str, threads.map(lambda _: node.submit_block(block.raw), range(8))))
    assert answers == ["None", *["duplicate"] * 7]
    [chainstate] = stats_of(node, "chainstate")
    assert (chainstate["connected"], chainstate["disconnected"]) == (1, 0)
