"""ChainstateActor: the one process that owns the store. It answers what the tip is and what the next block must be,
peeks into its coins cache, and applies blocks that were judged elsewhere; it tells the others when the tip has moved.
"""

import os
import threading
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import ray

from actors.answers import answers
from models.chain import Chain, Delta
from models.coins.cache import CoinsCache
from models.coins.codec import split_outpoints
from models.coins.coin import Coin
from models.coins.columns import CoinBatch
from models.consensus.context import BlockContext, TipVersion
from models.errors import StaleView
from models.messages import FlatCoin, FlatTip, flat_coin, pack_batch, pack_tip
from models.storage.faults import FAULT_VARIABLE
from models.storage.handout import Handout
from models.storage.store import Store
from models.storage.tipfile import TipWriter
from models.wire.block import BlockHeader, decode_block

__all__ = ["ChainstateActor"]


class ChainstateActor:
    """One per store. Methods that change the chain run one at a time."""

    RAY_OPTIONS: ClassVar[dict[str, Any]] = {
        "num_cpus": 0,
        "max_restarts": 0,
        "concurrency_groups": {"write": 1, "read": 4, "control": 4},
    }

    def __init__(self, store: str, coins_cache_bytes: int):
        self._store = Store.open(Path(store))
        try:
            self._chain = Chain(self._store, self._store.params)
            self._cache = CoinsCache(coins_cache_bytes)
            self._tip_file = TipWriter(Path(store))
            if self._store.headers.has_tip:
                self._tip_file.publish(self._chain.tip)
            else:
                self._tip_file.publish_unknown(self._store.coins.best_block, TipVersion(self._store.epoch, 0))
        except BaseException:
            self._store.close()
            raise
        self._lock = threading.RLock()
        self._handout = Handout(Path(store))
        self._fetchers: list[Any] = []
        self._templates: list[Any] = []
        self._mempool: Any = None
        self._replicas: list[Any] = []
        self._counts = {"contexts": 0, "peeks": 0, "peek_hits": 0, "serial_reads": 0, "connected": 0, "disconnected": 0}
        self._closed = False

    @ray.method(concurrency_group="control")
    def wire(self, directory: dict[str, Any]) -> None:
        """Who is told of tips."""
        self._fetchers = directory.get("fetch", [])
        self._templates = directory.get("template", [])
        self._mempool = directory.get("mempool")
        self._replicas = directory.get("replica", [])

    # Questions --------------------------------------------------------------------------------------------------

    @ray.method(concurrency_group="read")
    @answers
    def tip(self) -> FlatTip:
        """The published tip."""
        with self._lock:
            return pack_tip(self._chain.tip)

    @ray.method(concurrency_group="read")
    @answers
    def best_block(self) -> bytes:
        """The block whose coins are here, also while its header is not known."""
        return self._store.coins.best_block

    @ray.method(concurrency_group="read")
    @answers
    def context(self) -> BlockContext:
        """What the block on top of the tip must be."""
        self._counts["contexts"] += 1
        with self._lock:
            return self._chain.context()

    @ray.method(concurrency_group="read")
    @answers
    def params(self) -> dict[str, Any]:
        """Arguments of `get_params` for this store's network."""
        return self._store.params_overrides

    @ray.method(concurrency_group="read")
    @answers
    def classify(self, prevhash: bytes) -> str:
        """`stale`, `fork` or `ahead` (SPEC 1.1)."""
        with self._lock:
            return self._chain.classify(prevhash).value

    @ray.method(concurrency_group="read")
    @answers
    def proposal_preface(self, block_hash: bytes) -> str | None:
        """Core's answer to a proposal of a block that it has in its index already."""
        with self._lock:
            reason = self._chain.proposal_preface(block_hash)
        return reason.text if reason else None

    @ray.method(concurrency_group="read")
    @answers
    def headers(self, start: int, count: int) -> list[bytes]:
        """Serialised headers of the active chain from a height on."""
        with self._lock:
            index = self._chain.headers
            end = min(start + count, index.tip_height + 1)
            return [index.header(index.active(height)).serialize() for height in range(start, end)]

    @ray.method(concurrency_group="read")
    @answers
    def block_info(self, block_hash: bytes) -> dict[str, Any] | None:
        """Height, status and whether the block is on the active chain; None if it is not in the index."""
        with self._lock:
            index = self._chain.headers
            i = index.find(block_hash)
            if i is None:
                return None
            return {"height": index.height(i), "status": index.status(i), "active": index.is_active(i)}

    @ray.method(concurrency_group="read")
    @answers
    def block(self, block_hash: bytes) -> bytes:
        """Body of a recent block."""
        return self._chain.body(block_hash)

    # Coins ------------------------------------------------------------------------------------------------------

    @ray.method(concurrency_group="read")
    @answers
    def peek(
        self, outpoints: bytes, version: tuple[int, int]
    ) -> tuple[np.ndarray, tuple[np.ndarray, np.ndarray]] | None:
        """What the coins cache holds of joined outpoints: (their indices, a packed CoinBatch); None if it is empty."""
        self._counts["peeks"] += 1
        cache = self._cache
        if not len(cache):
            return None
        with self._lock:
            if self._chain.tip.version != tuple(version):
                raise StaleView("the tip has moved")
            found = [(i, c) for i, c in enumerate(map(cache.peek, split_outpoints(outpoints))) if c is not None]
        self._counts["peek_hits"] += len(found)
        return np.array([i for i, _ in found], np.int64), pack_batch(CoinBatch.of_coins([coin for _, coin in found]))

    @ray.method(concurrency_group="read")
    @answers
    def read_serial(self, outpoints: bytes, tip: FlatTip, fill: bool) -> tuple[np.ndarray, np.ndarray]:
        """Coins one after the other through the cache, as a plain TxCollection reads; `fill` keeps them there."""
        coins: list[Coin | None] = []
        with self._lock:
            if pack_tip(self._chain.tip) != tuple(tip):
                raise StaleView("the tip has moved")
            for outpoint in split_outpoints(outpoints):
                coin = self._cache.peek(outpoint)
                if coin is None:
                    coin = self._store.coins.get(outpoint)
                    if fill and coin is not None:
                        self._cache.fill([(outpoint, coin)])
                coins.append(coin)
        self._counts["serial_reads"] += len(coins)
        return pack_batch(CoinBatch.of_coins(coins))

    @ray.method(concurrency_group="read")
    @answers
    def coins(self, outpoints: list[bytes]) -> list[tuple[int, int, bool, bytes] | None]:
        """Coins at the tip, for people: (satoshis, height, coinbase, script) or None. Peek semantics."""
        with self._lock:
            found = [self._cache.peek(o) or self._store.coins.get(o) for o in outpoints]
        return [None if c is None else (c.value, c.height, c.coinbase, c.script) for c in found]

    @ray.method(concurrency_group="read")
    @answers
    def utxo_stats(self) -> tuple[int, int, int, str]:
        """Height, outputs, satoshis in all, and hash_serialized_3 (display hex) of the whole set. Reads it all."""
        stats = self._store.coins.utxo_stats()  # of one moment; the chain may move meanwhile
        with self._lock:
            i = self._chain.headers.find(stats.best_block)
            height = -1 if i is None else self._chain.headers.height(i)
        return height, stats.txouts, stats.total_amount, stats.hash_serialized_3

    @ray.method(concurrency_group="control")
    def drop_caches(self) -> None:
        """Empties the coins cache."""
        with self._lock:
            self._cache.clear()

    @ray.method(concurrency_group="write")
    @answers
    def reopen(self) -> None:
        """Empties the coins cache and opens the database anew, so that its files can leave the page cache."""
        with self._lock:
            self._cache.clear()
            self._store.reopen_coins()

    # Changes ----------------------------------------------------------------------------------------------------

    @ray.method(concurrency_group="write")
    @answers
    def look_up(self, header: bytes) -> tuple[str | None, bool, BlockContext | None]:
        """Core's AcceptBlockHeader as far as the index goes: reason to refuse, body stored, context of the parent."""
        parsed = BlockHeader.parse(header)
        with self._lock:
            reason, stored = self._chain.look_up(parsed)
            context = self._chain.context_on(parsed.prev_hash)
        return reason.text if reason else None, stored, context

    @ray.method(concurrency_group="write")
    @answers
    def store_block(self, raw: bytes) -> None:
        """Keeps a block that passed every check that needs no coins. Harmless to repeat."""
        block = decode_block(raw)
        with self._lock:
            self._chain.store_block(block)

    @ray.method(concurrency_group="write")
    @answers
    def mark_failed(self, header: bytes) -> None:
        """Remembers that the block with this header is invalid."""
        parsed = BlockHeader.parse(header)
        with self._lock:
            self._chain.add_header(parsed)
            self._chain.mark_failed(parsed.hash)

    @ray.method(concurrency_group="write")
    @answers
    def next_step(self) -> tuple[bool, bytes, bytes, BlockContext] | None:
        """Towards the branch with most work: (connect?, block hash, block, context of the tip); None at its end."""
        with self._lock:
            step = self._chain.next_step()
            return None if step is None else (step.connect, step.block_hash, step.raw, self._chain.context())

    @ray.method(concurrency_group="write")
    @answers
    def connect(self, block_hash: bytes, version: tuple[int, int]) -> FlatTip:
        """Makes a block that was judged at this tip version the tip; returns the new one, published and on disk."""
        with self._lock:
            self._recover()
            delta = self._chain.connect(block_hash, TipVersion(*version))
            self._cache.drop(delta.spent)
            self._cache.fill(delta.created)
            self._counts["connected"] += 1
            return self._publish(delta)

    @ray.method(concurrency_group="write")
    @answers
    def disconnect(self, version: tuple[int, int] | None = None) -> FlatTip:
        """Takes the tip back (None: whichever it is); returns the new one."""
        with self._lock:
            self._recover()
            delta = self._chain.disconnect(TipVersion(*version) if version else self._chain.tip.version)
            self._cache.drop(delta.spent)
            self._counts["disconnected"] += 1
            return self._publish(delta)

    @ray.method(concurrency_group="write")
    @answers
    def add_headers(self, headers: list[bytes]) -> int:
        """Headers for a store made from a snapshot, parents first; the height of the tip, -1 while it is unknown."""
        with self._lock:
            known = self._store.headers.has_tip
            self._store.add_headers([BlockHeader.parse(raw) for raw in headers])
            if not self._store.headers.has_tip:
                return -1
            if not known:
                self._publish_without_changes()
            return self._store.headers.tip_height

    def _recover(self) -> None:
        """After a write that failed, as on a full disk. What reached the disk all the same becomes the tip."""
        if self._chain.recover():
            self._cache.clear()
            self._publish_without_changes()

    def _publish_without_changes(self) -> None:
        """Shows the tip, where what changed is not told: its header has become known, or the store found itself there.
        Whoever reads coins opens the database anew."""
        self._tip_file.publish(self._chain.tip)
        tip, context = pack_tip(self._chain.tip), self._chain.context()
        for template in self._templates:
            template.tip_moved.remote(tuple(self._chain.tip.version), tip, context, [], [])
        if self._mempool is not None:
            self._mempool.tip_moved.remote(tip, context, True, None)

    def _publish(self, delta: Delta) -> FlatTip:
        """Shows the new tip, then tells everyone; none of these messages is waited for."""
        tip = pack_tip(delta.tip)
        self._tip_file.publish(delta.tip)
        created = [flat_coin(o, c) for o, c in delta.created]
        changes = ray.put(created)
        spent = ray.put(delta.spent)
        for worker in self._fetchers:
            worker.tip_moved.remote(tuple(delta.before), tip, spent, changes)
        context = ray.put(self._chain.context())
        for template in self._templates:
            template.tip_moved.remote(tuple(delta.before), tip, context, spent, changes)
        if self._mempool is not None:
            self._mempool.tip_moved.remote(tip, context, delta.connected, self._chain.body(delta.block_hash))
        for replica in self._replicas:
            replica.tip_moved.remote(delta.prev_hash, delta.tip.hash, spent, changes)
        return tip

    # Replicas ---------------------------------------------------------------------------------------------------

    @ray.method(concurrency_group="read")
    @answers
    def changes_from(self, block_hash: bytes, most: int) -> list[tuple[bytes, bytes, list[bytes], list[FlatCoin]]]:
        """What leads from the coins of a block to those of the tip, block by block (models.chain.Change)."""
        with self._lock:
            changes = self._chain.changes_from(block_hash, most)
        return [(c.before, c.after, c.spent, [flat_coin(o, coin) for o, coin in c.created]) for c in changes]

    @ray.method(concurrency_group="control")
    @answers
    def make_handout(self) -> tuple[str, dict[str, int]]:
        """A copy of the coins database to be fetched: its name, its files with their sizes in bytes."""
        return self._handout.make()

    @ray.method(concurrency_group="read")
    @answers
    def read_handout(self, name: str, file: str, start: int, size: int) -> bytes:
        """Some bytes of a file of such a copy."""
        return self._handout.read(name, file, start, size)

    @ray.method(concurrency_group="control")
    @answers
    def drop_handout(self, name: str) -> None:
        """Such a copy was fetched, or is given up."""
        self._handout.drop(name)

    # Housekeeping -----------------------------------------------------------------------------------------------

    @ray.method(concurrency_group="control")
    def stats(self) -> dict[str, Any]:
        """Counters and sizes."""
        return {
            **self._counts,
            "cache_entries": len(self._cache),
            "cache_bytes": self._cache.nbytes,
            "headers": len(self._chain.headers),
            "network": self._store.network,
        }

    @ray.method(concurrency_group="control")
    def drill(self, fault: str | None) -> None:
        """For exercises: the process dies at this fault point (see `models.storage.faults`)."""
        os.environ[FAULT_VARIABLE] = fault or ""

    @ray.method(concurrency_group="control")
    def ping(self) -> str:
        """Answers as long as the process lives."""
        return "chainstate"

    @ray.method(concurrency_group="write")
    @answers
    def close(self) -> None:
        """Closes the store, so that another process can own it."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._tip_file.close()
                self._store.close()
