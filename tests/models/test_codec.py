"""The fixed points of SPEC 3.1 (taken from Core's own unit tests), and round trips over arbitrary values."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.coins.codec import (
    coin_key,
    compress_amount,
    compress_script,
    decode_coin,
    decompress_amount,
    decompress_script,
    encode_coin,
    obfuscate,
    outpoint_of_key,
    read_coin,
    read_varint,
    write_varint,
)
from models.coins.coin import Coin
from models.errors import StoreCorrupt

VARINTS = [(0, "00"), (127, "7f"), (128, "8000"), (255, "807f"), (256, "8100"), (16511, "ff7f"), (2**32, "8efefeff00")]
AMOUNTS = [(0, 0), (1, 1), (10**6, 7), (10**8, 9), (50 * 10**8, 0x32), (21 * 10**14, 0x1406F40)]

# The generator of secp256k1 (SEC 2, 2.4.1).
GENERATOR_X = "79be667ef9dcbbac55a06295ce870b07029bfcdb2dce28d959f2815b16f81798"
GENERATOR_Y = "483ada7726a3c4655da4fbfc0e1108a8fd17b448a68554199c47d08ffb10d4b8"
HASH20 = bytes(range(20))
coins = st.builds(
    Coin,
    value=st.integers(0, 21 * 10**14),
    height=st.integers(0, 2**31 - 1),
    coinbase=st.booleans(),
    script=st.binary(max_size=300),
)


@pytest.mark.parametrize(("number", "encoded"), VARINTS)
def test_varint_fixed_points(number: int, encoded: str) -> None:
    assert write_varint(number).hex() == encoded
    assert read_varint(bytes.fromhex(encoded), 0) == (number, len(encoded) // 2)


@given(st.integers(0, 2**64 - 1))
def test_varint_round_trip(number: int) -> None:
    assert read_varint(b"\xff" + write_varint(number) + b"\x01", 1) == (number, 1 + len(write_varint(number)))


def test_varint_refuses_overflow() -> None:
    with pytest.raises(StoreCorrupt, match="larger"):
        read_varint(write_varint(2**64), 0)
    with pytest.raises(StoreCorrupt, match="larger"):
        read_varint(write_varint(2**32), 0, 2**32 - 1)


def test_varint_refuses_truncation() -> None:
    with pytest.raises(StoreCorrupt, match="truncated"):
        read_varint(b"\x80", 0)


@pytest.mark.parametrize(("amount", "compressed"), AMOUNTS)
def test_amount_fixed_points(amount: int, compressed: int) -> None:
    assert compress_amount(amount) == compressed
    assert decompress_amount(compressed) == amount


@given(st.integers(0, 21 * 10**14))
def test_amount_round_trip(amount: int) -> None:
    assert decompress_amount(compress_amount(amount)) == amount


@pytest.mark.parametrize(
    ("script", "stored"),
    [
        ("76a914" + HASH20.hex() + "88ac", "00" + HASH20.hex()),
        ("a914" + HASH20.hex() + "87", "01" + HASH20.hex()),
        ("2102" + GENERATOR_X + "ac", "02" + GENERATOR_X),
        ("2103" + GENERATOR_X + "ac", "03" + GENERATOR_X),
        ("4104" + GENERATOR_X + GENERATOR_Y + "ac", "04" + GENERATOR_X),
        ("", "06"),
        ("51", "0751"),
        ("0014" + HASH20.hex(), "1c" + "0014" + HASH20.hex()),
    ],
)
def test_script_forms(script: str, stored: str) -> None:
    assert compress_script(bytes.fromhex(script)).hex() == stored
    assert decompress_script(bytes.fromhex(stored))[0].hex() == script


def test_uncompressed_key_with_odd_y() -> None:
    prime = 2**256 - 2**32 - 977
    odd_y = (prime - int(GENERATOR_Y, 16)).to_bytes(32, "big").hex()
    script = bytes.fromhex("4104" + GENERATOR_X + odd_y + "ac")
    assert compress_script(script).hex() == "05" + GENERATOR_X
    assert decompress_script(compress_script(script))[0] == script


def test_uncompressed_key_off_the_curve_stays_raw() -> None:
    script = bytes.fromhex("4104" + GENERATOR_X + "00" * 32 + "ac")
    assert compress_script(script) == write_varint(67 + 6) + script


def test_undecompressible_key_leaves_an_empty_script() -> None:
    # x = 5 is on no point of secp256k1 (5^3 + 7 = 132 is no square).
    assert decompress_script(b"\x04" + (5).to_bytes(32, "big"))[0] == b""
    assert decompress_script(b"\x05" + b"\xff" * 32)[0] == b""


def test_oversized_script_becomes_op_return() -> None:
    assert decompress_script(write_varint(10_001 + 6) + bytes(10_001) + b"rest") == (b"\x6a", 10_003)
    assert decompress_script(write_varint(10_000 + 6) + bytes(10_000))[0] == bytes(10_000)


@given(coins)
def test_coin_round_trip(coin: Coin) -> None:
    assert decode_coin(encode_coin(coin)) == coin


def test_coin_of_core_unit_test() -> None:
    # Core, coins_tests.cpp, coin_serialization: a coin of 600 BTC at height 203998, and one of height 120891.
    good = decode_coin(bytes.fromhex("97f23c835800816115944e077fe7c803cfa57f29b36bf87c1d35"))
    assert (good.coinbase, good.height, good.value) == (False, 203998, 60_000_000_000)
    assert good.script.hex() == "76a914816115944e077fe7c803cfa57f29b36bf87c1d3588ac"
    coinbase = decode_coin(bytes.fromhex("8ddf77bbd123008c988f1a4a4de2161e0f50aac7f17e7f9555caa4"))
    assert (coinbase.coinbase, coinbase.height, coinbase.value) == (True, 120891, 110397)
    assert coinbase.script.hex() == "76a9148c988f1a4a4de2161e0f50aac7f17e7f9555caa488ac"


@given(coins)
def test_every_truncation_is_corrupt(coin: Coin) -> None:
    encoded = encode_coin(coin)
    for size in range(len(encoded)):
        with pytest.raises(StoreCorrupt):
            decode_coin(encoded[:size])


def test_trailing_bytes_are_corrupt() -> None:
    encoded = encode_coin(Coin(1, 1, False, b"\x51"))
    assert read_coin(encoded + b"\x00", 0)[1] == len(encoded)
    with pytest.raises(StoreCorrupt, match="1 bytes too many"):
        decode_coin(encoded + b"\x00")


@given(st.binary(max_size=60))
def test_arbitrary_bytes_decode_or_are_corrupt(value: bytes) -> None:
    try:
        decode_coin(value)
    except StoreCorrupt:
        pass


@given(st.binary(min_size=32, max_size=32), st.integers(0, 2**32 - 1))
def test_key_round_trip(txid: bytes, vout: int) -> None:
    outpoint = txid + vout.to_bytes(4, "little")
    assert coin_key(outpoint) == b"C" + txid + write_varint(vout)
    assert outpoint_of_key(coin_key(outpoint)) == outpoint


@pytest.mark.parametrize("key", [b"", b"B", b"C" + bytes(32), b"c" + bytes(33), b"C" + bytes(34)])
def test_other_keys_are_refused(key: bytes) -> None:
    with pytest.raises(StoreCorrupt):
        outpoint_of_key(key)


@given(st.binary(max_size=100), st.binary(min_size=8, max_size=8))
def test_obfuscation_is_bytewise_xor(value: bytes, key: bytes) -> None:
    assert obfuscate(value, key) == bytes(byte ^ key[i % 8] for i, byte in enumerate(value))
