"""A tip that moves under declarations: at each step of one the answer is stale, fork or ahead and never invalid; what
was observed of the old tip is dropped, late answers too, and the declaration prefetches again on the new one.
"""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import ray

from models.messages import unpack_tip, unpack_verdict, unwrap
from tests.actors.blocks import TestBlock, TestCoin, Tx, coinbase, mine, on_top, spend, split
from tests.actors.small_chain import SmallChain
from tests.actors.watching import Counters, actors, drill, stats_of, until

NOT_BEST = "inconclusive-not-best-prevblk"
NOWHERE = TestCoin(b"\x55" * 32, 0, 100_000)


class Line:
    """The shared node's chain, which grows with every test; blocks on it are made here."""

    def __init__(self, node: Any, chain: SmallChain) -> None:
        self.node = node
        self.tip: TestBlock = chain.tip
        self.number = 0

    def next(self, *transactions: Tx, tag: bytes = b"") -> TestBlock:
        self.number += 1
        return on_top(self.tip, transactions, tag=tag or b"n%d" % self.number)

    def grow(self, *transactions: Tx) -> TestBlock:
        """Submits the next block and returns it."""
        self.tip = self.next(*transactions)
        assert self.node.submit_block(self.tip.raw) is None
        return self.tip


@pytest.fixture(scope="module")
def node(module_node: Callable[..., Any]) -> Any:
    return module_node(batch_outpoints=4, batches_in_flight=2)


@pytest.fixture(scope="module")
def line(node: Any, small_chain: SmallChain) -> Line:
    return Line(node, small_chain)


@pytest.fixture(scope="module")
def coins(small_chain: SmallChain) -> Iterator[TestCoin]:
    return iter(small_chain.coins)


@pytest.fixture
def pair(node: Any, coins: Iterator[TestCoin]) -> Iterator[tuple[Tx, Tx]]:
    """A transaction of twelve inputs in the mempool and one of two that is not."""
    known, late = spend([next(coins) for _ in range(12)]), spend([next(coins) for _ in range(2)])
    node.mempool_add([known.raw])
    yield known, late
    drill(node, "fetch", hold=False, hold_answers=False, hold_checks=False)
    drill(node, "script", hold=False, hold_checks=False)
    if known.id in node.mempool_wtxids():
        node.mempool_remove(known.id)


def at_version(node: Any, collection: Any) -> dict[str, Any]:
    """Counters of a collection once all that it wants at the node's tip is there."""

    def settled() -> dict[str, Any] | None:
        stats = collection.wait_prefetched()
        return stats if stats["version"] == tuple(node.tip().version) and stats["idle"] else None

    return until(settled, "the collection prefetched at the new tip")


def test_before_anything_was_read(node: Any, line: Line, pair: tuple[Tx, Tx]) -> None:
    known, late = pair
    old = line.tip
    with node.collect_txs([known.id, late.id]) as collection:
        new = line.grow()
        assert collection.make_template(old.id).reason == "missing-txs"  # what is incomplete says so first
        collection.add_missing_txs([late.raw])
        verdict = collection.make_template(old.id)
        assert (verdict.kind, verdict.reason) == ("stale", NOT_BEST)
        assert verdict.template is None
        assert collection.make_template(new.id).ok


def test_while_speculative_reads_are_held(node: Any, line: Line, pair: tuple[Tx, Tx]) -> None:
    known, late = pair
    old = line.tip
    drill(node, "fetch", hold=True)
    with node.collect_txs([known.id, late.id]) as collection:
        until(lambda: waiting(node, "speculation") == 2, "two batches lie at the worker")
        new = line.grow()
        drill(node, "fetch", hold=False)
        stats = at_version(node, collection)
        assert stats["observations"] == 12
        assert stats["observed_bytes"] == stats["bytes"] == 12 * 25 + 1
        collection.add_missing_txs([late.raw])
        verdict = collection.make_template(old.id)
        assert (verdict.kind, verdict.reason) == ("stale", NOT_BEST)
        assert collection.make_template(new.id).ok


def test_late_answers_of_an_old_version_are_dropped(node: Any, line: Line, pair: tuple[Tx, Tx]) -> None:
    """Two batches were read before the tip moved and arrive after it: a coin that the new block spent is among them."""
    known, late = pair
    before = Counters(node)
    drill(node, "fetch", hold_answers=True)
    with node.collect_txs([known.id, late.id]) as collection:
        until(lambda: waiting(node, "answers") == 2, "two answers wait at the worker")
        assert before.since()["speculation_keys"] == 8
        new = line.grow(spend_first_input_elsewhere(known))
        drill(node, "fetch", hold_answers=False)
        stats = at_version(node, collection)
        assert stats["version"] == tuple(node.tip().version)
        assert stats["observations"] == 12
        assert before.since()["speculation_keys"] >= 8 + 12  # all of it was read anew
        verdict = collection.make_template(new.id, missing=[late.raw])
        assert verdict.reason == "bad-txns-inputs-missingorspent"
        assert (verdict.offender.txid, verdict.offender.input) == (known.id, 0)


