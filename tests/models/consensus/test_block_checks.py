"""Rules that need no coins, at their limits: sizes, sigops, final transactions, height, witness commitment, header."""

import hashlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.consensus.block_checks import (
    block_sizes,
    check_block,
    check_header,
    check_transactions_in_context,
    coinbase_height_script,
    commitment_index,
)
from models.consensus.coinbase import dummy_coinbase
from models.consensus.failure import Failure, format_money
from models.consensus.table import ALL_FINAL, COINBASE, HAS_WITNESS, TX_ROW
from models.wire.block import BlockHeader
from models.wire.transaction import decode_transaction
from tests.models.consensus.building import coinbase_tx, empty_chain
from tests.models.script.building import NULL_OUTPOINT, Input, Output, serialize

HEIGHT = 201
CHAIN = empty_chain(HEIGHT - 1)
CONTEXT = CHAIN.context()
NOW = CONTEXT.prev_time + 600
HEADER = BlockHeader(0x20000000, CHAIN.tip.hash, bytes(32), NOW, CONTEXT.bits, 0)
PLAIN_COINBASE = decode_transaction(coinbase_tx(HEIGHT, 50))


def rows_of(count: int, base: int = 60, total: int | None = None) -> np.ndarray:
    """Rows of a block: a coinbase and count - 1 other transactions of the same sizes."""
    rows = np.zeros(count, TX_ROW)
    rows["base_size"], rows["total_size"] = base, base if total is None else total
    rows["flags"] = ALL_FINAL
    rows["flags"][:1] |= COINBASE
    return rows


def line(failure: Failure | None) -> str | None:
    return failure.debug_line if failure else None


# Rows 5 to 9 -----------------------------------------------------------------------------------------------------


def test_a_block_without_transactions_has_no_length() -> None:
    assert line(check_block(rows_of(0))) == "bad-blk-length, size limits failed"


def test_a_block_of_a_million_bytes_without_witnesses() -> None:
    rows = rows_of(2)
    rows["base_size"] = (500_000, 500_000 - 81)
    assert block_sizes(rows)[0] == 1_000_000
    assert check_block(rows) is None
    rows["base_size"][1] += 1
    assert line(check_block(rows)) == "bad-blk-length, size limits failed"


def test_the_number_of_transactions_alone_can_be_too_large() -> None:
    assert line(check_block(rows_of(1_000_001, base=0))) == "bad-blk-length, size limits failed"


@pytest.mark.parametrize(("count", "frame"), [(1, 81), (252, 81), (253, 83), (65_535, 83), (65_536, 85)])
def test_header_and_count_are_part_of_the_size(count: int, frame: int) -> None:
    assert block_sizes(rows_of(count, base=3, total=5)) == (frame + 3 * count, frame + 5 * count)


def test_sizes_are_added_beyond_32_bits() -> None:
    assert block_sizes(rows_of(2, base=2**32 - 1)) == (81 + 2**33 - 2, 81 + 2**33 - 2)


def test_the_first_transaction_and_no_other_is_a_coinbase() -> None:
    rows = rows_of(4)
    rows["flags"][0] = 0
    failure = check_block(rows)
    assert (line(failure), failure and failure.position) == ("bad-cb-missing, first tx is not coinbase", 0)
    rows = rows_of(4)
    rows["flags"][2:] |= COINBASE
    failure = check_block(rows)
    assert (line(failure), failure and failure.position) == ("bad-cb-multiple, more than one coinbase", 2)


def test_the_first_transaction_that_fails_by_itself_is_named() -> None:
    rows = rows_of(5)
    rows["check"][3:] = 5
    rows["check"][2] = 7
    rows["txid"][2] = np.void(bytes(range(32)))
    shown = bytes(range(32))[::-1].hex()
    failure = check_block(rows)
    assert line(failure) == f"bad-txns-inputs-duplicate, Transaction check failed (tx hash {shown}) "
    assert failure and failure.position == 2


def test_twenty_thousand_legacy_sigops() -> None:
    rows = rows_of(3)
    rows["legacy_sigops"] = (1, 9_999, 10_000)
    assert check_block(rows) is None
    rows["legacy_sigops"][0] = 2
    assert line(check_block(rows)) == "bad-blk-sigops, out-of-bounds SigOpCount"
    rows["legacy_sigops"] = 2**32 - 1
    assert line(check_block(rows)) == "bad-blk-sigops, out-of-bounds SigOpCount"


