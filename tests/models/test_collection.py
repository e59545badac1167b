"""TxCollection: what a client may declare and supply (SPEC 1.2 to 1.4), and what is prefetched within a budget."""

import hashlib
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    MultipleResults,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
)

from models.coins.coin import Coin
from models.coins.columns import CoinBatch
from models.collection import PrefetchBatch, TxCollection, parse_wtxids
from models.consensus.context import TipVersion
from models.consensus.table import TxRecord, TxTable
from models.errors import ClientError, DecodeError, InternalError
from models.wire.hashes import to_display
from models.wire.merkle import witness_merkle_root
from models.wire.transaction import Transaction, decode_transaction
from tests.models.script.building import NULL_OUTPOINT, Input, Output, serialize

TIP, NEXT_TIP = TipVersion(1, 0), TipVersion(1, 1)
LIMIT = 16_666  # 4,000,000 weight units / 240


def outpoint(number: int, vout: int = 0) -> bytes:
    return hashlib.sha256(str(number).encode()).digest() + vout.to_bytes(4, "little")


def raw_tx(*prevouts: bytes, outputs: int = 1, witness: tuple[bytes, ...] = (b"\x01",), locktime: int = 0) -> bytes:
    inputs = [Input(prevout, b"", witness) for prevout in prevouts]
    return serialize(inputs, [Output(1, b"\x51")] * outputs, version=2, locktime=locktime)


def child_of(*raws: bytes, vout: int = 0) -> bytes:
    return raw_tx(*(decode_transaction(raw).txid + vout.to_bytes(4, "little") for raw in raws))


def declare(raws: Sequence[bytes], known: Sequence[int] = (), budget: int = 8 * 1024 * 1024) -> TxCollection:
    """A collection of these transactions, of which the mempool has those at the positions `known`."""
    transactions = [decode_transaction(raw) for raw in raws]
    collection = TxCollection([tx.wtxid for tx in transactions], budget)
    table = TxTable.from_transactions([transactions[i] for i in known])
    collection.take_known(np.array(known, np.int64), table)
    return collection


def supply(collection: TxCollection, *raws: bytes | None) -> int | None:
    return collection.take_supplied(collection.check_supply(raws)).segment


def display(raw: bytes) -> str:
    return to_display(decode_transaction(raw).wtxid)


TXS = [raw_tx(outpoint(i)) for i in range(5)]


# SPEC 1.2: the declaration ---------------------------------------------------------------------------------------


def numbers(count: int) -> list[str]:
    return [f"{i:064x}" for i in range(count)]


def test_as_many_transactions_as_a_block_can_hold_may_be_declared() -> None:
    assert len(parse_wtxids(numbers(LIMIT))) == 32 * LIMIT
    with pytest.raises(ClientError, match=r"^too many wtxids \(16667 > 16666\)$"):
        parse_wtxids(numbers(LIMIT + 1))


def test_the_count_is_looked_at_before_anything_else() -> None:
    with pytest.raises(ClientError, match=r"^too many wtxids \(16668 > 16666\)$"):
        parse_wtxids(["no hash"] * (LIMIT + 2))


def test_a_wtxid_twice_is_refused_by_its_display_hex() -> None:
    first, second = "ab" * 32, "0c" * 32
    with pytest.raises(ClientError, match=f"^duplicate wtxid {second}$"):
        parse_wtxids([first, second, second, first])


def test_case_does_not_tell_two_wtxids_apart() -> None:
    with pytest.raises(ClientError, match="^duplicate wtxid abab"):
        parse_wtxids(["ab" * 32, "AB" * 32])


def test_wtxids_that_begin_or_end_alike_are_told_apart() -> None:
    """They are compared by their last eight bytes as displayed first."""
    alike = ["01" + "ab" * 31, "02" + "ab" * 31, "ab" * 31 + "01", "ab" * 31 + "02"]
    assert len(parse_wtxids(alike)) == 4 * 32
    with pytest.raises(ClientError, match=f"^duplicate wtxid {alike[1]}$"):
        parse_wtxids([*alike, alike[1]])


@pytest.mark.parametrize(
    "wtxid", ["", "ab", "g" * 64, "ab" * 32 + " ", " " * 64, "ab" * 31 + "  ", "ab" * 33, None, 5, b"ab" * 32]
)
def test_what_is_no_hash_is_refused(wtxid: object) -> None:
    with pytest.raises(ClientError, match="wtxid must be hexadecimal"):
        parse_wtxids(["cd" * 32, wtxid])  # type: ignore[list-item]


def test_white_space_that_makes_up_for_a_missing_digit_is_refused() -> None:
    with pytest.raises(ClientError, match="wtxid must be hexadecimal"):
        parse_wtxids(["ab" * 31 + "a ", "ab" * 31 + " a"])


def test_hashes_are_kept_in_internal_order_and_in_the_order_given() -> None:
    assert parse_wtxids(["00" * 31 + "01", "02" + "00" * 31]) == b"\x01" + bytes(31) + bytes(31) + b"\x02"
    assert parse_wtxids([]) == b""


