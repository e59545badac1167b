"""Every header we know, in a flat memory-mapped file, and the active chain as a list of record numbers.

    headers.bin   "TXCHDRS2", u64 count, u64 its complement, zeros to 128 bytes; then records of 128 bytes (`RECORD`),
                  parents first, each with a checksum of its own; "TXCHDRS1" had none, and is given them when written
    active.bin    u32 record number per height, genesis first

Integers are little-endian, hashes in internal order, the chain work big-endian. A record is on disk before the count
says so; the active chain can always be made again from the coins' best block. Opening checks every record, and runs no
Python per header. One thread writes; others may read.
"""

import logging
import mmap
import os
from pathlib import Path

import numpy as np

from models.consensus.pow import block_work
from models.errors import NotReady, StoreCorrupt, StoreError
from models.storage.blockindex import FAILED_CHILD, FAILED_MASK, first_words
from models.storage.durable import disk_errors, write_at, write_atomic
from models.storage.faults import fault_point
from models.storage.headerrecord import (
    COUNT_END,
    MAGIC,
    NO_PARENT,
    OLD_MAGIC,
    PREFIX_SIZE,
    RECORD,
    RECORD_SIZE,
    RECORD_STRUCT,
    STATE,
    STATUS_OFFSET,
    checked,
    checksums,
    counts,
    pack_header,
    prefix_of,
    records_of_entries,
    stored_checksums,
    with_checksums,
)
from models.wire.block import BlockHeader
from models.wire.hashes import ZERO_HASH, to_display

__all__ = ["HeaderIndex"]

GROWTH = 8192  # records by which the file grows; a sparse tail takes no space
MEDIAN_TIME_SPAN = 11  # Core: nMedianTimeSpan, chain.h

log = logging.getLogger(__name__)


