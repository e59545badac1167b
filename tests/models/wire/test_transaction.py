"""Deserialising transactions: every field of random ones, and what Core's `UnserializeTransaction` refuses."""

import hashlib
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.errors import DecodeError
from models.wire.transaction import Transaction, decode_transaction, parse_transaction
from tests.models.script.building import Input, Output, compact_size, serialize, with_length

U32 = st.integers(0, 2**32 - 1)
SCRIPT = st.binary(max_size=40) | st.binary(min_size=253, max_size=260)
INPUT = st.builds(
    Input,
    st.binary(min_size=36, max_size=36),
    SCRIPT,
    st.lists(SCRIPT, max_size=3).map(tuple),
    U32,
)
OUTPUT = st.builds(Output, st.integers(-(2**63), 2**63 - 1), SCRIPT)

EMPTY = bytes.fromhex("01000000000000000000")  # no inputs, no outputs
PLAIN = serialize([Input(bytes(35) + b"\x07", b"\x51")], [Output(5, b"\x52\x53")], version=2, locktime=9)
SEGWIT = serialize([Input(bytes(36), b"", (b"\x01\x02", b""))], [Output(5)])


def dsha256(data: bytes) -> bytes:
    return hashlib.sha256(hashlib.sha256(data).digest()).digest()


def reserialize(tx: Transaction) -> bytes:
    """From the parsed fields, by code that is not the one under test."""
    inputs = [Input(*fields) for fields in zip(tx.prevouts, tx.script_sigs, tx.witnesses, tx.sequences, strict=True)]
    outputs = [Output(*fields) for fields in zip(tx.values, tx.script_pubkeys, strict=True)]
    return serialize(inputs, outputs, tx.version & 0xFFFFFFFF, tx.locktime)


@given(
    st.lists(INPUT, min_size=1, max_size=4),
    st.lists(OUTPUT, max_size=4),
    U32,
    U32,
    st.binary(max_size=5),
    st.binary(max_size=5),
)
def test_every_field_of_a_transaction_inside_other_bytes(
    inputs: list[Input], outputs: list[Output], version: int, locktime: int, before: bytes, after: bytes
) -> None:
    raw = serialize(inputs, outputs, version, locktime)
    base = serialize(inputs, outputs, version, locktime, with_witness=False)

    tx, end = parse_transaction(before + raw + after, len(before))

    assert end == len(before) + len(raw)
    assert tx.raw == raw
    assert tx.version == version - (version >> 31 << 32)
    assert tx.locktime == locktime
    assert tx.prevouts == [spend.prevout for spend in inputs]
    assert tx.script_sigs == [spend.script_sig for spend in inputs]
    assert tx.sequences == [spend.sequence for spend in inputs]
    assert tx.witnesses == [spend.witness for spend in inputs]
    assert tx.values == [output.value for output in outputs]
    assert tx.script_pubkeys == [output.script for output in outputs]
    assert tx.has_witness == any(spend.witness for spend in inputs)
    assert (tx.base_size, tx.total_size) == (len(base), len(raw))
    assert tx.weight == 3 * len(base) + len(raw)
    assert (tx.txid, tx.wtxid) == (dsha256(base), dsha256(raw))