# Rows 10 to 14 ---------------------------------------------------------------------------------------------------


def header(**changes: Any) -> str | None:
    return line(check_header(replace(HEADER, **changes), CONTEXT, NOW))


def test_a_header_at_every_limit() -> None:
    assert header() is None
    assert header(time=CONTEXT.median_time_past + 1) is None
    assert header(time=NOW + 7200) is None
    assert header(version=4) is None
    assert header(version=2**31 - 1) is None


def test_a_header_beyond_a_limit() -> None:
    assert header(bits=CONTEXT.bits - 1) == "bad-diffbits, incorrect proof of work"
    assert header(time=CONTEXT.median_time_past) == "time-too-old, block's timestamp is too early"
    assert header(time=NOW + 7201) == "time-too-new, block timestamp too far in the future"
    assert header(version=3) == "bad-version(0x00000003), rejected nVersion=0x00000003 block"
    assert header(version=-1) == "bad-version(0xffffffff), rejected nVersion=0xffffffff block"


def test_header_rules_are_met_in_order() -> None:
    assert header(bits=0, time=0, version=0) == "bad-diffbits, incorrect proof of work"
    assert header(time=0, version=0) == "time-too-old, block's timestamp is too early"
    assert header(time=NOW + 9000, version=0) == "time-too-new, block timestamp too far in the future"


def test_timewarp_is_met_between_too_old_and_too_new() -> None:
    context = replace(CONTEXT, timewarp_minimum=NOW + 8000)
    text = "time-timewarp-attack, block's timestamp is too early on diff adjustment block"
    assert line(check_header(replace(HEADER, time=NOW + 7999), context, NOW)) == text
    assert line(check_header(replace(HEADER, time=NOW + 8000), context, NOW + 800)) is None
    assert line(check_header(replace(HEADER, time=0), context, NOW)) == "time-too-old, block's timestamp is too early"


# Row 15 ----------------------------------------------------------------------------------------------------------

MTP = CONTEXT.median_time_past


@pytest.mark.parametrize(
    ("locktime", "final_sequences", "ok"),
    [
        (0, False, True),
        (HEIGHT - 1, False, True),
        (HEIGHT, False, False),
        (HEIGHT, True, True),
        (499_999_999, False, False),
        (500_000_000, False, True),
        (MTP - 1, False, True),
        (MTP, False, False),
        (MTP, True, True),
        (2**32 - 1, False, False),
        (2**32 - 1, True, True),
    ],
)
def test_lock_times(locktime: int, final_sequences: bool, ok: bool) -> None:
    rows = rows_of(3)
    rows["locktime"][2] = locktime
    rows["flags"][2] = ALL_FINAL if final_sequences else 0
    failure = check_transactions_in_context(rows, PLAIN_COINBASE, HEADER, CONTEXT, bytes(32))
    assert line(failure) == (None if ok else "bad-txns-nonfinal, non-final transaction")
    assert failure is None or failure.position == 2


def test_before_csv_a_lock_time_is_compared_with_the_headers_time() -> None:
    rows = rows_of(2)
    rows["locktime"][1], rows["flags"][1] = NOW - 1, 0
    early = replace(CONTEXT, csv=False)
    assert check_transactions_in_context(rows, PLAIN_COINBASE, HEADER, early, bytes(32)) is None
    failure = check_transactions_in_context(rows, PLAIN_COINBASE, HEADER, CONTEXT, bytes(32))
    assert line(failure) == "bad-txns-nonfinal, non-final transaction"


def test_the_coinbases_lock_time_counts_too() -> None:
    rows = rows_of(2)
    rows["locktime"][0], rows["flags"][0] = HEIGHT, COINBASE
    failure = check_transactions_in_context(rows, PLAIN_COINBASE, HEADER, CONTEXT, bytes(32))
    assert failure and failure.position == 0


# Row 16 ----------------------------------------------------------------------------------------------------------

