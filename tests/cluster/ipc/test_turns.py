"""Who may begin heavy work when many clients want to."""

import asyncio
from collections import Counter

from cluster.ipc.turns import Turns


class Work:
    """Heavy calls under way, ended by hand in the order in which they began."""

    def __init__(self, capacity: int) -> None:
        self.turns = Turns(capacity)
        self.begun: list[tuple[str, asyncio.Event]] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.count: Counter[str] = Counter()

    def ask(self, client: str, times: int = 1) -> None:
        for _ in range(times):
            self.tasks.append(asyncio.create_task(self._run(client)))

    async def _run(self, client: str) -> None:
        async with self.turns.turn(client):
            end = asyncio.Event()
            self.begun.append((client, end))
            self.count[client] += 1
            await end.wait()

    async def settle(self) -> list[str]:
        for _ in range(5):
            await asyncio.sleep(0)
        return [client for client, _ in self.begun]

    async def end_first(self) -> None:
        self.begun.pop(0)[1].set()
        await self.settle()

    async def stop(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


def test_a_client_with_nothing_under_way_starts_at_once() -> None:
    async def run() -> None:
        work = Work(2)
        work.ask("busy", 5)
        assert await work.settle() == ["busy", "busy"]
        work.ask("other")
        assert await work.settle() == ["busy", "busy", "other"]
        await work.stop()

    asyncio.run(run())


def test_calls_of_one_client_run_side_by_side_while_there_is_room() -> None:
    async def run() -> None:
        work = Work(4)
        work.ask("one", 4)
        assert await work.settle() == ["one"] * 4
        await work.stop()

    asyncio.run(run())


def test_many_threads_give_no_larger_share() -> None:
    async def run() -> None:
        work = Work(4)
        work.ask("greedy", 200)
        for client in "abcdefg":
            work.ask(client)
        for _ in range(160):
            client = work.begun[0][0] if await work.settle() else ""
            await work.end_first()
            if client != "greedy":
                work.ask(client)  # a client with one thread asks again when it was answered
        rates = work.count
        mean = sum(rates.values()) / len(rates)
        assert all(mean / 2 <= rate <= 2 * mean for rate in rates.values()), rates
        await work.stop()

    asyncio.run(run())


def test_a_client_that_goes_away_leaves_no_place_taken() -> None:
    async def run() -> None:
        work = Work(1)
        work.ask("a", 3)
        await work.settle()
        await work.stop()
        work.begun.clear()
        work.ask("a")
        work.ask("b")
        assert sorted(await work.settle()) == ["a", "b"]
        await work.stop()
        assert work.turns._running == {} and work.turns._total == 0 and not work.turns._waiting

    asyncio.run(run())
