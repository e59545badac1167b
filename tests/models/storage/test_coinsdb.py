"""The owner's database: what Core recorded of its sets, one batch per block, and databases that are refused."""

import gzip
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import plyvel
import pytest

from models.coins.coin import Coin
from models.errors import CoinsReadError, StoreCorrupt, StoreError, StoreInUse
from models.storage.coinsdb import CoinsHasher, CoinsOwner, open_leveldb
from models.storage.faults import FAULT_EXIT_CODE
from models.wire.hashes import from_display, to_display

CORPUS = ["corpus/regtest_datadir.tar.gz", "corpus/regtest_datadir_logonly.tar.gz"]
CREATED = bytes(32) + bytes(4)
OTHER = bytes([1] * 32) + b"\x01\x02\x03\x04"
COIN = Coin(50 * 10**8, 7, True, b"\x51")
BEST = bytes(range(32))


def outpoint_of(entry: dict) -> bytes:
    return from_display(entry["txid"]) + entry["vout"].to_bytes(4, "little")


@pytest.mark.parametrize("archive", CORPUS)
def test_every_recorded_coin_and_absence(data: Path, chainstate: Callable[[str], Path], archive: str) -> None:
    tip = json.loads((data / "corpus/tip.json").read_text())
    with CoinsOwner(chainstate(archive)) as owner:
        assert to_display(owner.best_block) == tip["hash"]
        for entry in tip["coins"]:
            expected = Coin(entry["value"], entry["height"], entry["coinbase"], bytes.fromhex(entry["script"]))
            assert owner.get(outpoint_of(entry)) == expected
        for entry in tip["absent"]:
            assert owner.get(outpoint_of(entry)) is None
            assert not owner.has(outpoint_of(entry))


@pytest.mark.parametrize("archive", CORPUS)
def test_stats_equal_gettxoutsetinfo(data: Path, chainstate: Callable[[str], Path], archive: str) -> None:
    tip = json.loads((data / "corpus/tip.json").read_text())
    with CoinsOwner(chainstate(archive)) as owner:
        stats = owner.utxo_stats()
    assert stats.hash_serialized_3 == tip["hash_serialized_3"]
    assert stats.total_amount == tip["total_amount_sat"]
    assert stats.txouts == tip["txoutset"]["txouts"]
    assert to_display(stats.best_block) == tip["hash"]


def test_stats_of_a_set_built_by_ourselves(data: Path, tmp_path: Path) -> None:
    with gzip.open(data / "chain_shared1.jsonl.gz", "rt") as lines:
        head = json.loads(next(lines))
    coins = {}
    with gzip.open(data / "chain_shared1.utxo.jsonl.gz", "rt") as lines:
        for line in lines:
            txid, n, height, coinbase, sats, script, _ = json.loads(line)
            coins[from_display(txid) + n.to_bytes(4, "little")] = Coin(
                sats, height, bool(coinbase), bytes.fromhex(script)
            )
    with CoinsOwner(tmp_path / "db", create=True) as owner:
        owner.bulk_load(coins.items(), BEST)
        assert owner.utxo_stats().hash_serialized_3 in json.dumps(head)
        assert dict(owner.iterate()) == coins


def test_outputs_hash_by_number_not_by_key(tmp_path: Path) -> None:
    # The VARINT of 16,512 sorts before that of 16,511; Core hashes by number.
    low, high = (bytes(32) + n.to_bytes(4, "little") for n in (16_511, 16_512))
    by_number, by_key = CoinsHasher(), CoinsHasher()
    for outpoint in (low, high):
        by_number.add(outpoint, COIN)
    with CoinsOwner(tmp_path / "db", create=True) as owner:
        owner.bulk_load([(low, COIN), (high, COIN)], BEST)
        assert [outpoint for outpoint, _ in owner.iterate()] == [high, low]
        for outpoint, coin in owner.iterate():
            by_key.add(outpoint, coin)
    assert by_key.finish() == by_number.finish()


def test_apply_is_there_after_reopening(tmp_path: Path) -> None:
    with CoinsOwner(tmp_path / "db", create=True) as owner:
        owner.apply([], [(CREATED, COIN), (OTHER, COIN)], BEST)
        owner.apply([CREATED], [], bytes(reversed(BEST)))
    with CoinsOwner(tmp_path / "db") as owner:
        assert owner.best_block == bytes(reversed(BEST))
        assert owner.get(CREATED) is None
        assert owner.get(OTHER) == COIN


