"""The key path spending vector of BIP341: nine inputs of six kinds, seven of them taproot with every hash type, pass
together, and each taproot signature fails once a bit of it, or a coin that it commits to, is another.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from models.script import verify
from models.wire.transaction import decode_transaction

SIGHASH_ANYONECANPAY = 0x80


@pytest.fixture(scope="module")
def vector(shared_vectors: Path) -> dict[str, Any]:
    (only,) = json.loads((shared_vectors / "core" / "bip341_wallet_vectors.json").read_text())["keyPathSpending"]
    return only


def signed(vector: dict[str, Any]) -> bytes:
    return bytes.fromhex(vector["auxiliary"]["fullySignedTx"])


def coins(vector: dict[str, Any]) -> list[tuple[int, bytes]]:
    return [(utxo["amountSats"], bytes.fromhex(utxo["scriptPubKey"])) for utxo in vector["given"]["utxosSpent"]]


def test_all_inputs_of_the_signed_transaction_pass(vector: dict[str, Any]) -> None:
    assert verify.verify_inputs(signed(vector), coins(vector), verify.ALL_FLAGS) == [True] * 9


def test_expected_witnesses_are_the_ones_that_passed(vector: dict[str, Any]) -> None:
    witnesses = decode_transaction(signed(vector)).witnesses
    expected = {spend["given"]["txinIndex"]: spend["expected"]["witness"] for spend in vector["inputSpending"]}
    assert len(expected) == 7
    assert {index: [item.hex() for item in witnesses[index]] for index in expected} == expected


def test_a_flipped_bit_fails_the_input_it_signs_and_no_other(vector: dict[str, Any]) -> None:
    raw = signed(vector)
    for spend in vector["inputSpending"]:
        signature = bytes.fromhex(spend["expected"]["witness"][0])
        broken = raw.replace(signature, signature[:10] + bytes([signature[10] ^ 1]) + signature[11:])
        passed = verify.verify_inputs(broken, coins(vector), verify.ALL_FLAGS)
        assert [index for index, ok in enumerate(passed) if not ok] == [spend["given"]["txinIndex"]]


def test_another_amount_of_another_input_fails_all_signatures_but_those_of_anyone_can_pay(
    vector: dict[str, Any],
) -> None:
    spent = coins(vector)
    p2pkh = 2  # its own signature does not cover the amount
    spent[p2pkh] = (spent[p2pkh][0] + 1, spent[p2pkh][1])
    passed = verify.verify_inputs(signed(vector), spent, verify.ALL_FLAGS)
    covering = {
        spend["given"]["txinIndex"]
        for spend in vector["inputSpending"]
        if not spend["given"]["hashType"] & SIGHASH_ANYONECANPAY
    }
    assert {index for index, ok in enumerate(passed) if not ok} == covering
