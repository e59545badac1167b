"""dumptxoutset files: Core's own, one written by us, and everything Core's loader refuses."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from models.coins.codec import encode_coin
from models.coins.coin import Coin
from models.consensus.params import get_params
from models.errors import NetworkMismatch, StoreCorrupt, StoreError
from models.storage.snapshot import SnapshotReader, write_snapshot
from models.wire.hashes import from_display

MAGIC = get_params("regtest").magic
BASE = bytes(range(32))
A, B = bytes([1] * 32), bytes([2] * 32)
COIN = Coin(1000, 5, False, b"\x51")


@pytest.fixture
def recorded(datadir: Callable[[str], Path]) -> Path:
    return datadir("regtest_datadir.tar.gz") / "regtest/utxo.dat"


def snapshot(path: Path, body: bytes, count: int, magic: bytes = MAGIC) -> SnapshotReader:
    """A file by the layout of SPEC 3.5, opened."""
    path.write_bytes(b"utxo\xff" + (2).to_bytes(2, "little") + magic + BASE + count.to_bytes(8, "little") + body)
    return SnapshotReader(path, MAGIC)


def group(txid: bytes, *coins: tuple[int, Coin]) -> bytes:
    return txid + bytes((len(coins),)) + b"".join(bytes((vout,)) + encode_coin(coin) for vout, coin in coins)


def test_cores_own_file(data: Path, recorded: Path) -> None:
    info = json.loads((data / "regtest_datadir.info.json").read_text())
    reader = SnapshotReader(recorded, MAGIC)
    assert reader.header.base_hash == from_display(info["tip"])
    coins = list(reader.coins(base_height=info["height"]))
    assert len(coins) == reader.header.coins == info["gettxoutsetinfo"]["txouts"]
    assert reader.hash_serialized_3 == info["hash_serialized_3"]
    assert reader.total_amount == round(info["gettxoutsetinfo"]["total_amount"] * 10**8)
    assert reader.max_height == info["height"]


def test_written_is_cores_own_file_byte_for_byte(recorded: Path, tmp_path: Path) -> None:
    reader = SnapshotReader(recorded)
    count = write_snapshot(tmp_path / "utxo.dat", reader.header.magic, reader.header.base_hash, reader.coins())
    assert count == reader.header.coins
    assert (tmp_path / "utxo.dat").read_bytes() == recorded.read_bytes()
    assert [path.name for path in tmp_path.iterdir()] == ["utxo.dat"]


def test_small_reads_give_the_same(recorded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = list(SnapshotReader(recorded).coins())
    monkeypatch.setattr("models.storage.snapshot.CHUNK", 300)
    monkeypatch.setattr("models.storage.snapshot.LARGEST_ITEM", 200)
    assert list(SnapshotReader(recorded).coins()) == whole


def test_progress_is_told(recorded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("models.storage.snapshot.PROGRESS_STEP", 100)
    reader = SnapshotReader(recorded)
    told: list[tuple[int, int]] = []
    count = sum(1 for _ in reader.coins(progress=lambda done, total: told.append((done, total))))
    assert told[-1] == (count, count)
    assert len(told) == 1 + count // 100


def test_a_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    body = group(A, (0, COIN), (3, COIN)) + group(B, (1, COIN))
    snapshot(tmp_path / "whole", body, 3).close()
    stored = (tmp_path / "whole").read_bytes()
    for size in range(len(stored)):
        (tmp_path / "cut").write_bytes(stored[:size])
        with pytest.raises(StoreError):
            list(SnapshotReader(tmp_path / "cut").coins())


@pytest.mark.parametrize(
    ("body", "count", "match"),
    [
        (group(A, (0, COIN)) + b"\0", 1, "behind the last coin"),
        (group(A, (0, COIN), (1, COIN)), 1, "has 2 coins, but 1 are left"),
        (A + b"\0", 1, "has 0 coins"),
        (group(B, (0, COIN)) + group(A, (0, COIN)), 2, "out of order"),
        (group(A, (0, COIN)) + group(A, (1, COIN)), 2, "out of order"),
        (group(A, (0, COIN), (0, COIN)), 2, "twice"),
        (group(A, (0, Coin(1, 11, False, b""))), 1, "above the base block's height 10"),
        (group(A, (0, Coin(21 * 10**14 + 1, 1, False, b""))), 1, "out of range"),
        (A + b"\x01\xfe\xff\xff\xff\xff" + encode_coin(COIN), 1, "output number 4294967295"),
        (A + b"\x01\xfd\x01\x00" + encode_coin(COIN), 1, "non-canonical"),
    ],
)
def test_what_cores_loader_refuses(tmp_path: Path, body: bytes, count: int, match: str) -> None:
    with snapshot(tmp_path / "utxo.dat", body, count) as reader, pytest.raises(StoreCorrupt, match=match):
        list(reader.coins(base_height=10))


def test_the_highest_output_number_is_taken(tmp_path: Path) -> None:
    with snapshot(tmp_path / "utxo.dat", A + b"\x01\xfe\xfe\xff\xff\xff" + encode_coin(COIN), 1) as reader:
        assert list(reader.coins()) == [(A + b"\xfe\xff\xff\xff", COIN)]


def test_other_files_are_refused(tmp_path: Path, recorded: Path) -> None:
    with pytest.raises(NetworkMismatch, match="f9beb4d9"):
        snapshot(tmp_path / "utxo.dat", b"", 0, magic=bytes.fromhex("f9beb4d9"))
    (tmp_path / "other").write_bytes(b"no snapshot at all")
    with pytest.raises(StoreError, match="no UTXO snapshot"):
        SnapshotReader(tmp_path / "other")
    raw = bytearray(recorded.read_bytes())
    raw[5] = 1
    (tmp_path / "old").write_bytes(raw)
    with pytest.raises(StoreError, match="version 1"):
        SnapshotReader(tmp_path / "old")
    with pytest.raises(StoreError, match="cannot open"):
        SnapshotReader(tmp_path / "nothing")