# SPEC 1.3: what is unknown ---------------------------------------------------------------------------------------


def test_an_empty_declaration_is_complete() -> None:
    collection = declare([])
    assert (collection.unknown_tx_pos(), collection.complete, len(collection)) == ([], True, 0)
    assert supply(collection) is None


def test_unknown_positions_ascend_and_leave_the_coinbase_out() -> None:
    collection = declare(TXS, known=[1, 4])
    assert collection.unknown_tx_pos() == [0, 2, 3]
    assert collection.unknown_tx_pos() == [0, 2, 3]
    assert not collection.complete


def test_a_transaction_is_asked_for_by_wtxid_and_not_by_txid() -> None:
    other = raw_tx(outpoint(0), witness=(b"\x02",))
    assert decode_transaction(other).txid == decode_transaction(TXS[0]).txid
    collection = declare(TXS[:1])
    with pytest.raises(ClientError, match=f"^unexpected wtxid {display(other)}$"):
        collection.check_supply([other])


# SPEC 1.4: supplying ---------------------------------------------------------------------------------------------


def test_supplied_transactions_fill_their_positions_call_by_call() -> None:
    collection = declare(TXS, known=[2])
    supply(collection, TXS[4], TXS[0])
    assert collection.unknown_tx_pos() == [1, 3]
    supply(collection)
    supply(collection, TXS[3])
    supply(collection, TXS[1])
    assert collection.complete
    assert collection.raws() == TXS


def test_what_is_known_is_accepted_and_ignored() -> None:
    collection = declare(TXS[:3], known=[0])
    supply(collection, TXS[1])
    before = collection.segments[:]
    assert supply(collection, TXS[0], TXS[1]) is None
    assert collection.segments == before
    assert supply(collection, TXS[0], TXS[2]) == 2
    assert len(collection.segments[2].table) == 1


def test_more_than_the_whole_declaration_is_refused_whatever_it_holds() -> None:
    collection = declare(TXS[:2], known=[0])
    supply(collection, TXS[0], TXS[1])  # as many as declared, though one was missing only
    for raws in ([TXS[0]] * 3, [None] * 3, [b"junk"] * 3):
        with pytest.raises(ClientError, match=r"^too many transactions \(3 > 2\)$"):
            collection.check_supply(raws)


def refused(collection: TxCollection, *raws: bytes | None) -> str:
    before = (collection.unknown_tx_pos(), len(collection.segments), collection.nbytes)
    with pytest.raises(ClientError) as caught:
        supply(collection, *raws)
    assert (collection.unknown_tx_pos(), len(collection.segments), collection.nbytes) == before
    return str(caught.value)


@pytest.mark.parametrize("nothing", [None, b""])
def test_a_null_transaction_is_refused_and_nothing_changes(nothing: bytes | None) -> None:
    assert refused(declare(TXS), TXS[0], nothing, TXS[1]) == "unexpected null transaction"


def test_a_transaction_that_was_not_asked_for_is_refused_and_nothing_changes() -> None:
    other = raw_tx(outpoint(77))
    assert refused(declare(TXS), TXS[0], other) == f"unexpected wtxid {display(other)}"


def test_a_transaction_twice_in_one_call_is_refused_and_nothing_changes() -> None:
    assert refused(declare(TXS), TXS[3], TXS[3]) == f"duplicate wtxid {display(TXS[3])}"


def test_a_known_transaction_twice_in_one_call_is_refused_all_the_same() -> None:
    assert refused(declare(TXS, known=[3]), TXS[3], TXS[3]) == f"duplicate wtxid {display(TXS[3])}"


def test_the_first_transaction_that_is_wrong_is_named() -> None:
    other = raw_tx(outpoint(77))
    collection = declare(TXS)
    assert refused(collection, TXS[0], None, other, TXS[0]) == "unexpected null transaction"
    assert refused(collection, TXS[0], other, None, TXS[0]) == f"unexpected wtxid {display(other)}"
    assert refused(collection, TXS[0], TXS[0], other, None) == f"duplicate wtxid {display(TXS[0])}"
    assert refused(collection, other, other) == f"unexpected wtxid {display(other)}"


def test_bytes_that_are_no_transaction_are_refused_before_any_other_is_judged() -> None:
    """Core deserialises the whole list before the method is entered."""
    collection = declare(TXS)
    with pytest.raises(DecodeError, match="transaction 1 of 2"):
        collection.check_supply([raw_tx(outpoint(77)), TXS[0] + b"\x00"])
    assert collection.unknown_tx_pos() == [0, 1, 2, 3, 4]


