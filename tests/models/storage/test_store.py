"""Stores from all three sources, equal to what Core recorded; the source untouched; epochs, locks, failed attempts."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import plyvel
import pytest

from models.coins.coin import Coin
from models.consensus.params import NETWORKS, get_params
from models.errors import NetworkMismatch, SettingsError, StoreCorrupt, StoreError, StoreInUse
from models.storage import creation
from models.storage.coinsdb import CoinsOwner, open_leveldb
from models.storage.faults import FAULT_EXIT_CODE
from models.storage.mempooldat import read_mempool
from models.storage.reader import CoinsReader
from models.storage.store import Store
from models.wire.block import BlockHeader, decode_block
from models.wire.hashes import from_display, to_display
from tests.models.storage.test_checkpoint import digest_of

ARCHIVES = ["corpus/regtest_datadir.tar.gz", "corpus/regtest_datadir_logonly.tar.gz"]


def outpoint_of(entry: dict) -> bytes:
    return from_display(entry["txid"]) + entry["vout"].to_bytes(4, "little")


@pytest.fixture
def tip(data: Path) -> dict:
    return json.loads((data / "corpus/tip.json").read_text())


@pytest.fixture
def node(datadir: Callable[[str], Path], tmp_path: Path) -> Path:
    """A data directory of our own, to be changed at will."""
    shutil.copytree(datadir(ARCHIVES[0]), tmp_path / "node")
    return tmp_path / "node"


@pytest.mark.parametrize("archive", ARCHIVES)
def test_a_store_from_a_data_directory(archive: str, datadir, tip: dict, tmp_path: Path) -> None:
    source = datadir(archive)
    before = digest_of(source)
    report = Store.create_from_datadir(source, tmp_path / "store")
    assert (report.network, report.height, report.blocks, report.warnings) == ("regtest", 125, 101, [])
    assert to_display(report.best_block) == tip["hash"]
    with Store.open(tmp_path / "store") as store:
        stats = store.coins.utxo_stats()
        assert (stats.hash_serialized_3, stats.total_amount) == (tip["hash_serialized_3"], tip["total_amount_sat"])
        for entry in tip["coins"]:
            expected = Coin(entry["value"], entry["height"], entry["coinbase"], bytes.fromhex(entry["script"]))
            assert store.coins.get(outpoint_of(entry)) == expected
        assert not any(store.coins.has(outpoint_of(entry)) for entry in tip["absent"])
        headers = store.headers
        assert [to_display(headers.hash(headers.active(h))) for h in range(126)] == tip["block_hashes"]
        assert headers.median_time_past(headers.tip) == tip["mtp"]
        assert len(read_mempool(store.mempool_path).entries) == tip["mempool_size"]
        reader = CoinsReader.open(store.chainstate_path, expect_best=from_display(tip["hash"]))
        assert None not in reader.read_coins([outpoint_of(entry) for entry in tip["coins"]])
    assert digest_of(source) == before


def test_bodies_and_undo_of_the_last_100_blocks(datadir, tmp_path: Path) -> None:
    Store.create_from_datadir(datadir(ARCHIVES[0]), tmp_path / "store")
    with Store.open(tmp_path / "store") as store:
        for height in range(126):
            block_hash = store.headers.hash(store.headers.active(height))
            raw, undo = store.archive.get_block(block_hash), store.archive.get_undo(block_hash)
            assert (raw is not None) == (undo is not None) == (height > 25)
            if raw is not None and undo is not None:
                transactions = decode_block(raw, allow_trailing=False).transactions
                assert [len(coins) for coins in undo] == [len(tx.prevouts) for tx in transactions[1:]]


def test_undoing_the_tip_by_the_archive_gives_the_coins_before(datadir, tmp_path: Path) -> None:
    """Undoes and redoes 100 blocks with what the store holds; the set is Core's again, hash and all."""
    Store.create_from_datadir(datadir(ARCHIVES[0]), tmp_path / "store")
    with Store.open(tmp_path / "store") as store:
        before = store.coins.utxo_stats()
        steps = []
        for height in range(125, 25, -1):
            block_hash = store.headers.hash(store.headers.active(height))
            raw, undo = store.archive.get_block(block_hash), store.archive.get_undo(block_hash)
            assert raw is not None
            assert undo is not None
            block = decode_block(raw)
            created = {
                tx.txid + n.to_bytes(4, "little"): Coin(value, height, tx.is_coinbase, script)
                for tx in block.transactions
                for n, (value, script) in enumerate(zip(tx.values, tx.script_pubkeys, strict=True))
                if not script.startswith(b"\x6a") and len(script) <= 10_000
            }
            spent = {
                prevout: coin
                for tx, coins in zip(block.transactions[1:], undo, strict=True)
                for prevout, coin in zip(tx.prevouts, coins, strict=True)
            }
            inside = created.keys() & spent.keys()
            made = [(o, c) for o, c in created.items() if o not in inside]
            taken = [(o, c) for o, c in spent.items() if o not in inside]
            assert all(store.coins.get(outpoint) == coin for outpoint, coin in made)
            store.coins.apply([outpoint for outpoint, _ in made], taken, block.header.prev_hash)
            steps.append(([outpoint for outpoint, _ in taken], made, block_hash))
        assert store.coins.utxo_stats().txouts < before.txouts
        for taken_outpoints, made, block_hash in reversed(steps):
            store.coins.apply(taken_outpoints, made, block_hash)
        assert store.coins.utxo_stats() == before


