"""Block bodies and undo data of ours: what went in comes out, damage is named, pruning keeps what it is told."""

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.coins.coin import Coin
from models.errors import StoreCorrupt, StoreError
from models.storage.archive import BlockArchive
from models.storage.faults import FAULT_EXIT_CODE
from models.wire.hashes import to_display

UNDO = [[Coin(5, 7, True, b"\x51"), Coin(0, 0, False, b"")], [Coin(21 * 10**14, 2**31 - 1, False, bytes(9999))]]


@pytest.fixture
def blocks(data: Path) -> list[bytes]:
    with gzip.open(data / "chain_shared1.jsonl.gz", "rt") as lines:
        next(lines)
        rows = [json.loads(line) for line, _ in zip(lines, range(5), strict=False)]
    return [bytes.fromhex(row if isinstance(row, str) else row["block"]) for row in rows]


def test_blocks_and_undo_read_back(blocks: list[bytes], tmp_path: Path) -> None:
    archive = BlockArchive(tmp_path)
    hashes = [archive.put_block(raw) for raw in blocks]
    archive.put_undo(hashes[0], UNDO)
    again = BlockArchive(tmp_path)
    assert [again.get_block(block_hash) for block_hash in hashes] == blocks
    assert again.get_undo(hashes[0]) == UNDO
    assert again.hashes() == set(hashes)
    assert (again.has_block(hashes[1]), again.has_undo(hashes[1])) == (True, False)


def test_what_is_not_kept_is_none(tmp_path: Path) -> None:
    archive = BlockArchive(tmp_path)
    assert archive.get_block(bytes(32)) is None
    assert archive.get_undo(bytes(32)) is None


def test_pruning(blocks: list[bytes], tmp_path: Path) -> None:
    archive = BlockArchive(tmp_path)
    hashes = [archive.put_block(raw) for raw in blocks]
    for block_hash in hashes:
        archive.put_undo(block_hash, UNDO)
    assert archive.prune(hashes[:2]) == 6
    assert archive.hashes() == set(hashes[:2])
    assert archive.get_undo(hashes[0]) == UNDO
    assert archive.get_undo(hashes[2]) is None


@pytest.mark.parametrize("position", [0, 10, 45, -1])
def test_damage_is_named(blocks: list[bytes], tmp_path: Path, position: int) -> None:
    archive = BlockArchive(tmp_path)
    block_hash = archive.put_block(blocks[0])
    archive.put_undo(block_hash, UNDO)
    for file in tmp_path.rglob(f"{to_display(block_hash)}.*"):
        raw = bytearray(file.read_bytes())
        raw[position] ^= 1
        file.write_bytes(raw)
    with pytest.raises(StoreCorrupt, match=f"{to_display(block_hash)}.blk"):
        archive.get_block(block_hash)
    with pytest.raises(StoreCorrupt, match=f"{to_display(block_hash)}.undo"):
        archive.get_undo(block_hash)


def test_a_file_under_another_name_is_another_block(blocks: list[bytes], tmp_path: Path) -> None:
    archive = BlockArchive(tmp_path)
    first = archive.put_block(blocks[0])
    (tmp_path / f"blocks/{to_display(first)}.blk").rename(tmp_path / f"blocks/{'00' * 32}.blk")
    with pytest.raises(StoreCorrupt, match="another block"):
        archive.get_block(bytes(32))


@pytest.mark.parametrize(
    ("place", "kept"), [("archive.block.before_rename", False), ("archive.block.after_rename", True)]
)
def test_a_crash_leaves_a_whole_block_or_none(blocks: list[bytes], tmp_path: Path, place: str, kept: bool) -> None:
    program = f"""
from models.storage.archive import BlockArchive
BlockArchive({str(tmp_path)!r}).put_block(bytes.fromhex({blocks[0].hex()!r}))
"""
    environment = {"TXC_FAULT": place, "PYTHONPATH": "."}
    assert subprocess.run([sys.executable, "-c", program], env=environment).returncode == FAULT_EXIT_CODE
    archive = BlockArchive(tmp_path)
    assert archive.hashes() == ({archive.put_block(blocks[0])} if kept else set())
    assert not list(tmp_path.rglob("*.tmp"))


def test_a_full_disk_is_a_named_error(tmp_path: Path, blocks: list[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    archive = BlockArchive(tmp_path)
    (tmp_path / "blocks").rmdir()
    with pytest.raises(StoreError, match=r"cannot write .*\.blk"):
        archive.put_block(blocks[0])


@given(
    st.lists(
        st.lists(
            st.builds(
                Coin,
                value=st.integers(0, 21 * 10**14),
                height=st.integers(0, 2**31 - 1),
                coinbase=st.booleans(),
                script=st.binary(max_size=50),
            ),
            max_size=3,
        ),
        max_size=4,
    )
)
def test_undo_round_trip(tmp_path_factory: pytest.TempPathFactory, spent: list[list[Coin]]) -> None:
    archive = BlockArchive(tmp_path_factory.getbasetemp() / "undo_round_trip")
    archive.put_undo(bytes(32), spent)
    assert archive.get_undo(bytes(32)) == spent