def test_what_is_new_is_shown_as_it_is_parsed_with_its_position_in_the_block() -> None:
    raws = [raw_tx(outpoint(n)) for n in range(4)]
    collection = declare(raws, known=[1])
    shown: list[tuple[int, bytes]] = []

    def seen(positions: np.ndarray, transactions: list[Transaction]) -> None:
        shown.extend(zip(positions.tolist(), [tx.raw for tx in transactions], strict=True))

    collection.check_supply([raws[3], raws[1], raws[0]], seen)
    assert shown == [(4, raws[3]), (1, raws[0])]
    shown.clear()
    with pytest.raises(ClientError):
        collection.check_supply([raws[2], raw_tx(outpoint(9)), None], seen)
    assert shown == [(3, raws[2])]


def test_a_coinbase_may_be_declared_and_supplied() -> None:
    """It dies later, as bad-cb-multiple."""
    coinbase = serialize([Input(NULL_OUTPOINT, b"\x01\x01")], [Output(50, b"\x51")])
    collection = declare([coinbase])
    supply(collection, coinbase)
    assert collection.complete


def test_consensus_and_policy_play_no_part_in_supplying() -> None:
    broken = serialize([Input(outpoint(1))] * 2, [Output(-5)])
    empty = bytes.fromhex("01000000000000000000")
    collection = declare([broken, empty])
    supply(collection, empty, broken)
    assert collection.raws() == [broken, empty]


def test_the_witness_root_is_known_before_any_transaction() -> None:
    """BIP141, by hand for two transactions: H(H(0, a), H(b, b))."""
    a, b = (decode_transaction(raw).wtxid for raw in TXS[:2])

    def pair(left: bytes, right: bytes) -> bytes:
        return hashlib.sha256(hashlib.sha256(left + right).digest()).digest()

    assert witness_merkle_root([a, b]) == pair(pair(bytes(32), a), pair(b, b))
    assert witness_merkle_root([]) == bytes(32)


# SPEC 1.8: prefetch ----------------------------------------------------------------------------------------------


def drain(collection: TxCollection, limit: int = 512) -> list[PrefetchBatch]:
    batches = []
    while (batch := collection.next_batch(limit)) is not None:
        batches.append(batch)
    return batches


def absences(batch: PrefetchBatch) -> CoinBatch:
    return CoinBatch.of_coins([None] * len(batch.outpoints))


def test_a_collection_that_never_starts_holds_and_queues_nothing() -> None:
    collection = declare(TXS, known=[0, 1, 2])
    supply(collection, TXS[3])
    assert collection.next_batch(512) is None
    assert (collection.nbytes, collection.queued, collection.idle) == (0, 0, True)
    assert [len(coins) for coins in collection.coins] == [0, 0]
    assert not collection.prefetching


def test_inputs_of_known_transactions_are_queued_and_later_ones_as_they_come() -> None:
    collection = declare(TXS, known=[0, 3])
    collection.start(TIP, probe=False)
    assert [batch.outpoints for batch in drain(collection)] == [[outpoint(0), outpoint(3)]]
    supply(collection, TXS[2])
    (batch,) = drain(collection)
    assert (batch.segment, batch.inputs.tolist(), batch.outpoints, batch.version) == (1, [0], [outpoint(2)], TIP)
    assert collection.idle


def test_requests_are_no_larger_than_asked_for() -> None:
    raws = [raw_tx(*(outpoint(i * 10 + n) for n in range(3))) for i in range(4)]
    collection = declare(raws, known=[0, 1, 2, 3])
    collection.start(TIP, probe=False)
    batches = drain(collection, limit=5)
    assert [len(batch.outpoints) for batch in batches] == [5, 5, 2]
    assert [o for batch in batches for o in batch.outpoints] == [
        outpoint(i * 10 + n) for i in range(4) for n in range(3)
    ]


def test_inputs_that_earlier_transactions_create_are_not_queued() -> None:
    parent = raw_tx(outpoint(1), outputs=2)
    child = child_of(parent)
    orphan = child_of(raw_tx(outpoint(2)))
    collection = declare([parent, child, orphan], known=[0, 1, 2])
    collection.start(TIP, probe=False)
    (batch,) = drain(collection)
    assert batch.outpoints == [outpoint(1), decode_transaction(orphan).prevouts[0]]


def test_a_child_before_its_parent_is_looked_for_in_the_database() -> None:
    parent = raw_tx(outpoint(1))
    child = child_of(parent)
    collection = declare([child, parent], known=[0, 1])
    collection.start(TIP, probe=False)
    (batch,) = drain(collection)
    assert batch.outpoints == [decode_transaction(parent).txid + bytes(4), outpoint(1)]


def test_a_queued_input_whose_parent_arrives_is_not_asked_for() -> None:
    parent, other = raw_tx(outpoint(1)), raw_tx(outpoint(2))
    collection = declare([parent, other, child_of(parent, other)], known=[2])
    collection.start(TIP, probe=False)
    assert collection.queued == 2
    supply(collection, parent)
    (batch, of_parent) = drain(collection)
    assert batch.outpoints == [decode_transaction(other).txid + bytes(4)]
    assert of_parent.outpoints == [outpoint(1)]
    assert collection.queue_bytes == 2 * 36


