"""The follower against a small node (or, with BITCOIND=path, a real one) and a store in the test's own process:
catching up, following, reorganisations, restarts of either side, and the ways in which a node can be the wrong one."""

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from cluster.follow import Follower, Pace
from cluster.follow_status import FollowState
from cluster.follow_zmq import Notifications
from cluster.node_rpc import Login, NodeRpc
from models.errors import NetworkMismatch, NodeDisagrees, NodePruned, NodeRefused
from models.storage.blockfiles import BlockFiles
from models.storage.blockindex import HAVE_DATA, read_block_index
from models.storage.checkpoint import checkpoint
from models.storage.store import Store
from models.wire.block import decode_block
from models.wire.hashes import to_display
from tests.actors.blocks import coinbase, mine, subsidy
from tests.cluster.follow_local import LocalTarget
from tests.fakechain import BranchTip, mine_block, spend_coin
from tests.fakenode import FakeNode, RealNode, start_node

QUICK = Pace(poll=0.05, audit=0.5, download=0.05)
NEVER = Pace(poll=3600, audit=3600, download=0.05)  # only messages tell
Node = FakeNode | RealNode


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 120))


@pytest.fixture
def genesis_store(tmp_path: Path) -> Path:
    Store.create_genesis("regtest", tmp_path / "store")
    return tmp_path / "store"


@asynccontextmanager
async def running(node: Node) -> AsyncIterator[Node]:
    await node.start()
    try:
        yield node
    finally:
        await node.stop()


@asynccontextmanager
async def following(
    node: Node, target: LocalTarget, pace: Pace = QUICK, with_zmq: bool = False, login: Login | None = None
) -> AsyncIterator[Follower]:
    """A follower that runs until the block ends; an error that ended it is raised there."""
    async with NodeRpc(node.url, login or Login(cookie=node.cookie)) as rpc:
        notifications = Notifications([node.zmq]) if with_zmq else None
        if notifications is not None:
            await notifications.__aenter__()
        follower = Follower(rpc, target, notifications, pace)
        task = asyncio.create_task(follower.run())
        try:
            yield follower
        finally:
            if not task.done():
                task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            if notifications is not None:
                await notifications.close()
            target.stop()


async def ended(node: Node, target: LocalTarget, **options: Any) -> None:
    """Follows until the follower ends by itself; raises what ended it."""
    async with NodeRpc(node.url, options.pop("login", Login(cookie=node.cookie))) as rpc:
        try:
            await Follower(rpc, target, None, QUICK).run(**options)
        finally:
            target.stop()


async def until(condition: Callable[[], Awaitable[bool] | bool], what: str) -> None:
    for _ in range(1500):
        answer = condition()
        if answer if isinstance(answer, bool) else await answer:
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"did not happen: {what}")


async def equal(node: Node, target: LocalTarget) -> bool:
    if target.store is None:
        return False
    tip = await node.tip()
    theirs = await node.mempool()
    ours = dict(zip(*await target.mempool_ids(), strict=True))
    return target.chain.tip.hash == tip.hash and ours == theirs


async def grow(node: Node, blocks: int, parts: int = 1) -> list[BranchTip]:
    made = []
    for _ in range(blocks):
        await node.submit_block(mine_block(await node.tip(), parts=parts))
        made.append(await node.tip())
    return made


async def replace_tip(node: Node, depth: int, length: int, tag: bytes = b"other") -> None:
    """A branch that leaves the chain `depth` blocks below the tip."""
    parent = await node.tip(below=depth)
    for _ in range(length):
        raw = mine_block(parent, tag=tag)
        parent = BranchTip(await node.submit_block(raw), parent.height + 1, parent.time + 60)


async def coins_of(node: Node, count: int) -> list[tuple[bytes, int]]:
    """Mature coins: the first outputs of early blocks. The chain is made long enough."""
    raws = []
    for _ in range(count):
        raws.append(mine_block(await node.tip()))
        await node.submit_block(raws[-1])
    await grow(node, 100)
    coinbases = [decode_block(raw).transactions[0] for raw in raws]
    return [(tx.txid + bytes(4), tx.values[0]) for tx in coinbases]


