"""Pages for operators on a live node: health, metrics, the status figures, the log of verdicts, and who may look."""

import asyncio
import base64
import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import make_mocked_request
from prometheus_client.parser import text_string_to_metric_families

from cluster.gateway.auth import Credentials
from cluster.gateway.options import GatewayOptions
from cluster.gateway.service import Service
from tests.actors.watching import until
from tests.cluster.gateway.conftest import Connection, Served, lonely_house
from tests.cluster.gateway.test_collections import FLOWS, VALID

DOUBLE_SPEND = next(flow for flow in FLOWS if flow["verdict"] == "bad-txns-inputs-missingorspent")


def metric(served: Served, name: str, **labels: str) -> float:
    text = served.connect().get("/metrics").body.decode()
    found = [
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    ]
    return sum(found)


def ask(connection: Connection, flow: dict[str, Any]) -> dict[str, Any]:
    collection = connection.call("collecttxs", flow["wtxids"])["collection"]
    supply = [raw for raws in flow["supply"] for raw in raws]
    verdict = connection.call("maketemplate", collection, flow["prevhash"], flow["coinbase"], supply)
    connection.call("closecollection", collection)
    return verdict


def test_health_of_a_good_node(connection: Connection, corpus_tip: dict[str, Any]) -> None:
    answer = until(lambda: (found := connection.get("/health")).status == 200 and found, "the node is healthy")
    assert (answer.json["ok"], answer.json["problems"]) == (True, [])
    assert (answer.json["tip"]["hash"], answer.json["tip"]["height"]) == (corpus_tip["hash"], 125)
    assert answer.json["tip"]["age"] == corpus_tip["now"] - answer.json["tip"]["time"]


def test_metrics_count_what_was_asked(served: Served, connection: Connection) -> None:
    def counted() -> list[float]:
        return [
            metric(served, "txcollection_verdicts_total", on="declaration", reason="bad-txns-inputs-missingorspent"),
            metric(served, "txcollection_phase_seconds_count", phase="verdict"),
            metric(served, "txcollection_rpc_calls_total", method="maketemplate", outcome="ok"),
            metric(served, "txcollection_errors_total", type="CollectionLost"),
            metric(served, "txcollection_http_refused_total", why="password"),
        ]

    before = counted()
    ask(connection, DOUBLE_SPEND)
    connection.refusal("unknowntxpos", "00")
    served.connect(("__cookie__", "wrong")).send(b"{}")
    assert [after - earlier for after, earlier in zip(counted(), before, strict=True)] == [1, 1, 1, 1, 1]
    assert metric(served, "txcollection_tip_height") == 125
    assert metric(served, "txcollection_healthy") == 1


def test_status_figures(served: Served, connection: Connection) -> None:
    held = connection.call("collecttxs", VALID["wtxids"])["collection"]
    status = until(
        lambda: (found := connection.get("/status.json").json)["collections_open"] and found, "the collection is shown"
    )
    sizes = [(c["transactions"], c["unknown"]) for c in status["collections"]]
    assert (len(VALID["wtxids"]), len(VALID["unknown"])) in sizes
    assert (status["network"], status["tip"]["height"], status["slots"]["total"]) == ("regtest", 125, 8)
    assert {"chainstate", "mempool", "fetch", "script", "template", "collection", "gateway"} == {
        worker["kind"] for worker in status["workers"] if worker["ok"]
    }
    assert held not in json.dumps(status), "an id is its client's secret"
    connection.call("closecollection", held)


def test_each_verdict_is_a_line_of_the_log_without_secrets(served: Served, connection: Connection) -> None:
    path = served.node.store.parent / "declarations.jsonl"
    before = len(path.read_text().splitlines())
    collection = connection.call("collecttxs", DOUBLE_SPEND["wtxids"])["collection"]
    supply = [raw for raws in DOUBLE_SPEND["supply"] for raw in raws]
    verdict = connection.call("maketemplate", collection, DOUBLE_SPEND["prevhash"], DOUBLE_SPEND["coinbase"], supply)
    line = json.loads(path.read_text().splitlines()[before])
    assert (line["event"], line["collection"]) == ("declaration", collection[:8])
    assert line["client"].startswith("__cookie__/connection-")
    assert (line["verdict"], line["reason"], line["offender"]) == ("invalid", verdict["reason"], verdict["offender"])
    assert (line["transactions"], line["supplied"]) == (len(DOUBLE_SPEND["wtxids"]), len(supply))
    assert {"total", "collection", "template", "check"} <= set(line["ms"])
    text = path.read_text()
    assert collection not in text
    assert served.gateway.auth[1] not in text
    connection.call("closecollection", collection)


@pytest.mark.parametrize("path", ["/", "/health", "/metrics", "/status.json"])
@pytest.mark.parametrize("host", ["example.com", "example.com:80", "127.0.0.1.example.com", "10.0.0.1", ""])
def test_a_web_site_that_took_our_address_sees_nothing(connection: Connection, path: str, host: str) -> None:
    answer = connection.get(path, {"Host": host})
    assert (answer.status, answer.body) == (403, b"pages are shown to this machine only, under its own name")


@pytest.mark.parametrize("host", ["localhost", "localhost:1", "127.0.0.1", "[::1]:80", "[::1]"])
def test_names_of_this_machine(connection: Connection, host: str) -> None:
    assert connection.get("/status.json", {"Host": host}).status == 200


def test_page_may_load_nothing_from_elsewhere(connection: Connection) -> None:
    answer = connection.get("/")
    assert answer.headers["Content-Type"].startswith("text/html")
    policy = answer.headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe-inline" not in policy
    text = answer.body.decode()
    assert "http://www.w3.org/2000/svg" in text
    assert [word for word in text.replace("http://www.w3.org/2000/svg", "").split('"') if "://" in word] == []


@pytest.mark.parametrize(("path", "status"), [("/", 401), ("/status.json", 401), ("/metrics", 401), ("/health", 503)])
def test_where_others_can_reach_it_pages_want_a_password(path: str, status: int, tmp_path: Path) -> None:
    """Except for the one that load balancers ask; nothing listens here."""

    async def answer(headers: dict[str, str]) -> int:
        house = lonely_house(tmp_path)
        options = GatewayOptions("0.0.0.0", 8332, cookie="secret", allow_remote=True)
        service = Service(house, Credentials(cookie="secret"), options)
        return (await service.handle(make_mocked_request("GET", path, headers))).status

    assert asyncio.run(answer({"Host": "node.example"})) == status
    token = base64.b64encode(b"__cookie__:secret").decode()
    right = asyncio.run(answer({"Host": "node.example", "Authorization": f"Basic {token}"}))
    assert right == (503 if path == "/health" else 200)