def test_a_node_that_holds_its_database_open(node: Path, tip: dict, tmp_path: Path) -> None:
    """The same with another process that has both databases open, as a running node has."""
    paths = [str(node / "regtest/chainstate"), str(node / "regtest/blocks/index")]
    program = f"""
import plyvel, sys
databases = [plyvel.DB(path, compression=None) for path in {paths!r}]
for db in databases:
    db.compact_range()  # so that nothing is left to do in the background
print("open", flush=True)
sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "open\n"
        before = digest_of(node)
        Store.create_from_datadir(node, tmp_path / "store")
        with Store.open(tmp_path / "store") as store:
            assert store.coins.utxo_stats().hash_serialized_3 == tip["hash_serialized_3"]
            store.coins.apply([], [(bytes(36), Coin(1, 1, False, b""))], store.coins.best_block)
        assert digest_of(node) == before
        holder.communicate()
        assert holder.returncode == 0
    with plyvel.DB(str(node / "regtest/chainstate"), compression=None, paranoid_checks=True) as db:
        assert sum(1 for _ in db.iterator(prefix=b"C", verify_checksums=True)) == tip["txoutset"]["txouts"]


@pytest.mark.parametrize("network", NETWORKS)
def test_a_store_of_genesis_alone(network: str, tmp_path: Path) -> None:
    report = Store.create_genesis(network, tmp_path / "store")
    params = get_params(network)
    assert (report.best_block, report.height) == (params.genesis_hash, 0)
    with Store.open(tmp_path / "store") as store:
        assert store.network == network
        assert store.coins.best_block == params.genesis_hash
        assert list(store.coins.iterate()) == []
        assert store.headers.header(store.headers.tip) == BlockHeader.parse(params.genesis_block)
        assert store.archive.get_block(params.genesis_hash) == params.genesis_block
        assert store.params.magic == params.magic


def test_switches_are_kept(tmp_path: Path) -> None:
    Store.create_genesis("regtest", tmp_path / "store", activation_heights={"csv": 432}, bip94=True)
    with Store.open(tmp_path / "store") as store:
        assert store.params.activation["csv"] == 432
        assert store.params.enforce_bip94
        assert get_params(**store.params_overrides) == store.params
    Store.create_genesis("signet", tmp_path / "signet", signet_challenge=b"\x51")
    with Store.open(tmp_path / "signet") as store:
        assert store.params.signet_challenge == b"\x51"
        assert get_params(**store.params_overrides) == store.params


def test_switches_a_network_does_not_have_leave_nothing(tmp_path: Path) -> None:
    with pytest.raises(SettingsError):
        Store.create_genesis("main", tmp_path / "store", activation_heights={"csv": 432})
    assert list(tmp_path.iterdir()) == []


def test_a_store_from_a_snapshot(data: Path, datadir, tmp_path: Path) -> None:
    info = json.loads((data / "regtest_datadir.info.json").read_text())
    node = datadir("regtest_datadir.tar.gz")
    told: list[tuple[int, int]] = []
    Store.create_from_snapshot(
        node / "regtest/utxo.dat",
        tmp_path / "store",
        expect_hash=info["hash_serialized_3"],
        progress=lambda done, total: told.append((done, total)),
    )
    assert told[-1] == (info["gettxoutsetinfo"]["txouts"],) * 2
    Store.create_from_datadir(node, tmp_path / "other")
    with Store.open(tmp_path / "store") as store, Store.open(tmp_path / "other") as other:
        assert store.coins.utxo_stats() == other.coins.utxo_stats()
        assert store.info.source["hash_serialized_3"] == info["hash_serialized_3"]
        assert store.served_tip().height is None
        assert to_display(store.served_tip().hash) == info["tip"]
        headers = [other.headers.header(other.headers.active(h)) for h in range(1, 141)]
        store.add_headers(headers[:100])
        assert not store.headers.has_tip
        store.add_headers(headers[100:])
        assert store.headers.tip_height == 140
        assert store.served_tip(now=headers[-1].time + 7).age == 7
    with Store.open(tmp_path / "store") as store:
        assert store.headers.tip_height == 140


def test_a_snapshot_with_another_hash_leaves_nothing(datadir, tmp_path: Path) -> None:
    file = datadir("regtest_datadir.tar.gz") / "regtest/utxo.dat"
    with pytest.raises(StoreError, match="hash to 2ef3f7fe"):
        Store.create_from_snapshot(file, tmp_path / "store", expect_hash="00" * 32)
    with pytest.raises(NetworkMismatch):
        Store.create_from_snapshot(file, tmp_path / "store", network="signet")
    assert list(tmp_path.iterdir()) == []


def test_a_snapshot_with_coins_above_its_base_is_not_given_a_tip(datadir, tmp_path: Path) -> None:
    node = datadir("regtest_datadir.tar.gz")
    Store.create_from_datadir(node, tmp_path / "other")
    with Store.open(tmp_path / "other") as other:
        headers = [other.headers.header(other.headers.active(h)) for h in range(1, 141)]
    raw = bytearray((node / "regtest/utxo.dat").read_bytes())
    raw[11:43] = headers[49].hash
    (tmp_path / "utxo.dat").write_bytes(raw)
    Store.create_from_snapshot(tmp_path / "utxo.dat", tmp_path / "store")
    with Store.open(tmp_path / "store") as store, pytest.raises(StoreError, match="height 140.*height 50"):
        store.add_headers(headers)


def test_every_open_raises_the_epoch(tmp_path: Path) -> None:
    Store.create_genesis("regtest", tmp_path / "store")
    epochs = []
    for _ in range(3):
        with Store.open(tmp_path / "store") as store:
            epochs.append(store.epoch)
    assert epochs == [1, 2, 3]
    with Store.open(tmp_path / "store", write=False) as store:
        assert store.epoch == 3
        assert store.served_tip().height == 0
        with pytest.raises(StoreError, match="not open for writing"):
            _ = store.coins


@pytest.mark.parametrize("place", ["store.info.before_rename", "store.info.after_rename"])
def test_an_epoch_is_never_given_twice(tmp_path: Path, place: str) -> None:
    Store.create_genesis("regtest", tmp_path / "store")
    with Store.open(tmp_path / "store") as store:
        first = store.epoch
    program = f"from models.storage.store import Store; Store.open({str(tmp_path / 'store')!r})"
    environment = {"TXC_FAULT": place, "PYTHONPATH": "."}
    assert subprocess.run([sys.executable, "-c", program], env=environment).returncode == FAULT_EXIT_CODE
    with Store.open(tmp_path / "store") as store:
        assert store.epoch > first


def test_a_store_is_open_once(tmp_path: Path) -> None:
    Store.create_genesis("regtest", tmp_path / "store")
    with Store.open(tmp_path / "store"), pytest.raises(StoreInUse):
        Store.open(tmp_path / "store")
    program = f"""
