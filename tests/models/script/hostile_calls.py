"""Run as a program by test_verify_guards: calls `models.script.verify` with arguments that would abort the kernel or
deceive it, and writes one JSON line per call with what it raised. Kept apart, so that an abort ends only this process.
"""

import json
from collections.abc import Callable

from models.script.verify import ALL_FLAGS, P2SH, TAPROOT, WITNESS, verify_batch, verify_inputs
from tests.models.script.building import NULL_OUTPOINT, Input, Output, serialize

TRUE = b"\x51"
RAW = serialize([Input(bytes(36)), Input(bytes(32) + b"\x01\x00\x00\x00")], [Output(1, TRUE)])
SPENT = [(1, TRUE), (2, TRUE)]
NO_INPUTS = serialize([], [])  # reads as "no inputs, no flags": the kernel's parser takes it

CALLS: dict[str, Callable[[], object]] = {
    "good call": lambda: verify_inputs(RAW, SPENT, ALL_FLAGS),
    "good call, number of inputs given": lambda: verify_inputs(RAW, SPENT, ALL_FLAGS, n_inputs=2),
    "no inputs": lambda: verify_inputs(NO_INPUTS, [], ALL_FLAGS),
    "empty batch": lambda: verify_batch([], ALL_FLAGS, 2),
    "unknown flag bit": lambda: verify_inputs(RAW, SPENT, ALL_FLAGS | 1 << 1),
    "high flag bit": lambda: verify_inputs(RAW, SPENT, 1 << 32),
    "negative flags": lambda: verify_inputs(RAW, SPENT, -1),
    "flags no number": lambda: verify_inputs(RAW, SPENT, None),  # type: ignore[arg-type]
    "flags not to be combined": lambda: verify_inputs(RAW, SPENT, WITNESS | TAPROOT),
    "unknown flag bit in a batch": lambda: verify_batch([], 1 << 1),
    "index behind the last": lambda: verify_inputs(RAW, SPENT, P2SH, [2]),
    "negative index": lambda: verify_inputs(RAW, SPENT, P2SH, [-1]),
    "index of 2^32": lambda: verify_inputs(RAW, SPENT, P2SH, [1 << 32]),
    "index no number": lambda: verify_inputs(RAW, SPENT, P2SH, ["0"]),  # type: ignore[list-item]
    "one bad index behind a good one": lambda: verify_inputs(RAW, SPENT, P2SH, [0, 2]),
    "index without inputs": lambda: verify_inputs(NO_INPUTS, [], P2SH, [0]),
    "too few spent outputs": lambda: verify_inputs(RAW, SPENT[:1], P2SH),
    "no spent outputs": lambda: verify_inputs(RAW, [], P2SH),
    "too many spent outputs": lambda: verify_inputs(RAW, [*SPENT, (3, TRUE)], P2SH),
    "spent outputs without inputs": lambda: verify_inputs(NO_INPUTS, SPENT, P2SH),
    "number of inputs differs": lambda: verify_inputs(RAW, SPENT, P2SH, n_inputs=3),
    "value above 64 bits": lambda: verify_inputs(RAW, [(1, TRUE), (1 << 63, TRUE)], P2SH),
    "value below 64 bits": lambda: verify_inputs(RAW, [(-(1 << 63) - 1, TRUE), (1, TRUE)], P2SH),
    "value no number": lambda: verify_inputs(RAW, [(1, TRUE), (1.0, TRUE)], P2SH),  # type: ignore[list-item]
    "script missing": lambda: verify_inputs(RAW, [(1, TRUE), (1, None)], P2SH),  # type: ignore[list-item]
    "script no bytes": lambda: verify_inputs(RAW, [(1, bytearray(TRUE)), (1, TRUE)], P2SH),  # type: ignore[list-item]
    "transaction missing": lambda: verify_inputs(None, SPENT, P2SH),  # type: ignore[arg-type]
    "transaction no bytes": lambda: verify_inputs(memoryview(RAW), SPENT, P2SH),  # type: ignore[arg-type]
    "transaction empty": lambda: verify_inputs(b"", [], P2SH),
    "transaction cut short": lambda: verify_inputs(RAW[:-1], SPENT, P2SH),
    "one byte behind the transaction": lambda: verify_inputs(RAW + b"\x00", SPENT, P2SH),
    "a second transaction behind the first": lambda: verify_inputs(RAW + RAW, SPENT, P2SH),
    "trailing byte in a batch": lambda: verify_batch([(RAW, SPENT), (RAW + b"\x00", SPENT)], P2SH, 2),
    "too few spent outputs in a batch": lambda: verify_batch([(RAW, SPENT), (RAW, SPENT[:1])], P2SH, 2),
    "no threads": lambda: verify_batch([(RAW, SPENT)], P2SH, 0),
    "extreme values": lambda: verify_inputs(RAW, [((1 << 63) - 1, TRUE), (-(1 << 63), TRUE)], ALL_FLAGS),
    "null prevout": lambda: verify_inputs(serialize([Input(NULL_OUTPOINT)], []), [(0, TRUE)], ALL_FLAGS),
}


def main() -> None:
    for name, call in CALLS.items():
        try:
            outcome = repr(call())
        except Exception as error:
            outcome = type(error).__name__
        print(json.dumps([name, outcome]), flush=True)


if __name__ == "__main__":
    main()
