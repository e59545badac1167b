"""Headers and blocks: round trips, truncation, trailing bytes, and counts that no block can hold."""

import hashlib
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.errors import DecodeError
from models.wire.block import Block, BlockHeader, decode_block, serialize_block
from models.wire.transaction import Transaction
from tests.models.script.building import Input, Output, compact_size, serialize

HASH = st.binary(min_size=32, max_size=32)
U32 = st.integers(0, 2**32 - 1)
HEADER = st.builds(BlockHeader, st.integers(-(2**31), 2**31 - 1), HASH, HASH, U32, U32, U32)
TRANSACTIONS = [
    serialize([Input(bytes(32) + b"\xff" * 4, b"\x51\x51", (bytes(32),))], [Output(50)]),
    serialize([Input(bytes(36))], [Output(1), Output(2, b"\x51")]),
    bytes.fromhex("01000000000000000000"),
]


@given(HEADER)
def test_a_header_is_eighty_bytes_that_are_hashed_twice(header: BlockHeader) -> None:
    raw = header.serialize()
    assert len(raw) == 80
    assert BlockHeader.parse(b"\x00" + raw + b"\x00", 1) == header
    assert header.hash == hashlib.sha256(hashlib.sha256(raw).digest()).digest()


def test_header_fields_are_where_the_protocol_puts_them() -> None:
    header = BlockHeader(-2, b"\x01" * 32, b"\x02" * 32, 3, 0x207FFFFF, 5)
    assert header.serialize() == (
        b"\xfe\xff\xff\xff" + b"\x01" * 32 + b"\x02" * 32 + b"\x03\0\0\0" + b"\xff\xff\x7f\x20" + b"\x05\0\0\0"
    )


@given(HEADER, st.lists(st.sampled_from(TRANSACTIONS), max_size=5))
def test_a_block_comes_back_as_it_was(header: BlockHeader, raws: list[bytes]) -> None:
    raw = serialize_block(header, raws)
    block = decode_block(raw, allow_trailing=False)
    assert block == Block(header, block.transactions, raw)
    assert [tx.raw for tx in block.transactions] == raws


def test_a_block_without_transactions_parses() -> None:
    assert decode_block(bytes(80) + b"\x00").transactions == []


def test_bytes_behind_a_block_are_ignored_or_refused() -> None:
    raw = serialize_block(BlockHeader.parse(bytes(80)), TRANSACTIONS)
    assert decode_block(raw + b"\x07").raw == raw
    with pytest.raises(DecodeError, match="1 trailing bytes"):
        decode_block(raw + b"\x07", allow_trailing=False)


def test_every_cut_of_a_block_is_refused() -> None:
    raw = serialize_block(BlockHeader.parse(bytes(80)), TRANSACTIONS)
    for size in range(len(raw)):
        with pytest.raises(DecodeError):
            decode_block(raw[:size])


@pytest.mark.parametrize("count", [2, 0x01FFFFFF, 0x02000000])
def test_more_transactions_than_fit_are_refused_before_any_is_read(count: int) -> None:
    raw = bytes(80) + compact_size(count) + bytes(19)
    tracemalloc.start()
    try:
        with pytest.raises(DecodeError, match="cannot fit"):
            decode_block(raw)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 100_000


@given(st.binary(max_size=120))
def test_arbitrary_bytes_raise_nothing_but_decode_errors(data: bytes) -> None:
    try:
        decode_block(bytes(80) + data)
    except DecodeError:
        pass


@pytest.mark.parametrize(
    ("count", "groups"),
    [
        (0, []),
        (1, [1]),
        (191, [191]),
        (192, [192]),
        (200, [192, 8]),
        (2880, [192, 384, 768, 1536]),
        (4500, [192, 384, 768, 1536, 1536, 84]),
    ],
)
def test_transactions_are_shown_once_each_and_in_order(count: int, groups: list[int]) -> None:
    told: list[tuple[int, int]] = []
    shown: list[Transaction] = []

    def seen(first: int, transactions: list[Transaction]) -> None:
        told.append((first, len(transactions)))
        shown.extend(transactions)

    block = decode_block(serialize_block(BlockHeader.parse(bytes(80)), [TRANSACTIONS[1]] * count), seen=seen)
    assert len(shown) == count and all(a is b for a, b in zip(shown, block.transactions, strict=True))
    assert [size for _, size in told] == groups
    assert [first for first, _ in told] == [sum(groups[:n]) for n in range(len(groups))]