# Catching up ----------------------------------------------------------------------------------------------------------


def recorded(data: Path, name: str) -> list[dict[str, Any]]:
    with gzip.open(data / f"{name}.jsonl.gz") as lines:
        return [json.loads(line) for line in lines]


def test_catches_up_with_a_recorded_chain(tmp_path: Path, genesis_store: Path, data: Path) -> None:
    head, *blocks = recorded(data, "chain_shared1")

    async def test() -> None:
        async with running(FakeNode(tmp_path)) as node:
            for block in blocks:
                await node.submit_block(bytes.fromhex(block["block"]))
            target = LocalTarget(genesis_store)
            async with following(node, target):
                await until(lambda: equal(node, target), "equal")
                assert target.utxo_hash() == head["hash_serialized_3"] == await node.utxo_hash()

    run(test)


def test_follows_a_recorded_reorganisation(tmp_path: Path, genesis_store: Path, data: Path) -> None:
    blocks = recorded(data, "chain_shared1")[1:]
    branch = recorded(data, "reorg_shared1")

    async def test() -> None:
        async with running(FakeNode(tmp_path)) as node:
            for block in blocks:
                await node.submit_block(bytes.fromhex(block["block"]))
            target = LocalTarget(genesis_store)
            async with following(node, target, NEVER, with_zmq=True) as follower:
                await until(lambda: follower.status.ready, "caught up")
                for step in branch:
                    await node.submit_block(bytes.fromhex(step["block"]))
                    await until(lambda step=step: to_display(target.chain.tip.hash) == step["tip_after"], "tip")  # type: ignore[misc]
                    assert target.utxo_hash() == step["hash_serialized_3"]
                assert follower.status.reorgs == 1

    run(test)


def test_once_ends_when_both_are_equal(tmp_path: Path, genesis_store: Path) -> None:
    async def test() -> None:
        async with running(start_node(tmp_path)) as node:
            await grow(node, 3)
            target = LocalTarget(genesis_store)
            await ended(node, target, once=True)
            target.start()
            assert target.chain.tip.height == 3
            target.stop()

    run(test)


def test_a_reorganisation_that_happened_while_it_was_away(tmp_path: Path, genesis_store: Path) -> None:
    async def test() -> None:
        async with running(start_node(tmp_path)) as node:
            await grow(node, 30)
            target = LocalTarget(genesis_store)
            await ended(node, target, once=True)
            await replace_tip(node, depth=20, length=22)
            target.start()
            async with following(node, target) as follower:
                await until(lambda: equal(node, target), "equal")
                assert target.chain.tip.height == 32
                assert target.utxo_hash() == await node.utxo_hash()
                assert follower.status.reorgs == 1

    run(test)


# Following ------------------------------------------------------------------------------------------------------------


def test_blocks_and_transactions_by_messages_alone(tmp_path: Path, genesis_store: Path) -> None:
    async def test() -> None:
        async with running(start_node(tmp_path)) as node:
            coins = await coins_of(node, 2)
            target = LocalTarget(genesis_store)
            async with following(node, target, NEVER, with_zmq=True) as follower:
                await until(lambda: follower.status.ready, "caught up")
                await grow(node, 1)
                await until(lambda: equal(node, target), "a block")
                for outpoint, value in coins:
                    assert await node.send(spend_coin(outpoint, value))
                await until(lambda: equal(node, target), "two transactions")
                better = spend_coin(*coins[0], fee=50_000)
                assert await node.send(better)
                await until(lambda: equal(node, target), "one replaced")
                assert better.txid in await node.mempool()
                await node.submit_block(mine_block(await node.tip(), [better]))
                await until(lambda: equal(node, target), "one confirmed")
                assert len(target.pool) == 1

    run(test)


