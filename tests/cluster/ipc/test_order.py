"""Calls on one thread follow each other, on different threads they run side by side, and no client holds up another.

Shown by the order in which answers come, never by how long they take.
"""

import asyncio
from collections import Counter
from typing import Any

from tests.cluster.ipc.client import Client, check_options, drive, internal
from tests.cluster.ipc.conftest import ServerProcess
from tests.cluster.ipc.test_calls import TIP, valid_block
from tests.cluster.ipc.test_replay import decodable, rows


def noted(order: list[str], name: str, call: Any) -> asyncio.Task[None]:
    async def run() -> None:
        await call
        order.append(name)

    return asyncio.ensure_future(run())


def test_calls_on_one_thread_follow_each_other(corpus_server: ServerProcess) -> None:
    async def run() -> None:
        client = await Client.connect(corpus_server.path)
        order: list[str] = []
        calls = [
            noted(order, "wait", client.mining.waitTipChanged(client.context, internal(TIP["hash"]), 200.0)),
            noted(order, "tip", client.mining.getTip(client.context)),
            noted(order, "check", client.mining.checkBlock(client.context, valid_block(), check_options(False))),
            noted(order, "test chain", client.mining.isTestChain(client.context)),
        ]
        await asyncio.gather(*calls)
        assert order == ["wait", "tip", "check", "test chain"]

    drive(run())


def test_calls_on_different_threads_run_side_by_side(corpus_server: ServerProcess) -> None:
    async def run() -> None:
        client = await Client.connect(corpus_server.path)
        waiting = asyncio.ensure_future(client.mining.waitTipChanged(client.context, internal(TIP["hash"])))
        other = client.thread()
        assert (await client.mining.getTip(other)).hasResult
        assert (await client.mining.checkBlock(other, valid_block(), check_options(False))).result
        assert not waiting.done()
        await client.mining.interrupt()
        await asyncio.wait_for(waiting, 30)

    drive(run())


def test_a_call_that_its_client_gives_up_lets_the_next_one_begin(corpus_server: ServerProcess) -> None:
    async def run() -> None:
        client = await Client.connect(corpus_server.path)
        waiting = asyncio.ensure_future(client.mining.waitTipChanged(client.context, internal(TIP["hash"])))
        following = asyncio.ensure_future(client.mining.getTip(client.context))
        await client.mining.getTip(client.thread())
        assert not following.done()
        waiting.cancel()
        assert (await asyncio.wait_for(following, 30)).hasResult

    drive(run())


def test_long_validations_of_one_client_do_not_delay_another(corpus_server: ServerProcess) -> None:
    """Twenty checks of the largest blocks of the corpus on threads of one client; others are answered meanwhile."""
    largest = max(filter(None, map(decodable, rows("proposals"))), key=len)
    small = valid_block()

    async def run() -> None:
        slow, quick = await Client.connect(corpus_server.path), await Client.connect(corpus_server.path)
        await quick.mining.getTip(quick.context)
        options = check_options(False)
        checks = [asyncio.ensure_future(slow.mining.checkBlock(slow.thread(), largest, options)) for _ in range(20)]
        await slow.init.construct()
        for _ in range(3):
            assert (await quick.mining.getTip(quick.context)).hasResult
            assert (await quick.mining.checkBlock(quick.context, small, options)).result
        assert not all(check.done() for check in checks)
        await asyncio.gather(*checks)

    drive(run())


def test_sixteen_busy_clients_get_fair_shares(corpus_server: ServerProcess) -> None:
    """One of them asks on eight threads at once: it gets no more than twice the mean for that, and nobody starves."""
    block, options = valid_block(), check_options(False)
    enough = 640

    async def run() -> Counter[int]:
        clients = [await Client.connect(corpus_server.path) for _ in range(16)]
        answered: Counter[int] = Counter()

        async def ask(number: int, context: Any) -> None:
            while answered.total() < enough:
                answer = await clients[number].mining.checkBlock(context, block, options)
                assert answer.result
                answered[number] += 1

        greedy = [ask(0, clients[0].thread()) for _ in range(8)]
        modest = [ask(number, clients[number].context) for number in range(1, 16)]
        await asyncio.gather(*greedy, *modest)
        return answered

    answered = drive(run())
    mean = answered.total() / 16
    assert all(mean / 2 <= answered[number] <= 2 * mean for number in range(16)), answered
