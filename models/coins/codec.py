"""The coin as Core's coins database holds it: VARINTs, compressed amounts and scripts, keys, obfuscation (SPEC 3.1).

Pure functions on bytes. `decode_coin` runs once per coin read, thousands of times per block, so the one-byte cases of
its VARINTs are written out. Nothing here knows of LevelDB or of files.
"""

import numpy as np

from models.coins.coin import Coin
from models.errors import StoreCorrupt

__all__ = [
    "COIN_PREFIX",
    "MAX_SCRIPT_SIZE",
    "OUTPOINT_SIZE",
    "TXID_SIZE",
    "coin_key",
    "coin_keys",
    "compress_amount",
    "compress_script",
    "decode_coin",
    "decompress_amount",
    "decompress_script",
    "encode_coin",
    "find_outpoints",
    "obfuscate",
    "outpoint_of_key",
    "read_coin",
    "read_txout",
    "read_varint",
    "split_outpoints",
    "write_varint",
]

COIN_PREFIX = b"C"  # Core: DB_COIN, txdb.cpp
MAX_SCRIPT_SIZE = 10_000  # in bytes; Core: MAX_SCRIPT_SIZE, script/script.h
SPECIAL_SCRIPTS = 6  # script types with a form of their own; Core: nSpecialScripts, compressor.h
UINT32_MAX = 0xFFFF_FFFF
UINT64_MAX = 0xFFFF_FFFF_FFFF_FFFF

OUTPOINT_SIZE = 36
TXID_SIZE = 32
ONE_DIGIT = 0x80  # the first numbers whose VARINT takes two digits, and three
TWO_DIGITS = 0x4080
KEY_SIZE = 8  # of an obfuscation key, in bytes

FIELD_PRIME = 2**256 - 2**32 - 977  # of secp256k1 (SEC 2, 2.4.1)
CURVE_B = 7


def read_varint(buf: bytes, pos: int, limit: int = UINT64_MAX) -> tuple[int, int]:
    """Reads Core's VARINT (MSB first, base 128, each continued digit adds one) -> (number, position behind it).

    Raises `StoreCorrupt` where the bytes end early or the number exceeds `limit`. Source: Core `ReadVarInt`,
    serialize.h.
    """
    number = 0
    try:
        while True:
            byte = buf[pos]
            pos += 1
            number = (number << 7) | (byte & 0x7F)
            if number > limit:
                raise StoreCorrupt(f"VARINT at byte {pos - 1} is larger than {limit:#x}")
            if byte < 0x80:
                return number, pos
            number += 1
    except IndexError:
        raise StoreCorrupt(f"VARINT truncated at byte {pos} of {len(buf)}") from None


def write_varint(number: int) -> bytes:
    """The VARINT of a number >= 0 (Core `WriteVarInt`, serialize.h)."""
    if number < 0x80:
        return bytes((number,))
    digits = [number & 0x7F]
    while number > 0x7F:
        number = (number >> 7) - 1
        digits.append((number & 0x7F) | 0x80)
    return bytes(reversed(digits))


def compress_amount(value: int) -> int:
    """An amount in satoshis -> the number stored, small for round amounts (Core `CompressAmount`, compressor.cpp)."""
    if value == 0:
        return 0
    exponent = 0
    while value % 10 == 0 and exponent < 9:
        value //= 10
        exponent += 1
    if exponent < 9:
        value, digit = divmod(value, 10)
        return 1 + (value * 9 + digit - 1) * 10 + exponent
    return 1 + (value - 1) * 10 + 9


def decompress_amount(number: int) -> int:
    """The stored number -> satoshis, modulo 2^64 as in Core (`DecompressAmount`, compressor.cpp)."""
    if number == 0:
        return 0
    number, exponent = divmod(number - 1, 10)
    if exponent < 9:
        number, digit = divmod(number, 9)
        value = number * 10 + digit + 1
    else:
        value = number + 1
    return (value * 10**exponent) & UINT64_MAX


