"""What was observed of many outpoints, as columns: a coin, or its absence, each observation at one tip version.

Values come from the database obfuscated and compressed; they are decoded here for a whole batch at once, since a full
block spends 11,800 coins. Scripts stay in their compressed form (20 bytes instead of 25 for P2PKH) and are expanded
only for script verification. Nothing here reads a database, and an error never becomes an absence.
"""

from collections.abc import Sequence

import numpy as np

from models.coins.codec import KEY_SIZE, decompress_script
from models.coins.coin import Coin
from models.errors import StoreCorrupt
from models.script.classes import (
    MAX_SCRIPT_SIZE,
    OTHER,
    P2SH,
    WITNESS_OTHER,
    WITNESS_V0_KEYHASH,
    WITNESS_V0_SCRIPTHASH,
    script_class,
)

__all__ = [
    "ABSENT",
    "COIN",
    "COIN_ROW",
    "IN_BLOCK",
    "SPECIAL_SCRIPTS",
    "UNKNOWN",
    "CoinBatch",
    "CoinColumns",
    "decode_batch",
    "spent_outputs",
    "take_slices",
]

UNKNOWN = 0  # not observed
ABSENT = 1  # observed: no such coin at that tip version
COIN = 2  # observed in the database
IN_BLOCK = 3  # created by an earlier transaction of the block itself

#: One observation. `script_type` is the database's size-or-type number, `script_at` an offset into the arena.
COIN_ROW = np.dtype(
    [
        ("value", "<i8"),  # satoshis; as stored, also if out of range
        ("height", "<u4"),
        ("script_type", "<u4"),
        ("script_at", "<u4"),
        ("state", "u1"),
        ("coinbase", "u1"),
        ("script_class", "u1"),
        ("pad", "u1"),
    ]
)

SPECIAL_SCRIPTS = 6  # database script types 0..5 are templates; a plain script of n bytes is type n + 6
_PAYLOAD_OF_TYPE = np.array([20, 20, 32, 32, 32, 32], np.int64)
_OP_RETURN_TYPE = SPECIAL_SCRIPTS + 1  # what stands for a script that is too long to ever be spent
_MAX_BEFORE_DIGIT = np.uint64((1 << 57) - 1)  # a larger number has no room for seven more bits
_POWERS_OF_TEN = np.array([10**e for e in range(10)], np.uint64)


def _payload_sizes(script_type: np.ndarray) -> np.ndarray:
    special = script_type < SPECIAL_SCRIPTS
    return np.where(special, _PAYLOAD_OF_TYPE[np.minimum(script_type, 5)], script_type.astype(np.int64) - 6)


def spent_outputs(rows: np.ndarray, arena: np.ndarray) -> list[tuple[int, bytes]]:
    """Satoshis and scriptPubKey of each observation; nothing useful where it is of no coin."""
    scripts = arena.tobytes()
    columns = (rows[name].tolist() for name in ("value", "script_type", "script_at"))
    sizes = _PAYLOAD_OF_TYPE.tolist()
    outputs = []
    for value, kind, at in zip(*columns, strict=True):
        if kind >= SPECIAL_SCRIPTS:
            outputs.append((value, scripts[at : at + kind - SPECIAL_SCRIPTS]))
        else:
            payload = scripts[at : at + sizes[kind]]
            whole = len(payload) == sizes[kind]
            outputs.append((value, decompress_script(bytes((kind,)) + payload)[0] if whole else b""))
    return outputs


