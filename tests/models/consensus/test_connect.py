"""Rules that need coins, at their limits and worked by hand: money, maturity, BIP68, sigop cost (SPEC 2.1, 2.3)."""

import hashlib
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from models.coins.coin import Coin
from models.coins.columns import CoinBatch, CoinColumns
from models.consensus.connect import evaluate, first_failure
from models.consensus.table import TxTable
from models.errors import InternalError
from models.script.verify import P2SH, WITNESS
from models.wire.transaction import decode_transaction
from tests.models.consensus.building import (
    SPACING,
    START,
    TRUE,
    block_on,
    coinbase_tx,
    empty_chain,
    made_up,
    put_coin,
    refusal,
    txid_of,
)
from tests.models.script.building import NULL_OUTPOINT, Input, Output, serialize

HEIGHT = 230
MAX = 2_100_000_000_000_000
CONTEXT = empty_chain(HEIGHT - 1).context()
FLAGS = P2SH | WITNESS
GOOD, MISSING, IMMATURE, BAD_VALUE, BELOW_OUT = range(5)


def table_of(*raws: bytes) -> TxTable:
    return TxTable.from_transactions([decode_transaction(raw) for raw in raws])


def spend(*outpoints: bytes, out: int = 0, version: int = 2, sequence: int = 0xFFFFFFFF) -> bytes:
    inputs = [Input(outpoint, sequence=sequence) for outpoint in outpoints]
    return serialize(inputs, [Output(out, TRUE)], version)


def results_of(raws: list[bytes], coins: Sequence[Coin | None], flags: int = FLAGS) -> np.ndarray:
    return evaluate(table_of(*raws), CoinBatch.of_coins(coins).rows, CONTEXT, flags)


def of_value(value: int) -> Coin:
    return Coin(value, 1, False, TRUE)


# Money -----------------------------------------------------------------------------------------------------------


def test_value_and_fee_of_transactions_side_by_side() -> None:
    raws = [spend(made_up(1), made_up(2), out=30), spend(made_up(3), out=7), spend(*map(made_up, range(4, 9)), out=5)]
    results = results_of(raws, [of_value(v) for v in (10, 20, 8, 1, 1, 1, 1, 1)])
    assert results["value_in"].tolist() == [30, 8, 5]
    assert results["fee"].tolist() == [0, 1, 0]
    assert results["code"].tolist() == [GOOD] * 3


@pytest.mark.parametrize(
    ("values", "code", "input"),
    [
        ([MAX], GOOD, -1),
        ([MAX + 1], BAD_VALUE, 0),
        ([2**63 - 1], BAD_VALUE, 0),
        ([-1], BAD_VALUE, 0),
        ([-(2**63)], BAD_VALUE, 0),
        ([MAX, 0], GOOD, -1),
        ([MAX, 1], BAD_VALUE, 1),
        ([MAX - 1, 1], GOOD, -1),
        ([5, -3], BAD_VALUE, 1),
        ([5, 6, MAX - 11], GOOD, -1),
        ([5, 6, MAX - 10], BAD_VALUE, 2),
        ([2**63 - 1, 2**63 - 1, 3], BAD_VALUE, 0),  # the sum is 1 in 64 bits
        ([-(2**63), -(2**63)], BAD_VALUE, 0),  # the sum is 0
    ],
)
def test_each_coin_and_each_running_sum_is_in_range(values: list[int], code: int, input: int) -> None:
    raw = spend(*(made_up(i) for i in range(len(values))), out=0)
    around = spend(made_up(77), out=1)  # on both sides, to see that sums do not leak
    coins = [of_value(1), *map(of_value, values), of_value(1)]
    results = results_of([around, raw, around], coins)
    assert (results["code"][1], results["input"][1]) == (code, input)
    assert results["code"][[0, 2]].tolist() == [GOOD, GOOD]
    assert results["fee"][[0, 2]].tolist() == [0, 0]