import sys
from models.storage.store import Store
store = Store.open({str(tmp_path / "store")!r})
print("open", flush=True)
sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "open\n"
        with pytest.raises(StoreInUse, match="another process"):
            Store.open(tmp_path / "store")
        Store.open(tmp_path / "store", write=False).close()
        holder.kill()
    Store.open(tmp_path / "store").close()


def test_what_exists_is_never_written_over(node: Path, tmp_path: Path) -> None:
    Store.create_genesis("regtest", tmp_path / "store")
    before = digest_of(tmp_path / "store")
    for create in (
        lambda: Store.create_genesis("regtest", tmp_path / "store"),
        lambda: Store.create_from_datadir(node, tmp_path / "store"),
    ):
        with pytest.raises(StoreError, match="exists already"):
            create()
    assert digest_of(tmp_path / "store") == before


def put(node: Path, key: bytes, value: bytes, gone: bytes | None = None) -> None:
    db = open_leveldb(node / "regtest/chainstate")
    db.put(key, value)
    if gone:
        db.delete(gone)
    db.close()


def damage_mid_flush(node: Path) -> None:
    put(node, b"H", b"\x02" + bytes(64), gone=b"B")


def damage_legacy(node: Path) -> None:
    put(node, b"c" + bytes(32), b"\x01")


