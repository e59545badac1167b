"""Our header file: the recorded chain in it, work and times, branches, crashes, and an open of 900,000 headers."""

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from models.consensus.params import get_params
from models.consensus.pow import block_work
from models.errors import StoreCorrupt, StoreError
from models.storage.blockindex import FAILED, FAILED_CHILD, read_block_index
from models.storage.checkpoint import checkpoint
from models.storage.faults import FAULT_EXIT_CODE
from models.storage.headerrecord import RECORD, RECORD_SIZE, with_checksums
from models.storage.headers import HeaderIndex
from models.wire.block import BlockHeader
from models.wire.hashes import from_display, sha256d

GENESIS = BlockHeader.parse(get_params("regtest").genesis_block)


def child(parent: BlockHeader, time: int, nonce: int = 0) -> BlockHeader:
    """A header on top of another; proof of work is nobody's business here."""
    return dataclasses.replace(parent, prev_hash=parent.hash, time=time, nonce=nonce)


def chain_on(parent: BlockHeader, count: int, nonce: int = 0) -> list[BlockHeader]:
    headers = []
    for _ in range(count):
        parent = child(parent, parent.time + 600, nonce)
        headers.append(parent)
    return headers


@pytest.fixture
def index(tmp_path: Path) -> HeaderIndex:
    return HeaderIndex.create(tmp_path / "index", GENESIS)


@pytest.fixture
def recorded(data: Path, datadir: Callable[[str], Path], tmp_path: Path) -> tuple[HeaderIndex, dict]:
    """The header index of the recorded data directory, and what Core said of its chain."""
    tip = json.loads((data / "corpus/tip.json").read_text())
    checkpoint(datadir("corpus/regtest_datadir.tar.gz") / "regtest/blocks/index", tmp_path / "copy")
    entries = read_block_index(tmp_path / "copy")
    return HeaderIndex.create_from_entries(tmp_path / "index", entries, from_display(tip["hash"])), tip


def test_the_recorded_chain(recorded: tuple[HeaderIndex, dict]) -> None:
    index, tip = recorded
    assert index.tip_height == tip["height"]
    assert [index.hash(index.active(h)) for h in range(126)] == [from_display(h) for h in tip["block_hashes"]]
    assert index.times_by_height.tolist() == tip["block_times"]
    assert index.median_time_past(index.tip) == tip["mtp"]
    assert index.header(index.tip).bits == int(tip["bits"], 16)
    for i in range(len(index)):
        assert index.header(i).hash == index.hash(i)
        assert index.find(index.hash(i)) == i
    # Every regtest block counts two hashes (Core's getblockheader says chainwork 2 for its genesis).
    assert index.chain_work(index.tip) == 2 * 126


def test_side_blocks_are_there_and_off_the_chain(recorded: tuple[HeaderIndex, dict]) -> None:
    index, _ = recorded
    side = [i for i in range(len(index)) if not index.is_active(i)]
    assert len(side) == 3  # the corpus has a side block, a failed block and a header alone
    assert sum(index.failed(i) for i in side) == 1
    for i in side:
        assert index.descends(i, index.fork_point(i))
        assert not index.descends(index.tip, i)


@pytest.mark.parametrize(
    ("bits", "work"),
    [
        (0x1D00FFFF, 0x100010001),  # mainnet genesis, chainwork of Core's getblockheader
        (0x207FFFFF, 2),
        (0x01FEDCBA, 0),  # negative (Core, arith_uint256_tests)
        (0x00123456, 0),  # zero
        (0xFF123456, 0),  # overflow
    ],
)
def test_block_work(bits: int, work: int) -> None:
    assert block_work(bits) == work


