"""An hour of a node's life in a minute, followed by a store's real actors: blocks, mempool events with replacements and
chains, reorganisations with double-spends, lost ZMQ messages, both sides restarted. At the end both hold the same coins
and the same mempool.

The default is a small hour. FOLLOW_BLOCKS=200 FOLLOW_EVENTS=10000 FOLLOW_REORGS=5 in the environment is the whole one;
BITCOIND=path runs it against a real node, whose messages nobody drops.
"""

import asyncio
import os
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
from tests import fakenode
from tests.fakenode import FakeNode
from tests.nodelife import NodeLife

BLOCKS = int(os.environ.get("FOLLOW_BLOCKS", "40"))
EVENTS = int(os.environ.get("FOLLOW_EVENTS", "1200"))
REORGS = int(os.environ.get("FOLLOW_REORGS", "3"))
LOST = 0.02  # share of ZMQ messages
SEED = 20261202
PATIENCE = 60.0  # seconds


async def until(condition: Callable[[], Awaitable[bool]], what: str) -> None:
    limit = time.monotonic() + PATIENCE
    while not await condition():
        assert time.monotonic() < limit, f"did not happen: {what}"
        await asyncio.sleep(0.03)


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
        hour = NodeLife(node, SEED, EVENTS)
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
