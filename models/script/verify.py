"""Script verification by libbitcoinkernel, Core's own interpreter, called through the raw binding of py-bitcoinkernel.

The library aborts the whole process on arguments it does not expect, and takes a transaction with bytes behind it for
a good one: every call here is guarded first. It says pass or fail and nothing of why. No verdict is made here.
"""

import ctypes
import itertools
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

from pbk.capi.library import BITCOINKERNEL_LIB

from models.errors import DecodeError, InternalError

__all__ = [
    "ALL_FLAGS",
    "CHECKLOCKTIMEVERIFY",
    "CHECKSEQUENCEVERIFY",
    "DERSIG",
    "NULLDUMMY",
    "P2SH",
    "TAPROOT",
    "WITNESS",
    "SpentOutput",
    "verify_batch",
    "verify_inputs",
]

# The flags of the kernel's interface (bitcoinkernel.h, btck_ScriptVerificationFlags): the consensus ones, and no other.
P2SH = 1 << 0  # BIP16
DERSIG = 1 << 2  # BIP66
NULLDUMMY = 1 << 4  # BIP147
CHECKLOCKTIMEVERIFY = 1 << 9  # BIP65
CHECKSEQUENCEVERIFY = 1 << 10  # BIP112
WITNESS = 1 << 11  # BIP141; needs P2SH
TAPROOT = 1 << 17  # BIP341, BIP342
ALL_FLAGS = P2SH | DERSIG | NULLDUMMY | CHECKLOCKTIMEVERIFY | CHECKSEQUENCEVERIFY | WITNESS | TAPROOT

SpentOutput = tuple[int, bytes]  # satoshis, scriptPubKey

_INT64_MIN, _INT64_MAX = -(1 << 63), (1 << 63) - 1

_STATUS_OK = 0
_STATUS_TEXT = {1: "the flags cannot be combined", 2: "the spent outputs are missing"}

# Function objects of our own, so that the binding's argument types stay as they are for everybody else: c_char_p passes
# the address of a bytes object where the binding's constructors copy it byte by byte, and c_void_p makes a handle a
# plain int. The short calls keep the GIL (PYFUNCTYPE), as handing it over costs more than they take; the two that hash
# or check signatures give it up (CFUNCTYPE).
_Handle = ctypes.c_void_p
_make_transaction = ctypes.PYFUNCTYPE(_Handle, ctypes.c_char_p, ctypes.c_size_t)(
    ("btck_transaction_create", BITCOINKERNEL_LIB)
)
_count_inputs = ctypes.PYFUNCTYPE(ctypes.c_size_t, _Handle)(("btck_transaction_count_inputs", BITCOINKERNEL_LIB))
_free_transaction = ctypes.PYFUNCTYPE(None, _Handle)(("btck_transaction_destroy", BITCOINKERNEL_LIB))
_make_script = ctypes.PYFUNCTYPE(_Handle, ctypes.c_char_p, ctypes.c_size_t)(
    ("btck_script_pubkey_create", BITCOINKERNEL_LIB)
)
_free_script = ctypes.PYFUNCTYPE(None, _Handle)(("btck_script_pubkey_destroy", BITCOINKERNEL_LIB))
_make_output = ctypes.PYFUNCTYPE(_Handle, _Handle, ctypes.c_int64)(
    ("btck_transaction_output_create", BITCOINKERNEL_LIB)
)
_free_output = ctypes.PYFUNCTYPE(None, _Handle)(("btck_transaction_output_destroy", BITCOINKERNEL_LIB))
_precompute = ctypes.CFUNCTYPE(_Handle, _Handle, ctypes.POINTER(_Handle), ctypes.c_size_t)(
    ("btck_precomputed_transaction_data_create", BITCOINKERNEL_LIB)
)
_free_precomputed = ctypes.PYFUNCTYPE(None, _Handle)(("btck_precomputed_transaction_data_destroy", BITCOINKERNEL_LIB))
_verify = ctypes.CFUNCTYPE(
    ctypes.c_int32,
    _Handle,  # scriptPubKey
    ctypes.c_int64,  # satoshis
    _Handle,  # transaction
    _Handle,  # precomputed data
    ctypes.c_uint32,  # input index
    ctypes.c_uint32,  # flags
    ctypes.POINTER(ctypes.c_ubyte),  # status
)(("btck_script_pubkey_verify", BITCOINKERNEL_LIB))


def verify_inputs(
    raw_tx: bytes,
    spent: Sequence[SpentOutput],
    flags: int,
    indices: Sequence[int] | None = None,
    n_inputs: int | None = None,
) -> list[bool]:
    """Runs the scripts of a transaction's inputs; True is a pass. The answers are in the order of `indices`.

    `raw_tx` is the serialisation with witness, nothing behind it. `spent` holds satoshis and scriptPubKey of the coin
    of **every** input, in input order, also where `indices` asks for a few only: taproot signatures cover them all.
    `flags` is a sum of the constants of this module. `n_inputs`, if given, is the number of inputs that the caller read
    from the same bytes, and must be what the kernel reads.

    Raises `DecodeError` where the bytes are no transaction or go on behind it, `InternalError` where the arguments
    cannot belong together; no script was run then. Calls give up the GIL and may run side by side.
    Source: Core `VerifyScript`, with one `PrecomputedTransactionData` for all inputs.
    """
    return _run(raw_tx, spent, flags, indices, n_inputs, stop_at_failure=False)