class HeaderIndex:
    """All known headers by record number, and the active chain that ends at the coins' best block.

    Record numbers never change. Methods that take one raise IndexError for a number that is not there.
    """

    def __init__(self, path: Path | str, best_block: bytes | None = None, write: bool = True) -> None:
        """Opens the index in the directory `path`, and makes `best_block` (of the coins) the active tip.

        A block whose header is not known leaves the index without a tip (`has_tip`) until `set_tip`. Raises
        `StoreCorrupt` for a damaged file, `StoreError` for a missing one.
        """
        self._file = Path(path) / "headers.bin"
        self._active_file = Path(path) / "active.bin"
        self._write = write
        self._cut = ""  # what was found missing at the end of the file
        with disk_errors(self._file, "open"):
            self._handle = os.open(self._file, os.O_RDWR if write else os.O_RDONLY)
        try:
            with disk_errors(self._file, "read"):
                self._count = self._read_count()
                self._map()
            self._check_links()
        except BaseException:
            os.close(self._handle)
            raise
        self._sorted: tuple[np.ndarray, np.ndarray] | None = None  # first hash words, record numbers
        self._recent: dict[bytes, int] = {}  # headers appended since `_sorted` was made
        self._active = np.empty(0, dtype="<u4")
        self._times = np.empty(0, dtype="<u4")
        self._length = 0  # of the active chain; the arrays have room beyond it
        self._load_active(best_block)

    @classmethod
    def create(cls, path: Path | str, genesis: BlockHeader, n_tx: int = 1, status: int = 5 | 8 | 16) -> "HeaderIndex":
        """Makes an index that knows the genesis header only."""
        cls._create_file(Path(path), pack_header(genesis, block_work(genesis.bits), NO_PARENT, 0, status, n_tx))
        return cls(path, genesis.hash)

    @classmethod
    def create_from_entries(cls, path: Path | str, entries: np.ndarray, best_block: bytes) -> "HeaderIndex":
        """Makes an index of Core's block index entries, as `read_block_index` gives them.

        Raises `StoreError` if the coins' best block is not among them.
        """
        cls._create_file(Path(path), records_of_entries(entries).tobytes())
        index = cls(path, best_block)
        if not index.has_tip:
            index.close()
            raise StoreError(
                f"the coins are at block {to_display(best_block)}, which the block index does not know: "
                "the two come from different moments or nodes"
            )
        return index

    @staticmethod
    def _create_file(path: Path, records: bytes) -> None:
        with disk_errors(path / "headers.bin", "write"):
            path.mkdir(parents=True, exist_ok=True)
            with (path / "headers.bin").open("xb") as handle:
                handle.write(prefix_of(len(records) // RECORD_SIZE).ljust(PREFIX_SIZE, b"\0") + records)
                handle.flush()
                os.fsync(handle.fileno())

    # -- the file

    def _read_count(self) -> int:
        prefix = os.pread(self._handle, PREFIX_SIZE, 0)
        if prefix.startswith(OLD_MAGIC) and len(prefix) == PREFIX_SIZE and self._write:
            self._upgrade(int.from_bytes(prefix[8:16], "little"))
            prefix = os.pread(self._handle, PREFIX_SIZE, 0)
        self._has_checksums = prefix.startswith(MAGIC)
        if len(prefix) < PREFIX_SIZE or not prefix.startswith((MAGIC, OLD_MAGIC)):
            raise StoreCorrupt(f"{self._file} is no header index of this version")
        said = int.from_bytes(prefix[8:16], "little")
        if self._has_checksums and (prefix[8:COUNT_END] != counts(said) or any(prefix[COUNT_END:])):
            raise StoreCorrupt(f"{self._file} is damaged: its first {PREFIX_SIZE} bytes are not as they were written")
        there = (os.fstat(self._handle).st_size - PREFIX_SIZE) // RECORD_SIZE
        count = min(said, there)
        # A file that was cut, or whose last record never reached the disk: what is whole in front of it stays.
        while count and not self._whole(count - 1):
            count -= 1
        if not count:
            raise StoreCorrupt(f"{self._file} holds no whole header")
        if count < said:
            self._cut = f"{self._file} ends early: {count} of {said} headers are whole"
            log.warning("%s", self._cut)
        return count

    def _upgrade(self, count: int) -> None:
        """Gives a file of the version before its checksums, after the looks that it got then."""
        content = os.pread(self._handle, count * RECORD_SIZE, PREFIX_SIZE)
        records = np.frombuffer(content[: len(content) // RECORD_SIZE * RECORD_SIZE], RECORD)
        whole = len(records)
        while whole and not self._hashed(whole - 1):
            whole -= 1
        log.info("%s is given checksums", self._file)
        write_atomic(
            self._file, prefix_of(whole).ljust(PREFIX_SIZE, b"\0"), with_checksums(records[:whole]).tobytes(),
            place="headers.upgrade",
        )  # fmt: skip
        os.close(self._handle)
        self._handle = os.open(self._file, os.O_RDWR)

    def _whole(self, i: int) -> bool:
        """Whether the record was written; one that was, and is not as it was then, is damage and none of a crash's."""
        record = os.pread(self._handle, RECORD_SIZE, PREFIX_SIZE + i * RECORD_SIZE)
        if len(record) < RECORD_SIZE or not any(record):
            return False
        if not self._has_checksums:
            return self._hashed(i)
        if record != checked(record):
            raise self._damaged(i)
        return True

    def _hashed(self, i: int) -> bool:
        record = os.pread(self._handle, RECORD_SIZE, PREFIX_SIZE + i * RECORD_SIZE)
        if len(record) < RECORD_SIZE:
            return False
        block_hash, merkle_root, _, parent, _, _, _, _, _, version, time, bits, nonce = RECORD_STRUCT.unpack(record)
        if not NO_PARENT <= parent < i:
            return False
        prev_hash = ZERO_HASH if parent < 0 else os.pread(self._handle, 32, PREFIX_SIZE + parent * RECORD_SIZE)
        return BlockHeader(version, prev_hash, merkle_root, time, bits, nonce).hash == block_hash

    def _damaged(self, i: int) -> StoreCorrupt:
        at = PREFIX_SIZE + i * RECORD_SIZE
        return StoreCorrupt(
            f"{self._file} is damaged: header {i} (bytes {at} to {at + RECORD_SIZE - 1}) does not match its checksum. "
            "Import the store again"
        )

    def _map(self) -> None:
        needed = PREFIX_SIZE + self._count * RECORD_SIZE
        size = os.fstat(self._handle).st_size
        if self._write and (size - PREFIX_SIZE) % RECORD_SIZE:
            os.ftruncate(self._handle, needed)
            size = needed
        if self._write and size < needed + RECORD_SIZE:
            size = needed + GROWTH * RECORD_SIZE
            os.ftruncate(self._handle, size)
        self._capacity = (size - PREFIX_SIZE) // RECORD_SIZE
        self._bytes = mmap.mmap(self._handle, size, prot=mmap.PROT_READ)
        self._records = np.frombuffer(self._bytes, dtype=RECORD, count=self._capacity, offset=PREFIX_SIZE)

    def _check_links(self) -> None:
        """Every record is as it was written, and every walk from a header to its ancestors ends: parents come first,
        and heights go up by one."""
        records = self._records[: self._count]
        if self._has_checksums:
            wrong = checksums(records) != stored_checksums(records)
            if wrong.any():
                raise self._damaged(int(np.argmax(wrong)))
        parents = records["parent"].astype(np.int64)
        heights = records["height"].astype(np.int64)
        good = (parents >= 0) & (parents < np.arange(self._count))
        good[good] = heights[good] == heights[parents[good]] + 1
        good[0] = parents[0] == NO_PARENT and heights[0] == 0
        if not good.all():
            raise StoreCorrupt(
                f"{self._file} is damaged: record {int(np.argmin(good))} does not follow its parent. "
                "Import the store again"
            )

    def _store_records(self, records: list[bytes]) -> None:
        """Puts records behind the last one: data first, the count once they are on disk."""
        if not self._write:
            raise StoreError(f"{self._file} was opened for reading only")
        end = self._count + len(records)
        if end > self._capacity:
            with disk_errors(self._file, "write"):
                os.ftruncate(self._handle, PREFIX_SIZE + (end + GROWTH) * RECORD_SIZE)
        fault_point("headers.before_append")
        write_at(self._handle, b"".join(records), PREFIX_SIZE + self._count * RECORD_SIZE, self._file)
        with disk_errors(self._file, "write"):
            os.fsync(self._handle)
        fault_point("headers.before_count")
        write_at(self._handle, counts(end), 8, self._file)
        with disk_errors(self._file, "write"):
            os.fsync(self._handle)
        fault_point("headers.after_append")
        self._count = end
        if end > self._capacity:
            self._map()

    def close(self) -> None:
        """Gives up the file. Arrays that were handed out stay valid."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    # -- single records

    def __len__(self) -> int:
        return self._count

    def _at(self, i: int) -> int:
        if not 0 <= i < self._count:
            raise IndexError(f"header {i} of {self._count}")
        return PREFIX_SIZE + i * RECORD_SIZE

    def _fields(self, i: int) -> tuple:
        return RECORD_STRUCT.unpack_from(self._bytes, self._at(i))

    def hash(self, i: int) -> bytes:
        """The block hash, internal order."""
        start = self._at(i)
        return self._bytes[start : start + 32]

    def parent(self, i: int) -> int:
        """The parent's record number, -1 for genesis."""
        return self._fields(i)[3]

    def height(self, i: int) -> int:
        """The height; genesis is 0."""
        return self._fields(i)[4]

    def status(self, i: int) -> int:
        """Core's status bits."""
        return self._fields(i)[5]

    def n_tx(self, i: int) -> int:
        """The number of transactions, 0 where the block was never there."""
        return self._fields(i)[7]

    def chain_work(self, i: int) -> int:
        """The work of the chain up to and with this block."""
        return int.from_bytes(self._fields(i)[2], "big")

    def header(self, i: int) -> BlockHeader:
        """The header itself."""
        _, merkle_root, _, parent, _, _, _, _, _, version, time, bits, nonce = self._fields(i)
        return BlockHeader(version, self.hash(parent) if parent >= 0 else ZERO_HASH, merkle_root, time, bits, nonce)

    def set_status(self, i: int, status: int, n_tx: int | None = None) -> None:
        """Replaces the status bits (and the number of transactions). On disk with the next append at the latest."""
        if not self._write:
            raise StoreError(f"{self._file} was opened for reading only")
        start = self._at(i)
        record = bytearray(self._bytes[start : start + RECORD_SIZE])
        STATE.pack_into(record, STATUS_OFFSET, status, 0, self.n_tx(i) if n_tx is None else n_tx, 0)
        state = checked(bytes(record))[STATUS_OFFSET : STATUS_OFFSET + STATE.size]
        write_at(self._handle, state, start + STATUS_OFFSET, self._file)  # 8 bytes in their place: never half of them

    def mark_failed(self, i: int, failed: int) -> None:
        """Adds the bit `failed` to a block and FAILED_CHILD to all its descendants."""
        self.set_status(i, self.status(i) | failed)
        records = self._records[: self._count]
        parents, bad = records["parent"], np.zeros(self._count, dtype=bool)
        bad[i] = True
        while True:
            more = ~bad & (parents >= 0) & bad[parents]
            if not more.any():
                break
            bad |= more
        for j in np.flatnonzero(bad).tolist():
            if j != i:
                self.set_status(j, self.status(j) | FAILED_CHILD)

    def failed(self, i: int) -> bool:
        """Whether the block or an ancestor of it is known to be invalid."""
        return bool(self.status(i) & FAILED_MASK)

    def find(self, block_hash: bytes) -> int | None:
        """The record number of a block hash (internal order), None if it is not known."""
        recent = self._recent.get(block_hash)
        if recent is not None:
            return recent
        if self._sorted is None:
            words = first_words(self._records["hash"][: self._count])
            order = np.argsort(words)
            self._sorted = words[order], order
            self._recent.clear()
        words, order = self._sorted
        word = np.uint64(int.from_bytes(block_hash[:8], "little"))
        at = int(np.searchsorted(words, word))
        while at < len(words) and words[at] == word:
            i = int(order[at])
            if self.hash(i) == block_hash:
                return i
            at += 1
        return None

    def append(self, header: BlockHeader, status: int, n_tx: int) -> int:
        """Adds a header and returns its record number; it is on disk by then. A known one is left as it is.

        Raises `StoreError` if the parent is not known.
        """
        return self.append_many([header], status, n_tx)[0]

    def append_many(self, headers: list[BlockHeader], status: int, n_tx: int = 0) -> list[int]:
        """Adds headers, parents first, with one flush to disk; as `append` otherwise."""
        numbers: list[int] = []
        new: list[bytes] = []
        added: dict[bytes, int] = {}
        placed: dict[int, tuple[int, int]] = {}  # height and chain work of those not yet stored
        for header in headers:
            known = added.get(header.hash, self.find(header.hash))
            if known is not None:
                numbers.append(known)
                continue
            parent = added.get(header.prev_hash, self.find(header.prev_hash))
            if parent is None:
                raise StoreError(
                    f"header {to_display(header.hash)}: its parent {to_display(header.prev_hash)} is not known"
                )
            height, work = placed.get(parent) or (self.height(parent), self.chain_work(parent))
            height, work = height + 1, work + block_work(header.bits)
            number = self._count + len(new)
            new.append(pack_header(header, work, parent, height, status, n_tx))
            added[header.hash] = number
            placed[number] = height, work
            numbers.append(number)
        if new:
            self._store_records(new)
            self._recent.update(added)
        return numbers

    # -- the active chain

    def _load_active(self, best_block: bytes | None) -> None:
        stored = b""
        with disk_errors(self._active_file, "read"):
            if self._active_file.is_file():
                stored = self._active_file.read_bytes()
        active = np.frombuffer(stored[: len(stored) // 4 * 4], dtype="<u4")
        if not self._is_chain(active):
            active = active[:0]
        self._take_active(active)
        wanted = None if best_block is None else self.find(best_block)
        if best_block is None or (wanted is not None and self._length and self.tip == wanted):
            return
        if wanted is None:
            self._take_active(active[:0])
            return
        log.info("the active chain is made to end at the coins' best block %s", to_display(self.hash(wanted)))
        self.set_tip(wanted)

    def _is_chain(self, active: np.ndarray) -> bool:
        if not len(active) or int(active.max()) >= self._count:
            return False
        parents = self._records["parent"][active]
        heights = self._records["height"][active]
        return bool(
            parents[0] == NO_PARENT
            and (parents[1:] == active[:-1].astype("<i4")).all()
            and (heights == np.arange(len(active))).all()
        )

    def _take_active(self, active: np.ndarray) -> None:
        self._length = len(active)
        self._active = np.concatenate((active, np.zeros(GROWTH, dtype="<u4")))
        self._times = np.concatenate((self._records["time"][active], np.zeros(GROWTH, dtype="<u4")))

    @property
    def has_tip(self) -> bool:
        """Whether the header of the coins' best block is known."""
        return self._length > 0

    @property
    def tip(self) -> int:
        """The record number of the active tip. Raises `NotReady` while it is not known."""
        if not self._length:
            raise NotReady(
                "the header of the coins' block is not known yet, so nothing can be judged: "
                "`txcollection follow` fetches the headers from a node" + (f" ({self._cut})" if self._cut else "")
            )
        return int(self._active[self._length - 1])

    @property
    def tip_height(self) -> int:
        """The height of the active tip. Raises `NotReady` while it is not known."""
        return self.height(self.tip)

    def active(self, height: int) -> int:
        """The record number at a height of the active chain. Raises IndexError above the tip and below 0."""
        if not 0 <= height < self._length:
            raise IndexError(f"height {height} of an active chain of {self._length}")
        return int(self._active[height])

    def is_active(self, i: int) -> bool:
        """Whether a block is on the active chain."""
        height = self.height(i)
        return height < self._length and int(self._active[height]) == i

    def set_tip(self, i: int) -> None:
        """Makes the chain that ends in `i` the active one; arrays handed out before keep their content."""
        branch: list[int] = []
        while not self.is_active(i):
            branch.append(i)
            i = self.parent(i)
            if i < 0:
                break
        fork = self.height(i) + 1 if i >= 0 else 0
        length = fork + len(branch)
        numbers = np.array(branch[::-1], dtype="<u4")
        if fork < self._length or length > len(self._active):
            self._take_active(np.concatenate((self._active[:fork], numbers)))
        else:
            self._active[fork:length] = numbers
            self._times[fork:length] = self._records["time"][numbers]
            self._length = length
        if self._write:
            self._save_active(fork)

    def _save_active(self, fork: int) -> None:
        """Rewrites active.bin from a height on. Not flushed, and no error if it fails, since the coins have moved by
        now: it is made again from them if it is lost."""
        fault_point("headers.before_active")
        try:
            handle = os.open(self._active_file, os.O_WRONLY | os.O_CREAT, 0o644)
            try:
                there = os.fstat(handle).st_size // 4
                start = min(fork, there)
                write_at(handle, self._active[start : self._length].tobytes(), start * 4, self._active_file)
                os.ftruncate(handle, self._length * 4)
            finally:
                os.close(handle)
        except (OSError, StoreError) as error:
            log.warning("%s was not brought up to date: %s", self._active_file, error)
        fault_point("headers.after_active")

    def ancestor(self, i: int, height: int) -> int:
        """The record number of the ancestor of `i` (or `i` itself) at a height. One step on the active chain.

        Raises IndexError if the height is below 0 or above that of `i`.
        """
        if not 0 <= height <= self.height(i):
            raise IndexError(f"no ancestor at height {height} of a block at height {self.height(i)}")
        while not self.is_active(i):
            if self.height(i) == height:
                return i
            i = self.parent(i)
        return int(self._active[height])

    def descends(self, i: int, ancestor: int) -> bool:
        """Whether `ancestor` is `i` or one of its ancestors."""
        height = self.height(ancestor)
        return height <= self.height(i) and self.ancestor(i, height) == ancestor

    def fork_point(self, i: int) -> int:
        """The last block that `i` has in common with the active chain."""
        while not self.is_active(i):
            i = self.parent(i)
        return i

    # -- times

    @property
    def times_by_height(self) -> np.ndarray:
        """Block times (Unix seconds, u4) of the active chain, genesis first; read-only, one moment's view."""
        view = self._times[: self._length]
        view.flags.writeable = False
        return view

    def times_back(self, i: int, count: int) -> np.ndarray:
        """The times of the last `count` headers that end with `i` (fewer near genesis), oldest first."""
        branch: list[int] = []
        while len(branch) < count and i >= 0 and not self.is_active(i):
            branch.append(self._fields(i)[10])
            i = self.parent(i)
        older = self._times[:0]
        if i >= 0 and len(branch) < count:
            end = self.height(i) + 1
            older = self._times[max(0, end - (count - len(branch))) : end]
        return np.concatenate((older, np.array(branch[::-1], dtype="<u4")))

    def median_time_past(self, i: int) -> int:
        """The median of the last eleven times that end with `i` (Core: `GetMedianTimePast`, chain.h)."""
        times = np.sort(self.times_back(i, MEDIAN_TIME_SPAN))
        return int(times[len(times) // 2])
