"""Damage to valid inputs, as a hypothesis strategy: what shrinks well shows the byte that matters."""

from hypothesis import strategies as st

__all__ = ["LENGTHS", "blown_up", "damaged"]

#: Numbers as lengths are written here: CompactSize in and out of its range, VARINT, msgpack, u32, u64.
LENGTHS = (
    b"\xfd\xff\xff",
    b"\xfe\x00\x00\x00\x02",
    b"\xfe\xff\xff\xff\xff",
    b"\xff" + b"\xff" * 8,
    b"\x8e\xfe\xfe\xfe\x7f",
    b"\x80\xfe\xfe\xfe\xfe\xfe\xfe\xfe\xfe\x7f",
    b"\xdd\x7f\xff\xff\xff",
    b"\xdc\xff\xff",
    b"\xc6\x7f\xff\xff\xff",
    b"\xff\xff\xff\x7f",
    b"\xff\xff\xff\xff\xff\xff\xff\x7f",
)


def blown_up(data: bytes, places: int) -> list[bytes]:
    """The input with each of `LENGTHS` written over it, at so many places from its beginning to its end."""
    step = max(len(data) // places, 1)
    return [data[:at] + length + data[at + len(length) :] for at in range(0, len(data), step) for length in LENGTHS]


@st.composite
def damaged(draw: st.DrawFn, valid: list[bytes]) -> bytes:
    """One of the inputs with some bytes flipped, cut out, doubled, written over, or with a piece of another one."""
    data = bytearray(draw(st.sampled_from(valid)))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        match draw(st.integers(0, 6)):
            case 0:
                if at < len(data):
                    data[at] ^= draw(st.integers(1, 255))
            case 1:
                del data[at:]
            case 2:
                del data[at : at + draw(st.integers(1, 8))]
            case 3:
                data[at:at] = data[at : at + draw(st.integers(1, 64))]
            case 4:
                number = draw(st.sampled_from(LENGTHS))
                data[at : at + len(number)] = number
            case 5:
                data[at:at] = draw(st.binary(min_size=1, max_size=8))
            case _:
                other = draw(st.sampled_from(valid))
                data[at:] = other[draw(st.integers(0, len(other))) :]
    return bytes(data)