def test_a_sum_that_wraps_around_64_bits_is_out_of_range_at_its_second_coin() -> None:
    """5,000 coins of 21 million are 1.05e19 satoshis, beyond 2^63; with 8,784 and more the sum is positive again."""
    for count in (5_000, 8_785):
        raw = spend(*(made_up(i) for i in range(count)), out=0)
        results = results_of([raw, spend(made_up(0), out=1)], [of_value(MAX)] * count + [of_value(1)])
        assert (results["code"][0], results["input"][0]) == (BAD_VALUE, 1)
        assert (results["code"][1], results["fee"][1]) == (GOOD, 0)


def test_less_in_than_out_says_both_amounts() -> None:
    chain = empty_chain(HEIGHT - 1)
    raw = spend(put_coin(chain, 1, 135_022), out=135_023)
    txid = txid_of(raw)[::-1].hex()
    assert refusal(chain, block_on(chain, [raw])) == (
        f"bad-txns-in-belowout, value in (0.00135022) < value out (0.00135023) in transaction {txid}"
    )


def test_fees_of_a_block_add_up_to_21_million_and_no_more() -> None:
    chain = empty_chain(HEIGHT - 1)
    a, b, c = put_coin(chain, 1, MAX - 5), put_coin(chain, 2, 5), put_coin(chain, 3, 1)
    assert refusal(chain, block_on(chain, [spend(a), spend(b)])) is None
    text = "bad-txns-accumulated-fee-outofrange, accumulated fee in the block out of range"
    block = block_on(chain, [spend(a), spend(b), spend(c)])
    failure = chain.judge(block).failure
    assert failure and (failure.debug_line, failure.position) == (text, 3)


def test_fees_that_would_wrap_around_64_bits() -> None:
    chain = empty_chain(HEIGHT - 1)
    coins = [put_coin(chain, n, MAX) for n in range(5_000)]
    failure = chain.judge(block_on(chain, [spend(coin) for coin in coins])).failure
    assert failure and (failure.reason.text, failure.position) == ("bad-txns-accumulated-fee-outofrange", 2)


def test_a_transaction_with_a_broken_rule_adds_no_fee() -> None:
    raws = [spend(made_up(1), out=0), spend(made_up(2), out=9), spend(made_up(3), out=0)]
    coins: list[Coin | None] = [None, of_value(5), of_value(MAX + 1)]
    assert results_of(raws, coins)["fee"].tolist() == [0, 0, 0]


@pytest.mark.parametrize(("extra", "ok"), [(-1, True), (0, True), (1, False)])
def test_the_coinbase_pays_subsidy_and_fees_and_no_more(extra: int, ok: bool) -> None:
    chain = empty_chain(HEIGHT - 1)  # regtest: the first halving is behind
    raw = spend(put_coin(chain, 1, 1_000), out=400)
    answer = refusal(chain, block_on(chain, [raw], reward=2_500_000_600 + extra))
    text = "bad-cb-amount, coinbase pays too much (actual=2500000601 vs limit=2500000600)"
    assert answer == (None if ok else text)


# Which coins there are -------------------------------------------------------------------------------------------


def missing(raw: bytes) -> str:
    txid = txid_of(raw)[::-1].hex()
    return f"bad-txns-inputs-missingorspent, CheckTxInputs: inputs missing/spent in transaction {txid}"


def test_all_inputs_are_looked_for_before_any_is_judged() -> None:
    chain = empty_chain(HEIGHT - 1)
    young = put_coin(chain, 1, MAX + 1, height=HEIGHT - 1, coinbase=True)
    raw = spend(young, made_up(99))
    failure = chain.judge(block_on(chain, [raw])).failure
    assert failure and (failure.debug_line, failure.input) == (missing(raw), 1)


def test_the_first_broken_transaction_counts_whatever_its_rule() -> None:
    chain = empty_chain(HEIGHT - 1)
    below = spend(put_coin(chain, 1, 5), out=6)
    absent = spend(made_up(99))
    assert (refusal(chain, block_on(chain, [below, absent])) or "").startswith("bad-txns-in-belowout")
    assert refusal(chain, block_on(chain, [absent, below])) == missing(absent)