def test_appended_headers_are_there_after_reopening(index: HeaderIndex, tmp_path: Path) -> None:
    headers = chain_on(GENESIS, 30)
    numbers = index.append_many(headers[:20], 5) + [index.append(header, 5, 7) for header in headers[20:]]
    index.set_tip(numbers[-1])
    index.close()
    again = HeaderIndex(tmp_path / "index", headers[-1].hash)
    assert len(again) == 31
    assert [again.find(header.hash) for header in headers] == numbers
    assert again.header(again.tip) == headers[-1]
    assert again.n_tx(again.tip) == 7
    assert again.chain_work(again.tip) == 2 * 31
    assert again.append(headers[3], 5, 0) == numbers[3]
    assert again.find(bytes(32)) is None


def test_more_headers_than_the_file_has_room_for(index: HeaderIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("models.storage.headers.GROWTH", 4)
    headers = chain_on(GENESIS, 9000)
    for start in range(0, 9000, 1000):
        index.append_many(headers[start : start + 1000], 2)
    assert len(index) == 9001
    assert index.find(headers[-1].hash) == 9000
    index.set_tip(9000)
    assert index.tip_height == 9000


def test_an_unknown_parent_is_refused(index: HeaderIndex) -> None:
    with pytest.raises(StoreError, match="is not known"):
        index.append(chain_on(GENESIS, 2)[1], 2, 0)
    assert len(index) == 1


def test_a_reorganisation(index: HeaderIndex) -> None:
    old = index.append_many(chain_on(GENESIS, 10), 5)
    index.set_tip(old[-1])
    times_before = index.times_by_height
    expected_before = times_before.tolist()
    fork = index.header(old[3])
    new_headers = chain_on(fork, 8, nonce=1)
    new = index.append_many(new_headers, 5)
    assert index.fork_point(new[-1]) == old[3]
    assert index.ancestor(new[-1], 2) == old[1]
    assert index.ancestor(new[-1], 6) == new[1]
    assert not index.descends(new[-1], old[4])
    assert index.times_back(new[1], 4).tolist() == [
        *(index.header(i).time for i in old[2:4]),
        *(header.time for header in new_headers[:2]),
    ]
    index.set_tip(new[-1])
    assert [index.active(h) for h in range(13)] == [0, *old[:4], *new]
    assert not index.is_active(old[5])
    assert index.descends(old[9], old[3])
    assert times_before.tolist() == expected_before
    index.set_tip(old[1])
    assert index.tip_height == 2
    with pytest.raises(IndexError):
        index.active(3)


def test_median_time_past_near_genesis(index: HeaderIndex) -> None:
    first = child(GENESIS, GENESIS.time + 50)
    second = child(first, GENESIS.time + 10)
    numbers = index.append_many([first, second], 5)
    # Sorted: genesis, +10, +50; element n // 2 of each prefix.
    assert index.median_time_past(0) == GENESIS.time
    assert index.median_time_past(numbers[0]) == GENESIS.time + 50
    assert index.median_time_past(numbers[1]) == GENESIS.time + 10


def test_failure_spreads_to_descendants(index: HeaderIndex) -> None:
    numbers = index.append_many(chain_on(GENESIS, 5), 5)
    other = index.append_many(chain_on(index.header(numbers[0]), 2, nonce=1), 5)
    index.mark_failed(numbers[2], FAILED)
    assert [index.status(i) for i in numbers] == [5, 5, 5 | FAILED, 5 | FAILED_CHILD, 5 | FAILED_CHILD]
    assert [index.failed(i) for i in other] == [False, False]


def test_the_tip_follows_the_coins_at_open(index: HeaderIndex, tmp_path: Path) -> None:
    headers = chain_on(GENESIS, 10)
    numbers = index.append_many(headers, 5)
    index.set_tip(numbers[4])
    index.close()
    for at in (9, 2, 5):
        again = HeaderIndex(tmp_path / "index", headers[at].hash)
        assert (again.tip, again.tip_height) == (numbers[at], at + 1)
        again.close()


@pytest.mark.parametrize("content", [b"", b"\x00" * 7, b"\xff" * 40, b"\x00\x00\x00\x00\x05\x00\x00\x00"])
def test_a_damaged_active_chain_is_made_again(index: HeaderIndex, tmp_path: Path, content: bytes) -> None:
    headers = chain_on(GENESIS, 10)
    index.append_many(headers, 5)
    index.close()
    (tmp_path / "index/active.bin").write_bytes(content)
    again = HeaderIndex(tmp_path / "index", headers[7].hash)
    assert [again.active(h) for h in range(9)] == list(range(9))


def test_without_the_coins_header_there_is_no_tip_yet(index: HeaderIndex, tmp_path: Path) -> None:
    headers = chain_on(GENESIS, 3)
    index.close()
    again = HeaderIndex(tmp_path / "index", headers[2].hash)
    assert not again.has_tip
    with pytest.raises(StoreError, match="not known yet"):
        _ = again.tip
    numbers = again.append_many(headers, 5)
    again.set_tip(numbers[2])
    assert again.tip_height == 3


@pytest.mark.parametrize("cut", [1, 60, RECORD_SIZE - 1, RECORD_SIZE])
def test_a_torn_tail_is_dropped(index: HeaderIndex, tmp_path: Path, cut: int) -> None:
    headers = chain_on(GENESIS, 5)
    index.append_many(headers, 5)
    index.close()
    file = tmp_path / "index/headers.bin"
    os.truncate(file, RECORD_SIZE * 7 - cut)
    again = HeaderIndex(tmp_path / "index", headers[3].hash)
    assert len(again) == 5
    assert again.tip_height == 4
    again.append(headers[4], 5, 1)
    again.close()
    assert HeaderIndex(tmp_path / "index", headers[4].hash).tip_height == 5


def test_a_last_record_that_never_reached_the_disk_is_dropped(index: HeaderIndex, tmp_path: Path) -> None:
    headers = chain_on(GENESIS, 5)
    index.append_many(headers, 5)
    index.close()
    with (tmp_path / "index/headers.bin").open("r+b") as handle:
        handle.seek(RECORD_SIZE * 6)
        handle.write(bytes(RECORD_SIZE))
    assert len(HeaderIndex(tmp_path / "index", headers[0].hash)) == 5


@pytest.mark.parametrize(("place", "count"), [("before_append", 1), ("before_count", 1), ("after_append", 2)])
def test_a_crash_while_appending_leaves_whole_headers(
    index: HeaderIndex, tmp_path: Path, place: str, count: int
) -> None:
    header = chain_on(GENESIS, 1)[0]
    index.close()
    program = f"""
from models.storage.headers import HeaderIndex
from models.wire.block import BlockHeader
HeaderIndex({str(tmp_path / "index")!r}).append(BlockHeader.parse(bytes.fromhex({header.serialize().hex()!r})), 5, 1)
"""
    environment = {"TXC_FAULT": f"headers.{place}", "PYTHONPATH": "."}
    assert subprocess.run([sys.executable, "-c", program], env=environment).returncode == FAULT_EXIT_CODE
    assert len(HeaderIndex(tmp_path / "index", GENESIS.hash)) == count


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="headers.bin"):
        HeaderIndex(tmp_path)
    (tmp_path / "headers.bin").write_bytes(bytes(1000))
    with pytest.raises(StoreCorrupt, match="no header index"):
        HeaderIndex(tmp_path)


