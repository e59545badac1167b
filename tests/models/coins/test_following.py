"""A reader that follows the tip: by deltas laid over its handle, by a new handle where it missed one, never with the
coins of another tip than the one it was asked for.
"""

import threading
from collections.abc import Callable, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest

import models.coins.following as following_module
from models.coins.codec import coin_key, encode_coin, obfuscate
from models.coins.coin import Coin
from models.coins.following import FollowingView
from models.consensus.context import Tip, TipVersion
from models.errors import CoinsReadError, StaleView

KEY = bytes(range(1, 9))


def outpoint(n: int) -> bytes:
    return bytes((n,)) * 32 + b"\x00" * 4


def coin(n: int) -> Coin:
    return Coin(1000 + n, n, n % 2 == 0, b"\x51" * (n % 5))


def tip(n: int, epoch: int = 1) -> Tip:
    return Tip(bytes((n,)) * 32, n, TipVersion(epoch, n))


class Database:
    """Coins at one tip; `open` gives readers of what it holds then."""

    def __init__(self, coins: dict[bytes, Coin]) -> None:
        self.coins = coins
        self.best = tip(0).hash
        self.opens = 0
        self.failure: Exception | None = None
        self.passes: list[list[bytes]] = []

    def open(self, path: Path, best: bytes) -> Any:
        self.opens += 1
        if best != self.best:
            raise StaleView("the database is elsewhere")
        return Reader(self, dict(self.coins))


class Reader:
    xor_key = KEY

    def __init__(self, database: Database, coins: dict[bytes, Coin]) -> None:
        self._database = database
        self._values = {coin_key(o): obfuscate(encode_coin(c), KEY) for o, c in coins.items()}

    def get_run(self, keys: Sequence[bytes]) -> list[bytes | None]:
        self._database.passes.append(list(keys))
        if self._database.failure:
            raise self._database.failure
        return [self._values.get(key) for key in keys]


@pytest.fixture
def database() -> Database:
    return Database({outpoint(n): coin(n) for n in range(40)})


@pytest.fixture(params=[1, 4], ids=["one thread", "four threads"])
def view(database: Database, request: pytest.FixtureRequest) -> FollowingView:
    return FollowingView(Path("nowhere"), request.param, open_reader=database.open)


def read(view: FollowingView, numbers: Sequence[int], at: Tip) -> list[Coin | None]:
    batch = view.read([outpoint(n) for n in numbers], at)
    return [batch.coin(i) for i in range(len(batch))]


def test_answers_are_in_the_order_of_the_questions(view: FollowingView) -> None:
    numbers = [33, 2, 77, 5, 0, 99, 21, 2, 8, 13, 39, 38]
    assert read(view, numbers, tip(0)) == [coin(n) if n < 40 else None for n in numbers]
    assert read(view, [], tip(0)) == []


@pytest.mark.parametrize("threads", [1, 4])
def test_outputs_of_one_transaction_that_lie_side_by_side_are_read_in_one_pass(threads: int) -> None:
    """Beside scattered ones, one whose outputs lie far apart, absences, changes and outpoints asked for twice."""
    many, sparse = bytes([201]) * 32, bytes([202]) * 32

    def output(txid: bytes, vout: int) -> bytes:
        return txid + vout.to_bytes(4, "little")

    dense = [output(many, n) for n in range(16_300, 16_500, 2) for _ in range(2)]
    apart = [output(sparse, n * 100) for n in range(200)]
    scattered = [outpoint(n) for n in range(200)]
    asked = [o for three in zip_longest(dense, apart, scattered) for o in three if o is not None]
    there = {o: coin(i % 250) for i, o in enumerate([*dense[::3], *apart[::2], *scattered[::2]])}
    database = Database(there)
    view = FollowingView(Path("nowhere"), threads, open_reader=database.open)

    def found(n: int) -> list[Coin | None]:
        batch = view.read(asked, tip(n))
        return [batch.coin(i) for i in range(len(batch))]

    assert found(0) == [there.get(o) for o in asked]
    runs = [keys for keys in database.passes if len(keys) > 150]
    if threads > 1:
        assert runs == [[coin_key(o) for o in sorted(dense, key=lambda o: int.from_bytes(o[32:], "little"))]]
    assert sorted(key for keys in database.passes for key in keys) == sorted(map(coin_key, asked))
    view.follow(tip(0).version, tip(1), dense[:9], [(dense[-1], coin(7))])
    there = {o: c for o, c in there.items() if o not in dense[:9]} | {dense[-1]: coin(7)}
    assert found(1) == [there.get(o) for o in asked]


def test_one_handle_serves_all_reads_at_a_tip(view: FollowingView, database: Database) -> None:
    for n in range(5):
        read(view, [n], tip(0))
    assert (view.opens, database.opens, view.reads, view.keys) == (1, 1, 5, 5)