@pytest.mark.parametrize("in_order", [True, False])
def test_a_child_follows_its_parent(in_order: bool) -> None:
    chain = empty_chain(HEIGHT - 1)
    parent = spend(put_coin(chain, 1, 50), out=40)
    child = spend(txid_of(parent) + bytes(4), out=30)
    raws = [parent, child] if in_order else [child, parent]
    assert refusal(chain, block_on(chain, raws)) == (None if in_order else missing(child))


@pytest.mark.parametrize(
    ("output", "vout"), [(Output(1, TRUE), 1), (Output(1, b"\x6a"), 0), (Output(1, bytes(10_001)), 0)]
)
def test_what_the_parent_did_not_make_is_missing(output: Output, vout: int) -> None:
    chain = empty_chain(HEIGHT - 1)
    parent = serialize([Input(put_coin(chain, 1, 50))], [output], version=2)
    child = spend(txid_of(parent) + vout.to_bytes(4, "little"))
    assert refusal(chain, block_on(chain, [parent, child])) == missing(child)


def test_a_script_of_10_000_bytes_still_makes_a_coin() -> None:
    chain = empty_chain(HEIGHT - 1)
    script = b"\x4d\x08\x02" + bytes(520) + b"\x75"  # push 520 bytes, OP_DROP
    script = script * 19 + b"\x61" * (9_999 - 19 * len(script)) + TRUE
    assert len(script) == 10_000
    parent = serialize([Input(put_coin(chain, 1, 50))], [Output(1, script)], version=2)
    child = spend(txid_of(parent) + bytes(4))
    failure = chain.judge(block_on(chain, [parent, child])).failure
    # 44 OP_NOPs and 19 OP_DROPs: within 201 operations
    assert failure is None


def test_a_coin_is_spent_once() -> None:
    chain = empty_chain(HEIGHT - 1)
    coin = put_coin(chain, 1, 50)
    first, second = spend(coin, out=1), spend(coin, out=2)
    assert refusal(chain, block_on(chain, [first, second])) == missing(second)
    assert refusal(chain, block_on(chain, [second, first])) == missing(first)


def test_a_transaction_twice_finds_its_coins_spent() -> None:
    chain = empty_chain(HEIGHT - 1)
    raw = spend(put_coin(chain, 1, 50))
    other = spend(put_coin(chain, 2, 50))
    assert refusal(chain, block_on(chain, [raw, other, raw]), check_merkle=False) == missing(raw)


def test_the_genesis_output_and_other_absences_are_missing() -> None:
    chain = empty_chain(HEIGHT - 1)
    raw = spend(chain.headers[0].merkle_root + bytes(4))
    assert refusal(chain, block_on(chain, [raw])) == missing(raw)


# Maturity --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("depth", "ok"), [(0, False), (1, False), (99, False), (100, True), (229, True)])
def test_a_coinbase_is_spent_at_depth_100(depth: int, ok: bool) -> None:
    chain = empty_chain(HEIGHT - 1)
    raw = spend(put_coin(chain, 1, 50, height=HEIGHT - depth, coinbase=True))
    txid = txid_of(raw)[::-1].hex()
    text = f"bad-txns-premature-spend-of-coinbase, tried to spend coinbase at depth {depth} in transaction {txid}"
    assert refusal(chain, block_on(chain, [raw])) == (None if ok else text)


def test_other_coins_need_not_mature() -> None:
    chain = empty_chain(HEIGHT - 1)
    assert refusal(chain, block_on(chain, [spend(put_coin(chain, 1, 50, height=HEIGHT - 1))])) is None


@pytest.mark.parametrize(("vout", "found"), [(0, True), (1, False), (2, False), (3, False)])
def test_a_blocks_own_coinbase_is_found_and_too_young(vout: int, found: bool) -> None:
    """SPEC 4: depth 0. An OP_RETURN output (1), an oversized one (2), and one that is not there (3) are missing."""
    chain = empty_chain(HEIGHT - 1)
    coinbase = coinbase_tx(HEIGHT, 50, outputs=[Output(0, b"\x6a"), Output(0, bytes(10_001))])
    raw = spend(txid_of(coinbase) + vout.to_bytes(4, "little"))
    txid = txid_of(raw)[::-1].hex()
    young = f"bad-txns-premature-spend-of-coinbase, tried to spend coinbase at depth 0 in transaction {txid}"
    assert refusal(chain, block_on(chain, [raw], coinbase=coinbase)) == (young if found else missing(raw))