@pytest.mark.parametrize("at", [0, 7, 8, 15, 16, 23, 24, 127])
def test_a_flipped_byte_before_the_records_is_seen_at_open(index: HeaderIndex, tmp_path: Path, at: int) -> None:
    index.append_many(chain_on(GENESIS, 5), 5)
    index.close()
    _flip(tmp_path / "index/headers.bin", at)
    for write in (False, True):
        with pytest.raises(StoreCorrupt, match=r"headers\.bin"):
            HeaderIndex(tmp_path / "index", GENESIS.hash, write)


def test_a_flipped_bit_anywhere_in_a_record_is_seen_at_open(index: HeaderIndex, tmp_path: Path) -> None:
    numbers = index.append_many(chain_on(GENESIS, 5), 5, 3)
    index.set_status(numbers[2], 7, 9)
    index.mark_failed(numbers[3], FAILED)
    index.close()
    HeaderIndex(tmp_path / "index", GENESIS.hash).close()
    file = tmp_path / "index/headers.bin"
    for record in (1, 3, 4, 5):  # the last one, too: it was written, so it is not a crash's
        for at in range(RECORD_SIZE):
            place = RECORD_SIZE * (1 + record) + at
            _flip(file, place, 1 << at % 8)
            with pytest.raises(StoreCorrupt, match=rf"headers\.bin is damaged: header {record} "):
                HeaderIndex(tmp_path / "index", GENESIS.hash, write=False)
            _flip(file, place, 1 << at % 8)