def test_transactions_come_from_messages_and_not_by_rpc(tmp_path: Path, genesis_store: Path) -> None:
    async def test() -> None:
        async with running(FakeNode(tmp_path)) as node:
            coins = await coins_of(node, 5)
            target = LocalTarget(genesis_store)
            async with following(node, target, NEVER, with_zmq=True) as follower:
                await until(lambda: follower.status.ready, "caught up")
                for outpoint, value in coins[:1]:
                    await node.send(spend_coin(outpoint, value))
                await until(lambda: equal(node, target), "the first, which counts as a gap")
                before = node.calls.get("getrawtransaction", 0)
                for outpoint, value in coins[1:]:
                    await node.send(spend_coin(outpoint, value))
                await until(lambda: equal(node, target), "four more")
                assert node.calls.get("getrawtransaction", 0) == before

    run(test)


def test_without_zmq_it_asks(tmp_path: Path, genesis_store: Path) -> None:
    async def test() -> None:
        async with running(start_node(tmp_path)) as node:
            coins = await coins_of(node, 3)
            target = LocalTarget(genesis_store)
            async with following(node, target):
                await until(lambda: equal(node, target), "caught up")
                for outpoint, value in coins:
                    await node.send(spend_coin(outpoint, value))
                await until(lambda: equal(node, target), "transactions")
                await replace_tip(node, depth=1, length=2)
                await until(lambda: equal(node, target), "reorganisation")

    run(test)


def test_a_node_that_publishes_no_sequence_is_asked(tmp_path: Path, genesis_store: Path) -> None:
    async def test() -> None:
        async with running(FakeNode(tmp_path, publishes=["rawblock"])) as node:
            coins = await coins_of(node, 1)
            target = LocalTarget(genesis_store)
            async with following(node, target, Pace(poll=0.05, audit=3600), with_zmq=True) as follower:
                await until(lambda: follower.status.ready, "caught up")
                await node.send(spend_coin(*coins[0]))
                await until(lambda: equal(node, target), "a transaction")

    run(test)


def test_lost_messages_show_with_the_next_one(tmp_path: Path, genesis_store: Path) -> None:
    async def test() -> None:
        async with running(FakeNode(tmp_path)) as node:
            coins = await coins_of(node, 6)
            target = LocalTarget(genesis_store)
            async with following(node, target, NEVER, with_zmq=True) as follower:
                await until(lambda: follower.status.ready, "caught up")
                await node.send(spend_coin(*coins[0]))
                await until(lambda: equal(node, target), "the first")
                gaps = follower.status.gaps
                node.drop = lambda _: True
                await node.send(spend_coin(*coins[1]))
                await node.send(spend_coin(*coins[0], fee=50_000))
                await grow(node, 1)
                node.drop = lambda _: False
                await node.send(spend_coin(*coins[2]))
                await until(lambda: equal(node, target), "all that was lost")
                assert follower.status.gaps > gaps
                assert follower.status.repairs >= 1

    run(test)


def test_lost_messages_with_silence_after_them_are_found_by_comparing(tmp_path: Path, genesis_store: Path) -> None:
    async def test() -> None:
        async with running(FakeNode(tmp_path)) as node:
            coins = await coins_of(node, 2)
            target = LocalTarget(genesis_store)
            async with following(node, target, Pace(audit=0.2), with_zmq=True) as follower:
                await until(lambda: follower.status.ready, "caught up")
                await node.send(spend_coin(*coins[0]))
                await until(lambda: equal(node, target), "the first")
                node.drop = lambda _: True
                await node.send(spend_coin(*coins[1]))
                await until(lambda: equal(node, target), "found")
                assert follower.status.repairs >= 1

    run(test)


