"""A check takes what has arrived and reads the rest itself, ahead of speculation that is still under way; what it makes
up of the block is thrown away afterwards, and what was observed serves the next call.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.actors.blocks import SUBSIDY, TestCoin, Tx, coinbase, spend
from tests.actors.small_chain import HEIGHT, SmallChain
from tests.actors.watching import Counters, drill, fetched, stats_of, until

OWN_OUTPUTS = 2  # of the dummy coinbase


@pytest.fixture(scope="module")
def node(module_node: Callable[..., Any]) -> Any:
    return module_node(batch_outpoints=4, batches_in_flight=2)


@pytest.fixture(scope="module")
def coins(small_chain: SmallChain) -> Iterator[TestCoin]:
    return iter(small_chain.coins)


@pytest.fixture
def pair(node: Any, coins: Iterator[TestCoin]) -> Iterator[tuple[Tx, Tx]]:
    """A transaction of 20 inputs in the mempool and one of two inputs that is not."""
    known, late = spend([next(coins) for _ in range(20)]), spend([next(coins) for _ in range(2)])
    node.mempool_add([known.raw])
    yield known, late
    node.mempool_remove(known.id)
    drill(node, "fetch", hold=False, hold_answers=False)
    drill(node, "script", hold=False)


def test_a_check_is_answered_while_every_speculative_read_is_held(
    node: Any, pair: tuple[Tx, Tx], small_chain: SmallChain
) -> None:
    known, late = pair
    drill(node, "fetch", hold=True)
    before = Counters(node)
    with node.collect_txs([known.id, late.id]) as collection:
        until(lambda: collection.stats()["batches"] == 2, "speculative requests lie at the worker")
        verdict = collection.make_template(small_chain.tip.id, missing=[late.raw])
        assert verdict.ok
        assert verdict.timings["coins_read"] == 22 + 2 + OWN_OUTPUTS
        assert before.since()["speculation_requests"] == 0
        assert collection.stats()["observations"] == 0
        drill(node, "fetch", hold=False)
        until(lambda: before.since()["speculation_requests"] == 2, "the held reads were done")
        assert collection.wait_prefetched()["batches"] == 2  # nothing more was begun
        assert collection.make_template(small_chain.tip.id).ok
        assert before.since()["speculation_requests"] == 2


def test_answers_that_come_in_the_middle_or_late_change_no_verdict(
    node: Any, pair: tuple[Tx, Tx], small_chain: SmallChain
) -> None:
    known, late = pair
    drill(node, "fetch", hold_answers=True)
    with node.collect_txs([known.id, late.id]) as collection:
        collection.add_missing_txs([late.raw])
        too_much = coinbase(HEIGHT + 1, [SUBSIDY + 2001])
        assert collection.make_template(small_chain.tip.id, too_much.raw).reason == "bad-cb-amount"
        drill(node, "fetch", hold_answers=False)
        collection.wait_prefetched()
        assert collection.make_template(small_chain.tip.id, too_much.raw).reason == "bad-cb-amount"
        exact = coinbase(HEIGHT + 1, [SUBSIDY + 2000])
        assert collection.make_template(small_chain.tip.id, exact.raw).ok


def test_only_what_has_not_arrived_is_read_by_the_check(
    node: Any, pair: tuple[Tx, Tx], small_chain: SmallChain
) -> None:
    known, late = pair
    with node.collect_txs([known.id, late.id]) as collection:
        assert collection.wait_prefetched()["observations"] == 20
        before = Counters(node)
        verdict = collection.make_template(small_chain.tip.id, missing=[late.raw])
        assert verdict.ok
        assert verdict.timings["coins_read"] == 2 + 1 + OWN_OUTPUTS  # late coins, its output, the coinbase's
        assert before.since()["chainstate.serial_reads"] == 0


def test_scripts_are_verified_by_the_check_while_speculation_is_held(
    node: Any, pair: tuple[Tx, Tx], small_chain: SmallChain
) -> None:
    known, late = pair
    drill(node, "script", hold=True)
    before = Counters(node)
    with node.collect_txs([known.id, late.id]) as collection:
        until(lambda: collection.stats()["observations"] == 20, "the coins have come")
        assert collection.make_template(small_chain.tip.id, missing=[late.raw]).ok
        assert before.since()["script.inputs.speculation"] == 0
        assert before.since()["script.inputs.validation"] == 22
        drill(node, "script", hold=False)
        collection.wait_prefetched()
        assert collection.make_template(small_chain.tip.id).ok
        assert before.since()["script.inputs.validation"] == 22


def test_what_was_read_serves_repeated_calls(node: Any, pair: tuple[Tx, Tx], small_chain: SmallChain) -> None:
    known, late = pair
    with node.collect_txs([known.id, late.id]) as collection:
        collection.add_missing_txs([late.raw])
        collection.wait_prefetched()
        first = collection.make_template(small_chain.tip.id)
        before = Counters(node)
        for tag in (b"a", b"b", b"c"):
            verdict = collection.make_template(small_chain.tip.id, coinbase(HEIGHT + 1, tag=tag).raw)
            assert (verdict.ok, verdict.timings["coins_read"], verdict.timings["scripts_run"]) == (True, 1, 0)
        assert first.ok
        since = before.since()
        assert since["validation_keys"] <= 3  # each coinbase's one output, wherever it is looked for
        assert since["speculation_keys"] == since["script.inputs.validation"] == 0


@pytest.mark.parametrize("from_mempool", [True, False])
def test_what_takes_only_the_list_is_worked_out_while_the_client_is_away(
    node: Any, pair: tuple[Tx, Tx], from_mempool: bool
) -> None:
    known, late = pair
    nowhere = [f"{n:064x}" for n in range(5000)]  # so many that the mempool's answer takes a while
    with node.collect_txs([known.id, late.id] if from_mempool else nowhere) as collection:
        until(lambda: collection.stats()["ready"], "the declaration is ready for its transactions")


def test_a_complete_declaration_is_read_once_for_repeated_calls(
    node: Any, pair: tuple[Tx, Tx], small_chain: SmallChain
) -> None:
    known, _ = pair
    with node.collect_txs([known.id]) as collection:
        reads = [collection.make_template(small_chain.tip.id).timings["coins_read"] for _ in range(3)]
        assert reads == [20 + 1 + OWN_OUTPUTS, OWN_OUTPUTS, OWN_OUTPUTS]


def test_spends_and_outputs_of_a_check_are_thrown_away(node: Any, pair: tuple[Tx, Tx], small_chain: SmallChain) -> None:
    """Each call spends the same coins and creates the same outputs anew, whatever the coinbase and the verdict."""
    known, late = pair
    child = spend([late.coin(), known.coin()])
    entries = stats_of(node, "chainstate")[0]["cache_entries"]
    with node.collect_txs([known.id, late.id, child.id]) as collection, node.collect_txs([known.id]) as other:
        collection.add_missing_txs([late.raw, child.raw])
        kept = collection.wait_prefetched()
        assert kept["observations"] == 22  # what the block itself creates is never looked up
        fees = 3000
        for _ in range(2):
            assert collection.make_template(small_chain.tip.id).ok
            too_much = coinbase(HEIGHT + 1, [SUBSIDY + fees + 1])
            assert collection.make_template(small_chain.tip.id, too_much.raw).reason == "bad-cb-amount"
            assert collection.make_template(small_chain.tip.id, coinbase(HEIGHT + 1, [SUBSIDY + fees]).raw).ok
            assert other.make_template(small_chain.tip.id).ok
        stats = collection.stats()
        assert (stats["observations"], stats["observed_bytes"]) == (kept["observations"], kept["observed_bytes"])
    assert stats_of(node, "chainstate")[0]["cache_entries"] == entries
    assert node.coins([(late.id, 0), (known.id, 0)]) == [None, None]


def test_a_coinbase_whose_output_a_declared_transaction_spends_changes_that_call_only(
    node: Any, pair: tuple[Tx, Tx], small_chain: SmallChain
) -> None:
    known, _ = pair
    own = coinbase(HEIGHT + 1, tag=b"own")
    greedy = spend([own.coin(), known.coin()])
    with node.collect_txs([known.id, greedy.id]) as collection:
        collection.add_missing_txs([greedy.raw])
        for _ in range(2):
            verdict = collection.make_template(small_chain.tip.id, own.raw)
            assert verdict.reason == "bad-txns-premature-spend-of-coinbase"
            assert verdict.debug.startswith("tried to spend coinbase at depth 0")
            verdict = collection.make_template(small_chain.tip.id)
            assert verdict.reason == "bad-txns-inputs-missingorspent"
            assert (verdict.offender.position, verdict.offender.input) == (2, 0)


def test_a_wrong_prevhash_changes_nothing(node: Any, pair: tuple[Tx, Tx], small_chain: SmallChain) -> None:
    known, late = pair
    with node.collect_txs([known.id, late.id]) as collection:
        collection.add_missing_txs([late.raw])
        collection.wait_prefetched()
        before = fetched(node)
        for prevhash, kind in ((small_chain.blocks[3].id, "stale"), ("77" * 32, "ahead")):
            verdict = collection.make_template(prevhash)
            assert (verdict.reason, verdict.kind) == ("inconclusive-not-best-prevblk", kind)
            assert prevhash in verdict.debug and small_chain.tip.id in verdict.debug
        assert fetched(node) == before
        assert collection.make_template(small_chain.tip.id).ok
