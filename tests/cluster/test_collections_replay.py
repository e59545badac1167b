"""Every recorded collection flow through real actors: refused lists, unknown positions, supply errors, verdicts."""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from models.errors import ClientError


def _flows() -> list[dict[str, Any]]:
    path = Path(__file__).parents[1] / "data" / "corpus" / "collections.jsonl.gz"
    with gzip.open(path, "rt") as file:
        return [json.loads(line) for line in file]


FLOWS = _flows()


def test_all_flows_are_here() -> None:
    assert len(FLOWS) == 59


@pytest.fixture(scope="module", params=[0, 64], ids=["asked-for", "read-on-the-spot"])
def node(request: pytest.FixtureRequest, corpus_node: Any, make_store: Any, start_node: Any) -> Iterator[Any]:
    """With and without a handle of the check's own, which also has the last scripts run ahead."""
    if request.param == 0:
        yield corpus_node
        return
    made = start_node(make_store("corpus/regtest_datadir.tar.gz"), local_reads=request.param)
    yield made
    made.close()


@pytest.mark.parametrize("flow", FLOWS, ids=[flow["name"] for flow in FLOWS])
def test_flow(flow: dict[str, Any], node: Any, data: Path) -> None:
    now = json.loads((data / "corpus" / "tip.json").read_text())["now"]
    if flow.get("construct_error"):
        with pytest.raises(ClientError) as refused:
            node.collect_txs(flow["wtxids"])
        assert str(refused.value) == flow["construct_error"]
        return
    with node.collect_txs(flow["wtxids"]) as collection:
        assert collection.unknown_tx_pos() == flow["unknown"]
        for supply, expected in zip(flow["supply"], flow["errors"], strict=True):
            error = None
            try:
                collection.add_missing_txs([bytes.fromhex(raw) for raw in supply])
            except ClientError as refused_supply:
                error = str(refused_supply)
            assert error == expected
        coinbase = None if flow["coinbase"] is None else bytes.fromhex(flow["coinbase"])
        for mode, field in (("deferred", "verdict"), ("inline", "verdict_inline")):
            verdict = collection.make_template(flow["prevhash"], coinbase, now=now, script_mode=mode)
            expected = flow[field]
            assert verdict.reason == (expected.split(" (")[0] if expected else None)
            assert (verdict.template is not None) == verdict.ok
