"""Signatures of the fixtures: the hash that is signed against BIP143's own example, RIPEMD-160 against its paper."""

import pytest

from bench.ripemd160 import hash160, ripemd160, ripemd160_plain
from bench.signing import Unsigned, bip143_digest, p2wpkh_script_code

# BIP143, "Native P2WPKH": the unsigned transaction's parts, the second input's coin, and its signature hash.
FIRST = bytes.fromhex("fff7f7881a8099afa6940d42d1e7f6362bec38171ea3edf433541db4e4ad969f00000000")
SECOND = bytes.fromhex("ef51e1b804cc89d182d279655c3aa89e815b1b309fe287d9b2b55d57b90ec68a01000000")
OUTPUTS = bytes.fromhex(
    "202cb206000000001976a9148280b37df378db99f66f85c95a783a76ac7a6d5988ac"
    "9093510d000000001976a9143bde42dbee7e4dbe6a21b2d50ce2f0167faa815988ac"
)
PUBLIC_KEY = bytes.fromhex("025476c2e83188368da1ff3e292e7acafcdb3566bb0ad253f62fc70f07aeee6357")
SIGHASH = "c37af31116d1b27caf68aae9e3ac82f1477929014d5b917657d0eb49478cb670"

# The paper's own test values (appendix B).
DIGESTS = {
    b"": "9c1185a5c5e9fc54612808977ee8f548b2258d31",
    b"abc": "8eb208f7e05d987a9b044a8e98c6b087f15a0bfc",
    b"message digest": "5d0689ef49d2fae572b881b123a85ffa21595f36",
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789": "b0e20b6e3116640286ed3a87a5713079b21f5189",
    b"1234567890" * 8: "9b752e45573d4b39f4dbd3323cab82bf63326bfb",
}


@pytest.mark.parametrize("message", DIGESTS, ids=len)
def test_ripemd160_gives_the_digests_of_its_paper(message: bytes) -> None:
    assert ripemd160_plain(message).hex() == DIGESTS[message]
    assert ripemd160(message).hex() == DIGESTS[message]


def test_the_hash_that_is_signed_is_that_of_bip143s_example() -> None:
    unsigned = Unsigned(1, [FIRST, SECOND], [0xFFFFFFEE, 0xFFFFFFFF], OUTPUTS, 17)
    code = bytes.fromhex("1976a9141d0f172a0ecb48aee1be1f2687d2963ae33f71a188ac")
    assert p2wpkh_script_code(hash160(PUBLIC_KEY)) == code
    assert bip143_digest(unsigned, 1, code, 600_000_000).hex() == SIGHASH