def test_a_spent_outpoint_is_not_asked_for_twice() -> None:
    collection = declare([raw_tx(outpoint(1)), raw_tx(outpoint(1), locktime=1)], known=[0, 1])
    collection.start(TIP, probe=False)
    assert [batch.outpoints for batch in drain(collection)] == [[outpoint(1)]]


def test_the_input_of_a_coinbase_is_not_asked_for() -> None:
    coinbase = serialize([Input(NULL_OUTPOINT, b"\x01\x01")], [Output(50, b"\x51")])
    collection = declare([coinbase, TXS[0]], known=[0, 1])
    collection.start(TIP, probe=False)
    assert [batch.outpoints for batch in drain(collection)] == [[outpoint(0)]]


def test_the_queue_is_bounded_by_what_a_block_can_spend() -> None:
    """4,000,000 / 164 = 24,390 inputs, over all transactions."""
    wide = [raw_tx(*(outpoint(i, n) for n in range(8_200)), witness=()) for i in range(3)]
    collection = declare(wide, known=[0, 1, 2], budget=2**30)
    collection.start(TIP, probe=False)
    assert collection.queued == 24_390
    supplied = declare(wide, budget=2**30)
    supplied.start(TIP, probe=False)
    for raw in wide:
        supply(supplied, raw)
    assert supplied.queued == 24_390


def test_probes_ask_for_every_output_of_every_transaction_after_the_inputs() -> None:
    raws = [raw_tx(outpoint(1), outputs=3), raw_tx(outpoint(2), outputs=2), raw_tx(outpoint(3), outputs=9)]
    collection = declare(raws, known=[0, 1, 2])
    collection.start(TIP, probe=True)
    spends, *probes = drain(collection, limit=6)
    assert len(spends.outpoints) == 3
    txids = [decode_transaction(raw).txid for raw in raws]
    assert [probe.outpoints for probe in probes] == [
        [txids[0] + n.to_bytes(4, "little") for n in range(3)] + [txids[1] + n.to_bytes(4, "little") for n in range(2)],
        [txids[2] + n.to_bytes(4, "little") for n in range(9)],  # never split
    ]
    assert [probe.inputs.tolist() for probe in probes] == [[1, 2], [3]]


def test_probes_say_of_each_transaction_whether_an_output_is_unspent() -> None:
    raws = [raw_tx(outpoint(1), outputs=2), raw_tx(outpoint(2)), raw_tx(outpoint(3), outputs=2)]
    collection = declare(raws, known=[0, 1, 2])
    collection.start(TIP, probe=True)
    _, probe = drain(collection)
    coin = Coin(1, 1, False, b"\x51")
    assert collection.take_batch(probe, CoinBatch.of_coins([None, coin, None, None, None]), TIP)
    assert collection.probe_hits.tolist() == [False, True, False, False]
    assert collection.probes_observed == 5
    assert collection.nbytes == 3 * 36 + 5  # three inputs under way, five answers of one byte


def test_outputs_known_to_be_new_are_kept_and_not_asked_for_again() -> None:
    raws = [raw_tx(outpoint(1), outputs=3), raw_tx(outpoint(2), outputs=2), raw_tx(outpoint(3))]
    txids = [decode_transaction(raw).txid for raw in raws]
    collection = declare(raws, known=[0, 1, 2])
    collection.take_new_outputs(np.array([1, 3]), TIP)
    collection.start(TIP, probe=True)
    _, probe = drain(collection)
    assert probe.outpoints == [txids[1] + n.to_bytes(4, "little") for n in range(2)]
    assert probe.inputs.tolist() == [2]
    assert collection.probes_observed == 3 + 1
    assert collection.nbytes == 3 * 36 + 6  # three inputs and two outputs under way, four absences of one byte
    later = TipVersion(TIP.epoch, TIP.n + 1)
    collection.start(later, probe=True)  # what was known of another tip is nothing here
    _, probe = drain(collection)
    assert len(probe.outpoints) == 6


def test_without_bip30_nothing_is_probed() -> None:
    collection = declare(TXS, known=[0, 1])
    collection.start(TIP, probe=False)
    assert [batch.segment for batch in drain(collection)] == [0]


def test_an_answer_is_retained_with_its_exact_bytes() -> None:
    raws = [raw_tx(outpoint(1), outpoint(2)), raw_tx(outpoint(3))]
    collection = declare(raws, known=[0, 1])
    collection.start(TIP, probe=False)
    assert collection.nbytes == 3 * 36
    (batch,) = drain(collection)
    assert collection.nbytes == 3 * 36  # asked for, not yet answered
    coins = [Coin(5, 6, True, b"\x51" * 30), None, Coin(7, 8, False, b"\x00\x14" + bytes(20))]
    assert collection.take_batch(batch, CoinBatch.of_coins(coins), TIP)
    assert (collection.queue_bytes, collection.observed_bytes) == (0, 3 * 24 + 30 + 22)
    assert collection.observations == 3
    assert collection.observed_inputs(0).tolist() == [0, 1, 2]
    assert [collection.coins[0].coin(i) for i in range(3)] == coins


