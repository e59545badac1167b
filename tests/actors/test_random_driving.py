"""Collections, supplies, blocks, reorgs and closes in any order over a small chain: each verdict equals that of a plain
single-process check at that tip on a second store kept in step, and after every step all bytes are within their budgets
and the counters agree with each other.
"""

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from tests.actors.blocks import TestBlock, TestCoin, Tx, coinbase, merkle_root, mine, on_top, spend, subsidy
from tests.actors.small_chain import SmallChain
from tests.actors.watching import stats_of
from tests.differential.local_chain import LocalChain

BUDGET = 420  # bytes of one collection: room for about ten inputs, so that it is spent now and then
SLOTS = 2
NOWHERE = TestCoin(b"\x99" * 32, 0, 40_000)


class Declared:
    """A collection as its client knows it."""

    def __init__(self, handle: Any, transactions: list[Tx], unknown: set[int]) -> None:
        self.handle = handle
        self.transactions = transactions
        self.unknown = unknown


class Driving(RuleBasedStateMachine):
    """The node and the plain chain are shared by all runs, each of which goes on from where the last one ended."""

    node: Any
    plain: LocalChain
    chain: SmallChain
    number = 0
    compared = 0

    collections = Bundle("collections")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[Declared] = []
        self.turn = 0
        self.pool: list[Tx] = []  # transactions to choose from, some of which spend each other or the same coins

    # What there is to work with -------------------------------------------------------------------------------------

    def tip_block(self) -> TestBlock:
        raw = self.plain.chain.body(self.plain.tip.hash)
        header_time = int.from_bytes(raw[68:72], "little")
        return TestBlock(raw, self.plain.tip.height, header_time, ())

    @initialize(seed=st.integers(0, 2**32))
    def make_the_first_transactions(self, seed: int) -> None:
        self.make_transactions(seed)

    @rule(seed=st.integers(0, 2**32))
    def make_transactions(self, seed: int) -> None:
        choice = random.Random(seed)
        coins = choice.sample(self.chain.coins, 8)
        made = [spend(coins[at : at + 2], fee=choice.randrange(500, 5000)) for at in (0, 2, 4)]
        made.append(spend([made[0].coin(), coins[6]], fee=900))  # a child
        made.append(spend([coins[0], coins[7]], fee=choice.randrange(500, 5000)))  # a double spend
        made.append(choice.choice([spend([coins[7], NOWHERE]), spend(coins[7:8], script_sig=b"\x6a")]))
        self.pool = (self.pool + made)[-24:]

    def choose(self, data: st.DataObject, most: int) -> list[Tx]:
        """Some of the pool in any order, or, half of the time, some that are next to each other and mostly good."""
        if data.draw(st.booleans()):
            at = 6 * data.draw(st.integers(0, len(self.pool) // 6 - 1))
            return self.pool[at : at + data.draw(st.integers(1, min(most, 4)))]
        indices = data.draw(st.lists(st.integers(0, len(self.pool) - 1), max_size=most, unique=True))
        found = {self.pool[i].id: self.pool[i] for i in indices}
        return list(found.values())

    # What clients do ------------------------------------------------------------------------------------------------

    @rule(data=st.data())
    def fill_mempool(self, data: st.DataObject) -> None:
        self.node.mempool_add([tx.raw for tx in self.choose(data, 6)])

    @rule(target=collections, data=st.data(), supplied=st.booleans())
    def declare(self, data: st.DataObject, supplied: bool) -> Any:
        if len(self.open) >= SLOTS + 2:
            return multiple()
        transactions = self.choose(data, 6)
        held = set(self.node.mempool_wtxids())
        handle = self.node.collect_txs([tx.id for tx in transactions])
        unknown = set(handle.unknown_tx_pos())
        if self.settled_mempool:
            assert unknown == {i for i, tx in enumerate(transactions) if tx.id not in held}
        declared = Declared(handle, transactions, unknown)
        self.open.append(declared)
        if supplied:
            handle.add_missing_txs([tx.raw for tx in transactions])
            declared.unknown = set()
        return declared

    @rule(target=collections, data=st.data())
    def declare_two(self, data: st.DataObject) -> Any:
        return multiple(*(d for supplied in (True, False) if isinstance(d := self.declare(data, supplied), Declared)))

    settled_mempool = False  # blocks reach the mempool by messages that nobody waits for

    @rule(declared=collections, everything=st.booleans(), data=st.data())
    def supply(self, declared: Declared, everything: bool, data: st.DataObject) -> None:
        if declared.transactions:
            positions = range(len(declared.transactions))
            some = list(positions) if everything else data.draw(st.lists(st.sampled_from(positions), unique=True))
            declared.handle.add_missing_txs([declared.transactions[i].raw for i in some])
            declared.unknown -= set(some)
        assert declared.handle.unknown_tx_pos() == sorted(declared.unknown)

    @rule(declared=collections)
    def wait(self, declared: Declared) -> None:
        declared.handle.wait_prefetched()

    @rule(declared=collections, all_at_once=st.booleans(), greed=st.sampled_from([None, 0, 1, 10**6]))
    def make_template(self, declared: Declared, all_at_once: bool, greed: int | None) -> None:
        missing = [declared.transactions[i].raw for i in sorted(declared.unknown)] if all_at_once else []
        declared.unknown = set() if all_at_once else declared.unknown
        first = None
        if greed is not None:
            first = coinbase(self.plain.tip.height + 1, [subsidy(self.plain.tip.height + 1) + greed])
        verdict = declared.handle.make_template(self.plain.tip_id, first.raw if first else None, missing)
        if declared.unknown:
            assert (verdict.kind, verdict.reason) == ("missing", "missing-txs")
            return
        self.compare(declared, verdict, first)

    def compare(self, declared: Declared, verdict: Any, first: Tx | None) -> None:
        type(self).compared += 1
        assert (verdict.reason, verdict.offender and verdict.offender.position) == self.expected(declared, first)

    def expected(self, declared: Declared, first: Tx | None) -> tuple[str | None, int | None]:
        """Reason and offender of the plain check of the same block."""
        height = self.plain.tip.height + 1
        everything = [first or coinbase(height), *declared.transactions]
        tip = self.tip_block()
        root = merkle_root([tx.txid for tx in everything])
        block = mine(tip.hash, height, max(tip.time + 1, self.plain.now), declared.transactions, first=everything[0])
        assert block.raw[36:68] == root
        failure = self.plain.judge(block.raw).failure
        return (failure.reason.text, failure.position) if failure else (None, None)

    @rule(declared=collections, which=st.sampled_from(["parent", "nowhere"]))
    def ask_for_another_tip(self, declared: Declared, which: str) -> None:
        parent = self.tip_block().raw[4:36][::-1].hex()
        verdict = declared.handle.make_template(parent if which == "parent" else "ee" * 32)
        kind = "missing" if declared.unknown else {"parent": "stale", "nowhere": "ahead"}[which]
        assert verdict.kind == kind

    @rule(declared=consumes(collections))
    def close(self, declared: Declared) -> None:
        declared.handle.close()
        self.open.remove(declared)

    # What miners do -------------------------------------------------------------------------------------------------

    def submit(self, block: TestBlock) -> None:
        assert self.node.submit_block(block.raw) == self.plain.submit(block.raw)
        type(self).settled_mempool = False

    @rule(data=st.data())
    def grow(self, data: st.DataObject) -> None:
        Driving.number += 1
        self.submit(on_top(self.tip_block(), self.choose(data, 3), tag=b"g%d" % Driving.number))

    @rule(deep=st.integers(1, 2))
    def fork(self, deep: int) -> None:
        """A branch from one or two blocks back that becomes the heavier one."""
        headers = self.plain.chain.headers
        at = headers.active(self.plain.tip.height - deep)
        parent = TestBlock(headers.header(at).serialize(), headers.height(at), headers.header(at).time, ())
        for _ in range(deep + 1):
            Driving.number += 1
            parent = on_top(parent, tag=b"f%d" % Driving.number)
            self.submit(parent)

    @rule()
    def take_back(self) -> None:
        if self.plain.tip.height > self.chain.tip.height:
            self.node.disconnect_tip()
            self.plain.disconnect()
            type(self).settled_mempool = False

    # What always holds ----------------------------------------------------------------------------------------------

    @invariant()
    def tips_agree(self) -> None:
        assert self.node.tip_hash() == self.plain.tip_id

    @invariant()
    def a_verdict_is_that_of_a_plain_check(self) -> None:
        """One declaration after the other, so that others are meanwhile left to their prefetch."""
        complete = [declared for declared in self.open if not declared.unknown]
        if complete:
            self.turn += 1
            declared = complete[self.turn % len(complete)]
            self.compare(declared, declared.handle.make_template(self.plain.tip_id), None)

    @invariant()
    def bytes_are_within_budgets_and_counters_agree(self) -> None:
        actors = stats_of(self.node, "collection")
        stats = [declared.handle.stats() for declared in self.open]
        for s in stats:
            assert s["bytes"] == s["queue_bytes"] + s["observed_bytes"] <= s["budget"] == BUDGET
            assert s["queued"] >= 0
        assert sum(actor["open"] for actor in actors) == len(self.open)
        assert sum(actor["opened"] - actor["closed"] for actor in actors) == len(self.open)
        assert sum(s["prefetching"] for s in stats) <= SLOTS
        assert len(actors) <= SLOTS
        [fetch] = stats_of(self.node, "fetch")
        assert all(fetch["keys"][group] >= fetch["requests"][group] for group in ("validation", "speculation"))
        templates = stats_of(self.node, "template")
        for template in templates:
            assert template["checks"] >= template["valid"] + template["invalid"] + template["stale"]
            assert template["draft_bytes"] >= 0

    def teardown(self) -> None:
        for declared in self.open:
            declared.handle.close()
        utxo, plain = self.node.utxo_stats(), self.plain.utxo()
        assert (utxo.txouts, utxo.hash_serialized_3) == (plain.txouts, plain.hash_serialized_3)


@pytest.fixture
def plain(small_chain: SmallChain) -> Iterator[LocalChain]:
    made = LocalChain(small_chain.store(), now=1_700_000_000)
    yield made
    made.close()


def test_any_order_of_everything(chain_node: Callable[..., Any], small_chain: SmallChain, plain: LocalChain) -> None:
    Driving.node = chain_node(
        collection_budget=BUDGET,
        collection_actors=SLOTS,
        batch_outpoints=2,
        batches_in_flight=2,
        now=plain.now,
        local_reads=4,
        mempool_verify="on",
    )
    Driving.plain, Driving.chain = plain, small_chain
    run_state_machine_as_test(
        Driving,
        settings=settings(
            max_examples=7,
            stateful_step_count=30,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
    assert Driving.compared > 50
