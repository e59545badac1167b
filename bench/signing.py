"""Keys, signature hashes and signed transactions for the fixtures: real P2WPKH spends, so that whoever checks them does
the same work as for any other block. Everything is a function of a seed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from struct import pack
from typing import Any

from bench.errors import BenchError
from bench.ripemd160 import hash160
from models.wire.compactsize import write_compact_size
from models.wire.hashes import sha256d

__all__ = ["Key", "OwnCoin", "Unsigned", "bip143_digest", "derive_key", "p2wpkh_script_code", "sign_spend"]

SIGHASH_ALL = 1
SEQUENCE = 0xFFFFFFFD  # no relative lock (version 2 reads bit 31), replaceable
VERSION = 2
DER_SIZE = 70  # bytes of a signature whose R and S are both of 32 bytes with their top bit clear, as wallets grind it


def _coincurve() -> Any:
    try:
        import coincurve
    except ImportError:
        raise BenchError("making a fixture needs the package coincurve: pip install 'txcollection[dev]'") from None
    return coincurve


@dataclass(frozen=True, slots=True)
class Key:
    """A private key with what locks coins to it."""

    secret: bytes  # 32
    public: bytes  # 33, compressed
    key_hash: bytes  # 20

    @property
    def script(self) -> bytes:
        """The P2WPKH scriptPubKey (BIP141)."""
        return b"\x00\x14" + self.key_hash


@dataclass(frozen=True, slots=True)
class OwnCoin:
    """A coin that the fixture can spend. `outpoint` 36 bytes, `value` in satoshis."""

    outpoint: bytes
    value: int
    key: Key


def derive_key(seed: str, number: int) -> Key:
    """Key number `number` of a seed."""
    secret = sha256(f"{seed}/key/{number}".encode()).digest()  # not a valid secret once in 2^127
    public = _coincurve().PrivateKey(secret).public_key.format(compressed=True)
    return Key(secret, public, hash160(public))


def p2wpkh_script_code(key_hash: bytes) -> bytes:
    """The script that a P2WPKH signature commits to (BIP143), with its length."""
    return b"\x19\x76\xa9\x14" + key_hash + b"\x88\xac"


@dataclass(frozen=True, slots=True)
class Unsigned:
    """A transaction without its signatures, as far as BIP143 hashes it."""

    version: int
    outpoints: Sequence[bytes]
    sequences: Sequence[int]
    outputs: bytes  # serialised, without their count
    locktime: int


def bip143_digest(unsigned: Unsigned, index: int, script_code: bytes, value: int) -> bytes:
    """The hash that input `index` signs with SIGHASH_ALL; `script_code` with its length, `value` in satoshis."""
    return sha256d(
        pack("<i", unsigned.version)
        + sha256d(b"".join(unsigned.outpoints))
        + sha256d(b"".join(pack("<I", sequence) for sequence in unsigned.sequences))
        + unsigned.outpoints[index]
        + script_code
        + pack("<q", value)
        + pack("<I", unsigned.sequences[index])
        + sha256d(unsigned.outputs)
        + pack("<II", unsigned.locktime, SIGHASH_ALL)
    )


def sign_spend(coins: Sequence[OwnCoin], outputs: Sequence[tuple[int, bytes]]) -> bytes | None:
    """A raw transaction that spends `coins` to `outputs` (satoshis, scriptPubKey), signed input by input.

    None if one of its signatures is not of the usual size, which is one in two of them: change an output and try again,
    so that weights do not depend on luck.
    """
    serialised = b"".join(pack("<q", value) + write_compact_size(len(script)) + script for value, script in outputs)
    outpoints = [coin.outpoint for coin in coins]
    unsigned = Unsigned(VERSION, outpoints, [SEQUENCE] * len(coins), serialised, 0)
    witnesses = []
    for index, coin in enumerate(coins):
        digest = bip143_digest(unsigned, index, p2wpkh_script_code(coin.key.key_hash), coin.value)
        der = _coincurve().PrivateKey(coin.key.secret).sign(digest, hasher=None)
        if len(der) != DER_SIZE:
            return None
        witnesses.append(b"\x02" + bytes((DER_SIZE + 1,)) + der + bytes((SIGHASH_ALL, 33)) + coin.key.public)
    inputs = b"".join(outpoint + b"\x00" + pack("<I", SEQUENCE) for outpoint in outpoints)
    return b"".join(
        (
            pack("<i", VERSION),
            b"\x00\x01",
            write_compact_size(len(coins)),
            inputs,
            write_compact_size(len(outputs)),
            serialised,
            *witnesses,
            pack("<I", 0),
        )
    )
