"""Templates of the node's own mempool, solutions, and whole blocks: what a template provider and a pool do."""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from struct import pack
from typing import Any

import pytest

from models.wire.block import decode_block
from tests.actors.blocks import (
    SPACING,
    TestBlock,
    Tx,
    coinbase,
    compact_size,
    has_work,
    header,
    mine,
    sha256d,
    spend,
    subsidy,
)
from tests.actors.small_chain import SmallChain
from tests.cluster.ipc.client import Client, check_options, description, drive, mining_schema, wait_options
from tests.cluster.ipc.conftest import ServerProcess

COMMITMENT = bytes.fromhex("6a24aa21a9ed")
UNAVAILABLE = "is unavailable for externally generated templates"


@dataclass(frozen=True)
class Parent:
    """What a block is built upon."""

    hash: bytes
    height: int
    time: int


class Place:
    """A node on a small chain of its own, a server in front of it, and the time that both go by. Every test of this
    module builds on what the one before left as the tip, and leaves the mempool empty."""

    def __init__(self, chain: SmallChain, start_node: Callable[..., Any], start_server: Callable[..., Any]) -> None:
        self.chain = chain
        self.now = chain.tip.time + SPACING
        self.node = start_node(chain.store(), now=self.now, template_actors=2)
        self.server: ServerProcess = start_server(self.node.store, "--now", str(self.now))

    @property
    def tip(self) -> Parent:
        found = self.node.tip()
        return Parent(found.hash, found.height, self.chain.tip.time + found.height - self.chain.tip.height)


@pytest.fixture(scope="module")
def module_place(
    small_chain: SmallChain, start_node: Callable[..., Any], start_server: Callable[..., Any]
) -> Iterator[Place]:
    made = Place(small_chain, start_node, start_server)
    yield made
    made.server.stop()
    made.node.close()


@pytest.fixture
def place(module_place: Place) -> Iterator[Place]:
    yield module_place
    for wtxid in module_place.node.mempool_wtxids():
        module_place.node.mempool_remove(wtxid)


def next_block(parent: Parent, **kwargs: Any) -> TestBlock:
    """A block on top; the clock stands still, so its time is only a little later."""
    return mine(parent.hash, parent.height + 1, parent.time + 1, **kwargs)


def create_options(**fields: Any) -> Any:
    return mining_schema.BlockCreateOptions.new_message(**fields)


async def solve(template: Any, context: Any, coinbase_tx: bytes, witness_less: bytes) -> tuple[bytes, int, int, int]:
    """A header that has the work: (root, version, time, nonce) for a coinbase."""
    head = bytes((await template.getBlockHeader(context)).result)
    root = sha256d(witness_less)
    for sibling in (await template.getCoinbaseMerklePath(context)).result:
        root = sha256d(root + bytes(sibling))
    version, time = int.from_bytes(head[:4], "little"), int.from_bytes(head[68:72], "little")
    nonce = 0
    while not has_work(header(head[4:36], root, time, nonce, int.from_bytes(head[:4], "little", signed=True))):
        nonce += 1
    return root, version, time, nonce


def coinbase_of(parts: Any, value: int | None = None) -> tuple[bytes, bytes]:
    """The coinbase that `getCoinbaseTx` describes, with and without its witness."""
    script = bytes(parts.scriptSigPrefix) + b"\x00"
    outputs = [pack("<q", parts.blockRewardRemaining if value is None else value) + b"\x01\x51"]
    outputs += [bytes(output) for output in parts.requiredOutputs]
    base = (
        b"\x01"
        + bytes(32)
        + b"\xff" * 4
        + compact_size(len(script))
        + script
        + pack("<I", parts.sequence)
        + compact_size(len(outputs))
        + b"".join(outputs)
    )
    witness = bytes(parts.witness)
    version, locktime = pack("<I", parts.version), pack("<I", parts.lockTime)
    with_witness = version + b"\x00\x01" + base + b"\x01" + compact_size(len(witness)) + witness + locktime
    return with_witness, version + base + locktime


