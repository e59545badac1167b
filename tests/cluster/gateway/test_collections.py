"""Declarations over RPC: every recorded flow, who owns a collection and when it goes, templates and solutions."""

import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from bitcoinrpc.authproxy import JSONRPCException

from tests.actors.watching import drill, until
from tests.cluster.gateway.conftest import Connection, Served


def _flows() -> list[dict[str, Any]]:
    path = Path(__file__).parents[2] / "data" / "corpus" / "collections.jsonl.gz"
    with gzip.open(path, "rt") as file:
        return [json.loads(line) for line in file]


FLOWS = _flows()
VALID = next(flow for flow in FLOWS if flow["verdict"] is None and flow["unknown"] and not any(flow["errors"]))


@pytest.fixture(scope="module")
def proxy(served: Served) -> Iterator[Any]:
    """A client that was not written here."""
    yield served.proxy()


def open_of(node: Any) -> int:
    """How many collections the node's actors hold."""
    return sum(c["open"] for name, c in node.stats().items() if name.startswith("collection-"))


@pytest.mark.parametrize("flow", FLOWS, ids=[flow["name"] for flow in FLOWS])
def test_flow(flow: dict[str, Any], proxy: Any) -> None:
    if flow.get("construct_error"):
        with pytest.raises(JSONRPCException) as refused:
            proxy.collecttxs(flow["wtxids"])
        assert refused.value.error == {"code": -8, "message": flow["construct_error"]}
        return
    opened = proxy.collecttxs(flow["wtxids"])
    collection = opened["collection"]
    assert opened["unknown"] == flow["unknown"] == proxy.unknowntxpos(collection)
    for supply, expected in zip(flow["supply"], flow["errors"], strict=True):
        error = None
        try:
            proxy.addmissingtxs(collection, supply)
        except JSONRPCException as refused_supply:
            error = refused_supply.error["message"]
        assert error == expected
    for mode, field in (("deferred", "verdict"), ("inline", "verdict_inline")):
        verdict = proxy.maketemplate(collection, flow["prevhash"], flow["coinbase"], [], mode)
        expected = flow[field]
        assert verdict["reason"] == (expected.split(" (")[0] if expected else None)
        assert (verdict["template"] is not None) == verdict["ok"] == (expected is None)
    proxy.closecollection(collection)


def test_missing_transactions_with_the_question(connection: Connection) -> None:
    opened = connection.call("collecttxs", VALID["wtxids"])
    missing = [raw for supply in VALID["supply"] for raw in supply]
    verdict = connection.call("maketemplate", opened["collection"], VALID["prevhash"], VALID["coinbase"], missing)
    assert (verdict["ok"], verdict["kind"], verdict["reason"]) == (True, "valid", None)
    assert {"total", "collection", "template", "check"} <= set(verdict["ms"])


def test_verdict_names_the_offender(connection: Connection, served: Served) -> None:
    flow = next(f for f in FLOWS if f["verdict"] == "bad-txns-inputs-missingorspent")
    collection = connection.call("collecttxs", flow["wtxids"])["collection"]
    supply = [raw for raws in flow["supply"] for raw in raws]
    verdict = connection.call("maketemplate", collection, flow["prevhash"], flow["coinbase"], supply)
    with served.node.collect_txs(flow["wtxids"]) as same:
        raws = [bytes.fromhex(raw) for raw in supply]
        coinbase = flow["coinbase"] and bytes.fromhex(flow["coinbase"])
        expected = same.make_template(flow["prevhash"], coinbase, missing=raws).to_dict()
    assert {key: verdict[key] for key in expected} == expected
    assert verdict["offender"]["wtxid"] in flow["wtxids"]


@pytest.mark.parametrize(
    ("params", "code", "text"),
    [
        ([["00"]], -8, "wtxid must be hexadecimal"),
        ([[5]], -3, "wtxids[0] is not of expected type string"),
        (["x"], -3, "Wrong type passed"),
        ([], -1, "collecttxs wtxids"),
    ],
)
def test_what_is_no_list_of_wtxids(connection: Connection, params: list[Any], code: int, text: str) -> None:
    refused = connection.refusal("collecttxs", *params)
    assert refused[0] == code
    assert text in refused[1]


@pytest.mark.parametrize(
    ("transactions", "code", "text"),
    [
        ([None], -8, "unexpected null transaction"),
        ([""], -8, "unexpected null transaction"),
        (["0"], -22, "transaction 0 has an odd number of hex digits (1)"),
        (["00", "0g"], -22, "transaction 1 is not hexadecimal: 'g' at position 1"),
        ([7], -3, "transactions[0] is not of expected type string"),
    ],
)
def test_what_is_no_transaction(connection: Connection, transactions: list[Any], code: int, text: str) -> None:
    opened = connection.call("collecttxs", VALID["wtxids"])
    assert connection.refusal("addmissingtxs", opened["collection"], transactions) == (code, text)
    assert connection.call("unknowntxpos", opened["collection"]) == opened["unknown"]


@pytest.mark.parametrize(
    ("prevhash", "coinbase", "code"), [("00", None, -8), ("00" * 32, "0", -22), ("00" * 32, "00", -22)]
)
def test_what_is_no_prevhash_or_coinbase(
    connection: Connection, prevhash: str, coinbase: str | None, code: int
) -> None:
    collection = connection.call("collecttxs", [])["collection"]
    assert connection.refusal("maketemplate", collection, prevhash, coinbase)[0] == code


# Whose it is, and when it goes


