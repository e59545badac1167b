"""Core's tx_valid.json and tx_invalid.json, as far as scripts decide them: valid rows pass under all consensus flags
but the listed ones, invalid rows fail under the listed ones, and one flag more or less turns the outcome round.

Policy flags the kernel does not know. In valid rows they only take flags away that it never sets; invalid rows that
list one are left out, as are those that fail without a look at scripts (BADTX). Both are counted.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from models.script import verify
from models.wire.transaction import decode_transaction
from tests.models.script.asm import parse_asm
from tests.models.script.test_core_scripts import CONSENSUS_FLAGS, NO_FLAGS


@dataclass(frozen=True)
class Row:
    name: str
    raw: bytes
    spent: list[tuple[int, bytes]]  # satoshis, scriptPubKey; in input order
    flags: frozenset[str]

    @property
    def expressible(self) -> bool:
        return self.flags <= CONSENSUS_FLAGS.keys() | NO_FLAGS

    def passes(self, flags: int) -> bool:
        return all(verify.verify_inputs(self.raw, self.spent, flags))


def read_rows(path: Path) -> list[Row]:
    rows = []
    for line, row in enumerate(json.loads(path.read_text())):
        if len(row) < 3:
            continue  # a remark
        prevouts, raw_hex, flags = row
        coins = {}
        for txid, index, script, *amount in prevouts:
            outpoint = bytes.fromhex(txid)[::-1] + (index & 0xFFFFFFFF).to_bytes(4, "little")
            coins[outpoint] = (amount[0] if amount else 0, parse_asm(script))
        raw = bytes.fromhex(raw_hex)
        names = frozenset(flags.split(","))
        if "BADTX" in names:
            spent = []
        else:
            spent = [coins[outpoint] for outpoint in decode_transaction(raw).prevouts]
        rows.append(Row(f"{path.name} {line}", raw, spent, names))
    return rows


def known(flags: frozenset[str]) -> list[int]:
    return [CONSENSUS_FLAGS[name] for name in flags if name in CONSENSUS_FLAGS]


def combinable(flags: int) -> int:
    """WITNESS is not to be had without P2SH (Core: `TrimFlags`, transaction_tests.cpp)."""
    return flags if flags & verify.P2SH else flags & ~verify.WITNESS


@pytest.fixture(scope="module")
def valid(shared_vectors: Path) -> list[Row]:
    return read_rows(shared_vectors / "core" / "tx_valid.json")


@pytest.fixture(scope="module")
def invalid(shared_vectors: Path) -> list[Row]:
    return read_rows(shared_vectors / "core" / "tx_invalid.json")


def test_valid_rows_pass_under_all_flags_not_listed(valid: list[Row]) -> None:
    assert (len(valid), sum(len(row.spent) for row in valid)) == (121, 176)
    failed = [row.name for row in valid if not row.passes(combinable(verify.ALL_FLAGS & ~sum(known(row.flags))))]
    assert failed == []


def test_valid_rows_pass_with_any_one_flag_taken_away(valid: list[Row]) -> None:
    failed = [
        (row.name, flag)
        for row in valid
        for flag in CONSENSUS_FLAGS.values()
        if not row.passes(combinable(verify.ALL_FLAGS & ~sum(known(row.flags)) & ~flag))
    ]
    assert failed == []


def test_valid_rows_fail_once_a_listed_flag_is_set(valid: list[Row]) -> None:
    cases = [(row, flag) for row in valid for flag in known(row.flags)]
    passed = [
        (row.name, flag)
        for row, flag in cases
        if row.passes(combinable(verify.ALL_FLAGS & ~(sum(known(row.flags)) - flag)))
    ]
    assert passed == []
    assert cases


def test_invalid_rows_fail_under_the_listed_flags(invalid: list[Row]) -> None:
    scripts = [row for row in invalid if row.expressible]
    context_free = [row for row in invalid if row.flags == {"BADTX"}]
    assert (len(invalid), len(context_free), len(scripts)) == (93, 9, 70)
    assert [row.name for row in scripts if row.passes(sum(known(row.flags)))] == []


def test_invalid_rows_pass_once_a_listed_flag_is_taken_away(invalid: list[Row]) -> None:
    cases = [(row, flag) for row in invalid if row.expressible for flag in known(row.flags)]
    failed = [(row.name, flag) for row, flag in cases if not row.passes(combinable(sum(known(row.flags)) & ~flag))]
    assert failed == []
    assert cases
