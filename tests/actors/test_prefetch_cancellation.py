"""A prefetch with peers that answer when the test says so: after each of its waits (context, look into the cache, batch
of reads, batch of scripts) it looks again whether it is still wanted, and whatever goes wrong ends it without a sound.
"""

import asyncio
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import ray

from actors.prefetch import Prefetch, PrefetchPeers
from models.coins.coin import Coin
from models.coins.columns import CoinBatch
from models.collection import TxCollection
from models.consensus.context import Tip, TipVersion
from models.consensus.table import TxTable
from models.errors import CoinsReadError, StaleView, WorkerLost
from models.messages import failed, ok, pack_batch
from models.script.jobs import unpack_jobs
from models.wire.transaction import decode_transaction
from tests.actors.blocks import OP_TRUE, TestCoin, Tx, spend

FLAGS = 1
SETTINGS = {
    "batch_outpoints": 2,
    "batches_in_flight": 2,
    "batch_script_inputs": 2,
    "script_batches_in_flight": 1,
    "read_deadline_s": 5,
    "script_deadline_s": 5,
    "speculate_scripts": "on",
}
COINS = [TestCoin(bytes((i,)) * 32, 0, 100_000) for i in range(1, 40)]


def tip(n: int) -> Tip:
    return Tip(bytes((n,)) * 32, n, TipVersion(7, n))


def coins_at(n: int) -> tuple[np.ndarray, np.ndarray]:
    return pack_batch(CoinBatch.of_coins([Coin(100_000, 1, False, OP_TRUE)] * n))


def context(n: int) -> SimpleNamespace:
    """What prefetch looks at of a `BlockContext`."""
    return SimpleNamespace(tip=tip(n), bip30=False, script_flags=FLAGS)


class Peers:
    """Every request in order; each waits until `answer` is called for it."""

    def __init__(self) -> None:
        self.log: list[tuple[str, Any]] = []
        self.waiting: list[tuple[str, Any, asyncio.Future[Any]]] = []
        self.told: list[Any] = []

    async def ask(self, what: str, detail: Any = None) -> Any:
        future = asyncio.get_running_loop().create_future()
        self.log.append((what, detail))
        self.waiting.append((what, detail, future))
        return await future

    def names(self) -> list[str]:
        return [what for what, _ in self.log]

    def answer(self, value: Any = None) -> str:
        """Answers the oldest request as a good peer would, or with `value` (an exception is raised at the asker)."""
        what, detail, future = self.waiting.pop(0)
        if value is None:
            value = {
                "context": lambda: context(1),
                "peek": lambda: ok(None),
                "prefetch": lambda: coins_at(detail),
                "speculate": lambda: [-1] * detail,
            }[what]()
        if isinstance(value, Exception):
            future.set_exception(value)
        else:
            future.set_result(value)
        return what