def verify_batch(jobs: Sequence[tuple[bytes, Sequence[SpentOutput]]], flags: int, threads: int = 1) -> list[int]:
    """Runs all inputs of many transactions; per job the lowest input index that fails, -1 where all pass.

    A job is a raw transaction with the coins it spends, as for `verify_inputs`, whose errors are raised here for the
    whole batch. A job stops at its first failing input. Jobs are handed out one by one to `threads` threads; a job is
    never split.
    """
    _check_flags(flags)
    if threads < 1:
        raise InternalError(f"script verification was asked to run on {threads} threads; give one or more")
    first_failures = [-1] * len(jobs)
    queue = itertools.count()  # advancing it is one step under the GIL: each job goes to one thread

    def work() -> None:
        for job in queue:
            if job >= len(jobs):
                return
            raw_tx, spent = jobs[job]
            passed = _run(raw_tx, spent, flags, None, None, stop_at_failure=True)
            if passed and not passed[-1]:
                first_failures[job] = len(passed) - 1

    threads = min(threads, len(jobs))
    if threads <= 1:
        work()
        return first_failures
    with ThreadPoolExecutor(threads, thread_name_prefix="script") as pool:
        for running in [pool.submit(work) for _ in range(threads)]:
            running.result()
    return first_failures


def _run(
    raw_tx: bytes,
    spent: Sequence[SpentOutput],
    flags: int,
    indices: Sequence[int] | None,
    n_inputs: int | None,
    stop_at_failure: bool,
) -> list[bool]:
    _check_flags(flags)
    coins = tuple(spent)
    transaction = _open_transaction(raw_tx)
    scripts: list[int] = []
    values: list[int] = []
    outputs: list[int] = []
    precomputed: int | None = None
    try:
        count = _count_inputs(transaction)
        wanted = _check_shape(count, len(coins), indices, n_inputs)
        for position, (value, script) in enumerate(coins):
            _check_spent(position, value, script)
            values.append(value)
            handle = _made(_make_script(script, len(script)), "script")
            scripts.append(handle)
            outputs.append(_made(_make_output(handle, value), "output"))
        precomputed = _made(_precompute(transaction, (_Handle * count)(*outputs), count), "precomputed data")
        status = ctypes.c_ubyte(_STATUS_OK)
        status_at = ctypes.byref(status)
        passed: list[bool] = []
        for index in wanted:
            ok = _verify(scripts[index], values[index], transaction, precomputed, index, flags, status_at) == 1
            if not ok and status.value != _STATUS_OK:
                text = _STATUS_TEXT.get(status.value, f"status {status.value}")
                raise InternalError(f"script verification refused flags {flags:#x} at input {index}: {text}")
            passed.append(ok)
            if stop_at_failure and not ok:
                break
        return passed
    finally:
        if precomputed is not None:
            _free_precomputed(precomputed)
        for handle in outputs:
            _free_output(handle)
        for handle in scripts:
            _free_script(handle)
        _free_transaction(transaction)


def _open_transaction(raw_tx: bytes) -> int:
    """A handle the caller has to free. Raises `DecodeError` where the bytes are not exactly one transaction.

    The kernel stops reading where the transaction ends and says nothing of what follows. But whatever follows, the
    transaction then also parses with the last byte left out; without anything behind it, it does not. That second
    parse is three times cheaper than asking for the serialisation back.
    """
    if not isinstance(raw_tx, bytes):
        raise InternalError(f"a raw transaction must be bytes, not {type(raw_tx).__name__}")
    size = len(raw_tx)
    transaction: int | None = _make_transaction(raw_tx, size)
    if transaction is None:
        raise DecodeError(f"{size} bytes given for script verification are not a transaction")
    shorter: int | None = _make_transaction(raw_tx, size - 1)
    if shorter is not None:
        _free_transaction(shorter)
        _free_transaction(transaction)
        raise DecodeError(f"{size} bytes given for script verification go on behind the transaction")
    return transaction


def _check_flags(flags: int) -> None:
    if not isinstance(flags, int) or flags & ~ALL_FLAGS:
        raise InternalError(f"script flags {flags!r} hold a bit that the kernel does not know; it knows {ALL_FLAGS:#x}")


def _check_shape(count: int, coins: int, indices: Sequence[int] | None, n_inputs: int | None) -> Iterable[int]:
    if n_inputs is not None and n_inputs != count:
        raise InternalError(f"the caller read {n_inputs} inputs where the kernel reads {count}")
    if coins != count:
        raise InternalError(f"{coins} spent outputs were given for a transaction of {count} inputs; give one for each")
    if indices is None:
        return range(count)
    wanted = tuple(indices)
    for index in wanted:
        if not isinstance(index, int) or not 0 <= index < count:
            raise InternalError(f"input index {index!r} is out of range: the transaction has {count} inputs")
    return wanted


def _check_spent(position: int, value: int, script: bytes) -> None:
    if not isinstance(value, int) or not _INT64_MIN <= value <= _INT64_MAX:
        raise InternalError(f"the value {value!r} of spent output {position} is not a 64-bit number of satoshis")
    if not isinstance(script, bytes):
        raise InternalError(f"the script of spent output {position} must be bytes, not {type(script).__name__}")


def _made(handle: int | None, what: str) -> int:
    if handle is None:
        raise InternalError(f"the kernel could not make its {what} object; is memory short?")
    return handle