def test_an_answer_of_another_tip_is_not_kept() -> None:
    collection = declare(TXS, known=[0])
    collection.start(TIP, probe=False)
    (batch,) = drain(collection)
    assert not collection.take_batch(batch, absences(batch), NEXT_TIP)
    assert (collection.nbytes, collection.observations) == (0, 0)


@pytest.mark.parametrize("version", [TIP, NEXT_TIP])
def test_an_answer_to_a_queue_that_was_dropped_is_not_kept_or_counted(version: TipVersion) -> None:
    collection = declare(TXS, known=[0, 1])
    collection.start(TIP, probe=True)
    old = drain(collection)
    collection.start(version, probe=True)  # also when the tip is the same as before
    new = drain(collection)
    waiting = collection.nbytes
    assert waiting == 2 * 36 + 2
    for batch in old:
        assert not collection.take_batch(batch, absences(batch), TIP)
        collection.give_up(batch)
    assert collection.nbytes == waiting
    for batch in new:
        assert collection.take_batch(batch, absences(batch), version)
    assert (collection.queue_bytes, collection.observed_bytes) == (0, 2 * 24 + 2)


def test_a_request_that_failed_is_left_to_validation() -> None:
    collection = declare(TXS, known=[0, 1])
    collection.start(TIP, probe=True)
    for batch in drain(collection):
        collection.give_up(batch)
    assert (collection.nbytes, collection.observations, collection.idle) == (0, 0, True)


def test_an_answer_of_another_length_is_an_error_of_ours() -> None:
    collection = declare(TXS, known=[0, 1])
    collection.start(TIP, probe=False)
    (batch,) = drain(collection)
    with pytest.raises(InternalError, match="2 outpoints were asked for, 1 were answered"):
        collection.take_batch(batch, CoinBatch.of_coins([None]), TIP)
    assert collection.nbytes == 0


def test_a_spent_budget_stops_speculation_and_keeps_what_is_there() -> None:
    collection = declare(TXS, known=[0, 1, 2, 3], budget=4 * 36)
    collection.start(TIP, probe=False)
    first, second, third, fourth = (collection.next_batch(1) for _ in range(4))
    assert first and second and third and fourth
    assert collection.take_batch(first, CoinBatch.of_coins([Coin(1, 1, False, b"\x51" * 12)]), TIP)
    assert collection.nbytes == 4 * 36
    assert not collection.take_batch(second, CoinBatch.of_coins([Coin(1, 1, False, b"\x51" * 13)]), TIP)
    assert collection.speculation_stopped == "budget spent"
    assert collection.nbytes == 3 * 36
    assert collection.take_batch(third, CoinBatch.of_coins([Coin(1, 1, False, b"\x51" * 48)]), TIP)
    assert collection.nbytes == 4 * 36
    assert not collection.take_batch(fourth, CoinBatch.of_coins([Coin(1, 1, False, b"\x51" * 13)]), TIP)
    assert collection.observed_inputs(0).tolist() == [0, 2]
    supply(collection, TXS[4])
    assert collection.next_batch(512) is None  # for good, at this tip
    collection.start(NEXT_TIP, probe=False)
    assert collection.speculation_stopped == ""
    assert len(drain(collection)) == 1


def test_no_more_is_queued_than_the_budget_has_room_for() -> None:
    collection = declare(TXS, known=[0, 1, 2, 3, 4], budget=2 * 36 + 35)
    collection.start(TIP, probe=True)
    assert collection.queued == 2
    assert [len(batch.outpoints) for batch in drain(collection)] == [2, 5]  # five probes of a byte fit in


def test_a_verdict_stops_speculation_but_not_the_answers_under_way() -> None:
    collection = declare(TXS, known=[0, 1, 2])
    collection.start(TIP, probe=True)
    batch = collection.next_batch(2)
    assert batch
    collection.stop_speculation("a verdict was asked for")
    assert collection.next_batch(512) is None
    assert collection.nbytes == 2 * 36
    assert collection.take_batch(batch, absences(batch), TIP)
    assert collection.nbytes == 2 * 24
    collection.stop_speculation("another reason")
    assert collection.speculation_stopped == "a verdict was asked for"


def test_dropped_observations_leave_the_declaration() -> None:
    collection = declare(TXS, known=[0, 1])
    collection.start(TIP, probe=True)
    for batch in drain(collection):
        collection.take_batch(batch, absences(batch), TIP)
    collection.drop_observations()
    assert (collection.version, collection.nbytes, collection.observations) == (None, 0, 0)
    supply(collection, TXS[2])
    assert collection.next_batch(512) is None
    assert collection.unknown_tx_pos() == [3, 4]
    collection.start(NEXT_TIP, probe=False)
    assert sum(len(batch.outpoints) for batch in drain(collection)) == 3


