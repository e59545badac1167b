"""A view of the coins at the current tip for a process that does not own the database: one read-only handle, with the
changes of later blocks laid over it until the handle is opened anew.

Every read names the tip that it wants; a view that is not there yet tries to get there, and says StaleView if it
cannot. A read never mixes two tips: it works on one immutable state from beginning to end.
"""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType

import numpy as np

from models.coins.codec import OUTPOINT_SIZE, TXID_SIZE, coin_key, coin_keys, encode_coin, obfuscate
from models.coins.coin import Coin
from models.coins.columns import CoinBatch, decode_batch
from models.consensus.context import Tip, TipVersion
from models.errors import CoinsReadError, StaleView, StoreCorrupt
from models.storage.reader import BLOCK_CACHE, RUN_PATIENCE, CoinsReader

__all__ = ["FollowingView"]

MAX_OVERLAY = 100_000  # entries of some 260 bytes, in every process that reads; a block changes about 15,000 coins
SMALLEST_SHARE = 4  # keys for one thread: fewer are not worth handing over
FEW_KEYS = 64  # up to here somebody waits for a handful of coins, and each may be a disk's seek away
LONG_RUN = 128  # keys
WARM_SHARE = 64  # keys for one thread of a large request, which keeps many reads under way anyway

_NOTHING: Mapping[bytes, bytes | None] = MappingProxyType({})


def _take_runs(blob: bytes, order: list[int]) -> tuple[list[list[int]], list[int]]:
    """Runs of outputs of one transaction that are read fastest in one pass each, and what is left of `order`."""
    table = np.frombuffer(blob, np.uint8).reshape(-1, OUTPOINT_SIZE)[np.array(order)]
    heads = np.ascontiguousarray(table[:, :8]).view("<u8")[:, 0]  # equal for other transactions hardly ever
    cuts = np.flatnonzero(heads[1:] != heads[:-1]) + 1
    starts, ends = np.concatenate(([0], cuts)), np.concatenate((cuts, [len(order)]))
    if (ends - starts).max() < LONG_RUN:
        return [], order
    vouts = np.ascontiguousarray(table[:, TXID_SIZE:]).view("<u4")[:, 0].astype(np.int64)
    long = (ends - starts >= LONG_RUN) & (vouts[ends - 1] - vouts[starts] < RUN_PATIENCE * (ends - starts))
    runs = [order[start:end] for start, end in zip(starts[long].tolist(), ends[long].tolist(), strict=True)]
    others = np.repeat(~long, ends - starts)
    return runs, [i for i, other in zip(order, others.tolist(), strict=True) if other]


class _State:
    """A handle at the tip it was opened at, and what changed since: database key -> raw value, or None for spent."""

    __slots__ = ("changes", "reader", "version")

    def __init__(self, version: TipVersion, reader: CoinsReader, changes: Mapping[bytes, bytes | None]):
        self.version = version
        self.reader = reader
        self.changes = changes


class FollowingView:
    """Reads batches of coins at named tips, from many threads. No need to close it: a handle goes with its last use."""

    def __init__(
        self,
        chainstate: Path,
        threads: int,
        block_cache: int = BLOCK_CACHE,
        open_reader: Callable[[Path, bytes], CoinsReader] | None = None,
    ):
        """`block_cache` in bytes; `open_reader` is for tests."""
        self._path = chainstate
        self._open = open_reader or (
            lambda path, best: CoinsReader.open(path, expect_best=best, block_cache=block_cache)
        )
        self._threads = max(threads, 1)
        self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="coins") if threads > 1 else None
        self._state: _State | None = None
        self._moving = threading.Lock()
        self.opens = 0
        self.reads = 0
        self.keys = 0

    @property
    def version(self) -> TipVersion | None:
        """The tip version served without further ado."""
        state = self._state
        return state.version if state else None

    def read(self, outpoints: bytes | Sequence[bytes], tip: Tip) -> CoinBatch:
        """Observations of outpoints (36 bytes each, joined or one by one) at `tip`, in their order.

        Raises StaleView if the database is not at that tip, CoinsReadError if a read failed.
        """
        state = self._at(tip)
        blob = outpoints if isinstance(outpoints, bytes) else b"".join(outpoints)
        keys, order = coin_keys(blob)
        self.reads += 1
        self.keys += len(keys)
        try:
            return decode_batch(self._lookup(state, blob, keys, order), state.reader.xor_key)
        except StoreCorrupt as error:
            raise CoinsReadError(f"{self._path}: {error}") from None

    def _lookup(self, state: _State, blob: bytes, keys: list[bytes], order: list[int]) -> list[bytes | None]:
        changes = state.changes
        values: list[bytes | None] = [None] * len(keys)
        below = order
        if changes:
            below = []
            for i in order:
                if keys[i] in changes:
                    values[i] = changes[keys[i]]
                else:
                    below.append(i)
        for part, got in self._get(state.reader, blob, keys, below):
            for i, value in zip(part, got, strict=True):
                values[i] = value
        return values

    def _get(
        self, reader: CoinsReader, blob: bytes, keys: list[bytes], order: list[int]
    ) -> Iterable[tuple[list[int], list[bytes | None]]]:
        """In key order, so that neighbours in the database are read together; spread over the threads, but for outputs
        of one transaction that lie side by side."""
        if self._pool is None or len(order) <= SMALLEST_SHARE:
            return [(order, reader.get_run([keys[i] for i in order]))]
        shares, rest = ([], order) if len(order) <= FEW_KEYS else _take_runs(blob, order)
        smallest = SMALLEST_SHARE if len(order) <= FEW_KEYS else WARM_SHARE
        share = max(smallest, -(-len(rest) // self._threads))
        shares += [rest[at : at + share] for at in range(0, len(rest), share)]
        if len(shares) == 1:
            return [(shares[0], reader.get_run([keys[i] for i in shares[0]]))]
        got = self._pool.map(lambda part: reader.get_run([keys[i] for i in part]), shares)
        return zip(shares, got, strict=True)

    def _at(self, tip: Tip) -> _State:
        state = self._state
        if state is not None and state.version == tip.version:
            return state
        with self._moving:
            state = self._state
            if state is not None and state.version == tip.version:
                return state
            if state is not None and state.version > tip.version:
                raise StaleView(f"coins at version {tuple(tip.version)} were asked for, {tuple(state.version)} is here")
            return self._reopen(tip)

    def _reopen(self, tip: Tip) -> _State:
        self.opens += 1
        self._state = _State(tip.version, self._open(self._path, tip.hash), _NOTHING)
        return self._state

    def follow(
        self, before: TipVersion, tip: Tip, spent: Sequence[bytes], created: Sequence[tuple[bytes, Coin]]
    ) -> bool:
        """Lays one block's changes over the view if it stands at `before`; False if it does not (it will reopen).

        Once the changes have grown large, the handle is opened anew instead.
        """
        with self._moving:
            state = self._state
            if state is None or state.version != before:
                return False
            if len(state.changes) + len(spent) + len(created) > MAX_OVERLAY:
                try:
                    self._reopen(tip)
                    return True
                except (StaleView, CoinsReadError):
                    self._state = None  # the next read opens it
                    return False
            key = state.reader.xor_key
            changes = dict(state.changes)
            changes.update((coin_key(outpoint), None) for outpoint in spent)
            changes.update((coin_key(outpoint), obfuscate(encode_coin(coin), key)) for outpoint, coin in created)
            self._state = _State(tip.version, state.reader, changes)
            return True

    def forget(self) -> None:
        """Lets go of the handle; the next read opens it anew."""
        with self._moving:
            self._state = None