def test_transactions_that_a_reorganisation_gives_back(tmp_path: Path, genesis_store: Path) -> None:
    async def test() -> None:
        async with running(start_node(tmp_path)) as node:
            coins = await coins_of(node, 3)
            target = LocalTarget(genesis_store)
            async with following(node, target, NEVER, with_zmq=True) as follower:
                await until(lambda: follower.status.ready, "caught up")
                kept, doomed, confirmed_again = (spend_coin(*coin) for coin in coins)
                parent = await node.tip()
                await node.submit_block(mine_block(parent, [kept, doomed, confirmed_again]))
                await until(lambda: equal(node, target), "confirmed")
                instead = spend_coin(*coins[1], fee=70_000)
                first = mine_block(parent, [instead, confirmed_again], tag=b"b")
                middle = BranchTip(await node.submit_block(first), parent.height + 1, parent.time + 60)
                await node.submit_block(mine_block(middle, tag=b"b"))
                await until(lambda: equal(node, target), "reorganised")
                assert set(await node.mempool()) == {kept.txid}

    run(test)


def test_the_nodes_witness_replaces_another(tmp_path: Path, genesis_store: Path) -> None:
    async def test() -> None:
        async with running(FakeNode(tmp_path)) as node:
            coins = await coins_of(node, 1)
            into = spend_coin(*coins[0], to_witness=True)
            await node.submit_block(mine_block(await node.tip(), [into]))
            theirs = spend_coin(into.txid + bytes(4), into.values[0], witness=True)
            # The same transaction with a needless element below the script: another wtxid, the same txid.
            ours = theirs.raw.replace(b"\x01\x01\x51" + bytes(4), b"\x02\x01\x01\x01\x51" + bytes(4))
            assert ours != theirs.raw
            await node.send(theirs)
            target = LocalTarget(genesis_store)
            target.pool.add(ours)
            async with following(node, target, NEVER):
                await until(lambda: equal(node, target), "the node's witness")

    run(test)


def test_blocks_with_witnesses(tmp_path: Path, genesis_store: Path) -> None:
    async def test() -> None:
        async with running(start_node(tmp_path)) as node:
            coins = await coins_of(node, 1)
            into = spend_coin(*coins[0], to_witness=True)
            await node.submit_block(mine_block(await node.tip(), [into]))
            out = spend_coin(into.txid + bytes(4), into.values[0], witness=True)
            await node.submit_block(mine_block(await node.tip(), [out]))
            target = LocalTarget(genesis_store)
            async with following(node, target):
                await until(lambda: equal(node, target), "equal")
                assert target.utxo_hash() == await node.utxo_hash()

    run(test)


# Restarts -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("with_zmq", [True, False])
def test_the_node_restarts_with_a_new_cookie(tmp_path: Path, genesis_store: Path, with_zmq: bool) -> None:
    async def test() -> None:
        async with running(start_node(tmp_path)) as node:
            coins = await coins_of(node, 2)
            target = LocalTarget(genesis_store)
            async with following(node, target, QUICK, with_zmq=with_zmq) as follower:
                await until(lambda: follower.status.ready, "caught up")
                await node.send(spend_coin(*coins[0]))
                await until(lambda: equal(node, target), "before")
                await node.restart(away=1.0)
                await grow(node, 1)
                await node.send(spend_coin(*coins[1]))
                await until(lambda: equal(node, target), "after")

    run(test)


def test_the_store_restarts_with_an_empty_mempool(tmp_path: Path, genesis_store: Path) -> None:
    async def test() -> None:
        async with running(start_node(tmp_path)) as node:
            coins = await coins_of(node, 2)
            await node.send(spend_coin(*coins[0]))
            target = LocalTarget(genesis_store)
            async with following(node, target, QUICK, with_zmq=True) as follower:
                await until(lambda: equal(node, target), "before")
                target.stop()
                await node.send(spend_coin(*coins[1]))
                await grow(node, 1)
                await until(lambda: follower.status.state is FollowState.WAITING, "noticed")
                assert "stopped by the test" in follower.status.detail
                target.start()
                await until(lambda: equal(node, target), "after")

    run(test)