def test_the_same_transactions_with_another_coinbase_find_none() -> None:
    chain = empty_chain(HEIGHT - 1)
    raw = spend(txid_of(coinbase_tx(HEIGHT, 50)) + bytes(4))
    assert refusal(chain, block_on(chain, [raw], coinbase=coinbase_tx(HEIGHT, 51))) == missing(raw)


def test_a_young_coinbase_is_named_before_its_value() -> None:
    raw = spend(made_up(1), made_up(2))
    results = results_of([raw], [Coin(MAX + 1, HEIGHT - 99, True, TRUE), of_value(-1)])
    assert (results["code"][0], results["input"][0], results["depth"][0]) == (IMMATURE, 0, 99)
    results = results_of([raw], [of_value(-1), Coin(MAX + 1, HEIGHT - 99, True, TRUE)])
    assert (results["code"][0], results["input"][0]) == (BAD_VALUE, 0)


# BIP30 -----------------------------------------------------------------------------------------------------------

OVERWRITE = "bad-txns-BIP30, tried to overwrite transaction"


def test_outputs_that_are_unspent_already_are_not_overwritten() -> None:
    chain = empty_chain(HEIGHT - 1)
    raw = serialize([Input(put_coin(chain, 1, 50))], [Output(1), Output(2), Output(3)], version=2)
    block = block_on(chain, [spend(put_coin(chain, 2)), raw])
    assert refusal(chain, block) is None
    chain.coins[txid_of(raw) + b"\x02\0\0\0"] = of_value(1)
    failure = chain.judge(block).failure
    assert failure and (failure.debug_line, failure.position) == (OVERWRITE, 2)


def test_bip30_is_met_before_any_other_rule_of_this_stage() -> None:
    chain = empty_chain(HEIGHT - 1)
    absent, raw = spend(made_up(99)), spend(put_coin(chain, 1))
    chain.coins[txid_of(raw) + bytes(4)] = of_value(1)
    for inline in (False, True):
        assert refusal(chain, block_on(chain, [absent, raw], reward=2**40), inline=inline) == OVERWRITE


def test_the_coinbases_outputs_are_looked_for_too() -> None:
    chain = empty_chain(HEIGHT - 1)
    block = block_on(chain)
    chain.coins[block.transactions[0].txid + bytes(4)] = of_value(1)
    failure = chain.judge(block).failure
    assert failure and (failure.debug_line, failure.position) == (OVERWRITE, 0)


def test_where_bip30_is_not_enforced_a_mined_transaction_finds_its_inputs_spent() -> None:
    """SPEC 2.5: mainnet, on the chain whose block at the BIP34 height is the known one."""
    chain = empty_chain(HEIGHT - 1)
    raw = spend(made_up(1))
    chain.coins[txid_of(raw) + bytes(4)] = of_value(1)
    block = block_on(chain, [raw])
    assert refusal(chain, block) == OVERWRITE
    context = replace(chain.context(), bip30=False)
    chain.context = lambda: context  # type: ignore[method-assign]
    assert refusal(chain, block) == missing(raw)


# BIP68 -----------------------------------------------------------------------------------------------------------

DISABLED, BY_TIME = 1 << 31, 1 << 22


