"""Each file of a store flipped at many places, cut and removed: what opens then is either an error that names the file
(or the database that it belongs to), or has exactly the coins of a tip that was once published, and goes on to the very
coins of the undamaged store. Never a wrong coin, and never a missing one."""

import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from models.chain import Chain
from models.coins.codec import coin_key
from models.coins.coin import Coin
from models.errors import CoinsReadError, NotReady, StoreError, TxCollectionError
from models.storage.reader import CoinsReader
from models.storage.store import Store
from models.storage.tipfile import TipReader, TipWriter, parse_tip
from models.wire.block import decode_block
from models.wire.hashes import to_display
from tests.actors.blocks import TestCoin, on_top, spend
from tests.models.storage.test_verify import FILES, _genesis, the_only

SEED = 549835
FLIPS = 24  # a file, beside its first and last bytes
KEPT = 30  # bodies and undo records; a store that is copied often had better be small
NEEDED = ("table", "manifest", "current", "log", "headers", "info", "body", "undo")

Coins = dict[bytes, Coin]


@dataclass
class Known:
    """An undamaged store, and what its coins are at the tips that it has had."""

    path: Path
    at: dict[bytes, Coins]  # best block -> coins
    tip: bytes
    below: bytes  # the tip's parent
    outpoints: list[bytes]  # that were ever there, and some that never were


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Known:
    """104 blocks, the last of them with spends; opened several times, so that there are tables and a log."""
    path = tmp_path_factory.mktemp("corrupt") / "store"
    Store.create_genesis("regtest", path)
    parent = _genesis()
    coins: list[TestCoin] = []
    at: dict[bytes, Coins] = {}
    for part in range(4):
        with Store.open(path) as store:
            chain = Chain(store, store.params)
            for _ in range(26):
                mature = coins[len(coins) - 101] if len(coins) > 100 else None
                block = on_top(parent, [spend([mature], fee=500)] if mature is not None else [])
                coins.append(block.transactions[0].coin())
                chain.store_block(decode_block(block.raw))
                chain.connect(block.hash, chain.tip.version)
                if part == 3:
                    at[block.hash] = dict(store.coins.iterate())
                parent = block
            if part == 2:
                at[parent.hash] = dict(store.coins.iterate())
            if part == 3:
                height = store.headers.tip_height
                store.archive.prune(
                    [store.headers.hash(store.headers.active(h)) for h in range(height - KEPT, height + 1)]
                )
    outpoints = sorted({outpoint for state in at.values() for outpoint in state})
    absent = [bytes([n]) * 36 for n in range(0, 256, 16)]
    below = decode_block(parent.raw).header.prev_hash
    return Known(path, at, parent.hash, below, outpoints + absent)


