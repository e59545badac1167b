"""Every method that answers from the chain as it is, over a real socket."""

import asyncio
import functools
import gzip
import json
from typing import Any

import capnp
import pytest

from models.errors import DecodeError
from models.wire.block import decode_block
from models.wire.transaction import decode_transaction
from tests.actors.blocks import merkle_root, sha256d
from tests.cluster.ipc.client import Client, check_options, drive, init_schema, internal
from tests.cluster.ipc.conftest import ServerProcess
from tests.cluster.ipc.test_replay import CORPUS, rows

TIP = json.loads((CORPUS / "tip.json").read_text())
MEMPOOL: list[str] = TIP["mempool_wtxids"]


def test_what_the_process_says_and_who_may_connect(corpus_server: ServerProcess, corpus_node: Any) -> None:
    said = f"listening at {corpus_server.path} for clients of the node on {corpus_node.store}"
    assert corpus_server.said == said
    assert corpus_server.path.stat().st_mode & 0o777 == 0o600


def test_a_connection_is_made_as_cores_clients_make_it(corpus_server: ServerProcess) -> None:
    """Everything is asked for before the first answer is there: capabilities are pipelined."""

    async def run() -> None:
        stream = await capnp.AsyncIoStream.create_unix_connection(str(corpus_server.path))
        init = capnp.TwoPartyClient(stream).bootstrap().cast_as(init_schema.Init)
        thread = init.construct().threadMap.makeThread("pythread").result
        context = {"thread": thread}
        for text in ("hello", "", "grüße"):
            assert (await init.makeEcho(context).result.echo(context, text)).result == text
        assert (await thread.getName()).result == "pythread"
        await init.makeEcho(context).result.destroy(context)

    drive(run())


def test_calls_without_a_thread_run_in_a_pool(corpus_server: ServerProcess) -> None:
    async def run() -> None:
        client = await Client.connect(corpus_server.path)
        await client.threads.makePool(4)
        mining = client.init.makeMining().result
        assert (await mining.getTip()).result.height == TIP["height"]

    drive(run())


def test_chain(corpus_server: ServerProcess) -> None:
    async def run() -> None:
        client = await Client.connect(corpus_server.path)
        mining, context = client.mining, client.context
        tip = await mining.getTip(context)
        assert tip.hasResult
        assert (bytes(tip.result.hash), tip.result.height) == (internal(TIP["hash"]), TIP["height"])
        assert (await mining.isTestChain(context)).result
        assert not (await mining.isInitialBlockDownload(context)).result  # by the corpus's clock

    drive(run())


def test_tip_of_long_ago_means_initial_block_download(corpus_node: Any, start_server: Any) -> None:
    a_day_later = TIP["time"] + 24 * 3600 + 1
    server = start_server(corpus_node.store, "--now", str(a_day_later))

    async def run() -> bool:
        client = await Client.connect(server.path)
        return (await client.mining.isInitialBlockDownload(client.context)).result

    assert drive(run())
    server.stop()


def test_wait_for_another_tip_times_out_with_the_same(corpus_server: ServerProcess) -> None:
    async def run() -> None:
        client = await Client.connect(corpus_server.path)
        answer = await client.mining.waitTipChanged(client.context, internal(TIP["hash"]), 20.0)
        assert bytes(answer.result.hash) == internal(TIP["hash"])

    drive(run())


def test_wait_for_another_tip_than_an_old_one_is_over_at_once(corpus_server: ServerProcess) -> None:
    async def run() -> None:
        client = await Client.connect(corpus_server.path)
        answer = await asyncio.wait_for(client.mining.waitTipChanged(client.context, bytes(32)), 20)
        assert answer.result.height == TIP["height"]

    drive(run())


def test_interrupt_ends_waits_with_no_result(corpus_server: ServerProcess) -> None:
    async def run() -> None:
        client = await Client.connect(corpus_server.path)
        mining, tip = client.mining, internal(TIP["hash"])
        waits = [asyncio.ensure_future(mining.waitTipChanged(client.thread(), tip)) for _ in range(2)]
        await mining.getTip(client.context)
        await asyncio.sleep(0.1)
        assert not any(wait.done() for wait in waits)
        await mining.interrupt()
        for wait in waits:
            answer = await asyncio.wait_for(wait, 20)
            assert bytes(answer.result.hash) == b""

    drive(run())