@pytest.mark.parametrize(
    ("coin_height", "sequence", "version", "locked"),
    [
        # height: the coin's height + n must not exceed the block's
        (HEIGHT - 10, 10, 2, False),
        (HEIGHT - 10, 11, 2, True),
        (HEIGHT - 10, 0, 2, False),
        (HEIGHT, 0, 2, False),  # made in this block
        (HEIGHT, 1, 2, True),
        (1, 0xFFFF, 2, True),
        (HEIGHT - 10, 11 | 1 << 16, 2, True),  # bits that mean nothing
        (HEIGHT - 10, 10 | 0x7FBF0000, 2, False),
        (HEIGHT - 10, 11 | DISABLED, 2, False),
        (HEIGHT - 10, 0xFFFFFFFF, 2, False),
        (HEIGHT - 10, 11, 1, False),  # versions below 2 have no locks
        (HEIGHT - 10, 11, 0, False),
        (HEIGHT - 10, 11, 3, True),
        (HEIGHT - 10, 11, 0xFFFFFFFF, True),  # unsigned
        # time: the median before the coin's block, plus n * 512, must not exceed the median before this block.
        # Headers are 600 s apart: ten blocks are 6,000 s, that is 11.7 steps of 512 s.
        (HEIGHT - 10, 11 | BY_TIME, 2, False),
        (HEIGHT - 10, 12 | BY_TIME, 2, True),
        (HEIGHT - 64, 75 | BY_TIME, 2, False),  # 64 blocks are 75 steps exactly
        (HEIGHT - 64, 76 | BY_TIME, 2, True),
        (HEIGHT, 0 | BY_TIME, 2, False),
        (HEIGHT, 1 | BY_TIME, 2, True),
        (HEIGHT - 64, 76 | BY_TIME | DISABLED, 2, False),
        (HEIGHT - 64, 76 | BY_TIME, 1, False),
    ],
)
def test_relative_locks(coin_height: int, sequence: int, version: int, locked: bool) -> None:
    raw = spend(made_up(1), version=version, sequence=sequence)
    coin = Coin(1, coin_height, False, TRUE)
    assert results_of([raw], [coin])["locked"].tolist() == [int(locked)]
    early = evaluate(table_of(raw), CoinBatch.of_coins([coin]).rows, replace(CONTEXT, csv=False), FLAGS)
    assert early["locked"].tolist() == [0]


def test_the_time_of_a_coin_is_the_median_before_its_block() -> None:
    """Coin at height 20: the median at 19 is the time at 14. This block: the median at 229 is the time at 224."""
    context = CONTEXT
    assert context.median_times(np.array([19, 229])).tolist() == [START + 14 * SPACING, START + 224 * SPACING]
    steps = 210 * SPACING // 512
    for n, locked in ((steps, 0), (steps + 1, 1)):
        raw = spend(made_up(1), sequence=n | BY_TIME)
        assert results_of([raw], [Coin(1, 20, False, TRUE)])["locked"].tolist() == [locked]


def test_a_coin_of_the_first_blocks_has_a_time_as_well() -> None:
    genesis = int(CONTEXT.times[0])
    passed = CONTEXT.median_time_past - genesis
    assert passed // 512 > 0xFFFF  # the made-up headers are years after genesis
    for height in (0, 1):
        raw = spend(made_up(1), sequence=0xFFFF | BY_TIME)
        assert results_of([raw], [Coin(1, height, False, TRUE)])["locked"].tolist() == [0]


def test_one_locked_input_locks_the_transaction_and_no_other() -> None:
    mixed = serialize([Input(made_up(1), sequence=0), Input(made_up(2), sequence=11)], [Output(0)], version=2)
    raws = [spend(made_up(3), sequence=0), mixed, spend(made_up(4), sequence=0)]
    coins = [Coin(1, HEIGHT - 10, False, TRUE)] * 4
    assert results_of(raws, coins)["locked"].tolist() == [0, 1, 0]


def test_the_text_of_a_lock() -> None:
    chain = empty_chain(HEIGHT - 1)
    raw = spend(put_coin(chain, 1, height=HEIGHT - 10), sequence=11)
    txid = txid_of(raw)[::-1].hex()
    assert refusal(chain, block_on(chain, [raw])) == (
        f"bad-txns-nonfinal, contains a non-BIP68-final transaction {txid}"
    )


# Sigop cost ------------------------------------------------------------------------------------------------------

MULTISIG = b"\x53\xae"  # OP_3 CHECKMULTISIG: 3 accurately, 20 otherwise
HASH20, HASH32 = bytes(20), bytes(32)
P2SH_SCRIPT = b"\xa9\x14" + HASH20 + b"\x87"
KEYHASH, SCRIPTHASH = b"\x00\x14" + HASH20, b"\x00\x20" + HASH32


