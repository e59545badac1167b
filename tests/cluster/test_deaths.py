"""Every kind of process of a node is killed (SIGKILL) in every phase of a declaration; the verdicts stay right, nobody
has to lend a hand, and only those whose collection died with its actor are told so.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import ray

from cluster import Cluster
from models.errors import CollectionLost
from tests.actors.blocks import TestCoin, Tx, on_top, spend
from tests.actors.small_chain import SmallChain
from tests.actors.watching import drill, judged, stats_of, until
from tests.cluster.killing import KINDS, again, alive, kill

pytestmark = pytest.mark.cluster

ALL = (*KINDS, "supervisor")


@pytest.fixture(scope="module")
def node(module_node: Callable[..., Any]) -> Any:
    return module_node(fetch_workers=1, script_workers=2, template_actors=2, spare_workers=1, batch_outpoints=4)


@pytest.fixture(scope="module")
def coins(small_chain: SmallChain) -> Iterator[TestCoin]:
    return iter(small_chain.coins)


@pytest.fixture
def pair(node: Any, coins: Iterator[TestCoin]) -> Iterator[tuple[Tx, Tx]]:
    """A transaction that the mempool knows, whose inputs are worth prefetching, and one that comes late."""
    known, late = spend([next(coins) for _ in range(8)]), spend([next(coins)])
    again(lambda: node.mempool_add([known.raw]))
    yield known, late


def judge(node: Any, chain: SmallChain, pair: tuple[Tx, Tx]) -> None:
    """A right verdict and a wrong block refused for the right reason, on declarations made now."""
    known, late = pair
    twice = spend([TestCoin(late.raw[5:37], int.from_bytes(late.raw[37:41], "little"), 2_000)])

    def valid() -> Any:
        with node.collect_txs([known.id, late.id]) as collection:
            return collection.make_template(chain.tip.id, missing=[known.raw, late.raw])

    def double_spend() -> Any:
        with node.collect_txs([known.id, late.id, twice.id]) as collection:
            return collection.make_template(chain.tip.id, missing=[known.raw, late.raw, twice.raw])

    assert again(valid, lost_too=True).ok
    verdict = again(double_spend, lost_too=True)
    assert (verdict.reason, verdict.offender.position) == ("bad-txns-inputs-missingorspent", 3)


def was_replaced(node: Any, kind: str, pid: int) -> None:
    until(lambda: not alive(pid), f"the {kind} process is gone")
    until(lambda: pid not in node.pids().values(), f"the {kind} is not listed any more")
    if kind != "collection":
        until(lambda: not any("error" in stats for stats in node.stats().values()), f"another {kind} answers")


@pytest.mark.parametrize("kind", ALL)
def test_death_between_a_declaration_and_its_last_transaction(
    node: Any, small_chain: SmallChain, pair: tuple[Tx, Tx], kind: str
) -> None:
    known, late = pair
    collection = node.collect_txs([known.id, late.id])
    pid = kill(node, kind, collection)
    if kind == "collection":
        until(lambda: not alive(pid), "it is gone")
        with pytest.raises(CollectionLost, match="declare it again"):
            collection.make_template(small_chain.tip.id, missing=[late.raw])
    else:
        assert collection.unknown_tx_pos() == [1]
        assert again(lambda: collection.make_template(small_chain.tip.id, missing=[late.raw])).ok
        collection.close()
    judge(node, small_chain, pair)
    was_replaced(node, kind, pid)


@pytest.mark.parametrize("kind", ALL)
def test_death_while_prefetch_is_under_way(node: Any, small_chain: SmallChain, pair: tuple[Tx, Tx], kind: str) -> None:
    known, late = pair
    drill(node, "fetch", hold=True)
    collection = node.collect_txs([known.id, late.id])
    until(lambda: collection.stats()["batches"], "a batch is held")
    pid = kill(node, kind, collection)
    if kind != "fetch":  # the one that held it is gone with it
        drill(node, "fetch", hold=False)
    if kind == "collection":
        until(lambda: not alive(pid), "it is gone")
        with pytest.raises(CollectionLost):
            collection.unknown_tx_pos()
    else:
        assert again(lambda: collection.make_template(small_chain.tip.id, missing=[late.raw])).ok
        collection.close()
    judge(node, small_chain, pair)
    was_replaced(node, kind, pid)


@pytest.mark.parametrize("kind", ALL)
def test_death_under_a_check(node: Any, small_chain: SmallChain, pair: tuple[Tx, Tx], kind: str) -> None:
    known, late = pair
    collection = node.collect_txs([known.id, late.id])
    collection.wait_prefetched()
    drill(node, "fetch", hold_checks=True)
    before = judged(node, "fallback_reads")
    with ThreadPoolExecutor(1) as thread:
        verdict = thread.submit(collection.make_template, small_chain.tip.id, missing=[late.raw])
        until(lambda: judged(node, "fallback_reads") > before, "the check waits for its coins")
        pid = kill(node, kind, collection)
        until(lambda: not alive(pid), "it is gone")
        if kind != "fetch":
            drill(node, "fetch", hold_checks=False)
        if kind == "collection":
            with pytest.raises(CollectionLost):
                verdict.result()
        else:
            assert verdict.result().ok  # the call itself survives, without being asked again
    judge(node, small_chain, pair)
    was_replaced(node, kind, pid)


def test_deaths_of_the_template_actor_that_judges(chain_node: Callable[..., Any], small_chain: SmallChain) -> None:
    """Declarations that do not prefetch are judged by a template actor; another one is told all of it once more."""
    node = chain_node(prefetch="off", template_actors=2, spare_workers=1, fetch_workers=1)
    first, late = (spend([coin]) for coin in small_chain.coins[:2])
    with node.collect_txs([first.id, late.id]) as collection:
        collection.add_missing_txs([first.raw])
        kill(node, "template")  # between a supply and the check
        assert collection.make_template(small_chain.tip.id, missing=[late.raw]).ok
    until(lambda: not any("error" in stats for stats in node.stats().values()), "another one answers")
    with node.collect_txs([late.id, first.id]) as collection:
        drill(node, "fetch", hold_checks=True)
        before = judged(node, "fallback_reads")
        with ThreadPoolExecutor(1) as thread:
            verdict = thread.submit(collection.make_template, small_chain.tip.id, missing=[late.raw, first.raw])
            until(lambda: judged(node, "fallback_reads") > before, "the check waits for its coins")
            kill(node, "template")
            drill(node, "fetch", hold_checks=False)
            assert verdict.result().ok
        assert collection.make_template(small_chain.tip.id).ok


def test_a_fetch_worker_and_the_owner_die_together(node: Any, small_chain: SmallChain, pair: tuple[Tx, Tx]) -> None:
    """Neither can be made without the other: a fetch worker is given the tip, which nobody knows."""
    pids = [kill(node, kind) for kind in ("fetch", "chainstate")]
    judge(node, small_chain, pair)
    for kind, pid in zip(("fetch", "chainstate"), pids, strict=True):
        was_replaced(node, kind, pid)
    assert len(stats_of(node, "fetch")) == 1
    until(lambda: node.stats()["supervisor"]["spares"] == {"fetch": 1, "script": 1}, "the spare was made again")


def test_workers_that_die_while_there_is_no_supervisor_are_replaced_when_there_is(
    node: Any, small_chain: SmallChain, pair: tuple[Tx, Tx]
) -> None:
    scripts = len(stats_of(node, "script"))
    pids = {kind: kill(node, kind) for kind in ("fetch", "mempool")}
    pids["supervisor"] = kill(node, "supervisor")
    judge(node, small_chain, pair)
    for kind, pid in pids.items():
        was_replaced(node, kind, pid)
    assert len(stats_of(node, "script")) == scripts  # its spare was not taken for a member
    until(lambda: node.stats()["supervisor"]["spares"] == {"fetch": 1, "script": 1}, "spares are spares again")


def test_a_restarted_supervisor_watches_without_being_asked(node: Any) -> None:
    def workers() -> list[str]:  # from Ray, not from the supervisor
        named = ray.util.list_named_actors(all_namespaces=True)
        mine = [entry["name"] for entry in named if entry["namespace"] == node._namespace]
        return sorted(name for name in mine if name.startswith("script"))

    before = until(lambda: found if len(found := workers()) == 3 else None, "two and a spare are there")
    kill(node, "script")
    kill(node, "supervisor")
    until(lambda: len(now := workers()) == len(before) and now != before, "the dead worker was seen and replaced")


def test_a_client_that_joins_while_the_supervisor_is_restarted_waits_for_it(node: Any) -> None:
    kill(node, "supervisor")
    with Cluster.connect(store=node.store) as other:
        assert other.tip() == node.tip()


def test_clients_of_other_collection_actors_notice_nothing(
    node: Any, small_chain: SmallChain, pair: tuple[Tx, Tx], coins: Iterator[TestCoin]
) -> None:
    known, late = pair
    mine, his = spend([next(coins)]), spend([next(coins)])
    first = node.collect_txs([known.id, mine.id])
    second = node.collect_txs([his.id, late.id])  # its slot is a process of its own
    assert first._actor != second._actor
    pid = kill(node, "collection", first)
    until(lambda: not alive(pid), "it is gone")
    assert second.make_template(small_chain.tip.id, missing=[his.raw, late.raw]).ok
    with pytest.raises(CollectionLost, match="declare it again"):
        first.make_template(small_chain.tip.id, missing=[mine.raw])
    second.close()


def test_a_solved_block_survives_the_death_of_the_actor_that_takes_it_in(
    small_chain: SmallChain, chain_node: Callable[..., Any]
) -> None:
    """The template actor that judges it dies in the middle; the answer is that the block is the tip."""
    node = chain_node(template_actors=1)
    block = on_top(small_chain.tip, [spend([small_chain.coins[0]])], fees=1000)
    drill(node, "fetch", hold_checks=True)
    with ThreadPoolExecutor(1) as thread:
        answer = thread.submit(node.submit_block, block.raw)
        until(lambda: stats_of(node, "template")[0]["fallback_reads"], "the block is being judged")
        kill(node, "template")
        drill(node, "fetch", hold_checks=False)
        assert answer.result() is None
    assert node.tip_hash() == block.id
    assert node.submit_block(block.raw) == "duplicate"