class CoinBatch:
    """Observations of a list of outpoints, in its order: `rows` and the `arena` with their compressed scripts.

    States are ABSENT or COIN. This is what a fetch worker answers; it crosses processes as two flat arrays.
    """

    __slots__ = ("arena", "rows")

    def __init__(self, rows: np.ndarray, arena: np.ndarray):
        self.rows = rows
        self.arena = arena

    def __len__(self) -> int:
        return len(self.rows)

    @classmethod
    def of_coins(cls, coins: Sequence[Coin | None]) -> "CoinBatch":
        """A batch from coins already at hand, for overlays and tests."""
        rows = np.zeros(len(coins), COIN_ROW)
        parts = []
        at = 0
        for row, coin in zip(rows, coins, strict=True):
            if coin is None:
                row["state"] = ABSENT
                continue
            script = coin.script if len(coin.script) <= MAX_SCRIPT_SIZE else b"\x6a"
            row["value"], row["height"], row["coinbase"], row["state"] = coin.value, coin.height, coin.coinbase, COIN
            row["script_type"] = len(script) + SPECIAL_SCRIPTS
            row["script_class"] = script_class(script)
            row["script_at"] = at
            parts.append(script)
            at += len(script)
        return cls(rows, np.frombuffer(b"".join(parts), np.uint8))

    @classmethod
    def joined(cls, batches: Sequence["CoinBatch"]) -> "CoinBatch":
        """Several batches, one after the other."""
        rows = np.concatenate([batch.rows for batch in batches])
        at = used = 0
        for batch in batches:
            rows["script_at"][at : at + len(batch)] += used
            at += len(batch)
            used += len(batch.arena)
        return cls(rows, np.concatenate([batch.arena for batch in batches]))

    def coin(self, i: int) -> Coin | None:
        """Observation i with its script expanded."""
        row = self.rows[i]
        if row["state"] == ABSENT:
            return None
        script = _expand(row, self.arena)
        return Coin(int(row["value"]), int(row["height"]), bool(row["coinbase"]), script)


def _expand(row: np.void, arena: np.ndarray) -> bytes:
    kind = int(row["script_type"])
    at = int(row["script_at"])
    size = kind - SPECIAL_SCRIPTS if kind >= SPECIAL_SCRIPTS else int(_PAYLOAD_OF_TYPE[kind])
    payload = arena[at : at + size].tobytes()
    return payload if kind >= SPECIAL_SCRIPTS else decompress_script(bytes((kind,)) + payload)[0]


def _read_varints(data: np.ndarray, pos: np.ndarray, longest: int) -> np.ndarray:
    """Database VARINTs (SPEC 3) at many positions at once; advances `pos`. Raises StoreCorrupt if one is too long.

    `longest`: digits of the largest number allowed. One above 64 bits is refused, as by Core's `ReadVarInt`.
    """
    value = np.zeros(len(pos), np.uint64)
    open_ = np.arange(len(pos))
    for _ in range(longest):
        byte = data[pos[open_]]
        if (value[open_] > _MAX_BEFORE_DIGIT).any():
            break
        value[open_] = (value[open_] << np.uint64(7)) | (byte & 0x7F)
        pos[open_] += 1
        open_ = open_[byte >= 0x80]
        if not len(open_):
            return value
        value[open_] += np.uint64(1)
    raise StoreCorrupt("a coin record of the chainstate database holds a number that is too large")


