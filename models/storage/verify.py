"""Checks a whole store and names every file in which something is wrong; changes nothing.

Whatever has a checksum is compared with it, byte for byte; whatever follows from something else is worked out again:
header hashes, work and heights, merkle roots, the tip, the hash over all coins. Works beside a running node, on hard
links to its tables; a store that nobody has open is held so that nobody opens it meanwhile.
"""

import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgpack
import numpy as np

from models.consensus.params import ChainParams
from models.consensus.pow import block_work, target_from_compact
from models.errors import DecodeError, SettingsError, StoreCorrupt, StoreError, TxCollectionError
from models.storage.archive import BLOCK_MAGIC, PREFIX_SIZE, UNDO_MAGIC
from models.storage.blockindex import FAILED_CHILD, FAILED_MASK, HAVE_DATA, HAVE_UNDO
from models.storage.checkpoint import checkpoint
from models.storage.coinsdb import CoinsHasher, CoinsOwner, UtxoStats
from models.storage.durable import TEMPORARY
from models.storage.headerrecord import (
    COUNT_END,
    MAGIC,
    NO_PARENT,
    RECORD,
    RECORD_SIZE,
    checksums,
    counts,
    stored_checksums,
)
from models.storage.headerrecord import PREFIX_SIZE as HEADERS_PREFIX
from models.storage.levelcheck import check_log, check_table, read_state, table_path
from models.storage.levelfiles import log_names
from models.storage.mempooldat import read_mempool
from models.storage.processes import is_running
from models.storage.store import LOCK_FILE
from models.storage.storeinfo import StoreInfo
from models.wire.block import Block, decode_block
from models.wire.hashes import ZERO_HASH, from_display, sha256d, to_display
from models.wire.merkle import merkle_root

__all__ = ["Finding", "Progress", "Severity", "Verified", "verify_store"]

AGAIN = "make the store again with `txcollection init`"
BY_ITSELF = "the next start of the node puts it right"
SCRATCH = ".verify-"  # and a process id: a directory in the store while coins are read
STEP = 50_000  # headers, or coins, between two reports of progress
KEEP_BLOCKS = 300  # bodies and undo data are kept of somewhat fewer
KNOWN_STATUS = 0x1FF  # Core: BlockStatus, chain.h
VALID_MASK, MOST_VALID = 7, 5


class Severity(StrEnum):
    """An error must not be lived with; a warning is what a crash or an import may leave."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is wrong: in which file, what, and what to do."""

    file: Path
    what: str
    advice: str
    severity: Severity = Severity.ERROR


@dataclass(frozen=True, slots=True)
class Progress:
    """How far one stage is; `total` is 0 where it is not known."""

    stage: str
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class Verified:
    """The last thing that is reported: what was found to be there."""

    network: str
    best_block: bytes | None  # of the coins, internal order
    height: int | None  # of that block
    headers: int
    blocks: int  # bodies kept
    utxo: UtxoStats | None  # None where the coins could not be read
    running: bool  # beside a node that has the store open


Report = Finding | Progress | Verified


def verify_store(path: Path | str) -> Iterator[Report]:
    """Reports progress and findings as they come, `Verified` last. Raises StoreError if there is no store."""
    path = Path(path).expanduser()
    if not path.is_dir():
        raise StoreError(f"no store in {path}: make one with `txcollection init`")
    lock = _hold(path)
    try:
        yield from _Verifier(path, running=lock is None).run()
    finally:
        if lock is not None:
            os.close(lock)