def push(data: bytes) -> bytes:
    return bytes((len(data),)) + data


@pytest.mark.parametrize(
    ("script", "script_sig", "witness", "cost"),
    [
        (TRUE, b"", (), 0),
        (MULTISIG, b"", (), 0),  # what a coin's own script holds was counted when it was made
        (TRUE, b"\xac", (), 4),
        (TRUE, MULTISIG, (), 80),
        (P2SH_SCRIPT, push(MULTISIG), (), 12),
        (P2SH_SCRIPT, b"\x51" + push(MULTISIG), (), 12),
        (P2SH_SCRIPT, push(MULTISIG) + b"\xac", (), 4),  # not push-only: the redeem script does not count
        (P2SH_SCRIPT, push(MULTISIG) + b"\x4c", (), 0),  # does not parse
        (P2SH_SCRIPT, push(MULTISIG) + b"\x51", (), 0),  # OP_1 pushes last
        (P2SH_SCRIPT, b"", (), 0),
        (TRUE, push(MULTISIG), (), 0),
        (KEYHASH, b"", (b"", b""), 1),
        (KEYHASH, b"", (), 1),
        (SCRIPTHASH, b"", (b"", MULTISIG), 3),
        (SCRIPTHASH, b"", (MULTISIG, b""), 0),
        (SCRIPTHASH, b"", (), 0),
        (P2SH_SCRIPT, push(KEYHASH), (b"",), 1),
        (P2SH_SCRIPT, push(SCRIPTHASH), (MULTISIG,), 3),
        (P2SH_SCRIPT, push(SCRIPTHASH), (), 0),
        (P2SH_SCRIPT, push(KEYHASH) + b"\x61", (b"",), 0),
        (b"\x51\x20" + HASH32, b"", (MULTISIG,), 0),  # taproot
        (b"\x52\x20" + HASH32, b"", (MULTISIG,), 0),
        (b"\x00\x15" + bytes(21), b"", (MULTISIG,), 0),
    ],
)
def test_sigop_cost_by_kind_of_coin(script: bytes, script_sig: bytes, witness: tuple[bytes, ...], cost: int) -> None:
    raw = serialize([Input(made_up(1), script_sig, witness)], [Output(0, TRUE)])
    assert results_of([raw], [Coin(1, 1, False, script)])["sigop_cost"].tolist() == [cost]


def test_outputs_cost_four_for_each_legacy_sigop() -> None:
    raw = serialize([Input(made_up(1))], [Output(0, b"\xac"), Output(0, MULTISIG)])
    assert results_of([raw], [of_value(1)])["sigop_cost"].tolist() == [4 * (1 + 20)]


@pytest.mark.parametrize(("flags", "costs"), [(P2SH | WITNESS, [12, 3, 3]), (P2SH, [12, 0, 0]), (0, [0, 0, 0])])
def test_without_their_rules_scripts_cost_nothing(flags: int, costs: list[int]) -> None:
    raws = [
        serialize([Input(made_up(1), push(MULTISIG))], [Output(0)]),
        serialize([Input(made_up(2), b"", (MULTISIG,))], [Output(0)]),
        serialize([Input(made_up(3), push(SCRIPTHASH), (MULTISIG,))], [Output(0)]),
    ]
    coins = [Coin(1, 1, False, script) for script in (P2SH_SCRIPT, SCRIPTHASH, P2SH_SCRIPT)]
    assert results_of(raws, coins, flags)["sigop_cost"].tolist() == costs


