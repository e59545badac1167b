"""Signature operations counted by hand from Core's rules, by an independent implementation on scripts made at random,
and by a node over its own mempool.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import plyvel
import pytest
from btclib.script.sig_ops import p2sh_sig_op_count, sig_op_count
from hypothesis import given
from hypothesis import strategies as st

from models.coins.codec import coin_key, decode_coin, obfuscate
from models.script.classes import (
    OTHER,
    P2SH,
    WITNESS_OTHER,
    WITNESS_V0_KEYHASH,
    WITNESS_V0_SCRIPTHASH,
    script_class,
)
from models.script.sigops import count_sigops, input_sigops
from models.wire.hashes import to_display
from models.wire.transaction import Transaction, parse_transaction
from tests.models.script.asm import parse_asm, push

P2SH_SCRIPT = b"\xa9\x14" + bytes(20) + b"\x87"


@pytest.mark.parametrize(
    ("script", "legacy", "accurate"),
    [
        ("", 0, 0),
        ("CHECKSIG", 1, 1),
        ("CHECKSIGVERIFY", 1, 1),
        ("CHECKSIG CHECKSIGVERIFY CHECKSIG", 3, 3),
        ("CHECKSIGADD", 0, 0),
        ("CHECKMULTISIG", 20, 20),
        ("1 CHECKMULTISIG", 20, 1),
        ("16 CHECKMULTISIG", 20, 16),
        ("3 CHECKMULTISIGVERIFY", 20, 3),
        ("0 CHECKMULTISIG", 20, 20),
        ("-1 CHECKMULTISIG", 20, 20),
        ("RESERVED CHECKMULTISIG", 20, 20),
        ("17 CHECKMULTISIG", 20, 20),  # a pushed number is not one of OP_1..OP_16
        ("0x01 0x03 CHECKMULTISIG", 20, 20),
        ("0x01 0x60 CHECKMULTISIG", 20, 20),  # data that spells OP_16
        ("2 NOP CHECKMULTISIG", 20, 20),
        ("2 CHECKMULTISIG CHECKMULTISIG", 40, 22),
        ("1 0x21 0x02" + "ac" * 32 + " 0x21 0x03" + "ae" * 32 + " 2 CHECKMULTISIG", 20, 2),
        ("DUP HASH160 0x14 0x" + "ac" * 20 + " EQUALVERIFY CHECKSIG", 1, 1),
        ("0 0x14 0x" + "ac" * 20, 0, 0),
        ("0 0x20 0x" + "ae" * 32, 0, 0),
        ("1 0x20 0x" + "ae" * 32, 0, 0),
        ("HASH160 0x14 0x" + "ac" * 20 + " EQUAL", 0, 0),
        ("RETURN CHECKSIG", 1, 1),
        ("0 IF CHECKSIG ENDIF", 1, 1),  # what would run does not matter
        # The forms above with an opcode behind them, and with their last byte another one.
        ("0 0x14 0x" + "ac" * 20 + " CHECKSIG", 1, 1),
        ("HASH160 0x14 0x" + "ac" * 20 + " CHECKSIG", 1, 1),
        # Counting ends where a push runs past the end; what came before counts.
        ("CHECKSIG 0x4c", 1, 1),
        ("CHECKSIG 0x02 0xac", 1, 1),
        ("CHECKSIG 0x4c 0x02 0xac", 1, 1),
        ("CHECKSIG 0x4d 0x01", 1, 1),
        ("CHECKSIG 0x4d 0xac", 1, 1),
        ("CHECKSIG 0x4e 0xacacac", 1, 1),
        ("CHECKSIG 0x4e 0xffffffff 0xac", 1, 1),
        ("2 0x4c 0x01 0xae", 0, 0),
        ("0x4c 0x00 CHECKSIG", 1, 1),
        ("0x4d 0x0100 0xac CHECKSIG", 1, 1),
        ("0x4e 0x01000000 0xac CHECKSIG", 1, 1),
    ],
)
def test_counts(script: str, legacy: int, accurate: int) -> None:
    code = parse_asm(script)
    assert (count_sigops(code, False), count_sigops(code, True)) == (legacy, accurate)


PIECES = st.one_of(
    st.binary(max_size=4),
    st.sampled_from([b"\xac", b"\xad", b"\xae", b"\xaf", b"\x51", b"\x60", b"\x4c", b"\x4d", b"\x4e", b"\x00\x14"]),
    st.binary(max_size=300).map(push),
)
SCRIPTS = st.lists(PIECES, max_size=12).map(b"".join)


@given(SCRIPTS, st.booleans())
def test_agrees_with_an_independent_count(script: bytes, accurate: bool) -> None:
    assert count_sigops(script, accurate) == sig_op_count(script, accurate=accurate)


@given(SCRIPTS)
def test_agrees_with_an_independent_p2sh_count(script_sig: bytes) -> None:
    assert input_sigops(script_sig, ())[0] == p2sh_sig_op_count(script_sig, P2SH_SCRIPT)


MULTISIG_2_OF_3 = parse_asm("2 0 0 0 3 CHECKMULTISIG")
NESTED_KEYHASH = b"\x00\x14" + bytes(20)
NESTED_SCRIPTHASH = b"\x00\x20" + bytes(32)


@pytest.mark.parametrize(
    ("script_sig", "witness", "expected"),
    [
        (b"", (), (0, 0, OTHER)),
        (b"\x00" + push(MULTISIG_2_OF_3), (), (3, 0, OTHER)),
        # Not push-only, or not to be parsed: nothing of it counts.
        (b"\x61" + push(MULTISIG_2_OF_3), (), (0, 0, OTHER)),
        (push(MULTISIG_2_OF_3) + b"\x61", (), (0, 0, OTHER)),
        (push(MULTISIG_2_OF_3) + b"\x4c", (), (0, 0, OTHER)),
        (b"\x61" + push(NESTED_KEYHASH), (), (0, 0, OTHER)),
        # An opcode without data behind the redeem script: the script is empty then, as Core reads it.
        (push(MULTISIG_2_OF_3) + b"\x00", (), (0, 0, OTHER)),
        (push(MULTISIG_2_OF_3) + b"\x51", (), (0, 0, OTHER)),
        (push(MULTISIG_2_OF_3) + b"\x4f", (), (0, 0, OTHER)),
        (push(MULTISIG_2_OF_3) + b"\x50", (), (0, 0, OTHER)),
        # A witness counts its last item, whatever the coin will turn out to be.
        (b"", (b"", MULTISIG_2_OF_3), (0, 3, OTHER)),
        (b"", (MULTISIG_2_OF_3, b""), (0, 0, OTHER)),
        (b"", (b"\xac\xae",), (0, 21, OTHER)),
        (push(NESTED_KEYHASH), (b"sig", b"\x02" + b"k" * 32), (0, 0, WITNESS_V0_KEYHASH)),
        (push(NESTED_SCRIPTHASH), (b"", MULTISIG_2_OF_3), (0, 3, WITNESS_V0_SCRIPTHASH)),
        (push(b"\x51\x20" + bytes(32)), (b"s" * 64,), (0, 0, WITNESS_OTHER)),
        (b"\x01a" + push(NESTED_KEYHASH), (), (0, 0, WITNESS_V0_KEYHASH)),  # only the last push is looked at
        (push(P2SH_SCRIPT), (), (0, 0, OTHER)),  # P2SH does not nest in itself
    ],
)
def test_input_facts(script_sig: bytes, witness: tuple[bytes, ...], expected: tuple[int, int, int]) -> None:
    assert input_sigops(script_sig, witness) == expected


def cost_of(tx: Transaction, scripts_spent: list[bytes]) -> int:
    """The table in the docstring of `input_sigops`, with P2SH and WITNESS active."""
    cost = 4 * sum(count_sigops(script, False) for script in tx.script_sigs + tx.script_pubkeys)
    for script, script_sig, witness in zip(scripts_spent, tx.script_sigs, tx.witnesses, strict=True):
        p2sh_accurate, witness_script_accurate, nested = input_sigops(script_sig, witness)
        kind = script_class(script)
        if kind == P2SH:
            cost += 4 * p2sh_accurate
            kind = nested
        if kind == WITNESS_V0_KEYHASH:
            cost += 1
        elif kind == WITNESS_V0_SCRIPTHASH:
            cost += witness_script_accurate
    return cost


def mempool_transactions(path: Path) -> list[Transaction]:
    """The transactions of a mempool.dat of version 2: u64 2, `08` and 8 key bytes, then everything XORed by offset."""
    stored = path.read_bytes()
    key = stored[9:17]
    plain = bytes(byte ^ key[offset % 8] for offset, byte in enumerate(stored))
    found = []
    position = 25
    for _ in range(int.from_bytes(plain[17:25], "little")):
        tx, position = parse_transaction(plain, position)
        found.append(tx)
        position += 16  # time and fee delta
    return found


def test_cost_of_every_transaction_of_a_nodes_template(
    data: Path, datadir: Callable[[str], Path], tmp_path: Path
) -> None:
    """`sigops` in getblocktemplate is the cost the node counted; 52 transactions of 14 kinds of output."""
    expected = {
        entry["txid"]: entry["sigops"]
        for entry in json.loads((data / "regtest_datadir.info.json").read_text())["template"]["txs"]
    }
    regtest = next(datadir("regtest_datadir.tar.gz").glob("**/mempool.dat")).parent
    copy = shutil.copytree(regtest / "chainstate", tmp_path / "chainstate")  # opening writes
    database = plyvel.DB(str(copy), compression=None)
    key = database.get(b"\x0e\x00obfuscate_key")[1:]
    transactions = mempool_transactions(regtest / "mempool.dat")
    created = {tx.txid: tx for tx in transactions}

    def script_of(prevout: bytes) -> bytes:
        parent = created.get(prevout[:32])
        if parent is not None:
            return parent.script_pubkeys[int.from_bytes(prevout[32:], "little")]
        return decode_coin(obfuscate(database.get(coin_key(prevout)), key)).script

    try:
        counted = {
            to_display(tx.txid): cost_of(tx, [script_of(prevout) for prevout in tx.prevouts]) for tx in transactions
        }
    finally:
        database.close()
    assert len(expected) == 52
    assert counted == expected