def _decompress_amounts(x: np.ndarray) -> np.ndarray:
    """Core: compressor.cpp `DecompressAmount`, for many at once."""
    zero = x == 0
    x = np.where(zero, np.uint64(1), x) - np.uint64(1)
    e = x % np.uint64(10)
    x = x // np.uint64(10)
    d = x % np.uint64(9) + np.uint64(1)
    n = np.where(e < 9, x // np.uint64(9) * np.uint64(10) + d, x + np.uint64(1))
    n = n * _POWERS_OF_TEN[e.astype(np.int64)]
    return np.where(zero, np.uint64(0), n)


def decode_batch(values: Sequence[bytes | None], xor_key: bytes) -> CoinBatch:
    """Decodes raw values of `C` records (None: no such key) of a database with this 8-byte obfuscation key.

    Raises StoreCorrupt for a record that is no coin.
    """
    rows = np.zeros(len(values), COIN_ROW)
    rows["state"] = ABSENT
    present = [v for v in values if v is not None]
    if not present:
        return CoinBatch(rows, np.zeros(0, np.uint8))
    all_there = len(present) == len(values)
    found = slice(None) if all_there else np.array([i for i, v in enumerate(values) if v is not None], np.int64)
    sizes = np.fromiter(map(len, present), np.int64, len(present))
    starts = np.zeros(len(present) + 1, np.int64)
    np.cumsum(sizes, out=starts[1:])
    ends = starts[1:]
    data = np.frombuffer(b"".join(present) + bytes(16), np.uint8).copy()  # the tail lets a cut record be seen
    whole = data[: starts[-1]]
    phases = np.repeat((starts[:-1] & 7).astype(np.uint8), sizes)  # every record is obfuscated from its own beginning
    inside = np.frombuffer(bytes(range(KEY_SIZE)) * (len(whole) // KEY_SIZE + 1), np.uint8)[: len(whole)] - phases
    whole ^= np.frombuffer(xor_key, np.uint8)[inside & (KEY_SIZE - 1)]

    pos = starts[:-1].copy()
    code = _read_varints(data, pos, 5)
    value = _decompress_amounts(_read_varints(data, pos, 10))
    script_type = _read_varints(data, pos, 5)
    payload = ends - pos
    expected = _payload_sizes(script_type)
    if (payload != expected).any() or (code > 0xFFFFFFFF).any():
        raise StoreCorrupt("a coin record of the chainstate database has the wrong length")

    oversized = (script_type >= SPECIAL_SCRIPTS) & (payload > MAX_SCRIPT_SIZE)
    script_class_ = _classify(data, pos, payload, script_type)
    edges = np.zeros(len(whole) + 1, np.int8)
    edges[pos] += 1
    edges[ends] -= 1  # after the former: a script may be empty
    arena = whole[np.cumsum(edges[:-1], dtype=np.int8).view(bool)]
    script_at = np.zeros(len(present), np.int64)
    np.cumsum(payload[:-1], out=script_at[1:])
    if oversized.any():
        arena, script_at, script_type = _cut_oversized(arena, script_at, payload, script_type, oversized)
        script_class_[oversized] = OTHER

    block = np.zeros(len(present), COIN_ROW)
    block["value"] = value.view(np.int64)
    block["height"] = code >> np.uint64(1)
    block["coinbase"] = code & np.uint64(1)
    block["script_type"] = script_type
    block["script_at"] = script_at
    block["script_class"] = script_class_
    block["state"] = COIN
    rows[found] = block
    return CoinBatch(rows, arena)


def _classify(data: np.ndarray, pos: np.ndarray, size: np.ndarray, script_type: np.ndarray) -> np.ndarray:
    """models.script.classes.script_class on compressed scripts: a plain one that is a witness program or P2SH."""
    plain = script_type >= SPECIAL_SCRIPTS
    last = len(data) - 1
    first, second = data[np.minimum(pos, last)], data[np.minimum(pos + 1, last)]
    program = plain & (size >= 4) & (size <= 42) & (second.astype(np.int64) + 2 == size)
    program &= (first == 0) | ((first >= 0x51) & (first <= 0x60))
    kinds = np.full(len(pos), OTHER, np.uint8)
    kinds[program] = WITNESS_OTHER
    kinds[program & (first == 0) & (size == 22)] = WITNESS_V0_KEYHASH
    kinds[program & (first == 0) & (size == 34)] = WITNESS_V0_SCRIPTHASH
    kinds[script_type == 1] = P2SH
    wrapped = plain & (size == 23) & (first == 0xA9) & (second == 0x14)
    if wrapped.any():  # Core always stores P2SH as type 1; a plain one means the same
        kinds[wrapped & (data[np.minimum(pos + 22, last)] == 0x87)] = P2SH
    return kinds


def _cut_oversized(
    arena: np.ndarray, script_at: np.ndarray, size: np.ndarray, script_type: np.ndarray, oversized: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scripts over 10,000 bytes read as a single OP_RETURN (Core: compressor.h `ScriptCompression`)."""
    parts = [
        b"\x6a" if cut else arena[at : at + n].tobytes()
        for at, n, cut in zip(script_at.tolist(), size.tolist(), oversized.tolist(), strict=True)
    ]
    at = np.zeros(len(parts), np.int64)
    np.cumsum([len(p) for p in parts[:-1]], out=at[1:])
    return np.frombuffer(b"".join(parts), np.uint8), at, np.where(oversized, _OP_RETURN_TYPE, script_type)


def take_slices(data: np.ndarray, starts: np.ndarray, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Pieces of a byte array joined, and where each begins in the result; no copy if they are the array in order."""
    at = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=at[1:])
    total = int(at[-1])
    if total == len(data) and ((starts == at[:-1]) | (sizes == 0)).all():
        return data, at[:-1]
    return data[np.repeat(starts.astype(np.int64) - at[:-1], sizes) + np.arange(total)], at[:-1]


def _gather(rows: np.ndarray, arena: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Observations with an arena that holds their scripts and nothing else; `rows` must be the caller's own."""
    sizes = np.where(rows["state"] == ABSENT, 0, _payload_sizes(rows["script_type"]))
    arena, rows["script_at"] = take_slices(arena, rows["script_at"], sizes)
    return rows, arena


class CoinColumns:
    """Observations of a fixed list of outpoints by index, filled in any order, in memory of its own.

    Batches are copied in, so that no message of another process stays alive for them. `nbytes` is exact: rows that were
    observed, and arena in use.
    """

    __slots__ = ("_arena", "_used", "observed", "rows")

    def __init__(self, count: int):
        self.rows = np.zeros(count, COIN_ROW)
        self.observed = 0
        self._arena = np.zeros(0, np.uint8)
        self._used = 0

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def nbytes(self) -> int:
        """Packed bytes of what was observed."""
        return self.observed * COIN_ROW.itemsize + self._used

    @staticmethod
    def cost_of(batch: CoinBatch) -> int:
        """Bytes that `put` will add for a batch of outpoints not yet observed."""
        return len(batch) * COIN_ROW.itemsize + len(batch.arena)

    def put(self, indices: np.ndarray, batch: CoinBatch) -> None:
        """Copies a batch in: observation k is of outpoint `indices[k]`. What is known already stays as it is."""
        fresh = self.rows["state"][indices] == UNKNOWN
        indices = indices[fresh]
        rows, arena = _gather(batch.rows[fresh], batch.arena)
        rows["script_at"] += self._append(arena)
        self.rows[indices] = rows
        self.observed += len(indices)

    def replace(self, indices: np.ndarray, batch: CoinBatch) -> None:
        """Sets what the block itself says of outpoints (IN_BLOCK, or ABSENT where spent), whatever was observed before.

        Scripts that were observed before stay in the arena, unused.
        """
        self.observed += int(np.count_nonzero(self.rows["state"][indices] == UNKNOWN))
        rows = batch.rows.copy()
        rows["script_at"] += self._append(batch.arena)
        self.rows[indices] = rows

    def put_in_block(self, index: int, value: int, script: bytes, height: int, coinbase: bool) -> None:
        """Sets the coin that an earlier transaction of the block creates, whatever was observed before."""
        row = self.rows[index]
        if row["state"] == UNKNOWN:
            self.observed += 1
        row["value"], row["height"], row["coinbase"] = value, height, coinbase
        row["state"] = IN_BLOCK
        row["script_type"] = len(script) + SPECIAL_SCRIPTS
        row["script_class"] = script_class(script)
        row["script_at"] = self._append(np.frombuffer(script, np.uint8))

    def put_absent(self, index: int) -> None:
        """Sets an outpoint that cannot be a coin (spent earlier in the block, never created)."""
        row = self.rows[index]
        if row["state"] == UNKNOWN:
            self.observed += 1
        self.rows[index] = np.zeros((), COIN_ROW)
        self.rows[index]["state"] = ABSENT

    def _append(self, data: np.ndarray) -> int:
        at = self._used
        end = at + len(data)
        if end > len(self._arena):
            grown = np.empty(max(end, len(self._arena) * 3 // 2), np.uint8)
            grown[:at] = self._arena[:at]
            self._arena = grown
        self._arena[at:end] = data
        self._used = end
        return at

    def unknown(self) -> np.ndarray:
        """Indices not observed yet."""
        return np.flatnonzero(self.rows["state"] == UNKNOWN)

    def take(self, indices: np.ndarray) -> CoinBatch:
        """A batch of some observations, ready to be sent."""
        rows = self.rows[indices]
        if len(indices) == len(self.rows):
            return CoinBatch(rows, self._arena[: self._used].copy())
        return CoinBatch(*_gather(rows, self._arena))

    def script(self, index: int) -> bytes:
        """scriptPubKey of a coin, expanded."""
        return _expand(self.rows[index], self._arena)

    def spent_output(self, index: int) -> tuple[int, bytes]:
        """Value in satoshis and scriptPubKey of a coin."""
        return int(self.rows["value"][index]), self.script(index)

    def spent_outputs(self) -> list[tuple[int, bytes]]:
        """`spent_output` of every index, several times faster; nothing useful where no coin was observed."""
        return spent_outputs(self.rows, self._arena[: self._used])

    def coin(self, index: int) -> Coin | None:
        """The observation at `index`; None for an absence."""
        row = self.rows[index]
        if row["state"] == ABSENT:
            return None
        return Coin(int(row["value"]), int(row["height"]), bool(row["coinbase"]), self.script(index))
