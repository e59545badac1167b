"""CompactSize, the length prefix of network serialisation (Core: serialize.h `ReadCompactSize`). Not the VARINT of the
database, which is in `models.coins.codec`.
"""

from models.errors import DecodeError

__all__ = ["MAX_SIZE", "read_compact_size", "write_compact_size"]

MAX_SIZE = 0x02000000  # serialize.h: a larger length is refused before anything is allocated


def read_compact_size(buf: bytes, pos: int, range_check: bool = True) -> tuple[int, int]:
    """Reads one CompactSize at `pos`; returns the number and the position after it.

    Raises DecodeError when truncated, not in its shortest form, or (with `range_check`) above MAX_SIZE.
    """
    try:
        first = buf[pos]
    except IndexError:
        raise DecodeError(f"end of data at byte {pos}: a CompactSize was expected") from None
    if first < 253:
        return first, pos + 1
    width = 2 if first == 253 else 4 if first == 254 else 8
    end = pos + 1 + width
    if end > len(buf):
        raise DecodeError(f"end of data at byte {pos}: a CompactSize of {width} bytes was cut off")
    value = int.from_bytes(buf[pos + 1 : end], "little")
    if value < (253 if width == 2 else 0x10000 if width == 4 else 0x100000000):
        raise DecodeError(f"non-canonical CompactSize at byte {pos}: {value} in {width} bytes")
    if range_check and value > MAX_SIZE:
        raise DecodeError(f"CompactSize at byte {pos} is too large: {value} > {MAX_SIZE}")
    return value, end


def write_compact_size(value: int) -> bytes:
    """The shortest CompactSize of `value` (0 to 2^64-1)."""
    if value < 253:
        return bytes((value,))
    if value < 0x10000:
        return b"\xfd" + value.to_bytes(2, "little")
    if value < 0x100000000:
        return b"\xfe" + value.to_bytes(4, "little")
    return b"\xff" + value.to_bytes(8, "little")
