"""The four configurations of the bench, and the small reads that a check does itself: the same verdicts, and only the
plain one (serial reads through the cache) leaves anything in the coins cache.
"""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest

from tests.actors.blocks import SUBSIDY, TestCoin, Tx, coinbase, on_top, spend, split
from tests.actors.small_chain import HEIGHT, SmallChain
from tests.actors.watching import Counters, drill, stats_of

NOWHERE = TestCoin(b"\x44" * 32, 0, 100_000)

#: (prefetch, validation_fetch, read_through_cache, local_reads)
CONFIGURATIONS = {
    "plain": ("off", "serial", "on", 0),
    "parallel": ("off", "parallel", "off", 0),
    "prefetch": ("on", "serial", "off", 0),
    "both": ("on", "parallel", "off", 0),
    "both, few read on the spot": ("on", "parallel", "on", 64),
}

Case = tuple[list[Tx], list[Tx], bytes | None, str | None, int | None]  # known, supplied, coinbase, reason, position


def cases(chain: SmallChain) -> dict[str, Case]:
    coins = chain.coins
    first, second = spend(coins[0:3]), spend(coins[3:5])
    child = spend([first.coin(), *coins[5:6]])
    twice = spend(coins[0:1], fee=5000)
    early = spend([chain.immature])
    poor = spend(coins[6:7], [coins[6].value + 1])
    script = spend(coins[7:8], script_sig=b"\x6a")
    greedy = coinbase(HEIGHT + 1, [SUBSIDY + 2001]).raw
    return {
        "valid": ([first], [second], None, None, None),
        "valid, nothing known": ([], [first, second], None, None, None),
        "chained": ([first], [second, child], None, None, None),
        "absent coin": ([first], [spend([NOWHERE])], None, "bad-txns-inputs-missingorspent", 2),
        "spent twice": ([first], [twice], None, "bad-txns-inputs-missingorspent", 2),
        "child first": ([first], [child], None, None, None),
        "too early": ([first], [early], None, "bad-txns-premature-spend-of-coinbase", 2),
        "spends more": ([first], [poor], None, "bad-txns-in-belowout", 2),
        "bad script": ([first], [script], None, "block-script-verify-flag-failed", 2),
        "claims too much": ([first], [second], greedy, "bad-cb-amount", 0),
    }


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_verdicts_and_what_is_left_in_the_cache(
    name: str, chain_node: Callable[..., Any], small_chain: SmallChain
) -> None:
    prefetch, fetch, through, local = CONFIGURATIONS[name]
    node = chain_node(
        prefetch=prefetch,
        validation_fetch=fetch,
        read_through_cache=through,
        local_reads=local,
        coins_cache_bytes=10**6,
    )
    [before] = stats_of(node, "chainstate")
    assert before["cache_entries"] == 0
    counters = Counters(node)
    for what, (known, late, first, reason, position) in cases(small_chain).items():
        node.mempool_add([tx.raw for tx in known])
        with node.collect_txs([tx.id for tx in (*known, *late)]) as collection:
            collection.add_missing_txs([tx.raw for tx in late])
            stats = collection.wait_prefetched()
            assert stats["prefetching"] == (prefetch == "on"), what
            for _ in range(2):
                verdict = collection.make_template(small_chain.tip.id, first)
                assert verdict.reason == reason, what
                assert (verdict.offender.position if verdict.offender else None) == position, what
        for tx in known:
            node.mempool_remove(tx.id)
    since = counters.since()
    [after] = stats_of(node, "chainstate")
    assert (after["cache_entries"] > 0) == (name == "plain")
    assert (since["chainstate.serial_reads"] > 0) == (fetch == "serial")
    assert (since["validation_keys"] > 0) == (fetch == "parallel" and not local)
    assert (since["speculation_keys"] > 0) == (prefetch == "on")
    assert (since["judge.local_reads"] > 0) == (local > 0)


def test_a_plain_check_leaves_exactly_the_coins_it_read_in_the_cache(
    chain_node: Callable[..., Any], small_chain: SmallChain
) -> None:
    node = chain_node(prefetch="off", validation_fetch="serial", read_through_cache="on")
    first, second = spend(small_chain.coins[:4]), spend([*small_chain.coins[4:6], NOWHERE])
    with node.collect_txs([first.id, second.id]) as collection:
        verdict = collection.make_template(small_chain.tip.id, missing=[first.raw, second.raw])
        assert verdict.reason == "bad-txns-inputs-missingorspent"
    assert stats_of(node, "chainstate")[0]["cache_entries"] == 6  # an absence is not kept there
    # What is there now is what the prefetch of the other configurations would find first.
    with node.collect_txs([first.id]) as collection:
        assert collection.make_template(small_chain.tip.id, missing=[first.raw]).ok
    assert stats_of(node, "chainstate")[0]["cache_entries"] == 6


def test_reads_on_the_spot_follow_the_tip_and_report_what_is_wrong(
    chain_node: Callable[..., Any], small_chain: SmallChain
) -> None:
    """A handful of coins is read in the process of the check, whatever holds the workers."""
    node = chain_node(local_reads=64)
    drill(node, "fetch", hold=True, hold_checks=True)
    made = split(small_chain.coins[0], 2)
    block = on_top(small_chain.tip, [made])
    assert node.submit_block(block.raw) is None
    good, gone = spend([made.coin(1)]), spend(small_chain.coins[0:1], fee=777)
    for tx, reason in ((good, None), (gone, "bad-txns-inputs-missingorspent")):
        with node.collect_txs([tx.id]) as collection:
            assert collection.make_template(block.id, missing=[tx.raw]).reason == reason
    node.disconnect_tip()
    for tx, reason in ((gone, None), (good, "bad-txns-inputs-missingorspent")):
        with node.collect_txs([tx.id]) as collection:
            assert collection.make_template(small_chain.tip.id, missing=[tx.raw]).reason == reason


def test_all_template_actors_but_the_last_judge_declarations(
    chain_node: Callable[..., Any], small_chain: SmallChain
) -> None:
    node = chain_node(template_actors=3, collection_actors=4, prefetch="off")
    transactions = [spend([coin]) for coin in small_chain.coins[:5]]
    with ExitStack() as opened:
        collections = [opened.enter_context(node.collect_txs([tx.id])) for tx in transactions[:4]]  # a process each
        for collection, tx in zip(collections, transactions, strict=False):
            assert collection.make_template(small_chain.tip.id, missing=[tx.raw]).ok
        *judges, last = [stats["checks"] for stats in stats_of(node, "template")]
        assert (sum(judges), last) == (4, 0)
        assert node.check_block(on_top(small_chain.tip, transactions).raw).ok
        *judges, last = [stats["checks"] for stats in stats_of(node, "template")]
        assert (sum(judges), last) == (4, 1)
