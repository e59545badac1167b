"""Dumps of failed declarations (`models.dump`) as files.

    "TXCDUMP1" | SHA-256 of the rest, 32 bytes | msgpack map (`encode_dump`)

Hashes are in internal order, amounts in satoshis, times Unix seconds. Files may come from strangers: whatever the bytes
are, reading them gives a `Dump` or a DecodeError.
"""

import hashlib
import os
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import msgpack
import numpy as np

from models.coins.coin import Coin
from models.consensus.context import MEDIAN_TIME_SPAN, BlockContext, Tip, TipVersion
from models.consensus.draft import PROBE_ABSENT, PROBE_PRESENT, PROBE_UNKNOWN
from models.consensus.params import MAX_BLOCK_WEIGHT, NETWORKS
from models.consensus.verdict import Kind, Offender, Verdict
from models.dump import Dump
from models.errors import DecodeError, StoreError
from models.script.verify import ALL_FLAGS
from models.wire.hashes import split_hashes, to_display
from models.wire.transaction import Transaction, decode_transaction

__all__ = ["DumpDirectory", "decode_dump", "encode_dump", "read_dump"]

MAGIC = b"TXCDUMP"
VERSION = b"1"
PREFIX_SIZE = 8 + 32
MAX_SIZE = 64 << 20  # bytes of a file that is written or read
MAX_HEIGHT = 10_000_000  # blocks; more than a century of them
MAX_TRANSACTIONS = 16_666  # SPEC 1.2
SUFFIX = ".txcdump"

U32, I32, I64, U64 = (0, 2**32 - 1), (-(2**31), 2**31 - 1), (-(2**63), 2**63 - 1), (0, 2**64 - 1)


class DumpDirectory:
    """Writes dumps into a directory and keeps the last of them."""

    def __init__(self, directory: Path, keep: int):
        """Makes the directory, for its owner only. Raises StoreError if it cannot be used."""
        self._directory = directory.expanduser()
        self._keep = keep
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"no dumps can be written to {self._directory}: {error.strerror}") from None

    def write(self, dump: Dump) -> Path:
        """One file, complete under its name; the oldest beyond the bound go. Raises StoreError, OSError."""
        data = encode_dump(dump)
        if len(data) > MAX_SIZE:
            raise StoreError(f"a dump of {len(data)} bytes is larger than the {MAX_SIZE} that are read again")
        reason = re.sub(r"[^A-Za-z0-9-]+", "-", dump.verdict.reason or dump.verdict.kind.value).strip("-")
        mark = hashlib.sha256(b"".join(dump.wtxids) + dump.coinbase).hexdigest()[:8]
        path = self._directory / f"{time.time_ns():020d}-{reason[:60]}-{mark}{SUFFIX}"
        new = path.with_suffix(".tmp")
        handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            new.replace(path)
        except BaseException:
            new.unlink(missing_ok=True)
            raise
        for old in sorted(self._directory.glob(f"*{SUFFIX}"))[: -self._keep]:
            old.unlink(missing_ok=True)
        return path


_CONTEXT_SIMPLE = {  # field of BlockContext -> its range
    "height": (1, MAX_HEIGHT),
    "median_time_past": U32,
    "prev_time": U32,
    "bits": U32,
    "pow_limit_bits": U32,
    "min_version": I32,
    "subsidy": (0, 2**62),
    "script_flags": (0, ALL_FLAGS),
    "template_version": I32,
    "interval": (1, 2**31 - 1),
}
_CONTEXT_OPTIONAL = {"min_difficulty_after": (0, 2**33), "timewarp_minimum": (-(2**33), 2**33)}
_CONTEXT_SWITCHES = ("bip34", "csv", "segwit", "bip30")
_CONTEXT_OTHER = ("tip", "network", "script_flag_exceptions", "bip30_exception", "signet_challenge", "times")
assert {*_CONTEXT_SIMPLE, *_CONTEXT_OPTIONAL, *_CONTEXT_SWITCHES, *_CONTEXT_OTHER} == {
    f.name for f in fields(BlockContext)
}

_FIELDS = tuple(f.name for f in fields(Dump))


