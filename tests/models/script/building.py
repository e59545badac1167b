"""Transactions put together by hand for the script tests, among them the crediting and the spending one of Core's
script_tests.json. Serialised here on purpose, not by the code under test.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

FINAL = 0xFFFFFFFF

NULL_OUTPOINT = bytes(32) + FINAL.to_bytes(4, "little")


@dataclass(frozen=True)
class Input:
    prevout: bytes  # 36 bytes: txid in internal order, index little-endian
    script_sig: bytes = b""
    witness: tuple[bytes, ...] = ()
    sequence: int = FINAL


@dataclass(frozen=True)
class Output:
    value: int  # satoshis
    script: bytes = b""


def compact_size(value: int) -> bytes:
    if value < 0xFD:
        return bytes([value])
    if value <= 0xFFFF:
        return b"\xfd" + value.to_bytes(2, "little")
    return b"\xfe" + value.to_bytes(4, "little")


def with_length(data: bytes) -> bytes:
    return compact_size(len(data)) + data


def serialize(
    inputs: Sequence[Input],
    outputs: Sequence[Output],
    version: int = 1,
    locktime: int = 0,
    with_witness: bool = True,
) -> bytes:
    """Wire bytes; with marker, flag and stacks if an input has a witness and `with_witness` is set."""
    segwit = with_witness and any(spend.witness for spend in inputs)
    parts = [version.to_bytes(4, "little"), b"\x00\x01" if segwit else b"", compact_size(len(inputs))]
    for spend in inputs:
        parts += [spend.prevout, with_length(spend.script_sig), spend.sequence.to_bytes(4, "little")]
    parts.append(compact_size(len(outputs)))
    for output in outputs:
        parts += [output.value.to_bytes(8, "little", signed=True), with_length(output.script)]
    if segwit:
        for spend in inputs:
            parts += [compact_size(len(spend.witness)), *map(with_length, spend.witness)]
    parts.append(locktime.to_bytes(4, "little"))
    return b"".join(parts)


def outpoint(raw_without_witness: bytes, index: int) -> bytes:
    """Outpoint of an output of a transaction given without its witness."""
    txid = hashlib.sha256(hashlib.sha256(raw_without_witness).digest()).digest()
    return txid + index.to_bytes(4, "little")


def spend_of(script_pubkey: bytes, script_sig: bytes = b"", witness: Sequence[bytes] = (), value: int = 0) -> bytes:
    """Core's pair for one script: a coinbase pays `value` satoshis to `script_pubkey`, the returned one spends it.

    Source: `BuildCreditingTransaction` and `BuildSpendingTransaction`, test/util/transaction_utils.cpp.
    """
    credit = serialize([Input(NULL_OUTPOINT, b"\x00\x00")], [Output(value, script_pubkey)])
    return serialize([Input(outpoint(credit, 0), script_sig, tuple(witness))], [Output(value)])