def damage_unknown_best(node: Path) -> None:
    db = open_leveldb(node / "regtest/chainstate")
    db.put(b"B", bytes(32))
    db.close()


def damage_genesis(node: Path) -> None:
    (node / "regtest/blocks/blk00000.dat").unlink()
    (node / "regtest").rename(node / "signet")


def damage_mempool(node: Path) -> None:
    (node / "regtest/mempool.dat").write_bytes(bytes(8))


@pytest.mark.parametrize(
    ("damage", "match"),
    [
        (damage_mid_flush, "between two tips"),
        (damage_legacy, "before 0.15"),
        (damage_unknown_best, "block index does not know"),
        (damage_genesis, "not of signet"),
        (damage_mempool, "version 0"),
    ],
)
def test_a_data_directory_that_cannot_be_used_leaves_nothing(
    node: Path, tmp_path: Path, damage: Callable[[Path], None], match: str
) -> None:
    damage(node)
    before = digest_of(node)
    with pytest.raises(StoreError, match=match):
        Store.create_from_datadir(node, tmp_path / "store")
    assert [path.name for path in tmp_path.iterdir()] == ["node"]
    assert digest_of(node) == before


def test_a_pruned_node_gives_a_warning(node: Path, tmp_path: Path) -> None:
    (node / "regtest/blocks/rev00000.dat").unlink()
    (node / "regtest/blocks/blk00000.dat").rename(node / "regtest/blocks/blk00001.dat")
    report = Store.create_from_datadir(node, tmp_path / "store")
    assert report.blocks == 0
    assert any("blk00000.dat" in warning for warning in report.warnings)
    assert any("101 blocks" in warning for warning in report.warnings)
    with Store.open(tmp_path / "store") as store:
        assert store.served_tip().height == 125


def test_a_killed_creation_is_cleared_away_by_the_next(node: Path, tmp_path: Path) -> None:
    program = f"""
from models.storage.store import Store
Store.create_from_datadir({str(node)!r}, {str(tmp_path / "store")!r})
"""
    environment = {"TXC_FAULT": "store.before_rename", "PYTHONPATH": "."}
    assert subprocess.run([sys.executable, "-c", program], env=environment).returncode == FAULT_EXIT_CODE
    assert not (tmp_path / "store").exists()
    Store.create_from_datadir(node, tmp_path / "store")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["node", "store"]


def test_copies_are_told_where_links_are_impossible(node: Path, tmp_path: Path, monkeypatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    report = Store.create_from_datadir(node, tmp_path / "store")
    assert "Invalid cross-device link" in report.warnings[0]


@pytest.mark.parametrize("content", [None, b"", b"[]", b"{}", b'{"schema": 1}', b'{"schema": 99}'])
def test_a_store_json_that_is_none(tmp_path: Path, content: bytes | None) -> None:
    Store.create_genesis("regtest", tmp_path / "store")
    file = tmp_path / "store/store.json"
    file.unlink()
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(StoreError, match="99|store.json") as caught:
        Store.open(tmp_path / "store")
    assert isinstance(caught.value, StoreCorrupt) == (content is None or b"99" not in content)
    shutil.rmtree(tmp_path / "store/chainstate")
    if content is None:
        with pytest.raises(StoreError, match="no store in"):
            Store.open(tmp_path / "store")


def test_a_failed_open_gives_up_every_lock(tmp_path: Path) -> None:
    Store.create_genesis("regtest", tmp_path / "store")
    (tmp_path / "store/index/headers.bin").rename(tmp_path / "aside")
    with pytest.raises(StoreError, match="headers.bin"):
        Store.open(tmp_path / "store")
    (tmp_path / "aside").rename(tmp_path / "store/index/headers.bin")
    Store.open(tmp_path / "store").close()


def test_recent_blocks_are_fewer_on_a_short_chain(node: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(creation, "RECENT_BLOCKS", 1000)
    report = Store.create_from_datadir(node, tmp_path / "store")
    assert report.blocks == 126 + 1  # the whole chain and the one side block that is not failed


def test_the_owner_lock_of_the_database_is_held(tmp_path: Path) -> None:
    Store.create_genesis("regtest", tmp_path / "store")
    with Store.open(tmp_path / "store") as store, pytest.raises(StoreInUse):
        CoinsOwner(store.chainstate_path)