@pytest.mark.parametrize(("place", "generations"), [("coins.before_batch", 1), ("coins.after_batch", 2)])
def test_a_crash_leaves_whole_blocks(tmp_path: Path, place: str, generations: int) -> None:
    program = f"""
from models.coins.coin import Coin
from models.storage.coinsdb import CoinsOwner
owner = CoinsOwner({str(tmp_path / "db")!r}, create=True)
for n in (1, 2, 3):
    owner.apply([], [(bytes([n] * 36), Coin(n, n, False, b"Q"))], bytes([n] * 32))
"""
    done = subprocess.run([sys.executable, "-c", program], env={"TXC_FAULT": f"{place}:2", "PYTHONPATH": "."})
    assert done.returncode == FAULT_EXIT_CODE
    with CoinsOwner(tmp_path / "db") as owner:
        assert owner.best_block == bytes([generations] * 32)
        assert [coin.value for _, coin in owner.iterate()] == list(range(1, generations + 1))


def test_second_open_in_this_process_is_refused(tmp_path: Path) -> None:
    with CoinsOwner(tmp_path / "db", create=True) as owner:
        owner.apply([], [], BEST)
        (tmp_path / "link").symlink_to(tmp_path / "db")
        with pytest.raises(StoreInUse, match="in this process"):
            CoinsOwner(tmp_path / "link")
        assert owner.get(CREATED) is None
    CoinsOwner(tmp_path / "db").close()


def test_open_while_another_process_has_it_is_refused(busy_writer) -> None:
    with pytest.raises(StoreInUse, match="another process"):
        CoinsOwner(busy_writer.path)


def test_a_missing_directory_is_refused_and_not_made(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="CURRENT"):
        CoinsOwner(tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()


@pytest.mark.parametrize(
    ("records", "match"),
    [
        ({b"H": b"\x02" + bytes(64)}, "between two tips"),
        ({}, "no best block"),
        ({b"B": BEST, b"c" + bytes(32): b"\x01"}, "before 0.15"),
        ({b"B": BEST, b"\x0e\x00obfuscate_key": b"\x04" + bytes(4)}, "obfuscation key"),
        ({b"B": BEST[:31]}, "31 bytes"),
    ],
)
def test_databases_that_are_refused(tmp_path: Path, records: dict[bytes, bytes], match: str) -> None:
    db = plyvel.DB(str(tmp_path / "db"), create_if_missing=True, compression=None)
    for key, value in records.items():
        db.put(key, value)
    db.close()
    with pytest.raises(StoreError, match=match):
        CoinsOwner(tmp_path / "db")
    open_leveldb(tmp_path / "db").close()  # and the lock was given up


def test_a_flipped_bit_is_an_error_and_no_absence(data: Path, chainstate: Callable[[str], Path]) -> None:
    path = chainstate("corpus/regtest_datadir.tar.gz")
    table = path / "000011.ldb"
    raw = bytearray(table.read_bytes())
    for position in range(20_000, 300_000, 4000):
        raw[position] ^= 1
    table.unlink()  # it is a link to the recorded one
    table.write_bytes(raw)
    with CoinsOwner(path) as owner:
        tip = json.loads((data / "corpus/tip.json").read_text())
        failed = 0
        for entry in tip["coins"]:
            try:
                assert owner.get(outpoint_of(entry)) is not None
            except CoinsReadError:
                failed += 1
        assert failed > 0
        with pytest.raises(CoinsReadError):
            owner.utxo_stats()


def test_a_damaged_manifest_is_named(tmp_path: Path) -> None:
    with CoinsOwner(tmp_path / "db", create=True) as owner:
        owner.apply([], [], BEST)
    manifest = next((tmp_path / "db").glob("MANIFEST-*"))
    manifest.write_bytes(b"\xff" * manifest.stat().st_size)
    with pytest.raises((StoreCorrupt, StoreError), match=str(tmp_path)):
        CoinsOwner(tmp_path / "db")


def test_a_closed_owner_raises(tmp_path: Path) -> None:
    owner = CoinsOwner(tmp_path / "db", create=True)
    owner.close()
    owner.close()
    with pytest.raises(CoinsReadError, match="closed"):
        owner.get(CREATED)
    with pytest.raises(StoreError, match="closed"):
        owner.apply([], [], BEST)