def test_a_template_from_the_mempool_is_solved(place: Place) -> None:
    """createNewBlock, everything a template tells, a client's own coinbase, and the block connected to the store."""
    chain, tip_before = place.chain, place.tip
    cheap, dear = spend([chain.coins[0]], fee=500), spend([chain.coins[1]], fee=7000)
    place.node.mempool_add([cheap.raw, dear.raw])

    async def run() -> None:
        client = await Client.connect(place.server.path)
        context = client.context
        template = (await client.mining.createNewBlock(context, create_options())).result
        block = decode_block(bytes((await template.getBlock(context)).result))
        assert [tx.raw for tx in block.transactions[1:]] == [dear.raw, cheap.raw]
        assert list((await template.getTxFees(context)).result) == [7000, 500]
        assert list((await template.getTxSigops(context)).result) == [0, 0]
        parts = (await template.getCoinbaseTx(context)).result
        height = tip_before.height + 1
        assert (parts.version, parts.sequence, parts.lockTime) == (2, 0xFFFFFFFE, height - 1)
        assert bytes(parts.scriptSigPrefix) == bytes((1, height))
        assert bytes(parts.witness) == bytes(32)
        assert parts.blockRewardRemaining == subsidy(height) + 7500
        assert [bytes(output)[9:15] for output in parts.requiredOutputs] == [COMMITMENT]

        assert not (await template.submitSolution(context, 0, 0, 0, b"")).result
        full, bare = coinbase_of(parts)
        root, version, time, nonce = await solve(template, context, full, bare)
        assert not (await template.submitSolution(context, version, time, nonce, bare)).result  # its witness is missing
        tried = bytes((await template.getBlock(context)).result)
        assert decode_block(tried).transactions[0].raw == bare  # a template shows what was tried last, as Core's does
        assert (await template.submitSolution(context, version, time, nonce, full)).result
        solved = bytes((await template.getBlock(context)).result)
        assert solved[36:68] == root
        tip = (await client.mining.getTip(context)).result
        assert (bytes(tip.hash), tip.height) == (sha256d(solved[:80]), height)
        assert (await template.submitSolution(context, version, time, nonce, full)).result  # a duplicate is no failure
        twice = await client.mining.submitBlock(context, solved)
        assert (twice.result, twice.reason, twice.debug) == (False, "duplicate", "")
        gone = await client.mining.getTransactionsByWitnessID(context, [cheap.txid, dear.txid])
        assert [bytes(raw) for raw in gone.result] == [b"", b""]
        stale = await client.mining.checkBlock(context, solved, check_options())
        assert stale.reason == "inconclusive-not-best-prevblk"

    drive(run())
    assert place.tip.height == tip_before.height + 1


def test_create_options(place: Place) -> None:
    place.node.mempool_add([spend([place.chain.coins[2]]).raw])
    refusals = {
        "block_reserved_weight (0) is lower than minimum safety value of (2000)": {"blockReservedWeight": 0},
        "block_reserved_weight (4000001) exceeds consensus maximum block weight (4000000)": {
            "blockReservedWeight": 4_000_001
        },
        "coinbase_output_max_additional_sigops (80001) exceeds consensus maximum block sigops cost (80000)": {
            "coinbaseOutputMaxAdditionalSigops": 80_001
        },
    }

    async def run() -> None:
        client = await Client.connect(place.server.path)
        context, mining = client.context, client.mining

        async def count(**fields: Any) -> int:
            template = (await mining.createNewBlock(context, create_options(**fields))).result
            return len((await template.getTxFees(context)).result)

        assert await count() == 1
        assert await count(blockReservedWeight=4_000_000) == 0
        assert await count(useMempool=False) == 0
        for text, fields in refusals.items():
            call = mining.createNewBlock(context, create_options(**fields))
            assert await description(call) == f"remote exception: std::exception: {text}"
        await mining.interrupt()
        assert not (await mining.createNewBlock(context, create_options()))._has("result")
        assert (await mining.createNewBlock(context, create_options()))._has("result")

    drive(run())


def test_waiting_for_the_next_template(place: Place) -> None:
    """A new tip, risen fees, a threshold of zero, a time-out, an interrupt."""
    chain, node = place.chain, place.node

    async def run() -> None:
        client = await Client.connect(place.server.path)
        context = client.context
        first = (await client.mining.createNewBlock(context, create_options())).result
        assert not (await first.waitNext(context, wait_options(50, 1)))._has("result")

        waiting = asyncio.ensure_future(first.waitNext(context, wait_options(60_000, 900)))
        await asyncio.to_thread(node.mempool_add, [spend([chain.coins[3]], fee=1000).raw])
        second = (await asyncio.wait_for(waiting, 30)).result
        assert list((await second.getTxFees(context)).result) == [1000]
        assert not (await second.waitNext(context, wait_options(50, 1)))._has("result")
        assert (await second.waitNext(context, wait_options(1500, 0)))._has("result")

        waiting = asyncio.ensure_future(second.waitNext(context, wait_options(60_000)))
        block = next_block(place.tip)
        await asyncio.to_thread(node.submit_block, block.raw)
        third = (await asyncio.wait_for(waiting, 30)).result
        assert bytes((await third.getBlockHeader(context)).result)[4:36] == block.hash

        waiting = asyncio.ensure_future(third.waitNext(context, wait_options(60_000)))
        await third.getBlockHeader(client.thread())
        await third.interruptWait()
        assert not (await asyncio.wait_for(waiting, 30))._has("result")

    drive(run())