def test_interrupt_that_comes_first_ends_the_next_wait(corpus_server: ServerProcess) -> None:
    async def run() -> None:
        client = await Client.connect(corpus_server.path)
        await client.mining.interrupt()
        answer = await asyncio.wait_for(client.mining.waitTipChanged(client.context, internal(TIP["hash"])), 20)
        assert bytes(answer.result.hash) == b""

    drive(run())


def test_interrupt_is_of_one_mining_object_only(corpus_server: ServerProcess) -> None:
    async def run() -> None:
        client = await Client.connect(corpus_server.path)
        other = client.init.makeMining(client.context).result
        waiting = asyncio.ensure_future(other.waitTipChanged(client.thread(), internal(TIP["hash"])))
        await client.mining.interrupt()
        await asyncio.sleep(0.1)
        assert not waiting.done()
        await other.interrupt()
        await asyncio.wait_for(waiting, 20)

    drive(run())


@functools.cache
def valid_block() -> bytes:
    """A proposal that bitcoind found valid; it has no proof of work."""
    for case in rows("proposals"):
        try:
            raw = bytes.fromhex(case["block"])
            block = decode_block(raw)
        except (ValueError, TypeError, DecodeError):
            continue
        if case["par2"] is None and len(block.transactions) > 1 and int.from_bytes(block.header.hash, "little") >> 255:
            return raw
    raise AssertionError("no such proposal")


@pytest.mark.parametrize(
    ("pow", "merkle_root", "reason"),
    [(False, False, ""), (False, True, "bad-txnmrklroot"), (True, True, "high-hash"), (True, False, "high-hash")],
)
def test_check_block_obeys_its_options(pow: bool, merkle_root: bool, reason: str, corpus_server: ServerProcess) -> None:
    """A block without proof of work and with a merkle root of zeros, as a job declaration server puts it together."""
    raw = valid_block()
    zeros = raw[:36] + bytes(32) + raw[68:76]
    nonce = next(
        n for n in range(1000) if decode_block(zeros + n.to_bytes(4, "little") + b"\0").header.hash[31] >= 0x80
    )
    block = zeros + nonce.to_bytes(4, "little") + raw[80:]

    async def run() -> None:
        client = await Client.connect(corpus_server.path)
        answer = await client.mining.checkBlock(client.context, block, check_options(pow, merkle_root))
        assert (answer.reason, answer.result) == (reason, reason == "")

    drive(run())


def test_check_block_without_options_checks_everything(corpus_server: ServerProcess) -> None:
    async def run() -> None:
        client = await Client.connect(corpus_server.path)
        answer = await client.mining.checkBlock(client.context, valid_block())
        assert (answer.reason, answer.debug, answer.result) == ("high-hash", "proof of work failed", False)

    drive(run())


def test_transactions_by_id(corpus_server: ServerProcess, corpus_node: Any) -> None:
    raws = corpus_node.transactions(MEMPOOL)
    txids = {wtxid: decode_transaction(raw).txid for wtxid, raw in zip(MEMPOOL, raws, strict=True)}

    async def run() -> None:
        client = await Client.connect(corpus_server.path)
        mining, context = client.mining, client.context
        wtxids = [internal(wtxid) for wtxid in MEMPOOL]
        found = (await mining.getTransactionsByWitnessID(context, [bytes(32), *wtxids])).result
        assert [bytes(raw) for raw in found] == [b"", *raws]
        found = (await mining.getTransactionsByTxID(context, [*(txids[w] for w in MEMPOOL), bytes(32)])).result
        assert [bytes(raw) for raw in found] == [*raws, b""]
        assert len((await mining.getTransactionsByTxID(context, [])).result) == 0
        assert len((await mining.getTransactionsByWitnessID(context, [])).result) == 0

    drive(run())