def _hold(path: Path) -> int | None:
    """The lock that keeps a node from opening the store, None if one has it open. A store on a read-only file system
    needs none."""
    try:
        handle = os.open(path / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError:
        return os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        return None
    return handle


class _Verifier:
    """One pass over one store."""

    def __init__(self, path: Path, running: bool):
        self._path = path
        self._running = running
        self._params: ChainParams | None = None
        self._network = ""
        self._best: bytes | None = None
        self._utxo: UtxoStats | None = None
        self._records = np.zeros(0, RECORD)
        self._at: dict[bytes, int] = {}  # header hash -> record number
        self._active: list[int] = []  # record numbers by height
        self._blocks = 0

    def run(self) -> Iterator[Report]:
        yield from self._info()
        yield from self._coins()
        yield from self._headers()
        yield from self._chain()
        yield from self._connected()
        yield from self._archive()
        yield from self._mempool()
        i = None if self._best is None else self._at.get(self._best)
        height = None if i is None else int(self._records["height"][i])
        count = len(self._records)
        yield Verified(self._network, self._best, height, count, self._blocks, self._utxo, self._running)

    # store.json -------------------------------------------------------------------------------------------------

    def _info(self) -> Iterator[Report]:
        file = self._path / "store.json"
        try:
            info = StoreInfo.load(self._path)
            if not isinstance(info.epoch, int) or info.epoch < 0 or not isinstance(info.source, dict):
                raise StoreCorrupt(f"{file} holds values that make no sense")
            self._network = str(info.network)
            self._params = info.params()
            if not self._running and file.read_bytes() != info.serialize():
                raise StoreCorrupt("it is not as this program writes it")
        except (StoreError, SettingsError, TypeError, ValueError, AttributeError) as error:
            yield Finding(file, _without(file, error), f"put back a copy of it, or {AGAIN}")

    # The coins --------------------------------------------------------------------------------------------------

    def _coins(self) -> Iterator[Report]:
        directory = self._path / "chainstate"
        if not directory.is_dir():
            yield Finding(directory, "is missing", AGAIN)
            return
        with _scratch(self._path) as scratch:
            copy = scratch / "chainstate"
            damaged = False
            if not self._running:
                for report in self._level_files(directory, directory):
                    damaged = damaged or isinstance(report, Finding)
                    yield report
                if damaged:
                    return  # LevelDB would stop at the same place, and say less of it
            try:
                checkpoint(directory, copy)
            except (StoreError, OSError) as error:
                yield Finding(directory, _named(error, copy, directory), AGAIN)
                return
            if self._running:
                for report in self._level_files(copy, directory):
                    damaged = damaged or isinstance(report, Finding)
                    yield report
                if damaged:
                    return
            yield from self._read_coins(copy, directory)

    def _level_files(self, directory: Path, shown: Path) -> Iterator[Report]:
        """Every byte of every file in use; `shown` is the directory that is named to the user."""
        try:
            state = read_state(directory)
        except StoreError as error:
            yield _finding_of(error, directory, shown)
            return
        total = sum(state.tables.values())
        done = 0
        for number, size in sorted(state.tables.items()):
            yield Progress("tables", done, total)
            try:
                check_table(table_path(directory, number), size)
            except StoreError as error:
                yield _finding_of(error, directory, shown)
            done += size
        logs = [name for name in log_names(directory) if _counts(name, state.log_number, state.previous_log)]
        if not logs:
            yield Finding(shown / f"{state.log_number:06d}.log", "is missing", AGAIN)
        for name in logs:
            try:
                check_log(directory / name, may_end_early=self._running)
            except StoreError as error:
                yield _finding_of(error, directory, shown)
        yield Progress("tables", total, total)

    def _read_coins(self, copy: Path, shown: Path) -> Iterator[Report]:
        """Every coin, decoded and hashed, as LevelDB gives them."""
        hasher = CoinsHasher()
        try:
            with CoinsOwner(copy) as coins:
                self._best = coins.best_block
                for outpoint, coin in coins.iterate():
                    hasher.add(outpoint, coin)
                    if hasher.txouts % STEP == 0:  # txids are spread evenly, and come in order
                        yield Progress("coins", int.from_bytes(outpoint[:2], "big"), 1 << 16)
        except TxCollectionError as error:
            yield Finding(shown, _named(error, copy, shown), AGAIN)
            return
        digest = to_display(hasher.finish())
        self._utxo = UtxoStats(self._best, hasher.txouts, hasher.total_amount, digest)
        yield Progress("coins", 1 << 16, 1 << 16)

    # Headers ----------------------------------------------------------------------------------------------------

    def _headers(self) -> Iterator[Report]:
        file = self._path / "index" / "headers.bin"
        try:
            data = file.read_bytes()
        except OSError as error:
            yield Finding(file, _why(error), AGAIN)
            return
        if not data.startswith(MAGIC) or len(data) < HEADERS_PREFIX:
            yield Finding(file, "it is no header index of this version", AGAIN)
            return
        count = int.from_bytes(data[8:16], "little")
        there = (len(data) - HEADERS_PREFIX) // RECORD_SIZE
        if data[8:COUNT_END] != counts(count) or any(data[COUNT_END:HEADERS_PREFIX]):
            yield Finding(file, f"its first {HEADERS_PREFIX} bytes are not as they were written", AGAIN)
        if not 0 < count <= there:
            yield Finding(file, f"it says that it holds {count} headers, and has room for {there}", AGAIN)
            count = min(count, there)
        self._records = np.frombuffer(data, RECORD, count, HEADERS_PREFIX)
        yield from self._check_records(file)
        hashes = np.ascontiguousarray(self._records["hash"]).tolist()
        self._at = {block_hash: i for i, block_hash in enumerate(hashes)}
        if len(self._at) != count:
            yield Finding(file, "it holds a header twice", AGAIN)

    def _check_records(self, file: Path) -> Iterator[Report]:
        records, count = self._records, len(self._records)
        if not count:
            return
        wrong = checksums(records) != stored_checksums(records)
        if wrong.any():
            yield self._record_fault(file, int(np.argmax(wrong)), "it does not match its checksum")
            return
        parents = records["parent"].astype(np.int64)
        numbers = np.arange(count)
        bad = (parents < NO_PARENT) | (parents >= numbers)
        bad |= (parents == NO_PARENT) != (numbers == 0)
        if bad.any():
            yield self._record_fault(file, int(np.argmax(bad)), "its parent is none that can be")
            return
        heights = records["height"].astype(np.int64)
        bad = heights != np.where(numbers == 0, 0, heights[parents] + 1)
        if bad.any():
            yield self._record_fault(file, int(np.argmax(bad)), "its height is not its parent's and one")
            return
        status = records["status"]
        bad = (status & ~np.uint32(KNOWN_STATUS) != 0) | (status & VALID_MASK > MOST_VALID)
        bad |= (status & FAILED_MASK == 0) & (status[parents] & FAILED_MASK != 0) & (numbers > 0)
        bad |= (status & FAILED_CHILD != 0) & (status[parents] & FAILED_MASK == 0)
        if bad.any():
            yield self._record_fault(file, int(np.argmax(bad)), "its status makes no sense")
        if self._params is not None and records["hash"][0].tobytes() != self._params.genesis_hash:
            yield self._record_fault(file, 0, f"it is not the first block of {self._params.name}")
        yield from self._check_hashes_and_work(file, parents)

    def _check_hashes_and_work(self, file: Path, parents: np.ndarray) -> Iterator[Report]:
        records, count = self._records, len(self._records)
        limit = 1 << 256 if self._params is None else target_from_compact(self._params.pow_limit_bits)[0]
        targets: dict[int, tuple[int, int]] = {}  # bits -> target, work
        hashes, works = records["hash"].tobytes(), records["chain_work"].tobytes()
        for begin in range(0, count, STEP):
            part = slice(begin, min(begin + STEP, count))
            serialised = _serialised(records, parents, part, hashes)
            for i, bits in zip(range(begin, part.stop), records["bits"][part].tolist(), strict=True):
                if bits not in targets:
                    targets[bits] = target_from_compact(bits)[0], block_work(bits)
                target, work = targets[bits]
                at = (i - begin) * 80
                block_hash = hashes[32 * i : 32 * i + 32]
                if sha256d(serialised[at : at + 80]) != block_hash:
                    yield self._record_fault(file, i, "its hash is not that of its fields")
                    return
                if work <= 0 or target > limit or int.from_bytes(block_hash, "little") > target:
                    yield self._record_fault(file, i, "it has no proof of work")
                    return
                parent = int(parents[i])
                before = int.from_bytes(works[32 * parent : 32 * parent + 32], "big") if parent >= 0 else 0
                if int.from_bytes(works[32 * i : 32 * i + 32], "big") != before + work:
                    yield self._record_fault(file, i, "its chain work is not its parent's and its own")
                    return
            yield Progress("headers", part.stop, count)

    def _record_fault(self, file: Path, i: int, what: str) -> Finding:
        start = HEADERS_PREFIX + i * RECORD_SIZE
        return Finding(file, f"header {i} (bytes {start} to {start + RECORD_SIZE - 1}): {what}", AGAIN)

    # The active chain -------------------------------------------------------------------------------------------

    def _chain(self) -> Iterator[Report]:
        file = self._path / "index" / "active.bin"
        records = self._records
        best = None if self._best is None else self._at.get(self._best)
        if self._best is not None and best is None and len(records):
            if not file.is_file():  # a store from a snapshot that has not been given its headers yet
                yield Finding(
                    self._path / "index" / "headers.bin",
                    f"it does not know block {to_display(self._best)}, whose coins are here",
                    "`txcollection follow` fetches the headers from a node",
                    Severity.WARNING,
                )
                return
            what = f"it does not know block {to_display(self._best)}, whose coins are here"
            yield Finding(self._path / "index" / "headers.bin", what, AGAIN)
        try:
            data = file.read_bytes()
        except OSError as error:
            yield Finding(file, _why(error), BY_ITSELF)
            return
        active = np.frombuffer(data[: len(data) // 4 * 4], "<u4")
        if len(data) % 4 or not self._is_chain(active):
            yield Finding(file, "it is no chain of headers from the first block on", BY_ITSELF)
            return
        self._active = active.tolist()
        tip = self._active[-1]
        failed = np.flatnonzero(records["status"][active] & FAILED_MASK)
        if len(failed):
            number = self._active[int(failed[0])]
            what = "it is on the active chain, and marked as invalid"
            yield self._record_fault(self._path / "index" / "headers.bin", number, what)
        if best is not None and tip != best:
            if self._running and self._descends(max(tip, best), min(tip, best)):
                return  # the tip moved between two looks
            names = f"{to_display(self._best or ZERO_HASH)}", to_display(records["hash"][tip].tobytes())
            if self._descends(tip, best):  # coins are on disk before the active chain is written
                lost = f"its end is lost: the coins are those of block {names[0]}, and those of {names[1]} were there"
                yield Finding(self._last_log(), lost, f"{BY_ITSELF}: it connects the blocks above once more")
            else:
                yield Finding(file, f"it ends with block {names[1]}, and the coins are those of {names[0]}", BY_ITSELF)

    def _last_log(self) -> Path:
        directory = self._path / "chainstate"
        return directory / max(log_names(directory), default="")

    def _is_chain(self, active: np.ndarray) -> bool:
        if not len(active) or int(active.max()) >= len(self._records):
            return False
        parents = self._records["parent"][active]
        return bool(parents[0] == NO_PARENT and (parents[1:] == active[:-1].astype(np.int64)).all())

    def _descends(self, i: int, ancestor: int) -> bool:
        while i > ancestor:
            i = int(self._records["parent"][i])
        return i == ancestor

    def _connected(self) -> Iterator[Report]:
        """A block whose undo data is here was connected here, or by the node, and its header's status says so."""
        wanted = HAVE_DATA | HAVE_UNDO
        for i in self._active[-KEEP_BLOCKS:]:
            name = to_display(self._records["hash"][i].tobytes())
            status = int(self._records["status"][i])
            if status & VALID_MASK == MOST_VALID and status & wanted == wanted:
                continue
            if (self._path / "index" / "undo" / f"{name}.undo").is_file():
                file = self._path / "index" / "headers.bin"
                yield self._record_fault(file, i, "its status is not that of a block that was connected")

    # Bodies and undo data ---------------------------------------------------------------------------------------

    def _archive(self) -> Iterator[Report]:
        index = self._path / "index"
        names = {kind: _files(index / kind, suffix) for kind, suffix in (("blocks", ".blk"), ("undo", ".undo"))}
        for kind in names:
            if not (index / kind).is_dir():
                yield Finding(index / kind, "is missing", BY_ITSELF)
            for left in sorted((index / kind).glob(f"*{TEMPORARY}")):
                if not self._running:
                    yield Finding(left, "a crash left it half done", BY_ITSELF, Severity.WARNING)
        total = len(names["blocks"]) + len(names["undo"])
        inputs: dict[str, list[int]] = {}  # block name -> inputs of each transaction but the coinbase
        for done, (name, file) in enumerate(sorted(names["blocks"].items())):
            if done % 20 == 0:
                yield Progress("blocks", done, total)
            try:
                block = self._check_body(name, file)
            except FileNotFoundError:
                continue  # beside a node: an old one was dropped
            except (StoreCorrupt, DecodeError, OSError) as error:
                yield Finding(file, _without(file, error), self._on_body(name))
                continue
            self._blocks += 1
            inputs[name] = [len(tx.prevouts) for tx in block.transactions[1:]]
        for done, (name, file) in enumerate(sorted(names["undo"].items()), len(names["blocks"])):
            if done % 20 == 0:
                yield Progress("blocks", done, total)
            try:
                self._check_undo(name, file, inputs.get(name))
            except FileNotFoundError:
                continue
            except (StoreCorrupt, OSError) as error:
                yield Finding(file, _without(file, error), self._on_body(name))
        if not self._running:
            yield from self._gaps(index, names)
        yield Progress("blocks", total, total)

    def _on_body(self, name: str) -> str:
        i = self._record_of(name)
        if i is not None and self._is_active(i):
            return f"a reorganisation cannot go below height {int(self._records['height'][i])}: {AGAIN}"
        return "remove it: it belongs to no block of the active chain that is still needed"

    def _is_active(self, i: int | None) -> bool:
        if i is None:
            return False
        height = int(self._records["height"][i])
        return height < len(self._active) and self._active[height] == i

    def _record_of(self, name: str) -> int | None:
        try:
            return self._at.get(from_display(name))
        except TxCollectionError:
            return None

    def _check_body(self, name: str, file: Path) -> Block:
        raw = _payload(file, BLOCK_MAGIC)
        block = decode_block(raw, allow_trailing=False)
        if to_display(block.header.hash) != name:
            raise StoreCorrupt("it holds another block than its name says")
        root, mutated = merkle_root([tx.txid for tx in block.transactions])
        if root != block.header.merkle_root or mutated:
            raise StoreCorrupt("its transactions do not have the merkle root of its header")
        i = self._record_of(name)
        if i is None and len(self._records) and not self._running:
            raise StoreCorrupt("its header is not in the index")
        count = 0 if i is None else int(self._records["n_tx"][i])
        unknown = count == 0 and not self._is_active(i)  # as after a crash between the body and its header's counts
        if i is not None and not unknown and count != len(block.transactions):
            raise StoreCorrupt(f"it has {len(block.transactions)} transactions, the header index says {count}")
        return block

    def _check_undo(self, name: str, file: Path, inputs: list[int] | None) -> None:
        rows: Any = None
        try:
            rows = msgpack.unpackb(_payload(file, UNDO_MAGIC))
            sizes = [len(coins) for coins in rows]
            for coins in rows:
                for value, height, coinbase, script in coins:
                    if not (type(value) is type(height) is int and type(coinbase) is bool and type(script) is bytes):
                        raise StoreCorrupt("it holds something that is no coin")
        except (ValueError, TypeError, msgpack.UnpackException) as error:
            raise StoreCorrupt(f"it holds no undo data: {error}") from None
        i = self._record_of(name)
        count = 0 if i is None else int(self._records["n_tx"][i])
        if inputs is not None and sizes != inputs:
            raise StoreCorrupt("its coins are not those that the block's inputs spend")
        if count and len(sizes) != count - 1:
            raise StoreCorrupt(f"it is of {len(sizes)} transactions, the header index says {count - 1}")

    def _gaps(self, index: Path, names: dict[str, dict[str, Path]]) -> Iterator[Report]:
        """Bodies and undo data of the active chain go down from the tip without a gap; a file between is missing."""
        chain = [to_display(self._records["hash"][i].tobytes()) for i in self._active[1:]]
        lowest = next((at for at, name in enumerate(chain) if name in names["blocks"] or name in names["undo"]), None)
        if lowest is None:
            return
        base = self._snapshot_height()
        for height, name in enumerate(chain[lowest:], lowest + 1):
            if height <= base:
                continue
            for kind, suffix in (("blocks", ".blk"), ("undo", ".undo")):
                if name not in names[kind]:
                    what = f"is missing: a reorganisation cannot go below height {height}"
                    yield Finding(index / kind / f"{name}{suffix}", what, AGAIN)

    def _snapshot_height(self) -> int:
        """Up to which height a store from a snapshot never had bodies; -1 for others."""
        try:
            source = StoreInfo.load(self._path).source
            i = self._record_of(str(source["base_hash"])) if source.get("kind") == "snapshot" else None
        except (StoreError, KeyError, AttributeError):
            return -1
        return -1 if i is None else int(self._records["height"][i])

    # mempool.dat ------------------------------------------------------------------------------------------------

    def _mempool(self) -> Iterator[Report]:
        file = self._path / "mempool.dat"
        if not file.is_file():
            return
        try:
            warnings = read_mempool(file).warnings
        except StoreError as error:
            yield Finding(file, _without(file, error), "remove it: a node's mempool is followed anyway")
            return
        for warning in warnings:
            yield Finding(file, _without(file, warning), "what is whole of it is used", Severity.WARNING)


def _serialised(records: np.ndarray, parents: np.ndarray, part: slice, hashes: bytes) -> bytes:
    """The 80 bytes of each header of a part of the records, joined; `hashes` are those of all records."""
    rows = records[part]
    out = np.zeros((len(rows), 80), np.uint8)
    table = np.frombuffer(hashes, np.uint8).reshape(-1, 32)
    out[:, 4:36] = np.where((parents[part] >= 0)[:, None], table[parents[part]], 0)
    merkle = np.ascontiguousarray(rows["merkle_root"]).tobytes()
    out[:, 36:68] = np.frombuffer(merkle, np.uint8).reshape(-1, 32)
    for name, start in (("version", 0), ("time", 68), ("bits", 72), ("nonce", 76)):
        out[:, start : start + 4] = np.ascontiguousarray(rows[name]).view(np.uint8).reshape(-1, 4)
    return out.tobytes()


def _payload(file: Path, magic: bytes) -> bytes:
    stored = file.read_bytes()
    payload = stored[PREFIX_SIZE:]
    if stored[:8] != magic or stored[8:PREFIX_SIZE] != hashlib.sha256(payload).digest():
        raise StoreCorrupt("its checksum is wrong")
    return payload


def _files(directory: Path, suffix: str) -> dict[str, Path]:
    return {file.stem: file for file in directory.glob(f"*{suffix}")}


def _counts(name: str, log_number: int, previous: int) -> bool:
    """Whether a log holds what is not in the tables yet (LevelDB: DBImpl::Recover)."""
    number = int(name.split(".")[0])
    return number >= log_number or number == previous > 0


def _why(error: OSError) -> str:
    return "is missing" if isinstance(error, FileNotFoundError) else f"cannot be read: {error.strerror}"


def _without(file: Path, error: object) -> str:
    """What an error says beside the file's name, which is reported in a place of its own."""
    return str(error).replace(str(file), "").strip().lstrip(":").strip() or "it cannot be read"


def _named(error: object, copy: Path, shown: Path) -> str:
    return _without(shown, str(error).replace(str(copy), str(shown)))


def _finding_of(error: StoreError, directory: Path, shown: Path) -> Finding:
    """An error of a LevelDB directory: its message begins with the file."""
    text = str(error).replace(str(directory), str(shown))
    file, _, what = text.partition(" ")
    crash = "it ends within a record" in what and file.endswith(".log")
    return Finding(
        Path(file.rstrip(":")), what, f"if a crash left it so, {BY_ITSELF}; else {AGAIN}" if crash else AGAIN
    )


@contextmanager
def _scratch(store: Path) -> Iterator[Path]:
    """A directory on the store's own file system, where hard links to its tables are possible; gone at the end."""
    for left in store.glob(f"{SCRATCH}*"):
        if not is_running(left.name.removeprefix(SCRATCH)):
            shutil.rmtree(left, ignore_errors=True)
    try:
        made = store / f"{SCRATCH}{os.getpid()}"
        made.mkdir()
    except OSError:
        made = Path(tempfile.mkdtemp(prefix="txcollection-verify-"))
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)
