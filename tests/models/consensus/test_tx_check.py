"""CheckTransaction: one case per rule, the order of the rules, and Core's context-free vectors (SPEC 2.2)."""

import json
from pathlib import Path

import pytest

from models.consensus import reasons as r
from models.consensus.tx_check import check_transaction
from models.wire.transaction import decode_transaction
from tests.models.consensus.building import made_up
from tests.models.script.building import NULL_OUTPOINT, Input, Output, serialize

MAX = 2_100_000_000_000_000  # satoshis
A, B = Input(made_up(1)), Input(made_up(2))
ONE = Output(1)


def check(inputs: list[Input], outputs: list[Output]) -> str | None:
    code = check_transaction(decode_transaction(serialize(inputs, outputs)))
    reason = r.TX_CHECK_REASONS[code]
    return reason.text if reason else None


def coinbase(script_size: int) -> list[Input]:
    return [Input(NULL_OUTPOINT, bytes(script_size))]


def test_no_inputs() -> None:
    """Only without outputs can such a transaction be put on the wire."""
    code = check_transaction(decode_transaction(bytes.fromhex("01000000000000000000")))
    assert code == r.VIN_EMPTY
    assert r.TX_CHECK_REASONS[code].text == "bad-txns-vin-empty"  # type: ignore[union-attr]


def oversize(spare: int) -> list[Input]:
    """One input that makes a transaction with output `ONE` 1,000,000 - `spare` bytes long."""
    frame = 4 + 1 + 36 + 5 + 4 + 1 + 9 + 4
    return [Input(made_up(1), bytes(1_000_000 - frame - spare))]


@pytest.mark.parametrize(
    ("inputs", "outputs", "reason"),
    [
        ([A, B], [ONE], None),
        ([A], [], "bad-txns-vout-empty"),
        (oversize(0), [ONE], None),
        (oversize(-1), [ONE], "bad-txns-oversize"),
        ([A], [Output(0)], None),
        ([A], [Output(-1)], "bad-txns-vout-negative"),
        ([A], [Output(-(2**63))], "bad-txns-vout-negative"),
        ([A], [Output(MAX)], None),
        ([A], [Output(MAX + 1)], "bad-txns-vout-toolarge"),
        ([A], [Output(2**63 - 1)], "bad-txns-vout-toolarge"),
        ([A], [Output(MAX), Output(0)], None),
        ([A], [Output(MAX), Output(1)], "bad-txns-txouttotal-toolarge"),
        ([A], [Output(MAX)] * 5000, "bad-txns-txouttotal-toolarge"),  # the sum is above 2^63
        ([A, B, A], [ONE], "bad-txns-inputs-duplicate"),
        ([A, Input(made_up(1, 1))], [ONE], None),
        (coinbase(1), [ONE], "bad-cb-length"),
        (coinbase(2), [ONE], None),
        (coinbase(100), [ONE], None),
        (coinbase(101), [ONE], "bad-cb-length"),
        ([A, Input(NULL_OUTPOINT)], [ONE], "bad-txns-prevout-null"),
        ([Input(bytes(36))], [ONE], None),
        ([Input(made_up(1, 0xFFFFFFFF))], [ONE], None),
    ],
)
def test_each_rule_and_its_neighbour(inputs: list[Input], outputs: list[Output], reason: str | None) -> None:
    assert check(inputs, outputs) == reason


NULL = Input(NULL_OUTPOINT)


@pytest.mark.parametrize(
    ("inputs", "outputs", "reason"),
    [
        ([A, A], [], "bad-txns-vout-empty"),
        (oversize(-1), [Output(-1)], "bad-txns-oversize"),
        ([A], [Output(-1), Output(MAX + 1)], "bad-txns-vout-negative"),
        ([A], [Output(MAX + 1), Output(-1)], "bad-txns-vout-toolarge"),
        ([A], [Output(MAX), Output(1), Output(-1)], "bad-txns-txouttotal-toolarge"),
        ([A], [Output(MAX), Output(-1), Output(1)], "bad-txns-vout-negative"),
        ([A, A], [Output(-1)], "bad-txns-vout-negative"),
        ([A, A, NULL], [ONE], "bad-txns-inputs-duplicate"),
        ([NULL, NULL], [ONE], "bad-txns-inputs-duplicate"),
        (coinbase(1), [Output(MAX + 1)], "bad-txns-vout-toolarge"),
    ],
)
def test_of_two_broken_rules_the_earlier_is_named(inputs: list[Input], outputs: list[Output], reason: str) -> None:
    assert check(inputs, outputs) == reason


def test_the_witness_does_not_count_for_the_size() -> None:
    spend = oversize(0)[0]
    assert check([Input(spend.prevout, spend.script_sig, (bytes(10_000),))], [ONE]) is None


def rows(path: Path) -> list[list]:
    return [row for row in json.loads(path.read_text()) if len(row) == 3]


def test_cores_context_free_invalid_transactions(shared_vectors: Path) -> None:
    bad = [row for row in rows(shared_vectors / "core" / "tx_invalid.json") if row[2] == "BADTX"]
    codes = [check_transaction(decode_transaction(bytes.fromhex(row[1]))) for row in bad]
    assert len(codes) == 9
    assert r.CHECK_OK not in codes
    assert {r.VOUT_EMPTY, r.VOUT_NEGATIVE, r.VOUT_TOOLARGE, r.TXOUTTOTAL_TOOLARGE} <= set(codes)
    assert {r.INPUTS_DUPLICATE, r.CB_LENGTH, r.PREVOUT_NULL} <= set(codes)


def test_cores_other_transactions_pass(shared_vectors: Path) -> None:
    good = rows(shared_vectors / "core" / "tx_valid.json")
    good += [row for row in rows(shared_vectors / "core" / "tx_invalid.json") if row[2] != "BADTX"]
    codes = [check_transaction(decode_transaction(bytes.fromhex(row[1]))) for row in good]
    assert len(codes) == 121 + 93 - 9
    assert set(codes) == {r.CHECK_OK}