def test_coins_of_the_owners_cache_are_kept_and_not_asked_for() -> None:
    raws = [raw_tx(outpoint(1), outpoint(2)), raw_tx(outpoint(3))]
    collection = declare(raws, known=[0, 1])
    collection.start(TIP, probe=False)
    ((segment, inputs, outpoints),) = collection.peek_plan()
    assert (segment, inputs.tolist(), outpoints) == (0, [0, 1, 2], [outpoint(1), outpoint(2), outpoint(3)])
    found = CoinBatch.of_coins([Coin(1, 1, False, b"\x51"), Coin(2, 2, False, b"\x51")])
    assert not collection.take_cached(0, inputs[[0, 2]], found, NEXT_TIP)
    assert collection.take_cached(0, inputs[[0, 2]], found, TIP)
    assert collection.nbytes == 36 + 2 * (24 + 1)
    assert [batch.outpoints for batch in drain(collection)] == [[outpoint(2)]]


def test_cached_coins_beyond_the_budget_are_not_kept() -> None:
    collection = declare(TXS[:1], known=[0], budget=60)
    collection.start(TIP, probe=False)
    big = CoinBatch.of_coins([Coin(1, 1, False, b"\x51")])
    assert not collection.take_cached(0, np.array([0]), big, TIP)
    assert (collection.queued, collection.nbytes) == (1, 36)


# Scripts ---------------------------------------------------------------------------------------------------------


def positions_of(jobs: Sequence[tuple[int, object]]) -> list[int]:
    return [position for position, _ in jobs]


def test_scripts_are_given_out_once_when_all_their_coins_are_here() -> None:
    parent = raw_tx(outpoint(1), outputs=2)
    raws = [parent, child_of(parent, vout=1), raw_tx(outpoint(2), outpoint(3)), raw_tx(outpoint(4))]
    collection = declare(raws, known=[0, 1, 2, 3])
    collection.start(TIP, probe=False)
    collection.begin_scripts(7)
    assert positions_of(collection.script_jobs(0)) == [2]  # the parent's output is at hand before any coin is
    batches = [collection.next_batch(1) for _ in range(4)]
    for batch, coin in zip(batches, [Coin(9, 1, False, b"\x52"), Coin(8, 1, False, b"\x53"), None, None], strict=True):
        assert batch
        collection.take_batch(batch, CoinBatch.of_coins([coin]), TIP)
    jobs = collection.script_jobs(0)
    assert jobs == [(1, (parent, [(9, b"\x52")]))]
    assert collection.script_jobs(0) == []


def test_many_jobs_of_a_segment_hold_what_their_transactions_spend() -> None:
    """From 64 on, a segment's coins are unpacked together; children of the same segment still find their parents."""
    spends = [raw_tx(outpoint(i), outpoint(1000 + i)) for i in range(100)]
    raws = [*spends, child_of(spends[3], spends[99])]
    collection = declare(raws, known=range(101))
    collection.start(TIP, probe=False)
    coins = {outpoint(i): Coin(i, 1, False, b"\x51" * (i % 40)) for i in [*range(100), *range(1000, 1100)]}
    for batch in drain(collection):
        collection.take_batch(batch, CoinBatch.of_coins([coins[o] for o in batch.outpoints]), TIP)
    jobs = collection.script_jobs(0)
    assert [position for position, _ in jobs] == [*range(1, 102)]
    for i, (_, (raw, spent)) in enumerate(jobs[:100]):
        assert raw == raws[i]
        assert spent == [(c.value, c.script) for c in (coins[outpoint(i)], coins[outpoint(1000 + i)])]
    assert jobs[100] == (101, (raws[100], [(1, b"\x51"), (1, b"\x51")]))


def test_a_job_holds_what_the_transaction_spends() -> None:
    parent = raw_tx(outpoint(1), outputs=2)
    child = child_of(parent, vout=1)
    collection = declare([parent, child], known=[0])
    collection.start(TIP, probe=False)
    supply(collection, child)
    assert collection.script_jobs(1) == [(2, (child, [(1, b"\x51")]))]


def test_an_output_the_parent_does_not_have_is_an_empty_coin() -> None:
    parent = raw_tx(outpoint(1))
    child = child_of(parent, vout=5)
    collection = declare([parent, child], known=[0, 1])
    collection.start(TIP, probe=False)
    assert collection.script_jobs(0) == [(2, (child, [(0, b"")]))]


def test_a_parent_that_arrives_makes_its_child_ready() -> None:
    parent = raw_tx(outpoint(1))
    collection = declare([parent, child_of(parent)], known=[1])
    collection.start(TIP, probe=False)
    assert collection.script_jobs(0) == []
    supply(collection, parent)
    assert positions_of(collection.script_jobs(0)) == [2]


