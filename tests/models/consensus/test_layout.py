"""How transactions of one block hang together, whatever the order in which they arrive: parents and double spends
against a plain statement of what they are.
"""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.consensus.layout import FROM_DATABASE, SPENT_BEFORE, BlockLayout, Rewire, spends_of
from models.consensus.table import TxTable
from models.wire.transaction import Transaction, decode_transaction
from tests.models.consensus.building import made_up
from tests.models.consensus.pieces import groups
from tests.models.script.building import Input, Output, serialize


def tx(*prevouts: bytes, outputs: int = 1, locktime: int = 0) -> Transaction:
    raw = serialize([Input(p) for p in prevouts], [Output(1)] * outputs, locktime=locktime)
    return decode_transaction(raw)


def output_of(parent: Transaction, vout: int = 0) -> bytes:
    return parent.txid + vout.to_bytes(4, "little")


def random_block(rng: random.Random, count: int, widest: int) -> list[Transaction]:
    """Chains, fans, double spends, children before parents, the same transaction twice."""
    offers = [made_up(n, n % 3) for n in range(count)]
    made: list[Transaction] = []
    for number in range(count):
        spent = dict.fromkeys(rng.choice(offers) for _ in range(rng.randint(1, widest)))
        made.append(tx(*spent, outputs=rng.randint(1, 3), locktime=number))
        for prevout in spent:
            if rng.random() < 0.9 and len(offers) > 2:
                offers.remove(prevout)
        offers += [output_of(made[-1], n) for n in range(rng.randint(1, 4))]
    for _ in range(rng.randint(0, 3)):
        i, j = rng.randrange(count), rng.randrange(count)
        made[i], made[j] = made[j], made[i]
    if rng.random() < 0.3:
        made.insert(rng.randrange(count), rng.choice(made))
    return made


def expected_sources(transactions: list[Transaction], here: set[int]) -> dict[tuple[int, int], int]:
    """(position, input) -> source, for the transactions at the positions `here` (from 1)."""
    sources = {}
    spenders: dict[bytes, int] = {}
    position_of: dict[bytes, int] = {}
    for position in sorted(here):
        position_of.setdefault(transactions[position - 1].txid, position)
    for position in sorted(here):
        for i, prevout in enumerate(transactions[position - 1].prevouts):
            parent = position_of.get(prevout[:32], position)
            if spenders.setdefault(prevout, position) < position:
                sources[position, i] = SPENT_BEFORE
            elif parent < position:
                sources[position, i] = parent
            else:
                sources[position, i] = FROM_DATABASE
    return sources


def sources_of(layout: BlockLayout) -> dict[tuple[int, int], int]:
    found = {}
    for segment in layout.segments:
        starts = segment.table.in_start
        for k, position in enumerate(segment.positions.tolist()):
            for i, at in enumerate(range(int(starts[k]), int(starts[k + 1]))):
                found[position, i] = int(segment.source[at])
    return found


def check(transactions: list[Transaction], rng: random.Random) -> None:
    """After every arrival all sources are what they must be, and what changed was reported."""
    layout = BlockLayout()
    here: set[int] = set()
    for positions in groups(len(transactions), rng):
        before = [segment.source.copy() for segment in layout.segments]
        rewires = layout.add(np.array(positions), TxTable.from_transactions(transactions[p - 1] for p in positions))
        here |= set(positions)
        assert sources_of(layout) == expected_sources(transactions, here)
        for rewire in rewires:
            if rewire.segment < len(before):
                before[rewire.segment][rewire.input] = rewire.source
        for then, segment in zip(before, layout.segments, strict=False):
            assert then.tolist() == segment.source.tolist()


@settings(max_examples=60)
@given(st.randoms(use_true_random=False), st.integers(1, 12))
def test_small_blocks_in_any_order(rng: random.Random, count: int) -> None:
    check(random_block(rng, count, 3), rng)


@pytest.mark.parametrize("seed", range(12))
def test_large_blocks_in_any_order(seed: int) -> None:
    """Large enough for every way in which inputs are looked up."""
    rng = random.Random(seed)
    check(random_block(rng, 120, 3 if seed % 2 else 30), rng)


@pytest.mark.parametrize("seed", range(4))
def test_one_transaction_at_a_time(seed: int) -> None:
    rng = random.Random(seed)
    transactions = random_block(rng, 40, 3)
    layout = BlockLayout()
    order = list(range(1, len(transactions) + 1))
    rng.shuffle(order)
    for position in order:
        layout.add(np.array([position]), TxTable.from_transactions([transactions[position - 1]]))
    assert sources_of(layout) == expected_sources(transactions, set(order))


