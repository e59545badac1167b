"""Core's block index and block files: every recorded block and undo record, damage, and failure that spreads."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.coins.codec import encode_coin, write_varint
from models.coins.coin import Coin
from models.errors import StoreCorrupt, StoreError
from models.storage.blockfiles import BlockFiles, parse_undo, xor_at
from models.storage.blockindex import HAVE_DATA, HAVE_UNDO, read_block_index, spread_failure
from models.storage.checkpoint import checkpoint
from models.storage.coinsdb import open_leveldb
from models.wire.block import decode_block
from models.wire.compactsize import write_compact_size

ARCHIVES = ["corpus/regtest_datadir.tar.gz", "corpus/regtest_datadir_logonly.tar.gz", "regtest_datadir.tar.gz"]


@pytest.fixture(params=ARCHIVES)
def node(request: pytest.FixtureRequest, datadir: Callable[[str], Path]) -> Path:
    return datadir(request.param) / "regtest"


def entries_of(node: Path, tmp_path: Path) -> np.ndarray:
    checkpoint(node / "blocks/index", tmp_path / "copy")
    return read_block_index(tmp_path / "copy")


def test_every_block_and_undo_record_reads_back(node: Path, tmp_path: Path) -> None:
    files = BlockFiles(node / "blocks")
    created: dict[bytes, Coin] = {}
    spent = 0
    for entry in entries_of(node, tmp_path):
        if not entry["status"] & HAVE_DATA:
            continue
        raw = files.read_block(int(entry["file"]), int(entry["data_pos"]), entry["hash"].tobytes())
        block = decode_block(raw, allow_trailing=False)
        assert len(block.transactions) == entry["n_tx"]
        height = int(entry["height"])
        for tx in block.transactions:
            for n, (value, script) in enumerate(zip(tx.values, tx.script_pubkeys, strict=True)):
                created[tx.txid + n.to_bytes(4, "little")] = Coin(value, height, tx.is_coinbase, script)
        if not entry["status"] & HAVE_UNDO:
            continue
        undo = files.read_undo(int(entry["file"]), int(entry["undo_pos"]), block.header.prev_hash)
        assert len(undo) == len(block.transactions) - 1
        for tx, coins in zip(block.transactions[1:], undo, strict=True):
            assert [created[prevout] for prevout in tx.prevouts] == coins
            spent += len(coins)
    assert spent > 0


def test_a_wrong_place_is_corrupt(node: Path, tmp_path: Path) -> None:
    files = BlockFiles(node / "blocks")
    entry = next(e for e in entries_of(node, tmp_path) if e["status"] & HAVE_UNDO)
    block_hash, position, undo = entry["hash"].tobytes(), int(entry["data_pos"]), int(entry["undo_pos"])
    for wrong in (0, position + 1, 16_777_000, 17_000_000):
        with pytest.raises(StoreCorrupt, match="blk00000"):
            files.read_block(0, wrong, block_hash)
    with pytest.raises(StoreCorrupt, match="another one"):
        files.read_block(0, position, bytes(32))
    with pytest.raises(StoreCorrupt, match="checksum"):
        files.read_undo(0, undo, bytes(32))
    with pytest.raises(StoreError, match="blk00007"):
        files.read_block(7, position, block_hash)


def test_a_short_xor_key_is_refused(node: Path, tmp_path: Path) -> None:
    (tmp_path / "xor.dat").write_bytes(b"\x01")
    with pytest.raises(StoreError, match=r"xor\.dat has 1 bytes"):
        BlockFiles(tmp_path)


def test_a_damaged_index_record_is_corrupt(datadir: Callable[[str], Path], tmp_path: Path) -> None:
    checkpoint(datadir(ARCHIVES[0]) / "regtest/blocks/index", tmp_path / "copy")
    db = open_leveldb(tmp_path / "copy")
    with db.iterator(prefix=b"b") as records:
        key, value = next(records)
    db.put(key, value[:-1] + bytes((value[-1] ^ 1,)))
    db.close()
    with pytest.raises(StoreCorrupt, match="does not hold its header"):
        read_block_index(tmp_path / "copy")


def test_a_missing_parent_is_corrupt(datadir: Callable[[str], Path], tmp_path: Path) -> None:
    entries = entries_of(datadir(ARCHIVES[0]) / "regtest", tmp_path)
    db = open_leveldb(tmp_path / "copy")
    db.delete(b"b" + entries[10]["hash"].tobytes())
    db.close()
    with pytest.raises(StoreCorrupt, match="without their parent"):
        read_block_index(tmp_path / "copy")


def test_an_obfuscated_index_is_read(datadir: Callable[[str], Path], tmp_path: Path) -> None:
    plain = entries_of(datadir(ARCHIVES[0]) / "regtest", tmp_path)
    key = bytes(range(1, 9))
    db = open_leveldb(tmp_path / "copy")
    with db.iterator(prefix=b"b") as records:
        for record, value in list(records):
            db.put(record, xor_at(value, key, 0))
    db.put(b"\x0e\x00obfuscate_key", b"\x08" + key)
    db.close()
    assert read_block_index(tmp_path / "copy").tobytes() == plain.tobytes()


def test_an_empty_index_is_refused(tmp_path: Path) -> None:
    open_leveldb(tmp_path / "empty", create=True).close()
    with pytest.raises(StoreError, match="no block at all"):
        read_block_index(tmp_path / "empty")
    shutil.rmtree(tmp_path / "empty")


def test_failure_spreads_through_generations() -> None:
    #         0 - 1 - 2 - 4
    #              \- 3 - 5      block 3 failed
    status = np.array([5, 5, 5, 5 | 32, 5, 2], dtype="<u4")
    spread_failure(status, np.array([-1, 0, 1, 1, 2, 3]))
    assert status.tolist() == [5, 5, 5, 5 | 32, 5, 2 | 64]


coins = st.builds(
    Coin,
    value=st.integers(0, 21 * 10**14),
    height=st.integers(0, 10**6),
    coinbase=st.booleans(),
    script=st.binary(max_size=40),
)


def serialize_undo(transactions: list[list[Coin]]) -> bytes:
    """CBlockUndo by the layout of SPEC 3.4."""
    parts = [write_compact_size(len(transactions))]
    for spent in transactions:
        parts.append(write_compact_size(len(spent)))
        for coin in spent:
            code = write_varint(coin.height << 1 | coin.coinbase)
            parts += [code, b"\x00" if coin.height else b"", encode_coin(coin)[len(code) :]]
    return b"".join(parts)


@given(st.lists(st.lists(coins, max_size=3), max_size=4))
def test_undo_round_trip_and_truncation(transactions: list[list[Coin]]) -> None:
    raw = serialize_undo(transactions)
    assert parse_undo(raw) == transactions
    for size in range(len(raw)):
        with pytest.raises(StoreCorrupt):
            parse_undo(raw[:size])
    with pytest.raises(StoreCorrupt, match="too many"):
        parse_undo(raw + b"\0")


@given(st.binary(max_size=50), st.binary(min_size=8, max_size=8), st.integers(0, 100))
def test_xor_by_file_position(payload: bytes, key: bytes, offset: int) -> None:
    assert xor_at(payload, key, offset) == bytes(b ^ key[(offset + i) % 8] for i, b in enumerate(payload))
