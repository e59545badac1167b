"""One soak run: a fake node and its life, a store that follows it, clients, floods and kills, by a schedule that the
seed decides. What it found is in its `Tally`.
"""

import asyncio
import http.client
import os
import random
import shutil
import signal
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from cluster import Cluster
from cluster.follow import Follower, Pace
from cluster.follow_target import RayTarget
from cluster.follow_zmq import Notifications
from cluster.gateway.start import start_gateway
from cluster.node_rpc import Login, NodeRpc
from models.errors import TxCollectionError
from models.storage.store import Store
from tests.cluster.gateway.conftest import Connection
from tests.fakechain import BranchTip, mine_block, spend_coin
from tests.fakenode import FakeNode, drop_some
from tests.nodelife import NodeLife
from tests.soak.clients import PASSING, CollectionClient, Flooder, RpcClient, SoakClient
from tests.soak.plan import Planner
from tests.soak.tally import Outage, Reading, Tally

__all__ = ["Plan", "soak"]

VICTIMS = ("chainstate", "mempool", "fetch", "script", "template", "collection", "gateway", "supervisor")
LOST = 0.02  # share of the node's ZMQ messages
PATIENCE = 90.0  # seconds
FEW_COINS = 60
EVENTS_A_SECOND = 12
BLOCK_EVERY, REORG_EVERY, READ_EVERY = 4.0, 27.0, 3.0  # seconds
QUIET_CALM = 4.0  # seconds of service, after a kill, that end its outage


@dataclass(frozen=True)
class Plan:
    """How long and how much. Times in seconds."""

    seconds: float = 150.0
    seed: int = 1
    clients: int = 4
    size: int = 40  # mempool transactions in one declaration
    kill_every: float = 11.0
    flood_every: float = 24.0
    flood_for: float = 8.0
    settings: tuple[tuple[str, Any], ...] = (("script_workers", 2), ("collection_actors", 4))