@pytest.mark.parametrize(("last", "ok"), [(800, True), (801, False)])
def test_a_block_costs_80_000_and_no_more(last: int, ok: bool) -> None:
    """Forty witness scripts and the coinbase cost 79,200; the last one's sigops bring it to 80,000, or beyond."""
    chain = empty_chain(HEIGHT - 1)
    raws = []
    costs = [2_000] * 39 + [1_000, last]
    for number, cost in enumerate(costs):
        script = b"\x00\x63" + b"\xae" * (cost // 20) + b"\xac" * (cost % 20) + b"\x68\x51"
        program = b"\x00\x20" + hashlib.sha256(script).digest()
        coin = put_coin(chain, number, script=program)
        raws.append(serialize([Input(coin, b"", (script,))], [Output(0, TRUE)], version=2))
    wtxids = [decode_transaction(raw).wtxid for raw in raws]
    coinbase = coinbase_tx(HEIGHT, 50, wtxids, outputs=[Output(0, b"\xae\xae" + b"\xac" * 10)])  # 4 * 50 = 200
    failure = chain.judge(block_on(chain, raws, coinbase=coinbase)).failure
    if ok:
        assert failure is None
    else:
        assert failure and (failure.debug_line, failure.position) == ("bad-blk-sigops, too many sigops", 41)


# Scripts ---------------------------------------------------------------------------------------------------------


def test_scripts_count_where_they_stand_or_after_everything_else() -> None:
    chain = empty_chain(HEIGHT - 1)
    bad = spend(put_coin(chain, 1, script=b"\x00"))
    absent = spend(made_up(99))
    failed = f"block-script-verify-flag-failed, input 0 of {txid_of(bad)[::-1].hex()} "
    block = block_on(chain, [bad, absent])
    assert refusal(chain, block) == missing(absent)
    assert (refusal(chain, block, inline=True) or "").startswith(failed)
    block = block_on(chain, [absent, bad])
    assert refusal(chain, block, inline=True) == missing(absent)
    greedy = block_on(chain, [bad], reward=2**40)
    assert (refusal(chain, greedy) or "").startswith("bad-cb-amount")
    assert (refusal(chain, greedy, inline=True) or "").startswith(failed)


def test_a_script_failure_names_input_and_outpoint() -> None:
    chain = empty_chain(HEIGHT - 1)
    good, bad = put_coin(chain, 1), put_coin(chain, 2, script=b"\x00", vout=7)
    raw = spend(good, bad)
    txid = txid_of(raw)[::-1].hex()
    assert refusal(chain, block_on(chain, [raw])) == (
        f"block-script-verify-flag-failed, input 1 of {txid} (wtxid {txid}), spending {bad[31::-1].hex()}:7"
    )


def test_of_several_failing_scripts_the_first_in_the_block_is_named() -> None:
    chain = empty_chain(HEIGHT - 1)
    raws = [spend(put_coin(chain, n, script=b"\x00" if n else TRUE)) for n in range(4)]
    failure = chain.judge(block_on(chain, raws)).failure
    assert failure and (failure.position, failure.input) == (2, 0)


def test_first_failure_of_nothing_but_a_coinbase() -> None:
    rows = table_of(serialize([Input(NULL_OUTPOINT, b"\x01\x01")], [Output(2_500_000_000)])).rows
    results = evaluate(table_of(coinbase_tx(HEIGHT, 1)), CoinColumns(1).rows, CONTEXT, FLAGS)
    assert first_failure(rows, results, CONTEXT, None, {}, False) is None


# Odd shapes ------------------------------------------------------------------------------------------------------


def test_a_transaction_is_not_judged_before_its_coins_are_known() -> None:
    with pytest.raises(InternalError, match="before its coins were known"):
        evaluate(table_of(spend(made_up(1))), CoinColumns(1).rows, CONTEXT, FLAGS)


def test_transactions_without_inputs_or_outputs_do_no_harm() -> None:
    """They fail CheckTransaction, but may be looked at before any verdict is asked for."""
    empty = bytes.fromhex("01000000000000000000")
    no_outputs = serialize([Input(made_up(1))], [])
    results = results_of([empty, no_outputs, empty], [of_value(5)])
    assert results["code"].tolist() == [GOOD] * 3
    assert results["fee"].tolist() == [0, 5, 0]
    assert len(results_of([], [])) == 0


def test_amounts_out_of_range_in_outputs_do_no_harm() -> None:
    raw = serialize([Input(made_up(1))], [Output(2**63 - 1), Output(2**63 - 1), Output(-5)])
    results = results_of([raw, spend(made_up(2), out=1)], [of_value(5), of_value(2)])
    assert results["fee"].tolist()[1] == 1