def test_passes_are_kept_over_tips_and_forgotten_with_other_flags() -> None:
    parent = raw_tx(outpoint(1))
    collection = declare([parent, child_of(parent)], known=[0, 1])
    collection.start(TIP, probe=False)
    collection.begin_scripts(7)
    assert positions_of(collection.script_jobs(0)) == [2]
    collection.verified[2] = True
    collection.start(NEXT_TIP, probe=False)
    collection.begin_scripts(7)
    assert collection.script_jobs(0) == []
    collection.begin_scripts(8)
    assert positions_of(collection.script_jobs(0)) == [2]


def test_scripts_are_not_given_out_after_a_drop() -> None:
    parent = raw_tx(outpoint(1))
    collection = declare([parent, child_of(parent)], known=[0, 1])
    collection.start(TIP, probe=False)
    collection.drop_observations()
    assert collection.script_jobs(0) == []


# The account under any sequence of events ------------------------------------------------------------------------

SCRIPT_SIZES = (0, 1, 22, 60, 200)


class Account(RuleBasedStateMachine):
    """Queues, requests and observations of one collection beside plain sets that say what they must be."""

    under_way: Bundle[PrefetchBatch] = Bundle("under_way")

    @initialize(
        inputs=st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=6, unique=True), min_size=1, max_size=8),
        budget=st.integers(0, 1500),
        known=st.integers(0, 2**8 - 1),
    )
    def declare(self, inputs: list[list[int]], budget: int, known: int) -> None:
        raws = [raw_tx(*map(outpoint, numbers), outputs=1 + i % 3, locktime=i) for i, numbers in enumerate(inputs)]
        self.transactions: list[Transaction] = [decode_transaction(raw) for raw in raws]
        self.raws = raws
        self.budget = budget
        self.here = {i for i in range(len(raws)) if known >> i & 1}
        self.collection = declare(raws, sorted(self.here), budget)
        self.segments = [sorted(self.here)] if self.here else []
        self.version: TipVersion | None = None
        self.clear()

    def clear(self) -> None:
        self.stopped = False
        self.queue: list[tuple[int, int]] = []  # (segment, input)
        self.probe_queue: list[int] = []  # positions of transactions
        self.flying = self.flying_probes = 0
        self.observed: dict[tuple[int, int], int] = {}  # -> bytes
        self.probed = 0
        self.old: set[int] = set()

    def coin(self, prevout: bytes) -> Coin | None:
        size = SCRIPT_SIZES[prevout[0] % len(SCRIPT_SIZES)]
        return None if prevout[1] % 3 == 0 else Coin(prevout[2], 1, False, b"\x61" * size)

    def cost(self, prevout: bytes) -> int:
        coin = self.coin(prevout)
        return 24 + (len(coin.script) if coin else 0)

    def used(self) -> int:
        outputs = sum(len(self.transactions[i].values) for i in self.probe_queue)
        queue = 36 * (len(self.queue) + self.flying) + outputs + self.flying_probes
        return queue + sum(self.observed.values()) + self.probed

    def first_spender(self, prevout: bytes, i: int) -> bool:
        """Whether no earlier transaction that is here spends the same outpoint."""
        return not any(prevout in self.transactions[j].prevouts for j in self.here if j < i)

    def enqueue(self, segment: int) -> None:
        if self.stopped:
            return
        at = 0
        for i in self.segments[segment]:
            for prevout in self.transactions[i].prevouts:
                if self.first_spender(prevout, i) and self.used() + 36 <= self.budget:
                    self.queue.append((segment, at))
                at += 1
        if self.probe:
            outputs = sum(len(self.transactions[i].values) for i in self.segments[segment])
            if self.used() + outputs <= self.budget:
                self.probe_queue += self.segments[segment]

    @rule(n=st.integers(0, 3), probe=st.booleans())
    def start(self, n: int, probe: bool) -> None:
        self.clear()
        self.probe = probe
        self.version = TipVersion(1, n)
        self.collection.start(self.version, probe)
        for segment in range(len(self.segments)):
            self.enqueue(segment)

    @rule()
    def drop(self) -> None:
        self.clear()
        self.version = None
        self.collection.drop_observations()

    @precondition(lambda self: self.version is not None)
    @rule()
    def stop(self) -> None:
        self.stopped = True
        self.queue, self.probe_queue = [], []
        self.collection.stop_speculation("test")

    @precondition(lambda self: len(self.here) < len(self.transactions))
    @rule(data=st.data())
    def supply(self, data: st.DataObject) -> None:
        missing = [i for i in range(len(self.transactions)) if i not in self.here]
        now = data.draw(st.lists(st.sampled_from(missing), min_size=1, unique=True))
        supply(self.collection, *(self.raws[i] for i in now))
        self.here |= set(now)
        self.segments.append(sorted(now))
        if self.version is not None:
            self.enqueue(len(self.segments) - 1)

    def prevout_of(self, segment: int, at: int) -> bytes:
        return [prevout for i in self.segments[segment] for prevout in self.transactions[i].prevouts][at]

    def owner_of(self, segment: int, at: int) -> int:
        return [i for i in self.segments[segment] for _ in self.transactions[i].prevouts][at]

    @rule(target=under_way, limit=st.integers(1, 8))
    def ask(self, limit: int) -> PrefetchBatch | MultipleResults[PrefetchBatch]:
        batch = self.collection.next_batch(limit)
        if batch is None:
            # inputs that were rewired while they waited are left out without being asked for
            assert all(not self.first_spender(self.prevout_of(*e), self.owner_of(*e)) for e in self.queue)
            self.queue = []
            assert not self.probe_queue
            return multiple()
        if batch.counts is None:
            asked = {(batch.segment, at) for at in batch.inputs.tolist()}
            assert asked <= set(self.queue) and len(asked) == len(batch.outpoints) <= limit
            assert [self.prevout_of(batch.segment, at) for at in batch.inputs.tolist()] == batch.outpoints
            last = max(self.queue.index(e) for e in asked)
            skipped = [e for e in self.queue[: last + 1] if e not in asked]
            assert all(not self.first_spender(self.prevout_of(*e), self.owner_of(*e)) for e in skipped)
            rest = self.queue[last + 1 :]
            while rest and self.collection.queued < len(rest):  # rewired ones at the end of the same request
                assert not self.first_spender(self.prevout_of(*rest[0]), self.owner_of(*rest[0]))
                rest = rest[1:]
            self.queue = rest
            self.flying += len(asked)
        else:
            self.queue = []
            for position in batch.inputs.tolist():
                self.probe_queue.remove(position - 1)
            assert len(batch.outpoints) <= limit or len(batch.inputs) == 1
            self.flying_probes += len(batch.outpoints)
        return batch

    @rule(batch=consumes(under_way))
    def answer(self, batch: PrefetchBatch) -> None:
        current = batch.generation == self.collection._generation
        coins = [self.coin(prevout) for prevout in batch.outpoints]
        if current:
            self.land(batch)
        cost = len(coins) if batch.counts is not None else sum(map(self.cost, batch.outpoints))
        fits = self.used() + cost <= self.budget
        kept = self.collection.take_batch(batch, CoinBatch.of_coins(coins), batch.version)
        assert kept == (current and fits)
        if kept and batch.counts is not None:
            self.probed += len(coins)
        elif kept:
            for at, prevout in zip(batch.inputs.tolist(), batch.outpoints, strict=True):
                self.observed[batch.segment, at] = self.cost(prevout)
        elif current:
            self.stopped = True
            self.queue, self.probe_queue = [], []

    @rule(batch=consumes(under_way))
    def lose(self, batch: PrefetchBatch) -> None:
        if batch.generation == self.collection._generation:
            self.land(batch)
        self.collection.give_up(batch)

    def land(self, batch: PrefetchBatch) -> None:
        if batch.counts is None:
            self.flying -= len(batch.outpoints)
        else:
            self.flying_probes -= len(batch.outpoints)

    @precondition(lambda self: self.version is not None)
    @rule(take=st.integers(0, 255))
    def peek(self, take: int) -> None:
        for segment, inputs, outpoints in self.collection.peek_plan():
            assert self.version is not None
            found = [n for n, prevout in enumerate(outpoints) if take >> n % 8 & 1 and self.coin(prevout)]
            batch = CoinBatch.of_coins([self.coin(outpoints[n]) for n in found])
            fits = self.used() + sum(self.cost(outpoints[n]) for n in found) <= self.budget
            assert self.collection.take_cached(segment, inputs[found], batch, self.version) == fits
            if fits:
                for n in found:
                    entry = (segment, int(inputs[n]))
                    self.queue.remove(entry)
                    self.observed[entry] = self.cost(outpoints[n])

    @invariant()
    def the_account_is_exact(self) -> None:
        collection = self.collection
        assert collection.nbytes == self.used() <= self.budget
        assert collection.queued == len(self.queue)
        assert collection.observations == len(self.observed)
        assert collection.probes_observed == self.probed
        assert collection.observed_bytes == sum(self.observed.values()) + self.probed

    @invariant()
    def every_observation_is_the_coin(self) -> None:
        for (segment, at), _ in self.observed.items():
            assert self.collection.coins[segment].coin(at) == self.coin(self.prevout_of(segment, at))
        held = sum(len(self.collection.observed_inputs(s)) for s in range(len(self.segments)))
        assert held == len(self.observed)


TestAccount = Account.TestCase
TestAccount.settings = settings(max_examples=60, stateful_step_count=25)


def test_records_are_kept_as_they_were_supplied() -> None:
    """What is known costs no second parse: only records of empty positions come back."""
    collection = declare(TXS, known=[0])
    records = collection.check_supply([TXS[0], TXS[1]])
    assert [record.raw for record in records] == [TXS[1]]
    assert isinstance(records[0], TxRecord)