# CScript() << n, worked by hand: OP_0, OP_1 to OP_16, then the shortest little-endian number whose top bit is free.
PUSHES = [
    (0, "00"),
    (1, "51"),
    (16, "60"),
    (17, "0111"),
    (127, "017f"),
    (128, "028000"),
    (255, "02ff00"),
    (256, "020001"),
    (32_767, "02ff7f"),
    (32_768, "03008000"),
    (65_535, "03ffff00"),
    (65_536, "03000001"),
    (227_931, "035b7a03"),
    (840_000, "0340d10c"),
    (8_388_607, "03ffff7f"),
    (8_388_608, "0400008000"),
    (2**31 - 1, "04ffffff7f"),
]


@pytest.mark.parametrize(("height", "push"), PUSHES)
def test_pushes_of_heights(height: int, push: str) -> None:
    assert coinbase_height_script(height).hex() == push


@given(st.integers(17, 2**31 - 1))
def test_a_height_is_pushed_as_the_shortest_positive_number(height: int) -> None:
    script = coinbase_height_script(height)
    size, number = script[0], script[1:]
    assert size == len(number)
    assert int.from_bytes(number, "little") == height
    assert number[-1] < 0x80
    assert number[-1] != 0 or number[-2] >= 0x80


@pytest.mark.parametrize(
    ("script_sig", "ok"),
    [("02c900", True), ("02c90051", True), ("02c9", False), ("02ca00", False), ("01c9", False), ("0051", False)],
)
def test_a_coinbase_begins_with_its_height(script_sig: str, ok: bool) -> None:
    assert coinbase_height_script(HEIGHT).hex() == "02c900"
    coinbase = decode_transaction(serialize([Input(NULL_OUTPOINT, bytes.fromhex(script_sig))], [Output(1)]))
    failure = check_transactions_in_context(rows_of(1), coinbase, HEADER, CONTEXT, bytes(32))
    assert line(failure) == (None if ok else "bad-cb-height, block height mismatch in coinbase")
    early = replace(CONTEXT, bip34=False)
    assert check_transactions_in_context(rows_of(1), coinbase, HEADER, early, bytes(32)) is None


# Row 17 ----------------------------------------------------------------------------------------------------------

ROOT = b"\x07" * 32
RESERVED = b"\x09" * 32
HASH = hashlib.sha256(hashlib.sha256(ROOT + RESERVED).digest()).digest()
GOOD = bytes.fromhex("6a24aa21a9ed") + HASH
OTHER = bytes.fromhex("6a24aa21a9ed") + bytes(32)
NONCE_SIZE = "bad-witness-nonce-size, CheckWitnessMalleation : invalid witness reserved value size"
MISMATCH = "bad-witness-merkle-match, CheckWitnessMalleation : witness merkle commitment mismatch"
UNEXPECTED = "unexpected-witness, CheckWitnessMalleation : unexpected witness data found"


@pytest.mark.parametrize(
    ("scripts", "witness", "spends_have_witness", "expected"),
    [
        ([], (), False, None),
        ([], (), True, UNEXPECTED),
        ([], (RESERVED,), False, UNEXPECTED),  # the coinbase's own counts too
        ([GOOD], (RESERVED,), True, None),
        ([GOOD], (RESERVED,), False, None),
        ([GOOD + b"\x51\x52"], (RESERVED,), True, None),  # 38 bytes and more
        ([GOOD[:-1]], (RESERVED,), True, UNEXPECTED),  # 37 bytes are none
        ([b"\x6a\x24\xaa\x21\xa9\xee" + HASH], (RESERVED,), True, UNEXPECTED),
        ([OTHER], (RESERVED,), True, MISMATCH),
        ([OTHER], (RESERVED,), False, MISMATCH),
        ([OTHER, GOOD], (RESERVED,), True, None),  # the last one counts
        ([GOOD, OTHER], (RESERVED,), True, MISMATCH),
        ([GOOD], (), True, NONCE_SIZE),
        ([OTHER], (), False, NONCE_SIZE),
        ([GOOD], (RESERVED, RESERVED), True, NONCE_SIZE),
        ([GOOD], (RESERVED[:31],), True, NONCE_SIZE),
        ([GOOD], (RESERVED + b"\x00",), True, NONCE_SIZE),
    ],
)
def test_witness_commitments(
    scripts: list[bytes], witness: tuple[bytes, ...], spends_have_witness: bool, expected: str | None
) -> None:
    outputs = [Output(1), *(Output(0, script) for script in scripts)]
    coinbase = decode_transaction(serialize([Input(NULL_OUTPOINT, b"\x02\xc9\x00", witness)], outputs))
    rows = rows_of(2)
    rows["flags"][0] |= HAS_WITNESS if witness else 0
    rows["flags"][1] |= HAS_WITNESS if spends_have_witness else 0
    failure = check_transactions_in_context(rows, coinbase, HEADER, CONTEXT, ROOT)
    assert line(failure) == expected
    if failure and expected != UNEXPECTED:
        assert failure.position == 0