def test_block_headers_and_difficulty_over_json_rpc(corpus_server: ServerProcess) -> None:
    """What Stratum V2's job declaration server asks for besides `Mining`."""

    async def run() -> dict[str, Any]:
        client = await Client.connect(corpus_server.path)
        rpc = (await client.init.makeRpc(client.context)).result
        answers = {}
        for method, params in [
            ("getblockheader", [TIP["hash"], False]),
            ("getblockheader", ["00" * 32, False]),
            ("getmininginfo", []),
            ("getblockhash", [0]),
            ("getblockcount", []),
            ("getbestblockhash", []),
            ("stop", []),
        ]:
            request = {"jsonrpc": "2.0", "id": "x", "method": method, "params": params}
            text = (await rpc.executeRpc(client.context, json.dumps(request))).result
            answers[f"{method} {params}"] = json.loads(text)
        answers["no json"] = json.loads((await rpc.executeRpc(client.context, "{")).result)
        return answers

    answers = list(drive(run()).values())
    header, unknown, info, genesis, count, best, stop, no_json = answers
    assert header == {"jsonrpc": "2.0", "id": "x", "result": decode_header(header["result"])}
    assert unknown["error"] == {"code": -5, "message": "Block not found"}
    assert info["result"]["next"] == {
        "height": TIP["height"] + 1,
        "bits": TIP["bits"],
        "difficulty": pytest.approx(4.656542373906925e-10),
        "target": "7fffff" + "0" * 58,
    }
    assert (info["result"]["chain"], info["result"]["pooledtx"]) == ("regtest", len(MEMPOOL))
    assert genesis["result"] == "0f9188f13cb7b2c71f2a335e3a4fc328bf5beb436012afca590b1a11466e2206"
    assert (count["result"], best["result"]) == (TIP["height"], TIP["hash"])
    assert stop["error"] == {"code": -32601, "message": "Method not found"}
    assert no_json["error"] == {"code": -32700, "message": "Parse error"}


def decode_header(text: str) -> str:
    """The same text, seen to be the header of the tip."""
    raw = bytes.fromhex(text)
    assert len(raw) == 80
    assert sha256d(raw)[::-1].hex() == TIP["hash"]
    return text


def test_collection_and_template_by_hand(corpus_server: ServerProcess) -> None:
    """Declared, completed, judged; and everything that a template of a declaration can be asked."""
    with gzip.open(CORPUS / "collections.jsonl.gz", "rt") as file:
        flows = {flow["name"]: flow for flow in map(json.loads, file)}
    flow = flows["one-missing"]
    supply = [bytes.fromhex(raw) for raw in flow["supply"][0]]
    coinbase = bytes.fromhex(flow["coinbase"])

    async def run() -> None:
        client = await Client.connect(corpus_server.path)
        context = client.context
        collection = await client.collect([internal(wtxid) for wtxid in flow["wtxids"]])
        early = await collection.makeTemplate(context, internal(TIP["hash"]), coinbase)
        assert (early.reason, early.debug) == ("missing-txs", "collected transaction(s) still missing")
        assert not early._has("result")
        await collection.addMissingTxs(context, supply)
        assert list((await collection.unknownTxPos(context)).result) == []
        answer = await collection.makeTemplate(context, internal(TIP["hash"]), coinbase)
        assert answer.reason == ""
        template = answer.result
        await collection.destroy(context)  # a template outlives its collection
        header = bytes((await template.getBlockHeader(context)).result)
        block = decode_block(bytes((await template.getBlock(context)).result))
        assert header == block.raw[:80]
        assert (header[4:36], header[36:68]) == (internal(TIP["hash"]), bytes(32))
        assert [tx.wtxid for tx in block.transactions[1:]] == [internal(wtxid) for wtxid in flow["wtxids"]]
        assert block.transactions[0].raw == coinbase
        path = [bytes(h) for h in (await template.getCoinbaseMerklePath(context)).result]
        root = block.transactions[0].txid
        for sibling in path:
            root = sha256d(root + sibling)
        assert root == merkle_root([tx.txid for tx in block.transactions])
        await template.interruptWait()
        await template.destroy(context)

    drive(run())