def test_a_delta_is_laid_over_the_handle(view: FollowingView) -> None:
    read(view, [1], tip(0))
    assert view.follow(tip(0).version, tip(1), [outpoint(1), outpoint(2)], [(outpoint(50), coin(50))])
    assert view.version == tip(1).version
    assert read(view, [1, 2, 3, 50, 51], tip(1)) == [None, None, coin(3), coin(50), None]
    # and the way back
    assert view.follow(tip(1).version, tip(2), [outpoint(50)], [(outpoint(1), coin(1)), (outpoint(2), coin(2))])
    assert read(view, [1, 2, 3, 50], tip(2)) == [coin(1), coin(2), coin(3), None]
    assert view.opens == 1


def test_an_older_tip_than_the_one_served_is_stale(view: FollowingView) -> None:
    read(view, [1], tip(0))
    view.follow(tip(0).version, tip(1), [outpoint(1)], [])
    with pytest.raises(StaleView):
        read(view, [1], tip(0))
    assert view.opens == 1


def test_a_delta_for_another_state_is_not_laid_over(view: FollowingView, database: Database) -> None:
    assert not view.follow(tip(0).version, tip(1), [outpoint(1)], [])  # nothing is open yet
    read(view, [1], tip(0))
    assert not view.follow(tip(1).version, tip(2), [outpoint(1)], [])  # it missed the one before
    assert read(view, [1], tip(0)) == [coin(1)]
    del database.coins[outpoint(1)]
    database.best = tip(2).hash
    assert read(view, [1], tip(2)) == [None]
    assert view.opens == 2


def test_a_tip_at_which_the_database_is_not_is_stale_and_the_old_handle_stays(
    view: FollowingView, database: Database
) -> None:
    read(view, [1], tip(0))
    with pytest.raises(StaleView):
        read(view, [1], tip(3))
    assert read(view, [1], tip(0)) == [coin(1)]


def test_another_epoch_of_the_same_block_is_another_version(view: FollowingView, database: Database) -> None:
    read(view, [1], tip(0))
    assert read(view, [1], tip(0, epoch=2)) == [coin(1)]
    assert view.opens == 2
    with pytest.raises(StaleView):
        read(view, [1], tip(0, epoch=1))


def test_large_changes_are_exchanged_for_a_new_handle(
    view: FollowingView, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following_module, "MAX_OVERLAY", 3)
    read(view, [1], tip(0))
    assert view.follow(tip(0).version, tip(1), [outpoint(1), outpoint(2)], [])
    assert view.opens == 1
    database.coins = {outpoint(9): coin(9)}
    database.best = tip(2).hash
    assert view.follow(tip(1).version, tip(2), [outpoint(3)], [(outpoint(9), coin(9))])
    assert view.opens == 2
    assert read(view, [9, 1, 4], tip(2)) == [coin(9), None, None]


def test_when_the_new_handle_is_ahead_already_the_next_read_opens_it(
    view: FollowingView, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following_module, "MAX_OVERLAY", 0)
    read(view, [1], tip(0))
    database.best = tip(2).hash  # two blocks came in quick succession
    assert not view.follow(tip(0).version, tip(1), [outpoint(1)], [])
    assert view.version is None
    with pytest.raises(StaleView):
        read(view, [1], tip(1))
    assert read(view, [1], tip(2)) == [coin(1)]


def test_forgetting_lets_go_of_the_handle(view: FollowingView) -> None:
    read(view, [1], tip(0))
    view.forget()
    assert view.version is None
    assert read(view, [1], tip(0)) == [coin(1)]
    assert view.opens == 2


def test_an_error_is_an_error_and_never_an_absence(view: FollowingView, database: Database) -> None:
    read(view, [1], tip(0))
    database.failure = CoinsReadError("checksum mismatch in 000005.ldb")
    with pytest.raises(CoinsReadError, match="000005.ldb"):
        read(view, list(range(20)), tip(0))
    database.failure = None
    assert read(view, [1], tip(0)) == [coin(1)]


def test_a_record_that_is_no_coin_is_a_read_error_that_names_the_database(view: FollowingView) -> None:
    broken: Callable[..., Any] = lambda self, keys: [b"\xff" * 30 for _ in keys]  # noqa: E731
    read(view, [1], tip(0))
    state = view._state
    assert state is not None
    state.reader.get_run = broken.__get__(state.reader)  # type: ignore[method-assign]
    with pytest.raises(CoinsReadError, match="nowhere"):
        read(view, [1], tip(0))


def test_reads_from_many_threads_while_the_tip_moves_see_one_tip_each(database: Database) -> None:
    """Coin n exists at exactly the tips from n on: whoever mixes two tips finds one too many or too few."""
    database.coins = {}
    view = FollowingView(Path("nowhere"), 2, open_reader=database.open)
    view.read([], tip(0))
    wrong: list[Any] = []
    done = threading.Event()

    def look() -> None:
        while not done.is_set():
            version = view.version
            assert version is not None
            at = tip(version.n)
            try:
                found = [c is not None for c in read(view, range(1, 60), at)]
            except StaleView:
                continue
            if found != [n <= version.n for n in range(1, 60)]:
                wrong.append((version, found))

    threads = [threading.Thread(target=look) for _ in range(3)]
    for thread in threads:
        thread.start()
    for n in range(1, 50):
        assert view.follow(tip(n - 1).version, tip(n), [], [(outpoint(n), coin(n))])
    done.set()
    for thread in threads:
        thread.join()
    assert wrong == []