def test_before_segwit_a_commitment_means_nothing() -> None:
    outputs = [Output(0, OTHER)]
    early = replace(CONTEXT, segwit=False)
    coinbase = decode_transaction(serialize([Input(NULL_OUTPOINT, b"\x02\xc9\x00")], outputs))
    assert check_transactions_in_context(rows_of(1), coinbase, HEADER, early, ROOT) is None
    rows = rows_of(3)
    rows["flags"][1:] |= HAS_WITNESS
    failure = check_transactions_in_context(rows, coinbase, HEADER, early, ROOT)
    assert (line(failure), failure and failure.position) == (UNEXPECTED, 1)


def test_a_coinbase_without_commitment_has_no_index() -> None:
    assert commitment_index(PLAIN_COINBASE) is None


# Row 18 ----------------------------------------------------------------------------------------------------------


def test_four_million_weight_units() -> None:
    rows = rows_of(2)
    rows["base_size"] = (100, 200)
    rows["total_size"] = (100, 4_000_000 - 3 * (81 + 300) - 81 - 100)
    assert check_transactions_in_context(rows, PLAIN_COINBASE, HEADER, CONTEXT, ROOT) is None
    rows["total_size"][1] += 1
    failure = check_transactions_in_context(rows, PLAIN_COINBASE, HEADER, CONTEXT, ROOT)
    assert line(failure) == "bad-blk-weight, ContextualCheckBlock : weight limit failed"


# Texts, and our own coinbase -------------------------------------------------------------------------------------


# util_tests.cpp, util_FormatMoney
@pytest.mark.parametrize(
    ("satoshis", "text"),
    [
        (0, "0.00"),
        (10_000 * 123_456_789, "12345.6789"),
        (-(10**8), "-1.00"),
        (10**16, "100000000.00"),
        (10**7, "0.10"),
        (10**6, "0.01"),
        (10**5, "0.001"),
        (10**4, "0.0001"),
        (10**3, "0.00001"),
        (10**2, "0.000001"),
        (10, "0.0000001"),
        (1, "0.00000001"),
        (2**63 - 1, "92233720368.54775807"),
        (-(2**63), "-92233720368.54775808"),
    ],
)
def test_amounts_as_core_shows_them(satoshis: int, text: str) -> None:
    assert format_money(satoshis) == text


def test_our_own_coinbase_byte_by_byte() -> None:
    """SPEC 1.5, step 5: version 2, height push, sequence fffffffe, OP_TRUE, commitment, lock time height - 1."""
    commitment = hashlib.sha256(hashlib.sha256(ROOT + bytes(32)).digest()).digest()
    context = replace(CONTEXT, subsidy=5_000_000_000)
    assert dummy_coinbase(context, ROOT, fees=7).hex() == "".join(
        (
            "02000000" "0001" "01" + "00" * 32 + "ffffffff" "03" "02c900" "feffffff",
            "02" + (5_000_000_007).to_bytes(8, "little").hex() + "0151",
            "00" * 8 + "26" "6a24aa21a9ed" + commitment.hex(),
            "01" "20" + "00" * 32 + "c8000000",
        )
    )  # fmt: skip


def test_our_coinbase_of_a_low_height_has_two_opcodes() -> None:
    context = replace(CONTEXT, height=16, segwit=False)
    tx = decode_transaction(dummy_coinbase(context, ROOT))
    assert (tx.script_sigs, tx.locktime, tx.has_witness) == ([b"\x60\x00"], 15, False)
    assert len(tx.script_pubkeys) == 2  # the commitment is there all the same
