"""Script classes, witness programs, push-only scripts and unspendable outputs, at the edges where Core draws them."""

import pytest

from models.script import classes

KEYHASH = b"\x00\x14" + bytes(20)
SCRIPTHASH = b"\x00\x20" + bytes(32)
TAPROOT = b"\x51\x20" + bytes(32)
PAY_TO_ANCHOR = bytes.fromhex("51024e73")
P2SH = b"\xa9\x14" + bytes(20) + b"\x87"
P2PKH = b"\x76\xa9\x14" + bytes(20) + b"\x88\xac"


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        (b"", classes.OTHER),
        (P2PKH, classes.OTHER),
        (P2SH, classes.P2SH),
        (P2SH[:-1] + b"\x88", classes.OTHER),
        (b"\xa9\x4c\x14" + bytes(20) + b"\x87", classes.OTHER),  # the hash pushed the long way
        (KEYHASH, classes.WITNESS_V0_KEYHASH),
        (SCRIPTHASH, classes.WITNESS_V0_SCRIPTHASH),
        (b"\x00\x02ab", classes.WITNESS_OTHER),  # version 0 of another size: unspendable, and no sigops
        (b"\x00\x28" + bytes(40), classes.WITNESS_OTHER),
        (TAPROOT, classes.WITNESS_OTHER),
        (PAY_TO_ANCHOR, classes.WITNESS_OTHER),
        (b"\x60\x28" + bytes(40), classes.WITNESS_OTHER),
        (b"\x51\x14" + bytes(20), classes.WITNESS_OTHER),
        (b"\x61\x20" + bytes(32), classes.OTHER),  # OP_NOP is no version
        (b"\x50\x20" + bytes(32), classes.OTHER),  # nor is OP_RESERVED
        (b"\x4f\x20" + bytes(32), classes.OTHER),  # nor OP_1NEGATE
        (b"\x51\x01a", classes.OTHER),  # a program has at least 2 bytes
        (b"\x51\x29" + bytes(41), classes.OTHER),  # and at most 40
        (TAPROOT + b"\x00", classes.OTHER),
        (TAPROOT[:-1], classes.OTHER),
    ],
)
def test_script_class(script: bytes, expected: int) -> None:
    assert classes.script_class(script) == expected


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        (KEYHASH, (0, bytes(20))),
        (TAPROOT, (1, bytes(32))),
        (PAY_TO_ANCHOR, (1, b"\x4e\x73")),
        (b"\x60\x02ab", (16, b"ab")),
        (b"\x00\x28" + bytes(40), (0, bytes(40))),
        (b"\x61\x02ab", None),
        (b"\x50\x02ab", None),
        (b"\x00\x29" + bytes(41), None),
        (b"\x00\x01a", None),
        (b"\x00\x03ab", None),
        (P2SH, None),
        (b"", None),
    ],
)
def test_witness_program(script: bytes, expected: tuple[int, bytes] | None) -> None:
    assert classes.witness_program(script) == expected


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        (b"", False),
        (b"\x6a", True),
        (b"\x6a\x04data", True),
        (b"\x51\x6a", False),
        (b"\x51" * 10_000, False),
        (b"\x51" * 10_001, True),
    ],
)
def test_unspendable(script: bytes, expected: bool) -> None:
    assert classes.is_unspendable(script) is expected


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        (b"", b""),
        (b"\x02ab", b"ab"),
        (b"\x02ab\x01c", b"c"),
        (b"\x4c\x02ab", b"ab"),
        (b"\x4d\x02\x00ab", b"ab"),
        (b"\x4e\x02\x00\x00\x00ab", b"ab"),
        (b"\x4d\x00\x01" + bytes(256), bytes(256)),
        # What carries no bytes of its own leaves the data empty, whatever was pushed before it.
        (b"\x02ab\x00", b""),
        (b"\x02ab\x4f", b""),
        (b"\x02ab\x50", b""),
        (b"\x02ab\x51", b""),
        (b"\x02ab\x60", b""),
        (b"\x02ab\x61", None),  # OP_NOP is above OP_16
        (b"\x61\x02ab", None),
        (b"\x02a", None),
        (b"\x4c", None),
        (b"\x4c\x02a", None),
        (b"\x4d\x01", None),
        (b"\x4d\x02\x00a", None),
        (b"\x4e\x01\x00\x00", None),
        (b"\x4e\xff\xff\xff\xff", None),
    ],
)
def test_last_push_and_push_only(script: bytes, expected: bytes | None) -> None:
    assert classes.last_push(script) == expected
    assert classes.is_push_only(script) is (expected is not None)
