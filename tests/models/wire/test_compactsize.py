"""CompactSize: widths, the shortest form, and the bound on lengths (Core: serialize.h `ReadCompactSize`)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.errors import DecodeError
from models.wire.compactsize import MAX_SIZE, read_compact_size, write_compact_size

# Written out by hand from the format: one byte, or fd/fe/ff and 2/4/8 bytes little-endian.
BOUNDARIES = [
    (0, "00"),
    (252, "fc"),
    (253, "fdfd00"),
    (255, "fdff00"),
    (0xFFFF, "fdffff"),
    (0x10000, "fe00000100"),
    (0x02000000, "fe00000002"),
    (0xFFFFFFFF, "feffffffff"),
    (0x100000000, "ff0000000001000000"),
    (2**64 - 1, "ffffffffffffffffff"),
]


@pytest.mark.parametrize(("value", "encoded"), BOUNDARIES)
def test_boundaries_in_both_directions(value: int, encoded: str) -> None:
    raw = bytes.fromhex(encoded)
    assert write_compact_size(value) == raw
    assert read_compact_size(b"\xaa" + raw + b"\xbb", 1, range_check=False) == (value, 1 + len(raw))


@given(st.integers(0, 2**64 - 1))
def test_what_is_written_is_read_back(value: int) -> None:
    raw = write_compact_size(value)
    assert read_compact_size(raw, 0, range_check=False) == (value, len(raw))


@pytest.mark.parametrize("encoded", ["fdfc00", "fd0000", "feffff0000", "ffffffffff00000000", "ff0000000000000000"])
def test_a_longer_form_than_needed_is_refused(encoded: str) -> None:
    with pytest.raises(DecodeError, match="non-canonical"):
        read_compact_size(bytes.fromhex(encoded), 0, range_check=False)


@pytest.mark.parametrize("encoded", ["", "fd", "fd00", "fe", "fe000000", "ff", "ff00000000000000"])
def test_a_cut_number_is_refused(encoded: str) -> None:
    with pytest.raises(DecodeError, match="end of data"):
        read_compact_size(bytes.fromhex(encoded), 0)


def test_a_length_may_be_0x02000000_and_no_more() -> None:
    assert read_compact_size(write_compact_size(0x02000000), 0) == (0x02000000, 5)
    assert MAX_SIZE == 0x02000000
    for value in (0x02000001, 0xFFFFFFFF, 2**40):
        with pytest.raises(DecodeError, match="too large"):
            read_compact_size(write_compact_size(value), 0)


@given(st.binary(max_size=12), st.integers(0, 12))
def test_any_bytes_are_a_number_or_a_decode_error(data: bytes, pos: int) -> None:
    try:
        value, end = read_compact_size(data, pos)
    except DecodeError:
        return
    assert data[pos:end] == write_compact_size(value)