def encode_dump(dump: Dump) -> bytes:
    """The bytes of a file."""
    verdict, offender = dump.verdict, dump.verdict.offender
    payload = msgpack.packb(
        {
            "created": dump.created,
            "wtxids": b"".join(dump.wtxids),
            "transactions": dump.transactions,
            "coinbase": dump.coinbase,
            "prevhash": dump.prevhash,
            "context": _encode_context(dump.context, dump.coins),
            "coins": [
                [outpoint] if coin is None else [outpoint, coin.value, coin.height, bool(coin.coinbase), coin.script]
                for outpoint, coin in dump.coins.items()
            ],
            "probes": dump.probes,
            "coinbase_exists": dump.coinbase_exists,
            "mode": dump.mode,
            "now": dump.now,
            "verdict": {
                "kind": verdict.kind.value,
                "reason": verdict.reason,
                "debug": verdict.debug,
                "category": verdict.category,
                "offender": [offender.position, offender.txid, offender.wtxid, offender.input] if offender else None,
            },
        }
    )
    return MAGIC + VERSION + hashlib.sha256(payload).digest() + payload


def _encode_context(context: BlockContext, coins: dict[bytes, Coin | None]) -> dict[str, Any]:
    """Of the times of all blocks only those that a lock by time (BIP68) of one of the coins looks at."""
    tips = np.array([context.tip.height + 1] + [coin.height for coin in coins.values() if coin is not None], np.int64)
    window = np.unique(np.maximum(np.unique(tips)[:, None] - 1 - np.arange(MEDIAN_TIME_SPAN), 0))
    window = window[window < len(context.times)]
    tip = context.tip
    packed: dict[str, Any] = {name: getattr(context, name) for name in (*_CONTEXT_SIMPLE, *_CONTEXT_OPTIONAL)}
    packed |= {name: bool(getattr(context, name)) for name in _CONTEXT_SWITCHES}
    return packed | {
        "tip": [tip.hash, tip.height, tip.version.epoch, tip.version.n],
        "network": context.network,
        "script_flag_exceptions": [[block_hash, flags] for block_hash, flags in context.script_flag_exceptions.items()],
        "bip30_exception": context.bip30_exception,
        "signet_challenge": context.signet_challenge,
        "times": [window.astype("<u4").tobytes(), context.times[window].astype("<u4").tobytes()],
    }


def read_dump(path: Path) -> Dump:
    """The dump of a file. Raises DecodeError naming the file and what is wrong in it."""
    try:
        size = path.stat().st_size
        if size > MAX_SIZE:
            raise DecodeError(f"{path} is no dump: it has {size} bytes")
        data = path.read_bytes()
    except OSError as error:
        raise DecodeError(f"cannot read {path}: {error.strerror}") from None
    try:
        return decode_dump(data)
    except DecodeError as error:
        raise DecodeError(f"{path}: {error}") from None


def decode_dump(data: bytes) -> Dump:
    """The dump of a file's bytes. Raises DecodeError for anything else than what `encode_dump` writes."""
    if not data.startswith(MAGIC):
        raise DecodeError("this is no dump of a declaration")
    if data[7:8] != VERSION:
        raise DecodeError(f"a dump of version {data[7:8].decode('latin-1')!r}; version {VERSION.decode()} is known")
    payload = data[PREFIX_SIZE:]
    if data[8:PREFIX_SIZE] != hashlib.sha256(payload).digest():
        raise DecodeError("the dump is damaged: its checksum is wrong")
    try:
        unpacked = msgpack.unpackb(payload, object_pairs_hook=_without_duplicates, ext_hook=_no_extension)
    except DecodeError:
        raise
    except (ValueError, TypeError, OverflowError, RecursionError, msgpack.UnpackException) as error:
        raise DecodeError(f"the dump is no msgpack: {type(error).__name__} {error}") from None
    return _dump_of(_map(unpacked, "dump", _FIELDS))


