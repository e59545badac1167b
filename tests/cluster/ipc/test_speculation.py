"""A list that was asked about, and the block that follows: the same verdict, with what was learned of the list."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from models.errors import ClientError
from models.wire.block import Block, decode_block
from tests.cluster.ipc.client import Client, check_options, drive
from tests.cluster.ipc.conftest import ServerProcess
from tests.cluster.ipc.test_replay import CORPUS, decodable, rows

NOW = json.loads((CORPUS / "tip.json").read_text())["now"]
SMALL_ENOUGH = 200_000  # bytes; the rest only takes long


@pytest.fixture(scope="module")
def node(make_store: Callable[..., Any], start_node: Callable[..., Any]) -> Iterator[Any]:
    """A node of this module's own on the corpus's chain, whose mempool it fills."""
    made = start_node(make_store("corpus/regtest_datadir.tar.gz"), now=NOW)
    yield made
    made.close()


@pytest.fixture(scope="module")
def server(node: Any, start_server: Callable[..., ServerProcess]) -> Iterator[ServerProcess]:
    made = start_server(node.store)
    yield made
    made.stop()


def admit(node: Any, block: Block) -> int:
    """Puts transactions of a block into the mempool, as far as that takes them; how many it has. The last of several is
    left out, to come with the block."""
    chosen = block.transactions[1:-1] if len(block.transactions) > 2 else block.transactions[1:]
    try:
        node.mempool_add([tx.raw for tx in chosen])
    except ClientError:
        pass  # one that no mempool holds; those before it are in
    listed = [tx.wtxid[::-1].hex() for tx in block.transactions[1:]]
    return sum(raw is not None for raw in node.transactions(listed))


def verdicts(node: Any) -> int:
    """How many verdicts the actors that hold declarations have asked for."""
    return sum(c.get("verdicts", 0) for name, c in node.stats().items() if name.startswith("collection-"))


def test_recorded_proposals_get_the_same_verdict_through_what_was_asked_about_before(
    node: Any, server: ServerProcess
) -> None:
    blocks = [
        (case["name"], raw, decode_block(raw))
        for case in rows("proposals")
        if (raw := decodable(case)) is not None and len(raw) < SMALL_ENOUGH
    ][::2]  # all of them go through checkBlock in test_replay
    before = verdicts(node)
    likely = 0

    async def run() -> list[tuple[str, tuple[str, str], tuple[str, str]]]:
        nonlocal likely
        client = await Client.connect(server.path)
        mining, context = client.mining, client.context
        different = []
        for name, raw, block in blocks:
            wtxids = [tx.wtxid for tx in block.transactions[1:]]
            if admit(node, block) == 0 or len(set(wtxids)) < len(wtxids):
                continue  # nothing is held of such a list
            likely += 1
            await mining.getTransactionsByWitnessID(context, wtxids)
            answer = await mining.checkBlock(context, raw, check_options(pow=False))
            verdict = node.check_block(raw, now=NOW)
            expected = (verdict.reason or "", verdict.debug)
            if (answer.reason, answer.debug) != expected or answer.result != verdict.ok:
                different.append((name, (answer.reason, answer.debug), expected))
        return different

    assert drive(run()) == []
    assert likely > 50
    assert verdicts(node) - before >= likely


def test_the_same_list_serves_several_blocks(node: Any, server: ServerProcess) -> None:
    """Another coinbase, another header: as often as a miner declares the same transactions."""
    block, wtxids = next(
        (raw, [tx.wtxid for tx in found.transactions[1:]])
        for case in rows("proposals")
        if (raw := decodable(case)) is not None
        and case["par2"] is None
        and len((found := decode_block(raw)).transactions) > 2
        and admit(node, found) >= 1
    )
    before = verdicts(node)
    later = block[:68] + (int.from_bytes(block[68:72], "little") + 1).to_bytes(4, "little") + block[72:]
    old = block[:68] + (1).to_bytes(4, "little") + block[72:]

    async def run() -> list[str]:
        client = await Client.connect(server.path)
        await client.mining.getTransactionsByWitnessID(client.context, wtxids)
        checks = [
            await client.mining.checkBlock(client.context, raw, check_options(pow=False)) for raw in (block, later, old)
        ]
        await client.mining.getTransactionsByWitnessID(client.context, wtxids)  # not a second declaration
        checks.append(await client.mining.checkBlock(client.context, block, check_options(pow=False)))
        return [check.reason for check in checks]

    assert drive(run()) == ["", "", "time-too-old", ""]
    assert verdicts(node) - before == 4
