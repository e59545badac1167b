"""The store: one directory of ours with the coins, the headers, recent blocks, and what they are of.

    store.json     network and its switches, schema version, epoch, where it came from
    chainstate/    the coins, in Core's own format
    index/         headers.bin, active.bin, blocks/, undo/
    mempool.dat    the node's mempool at the time of the import, if it had one
    lock           held by the process that has the store open for writing

The epoch is raised and on disk before an open returns, so a tip version of one open never repeats in another. How a
store is made is in `models.storage.creation`.
"""

import fcntl
import os
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from models.errors import StoreError, StoreInUse
from models.storage import creation
from models.storage.archive import BlockArchive
from models.storage.coinsdb import CoinsOwner
from models.storage.durable import disk_errors
from models.storage.headers import HeaderIndex
from models.storage.storeinfo import StoreInfo
from models.wire.block import BlockHeader
from models.wire.hashes import to_display

__all__ = ["ServedTip", "Store"]

LOCK_FILE = "lock"
VALID_TREE = 2  # Core: BLOCK_VALID_TREE, chain.h


@dataclass(frozen=True, slots=True)
class ServedTip:
    """The block whose coins a store serves. Height and times are None while its header is not known."""

    hash: bytes  # internal order
    height: int | None
    time: int | None  # of the block, Unix seconds
    age: int | None  # seconds from the block's time to now; a node may be ahead of us by that much


def _lock(path: Path) -> int:
    with disk_errors(path / LOCK_FILE, "write"):
        handle = os.open(path / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(handle)
        raise StoreInUse(f"the store {path} is in use by another process; stop it, or connect to it") from error
    return handle


class Store:
    """An open store. Opened for writing it is owned by one process, and by one object in it."""

    def __init__(self, path: Path, info: StoreInfo, write: bool) -> None:
        """For `open` only."""
        self.path = path
        self.info = info
        self.params = info.params()
        self.write = write
        self.chainstate_path = path / "chainstate"
        self.mempool_path = path / "mempool.dat"
        self._lock: int | None = None
        self._coins: CoinsOwner | None = None
        self._headers: HeaderIndex | None = None
        self.archive = BlockArchive(path / "index", write)

    create_from_datadir = staticmethod(creation.create_from_datadir)
    create_from_snapshot = staticmethod(creation.create_from_snapshot)
    create_genesis = staticmethod(creation.create_genesis)

    @classmethod
    def open(cls, path: Path | str, write: bool = True) -> "Store":
        """Opens a store; for writing, its epoch is raised and the active chain is put in line with the coins.

        Raises `StoreInUse` if it is open for writing already, `StoreError` or `StoreCorrupt` naming the file if it
        cannot be used. Without `write` nothing is locked or changed, and there is no `coins`: use `CoinsReader`.
        """
        path = Path(path).expanduser()
        info = StoreInfo.load(path)
        lock = _lock(path) if write else None
        try:
            store = cls(path, StoreInfo.load(path) if write else info, write)
            store._lock = lock
        except BaseException:
            if lock is not None:
                os.close(lock)
            raise
        try:
            if write:
                store._coins = CoinsOwner(store.chainstate_path)
                store._headers = HeaderIndex(path / "index", store._coins.best_block)
                store.info.epoch += 1
                store.info.save(path)
            else:
                store._headers = HeaderIndex(path / "index", write=False)
        except BaseException:
            store.close()
            raise
        return store

    @property
    def network(self) -> str:
        """The network's name, as in `get_params`."""
        return self.info.network

    @property
    def epoch(self) -> int:
        """The number of times the store was opened for writing, this one included."""
        return self.info.epoch

    @property
    def params_overrides(self) -> dict[str, Any]:
        """The arguments of `get_params` that give this store's parameters, for another process."""
        challenge = self.info.signet_challenge
        return {
            "network": self.info.network,
            "activation_heights": dict(self.info.activation_heights) or None,
            "bip94": self.info.bip94,
            "signet_challenge": None if challenge is None else bytes.fromhex(challenge),
        }

    @property
    def coins(self) -> CoinsOwner:
        """The coins database. Raises `StoreError` if the store is closed or was opened for reading only."""
        if self._coins is None:
            raise StoreError(f"the store {self.path} is not open for writing")
        return self._coins

    @property
    def headers(self) -> HeaderIndex:
        """The header index. Raises `StoreError` if the store is closed."""
        if self._headers is None:
            raise StoreError(f"the store {self.path} is closed")
        return self._headers

    def served_tip(self, now: float | None = None) -> ServedTip:
        """The tip whose coins are served, and its age at `now` (Unix seconds)."""
        headers = self.headers
        if not headers.has_tip:
            return ServedTip(self.coins.best_block, None, None, None)
        header = headers.header(headers.tip)
        age = int(time.time() if now is None else now) - header.time
        return ServedTip(header.hash, headers.tip_height, header.time, age)

    def add_headers(self, headers: list[BlockHeader]) -> None:
        """Adds headers (parents first) to a store made from a snapshot, until its base block's header is among them.

        Proof of work is the caller's to check. Raises `StoreError` if a parent is not known, or if the snapshot has
        coins from above its base block.
        """
        self.headers.append_many(headers, VALID_TREE)
        if self.headers.has_tip:
            return
        base = self.headers.find(self.coins.best_block)
        if base is None:
            return
        highest = int(self.info.source.get("max_coin_height", 0))
        if highest > self.headers.height(base):
            raise StoreError(
                f"the snapshot has a coin of height {highest}, but its base block {to_display(self.coins.best_block)} "
                f"is at height {self.headers.height(base)}: it is not to be trusted, make the store again"
            )
        self.headers.set_tip(base)

    def reopen_coins(self) -> None:
        """Closes the coins database and opens it anew, so that none of its files stays mapped. For benches."""
        self.coins.close()
        self._coins = None
        self._coins = CoinsOwner(self.chainstate_path)

    def close(self) -> None:
        """Closes everything and gives up the lock. Harmless when closed already."""
        if self._coins is not None:
            self._coins.close()
            self._coins = None
        if self._headers is not None:
            self._headers.close()
            self._headers = None
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> "Store":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