@pytest.fixture
def store(known: Known, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("models.storage.reader.MAX_OPENS", 3)  # patience with a writer, of whom there is none
    shutil.copytree(known.path, tmp_path / "store")
    return tmp_path / "store"


class Damage:
    """Damages one file of one store over and over, and counts what came of it."""

    def __init__(self, known: Known, path: Path, kind: str) -> None:
        self.known = known
        self.path = path
        self.kind = kind
        self.refused = self.right = self.older = 0

    def file(self) -> Path:
        """The file that is to be damaged: of bodies and undo data those of the tip."""
        tip = to_display(self.known.tip)
        places = {"body": f"index/blocks/{tip}.blk", "undo": f"index/undo/{tip}.undo"}
        return self.path / places[self.kind] if self.kind in places else FILES[self.kind](self.path)

    def look(self, what: str, change: Callable[[Path], None]) -> None:
        shutil.rmtree(self.path)
        shutil.copytree(self.known.path, self.path)
        file = self.file()
        change(file)
        for attempt in (self._reader, self._owner):
            try:
                attempt()
            except TxCollectionError as error:
                assert isinstance(error, StoreError | CoinsReadError), f"{what}: {error!r}"
                place = "chainstate" if file.parent.name == "chainstate" else file.stem
                assert place in str(error) or (isinstance(error, NotReady) and "headers.bin" in str(error)), (
                    f"{self.kind}, {what}: {error!r} does not name the file"
                )
                self.refused += 1

    def _reader(self) -> None:
        """What a worker's reads give."""
        reader = CoinsReader.open(self.path / "chainstate")
        coins = reader.read_coins(self.known.outpoints)
        assert reader.best_block in self.known.at, "a tip that was never published"
        state = self.known.at[reader.best_block]
        assert coins == [state.get(outpoint) for outpoint in self.known.outpoints]
        run = reader.get_run(sorted(coin_key(outpoint) for outpoint in self.known.outpoints))
        assert sum(value is not None for value in run) == len(state)
        reader.close()

    def _owner(self) -> None:
        """What the owner has, and a block taken back and connected again."""
        with Store.open(self.path) as store:
            best = store.coins.best_block
            assert best in self.known.at, "a tip that was never published"
            assert dict(store.coins.iterate()) == self.known.at[best]
            chain = Chain(store, store.params)
            assert chain.tip.hash == best
            for outpoint in self.known.outpoints:
                assert store.coins.get(outpoint) == self.known.at[best].get(outpoint)
            if best != self.known.tip:
                self.older += 1
                chain.activate(lambda *_: None)
            assert dict(store.coins.iterate()) == self.known.at[self.known.tip]
            chain.disconnect(chain.tip.version)
            assert chain.tip.hash == self.known.below
            assert dict(store.coins.iterate()) == self.known.at[self.known.below]
            chain.connect(self.known.tip, chain.tip.version)
            assert dict(store.coins.iterate()) == self.known.at[self.known.tip]
        self.right += 1


def flips(size: int) -> Iterator[tuple[int, int]]:
    """Places and masks: some at the ends, the rest anywhere."""
    rng = random.Random(SEED + size)
    ends = [0, 1, 4, 7, 8, size - 1, size - 8, size - 30]
    for at in dict.fromkeys([*ends, *(rng.randrange(size) for _ in range(FLIPS))]):
        if 0 <= at < size:
            yield at, 1 << rng.randrange(8)


def flipped(at: int, mask: int) -> Callable[[Path], None]:
    def change(file: Path) -> None:
        content = bytearray(file.read_bytes())
        content[at] ^= mask
        file.write_bytes(content)

    return change


def shortened(size: int) -> Callable[[Path], None]:
    def change(file: Path) -> None:
        file.write_bytes(file.read_bytes()[:size])

    return change


def used(kind: str, file: Path) -> int:
    """The bytes of a file that mean something: behind the last header there is room."""
    return 128 + 128 * 105 if kind == "headers" else file.stat().st_size


def test_the_undamaged_store_is_right(known: Known, store: Path) -> None:
    damage = Damage(known, store, "table")
    damage.look("nothing", lambda file: None)
    assert (damage.refused, damage.right, damage.older) == (0, 1, 0)


@pytest.mark.parametrize("kind", FILES)
def test_a_flipped_bit(kind: str, known: Known, store: Path) -> None:
    damage = Damage(known, store, kind)
    for at, mask in flips(used(kind, damage.file())):
        damage.look(f"byte {at} ^ {mask:#x}", flipped(at, mask))
    assert damage.refused + damage.right > 0
    if kind in ("headers", "info", "current", "body", "undo"):
        assert damage.refused
        assert kind == "info" or not damage.right  # in JSON a blank may become another one


@pytest.mark.parametrize("kind", FILES)
def test_a_cut_file(kind: str, known: Known, store: Path) -> None:
    damage = Damage(known, store, kind)
    size = used(kind, damage.file())
    for left in sorted({0, 1, 7, size // 3, size // 2, size - 130, size - 5, size - 1}):
        if 0 <= left < size:
            damage.look(f"cut to {left} of {size} bytes", shortened(left))


@pytest.mark.parametrize("kind", FILES)
def test_a_missing_file(kind: str, known: Known, store: Path) -> None:
    damage = Damage(known, store, kind)
    damage.look("removed", Path.unlink)
    if kind in NEEDED:
        assert damage.refused
        assert not damage.right


def test_every_cut_of_the_manifest_at_a_record(known: Known, store: Path) -> None:
    """A manifest that ends where one of its records does reads well, and tells of tables and a log from before."""
    manifest = the_only(store / "chainstate", "MANIFEST-*")
    data, at, ends = manifest.read_bytes(), 0, []
    while at < len(data):
        at += 7 + int.from_bytes(data[at + 4 : at + 6], "little")
        ends.append(at)
    damage = Damage(known, store, "manifest")
    for end in ends[:-1]:
        damage.look(f"cut to {end} bytes", shortened(end))
    assert len(ends) > 1
    assert damage.refused
    assert not damage.right


def test_a_damaged_tip_file(tmp_path: Path, known: Known, store: Path) -> None:
    """Readers refuse it, in every bit and at every length; the next owner writes it anew."""
    with Store.open(store) as opened:
        tip = Chain(opened, opened.params).tip
    TipWriter(tmp_path).publish(tip)
    file = tmp_path / "tip"
    whole = file.read_bytes()
    assert parse_tip(whole) == tip
    for at in range(len(whole)):
        for bit in range(8):
            content = bytearray(whole)
            content[at] ^= 1 << bit
            assert parse_tip(bytes(content)) is None
        assert parse_tip(whole[:at]) is None
    for left in (0, 30):
        file.write_bytes(whole[:left])
        with pytest.raises(StoreError, match="tip"):
            TipReader(tmp_path).read()
        writer = TipWriter(tmp_path)
        writer.publish(tip)
        assert TipReader(tmp_path).read() == tip