def _y_of_x(x: int, odd: int) -> int | None:
    """The y coordinate of the secp256k1 point with this x and parity, None if there is none."""
    if x >= FIELD_PRIME:
        return None
    square = (x * x * x + CURVE_B) % FIELD_PRIME
    y = pow(square, (FIELD_PRIME + 1) // 4, FIELD_PRIME)
    if y * y % FIELD_PRIME != square:
        return None
    return y if (y & 1) == odd else FIELD_PRIME - y


def compress_script(script: bytes) -> bytes:
    """A scriptPubKey -> its stored form, VARINT size or type included (Core `CompressScript`, compressor.cpp).

    A pay-to-pubkey script with an uncompressed key is shortened only where the key is a point on the curve.
    """
    size = len(script)
    if size == 25 and script[:3] == b"\x76\xa9\x14" and script[23:] == b"\x88\xac":
        return b"\x00" + script[3:23]
    if size == 23 and script[:2] == b"\xa9\x14" and script[22] == 0x87:
        return b"\x01" + script[2:22]
    if size == 35 and script[0] == 33 and script[1] in (2, 3) and script[34] == 0xAC:
        return script[1:34]
    if size == 67 and script[0] == 65 and script[1] == 4 and script[66] == 0xAC:
        x, y = script[2:34], int.from_bytes(script[34:66], "big")
        if y < FIELD_PRIME and _y_of_x(int.from_bytes(x, "big"), y & 1) == y:
            return bytes((4 | (y & 1),)) + x
    return write_varint(size + SPECIAL_SCRIPTS) + script


def decompress_script(buf: bytes, pos: int = 0) -> tuple[bytes, int]:
    """The stored form at `pos` -> (scriptPubKey, position behind it).

    An uncompressed key that is no point leaves an empty script, and a script above 10,000 bytes becomes the single
    byte 0x6a (OP_RETURN), both as in Core (`ScriptCompression::Unser`, compressor.h). Raises `StoreCorrupt` where the
    bytes end early.
    """
    kind, pos = read_varint(buf, pos, UINT32_MAX)
    if kind >= SPECIAL_SCRIPTS:
        end = pos + kind - SPECIAL_SCRIPTS
        if end > len(buf):
            raise StoreCorrupt(f"script of {end - pos} bytes at byte {pos} is truncated: {len(buf) - pos} are there")
        return (buf[pos:end] if end - pos <= MAX_SCRIPT_SIZE else b"\x6a"), end
    end = pos + (20 if kind < 2 else 32)
    payload = buf[pos:end]
    if end > len(buf):
        raise StoreCorrupt(f"script of type {kind} at byte {pos} is truncated: {len(payload)} bytes are there")
    if kind == 0:
        return b"\x76\xa9\x14" + payload + b"\x88\xac", end
    if kind == 1:
        return b"\xa9\x14" + payload + b"\x87", end
    if kind < 4:
        return bytes((33, kind)) + payload + b"\xac", end
    y = _y_of_x(int.from_bytes(payload, "big"), kind & 1)
    if y is None:
        return b"", end
    return b"\x41\x04" + payload + y.to_bytes(32, "big") + b"\xac", end


def encode_coin(coin: Coin) -> bytes:
    """The database value of a coin, before obfuscation (Core `Coin::Serialize`, coins.h)."""
    return (
        write_varint(coin.height << 1 | coin.coinbase)
        + write_varint(compress_amount(coin.value))
        + compress_script(coin.script)
    )


def read_txout(buf: bytes, pos: int) -> tuple[int, bytes, int]:
    """A compressed output at `pos` -> (satoshis, scriptPubKey, position behind it); `StoreCorrupt` as above."""
    amount, pos = read_varint(buf, pos)
    script, pos = decompress_script(buf, pos)
    return decompress_amount(amount), script, pos


def read_coin(buf: bytes, pos: int) -> tuple[Coin, int]:
    """A plain coin at `pos`, with more bytes behind it -> (coin, position behind it). Raises `StoreCorrupt`."""
    code, pos = read_varint(buf, pos, UINT32_MAX)
    value, script, pos = read_txout(buf, pos)
    return Coin(value, code >> 1, bool(code & 1), script), pos


def decode_coin(value: bytes) -> Coin:
    """A plain (un-obfuscated) database value -> the coin. Raises `StoreCorrupt` where it is not exactly one coin."""
    coin, end = read_coin(value, 0)
    if end != len(value):
        raise StoreCorrupt(f"coin record of {len(value)} bytes has {len(value) - end} bytes too many")
    return coin


def coin_key(outpoint: bytes) -> bytes:
    """An outpoint of 36 bytes (txid in internal order, vout u32 LE) -> its database key."""
    vout = int.from_bytes(outpoint[TXID_SIZE:], "little")
    if vout < 0x80:
        return COIN_PREFIX + outpoint[: TXID_SIZE + 1]
    return COIN_PREFIX + outpoint[:TXID_SIZE] + write_varint(vout)


def split_outpoints(outpoints: bytes) -> list[bytes]:
    """Joined outpoints one by one."""
    return [outpoints[at : at + OUTPOINT_SIZE] for at in range(0, len(outpoints), OUTPOINT_SIZE)]


def find_outpoints(wanted: bytes, there: bytes) -> np.ndarray:
    """For each of joined outpoints the index of an equal one among others; -1 where none is found.

    Of several that agree in what they are sorted by, which nobody makes but on purpose, only the last is found.
    """
    if not there:
        return np.full(len(wanted) // OUTPOINT_SIZE, -1)
    wanted_words, there_words = _words(wanted), _words(there)
    order = np.argsort(there_words, kind="stable")
    place = np.searchsorted(there_words[order], wanted_words, side="right") - 1
    found = order[np.maximum(place, 0)]
    tables = (np.frombuffer(blob, np.uint8).reshape(-1, OUTPOINT_SIZE) for blob in (wanted, there))
    wanted_rows, there_rows = tables
    return np.where((wanted_rows == there_rows[found]).all(axis=1), found, -1)


def _words(outpoints: bytes) -> np.ndarray:
    """A number for each of joined outpoints, equal where they are, and hardly ever else."""
    table = np.frombuffer(outpoints, "<u4").reshape(-1, OUTPOINT_SIZE // 4)
    return table[:, 0].astype(np.uint64) << np.uint64(32) | table[:, 1] ^ table[:, 8]


def coin_keys(outpoints: bytes) -> tuple[list[bytes], list[int]]:
    """Database keys of joined outpoints, in their order, and the order in which the database holds them.

    Made in columns, for the 17,000 keys of a full block; the second list is only good for reading neighbours together.
    """
    table = np.frombuffer(outpoints, np.uint8).reshape(-1, OUTPOINT_SIZE)
    vouts = np.ascontiguousarray(table[:, TXID_SIZE:]).view("<u4").reshape(-1)
    words = np.ascontiguousarray(table[:, :8]).view(">u8").reshape(-1)
    order = np.lexsort((vouts, words)).tolist()
    if (vouts < ONE_DIGIT).all():
        return _keys_of_width(table, [vouts]), order
    keys: list[bytes] = [b""] * len(table)
    one, more = vouts < ONE_DIGIT, vouts >= TWO_DIGITS
    two = ~one & ~more
    high = (vouts[two] >> 7) - 1 | 0x80
    for which, digits in ((one, [vouts[one]]), (two, [high, vouts[two] & 0x7F])):
        for i, key in zip(np.flatnonzero(which).tolist(), _keys_of_width(table[which], digits), strict=True):
            keys[i] = key
    for i in np.flatnonzero(more).tolist():
        keys[i] = coin_key(table[i].tobytes())
    return keys, order


def _keys_of_width(table: np.ndarray, digits: list[np.ndarray]) -> list[bytes]:
    """Keys whose output number takes len(digits) bytes."""
    width = 1 + TXID_SIZE + len(digits)
    rows = np.empty((len(table), width), np.uint8)
    rows[:, 0] = COIN_PREFIX[0]
    rows[:, 1 : 1 + TXID_SIZE] = table[:, :TXID_SIZE]
    for place, digit in enumerate(digits):
        rows[:, 1 + TXID_SIZE + place] = digit
    blob = rows.tobytes()
    return [blob[at : at + width] for at in range(0, len(blob), width)]


def outpoint_of_key(key: bytes) -> bytes:
    """The outpoint of 36 bytes that a coin's database key stands for. Raises `StoreCorrupt` for any other key."""
    if key[:1] != COIN_PREFIX or len(key) <= TXID_SIZE + 1:
        raise StoreCorrupt(f"not the key of a coin: {key.hex()}")
    vout, end = read_varint(key, TXID_SIZE + 1, UINT32_MAX)
    if end != len(key):
        raise StoreCorrupt(f"bytes behind the output number in the key of a coin: {key.hex()}")
    return key[1 : TXID_SIZE + 1] + vout.to_bytes(4, "little")


def obfuscate(value: bytes, key: bytes) -> bytes:
    """XORs a value with the repeated key of 8 bytes, starting anew in every value; its own inverse.

    Done on one large integer, which is several times faster than byte by byte.
    """
    size = len(value)
    mask = int.from_bytes((key * (size // KEY_SIZE + 1))[:size], "little")
    return (int.from_bytes(value, "little") ^ mask).to_bytes(size, "little")
