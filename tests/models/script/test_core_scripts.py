"""Every row of Core's script_tests.json whose outcome the kernel's consensus flags decide gives Core's outcome.

A policy flag can only add a way to fail. So a row that passes with one passes without it, and a row that fails for a
consensus reason had passed every policy check before that point, and fails without them too. The rest, rows that fail
for a policy reason, are left out and counted.
"""

import hashlib
import json
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

import pytest
from coincurve import PublicKey

from models.script import verify
from tests.models.script.asm import parse_asm
from tests.models.script.building import spend_of, with_length

CONSENSUS_FLAGS = {
    "P2SH": verify.P2SH,
    "DERSIG": verify.DERSIG,
    "NULLDUMMY": verify.NULLDUMMY,
    "CHECKLOCKTIMEVERIFY": verify.CHECKLOCKTIMEVERIFY,
    "CHECKSEQUENCEVERIFY": verify.CHECKSEQUENCEVERIFY,
    "WITNESS": verify.WITNESS,
    "TAPROOT": verify.TAPROOT,
}
NO_FLAGS = {"", "NONE"}

# Errors that a policy flag alone brings about, in rows that name one.
POLICY_ERRORS = {
    "DISCOURAGE_UPGRADABLE_NOPS",
    "DISCOURAGE_UPGRADABLE_WITNESS_PROGRAM",
    "MINIMALDATA",
    "MINIMALIF",
    "NULLFAIL",
    "PUBKEYTYPE",
    "SIG_DER",  # by STRICTENC
    "SIG_HASHTYPE",
    "SIG_HIGH_S",
    "WITNESS_PUBKEYTYPE",
}
# Errors that are policy where the flag in question is set, and consensus elsewhere.
POLICY_BY_FLAG = {"CLEANSTACK": "CLEANSTACK", "SIG_PUSHONLY": "SIGPUSHONLY", "SCRIPTNUM": "MINIMALDATA"}

NUMS_KEY = bytes.fromhex("50929b74c1a04954b78b4b6035e97a5e078a5a0f28ec96d547bfee9ace803ac0")  # BIP341
TAPSCRIPT_LEAF = 0xC0


@dataclass(frozen=True)
class Row:
    name: str
    witness: list[str]
    amount: int  # satoshis
    script_sig: str
    script_pubkey: str
    flags: frozenset[str]
    error: str

    @property
    def taproot(self) -> bool:
        return "#TAPROOTOUTPUT#" in self.script_pubkey

    @property
    def policy_flags(self) -> frozenset[str]:
        return self.flags - CONSENSUS_FLAGS.keys() - NO_FLAGS

    @property
    def kernel_flags(self) -> int:
        return sum(CONSENSUS_FLAGS[name] for name in self.flags if name in CONSENSUS_FLAGS)

    @property
    def fails_by_policy(self) -> bool:
        if self.error in POLICY_ERRORS:
            return bool(self.policy_flags)
        return POLICY_BY_FLAG.get(self.error) in self.flags


def read_rows(path: Path) -> list[Row]:
    rows = []
    for line, row in enumerate(json.loads(path.read_text(), parse_float=Decimal)):
        if len(row) < 4:
            continue  # a remark
        witness: list[str] = []
        amount = 0
        if isinstance(row[0], list):
            *witness, btc = row.pop(0)
            amount = int(btc * 100_000_000)
        script_sig, script_pubkey, flags, error = row[:4]
        rows.append(Row(f"row {line}", witness, amount, script_sig, script_pubkey, frozenset(flags.split(",")), error))
    return rows


def tagged_hash(tag: str, data: bytes) -> bytes:
    prefix = hashlib.sha256(tag.encode()).digest()
    return hashlib.sha256(prefix + prefix + data).digest()


def taproot_of_one_leaf(script: bytes) -> tuple[bytes, bytes]:
    """Output key and control block of a tree with one leaf under the key that nobody knows (BIP341)."""
    leaf = tagged_hash("TapLeaf", bytes([TAPSCRIPT_LEAF]) + with_length(script))
    tweaked = PublicKey(b"\x02" + NUMS_KEY).add(tagged_hash("TapTweak", NUMS_KEY + leaf)).format()
    return tweaked[1:], bytes([TAPSCRIPT_LEAF | (tweaked[0] & 1)]) + NUMS_KEY


def passes(row: Row) -> bool:
    witness: list[bytes] = []
    output_key = control_block = b""
    for item in row.witness:
        if item.startswith("#SCRIPT#"):
            script = parse_asm(item.removeprefix("#SCRIPT#"))
            output_key, control_block = taproot_of_one_leaf(script)
            witness.append(script)
        elif item == "#CONTROLBLOCK#":
            witness.append(control_block)
        else:
            witness.append(bytes.fromhex(item))
    script_pubkey = parse_asm(row.script_pubkey.replace("#TAPROOTOUTPUT#", "0x" + output_key.hex()))
    raw = spend_of(script_pubkey, parse_asm(row.script_sig), witness, row.amount)
    return verify.verify_inputs(raw, [(row.amount, script_pubkey)], row.kernel_flags) == [True]


@pytest.fixture(scope="module")
def rows(shared_vectors: Path) -> list[Row]:
    return read_rows(shared_vectors / "core" / "script_tests.json")


def test_every_row_is_read(rows: list[Row]) -> None:
    assert len(rows) == 1222


def test_rows_of_consensus_flags_alone_and_rows_that_pass(rows: list[Row]) -> None:
    chosen = [row for row in rows if not row.taproot and (not row.policy_flags or row.error == "OK")]
    assert len(chosen) == 756
    assert [row for row in chosen if passes(row) != (row.error == "OK")] == []


def test_tapscript_rows(rows: list[Row]) -> None:
    chosen = [row for row in rows if row.taproot]
    assert len(chosen) == 5
    assert [row for row in chosen if passes(row) != (row.error == "OK")] == []


def test_rows_with_policy_flags_that_fail_for_a_consensus_reason(rows: list[Row]) -> None:
    chosen = [row for row in rows if row.policy_flags and row.error != "OK" and not row.fails_by_policy]
    assert [row for row in chosen if passes(row)] == []
    left_out = [row for row in rows if row.policy_flags and row.error != "OK" and row.fails_by_policy]
    assert (len(chosen), len(left_out)) == (332, 1222 - 756 - 5 - 332)
