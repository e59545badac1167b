"""The pool as an async actor sees it, with workers that are plain objects: who is asked, what a death, a missed
deadline and an empty pool mean, and that a request is tried elsewhere once and no more.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import ray

import actors.pool as pool_module
from actors.pool import WorkerPool
from models.errors import Busy, CoinsReadError, InternalError, WorkerLost
from models.messages import failed, ok


class Method:
    def __init__(self, run: Callable[..., Awaitable[Any]]) -> None:
        self.remote = run


class FakeWorker:
    """Answers `work` as `script` says, one entry per call: a value, "die", "hang" or an error."""

    def __init__(self, *script: Any) -> None:
        self.script = list(script)
        self.asked: list[Any] = []
        self.pinged = 0
        self.work = Method(self._work)
        self.ping = Method(self._ping)

    async def _work(self, item: Any) -> Any:
        self.asked.append(item)
        order = self.script.pop(0) if self.script else "done"
        if order == "die":
            raise ray.exceptions.ActorDiedError()
        if order == "hang":
            await asyncio.Event().wait()
        return failed(order) if isinstance(order, Exception) else ok(order)

    def _ping(self) -> None:
        self.pinged += 1


@pytest.fixture
def lost() -> list[tuple[Any, str]]:
    return []


@pytest.fixture
def make_pool(lost: list[tuple[Any, str]]) -> Callable[..., WorkerPool]:
    def make(*workers: FakeWorker) -> WorkerPool:
        pool = WorkerPool("fetch", lambda worker, why: lost.append((worker, why)))
        pool.set_members(list(workers))
        return pool

    return make


def call(pool: WorkerPool, **options: Any) -> Any:
    async def run() -> Any:
        return await pool.call("work", "item", **{"deadline": 5, **options})

    return asyncio.run(run())


def test_the_value_of_an_answer_is_returned(make_pool: Callable[..., WorkerPool]) -> None:
    assert call(make_pool(FakeWorker("coins"))) == "coins"


def test_an_error_is_raised_and_costs_no_worker(make_pool: Callable[..., WorkerPool], lost: list[Any]) -> None:
    worker = FakeWorker(CoinsReadError("checksum"), "fine")
    pool = make_pool(worker)
    with pytest.raises(CoinsReadError, match="checksum"):
        call(pool)
    assert call(pool) == "fine"
    assert lost == []


def test_a_request_whose_worker_dies_is_tried_elsewhere_once(
    make_pool: Callable[..., WorkerPool], lost: list[Any]
) -> None:
    dead, alive = FakeWorker("die"), FakeWorker("coins")
    pool = make_pool(dead, alive)
    assert call(pool) == "coins"
    assert (dead.asked, alive.asked, pool.retries) == (["item"], ["item"], 1)
    assert lost == [(dead, "ActorDiedError")]


def test_two_deaths_under_one_request_are_an_error(make_pool: Callable[..., WorkerPool], lost: list[Any]) -> None:
    workers = [FakeWorker("die"), FakeWorker("die"), FakeWorker("coins")]
    with pytest.raises(WorkerLost, match="two fetch workers died"):
        call(make_pool(*workers))
    assert [worker for worker, _ in lost] == workers[:2]
    assert workers[2].asked == []


def test_a_worker_seen_dead_stays_out_when_the_list_comes_again(make_pool: Callable[..., WorkerPool]) -> None:
    dead, alive = FakeWorker("die"), FakeWorker("a", "b")
    pool = make_pool(dead, alive)
    call(pool)
    pool.set_members([dead, alive])
    assert call(pool) == "b"
    assert dead.asked == ["item"]


def test_speculation_does_not_wait_for_a_worker(make_pool: Callable[..., WorkerPool]) -> None:
    with pytest.raises(WorkerLost, match="no fetch worker"):
        call(make_pool(FakeWorker("die")), wait=False)


def test_a_check_waits_for_the_replacement_of_the_only_worker(make_pool: Callable[..., WorkerPool]) -> None:
    async def run() -> Any:
        pool = make_pool(FakeWorker("die"))
        asked = asyncio.create_task(pool.call("work", "item", deadline=5))
        while len(pool):  # until the death was seen
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not asked.done()
        pool.set_members([FakeWorker("coins")])
        return await asked

    assert asyncio.run(run()) == "coins"


def test_a_check_does_not_wait_for_ever(make_pool: Callable[..., WorkerPool], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "REPLACEMENT_PATIENCE", 0.01)
    with pytest.raises(WorkerLost, match="no fetch worker"):
        call(make_pool(FakeWorker("die")))


def test_a_missed_deadline_is_busy_and_the_worker_stays(make_pool: Callable[..., WorkerPool], lost: list[Any]) -> None:
    worker = FakeWorker("hang", "later")
    pool = make_pool(worker)
    with pytest.raises(Busy, match="longer than"):
        call(pool, deadline=0.01)
    assert call(pool) == "later"
    assert lost == []


class FakeScriptWorker(FakeWorker):
    """Says what it is at: `others` are calls of somebody else's, with the seconds since they began."""

    def __init__(self, *script: Any, begins: bool = True, others: dict[str, float] | None = None) -> None:
        super().__init__(*script)
        self.begins = begins
        self.others = others or {}
        self.dead = asyncio.Event()
        self.work = Method(self._named_work)
        self.running = Method(self._running)

    async def _named_work(self, item: Any, name: str) -> Any:
        self.name = name
        work = asyncio.ensure_future(self._work(item))
        end = asyncio.ensure_future(self.dead.wait())
        await asyncio.wait({work, end}, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            work.cancel()
            raise ray.exceptions.ActorDiedError()
        return work.result()

    async def _running(self) -> dict[str, float]:
        return {**self.others, **({self.name: 60.0} if self.begins else {})}


def run(pool: WorkerPool, **options: Any) -> Any:
    async def call_it() -> Any:
        return await pool.run("work", "item", **{"deadline": 0.01, **options})

    return asyncio.run(call_it())


@pytest.fixture
def killed(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Workers that were killed; a call at them then fails, as with Ray."""
    workers: list[Any] = []

    def kill(worker: Any) -> None:
        workers.append(worker)
        worker.dead.set()

    monkeypatch.setattr(ray, "kill", kill)
    return workers


def test_a_script_batch_past_its_deadline_costs_its_worker_and_is_not_tried_again(
    make_pool: Callable[..., WorkerPool], lost: list[Any], killed: list[Any]
) -> None:
    slow, other = FakeScriptWorker("hang"), FakeScriptWorker("fine")
    pool = make_pool(slow, other)
    with pytest.raises(Busy, match="longer than"):
        run(pool)
    assert killed == [slow]
    assert [worker for worker, _ in lost] == [slow]
    assert other.asked == []
    assert run(pool) == "fine"


def test_waiting_behind_others_does_not_count_against_the_deadline(
    make_pool: Callable[..., WorkerPool], killed: list[Any]
) -> None:
    async def wait_long() -> Any:
        worker = FakeScriptWorker("fine", begins=False, others={"other": 0.005})
        ready, work = asyncio.Event(), worker._work
        looks = 0

        async def late(item: Any) -> Any:
            await ready.wait()
            return await work(item)

        async def look() -> dict[str, float]:
            nonlocal looks
            looks += 1
            if looks == 5:
                ready.set()
            return dict(worker.others)

        worker._work, worker.running = late, Method(look)  # type: ignore[method-assign]
        return await make_pool(worker).run("work", "item", deadline=0.01)

    assert asyncio.run(wait_long()) == "fine"
    assert killed == []


def test_who_waits_behind_somebody_elses_endless_call_is_served_by_another_worker(
    make_pool: Callable[..., WorkerPool], killed: list[Any]
) -> None:
    stuck = [FakeScriptWorker("hang", begins=False, others={"other": 60.0}) for _ in range(2)]
    pool = make_pool(*stuck, FakeScriptWorker("fine"))
    assert run(pool) == "fine"
    assert killed == stuck


def test_a_script_batch_that_took_two_workers_is_an_internal_error(
    make_pool: Callable[..., WorkerPool], killed: list[Any]
) -> None:
    workers = [FakeScriptWorker("die"), FakeScriptWorker("die"), FakeScriptWorker("fine")]
    with pytest.raises(InternalError, match="two fetch workers died under one batch"):
        run(make_pool(*workers), deadline=5)
    assert workers[2].asked == []


def test_a_worker_that_does_not_even_say_what_it_is_at_is_replaced(
    make_pool: Callable[..., WorkerPool], killed: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_module, "STATE_PATIENCE", 0.01)
    silent = FakeScriptWorker("hang")

    async def never() -> dict[str, float]:
        await asyncio.Event().wait()
        return {}

    silent.running = Method(never)
    with pytest.raises(Busy):
        run(make_pool(silent))
    assert killed == [silent]


def test_the_least_busy_worker_is_asked(make_pool: Callable[..., WorkerPool]) -> None:
    async def run() -> list[int]:
        workers = [FakeWorker("hang", "hang"), FakeWorker("hang", "hang")]
        pool = make_pool(*workers)
        tasks = [asyncio.create_task(pool.call("work", n, deadline=5)) for n in range(4)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        return [len(worker.asked) for worker in workers]

    assert asyncio.run(run()) == [2, 2]


def test_speculation_leaves_the_reserved_worker_alone_if_there_is_another(make_pool: Callable[..., WorkerPool]) -> None:
    reserved, other = FakeWorker(), FakeWorker()
    pool = make_pool(reserved, other)
    for _ in range(3):
        call(pool, reserve=1)
    assert (len(reserved.asked), len(other.asked)) == (0, 3)
    pool.set_members([reserved])
    call(pool, reserve=1)
    assert len(reserved.asked) == 1


def test_a_heartbeat_goes_to_the_worker_that_a_check_will_ask(make_pool: Callable[..., WorkerPool]) -> None:
    first, second = FakeWorker(), FakeWorker()
    make_pool(first, second).keep_awake()
    assert (first.pinged, second.pinged) == (1, 0)