def test_waiting_for_the_tip_sees_a_block_and_a_block_taken_back(place: Place) -> None:
    node, before = place.node, place.tip
    block = next_block(before)

    async def run() -> None:
        client = await Client.connect(place.server.path)
        waiting = asyncio.ensure_future(client.mining.waitTipChanged(client.context, before.hash))
        await client.mining.getTip(client.thread())
        await asyncio.to_thread(node.submit_block, block.raw)
        tip = (await asyncio.wait_for(waiting, 30)).result
        assert (bytes(tip.hash), tip.height) == (block.hash, block.height)
        waiting = asyncio.ensure_future(client.mining.waitTipChanged(client.context, block.hash))
        await client.mining.getTip(client.thread())
        await asyncio.to_thread(node.disconnect_tip)
        tip = (await asyncio.wait_for(waiting, 30)).result
        assert (bytes(tip.hash), tip.height) == (before.hash, before.height)

    drive(run())
    assert node.submit_block(block.raw) == "duplicate"  # connects it again


def test_submitted_blocks(place: Place) -> None:
    """The answers of Core's functional test of this interface (test/functional/interface_ipc_mining.py)."""
    tip = place.tip
    good = next_block(tip, tag=b"good")
    low_version = low_version_block(tip)
    late = Tx(good.transactions[0].raw[:-4] + b"\xff\xff\xff\xff", good.transactions[0].outputs)
    late = Tx(late.raw.replace(b"\xff\xff\xff\xff\x01", b"\xfe\xff\xff\xff\x01", 1), late.outputs)
    nonfinal = next_block(tip, first=late)
    commits = coinbase(tip.height + 1, [subsidy(tip.height + 1), (0, COMMITMENT + sha256d(bytes(64)))])
    without_witness = next_block(tip, first=commits)
    greedy = next_block(tip, first=coinbase(tip.height + 1, [subsidy(tip.height + 1) + 1]))

    async def run() -> None:
        client = await Client.connect(place.server.path)

        async def submit(block: bytes) -> tuple[str, str, bool]:
            answer = await client.mining.submitBlock(client.context, block)
            return answer.reason, answer.debug, answer.result

        version = ("bad-version(0x00000000)", "rejected nVersion=0x00000000 block", False)
        assert await submit(low_version.raw) == version
        assert await submit(good.with_nonce(False).raw) == ("high-hash", "proof of work failed", False)
        size = ("bad-witness-nonce-size", "CheckWitnessMalleation : invalid witness reserved value size", False)
        assert await submit(without_witness.raw) == size
        assert await submit(nonfinal.raw) == ("bad-txns-nonfinal", "non-final transaction", False)
        again = ("duplicate-invalid", f"block {nonfinal.id} was previously marked invalid", False)
        assert await submit(nonfinal.raw) == again
        pays = f"coinbase pays too much (actual={subsidy(1) + 1} vs limit={subsidy(1)})"
        assert await submit(greedy.raw) == ("bad-cb-amount", pays, False)
        orphan = mine(b"\x11" * 32, 7, place.now)
        assert await submit(orphan.raw) == ("prev-blk-not-found", "", False)
        assert await submit(good.raw) == ("", "", True)
        assert await submit(good.raw) == ("duplicate", "", False)
        beside = next_block(tip, tag=b"beside")
        assert await submit(beside.raw) == ("inconclusive", "", False)

    drive(run())
    assert place.node.tip().hash == good.hash


def low_version_block(tip: Parent) -> TestBlock:
    made = next_block(tip, tag=b"low")
    nonce = 0
    while not has_work(head := header(tip.hash, made.raw[36:68], made.time, nonce, version=0)):
        nonce += 1
    return TestBlock(head + made.raw[80:], made.height, made.time, made.transactions)


def test_a_template_of_a_declaration_is_solved(place: Place) -> None:
    """After the collection and its connection's other objects are gone; the solved block becomes the tip."""
    tip = place.tip
    known, late = spend([place.chain.coins[4]], fee=1000), spend([place.chain.coins[5]], fee=2000)
    place.node.mempool_add([known.raw])
    first = coinbase(tip.height + 1, [subsidy(tip.height + 1) + 3000])

    async def run() -> None:
        client = await Client.connect(place.server.path)
        context = client.context
        collection = await client.collect([known.txid, late.txid])
        await collection.addMissingTxs(context, [late.raw])
        template = (await collection.makeTemplate(context, tip.hash, first.raw)).result
        await collection.destroy(context)
        del collection
        for method in ("getTxFees", "getTxSigops", "getCoinbaseTx"):
            text = await description(getattr(template, method)(context))
            assert (
                text == f"remote exception: std::exception: {method} is unavailable for externally generated templates"
            )
        text = await description(template.waitNext(context, wait_options(10)))
        assert text == "remote exception: std::exception: waitNext is unavailable for externally generated templates"
        _, version, time, nonce = await solve(template, context, first.raw, first.raw)
        text = await description(template.submitSolution(context, version, time, nonce, b"\x00"))
        assert text.startswith("remote exception: std::exception: SpanReader::read(): end of data:")
        assert not (await template.submitSolution(context, version, time, nonce, b"")).result
        assert (await template.submitSolution(context, version, time, nonce, first.raw)).result
        tip_now = (await client.mining.getTip(context)).result
        assert tip_now.height == tip.height + 1

    drive(run())
