"""Transactions as packed rows: every fact of them, joined and cut apart again, also through a message."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.consensus import reasons as r
from models.consensus.table import ALL_FINAL, COINBASE, HAS_WITNESS, IN_ROW, OUT_ROW, TX_ROW, TxRecord, TxTable
from models.script.classes import OTHER, P2SH, WITNESS_OTHER, WITNESS_V0_KEYHASH, WITNESS_V0_SCRIPTHASH
from models.wire.transaction import Transaction, decode_transaction
from tests.models.consensus.building import TRUE, made_up
from tests.models.script.building import NULL_OUTPOINT, Input, Output, serialize

MAX = 2_100_000_000_000_000
EMPTY = decode_transaction(bytes.fromhex("01000000000000000000"))


def tx(inputs: list[Input], outputs: list[Output], version: int = 2, locktime: int = 0) -> Transaction:
    return decode_transaction(serialize(inputs, outputs, version, locktime))


SCRIPTS = st.sampled_from([b"", TRUE, b"\x6a\x01", b"\x00\x14" + bytes(20), b"\xac\xae", bytes(300)])
INPUTS = st.builds(
    Input,
    st.binary(min_size=36, max_size=36),
    SCRIPTS,
    st.lists(SCRIPTS, max_size=2).map(tuple),
    st.sampled_from([0, 5, 0xFFFFFFFE, 0xFFFFFFFF]),
)
OUTPUTS = st.builds(Output, st.integers(-(2**63), 2**63 - 1), SCRIPTS)
TRANSACTIONS = st.just(EMPTY) | st.builds(
    tx,
    st.lists(INPUTS, min_size=1, max_size=3),
    st.lists(OUTPUTS, max_size=3),
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**32 - 1),
)


def check_table(table: TxTable, transactions: list[Transaction]) -> None:
    assert len(table) == len(transactions)
    assert table.txids() == [t.txid for t in transactions]
    assert table.wtxids() == [t.wtxid for t in transactions]
    prevouts = [p for t in transactions for p in t.prevouts]
    assert table.prevouts() == prevouts
    assert table.vouts(np.arange(len(prevouts))).tolist() == [int.from_bytes(p[32:], "little") for p in prevouts]
    assert table.prev_words.tolist() == [int.from_bytes(p[:8], "little") for p in prevouts]
    assert table.txid_words.tolist() == [int.from_bytes(t.txid[:8], "little") for t in transactions]
    assert table.ins["sequence"].tolist() == [s for t in transactions for s in t.sequences]
    for i, t in enumerate(transactions):
        row = table.rows[i]
        assert table.raw(i) == t.raw
        assert (row["total_size"], row["base_size"]) == (t.total_size, t.base_size)
        assert (row["n_in"], row["n_out"]) == (len(t.prevouts), len(t.values))
        assert (row["locktime"], row["version"]) == (t.locktime, t.version % 2**32)
        assert bool(row["flags"] & HAS_WITNESS) == t.has_witness
        assert bool(row["flags"] & ALL_FINAL) == all(s == 0xFFFFFFFF for s in t.sequences)
        outputs = list(zip(t.values, t.script_pubkeys, strict=True))
        assert [table.output(i, n) for n in range(len(outputs))] == outputs
        inputs = table.prevouts()[table.in_start[i] : table.in_start[i + 1]]
        assert inputs == t.prevouts


@given(st.lists(TRANSACTIONS, max_size=6))
def test_a_table_holds_its_transactions(transactions: list[Transaction]) -> None:
    records = [TxRecord.of(t) for t in transactions]
    table = TxTable.from_records(records)
    check_table(table, transactions)
    assert table.nbytes == sum(record.nbytes for record in records)
    for record, t in zip(records, transactions, strict=True):
        assert (record.txid, record.wtxid, record.prevouts, record.raw) == (t.txid, t.wtxid, t.prevouts, t.raw)
        assert record.n_out == len(t.values)
        outputs = list(zip(t.values, t.script_pubkeys, strict=True))
        assert [record.output(n) for n in range(record.n_out)] == outputs
        with pytest.raises(IndexError, match=f"output {record.n_out} of"):
            record.output(record.n_out)


@given(st.lists(TRANSACTIONS, max_size=4))
def test_a_table_goes_through_a_message(transactions: list[Transaction]) -> None:
    columns = {name: array.copy() for name, array in TxTable.from_transactions(transactions).to_columns().items()}
    for array in columns.values():
        assert array.dtype == np.uint8
        array.flags.writeable = False
    check_table(TxTable.from_columns(columns), transactions)


def test_rows_have_the_sizes_that_budgets_count() -> None:
    """Ids 64, amount 8, seven numbers of four bytes, four bytes more; 36 + 4 numbers; amount 8 and 8."""
    assert (TX_ROW.itemsize, IN_ROW.itemsize, OUT_ROW.itemsize) == (104, 52, 16)
    record = TxRecord.of(tx([Input(made_up(1))] * 2, [Output(1, b"\x51" * 5)]))
    assert record.nbytes == len(record.raw) + 104 + 2 * 52 + 16 + 5


@pytest.mark.parametrize(
    ("values", "value_out", "check"),
    [
        ([1, 2, 3], 6, r.CHECK_OK),
        ([MAX], MAX, r.CHECK_OK),
        ([MAX, 1], 0, r.TXOUTTOTAL_TOOLARGE),
        ([-1], 0, r.VOUT_NEGATIVE),
        ([5, -1], 4, r.VOUT_NEGATIVE),
        ([2**63 - 1] * 3, 0, r.VOUT_TOOLARGE),
        ([-(2**63)] * 3, 0, r.VOUT_NEGATIVE),
    ],
)
def test_an_amount_out_of_range_is_left_to_the_check(values: list[int], value_out: int, check: int) -> None:
    table = TxTable.from_transactions([tx([Input(made_up(1))], [Output(v) for v in values])])
    assert (table.rows["value_out"][0], table.rows["check"][0]) == (value_out, check)


def test_legacy_sigops_of_all_scripts_but_witnesses() -> None:
    inputs = [Input(made_up(1), b"\xac", (b"\xac" * 50,)), Input(made_up(2), b"\x53\xae")]
    table = TxTable.from_transactions([tx(inputs, [Output(1, b"\xad\xad"), Output(1, b"\xaf")])])
    assert table.rows["legacy_sigops"].tolist() == [1 + 20 + 2 + 20]


def test_classes_of_outputs_and_which_make_no_coin() -> None:
    scripts = [
        TRUE,
        b"\xa9\x14" + bytes(20) + b"\x87",
        b"\x00\x14" + bytes(20),
        b"\x00\x20" + bytes(32),
        b"\x51\x20" + bytes(32),
        b"\x6a",
        bytes(10_001),
        bytes(10_000),
    ]
    outs = TxTable.from_transactions([tx([Input(made_up(1))], [Output(1, s) for s in scripts])]).outs
    kinds = [OTHER, P2SH, WITNESS_V0_KEYHASH, WITNESS_V0_SCRIPTHASH, WITNESS_OTHER, OTHER, OTHER, OTHER]
    assert outs["script_class"].tolist() == kinds
    assert outs["unspendable"].tolist() == [0, 0, 0, 0, 0, 1, 1, 0]


def test_coinbases_are_marked() -> None:
    coinbase = tx([Input(NULL_OUTPOINT, b"\x01\x01")], [Output(1)])
    table = TxTable.from_transactions([coinbase, tx([Input(made_up(1))], [Output(1)]), EMPTY])
    assert [bool(flags & COINBASE) for flags in table.rows["flags"].tolist()] == [True, False, False]


def test_an_output_behind_many_others() -> None:
    record = TxRecord.of(tx([Input(made_up(1))], [Output(n, bytes((n % 256,)) * (n % 7)) for n in range(5_000)]))
    assert record.output(4_999) == (4_999, bytes((4_999 % 256,)) * (4_999 % 7))
    assert record.output(0) == (0, b"")
