"""What is read while the client is away, shown by counters of the workers: which inputs are queued, what the owner's
cache spares, how batches are bounded, that coins and absences are kept, and that a complete declaration asks nobody.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.actors.blocks import TestCoin, Tx, on_top, spend, split
from tests.actors.small_chain import SmallChain
from tests.actors.watching import Counters, drill, stats_of, until

BATCH = 4
IN_FLIGHT = 2
OWN_OUTPUTS = 2  # of the dummy coinbase: its reward and the witness commitment, both looked for because of BIP30


@pytest.fixture(scope="module")
def node(module_node: Callable[..., Any]) -> Any:
    return module_node(batch_outpoints=BATCH, batches_in_flight=IN_FLIGHT)


@pytest.fixture
def coins(small_chain: SmallChain) -> Iterator[TestCoin]:
    return iter(small_chain.coins)


@pytest.fixture
def known(node: Any) -> Iterator[Callable[..., None]]:
    """Puts transactions into the mempool for one test."""
    added: list[Tx] = []

    def add(*transactions: Tx) -> None:
        node.mempool_add([tx.raw for tx in transactions])
        added.extend(transactions)

    yield add
    for tx in reversed(added):
        node.mempool_remove(tx.id)


def take(coins: Iterator[TestCoin], n: int) -> list[TestCoin]:
    return [next(coins) for _ in range(n)]


def test_inputs_of_known_transactions_are_queued_except_those_created_earlier_in_the_list(
    node: Any, coins: Iterator[TestCoin], known: Callable[..., None]
) -> None:
    first = spend(take(coins, 3))
    second = spend([first.coin(), *take(coins, 2)])  # spends the first: 2 inputs are left to read
    third = spend(take(coins, 1), [1000, 2000])
    missing = spend(take(coins, 1))
    known(first, second, third)
    before = Counters(node)
    with node.collect_txs([first.id, second.id, missing.id, third.id]) as collection:
        stats = collection.wait_prefetched()
        assert collection.unknown_tx_pos() == [2]
        assert stats["from_workers"] == stats["observations"] == 3 + 2 + 1
        assert stats["probes"] == 1 + 1 + 2  # outputs, looked for because regtest enforces BIP30
        assert before.since()["speculation_keys"] == 6 + 4
        assert before.since()["validation_keys"] == 0


def test_a_child_that_stands_before_its_parent_is_looked_for_and_found_absent(
    node: Any, coins: Iterator[TestCoin], known: Callable[..., None], small_chain: SmallChain
) -> None:
    parent = spend(take(coins, 1))
    child = spend([parent.coin()])
    missing = spend(take(coins, 1))
    known(parent, child)
    with node.collect_txs([child.id, parent.id, missing.id]) as collection:
        assert collection.wait_prefetched()["observations"] == 2  # the child's absence and the parent's coin
        collection.add_missing_txs([missing.raw])
        verdict = collection.make_template(small_chain.tip.id)
        assert verdict.reason == "bad-txns-inputs-missingorspent"
        assert (verdict.offender.position, verdict.offender.input) == (1, 0)


def test_a_supplied_transaction_is_queued_at_once(
    node: Any, coins: Iterator[TestCoin], known: Callable[..., None]
) -> None:
    first, late, later = spend(take(coins, 2)), spend(take(coins, 5)), spend(take(coins, 1))
    known(first)
    with node.collect_txs([first.id, late.id, later.id]) as collection:
        assert collection.wait_prefetched()["from_workers"] == 2
        collection.add_missing_txs([late.raw])
        assert collection.wait_prefetched()["from_workers"] == 2 + 5
        assert collection.unknown_tx_pos() == [2]


def test_a_supplied_transaction_that_spends_an_earlier_one_asks_for_the_rest_only(
    node: Any, coins: Iterator[TestCoin], known: Callable[..., None]
) -> None:
    parent, missing = spend(take(coins, 1)), spend(take(coins, 1))
    child = spend([parent.coin(), *take(coins, 1)])
    known(parent)
    with node.collect_txs([parent.id, child.id, missing.id]) as collection:
        collection.wait_prefetched()
        collection.add_missing_txs([child.raw])
        stats = collection.wait_prefetched()
        assert stats["from_workers"] == stats["observations"] == 2


def test_what_is_known_already_is_not_queued_again(
    node: Any, coins: Iterator[TestCoin], known: Callable[..., None]
) -> None:
    first, late, missing = spend(take(coins, 2)), spend(take(coins, 1)), spend(take(coins, 1))
    known(first)
    with node.collect_txs([first.id, late.id, missing.id]) as collection:
        collection.wait_prefetched()
        collection.add_missing_txs([first.raw, late.raw])
        collection.add_missing_txs([late.raw])
        assert collection.wait_prefetched()["from_workers"] == 3


def test_batches_are_bounded_and_few_are_in_flight(
    node: Any, coins: Iterator[TestCoin], known: Callable[..., None]
) -> None:
    wide = spend(take(coins, 30))
    known(wide)
    drill(node, "fetch", hold=True)
    before = Counters(node)
    with node.collect_txs([wide.id, spend(take(coins, 1)).id]) as collection:
        until(lambda: collection.stats()["batches"] == IN_FLIGHT, "the first batches were sent")
        assert collection.stats()["queued"] == 30 - IN_FLIGHT * BATCH
        assert collection.stats()["batches"] == IN_FLIGHT  # no answer can have come: the workers are held
        assert before.since()["speculation_requests"] == 0
        drill(node, "fetch", hold=False)
        stats = collection.wait_prefetched()
        assert (stats["from_workers"], stats["queued"]) == (30, 0)
        assert before.since()["speculation_requests"] == 8 + 1  # eight of inputs, one of the probe
    assert all(worker["largest"]["speculation"] <= BATCH for worker in stats_of(node, "fetch"))


def test_coins_and_absences_are_kept_for_the_check(
    node: Any, coins: Iterator[TestCoin], known: Callable[..., None], small_chain: SmallChain
) -> None:
    nowhere = TestCoin(b"\x11" * 32, 3, 1000)
    good, bad = spend(take(coins, 4)), spend([*take(coins, 1), nowhere])
    known(good)
    with node.collect_txs([good.id, bad.id, spend(take(coins, 1)).id]) as collection:
        collection.add_missing_txs([bad.raw])
        assert collection.wait_prefetched()["observations"] == 6
    with node.collect_txs([good.id, bad.id]) as collection:
        collection.add_missing_txs([bad.raw])
        assert collection.wait_prefetched()["observations"] == 6
        before = Counters(node)
        verdict = collection.make_template(small_chain.tip.id)
        assert verdict.reason == "bad-txns-inputs-missingorspent"
        assert (verdict.offender.txid, verdict.offender.input) == (bad.id, 1)
        assert verdict.timings["coins_read"] == OWN_OUTPUTS  # the absence was not asked for a second time
        assert before.since()["speculation_keys"] == 0


def test_a_collection_complete_at_creation_asks_nobody(
    node: Any, coins: Iterator[TestCoin], known: Callable[..., None], small_chain: SmallChain
) -> None:
    first, second = spend(take(coins, 3)), spend(take(coins, 2))
    known(first, second)
    before = Counters(node)
    with node.collect_txs([first.id, second.id]) as collection:
        stats = collection.wait_prefetched()
        assert (stats["prefetching"], stats["bytes"], stats["queued"], stats["observations"]) == (False, 0, 0, 0)
        since = before.since()
        assert since["speculation_requests"] == since["validation_requests"] == since["chainstate.peeks"] == 0
        assert not any(actor["slot_used"] for actor in stats_of(node, "collection"))
        assert collection.make_template(small_chain.tip.id).ok
        since = before.since()
        assert since["speculation_requests"] == since["chainstate.peeks"] == 0
        assert since["validation_keys"] == 5 + 2 + OWN_OUTPUTS  # coins, and outputs that must not exist yet


def test_an_empty_list_asks_nobody_and_is_a_block_of_a_coinbase_alone(node: Any, small_chain: SmallChain) -> None:
    before = Counters(node)
    with node.collect_txs([]) as collection:
        assert collection.unknown_tx_pos() == []
        assert collection.make_template(small_chain.tip.id).ok
    assert before.since()["speculation_requests"] == 0
    assert before.since()["validation_keys"] == OWN_OUTPUTS


def test_what_the_coins_cache_holds_is_taken_first_and_the_cache_stays_as_it_was(
    chain_node: Callable[..., Any], small_chain: SmallChain
) -> None:
    """A connected block leaves what it created in the owner's cache; here four of five such outputs are spent."""
    node = chain_node()
    parent = split(small_chain.coins[0], 5)
    block = on_top(small_chain.tip, [parent])
    assert node.submit_block(block.raw) is None
    cached = spend([parent.coin(n) for n in range(4)])
    cold = spend(small_chain.coins[1:4])
    node.mempool_add([cached.raw, cold.raw])
    [before] = stats_of(node, "chainstate")
    assert before["cache_entries"] >= 5
    counters = Counters(node)
    with node.collect_txs([cached.id, cold.id, spend(small_chain.coins[4:5]).id]) as collection:
        stats = collection.wait_prefetched()
        assert (stats["cache_hits"], stats["from_workers"], stats["observations"]) == (4, 3, 7)
        assert counters.since()["speculation_keys"] == 3 + 2
        collection.add_missing_txs([spend(small_chain.coins[4:5]).raw])
        collection.wait_prefetched()
        assert collection.make_template(block.id).ok
    [after] = stats_of(node, "chainstate")
    assert (after["cache_entries"], after["cache_bytes"]) == (before["cache_entries"], before["cache_bytes"])
    assert after["peek_hits"] - before["peek_hits"] == 4
    assert after["serial_reads"] == before["serial_reads"]


