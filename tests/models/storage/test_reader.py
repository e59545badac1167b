"""The read-only view: equal to what Core recorded, never torn beside a writer, and errors that are no absences."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import plyvel
import pytest

from models.coins.codec import coin_key
from models.coins.coin import Coin
from models.errors import CoinsReadError, StaleView, StoreError
from models.storage.coinsdb import CoinsOwner, open_leveldb
from models.storage.reader import CONFIG_FILE, SHORTEST_RUN, CoinsReader
from models.wire.hashes import from_display, to_display
from tests.models.storage.busy_writer import check_consistent

COIN = Coin(5, 7, False, b"\x51")
OUTPOINT = bytes(36)
BEST = bytes(range(32))


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A small coins database whose owner has closed it."""
    with CoinsOwner(tmp_path / "db", create=True) as owner:
        owner.apply([], [(OUTPOINT, COIN)], BEST)
    return tmp_path / "db"


@pytest.mark.parametrize("archive", ["corpus/regtest_datadir.tar.gz", "corpus/regtest_datadir_logonly.tar.gz"])
def test_every_recorded_coin_and_absence(data: Path, chainstate: Callable[[str], Path], archive: str) -> None:
    tip = json.loads((data / "corpus/tip.json").read_text())
    reader = CoinsReader.open(chainstate(archive), expect_best=from_display(tip["hash"]))
    asked = tip["coins"] + tip["absent"]
    got = reader.read_coins([from_display(e["txid"]) + e["vout"].to_bytes(4, "little") for e in asked])
    assert got[: len(tip["coins"])] == [
        Coin(e["value"], e["height"], e["coinbase"], bytes.fromhex(e["script"])) for e in tip["coins"]
    ]
    assert got[len(tip["coins"]) :] == [None] * len(tip["absent"])
    assert to_display(reader.best_block) == tip["hash"]


def test_raw_values_are_the_owners(store: Path) -> None:
    reader = CoinsReader.open(store)
    values = reader.multi_get([coin_key(OUTPOINT), b"C" + bytes(33)[:-1] + b"\x01"])
    with CoinsOwner(store) as owner:
        assert values == [owner.get_raw(coin_key(OUTPOINT)), None]
        assert reader.xor_key == owner.xor_key
    assert reader.multi_get([]) == []


def test_reads_beside_the_owner_see_the_moment_of_opening(store: Path) -> None:
    with CoinsOwner(store) as owner:
        reader = CoinsReader.open(store)
        owner.apply([OUTPOINT], [], bytes(32))
        assert reader.read_coins([OUTPOINT]) == [COIN]
        newer = CoinsReader.open(store, expect_best=bytes(32))
        assert newer.read_coins([OUTPOINT]) == [None]


def test_another_best_block_is_a_stale_view(store: Path) -> None:
    with pytest.raises(StaleView, match=to_display(BEST)):
        CoinsReader.open(store, expect_best=bytes(32))


def test_between_two_tips_is_refused(store: Path) -> None:
    db = open_leveldb(store)
    db.put(b"H", b"\x02" + bytes(64))
    db.close()
    with pytest.raises(StoreError, match="between two tips"):
        CoinsReader.open(store)


