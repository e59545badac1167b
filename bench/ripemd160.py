"""RIPEMD-160 for the key hashes of the fixtures, where the system's OpenSSL does not offer it (3.0.0 to 3.0.6).

Source: Dobbertin, Bosselaers, Preneel, "RIPEMD-160: a strengthened version of RIPEMD" (1996), appendix A.
"""

import hashlib
from struct import pack, unpack

__all__ = ["hash160", "ripemd160", "ripemd160_plain"]

# Message word and rotation of each of the 80 steps, left line and right line.
_WORDS_LEFT = (
    (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)
    + (7, 4, 13, 1, 10, 6, 15, 3, 12, 0, 9, 5, 2, 14, 11, 8)
    + (3, 10, 14, 4, 9, 15, 8, 1, 2, 7, 0, 6, 13, 11, 5, 12)
    + (1, 9, 11, 10, 0, 8, 12, 4, 13, 3, 7, 15, 14, 5, 6, 2)
    + (4, 0, 5, 9, 7, 12, 2, 10, 14, 1, 3, 8, 11, 6, 15, 13)
)
_WORDS_RIGHT = (
    (5, 14, 7, 0, 9, 2, 11, 4, 13, 6, 15, 8, 1, 10, 3, 12)
    + (6, 11, 3, 7, 0, 13, 5, 10, 14, 15, 8, 12, 4, 9, 1, 2)
    + (15, 5, 1, 3, 7, 14, 6, 9, 11, 8, 12, 2, 10, 0, 4, 13)
    + (8, 6, 4, 1, 3, 11, 15, 0, 5, 12, 2, 13, 9, 7, 10, 14)
    + (12, 15, 10, 4, 1, 5, 8, 7, 6, 2, 13, 14, 0, 3, 9, 11)
)
_TURNS_LEFT = (
    (11, 14, 15, 12, 5, 8, 7, 9, 11, 13, 14, 15, 6, 7, 9, 8)
    + (7, 6, 8, 13, 11, 9, 7, 15, 7, 12, 15, 9, 11, 7, 13, 12)
    + (11, 13, 6, 7, 14, 9, 13, 15, 14, 8, 13, 6, 5, 12, 7, 5)
    + (11, 12, 14, 15, 14, 15, 9, 8, 9, 14, 5, 6, 8, 6, 5, 12)
    + (9, 15, 5, 11, 6, 8, 13, 12, 5, 12, 13, 14, 11, 8, 5, 6)
)
_TURNS_RIGHT = (
    (8, 9, 9, 11, 13, 15, 15, 5, 7, 7, 8, 11, 14, 14, 12, 6)
    + (9, 13, 15, 7, 12, 8, 9, 11, 7, 7, 12, 7, 6, 15, 13, 11)
    + (9, 7, 15, 11, 8, 6, 6, 14, 12, 13, 5, 14, 13, 13, 7, 5)
    + (15, 5, 8, 11, 14, 14, 6, 14, 6, 9, 12, 9, 12, 5, 15, 8)
    + (8, 5, 12, 9, 12, 5, 14, 6, 8, 13, 6, 5, 15, 13, 11, 11)
)
_ADD_LEFT = (0x00000000, 0x5A827999, 0x6ED9EBA1, 0x8F1BBCDC, 0xA953FD4E)
_ADD_RIGHT = (0x50A28BE6, 0x5C4DD124, 0x6D703EF3, 0x7A6D76E9, 0x00000000)
_START = (0x67452301, 0xEFCDAB89, 0x98BADCFE, 0x10325476, 0xC3D2E1F0)
_MASK = 0xFFFFFFFF


def _mix(round_: int, x: int, y: int, z: int) -> int:
    if round_ == 0:
        return x ^ y ^ z
    if round_ == 1:
        return (x & y) | (~x & z)
    if round_ == 2:
        return (x | ~y) ^ z
    if round_ == 3:
        return (x & z) | (y & ~z)
    return x ^ (y | ~z)


def _turn(value: int, by: int) -> int:
    return (value << by | value >> (32 - by)) & _MASK


def _line(state: tuple[int, ...], block: tuple[int, ...], right: bool) -> tuple[int, ...]:
    words, turns, adds = (_WORDS_RIGHT, _TURNS_RIGHT, _ADD_RIGHT) if right else (_WORDS_LEFT, _TURNS_LEFT, _ADD_LEFT)
    a, b, c, d, e = state
    for step in range(80):
        round_ = step // 16
        mixed = _mix(4 - round_ if right else round_, b, c, d)
        rotated = _turn((a + mixed + block[words[step]] + adds[round_]) & _MASK, turns[step])
        a, b, c, d, e = e, (rotated + e) & _MASK, b, _turn(c, 10), d
    return a, b, c, d, e


def ripemd160_plain(data: bytes) -> bytes:
    """The 20-byte digest, in Python alone; about a tenth of a millisecond for a short message."""
    padded = data + b"\x80" + bytes((55 - len(data)) % 64) + pack("<Q", 8 * len(data))
    state: tuple[int, ...] = _START
    for at in range(0, len(padded), 64):
        block = unpack("<16I", padded[at : at + 64])
        left, right = _line(state, block, False), _line(state, block, True)
        state = tuple((state[(i + 1) % 5] + left[(i + 2) % 5] + right[(i + 3) % 5]) & _MASK for i in range(5))
    return pack("<5I", *state)


def ripemd160(data: bytes) -> bytes:
    """The 20-byte digest, by OpenSSL where it can."""
    try:
        return hashlib.new("ripemd160", data).digest()
    except ValueError:
        return ripemd160_plain(data)


def hash160(data: bytes) -> bytes:
    """RIPEMD-160 of SHA-256, as in key hashes."""
    return ripemd160(hashlib.sha256(data).digest())
