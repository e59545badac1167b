"""An hour of a node's life in a minute, followed by a store's real actors: blocks, mempool events with replacements and
chains, reorganisations with double-spends, lost ZMQ messages, both sides restarted. At the end both hold the same coins
and the same mempool.

The default is a small hour. FOLLOW_BLOCKS=200 FOLLOW_EVENTS=10000 FOLLOW_REORGS=5 in the environment is the whole one;
BITCOIND=path runs it against a real node, whose messages nobody drops.
"""

import asyncio
import os
import random
import shutil
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from cluster.follow import Follower, Pace
from cluster.follow_status import FollowStatus
from cluster.follow_target import RayTarget
from cluster.follow_zmq import Notifications
from cluster.node_rpc import Login, NodeRpc
from models.messages import unwrap
from models.storage.store import Store
from models.wire.block import decode_block
from models.wire.transaction import Transaction
from tests import fakenode
from tests.fakenode import BranchTip, FakeNode, mine_block, spend_coin

BLOCKS = int(os.environ.get("FOLLOW_BLOCKS", "40"))
EVENTS = int(os.environ.get("FOLLOW_EVENTS", "1200"))
REORGS = int(os.environ.get("FOLLOW_REORGS", "3"))
LOST = 0.02  # share of ZMQ messages
SEED = 20261202
FAN = 200  # coins made of one coinbase
PATIENCE = 60.0  # seconds


async def until(condition: Callable[[], Awaitable[bool]], what: str) -> None:
    limit = time.monotonic() + PATIENCE
    while not await condition():
        assert time.monotonic() < limit, f"did not happen: {what}"
        await asyncio.sleep(0.03)