def test_prefetch_switched_off_reads_nothing_ahead(chain_node: Callable[..., Any], small_chain: SmallChain) -> None:
    node = chain_node(prefetch="off")
    first, late = spend(small_chain.coins[:3]), spend(small_chain.coins[3:5])
    node.mempool_add([first.raw])
    before = Counters(node)
    with node.collect_txs([first.id, late.id]) as collection:
        collection.add_missing_txs([late.raw])
        assert collection.wait_prefetched()["prefetching"] is False
        assert before.since()["speculation_requests"] == 0
        verdict = collection.make_template(small_chain.tip.id)
        assert verdict.ok
        assert verdict.timings["coins_read"] == 5 + 2 + OWN_OUTPUTS


def test_scripts_of_a_declaration_are_verified_while_the_client_is_away(
    node: Any, coins: Iterator[TestCoin], known: Callable[..., None], small_chain: SmallChain
) -> None:
    first, late, last = spend(take(coins, 3)), spend(take(coins, 2)), spend(take(coins, 1))
    known(first)
    with node.collect_txs([first.id, late.id, last.id]) as collection:
        collection.add_missing_txs([late.raw])
        assert collection.wait_prefetched()["scripts_verified"] == 2
        collection.add_missing_txs([last.raw])
        assert collection.wait_prefetched()["scripts_verified"] == 3
        before = Counters(node)
        assert collection.make_template(small_chain.tip.id).ok
        assert before.since()["script.inputs.validation"] == 0


def test_a_script_that_fails_is_not_remembered_as_good(
    node: Any, coins: Iterator[TestCoin], known: Callable[..., None], small_chain: SmallChain
) -> None:
    good, bad = spend(take(coins, 1)), spend(take(coins, 1), script_sig=b"\x6a")  # OP_RETURN before OP_TRUE
    known(good, bad)
    with node.collect_txs([good.id, bad.id, spend(take(coins, 1)).id]) as collection:
        assert collection.wait_prefetched()["scripts_verified"] == 1
    with node.collect_txs([good.id, bad.id]) as collection:
        verdict = collection.make_template(small_chain.tip.id)
        assert verdict.reason == "block-script-verify-flag-failed"
        assert (verdict.offender.position, verdict.offender.input) == (2, 0)