def test_prevouts_that_share_their_first_bytes_are_told_apart() -> None:
    """Lookups go by eight bytes first; txids and outpoints that agree in them must not be taken for one another."""
    alike = [made_up(1)[:8] + bytes((n,)) * 24 + bytes(4) for n in range(40)]
    transactions = [tx(prevout, locktime=n) for n, prevout in enumerate(alike)]
    near = [t.txid[:8] + b"\x55" * 24 + bytes(4) for t in transactions]
    transactions.append(tx(*near, output_of(transactions[3])))
    for seed in range(5):
        check(transactions, random.Random(seed))
    table = TxTable.from_transactions([transactions[-1]])
    assert spends_of(table, transactions[3].txid) == [40]
    assert spends_of(table, transactions[4].txid) == []


def test_spends_of_finds_every_output_of_a_transaction_and_nothing_else() -> None:
    parent, other = tx(made_up(1)), tx(made_up(2))
    child = tx(output_of(other), output_of(parent, 3), output_of(parent), made_up(9))
    table = TxTable.from_transactions([other, child, tx(output_of(parent, 7))])
    assert spends_of(table, parent.txid) == [2, 3, 5]
    assert spends_of(table, child.txid) == []
    assert spends_of(TxTable.from_transactions([]), parent.txid) == []


# By hand ---------------------------------------------------------------------------------------------------------


def test_a_late_parent_is_reported() -> None:
    parent = tx(made_up(1))
    layout = BlockLayout()
    assert layout.add(np.array([5]), TxTable.from_transactions([tx(made_up(2), output_of(parent))])) == []
    assert layout.segments[0].source.tolist() == [FROM_DATABASE, FROM_DATABASE]
    assert layout.add(np.array([2]), TxTable.from_transactions([parent])) == [Rewire(0, 1, 2)]
    assert layout.segments[0].source.tolist() == [FROM_DATABASE, 2]


def test_a_parent_that_stands_later_changes_nothing() -> None:
    parent = tx(made_up(1))
    layout = BlockLayout()
    layout.add(np.array([2]), TxTable.from_transactions([tx(output_of(parent))]))
    assert layout.add(np.array([5]), TxTable.from_transactions([parent])) == []


@pytest.mark.parametrize(("first", "second"), [(2, 7), (7, 2)])
def test_of_two_spenders_the_later_in_the_block_finds_the_coin_spent(first: int, second: int) -> None:
    layout = BlockLayout()
    layout.add(np.array([first]), TxTable.from_transactions([tx(made_up(1), locktime=1)]))
    rewires = layout.add(np.array([second]), TxTable.from_transactions([tx(made_up(1), locktime=2)]))
    loser = 1 if second > first else 0
    assert rewires == [Rewire(loser, 0, SPENT_BEFORE)]
    assert layout.segments[loser].source.tolist() == [SPENT_BEFORE]
    assert layout.segments[1 - loser].source.tolist() == [FROM_DATABASE]


def test_three_spenders_in_the_worst_order() -> None:
    layout = BlockLayout()
    for position in (9, 5, 2):
        layout.add(np.array([position]), TxTable.from_transactions([tx(made_up(1), locktime=position)]))
    assert [s.source.tolist() for s in layout.segments] == [[SPENT_BEFORE], [SPENT_BEFORE], [FROM_DATABASE]]


def test_a_child_that_is_spent_before_stays_so_when_its_parent_arrives() -> None:
    parent = tx(made_up(1))
    spend = output_of(parent)
    layout = BlockLayout()
    layout.add(np.array([4, 6]), TxTable.from_transactions([tx(spend, locktime=1), tx(spend, locktime=2)]))
    assert layout.add(np.array([1]), TxTable.from_transactions([parent])) == [Rewire(0, 0, 1)]
    assert layout.segments[0].source.tolist() == [1, SPENT_BEFORE]


def test_the_same_outpoint_twice_in_one_transaction_is_left_to_checktransaction() -> None:
    layout = BlockLayout()
    layout.add(np.array([1]), TxTable.from_transactions([tx(made_up(1), made_up(1))]))
    assert layout.segments[0].source.tolist() == [FROM_DATABASE, FROM_DATABASE]


def test_transactions_without_inputs_hang_together_with_nothing() -> None:
    empty = decode_transaction(bytes.fromhex("01000000000000000000"))
    layout = BlockLayout()
    layout.add(np.array([1, 2]), TxTable.from_transactions([empty, tx(output_of(empty))]))
    assert layout.add(np.array([3]), TxTable.from_transactions([empty])) == []
    assert layout.segments[0].source.tolist() == [1]