def test_a_follower_may_be_stopped_anywhere_and_started_again(tmp_path: Path, genesis_store: Path) -> None:
    async def test() -> None:
        async with running(start_node(tmp_path)) as node:
            await grow(node, 40)
            target = LocalTarget(genesis_store)
            for wanted in (1, 5, 20, 40):
                if target.store is None:
                    target.start()
                async with following(node, target):
                    await until(lambda wanted=wanted: target.chain.tip.height >= wanted, "some blocks")  # type: ignore[misc]
            target.start()
            assert target.chain.tip.hash == (await node.tip()).hash
            target.stop()

    run(test)


# Nodes that are not what is wanted ------------------------------------------------------------------------------------


def test_initial_download_is_not_ready(tmp_path: Path, genesis_store: Path) -> None:
    async def test() -> None:
        async with running(FakeNode(tmp_path)) as node:
            node.initial_download, node.headers_ahead = True, 800
            await grow(node, 5)
            target = LocalTarget(genesis_store)
            async with following(node, target) as follower:
                await until(lambda: follower.status.state is FollowState.DOWNLOADING, "says so")
                assert follower.status.detail == "not ready: the node is in its initial download, at block 5 of 805"
                assert not follower.status.ready
                assert target.chain.tip.height == 5  # what it has is taken meanwhile
                node.initial_download = False
                await until(lambda: follower.status.ready, "ready")

    run(test)


def test_warming_up_is_waited_for(tmp_path: Path, genesis_store: Path) -> None:
    async def test() -> None:
        async with running(FakeNode(tmp_path)) as node:
            node.warming_up = True
            target = LocalTarget(genesis_store)
            async with following(node, target) as follower:
                await until(lambda: follower.status.state is FollowState.WAITING, "waits")
                assert follower.status.detail == "the node is starting: Loading block index…"
                node.warming_up = False
                await until(lambda: follower.status.ready, "ready")

    run(test)


def test_a_pruned_node_without_the_blocks(tmp_path: Path, genesis_store: Path) -> None:
    async def test() -> None:
        async with running(FakeNode(tmp_path)) as node:
            await grow(node, 10)
            node.pruned_below = 7
            with pytest.raises(
                NodePruned, match="deleted its blocks below height 7.*goes on from height 0.*init --from-"
            ):
                await ended(node, LocalTarget(genesis_store))

    run(test)


def test_a_pruned_node_that_still_has_the_blocks(tmp_path: Path, genesis_store: Path) -> None:
    async def test() -> None:
        async with running(FakeNode(tmp_path)) as node:
            await grow(node, 10)
            target = LocalTarget(genesis_store)
            await ended(node, target, once=True)
            node.pruned_below = 11
            await grow(node, 2)
            target.start()
            await ended(node, target, once=True)
            assert target.submitted[-2:] == [None, None]

    run(test)


def test_a_body_that_is_gone(tmp_path: Path, genesis_store: Path) -> None:
    async def test() -> None:
        async with running(FakeNode(tmp_path)) as node:
            blocks = await grow(node, 4)
            node.hidden = {blocks[2].hash}
            with pytest.raises(NodePruned, match=r"pruned data\).*: make the store again"):
                await ended(node, LocalTarget(genesis_store))

    run(test)


def test_another_network(tmp_path: Path, genesis_store: Path) -> None:
    async def test() -> None:
        async with running(FakeNode(tmp_path)) as node:
            node.network = "main"
            with pytest.raises(NetworkMismatch, match="is on main, the store on regtest"):
                await ended(node, LocalTarget(genesis_store))

    run(test)


def test_another_first_block(tmp_path: Path) -> None:
    Store.create_genesis("testnet4", tmp_path / "store")

    async def test() -> None:
        async with running(FakeNode(tmp_path)) as node:
            node.network = "testnet4"
            with pytest.raises(NetworkMismatch, match="begins with block 0f9188f1.*is another network"):
                await ended(node, LocalTarget(tmp_path / "store"))

    run(test)