class Pool:
    """Stands for a `WorkerPool`."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers

    async def call(self, method: str, argument: Any, *_: Any, **__: Any) -> Any:
        assert method == "prefetch"
        return await self._peers.ask(method, len(argument) // 36)

    async def run(self, method: str, _: int, *pieces: bytes, **__: Any) -> Any:
        return await self._peers.ask(method, len(unpack_jobs(pieces)))


class Remote:
    def __init__(self, run: Callable[..., Any]) -> None:
        self.remote = run


class Chainstate:
    def __init__(self, peers: Peers) -> None:
        self.peek = Remote(lambda blob, version: peers.ask("peek", len(blob) // 36))


class Mempool:
    def __init__(self) -> None:
        self.passed = Remote(lambda wtxids, flags: None)


class Scene:
    """A collection of six inputs in three transactions and a fourth one still missing, its prefetch, and its peers."""

    def __init__(self) -> None:
        self.transactions = [spend(COINS[at : at + 2]) for at in (0, 2, 4)]
        self.missing = spend(COINS[6:8])
        self.peers = Peers()
        self.collection = TxCollection([tx.txid for tx in (*self.transactions, self.missing)])
        table = TxTable.from_transactions([decode_transaction(tx.raw) for tx in self.transactions])
        self.collection.take_known(np.arange(3), table)
        peers = PrefetchPeers(SETTINGS, Pool(self.peers), Pool(self.peers))  # type: ignore[arg-type]
        peers.chainstate, peers.mempool = Chainstate(self.peers), Mempool()
        self.prefetch = Prefetch(self.collection, peers, self.peers.told.append, self.context, set())

    async def context(self) -> Any:
        return await self.peers.ask("context")

    def supply(self, tx: Tx) -> None:
        self.collection.take_supplied(self.collection.check_supply([tx.raw]))
        self.prefetch.wake()

    async def settle(self) -> None:
        for _ in range(20):
            await asyncio.sleep(0)

    async def reach(self, what: str) -> None:
        """Answers everything until a request of this sort is the oldest that waits."""
        for _ in range(50):
            await self.settle()
            if self.peers.waiting and self.peers.waiting[0][0] == what:
                return
            assert self.peers.waiting, f"nothing waits, and {what} was never asked"
            self.peers.answer()
        raise AssertionError(f"{what} was never asked")

    async def answer_all(self) -> None:
        await self.settle()
        while self.peers.waiting:
            self.peers.answer()
            await self.settle()


def scene(test: Callable[[Scene], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        made = Scene()
        try:
            await test(made)
        finally:
            made.prefetch.close()
            await made.answer_all()
            await asyncio.wait_for(made.prefetch._task, 5)

    asyncio.run(run())


def test_left_alone_it_reads_everything_in_order_and_comes_to_rest() -> None:
    async def run(s: Scene) -> None:
        await s.answer_all()
        assert s.peers.names() == ["context", "peek", *["prefetch"] * 3, *["speculate"] * 3]
        assert s.prefetch.idle.is_set()
        assert s.collection.observations == 6
        assert s.collection.verified.sum() == 3

    scene(run)


WAITS = ["context", "peek", "prefetch", "speculate"]


@pytest.mark.parametrize("wait", WAITS)
def test_paused_during_a_wait_it_asks_for_nothing_more(wait: str) -> None:
    async def run(s: Scene) -> None:
        await s.reach(wait)
        asked = len(s.peers.log)
        s.prefetch.pause()
        await s.answer_all()
        assert s.peers.names()[asked:] == []
        assert s.prefetch.idle.is_set()

    scene(run)


@pytest.mark.parametrize("wait", WAITS)
def test_closed_during_a_wait_it_asks_for_nothing_more_and_keeps_nothing(wait: str) -> None:
    async def run(s: Scene) -> None:
        await s.reach(wait)
        asked = len(s.peers.log)
        s.prefetch.close()
        await s.answer_all()
        assert s.peers.names()[asked:] == []
        assert (s.collection.nbytes, s.collection.observations) == (0, 0)
        assert s.prefetch._task.done()

    scene(run)


@pytest.mark.parametrize("wait", WAITS)
def test_after_a_tip_change_during_a_wait_it_begins_again_on_the_new_tip(wait: str) -> None:
    async def run(s: Scene) -> None:
        await s.reach(wait)
        asked = len(s.peers.log)
        s.collection.drop_observations()
        s.prefetch.restart()
        while s.peers.waiting and s.peers.waiting[0][0] != "context" or wait == "context" and len(s.peers.log) == asked:
            s.peers.answer()  # answers that were under way, all of the old tip
            await s.settle()
        assert s.collection.observations == 0
        s.peers.answer(context(2))
        await s.answer_all()
        assert s.peers.names()[asked] == "context"
        assert s.collection.version == TipVersion(7, 2)
        assert s.collection.observations == 6
        assert [op for ops in s.peers.told for op in ops if op[0] == "coins" and op[4] == (7, 2)]

    scene(run)


def test_an_answer_that_comes_after_a_pause_is_still_taken_in() -> None:
    async def run(s: Scene) -> None:
        await s.reach("prefetch")
        s.prefetch.pause()
        await s.answer_all()
        assert s.collection.observations == SETTINGS["batch_outpoints"] * SETTINGS["batches_in_flight"]

    scene(run)


def test_what_is_supplied_while_scripts_run_is_read_before_the_next_script() -> None:
    async def run(s: Scene) -> None:
        await s.reach("speculate")
        asked = len(s.peers.log)
        s.supply(s.missing)
        await s.answer_all()
        assert s.peers.names()[asked] == "prefetch"
        assert s.collection.observations == 8

    scene(run)


def test_what_is_supplied_at_rest_is_read_and_a_cache_that_was_empty_is_not_asked_again() -> None:
    async def run(s: Scene) -> None:
        await s.answer_all()
        asked = len(s.peers.log)
        s.supply(s.missing)
        assert not s.prefetch.idle.is_set()
        await s.answer_all()
        assert s.peers.names()[asked:] == ["prefetch", "speculate"]

    scene(run)


def test_coins_from_the_cache_are_not_read() -> None:
    async def run(s: Scene) -> None:
        await s.reach("peek")
        s.peers.answer(ok((np.array([0, 1, 5]), coins_at(3))))
        await s.answer_all()
        assert [detail for what, detail in s.peers.log if what == "prefetch"] == [2, 1]
        assert (s.prefetch.counts["cache_hits"], s.collection.observations) == (3, 6)

    scene(run)


FAULTS = [
    WorkerLost("there is no fetch worker"),
    CoinsReadError("checksum mismatch"),
    ray.exceptions.ActorDiedError(),
    KeyError("a bug"),
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: type(fault).__name__)
@pytest.mark.parametrize("wait", WAITS)
def test_whatever_goes_wrong_ends_speculation_silently(wait: str, fault: Exception) -> None:
    async def run(s: Scene) -> None:
        await s.reach(wait)
        asked = len(s.peers.log)
        s.peers.answer(fault)
        await s.answer_all()
        assert s.peers.names()[asked:] == []
        assert s.prefetch.idle.is_set()
        assert s.collection.speculation_stopped.startswith(type(fault).__name__)
        if wait != "context":  # once begun, it does not try again at this tip
            s.supply(s.missing)
            await s.answer_all()
            assert "prefetch" not in s.peers.names()[asked:]

    scene(run)


def test_an_error_as_an_answer_of_the_owner_ends_it_too() -> None:
    async def run(s: Scene) -> None:
        await s.reach("peek")
        s.peers.answer(failed(CoinsReadError("the cache is gone")))
        await s.answer_all()
        assert s.collection.speculation_stopped == "CoinsReadError: the cache is gone"

    scene(run)


@pytest.mark.parametrize("wait", WAITS)
def test_a_stale_view_means_that_it_asks_for_the_tip_again(wait: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run(s: Scene) -> None:
        await s.reach(wait)
        s.peers.answer(StaleView("the tip has moved"))
        while s.peers.names().count("context") < 2:
            await asyncio.sleep(0.001)
            if s.peers.waiting and s.peers.waiting[0][0] != "context":
                s.peers.answer()
        await s.reach("context")
        s.peers.answer(context(2))
        await s.answer_all()
        assert s.prefetch.counts["stale"] == 1
        assert (s.collection.version, s.collection.observations) == (TipVersion(7, 2), 6)

    scene(run)
