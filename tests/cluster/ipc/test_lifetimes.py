"""What a client held is freed when it destroys it, lets go of it, or goes away in the middle of anything."""

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.actors.blocks import SPACING, coinbase, spend, subsidy
from tests.actors.small_chain import SmallChain
from tests.cluster.ipc.client import Client, check_options, drive, wait_options
from tests.cluster.ipc.conftest import ServerProcess
from tests.cluster.ipc.test_templates import Parent, create_options, next_block

PATIENCE = 30.0  # seconds for something to be freed


class Place:
    """A node with some transactions in its mempool and one that is not, and a server of its own."""

    def __init__(self, chain: SmallChain, start_node: Callable[..., Any], start_server: Callable[..., Any]) -> None:
        self.node = start_node(chain.store(), now=chain.tip.time + SPACING)
        self.server: ServerProcess = start_server(self.node.store, "--now", str(chain.tip.time + SPACING))
        self.tip = Parent(chain.tip.hash, chain.tip.height, chain.tip.time)
        self.known = [spend([coin]) for coin in chain.coins[:5]]
        self.late = spend([chain.coins[5]])
        self.node.mempool_add([tx.raw for tx in self.known])
        self.node.wait_mempool()
        self.wtxids = [tx.txid for tx in (*self.known, self.late)]
        fees = 1000 * len(self.wtxids)
        self.coinbase = coinbase(self.tip.height + 1, [subsidy(self.tip.height + 1) + fees])
        transactions = (*self.known, self.late)
        self.block = next_block(self.tip, transactions=transactions, first=self.coinbase)

    def open(self) -> int:
        """Collections that the node's actors hold."""
        stats = self.node.stats()
        return sum(counters.get("open", 0) for name, counters in stats.items() if name.startswith("collection-"))

    def drafts(self) -> int:
        stats = self.node.stats()
        return sum(counters.get("drafts", 0) for name, counters in stats.items() if name.startswith("template-"))

    def check_nothing_is_left(self) -> None:
        """Waits until everything is freed; also speculation about a list, which is the client's too."""
        limit = time.monotonic() + PATIENCE
        while (left := (self.open(), self.drafts())) != (0, 0):
            assert time.monotonic() < limit, f"collections and drafts left: {left}"
            time.sleep(0.05)

    def still_serves(self) -> None:
        async def run() -> int:
            client = await Client.connect(self.server.path)
            return (await client.mining.getTip(client.context)).result.height

        assert drive(run()) == self.tip.height


@pytest.fixture(scope="module")
def place(small_chain: SmallChain, start_node: Callable[..., Any], start_server: Callable[..., Any]) -> Iterator[Place]:
    made = Place(small_chain, start_node, start_server)
    yield made
    made.server.stop()
    made.node.close()


async def until(condition: Callable[[], bool]) -> None:
    limit = time.monotonic() + PATIENCE
    while not await asyncio.to_thread(condition):
        assert time.monotonic() < limit
        await asyncio.sleep(0.02)


def test_destroyed_collections_are_freed(place: Place) -> None:
    async def run() -> None:
        client = await Client.connect(place.server.path)
        collections = [await client.collect(place.wtxids) for _ in range(3)]
        await until(lambda: place.open() == 3)
        for collection in collections:
            await collection.destroy(client.context)
        await until(lambda: place.open() == 0)

    drive(run())
    place.check_nothing_is_left()


def test_collections_that_a_client_lets_go_of_are_freed(place: Place) -> None:
    async def run() -> None:
        client = await Client.connect(place.server.path)
        collection = await client.collect(place.wtxids)
        await until(lambda: place.open() == 1)
        del collection
        await until(lambda: place.open() == 0)

    drive(run())


def test_a_template_keeps_its_collection_until_it_goes_itself(place: Place) -> None:
    async def run() -> None:
        client = await Client.connect(place.server.path)
        collection = await client.collect(place.wtxids)
        await collection.addMissingTxs(client.context, [place.late.raw])
        answer = await collection.makeTemplate(client.context, place.tip.hash, place.coinbase.raw)
        assert answer.reason == ""
        await collection.destroy(client.context)
        template = answer.result
        await template.getBlock(client.context)
        assert await asyncio.to_thread(place.open) == 1
        await template.destroy(client.context)
        await until(lambda: place.open() == 0)

    drive(run())
    place.check_nothing_is_left()