def _without_duplicates(pairs: Sequence[tuple[Any, Any]]) -> dict[Any, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise DecodeError("the dump has a key twice")
    return found


def _no_extension(code: int, _: bytes) -> Any:
    raise DecodeError(f"the dump has a msgpack extension of type {code}")


def _map(value: Any, name: str, keys: Sequence[str]) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise DecodeError(f"{name} is not a map")
    if set(value) != set(keys):
        odd = sorted(str(key) for key in set(value) ^ set(keys))
        raise DecodeError(f"{name} lacks, or should not have, {', '.join(odd)[:200]}")
    return value


def _list(value: Any, name: str, most: int) -> list[Any]:
    if not isinstance(value, list) or len(value) > most:
        raise DecodeError(f"{name} is not a list of at most {most}")
    return value


def _integer(value: Any, name: str, bounds: tuple[int, int]) -> int:
    if type(value) is not int or not bounds[0] <= value <= bounds[1]:
        raise DecodeError(f"{name} is {str(value)[:40]!r}, not a whole number from {bounds[0]} to {bounds[1]}")
    return value


def _blob(value: Any, name: str, size: int | None = None) -> bytes:
    if not isinstance(value, bytes) or (size is not None and len(value) != size):
        raise DecodeError(f"{name} is not {'bytes' if size is None else f'{size} bytes'}")
    return value


def _switch(value: Any, name: str) -> bool:
    if not isinstance(value, bool):
        raise DecodeError(f"{name} is neither true nor false")
    return value


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str) or len(value) > 10_000:
        raise DecodeError(f"{name} is not a text")
    return value


def _or_none(value: Any, name: str, read: Callable[..., Any], *args: Any) -> Any:
    return None if value is None else read(value, name, *args)


def _dump_of(raw: dict[str, Any]) -> Dump:
    context = _context_of(_map(raw["context"], "context", [f.name for f in fields(BlockContext)]))
    wtxids, transactions = _transactions_of(raw)
    probes = _blob(raw["probes"], "probes", len(wtxids))
    if probes.strip(bytes((PROBE_UNKNOWN, PROBE_ABSENT, PROBE_PRESENT))):
        raise DecodeError("probes hold another state than unknown, absent and present")
    mode = _text(raw["mode"], "mode")
    if mode not in ("deferred", "inline"):
        raise DecodeError(f"mode is {mode[:40]!r}, neither deferred nor inline")
    prevhash = _blob(raw["prevhash"], "prevhash", 32)
    if prevhash != context.tip.hash:
        raise DecodeError("prevhash is not the tip of the context")
    return Dump(
        _integer(raw["created"], "created", U64),
        wtxids,
        transactions,
        _coinbase_of(raw["coinbase"]),
        prevhash,
        context,
        _coins_of(raw["coins"], context.tip.height),
        probes,
        _switch(raw["coinbase_exists"], "coinbase_exists"),
        mode,
        _integer(raw["now"], "now", U32),
        _verdict_of(raw["verdict"]),
    )


def _parsed(raw: Any, name: str) -> Transaction:
    try:
        return decode_transaction(_blob(raw, name))
    except DecodeError as error:
        raise DecodeError(f"{name}: {error}") from None


def _coinbase_of(raw: Any) -> bytes:
    return _parsed(raw, "coinbase").raw


def _transactions_of(raw: dict[str, Any]) -> tuple[list[bytes], list[bytes]]:
    joined = _blob(raw["wtxids"], "wtxids")
    if len(joined) % 32 or len(joined) > 32 * MAX_TRANSACTIONS:
        raise DecodeError(f"wtxids have {len(joined)} bytes, not 32 for each of at most {MAX_TRANSACTIONS}")
    wtxids = split_hashes(joined)
    transactions = _list(raw["transactions"], "transactions", MAX_TRANSACTIONS)
    if len(transactions) != len(wtxids):
        raise DecodeError(f"{len(transactions)} transactions for {len(wtxids)} wtxids")
    if len(set(wtxids)) != len(wtxids):
        raise DecodeError("a wtxid stands twice")
    for number, (wtxid, transaction) in enumerate(zip(wtxids, transactions, strict=True)):
        if _parsed(transaction, f"transaction {number}").wtxid != wtxid:
            raise DecodeError(f"transaction {number} is another one than its wtxid {to_display(wtxid)} says")
    return wtxids, transactions