class Hour:
    """Makes the node's life; knows what it made."""

    def __init__(self, node: Any):
        self.node = node
        self.dice = random.Random(SEED)
        self.coins: list[tuple[bytes, int, bool]] = []  # outpoint, satoshis, whether it is a P2WSH
        self.sent: dict[bytes, Transaction] = {}  # parents before children
        self.spent_coin: dict[bytes, tuple[bytes, int, bool]] = {}  # txid -> the confirmed coin it spends
        self.confirmed: list[list[bytes]] = []  # txids of each block of the best chain since the preparation
        self.events = 0
        self.reorgs = 0

    async def prepare(self) -> None:
        """Enough confirmed coins for every event."""
        sources = max(2, EVENTS // FAN + 1)
        firsts = []
        for _ in range(sources):
            raw = mine_block(await self.node.tip())
            await self.node.submit_block(raw)
            firsts.append(decode_block(raw).transactions[0])
        for _ in range(100):
            await self.node.submit_block(mine_block(await self.node.tip()))
        fans = []
        for number, first in enumerate(firsts):
            witness = number % 2 == 1
            fan = spend_coin(first.txid + bytes(4), first.values[0], outputs=FAN, fee=100_000, to_witness=witness)
            fans.append(fan)
            self.coins += [(fan.txid + n.to_bytes(4, "little"), fan.values[n], witness) for n in range(FAN)]
        await self.node.submit_block(mine_block(await self.node.tip(), fans))
        for _ in range(6):  # no reorganisation reaches them
            await self.node.submit_block(mine_block(await self.node.tip()))

    async def event(self) -> None:
        """One transaction, child, or replacement."""
        pool = await self.node.mempool() if not self.node.is_fake else self.node.chain.mempool
        roll = self.dice.random()
        candidates = [txid for txid in self.spent_coin if txid in pool] if roll > 0.6 else []
        if roll > 0.8 and candidates:
            await self._replace(self.dice.choice(candidates))
        elif roll > 0.6 and candidates:
            parent = self.sent[self.dice.choice(candidates)]
            wraps = parent.script_pubkeys[1] != fakenode.OP_TRUE
            child = spend_coin(parent.txid + b"\x01\x00\x00\x00", parent.values[1], outputs=2, witness=wraps)
            await self._send(child, None)
        elif self.coins:
            outpoint, value, witness = coin = self.coins.pop()
            await self._send(spend_coin(outpoint, value, witness=witness, to_witness=witness), coin)

    async def _replace(self, txid: bytes) -> None:
        outpoint, value, witness = coin = self.spent_coin[txid]
        fee = value - sum(self.sent[txid].values) + 20_000
        if await self._send(spend_coin(outpoint, value, fee=fee, witness=witness), coin):
            self.events += 1  # one went, too

    async def _send(self, tx: Transaction, coin: tuple[bytes, int, bool] | None) -> bool:
        accepted = await self.node.send(tx)
        if accepted:
            self.events += 1
            self.sent[tx.txid] = tx
            if coin is not None:
                self.spent_coin[tx.txid] = coin
        return accepted

    async def _choose(self, share: float) -> list[Transaction]:
        """Some of the mempool, parents first."""
        pool = await self.node.mempool()
        chosen: dict[bytes, Transaction] = {}
        for txid, tx in self.sent.items():
            parents = [prevout[:32] for prevout in tx.prevouts if prevout[:32] in pool]
            if txid in pool and all(p in chosen for p in parents) and self.dice.random() < share:
                chosen[txid] = tx
        return list(chosen.values())

    async def block(self) -> None:
        """The next block, with about half of the mempool."""
        chosen = await self._choose(0.6)
        await self.node.submit_block(mine_block(await self.node.tip(), chosen))
        self.confirmed.append([tx.txid for tx in chosen])

    async def reorganise(self, depth: int) -> None:
        """A longer branch that double-spends one of the transactions that the blocks taken back held."""
        gone = [txid for block in self.confirmed[-depth:] for txid in block]
        victims = [txid for txid in gone if txid in self.spent_coin]
        conflicts = []
        if victims:
            outpoint, value, witness = self.spent_coin[self.dice.choice(victims)]
            conflicts = [spend_coin(outpoint, value, fee=90_000, outputs=3, witness=witness)]
        parent: BranchTip = await self.node.tip(below=depth)
        for number in range(depth + 1):
            raw = mine_block(parent, conflicts if number == 0 else [], tag=self.reorgs.to_bytes(2, "big"))
            parent = BranchTip(await self.node.submit_block(raw), parent.height + 1, parent.time + 60)
        self.confirmed[-depth:] = [[] for _ in range(depth + 1)]
        self.reorgs += 1


@pytest.mark.cluster
@pytest.mark.timeout(1800)
def test_an_hour(tmp_path: Path, start_node: Callable[..., Any], capsys: pytest.CaptureFixture[str]) -> None:
    store = tmp_path / "store"
    Store.create_genesis("regtest", store)
    settings: dict[str, Any] = {"heartbeat_ms": 0, "script_workers": 2}
    began = time.monotonic()

    async def test() -> FollowStatus:
        ours = await asyncio.to_thread(start_node, store, **settings)
        node = fakenode.start_node(tmp_path)
        await node.start()
        hour = Hour(node)
        await hour.prepare()
        target = RayTarget(store, rejoin=False)
        async with NodeRpc(node.url, Login(cookie=node.cookie)) as rpc, Notifications([node.zmq]) as notifications:
            follower = Follower(rpc, target, notifications, Pace(audit=2.0))
            task = asyncio.create_task(follower.run())

            async def level() -> bool:
                if task.done():
                    task.result()
                return follower.status.ready and follower.status.tip == (await node.tip()).hash[::-1].hex()

            await until(level, "caught up")
            if isinstance(node, FakeNode):
                fakenode.drop_some(node, LOST, SEED)
            restart_node, restart_ours = BLOCKS // 3, 2 * BLOCKS // 3
            reorganise = {(number + 1) * BLOCKS // (REORGS + 1) for number in range(REORGS)}
            for number in range(BLOCKS):
                while hour.events < (number + 1) * EVENTS // BLOCKS and hour.coins:
                    await hour.event()
                    if hour.events % 8 == 0:
                        await asyncio.sleep(0)
                if number in reorganise:
                    await hour.reorganise(min(1 + len(hour.confirmed) % 4, len(hour.confirmed)))
                await hour.block()
                if number == restart_node:
                    await node.restart()
                elif number == restart_ours:
                    await asyncio.to_thread(ours.close)
                    await hour.event()
                    ours = await asyncio.to_thread(start_node, store, **settings)
                else:
                    await until(level, f"block {number}")
            if isinstance(node, FakeNode):
                node.drop = lambda _: False
            await until(level, "the last block")

            async def equal() -> bool:
                txids, wtxids = await target.mempool_ids()
                return dict(zip(txids, wtxids, strict=True)) == await node.mempool()

            await until(equal, "the same mempool")
            stats = unwrap(await target._directory["chainstate"].utxo_stats.remote())
            assert stats[3] == await node.utxo_hash()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        with capsys.disabled():
            status = follower.status
            print(
                f"\n{BLOCKS} blocks, {hour.events} mempool events, {hour.reorgs} reorganisations, "
                f"{getattr(node, 'dropped', 0)} of {notifications.messages} messages lost, {status.gaps} gaps seen, "
                f"{status.repairs} repairs, {status.reconnects} reconnects, {len(await node.mempool())} transactions "
                f"and {stats[1]} coins at the end, {time.monotonic() - began:.0f} s"
            )
        await node.stop()
        assert hour.events >= EVENTS * 0.99 and hour.reorgs == REORGS
        await asyncio.to_thread(ours.close)
        return follower.status

    status = asyncio.run(test())
    assert status.reorgs >= REORGS - 1  # one may have come while a side was away
    shutil.rmtree(store)