def test_everything_goes_with_the_connection(place: Place) -> None:
    async def run() -> None:
        client = await Client.connect(place.server.path)
        collection = await client.collect(place.wtxids)
        await collection.addMissingTxs(client.context, [place.late.raw])
        await collection.makeTemplate(client.context, place.tip.hash, place.coinbase.raw)
        another = await client.collect(place.wtxids)
        await client.mining.getTransactionsByWitnessID(client.context, place.wtxids)
        await until(lambda: place.open() == 3)
        client.close()
        del another
        await until(lambda: place.open() == 0)

    drive(run())
    place.check_nothing_is_left()


#: What a client may be in the middle of when it goes away: begins a call and returns it.
MIDDLES: dict[str, Callable[[Place, Client], Any]] = {
    "waitTipChanged": lambda place, c: c.mining.waitTipChanged(c.context, place.tip.hash),
    "collectTxs": lambda place, c: c.mining.collectTxs(c.context, place.wtxids),
    "collectTxs, makeTemplate": lambda place, c: c.mining.collectTxs(c.context, place.wtxids[:5]).result.makeTemplate(
        c.context, place.tip.hash, b""
    ),
    "addMissingTxs": lambda place, c: c.mining.collectTxs(c.context, place.wtxids).result.addMissingTxs(
        c.context, [place.late.raw]
    ),
    "checkBlock": lambda place, c: c.mining.checkBlock(c.context, place.block.raw, check_options(pow=False)),
    "getTransactionsByWitnessID": lambda place, c: c.mining.getTransactionsByWitnessID(c.context, place.wtxids),
    "createNewBlock": lambda place, c: c.mining.createNewBlock(c.context, create_options()),
    "waitNext": lambda place, c: c.mining.createNewBlock(c.context, create_options()).result.waitNext(
        c.context, wait_options(60_000, 1)
    ),
}


@pytest.mark.parametrize("after", [0.0, 0.005, 0.05], ids=["at once", "soon", "later"])
@pytest.mark.parametrize("middle", MIDDLES)
def test_a_client_that_goes_away_in_the_middle(middle: str, after: float, place: Place) -> None:
    async def run() -> None:
        client = await Client.connect(place.server.path)
        await client.mining.getTip(client.context)
        call = asyncio.ensure_future(MIDDLES[middle](place, client))
        await asyncio.sleep(after)
        client.close()
        await asyncio.gather(call, return_exceptions=True)

    drive(run())
    place.still_serves()
    place.check_nothing_is_left()


def test_connections_that_come_and_go_leave_nothing_behind(place: Place) -> None:
    """A thousand of them; every tenth leaves a collection, a wait and a question behind."""

    async def visit(number: int) -> None:
        client = await Client.connect(place.server.path)
        await client.mining.getTip(client.context)
        if number % 10 == 0:
            waiting = asyncio.ensure_future(client.mining.waitTipChanged(client.thread(), place.tip.hash))
            collection = await client.collect(place.wtxids)
            await collection.addMissingTxs(client.context, [place.late.raw])
            asking = asyncio.ensure_future(client.mining.getTransactionsByWitnessID(client.context, place.wtxids))
            client.close()
            await asyncio.gather(waiting, asking, return_exceptions=True)
        client.close()

    async def visits(numbers: range) -> None:
        for number in numbers:
            await visit(number)

    drive(visits(range(300)))
    place.check_nothing_is_left()
    files, memory = place.server.open_files(), place.server.memory()
    drive(visits(range(1000)))
    place.check_nothing_is_left()
    limit = time.monotonic() + PATIENCE
    while place.server.open_files() > files and time.monotonic() < limit:
        time.sleep(0.05)
    assert place.server.open_files() <= files
    assert place.server.memory() - memory < 8 * 1024 * 1024
    place.still_serves()