@given(st.lists(INPUT, max_size=2), st.lists(OUTPUT, max_size=2), st.data())
def test_a_damaged_transaction_is_refused_or_is_exactly_what_was_read(
    inputs: list[Input], outputs: list[Output], data: st.DataObject
) -> None:
    raw = bytearray(serialize(inputs, outputs))
    for _ in range(data.draw(st.integers(0, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(raw)) | st.just(len(raw)))
    damaged = bytes(raw[:cut])
    try:
        tx = decode_transaction(damaged)
    except DecodeError:
        return
    assert reserialize(tx) == damaged


@given(st.binary(max_size=200))
def test_arbitrary_bytes_raise_nothing_but_decode_errors(data: bytes) -> None:
    try:
        tx = decode_transaction(data)
    except DecodeError:
        return
    assert reserialize(tx) == data


@pytest.mark.parametrize("raw", [EMPTY, PLAIN, SEGWIT])
def test_every_cut_is_refused(raw: bytes) -> None:
    decode_transaction(raw)
    for size in range(len(raw)):
        with pytest.raises(DecodeError):
            decode_transaction(raw[:size])


def test_trailing_bytes_are_refused() -> None:
    with pytest.raises(DecodeError, match="2 trailing bytes"):
        decode_transaction(PLAIN + b"\x00\x00")


def test_no_inputs_and_flags_zero_is_a_transaction_without_outputs() -> None:
    tx = decode_transaction(EMPTY)
    assert (tx.prevouts, tx.values, tx.witnesses, tx.has_witness) == ([], [], [], False)
    assert (tx.base_size, tx.total_size, tx.weight) == (10, 10, 40)
    assert tx.txid == tx.wtxid == dsha256(EMPTY)
    assert not tx.is_coinbase


def with_marker(flags: int, body: bytes, tail: bytes = b"") -> bytes:
    return b"\x01\x00\x00\x00\x00" + bytes((flags,)) + body + tail + bytes(4)


ONE_IN_ONE_OUT = b"\x01" + bytes(36) + b"\x00" + b"\xff" * 4 + b"\x01" + bytes(8) + b"\x00"


def test_a_marker_over_empty_stacks_is_superfluous() -> None:
    with pytest.raises(DecodeError, match="superfluous witness"):
        decode_transaction(with_marker(1, ONE_IN_ONE_OUT, b"\x00"))


def test_a_marker_over_no_inputs_is_superfluous() -> None:
    with pytest.raises(DecodeError, match="superfluous witness"):
        decode_transaction(with_marker(1, b"\x00" + b"\x01" + bytes(8) + b"\x00"))


def test_one_empty_witness_item_is_a_witness() -> None:
    tx = decode_transaction(with_marker(1, ONE_IN_ONE_OUT, b"\x01\x00"))
    assert (tx.witnesses, tx.has_witness) == ([(b"",)], True)


@pytest.mark.parametrize("flags", [2, 4, 0x80, 0xFE])
def test_unknown_flag_bits_are_refused(flags: int) -> None:
    with pytest.raises(DecodeError, match=f"flags 0x{flags:02x}"):
        decode_transaction(with_marker(flags, ONE_IN_ONE_OUT))


def test_a_known_and_an_unknown_flag_bit_are_refused() -> None:
    with pytest.raises(DecodeError, match="flags 0x03"):
        decode_transaction(with_marker(3, ONE_IN_ONE_OUT, b"\x01\x01\xaa"))


def test_a_script_length_in_a_longer_form_than_needed_is_refused() -> None:
    body = b"\x01" + bytes(36) + b"\xfd\x00\x00" + b"\xff" * 4 + b"\x01" + bytes(8) + b"\x00"
    with pytest.raises(DecodeError, match="non-canonical"):
        decode_transaction(b"\x01\x00\x00\x00" + body + bytes(4))


def test_a_script_longer_than_0x02000000_is_refused_for_its_length_alone() -> None:
    body = b"\x01" + bytes(36) + b"\xfe\x01\x00\x00\x02" + bytes(100)
    with pytest.raises(DecodeError, match="too large"):
        decode_transaction(b"\x01\x00\x00\x00" + body)


HUGE = compact_size(0x02000000)
HUGE_COUNTS = {
    "inputs": b"\x01\x00\x00\x00" + HUGE,
    "outputs": PLAIN[: 4 + 1 + 36 + 2 + 4] + HUGE,
    "witness items": with_marker(1, ONE_IN_ONE_OUT, HUGE)[:-4],
    "script bytes": b"\x01\x00\x00\x00\x01" + bytes(36) + HUGE,
    "witness bytes": with_marker(1, ONE_IN_ONE_OUT, b"\x01" + HUGE)[:-4],
}


@pytest.mark.parametrize("where", HUGE_COUNTS)
def test_a_count_of_33_million_is_refused_before_memory_is_taken(where: str) -> None:
    raw = HUGE_COUNTS[where] + bytes(100_000)
    tracemalloc.start()
    try:
        with pytest.raises(DecodeError, match="end of data"):
            decode_transaction(raw)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1_000_000  # bytes; what it claims to hold would take hundreds of millions


@pytest.mark.parametrize(
    ("prevouts", "coinbase"),
    [
        ([bytes(32) + b"\xff" * 4], True),
        ([bytes(32) + b"\xfe\xff\xff\xff"], False),
        ([bytes(31) + b"\x01" + b"\xff" * 4], False),
        ([bytes(32) + b"\xff" * 4] * 2, False),
    ],
)
def test_a_coinbase_is_one_input_with_a_null_prevout(prevouts: list[bytes], coinbase: bool) -> None:
    raw = serialize([Input(prevout) for prevout in prevouts], [Output(1)])
    assert decode_transaction(raw).is_coinbase is coinbase


def test_bytes_like_input_gives_bytes() -> None:
    tx = decode_transaction(memoryview(SEGWIT))  # type: ignore[arg-type]
    assert type(tx.raw) is bytes
    assert tx.witnesses == [(b"\x01\x02", b"")]
    assert with_length(b"\x01\x02") in tx.raw