def test_a_file_from_before_the_checksums_is_given_them(index: HeaderIndex, tmp_path: Path) -> None:
    headers = chain_on(GENESIS, 5)
    index.append_many(headers, 5, 3)
    index.close()
    file = tmp_path / "index/headers.bin"
    content = bytearray(file.read_bytes())
    content[:24] = b"TXCHDRS1" + (6).to_bytes(8, "little") + bytes(8)
    for record in range(1, 7):
        for half in (106, 110):
            content[RECORD_SIZE * record + half : RECORD_SIZE * record + half + 2] = bytes(2)
    file.write_bytes(content)
    old = HeaderIndex(tmp_path / "index", headers[4].hash, write=False)
    assert (len(old), old.n_tx(5), old.status(5)) == (6, 3, 5)
    assert HeaderIndex(tmp_path / "index", headers[4].hash).tip_height == 5
    _flip(file, RECORD_SIZE * 3 + 100)
    with pytest.raises(StoreCorrupt, match=r"headers\.bin"):
        HeaderIndex(tmp_path / "index", headers[4].hash)


def _flip(file: Path, at: int, mask: int = 0x10) -> None:
    with file.open("r+b") as handle:
        handle.seek(at)
        [byte] = handle.read(1)
        handle.seek(at)
        handle.write(bytes([byte ^ mask]))


@pytest.mark.timeout(60)
def test_opening_900000_headers_calls_no_python_per_header(tmp_path: Path) -> None:
    count = 900_000
    records = np.zeros(count, dtype=RECORD)
    noise = np.random.default_rng(1).integers(0, 256, (count, 32), dtype=np.uint8)
    records["hash"] = noise.view("V32")[:, 0]
    records["parent"] = np.arange(count) - 1
    records["height"] = np.arange(count)
    records["time"] = 1_231_006_505 + 600 * np.arange(count)
    last = BlockHeader(1, records["hash"][-2].tobytes(), bytes(32), int(records["time"][-1]), 0, 0)
    tail = records[-1:]
    tail["version"], tail["hash"] = 1, np.frombuffer(sha256d(last.serialize()), dtype="V32")
    (tmp_path / "headers.bin").write_bytes(
        (b"TXCHDRS2" + count.to_bytes(8, "little") + (2**64 - 1 - count).to_bytes(8, "little")).ljust(128, b"\0")
        + with_checksums(records).tobytes()
    )
    (tmp_path / "active.bin").write_bytes(np.arange(count, dtype="<u4").tobytes())

    calls = 0

    def count_calls(*_: object) -> None:
        nonlocal calls
        calls += 1

    sys.setprofile(count_calls)
    try:
        index = HeaderIndex(tmp_path, last.hash)
        middle = index.find(records["hash"][450_000].tobytes())
        deep = index.ancestor(index.tip, 3)
    finally:
        sys.setprofile(None)
    assert (len(index), index.tip_height, middle, deep) == (count, count - 1, 450_000, 3)
    assert calls < 2000
    assert index.median_time_past(index.tip) == 1_231_006_505 + 600 * (count - 6)
