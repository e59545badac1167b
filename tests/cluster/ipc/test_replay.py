"""The corpus's collections and proposals over the socket: what bitcoind answered, and what `Cluster` answers."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from models.errors import DecodeError
from models.wire.block import decode_block
from tests.cluster.ipc.client import Client, check_options, description, drive, internal
from tests.cluster.ipc.conftest import ServerProcess

CORPUS = Path(__file__).parents[2] / "data" / "corpus"


def rows(name: str) -> list[dict[str, Any]]:
    with gzip.open(CORPUS / f"{name}.jsonl.gz", "rt") as file:
        return [json.loads(line) for line in file]


FLOWS = rows("collections")


def error_text(text: str | None) -> str | None:
    return None if text is None else f"remote exception: std::exception: {text}"


@pytest.mark.parametrize("flow", FLOWS, ids=[flow["name"] for flow in FLOWS])
def test_collection(flow: dict[str, Any], corpus_server: ServerProcess, corpus_node: Any, corpus_now: int) -> None:
    coinbase = None if flow["coinbase"] is None else bytes.fromhex(flow["coinbase"])

    async def over_ipc() -> tuple[str, str, bool] | None:
        client = await Client.connect(corpus_server.path)
        context = client.context
        call = client.mining.collectTxs(context, [internal(wtxid) for wtxid in flow["wtxids"]])
        if flow.get("construct_error"):
            assert await description(call) == error_text(flow["construct_error"])
            return None
        collection = (await call).result
        assert list((await collection.unknownTxPos(context)).result) == flow["unknown"]
        for supply, expected in zip(flow["supply"], flow["errors"], strict=True):
            call = collection.addMissingTxs(context, [bytes.fromhex(raw) for raw in supply])
            if expected is None:
                await call
            else:
                assert await description(call) == error_text(expected)
        answer = await collection.makeTemplate(context, internal(flow["prevhash"]), coinbase or b"")
        assert answer._has("result") == (answer.reason == "")
        return answer.reason, answer.debug, answer._has("result")

    answer = drive(over_ipc())
    if answer is None:
        return
    with corpus_node.collect_txs(flow["wtxids"]) as collection:
        for supply, expected in zip(flow["supply"], flow["errors"], strict=True):
            if expected is None:
                collection.add_missing_txs([bytes.fromhex(raw) for raw in supply])
        verdict = collection.make_template(flow["prevhash"], coinbase, now=corpus_now)
    assert answer == (verdict.reason or "", verdict.debug, verdict.ok)
    assert answer[0] == (flow["verdict"] or "").split(" (")[0]


def decodable(case: dict[str, Any]) -> bytes | None:
    try:
        raw = bytes.fromhex(case["block"] or "")
        decode_block(raw)
    except (ValueError, DecodeError):
        return None
    return raw


def test_proposals(corpus_server: ServerProcess, corpus_node: Any, corpus_now: int) -> None:
    """With `checkPow` off, as job declaration servers ask. Bytes that are no block get Core's exception."""
    cases = rows("proposals")

    async def over_ipc() -> list[Any]:
        client = await Client.connect(corpus_server.path)
        answers: list[Any] = []
        for case in cases:
            raw = decodable(case)
            if raw is not None:
                got = await client.mining.checkBlock(client.context, raw, check_options(pow=False))
                answers.append((got.reason, got.debug, got.result))
            else:
                try:
                    raw = bytes.fromhex(case["block"] or "")
                except ValueError:
                    raw = b""
                call = client.mining.checkBlock(client.context, raw, check_options(pow=False))
                answers.append(await description(call))
        return answers

    answers = drive(over_ipc())
    judged = 0
    for case, answer in zip(cases, answers, strict=True):
        raw = decodable(case)
        if raw is None:
            assert "std::exception: SpanReader::read(): end of data" in answer, case["name"]
            continue
        verdict = corpus_node.check_block(raw, check_pow=False, now=corpus_now)
        assert answer == (verdict.reason or "", verdict.debug, verdict.ok), case["name"]
        recorded = case["par2"]
        if isinstance(recorded, str) and recorded.startswith("duplicate"):
            continue  # what the RPC answers before it looks at the block
        assert answer[0] == (recorded or "").split(" (")[0], case["name"]
        judged += 1
    assert judged > 450