def test_another_client_does_not_find_it(served: Served, connection: Connection) -> None:
    collection = connection.call("collecttxs", VALID["wtxids"])["collection"]
    other = served.connect()
    for method, params in (
        ("unknowntxpos", []),
        ("addmissingtxs", [[]]),
        ("maketemplate", [VALID["prevhash"]]),
        ("submitsolution", [1, 1, 1, 1, "00"]),
        ("closecollection", []),
    ):
        code, text = other.refusal(method, collection, *params)
        assert (code, text.split(":")[0]) == (-32001, "this client has no collection with this id")
    assert connection.call("unknowntxpos", collection) == VALID["unknown"]
    other.close()


def test_end_of_the_session_frees_its_collections(served: Served) -> None:
    until(lambda: open_of(served.node) == 0, "those of other tests are freed")
    client = served.connect()
    for _ in range(3):
        client.call("collecttxs", VALID["wtxids"])
    assert open_of(served.node) == 3
    client.close()
    until(lambda: open_of(served.node) == 0, "the collections are freed")


def test_closed_collection_is_gone(served: Served, connection: Connection) -> None:
    until(lambda: open_of(served.node) == 0, "those of other tests are freed")
    collection = connection.call("collecttxs", VALID["wtxids"])["collection"]
    assert open_of(served.node) == 1
    assert connection.call("closecollection", collection) is None
    until(lambda: open_of(served.node) == 0, "the collection is freed")
    assert connection.refusal("unknowntxpos", collection)[0] == -32001


def test_session_with_a_name_outlives_connections(served: Served) -> None:
    first = served.connect()
    collection = first.call("collecttxs", VALID["wtxids"], session="job-1")["collection"]
    first.close()
    second = served.connect()
    assert second.refusal("unknowntxpos", collection)[0] == -32001
    assert second.call("unknowntxpos", collection, session="job-1") == VALID["unknown"]
    assert second.call("unknowntxpos", collection, "job-1") == VALID["unknown"]
    second.call("closecollection", collection, session="job-1")
    second.close()


@pytest.mark.parametrize("name", ["", "x" * 65])
def test_bad_name_of_a_session(connection: Connection, name: str) -> None:
    answer = connection.ask("getblockcount", session=name)
    assert (answer.status, answer.error[0]) == (500, -8)


def test_ids_are_long_and_never_the_same(connection: Connection) -> None:
    ids = [connection.call("collecttxs", [])["collection"] for _ in range(20)]
    assert len(set(ids)) == 20
    assert all(len(bytes.fromhex(one)) == 16 for one in ids)
    for one in ids:
        connection.call("closecollection", one)


# Limits


@pytest.fixture(scope="module")
def frugal(
    make_store: Callable[..., Path], start_node: Callable[..., Any], corpus_tip: dict[str, Any]
) -> Iterator[Served]:
    """Two collections, 1,000 supplied bytes and one waiting call for each client; checks read in the workers only."""
    from cluster.gateway.start import start_gateway

    node = start_node(
        make_store(),
        now=corpus_tip["now"],
        max_collections_per_client=2,
        supplied_bytes_per_client=1000,
        pending_calls_per_client=1,
        local_reads=0,
    )
    with start_gateway(node) as gateway:
        yield Served(node, gateway)
    node.close()


def test_more_collections_than_allowed(frugal: Served) -> None:
    client, other = frugal.connect(), frugal.connect()
    first = client.call("collecttxs", [])["collection"]
    client.call("collecttxs", [])
    answer = client.ask("collecttxs", [])
    assert (answer.status, answer.error) == (
        503,
        (-32005, "2 collections of this client are open, the most that are allowed: close one first"),
    )
    other.call("collecttxs", [])
    client.call("closecollection", first)
    client.call("collecttxs", [])
    client.close()
    other.close()


def test_more_supplied_bytes_than_allowed(frugal: Served) -> None:
    client = frugal.connect()
    opened = client.call("collecttxs", VALID["wtxids"])
    code, text = client.refusal("addmissingtxs", opened["collection"], ["00" * 1001])
    assert code == -32005
    assert "above the 1000 that are allowed" in text
    refused = client.refusal("addmissingtxs", opened["collection"], ["00" * 600])
    assert refused[0] != -32005
    assert client.refusal("addmissingtxs", opened["collection"], ["00" * 600]) == refused, "a refused supply is free"
    client.close()


def test_long_check_delays_nobody_else_and_its_client_waits_alone(frugal: Served, data: Path) -> None:
    """The workers are told to hold the reads of a check; meanwhile other clients are answered, and the same client is
    told that it has a call waiting."""
    with gzip.open(data / "corpus" / "proposals.jsonl.gz", "rt") as file:
        block = next(case["block"] for case in map(json.loads, file) if case["kind"] == "chain" and not case["par2"])
    drill(frugal.node, "fetch", hold_checks=True)
    slow, same, other = frugal.connect(), frugal.connect(), frugal.connect()
    body = json.dumps({"method": "getblocktemplate", "params": [{"mode": "proposal", "data": block}], "id": 1})
    slow._http.request("POST", "/", body, slow.headers | {"X-Session": "job"})
    try:
        until(lambda: same.ask("getblockcount", session="job").status == 503, "the client has a call waiting")
        assert same.refusal("uptime", session="job") == (
            -32005,
            "1 calls of this client wait for an answer, the most that are allowed",
        )
        assert other.call("getblockcount") == 125
        assert other.call("gettxout", "00" * 32, 0) is None
    finally:
        drill(frugal.node, "fetch", hold_checks=False)
    assert json.loads(slow._http.getresponse().read()) == {"result": None, "error": None, "id": 1}
    for client in (slow, same, other):
        client.close()