def test_wrong_password(tmp_path: Path, genesis_store: Path) -> None:
    async def test() -> None:
        async with running(start_node(tmp_path)) as node:
            login = Login(user="user", password="wrong")
            with pytest.raises(NodeRefused, match="does not accept user user with this password") as caught:
                await ended(node, LocalTarget(genesis_store), login=login)
            assert "wrong" not in str(caught.value)

    run(test)


def test_right_password(tmp_path: Path, genesis_store: Path) -> None:
    async def test() -> None:
        async with running(FakeNode(tmp_path)) as node:
            await ended(node, LocalTarget(genesis_store), login=Login(user="user", password="secret"), once=True)

    run(test)


def test_wrong_cookie(tmp_path: Path, genesis_store: Path) -> None:
    stale = tmp_path / "stale"
    stale.write_text("__cookie__:0000")

    async def test() -> None:
        async with running(start_node(tmp_path)) as node:
            with pytest.raises(NodeRefused, match="does not accept the cookie in"):
                await ended(node, LocalTarget(genesis_store), login=Login(cookie=stale))

    run(test)


def test_a_node_that_is_not_there_is_waited_for(tmp_path: Path, genesis_store: Path) -> None:
    async def test() -> None:
        node = FakeNode(tmp_path)
        target = LocalTarget(genesis_store)
        async with following(node, target) as follower:
            await until(lambda: follower.status.state is FollowState.WAITING, "waits")
            assert "cookie file" in follower.status.detail
            async with running(node):
                await until(lambda: follower.status.ready, "ready")

    run(test)


# Chains that do not fit -----------------------------------------------------------------------------------------------


def test_an_invalid_block_on_the_best_chain_ends_it(tmp_path: Path, genesis_store: Path) -> None:
    async def test() -> None:
        async with running(FakeNode(tmp_path)) as node:
            await grow(node, 3)
            parent = await node.tip()
            # A coinbase that pays a satoshi too much; the fake takes whatever it is given.
            too_much = coinbase(parent.height + 1, [subsidy(parent.height + 1) + 1])
            await node.submit_block(mine(parent.hash, parent.height + 1, parent.time + 60, first=too_much).raw)
            target = LocalTarget(genesis_store)
            with pytest.raises(
                NodeDisagrees, match="at height 4 is on the node's best chain, but invalid here: bad-cb-"
            ):
                await ended(node, target)
            target.start()
            with pytest.raises(NodeDisagrees, match="invalid here: duplicate-invalid"):
                await ended(node, target)

    run(test)


def test_a_node_that_is_behind(tmp_path: Path, genesis_store: Path) -> None:
    async def test() -> None:
        async with running(FakeNode(tmp_path)) as node:
            await grow(node, 6)
            target = LocalTarget(genesis_store)
            await ended(node, target, once=True)
            ahead = [node.chain.entries[block_hash].block.raw for block_hash in node.chain.active[-2:]]
            (tmp_path / "second").mkdir()
            async with running(FakeNode(tmp_path / "second")) as behind:
                for block_hash in node.chain.active[1:-2]:
                    await behind.submit_block(node.chain.entries[block_hash].block.raw)
                target.start()
                async with following(behind, target) as follower:
                    await until(lambda: follower.status.state is FollowState.APART, "says so")
                    assert follower.status.detail == "the node is behind, at block 4, the store at 6"
                    assert target.chain.tip.height == 6
                    for raw in ahead:
                        await behind.submit_block(raw)
                    await until(lambda: follower.status.ready, "level")

    run(test)


def test_a_branch_of_equal_work_waits_for_the_next_block(tmp_path: Path, genesis_store: Path) -> None:
    async def test() -> None:
        async with running(FakeNode(tmp_path)) as node:
            await grow(node, 3)
            target = LocalTarget(genesis_store)
            async with following(node, target, QUICK) as follower:
                await until(lambda: follower.status.ready, "caught up")
                # As after `invalidateblock`: the fake is made to prefer another block of the same height.
                parent = await node.tip(below=1)
                other = await node.submit_block(mine_block(parent, tag=b"x"))
                node.chain._disconnect()
                node.chain._connect(other)
                await until(lambda: follower.status.state is FollowState.APART, "says so")
                assert "has no more work than the store's tip" in follower.status.detail
                given = len(target.submitted)
                await asyncio.sleep(0.3)
                assert len(target.submitted) == given  # not again and again
                await grow(node, 1)
                await until(lambda: equal(node, target), "decided")
                await until(lambda: follower.status.ready, "and said")

    run(test)