def _coins_of(raw: Any, tip_height: int) -> dict[bytes, Coin | None]:
    coins: dict[bytes, Coin | None] = {}
    for number, row in enumerate(_list(raw, "coins", MAX_BLOCK_WEIGHT)):
        name = f"coin {number}"
        row = _list(row, name, 5)
        if len(row) not in (1, 5):
            raise DecodeError(f"{name} has {len(row)} fields, neither one (absent) nor five")
        outpoint = _blob(row[0], f"{name}'s outpoint", 36)
        if outpoint in coins:
            raise DecodeError(f"{name} stands twice")
        coins[outpoint] = None
        if len(row) == 5:
            coins[outpoint] = Coin(
                _integer(row[1], f"{name}'s value", I64),
                _integer(row[2], f"{name}'s height", (0, tip_height)),
                _switch(row[3], f"{name}'s coinbase flag"),
                _blob(row[4], f"{name}'s script"),
            )
    return coins


def _context_of(raw: dict[str, Any]) -> BlockContext:
    tip = _list(raw["tip"], "tip", 4)
    if len(tip) != 4:
        raise DecodeError("tip has not four fields")
    height = _integer(raw["height"], "height", _CONTEXT_SIMPLE["height"])
    network = _text(raw["network"], "network")
    if network not in NETWORKS:
        raise DecodeError(f"network is {network[:40]!r}, none that is known")
    exceptions = {}
    for pair in _list(raw["script_flag_exceptions"], "script_flag_exceptions", 1000):
        pair = _list(pair, "an exception", 2)
        if len(pair) != 2:
            raise DecodeError("an exception has not two fields")
        flags = _integer(pair[1], "an exception's flags", (0, ALL_FLAGS))
        exceptions[_blob(pair[0], "an exception's hash", 32)] = _flags(flags)
    values: dict[str, Any] = {name: _integer(raw[name], name, bounds) for name, bounds in _CONTEXT_SIMPLE.items()}
    for name, bounds in _CONTEXT_OPTIONAL.items():
        values[name] = _or_none(raw[name], name, _integer, bounds)
    values |= {name: _switch(raw[name], name) for name in _CONTEXT_SWITCHES}
    _flags(values["script_flags"])
    return BlockContext(
        tip=Tip(
            _blob(tip[0], "the tip's hash", 32),
            _integer(tip[1], "the tip's height", (height - 1, height - 1)),
            TipVersion(_integer(tip[2], "the tip's epoch", U64), _integer(tip[3], "the tip's n", U64)),
        ),
        network=network,
        script_flag_exceptions=exceptions,
        bip30_exception=_or_none(raw["bip30_exception"], "bip30_exception", _blob, 32),
        signet_challenge=_or_none(raw["signet_challenge"], "signet_challenge", _blob),
        times=_times_of(raw["times"], height),
        **values,
    )


def _flags(flags: int) -> int:
    if flags & ~ALL_FLAGS:
        raise DecodeError(f"script flags {flags:#x} hold a bit that is not known")
    return flags


def _times_of(raw: Any, count: int) -> np.ndarray:
    pair = _list(raw, "times", 2)
    if len(pair) != 2:
        raise DecodeError("times have not two fields")
    at, values = _blob(pair[0], "heights of times"), _blob(pair[1], "times")
    if len(at) % 4 or len(at) != len(values):
        raise DecodeError("times and their heights are not of the same number")
    heights = np.frombuffer(at, "<u4")
    if len(heights) and int(heights.max()) >= count:
        raise DecodeError(f"a time is of height {int(heights.max())}, the tip is at {count - 1}")
    times = np.zeros(count, np.uint32)
    times[heights] = np.frombuffer(values, "<u4")
    return times


def _verdict_of(raw: Any) -> Verdict:
    raw = _map(raw, "verdict", ("kind", "reason", "debug", "category", "offender"))
    offender = None
    if raw["offender"] is not None:
        parts = _list(raw["offender"], "offender", 4)
        if len(parts) != 4:
            raise DecodeError("offender has not four fields")
        offender = Offender(
            _integer(parts[0], "the offender's position", (0, MAX_TRANSACTIONS)),
            _text(parts[1], "the offender's txid"),
            _text(parts[2], "the offender's wtxid"),
            _or_none(parts[3], "the offender's input", _integer, U32),
        )
    kind = _text(raw["kind"], "kind")
    if kind not in (Kind.VALID.value, Kind.INVALID.value):
        raise DecodeError(f"kind is {kind[:40]!r}, neither valid nor invalid")
    return Verdict(
        Kind(kind),
        _or_none(raw["reason"], "reason", _text),
        _text(raw["debug"], "debug"),
        offender,
        _text(raw["category"], "category"),
    )
