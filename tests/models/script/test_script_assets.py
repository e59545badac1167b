"""Core's taproot script assets (a part of the full set): each input passes with its good scriptSig and witness, and
fails with its bad one, under the flags of the row. Rows marked final also pass under every other set of flags.
"""

import json
import lzma
from pathlib import Path
from typing import Any

import pytest

from models.script import verify
from models.wire.transaction import decode_transaction
from tests.models.script.building import Input, Output, serialize
from tests.models.script.test_core_scripts import CONSENSUS_FLAGS


@pytest.fixture(scope="module")
def rows(shared_vectors: Path) -> list[dict[str, Any]]:
    with lzma.open(shared_vectors / "script_assets_btcd_part.jsonl.xz", "rt") as lines:
        return [json.loads(line) for line in lines]


def flags_of(row: dict[str, Any]) -> int:
    return sum(CONSENSUS_FLAGS[name] for name in row["flags"].split(","))


def passes(row: dict[str, Any], spend: dict[str, Any], flags: int) -> bool:
    """Puts the scriptSig and the witness of `spend` into the one input that the row is about, and runs that input."""
    tx = decode_transaction(bytes.fromhex(row["tx"]))
    inputs = [
        Input(prevout, script_sig, sequence=sequence)
        for prevout, script_sig, sequence in zip(tx.prevouts, tx.script_sigs, tx.sequences, strict=True)
    ]
    index = row["index"]
    witness = tuple(bytes.fromhex(item) for item in spend["witness"])
    inputs[index] = Input(tx.prevouts[index], bytes.fromhex(spend["scriptSig"]), witness, tx.sequences[index])
    outputs = [Output(value, script) for value, script in zip(tx.values, tx.script_pubkeys, strict=True)]
    raw = serialize(inputs, outputs, version=tx.version & 0xFFFFFFFF, locktime=tx.locktime)
    spent = [output_of(bytes.fromhex(prevout)) for prevout in row["prevouts"]]
    return verify.verify_inputs(raw, spent, flags, [index]) == [True]


def output_of(serialized: bytes) -> tuple[int, bytes]:
    """A serialised output: value in 8 bytes, then the script behind its length, which is one byte here."""
    assert serialized[8] == len(serialized) - 9 < 0xFD
    return int.from_bytes(serialized[:8], "little", signed=True), serialized[9:]


def test_good_spends_pass(rows: list[dict[str, Any]]) -> None:
    good = [row for row in rows if "success" in row]
    assert (len(rows), len(good)) == (705, 705)
    assert [row["comment"] for row in good if not passes(row, row["success"], flags_of(row))] == []


def test_bad_spends_fail(rows: list[dict[str, Any]]) -> None:
    bad = [row for row in rows if "failure" in row]
    assert len(bad) == 621
    assert [row["comment"] for row in bad if passes(row, row["failure"], flags_of(row))] == []


@pytest.mark.parametrize("flags", [0, verify.P2SH | verify.WITNESS, verify.ALL_FLAGS])
def test_final_rows_pass_under_other_flags(rows: list[dict[str, Any]], flags: int) -> None:
    final = [row for row in rows if row.get("final")]
    assert len(final) == 169
    assert [row["comment"] for row in final if not passes(row, row["success"], flags)] == []
