"""Outpoints found among others, against a plain dictionary, those that look alike included."""

from hashlib import sha256

from hypothesis import given
from hypothesis import strategies as st

from models.coins.codec import find_outpoints, split_outpoints

WORDS = st.sampled_from([bytes(4), b"\x01\0\0\0", b"\0\0\0\xff"])
ALIKE = st.tuples(*[WORDS] * 9).map(b"".join)  # many agree in the words that they are sorted by
OUTPOINTS = st.lists(ALIKE | st.binary(min_size=36, max_size=36), max_size=40)


def clashes(outpoint: bytes) -> bytes:
    """What outpoints are sorted by."""
    first, second, last = (int.from_bytes(outpoint[at : at + 4], "little") for at in (0, 4, 32))
    return first.to_bytes(4, "little") + (second ^ last).to_bytes(4, "little")


@given(OUTPOINTS, OUTPOINTS)
def test_what_is_found_is_equal_and_what_is_not_is_not_there_or_looks_like_another(
    wanted: list[bytes], there: list[bytes]
) -> None:
    found = find_outpoints(b"".join(wanted), b"".join(there)).tolist()
    assert len(found) == len(wanted)
    for outpoint, at in zip(wanted, found, strict=True):
        if at >= 0:
            assert there[at] == outpoint
        else:
            alike = {other for other in there if clashes(other) == clashes(outpoint)}
            assert outpoint not in there or len(alike) > 1


def test_a_block_of_outpoints_is_found_in_any_order() -> None:
    outpoints = [sha256(n.to_bytes(8, "little")).digest() + (n % 7).to_bytes(4, "little") for n in range(3000)]
    joined = b"".join(outpoints)
    assert split_outpoints(joined) == outpoints
    assert find_outpoints(b"".join(outpoints[::-1]), joined).tolist() == list(range(2999, -1, -1))
    assert find_outpoints(joined[:36], b"").tolist() == [-1]
    assert find_outpoints(b"", joined).tolist() == []