class _Soak:
    def __init__(self, plan: Plan, directory: Path):
        self.plan = plan
        self.directory = directory
        self.store = directory / "store"
        self.tally = Tally()
        self.dice = random.Random(plan.seed)
        self.end = 0.0
        self.clients: list[SoakClient] = []
        self.node: Any = None  # ours
        self.probe: Any = None  # a client that only looks whether there is service
        self.gateway: Any = None
        self.following: asyncio.Task[None] | None = None

    @property
    def over(self) -> bool:
        return time.monotonic() >= self.end

    async def run(self) -> None:
        """Everything, and then nothing is left."""
        fake = FakeNode(self.directory)
        await fake.start()
        life = NodeLife(fake, self.plan.seed, 600)
        await life.prepare()
        Store.create_genesis("regtest", self.store)
        self.node = await asyncio.to_thread(lambda: Cluster.start(store=self.store, **dict(self.plan.settings)))
        try:
            self.gateway = await asyncio.to_thread(start_gateway, self.node)
            self.probe = await asyncio.to_thread(lambda: Cluster.connect(store=self.store))
            async with NodeRpc(fake.url, Login(cookie=fake.cookie)) as rpc, Notifications([fake.zmq]) as messages:
                follower = Follower(rpc, RayTarget(self.store, rejoin=False), messages, Pace(audit=2.0))
                self.following = asyncio.create_task(follower.run())
                try:
                    await self._level(follower, fake, "caught up at the start")
                    await self._live(fake, life, follower)
                    self.tally.node = {
                        "blocks": len(fake.chain.active) - 1,
                        "mempool events": life.events,
                        "reorganisations": life.reorgs,
                        "messages lost": fake.dropped,
                        "messages": messages.messages,
                        "repairs": follower.status.repairs,
                        "reconnects": follower.status.reconnects,
                    }
                finally:
                    self.following.cancel()
                    await asyncio.gather(self.following, return_exceptions=True)
        finally:
            for client in self.clients:
                client.stop.set()
            await asyncio.to_thread(self._close)
            await fake.stop()

    def _close(self) -> None:
        for client in self.clients:
            client.join(PATIENCE)
        if self.probe is not None:
            self.probe.close()
        self.node.close()

    async def _live(self, fake: FakeNode, life: NodeLife, follower: Follower) -> None:
        planner = Planner(fake.chain, self.plan.seed, self.plan.size)
        loop = asyncio.get_running_loop()
        tally = self.tally
        for number in range(self.plan.clients):
            seed = self.plan.seed * 1000 + number
            self.clients.append(CollectionClient(self.store, f"client {number}", planner, loop, tally, seed))
        self.clients.append(RpcClient(self.gateway, "rpc client", planner, loop, tally, self.plan.seed))
        self.clients.append(Flooder(self.store, "flooder", planner, loop, tally, self.plan.seed))
        drop_some(fake, LOST, self.plan.seed)
        tally.begun = time.monotonic()
        self.end = tally.begun + self.plan.seconds
        for client in self.clients:
            client.start()
        await asyncio.gather(self._chain(fake, life), self._kills(planner), self._floods(), self._readings())
        for client in self.clients:
            client.flood.clear()
            client.stop.set()
        await asyncio.gather(*(asyncio.to_thread(client.join, PATIENCE) for client in self.clients))
        tally.faults += [f"{client.name} hangs" for client in self.clients if client.is_alive()]
        fake.drop = lambda _: False
        await self._level(follower, fake, "caught up at the end")
        await self._equal(fake)

    # What happens -----------------------------------------------------------------------------------------------

    async def _chain(self, fake: FakeNode, life: NodeLife) -> None:
        block, branch = BLOCK_EVERY, REORG_EVERY
        restart = self.plan.seconds / 2
        while not self.over:
            await asyncio.sleep(1 / EVENTS_A_SECOND)
            now = time.monotonic() - self.tally.begun
            await life.event()
            if now > block:
                self._more_coins(fake, life)
                await life.block()
                block = now + BLOCK_EVERY * (0.5 + self.dice.random())
            if now > branch:
                if life.confirmed:
                    await life.reorganise(self.dice.randint(1, min(3, len(life.confirmed))))
                branch = now + REORG_EVERY * (0.5 + self.dice.random())
            if now > restart:
                await fake.restart()
                restart = float("inf")

    def _more_coins(self, fake: FakeNode, life: NodeLife) -> None:
        """Splits a coinbase that has become mature, in a block of its own, once coins run out."""
        chain = fake.chain
        if len(life.coins) > FEW_COINS:
            return
        for outpoint, (value, height, coinbase, _) in chain.coins.items():
            if coinbase and len(chain.active) - height >= 100 and outpoint not in chain.spenders and value > 10**8:
                fan = spend_coin(outpoint, value, outputs=200, fee=100_000)
                best = chain.entries[chain.best]
                parent = BranchTip(chain.best, best.height, best.block.header.time)
                chain.add_block(mine_block(parent, [fan], tag=b"fan"))
                life.confirmed.append([])
                life.coins += [(fan.txid + n.to_bytes(4, "little"), fan.values[n], False) for n in range(200)]
                return

    async def _floods(self) -> None:
        while not self.over:
            await asyncio.sleep(min(self.plan.flood_every, max(self.end - time.monotonic(), 0)))
            if self.over:
                return
            for client in self.clients:
                client.flood.set()
            await asyncio.sleep(self.plan.flood_for)
            for client in self.clients:
                client.flood.clear()

    async def _kills(self, planner: Planner) -> None:
        order: list[str] = []
        while True:
            await asyncio.sleep(self.plan.kill_every * (0.7 + 0.6 * self.dice.random()))
            if self.end - time.monotonic() < QUIET_CALM * 2:
                return
            if not order:
                order = list(VICTIMS)
                self.dice.shuffle(order)
            await self._kill(order.pop(), planner)

    async def _kill(self, kind: str, planner: Planner) -> None:
        pids: dict[str, int] = await self._again(lambda: self.probe.pids())
        names = [name for name in pids if name.startswith(kind)]
        if not names:
            return
        victim = pids[self.dice.choice(names)]
        with suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)
        begun = last = time.monotonic()
        failed = False
        while True:
            good = await asyncio.to_thread(self._served, planner)
            now = time.monotonic()
            if not good:
                failed, last = True, now
            elif now - last > QUIET_CALM:
                break
            if now - begun > PATIENCE:
                self.tally.outages.append(Outage(kind, now - begun, False))
                return
            await asyncio.sleep(0.1)
        back = await asyncio.to_thread(self._back, victim)
        self.tally.outages.append(Outage(kind, last - begun if failed else 0.0, back))

    def _served(self, planner: Planner) -> bool:
        """Whether a declaration gets its verdict, over the facade and over RPC."""
        try:
            wtxid = planner.wrong()[:32].hex()
            with self.probe.collect_txs([wtxid]) as collection:
                kind = collection.make_template(self.probe.tip_hash()).kind
            return kind == "missing" and self._rpc_answers()
        except PASSING:
            return False
        except TxCollectionError as error:
            self.tally.fault(f"looking for service: {type(error).__name__}: {error}")
            return False

    def _rpc_answers(self) -> bool:
        try:
            connection = Connection(self.gateway)
            try:
                return connection.ask("getblockcount").status == 200
            finally:
                connection.close()
        except (OSError, http.client.HTTPException):
            return False

    def _back(self, victim: int) -> bool:
        """Whether every actor answers and the dead one is out of the list."""
        limit = time.monotonic() + PATIENCE
        while time.monotonic() < limit:
            try:
                if victim not in self.probe.pids().values():
                    return not any("error" in stats for stats in self.probe.stats().values())
            except PASSING:
                pass
            time.sleep(0.2)
        return False

    async def _readings(self) -> None:
        while not self.over:
            with suppress(TxCollectionError, psutil.Error, FileNotFoundError):
                self.tally.readings.append(await asyncio.to_thread(self._read))
            await asyncio.sleep(READ_EVERY)

    def _read(self) -> Reading:
        processes = [psutil.Process(pid) for pid in self.probe.pids().values()]
        memory = sum(process.memory_full_info().uss for process in processes)
        handles = sum(process.num_fds() for process in processes)
        disk = sum(path.stat().st_size for path in self.store.rglob("*") if path.is_file())
        return Reading(time.monotonic() - self.tally.begun, memory, handles, disk, len(processes))

    # At the end -------------------------------------------------------------------------------------------------

    async def _again(self, question: Callable[[], Any]) -> Any:
        limit = time.monotonic() + PATIENCE
        while True:
            try:
                return await asyncio.to_thread(question)
            except PASSING:
                if time.monotonic() > limit:
                    raise
                await asyncio.sleep(0.1)

    async def _level(self, follower: Follower, fake: FakeNode, what: str) -> None:
        limit = time.monotonic() + PATIENCE
        while not (follower.status.ready and follower.status.tip == fake.chain.best[::-1].hex()):
            assert self.following is not None
            if self.following.done():
                self.following.result()
            if time.monotonic() > limit:
                self.tally.fault(f"not {what}")
                return
            await asyncio.sleep(0.05)

    async def _equal(self, fake: FakeNode) -> None:
        """Tip, coins and mempool are the followed node's."""
        stats = await self._again(lambda: self.probe.utxo_stats())
        if stats.hash_serialized_3 != fake.chain.utxo_hash():
            self.tally.fault(f"the coins hash to {stats.hash_serialized_3}, the node's to {fake.chain.utxo_hash()}")
        tip = await self._again(lambda: self.probe.tip_hash())
        if tip != fake.chain.best[::-1].hex():
            self.tally.fault(f"the tip is {tip}, the node's {fake.chain.best[::-1].hex()}")
        limit = time.monotonic() + PATIENCE
        while True:
            ours = set(await self._again(lambda: self.probe.mempool_wtxids()))
            theirs = {tx.wtxid[::-1].hex() for tx in fake.chain.mempool.values()}
            if ours == theirs:
                return
            if time.monotonic() > limit:
                self.tally.fault(f"{len(ours ^ theirs)} transactions are in one mempool only")
                return
            await asyncio.sleep(0.2)


def soak(plan: Plan) -> Tally:
    """Runs it; Ray may run already. Raises whatever hinders the run itself."""
    directory = Path(tempfile.mkdtemp(prefix="txcollection-soak-"))
    run = _Soak(plan, directory)
    try:
        asyncio.run(run.run())
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return run.tally