def test_a_missing_directory_is_refused_and_not_made(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="CURRENT"):
        CoinsReader.open(tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()


def test_a_nodes_own_directory_is_refused_and_not_written(datadir: Callable[[str], Path]) -> None:
    node = datadir("corpus/regtest_datadir.tar.gz") / "regtest"
    for path in (node / "chainstate", node / "blocks" / "index"):
        with pytest.raises(StoreError, match="node's own"):
            CoinsReader.open(path)
        assert not (path / CONFIG_FILE).exists()


@pytest.mark.parametrize("stage", ["noted", "opened"])
def test_an_open_during_which_the_log_changed_is_refused_and_retried(store: Path, stage: str) -> None:
    owners: list[plyvel.DB] = []

    def change_log(now: str) -> None:
        if now == stage and not owners:
            owners.append(open_leveldb(store))  # recovery: a new log and a new manifest

    reader = CoinsReader.open(store, gate=change_log)
    assert (reader.opens, reader.torn_opens) == (2, 1)
    assert reader.read_coins([OUTPOINT]) == [COIN]
    owners[0].close()


def test_a_database_that_never_rests_is_an_error(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("models.storage.reader.MAX_OPENS", 3)
    with pytest.raises(CoinsReadError, match="3 attempts"):
        CoinsReader.open(store, gate=lambda _: open_leveldb(store).close())


def test_opens_beside_a_busy_writer_are_never_torn(busy_writer) -> None:
    generations = set()
    for _ in range(60):
        reader = CoinsReader.open(busy_writer.path)

        def has(outpoint: bytes, reader: CoinsReader = reader) -> bool:
            return reader.read_coins([outpoint]) != [None]

        generations.add(check_consistent(reader.best_block, has))
        reader.close()
    assert max(generations) <= busy_writer.stop()
    assert len(generations) > 1


def test_a_flipped_bit_is_an_error_and_no_absence(data: Path, chainstate: Callable[[str], Path]) -> None:
    path = chainstate("corpus/regtest_datadir.tar.gz")
    table = path / "000011.ldb"
    raw = bytearray(table.read_bytes())
    for position in range(20_000, 300_000, 4000):
        raw[position] ^= 1
    table.unlink()  # it is a link to the recorded one
    table.write_bytes(raw)
    tip = json.loads((data / "corpus/tip.json").read_text())
    reader = CoinsReader.open(path)
    with pytest.raises(CoinsReadError, match="checksum"):
        reader.read_coins([from_display(e["txid"]) + e["vout"].to_bytes(4, "little") for e in tip["coins"]])


def test_a_table_that_is_gone_is_an_error(data: Path, chainstate: Callable[[str], Path], monkeypatch) -> None:
    monkeypatch.setattr("models.storage.reader.MAX_OPENS", 2)
    path = chainstate("corpus/regtest_datadir.tar.gz")
    (path / "000008.ldb").unlink()
    with pytest.raises(CoinsReadError, match="000008"):
        CoinsReader.open(path)


def test_a_coin_that_does_not_decode_is_an_error(store: Path) -> None:
    db = open_leveldb(store)
    db.put(coin_key(OUTPOINT), b"\x80")
    db.close()
    with pytest.raises(CoinsReadError):
        CoinsReader.open(store).read_coins([OUTPOINT])


def test_a_closed_reader_raises(store: Path) -> None:
    reader = CoinsReader.open(store)
    reader.close()
    with pytest.raises(CoinsReadError, match="closed"):
        reader.multi_get([b"B"])


def test_a_run_of_neighbours_is_read_as_one_by_one(tmp_path: Path) -> None:
    """Outputs of one transaction, some of them spent, beside those of others, in any order asked for."""
    path = tmp_path / "chainstate"
    txid, other = bytes([7]) * 32, bytes([9]) * 32
    there = [txid + n.to_bytes(4, "little") for n in range(0, 40_000, 3)] + [other + bytes(4)]
    with CoinsOwner(path, create=True) as owner:
        owner.bulk_load(
            sorted(((o, Coin(n, 1, False, b"\x51")) for n, o in enumerate(there)), key=lambda c: coin_key(c[0])),
            bytes(32),
        )
    reader = CoinsReader.open(path)
    for asked in (range(300), range(16_400, 16_700), range(39_900, 40_100), range(0, 40_000, 1000)):
        keys = [coin_key(txid + n.to_bytes(4, "little")) for n in asked]
        for order in (keys, keys[::-1], [*keys, coin_key(other + bytes(4))]):
            assert reader.get_run(order) == reader.multi_get(order)
    last = [coin_key(bytes([9]) * 32 + n.to_bytes(4, "little")) for n in range(40)]  # nothing stands behind them
    assert reader.get_run(last) == reader.multi_get(last)
    reader.close()


def test_a_pass_that_ends_early_proves_no_absence(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """RocksDB's iterator stops at an error as it does at the end of the database; what it had not met is asked for."""
    keys = sorted(coin_key(bytes([7]) * 32 + n.to_bytes(4, "little")) for n in range(SHORTEST_RUN))
    reader = CoinsReader.open(store)
    asked = []

    class Broken:
        def items(self, from_key: bytes) -> Iterator[tuple[bytes, bytes]]:
            return iter([(keys[0], b"zero"), (keys[1], b"one")])

        def get(self, wanted: list[bytes]) -> list[bytes | None]:
            asked.append(wanted)
            return [b"found"] * len(wanted)

    monkeypatch.setattr(reader, "_database", Broken())
    assert reader.get_run(keys) == [b"zero", b"one", *[b"found"] * (SHORTEST_RUN - 2)]
    assert asked == [keys[2:]]