def test_a_reorganisation_deeper_than_what_is_kept(tmp_path: Path, genesis_store: Path) -> None:
    async def test() -> None:
        async with running(FakeNode(tmp_path)) as node:
            blocks = await grow(node, 8)
            target = LocalTarget(genesis_store)
            await ended(node, target, once=True)
            name = to_display(blocks[5].hash)
            (genesis_store / "index" / "undo" / f"{name}.undo").unlink()
            await replace_tip(node, depth=4, length=5)
            target.start()
            with pytest.raises(
                NodeDisagrees, match="cannot follow the node to block .* is not kept.*txcollection init"
            ):
                await ended(node, target)

    run(test)


# Stores from snapshots ------------------------------------------------------------------------------------------------


def _node_of_datadir(directory: Path, folder: Path) -> FakeNode:
    """A fake node with the blocks of a recorded data directory."""
    checkpoint(folder / "regtest" / "blocks" / "index", directory / "blockindex")
    files = BlockFiles(folder / "regtest" / "blocks")
    node = FakeNode(directory)
    for entry in read_block_index(directory / "blockindex"):
        if int(entry["status"]) & HAVE_DATA and int(entry["height"]):
            raw = files.read_block(int(entry["file"]), int(entry["data_pos"]), entry["hash"].tobytes())
            node.chain.add_block(raw)
    return node


@pytest.fixture
def snapshot_store(tmp_path: Path, datadir: Callable[[str], Path]) -> Path:
    folder = datadir("regtest_datadir.tar.gz")
    Store.create_from_snapshot(folder / "regtest" / "utxo.dat", tmp_path / "snapshot")
    return tmp_path / "snapshot"


def test_a_store_from_a_snapshot_gets_its_headers_and_goes_on(
    tmp_path: Path, datadir: Callable[[str], Path], data: Path, snapshot_store: Path
) -> None:
    info = json.loads((data / "regtest_datadir.info.json").read_text())

    async def test() -> None:
        node = _node_of_datadir(tmp_path, datadir("regtest_datadir.tar.gz"))
        async with running(node):
            target = LocalTarget(snapshot_store)
            async with following(node, target) as follower:
                await until(lambda: follower.status.ready, "ready")
                assert to_display(target.chain.tip.hash) == info["tip"]
                assert target.chain.tip.height == info["height"]
                assert target.utxo_hash() == info["hash_serialized_3"]
                assert follower.status.headers == info["height"]
                await grow(node, 2)
                await until(lambda: equal(node, target), "two more")
                assert target.utxo_hash() == await node.utxo_hash()

    run(test)


def test_headers_go_on_where_they_were_left(
    tmp_path: Path, datadir: Callable[[str], Path], snapshot_store: Path
) -> None:
    async def test() -> None:
        node = _node_of_datadir(tmp_path, datadir("regtest_datadir.tar.gz"))
        async with running(node):
            target = LocalTarget(snapshot_store)
            await target.add_headers([node.chain.entries[h].block.raw[:80] for h in node.chain.active[1:100]])
            async with following(node, target) as follower:
                await until(lambda: follower.status.ready, "ready")
                assert follower.status.headers == 140 - 99

    run(test)


def test_a_node_that_does_not_know_the_snapshots_block(tmp_path: Path, snapshot_store: Path) -> None:
    async def test() -> None:
        async with running(FakeNode(tmp_path)) as node:
            await grow(node, 3)
            with pytest.raises(NodeDisagrees, match="does not know block 60501b7e"):
                await ended(node, LocalTarget(snapshot_store))

    run(test)