def spend_first_input_elsewhere(tx: Tx) -> Tx:
    """Another transaction that spends the first input of `tx`, whose coins are all equal."""
    txid, n = tx.raw[5:37], int.from_bytes(tx.raw[37:41], "little")
    return spend([TestCoin(txid, n, (tx.outputs[0][0] + 1000) // 12)])


def waiting(node: Any, gate: str) -> int:
    return sum(stats["waiting"][gate] for stats in stats_of(node, "fetch"))


def test_between_supply_and_make_template(node: Any, line: Line, pair: tuple[Tx, Tx]) -> None:
    known, late = pair
    old = line.tip
    with node.collect_txs([known.id, late.id]) as collection:
        collection.wait_prefetched()
        collection.add_missing_txs([late.raw])
        new = line.grow()
        verdict = collection.make_template(old.id)
        assert (verdict.kind, verdict.reason) == ("stale", NOT_BEST)
        assert old.id in verdict.debug and new.id in verdict.debug
        assert collection.make_template(new.id).ok


def in_the_background(collection: Any, prevhash: TestBlock, missing: list[bytes]) -> Any:
    """`make_template` as a message that is not waited for."""
    return collection._actor.make_template.remote(collection._key, prevhash.hash, None, missing, None, None)


def verdict_of(reference: Any) -> Any:
    return unpack_verdict(unwrap(ray.get(reference, timeout=60)))


def test_while_the_check_waits_for_scripts(node: Any, line: Line, pair: tuple[Tx, Tx]) -> None:
    known, late = pair
    old = line.tip
    drill(node, "script", hold=True, hold_checks=True)
    with node.collect_txs([known.id, late.id]) as collection:
        before = Counters(node)
        asked = in_the_background(collection, old, [late.raw])
        until(lambda: before.since()["judge.fallback_reads"], "the check has its coins")
        new = line.grow()  # a coinbase alone runs no scripts
        drill(node, "script", hold=False, hold_checks=False)
        verdict = verdict_of(asked)
        assert (verdict.kind, verdict.reason) == ("stale", NOT_BEST)
        assert collection.make_template(new.id).ok


def test_while_the_check_waits_for_coins(node: Any, line: Line, pair: tuple[Tx, Tx]) -> None:
    """The tip is taken back under the check, so its prevhash is on no active chain any more."""
    known, late = pair
    old = line.grow()
    drill(node, "fetch", hold_checks=True)
    with node.collect_txs([known.id, late.id]) as collection:
        asked = in_the_background(collection, old, [late.raw])
        until(lambda: waiting(node, "validation") == 1, "the check's read lies at the worker")
        parent = node.disconnect_tip()
        drill(node, "fetch", hold_checks=False)
        verdict = verdict_of(asked)
        assert (verdict.kind, verdict.reason) == ("fork", NOT_BEST)
        assert collection.make_template(parent.hash[::-1].hex()).ok
        assert node.submit_block(old.raw) == "duplicate"
        assert collection.make_template(old.id).ok


def test_a_tip_that_comes_back_under_the_check_is_another_version_and_the_verdict_is_made_anew(
    node: Any, line: Line, pair: tuple[Tx, Tx]
) -> None:
    known, late = pair
    old = line.grow()
    version = node.tip().version
    drill(node, "script", hold=True, hold_checks=True)
    with node.collect_txs([known.id, late.id]) as collection:
        before = Counters(node)
        asked = in_the_background(collection, old, [late.raw])
        until(lambda: before.since()["judge.fallback_reads"], "the check has its coins")
        node.disconnect_tip()
        assert node.submit_block(old.raw) == "duplicate"
        assert node.tip().hash == old.hash and node.tip().version > version
        drill(node, "script", hold=False, hold_checks=False)
        assert verdict_of(asked).ok
        since = before.since()  # at both versions all coins were read, by the check or by the prefetch beside it
        assert since["judge.fallback_keys"] + since["speculation_keys"] >= 2 * 14


@pytest.mark.parametrize("broken", [False, True])
def test_an_old_prevhash_is_never_called_invalid(node: Any, line: Line, broken: bool, pair: tuple[Tx, Tx]) -> None:
    """Whether its transactions are good or not; classes are those of where the prevhash is."""
    known, late = pair
    last = spend([NOWHERE]) if broken else late
    stale, tip = line.grow(), line.grow()
    fork = mine(stale.hash, tip.height, tip.time, tag=b"fork %d" % broken)
    assert node.submit_block(fork.raw) == "inconclusive"
    with node.collect_txs([known.id, last.id]) as collection:
        for prevhash in (stale.id, fork.id, "12" * 32, tip.id):
            assert collection.make_template(prevhash).kind == "missing"
        collection.add_missing_txs([last.raw])
        kinds = [collection.make_template(prevhash).kind for prevhash in (stale.id, fork.id, "12" * 32)]
        assert kinds == ["stale", "fork", "ahead"]
        assert collection.make_template(tip.id).kind == ("invalid" if broken else "valid")


def test_a_complete_collection_prefetches_again_on_the_new_tip(node: Any, line: Line, pair: tuple[Tx, Tx]) -> None:
    known, late = pair
    with node.collect_txs([known.id, late.id]) as collection:
        collection.add_missing_txs([late.raw])
        assert collection.wait_prefetched()["observations"] == 14
        assert collection.make_template(line.tip.id).ok
        for _ in range(2):
            new = line.grow()
            stats = at_version(node, collection)
            assert (stats["observations"], stats["stopped"]) == (14, "")
            before = Counters(node)
            assert collection.make_template(new.id).timings["coins_read"] == 2  # the coinbase's outputs
            assert before.since()["speculation_keys"] == 0


def test_a_transaction_that_was_mined_is_an_overwrite_on_this_network(node: Any, line: Line, coins: Any) -> None:
    """SPEC 2.5: BIP30 always holds on regtest, so what is in a block already is found there first."""
    mined, other = spend([next(coins)]), spend([next(coins)])
    node.mempool_add([mined.raw])
    with node.collect_txs([mined.id, other.id]) as collection:
        collection.add_missing_txs([other.raw])
        assert collection.make_template(line.tip.id).ok
        new = line.grow(mined)
        at_version(node, collection)
        verdict = collection.make_template(new.id)
        assert (verdict.reason, verdict.offender.txid) == ("bad-txns-BIP30", mined.id)


def test_workers_follow_by_deltas_and_open_nothing(node: Any, line: Line, coins: Any) -> None:
    [before] = stats_of(node, "fetch")
    made = split(next(coins), 3)
    for transactions in ([made], [spend([made.coin(0)])], []):
        line.grow(*transactions)
        until(lambda: stats_of(node, "fetch")[0]["version"] == node.tip().version, "the worker follows")
    good, bad = spend([made.coin(1)]), spend([made.coin(0)], fee=2000)
    with node.collect_txs([good.id, bad.id]) as collection:
        collection.add_missing_txs([good.raw, bad.raw])
        verdict = collection.make_template(line.tip.id)
        assert (verdict.reason, verdict.offender.txid) == ("bad-txns-inputs-missingorspent", bad.id)
    node.disconnect_tip()
    node.disconnect_tip()
    until(lambda: stats_of(node, "fetch")[0]["version"] == node.tip().version, "the worker follows back")
    with node.collect_txs([bad.id]) as collection:
        assert collection.make_template(node.tip_hash(), missing=[bad.raw]).ok
    assert node.submit_block(line.tip.raw) == "duplicate"
    until(lambda: stats_of(node, "fetch")[0]["version"] == node.tip().version, "the worker follows again")
    [after] = stats_of(node, "fetch")
    assert after["opens"] == before["opens"]


def test_a_worker_that_missed_a_delta_or_lets_go_opens_its_handle_anew(node: Any, line: Line, coins: Any) -> None:
    [worker] = actors(node, "fetch")
    [before] = stats_of(node, "fetch")
    ray.get(worker.reopen.remote())
    assert stats_of(node, "fetch")[0]["version"] is None
    new = line.grow()  # this block's delta finds nothing to lie on
    tx = spend([next(coins)])
    with node.collect_txs([tx.id]) as collection:
        assert collection.make_template(new.id, missing=[tx.raw]).ok
    [after] = stats_of(node, "fetch")
    assert after["opens"] == before["opens"] + 1
    assert after["version"] == node.tip().version


def test_the_mempool_drops_what_is_confirmed_or_conflicts_and_takes_back_what_returns(
    node: Any, line: Line, coins: Any
) -> None:
    confirmed, unrelated, shared = spend([next(coins)]), spend([next(coins)]), next(coins)
    child = spend([confirmed.coin()])
    loser, winner = spend([shared], fee=2000), spend([shared], fee=3000)
    heir = spend([loser.coin()])
    node.mempool_add([tx.raw for tx in (confirmed, child, unrelated, loser, heir)])
    fork = line.tip
    tip = line.grow(confirmed, winner)
    held = until_mempool(node, {child.id, unrelated.id})
    assert confirmed.id not in held and loser.id not in held and heir.id not in held
    node.disconnect_tip()
    until_mempool(node, {child.id, unrelated.id, confirmed.id, winner.id})
    # A branch that confirms another spend of the same coin: what returned and conflicts goes again.
    first = mine(fork.hash, tip.height, tip.time, [loser], tag=b"other")
    second = on_top(first)
    assert node.submit_block(first.raw) == "inconclusive"
    assert node.submit_block(second.raw) is None
    line.tip = second
    until_mempool(node, {child.id, unrelated.id, confirmed.id})
    for tx in (child, unrelated, confirmed):
        node.mempool_remove(tx.id)


def until_mempool(node: Any, wanted: set[str]) -> list[str]:
    return until(lambda: set(node.mempool_wtxids()) == wanted and node.mempool_wtxids(), f"the mempool is {wanted}")


def test_own_blocks_are_made_of_what_the_reorg_left(node: Any, line: Line, coins: Any) -> None:
    tx = spend([next(coins)], fee=7000)
    node.mempool_add([tx.raw])
    line.grow(tx)
    until(lambda: node.mempool_wtxids() == [], "the block's transaction left the mempool")
    node.disconnect_tip()
    until(lambda: node.mempool_wtxids() == [tx.id], "it came back")
    assert node.tip().height == line.tip.height - 1
    assert node.submit_block(line.tip.raw) == "duplicate"
    until(lambda: node.mempool_wtxids() == [], "it left again")


def test_submissions_at_the_same_time_are_served_one_after_the_other(node: Any, line: Line) -> None:
    rivals = [line.next(tag=b"rival %d" % i) for i in range(4)]
    answers: list[Any] = []
    threads = [threading.Thread(target=lambda b=b: answers.append(node.submit_block(b.raw))) for b in rivals]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(map(str, answers)) == ["None", "inconclusive", "inconclusive", "inconclusive"]
    line.tip = next(block for block in rivals if block.id == node.tip_hash())


def test_a_block_that_is_invalid_in_the_middle_of_a_branch_leads_back_to_the_old_tip(node: Any, line: Line) -> None:
    old, utxo = line.grow(), node.utxo_stats()
    fork = line.tip
    mine_ = line.grow()
    utxo = node.utxo_stats()
    first = mine(fork.hash, mine_.height, mine_.time, tag=b"first")
    second = on_top(first, [spend([NOWHERE])])
    third = on_top(second)
    version = node.tip().version
    assert [node.submit_block(block.raw) for block in (first,)] == ["inconclusive"]
    assert node.submit_block(second.raw) == "bad-txns-inputs-missingorspent"
    assert node.submit_block(third.raw) == "bad-prevblk"
    assert node.tip_hash() == mine_.id
    assert node.utxo_stats() == utxo
    assert node.tip().version > version  # it was elsewhere meanwhile, and that is another version
    assert old.height + 1 == mine_.height
    tx = coinbase(mine_.height + 1)
    with node.collect_txs([]) as collection:
        assert collection.make_template(mine_.id, tx.raw).ok


def test_a_store_that_is_closed_and_opened_again_has_versions_of_its_own(
    chain_node: Callable[..., Any], small_chain: SmallChain
) -> None:
    path = small_chain.store()
    first = chain_node(path)
    version = first.tip().version
    first.close()
    second = chain_node(path)
    assert second.tip().hash == small_chain.tip.hash
    assert second.tip().version.epoch == version.epoch + 1
    assert second.tip().version > version


@pytest.mark.cluster
def test_a_chainstate_that_is_replaced_invalidates_like_a_tip_change(
    node: Any, line: Line, pair: tuple[Tx, Tx]
) -> None:
    known, late = pair
    with node.collect_txs([known.id, late.id]) as collection:
        old = collection.wait_prefetched()["version"]
        [handle] = actors(node, "chainstate")
        ray.kill(handle)
        until(lambda: actors(node, "chainstate") not in ([handle], [None]), "another chainstate owns the store")
        tip = unpack_tip(unwrap(ray.get(actors(node, "chainstate")[0].tip.remote())))
        assert (tip.hash, tip.version.epoch) == (line.tip.hash, old[0] + 1)
        assert at_version(node, collection)["observations"] == 12
        assert collection.make_template(line.tip.id, missing=[late.raw]).ok
        line.grow()
        assert collection.make_template(line.tip.id).ok
