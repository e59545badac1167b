"""Plain HTTP against a live gateway: who is let in, what is too much, envelopes, batches, notifications, garbage."""

import asyncio
import base64
import json
import socket
import time
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest

from tests.cluster.gateway.conftest import Connection, Served, lonely_gateway

GET_COUNT = {"method": "getblockcount", "params": []}


def basic(text: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(text.encode()).decode()}


# Who is let in


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": ""},
        {"Authorization": "Basic"},
        {"Authorization": "Basic !!!"},
        {"Authorization": "Bearer abc"},
        basic("__cookie__"),
        basic("__cookie__:wrong"),
        basic("nobody:"),
    ],
)
def test_without_the_right_password_nothing_is_answered(connection: Connection, headers: dict[str, str]) -> None:
    answer = connection.send(json.dumps(GET_COUNT), headers)
    assert (answer.status, answer.body) == (401, b"")
    assert answer.headers["WWW-Authenticate"] == 'Basic realm="jsonrpc"'


def test_cookie_file_lets_in(served: Served) -> None:
    user, _, password = served.gateway.cookie_file.read_text().partition(":")
    assert served.connect((user, password)).call("getblockcount") == 125


def test_call_from_a_page_of_another_site_is_refused(connection: Connection) -> None:
    headers = connection.headers | {"Origin": "http://example.com", "Content-Type": "text/plain"}
    assert connection.send(json.dumps(GET_COUNT), headers).status == 403


# Versions, ids, statuses


def test_version_1(connection: Connection) -> None:
    answer = connection.ask("getblockcount")
    assert (answer.status, answer.headers["Content-Type"]) == (200, "application/json")
    assert answer.json == {"result": 125, "error": None, "id": 1}


def test_version_2(connection: Connection) -> None:
    answer = connection.ask("getblockcount", jsonrpc="2.0", id="x")
    assert (answer.status, answer.json) == (200, {"jsonrpc": "2.0", "result": 125, "id": "x"})


@pytest.mark.parametrize(
    ("method", "params", "code", "status"),
    [("nosuch", [], -32601, 404), ("gettxout", ["00", 0], -8, 500), ("getblockcount", [1], -1, 500)],
)
def test_errors_show_in_the_http_status_of_version_1_only(
    connection: Connection, method: str, params: list[Any], code: int, status: int
) -> None:
    first, second = connection.ask(method, *params), connection.ask(method, *params, jsonrpc="2.0")
    assert (first.status, first.error[0], first.json["result"]) == (status, code, None)
    assert (second.status, second.error[0]) == (200, code)
    assert "result" not in second.json


def test_what_is_no_request(connection: Connection) -> None:
    answer = connection.send('{"jsonrpc": "2.0", "id": 5}')
    assert (answer.status, answer.error, answer.json["id"]) == (400, (-32600, "Missing method"), 5)


@pytest.mark.parametrize("body", [b"", b"{", b"this is bad", b"\xff\xfe\x00", b"[" * 100_000, b"\x00" * 1000])
def test_garbage(connection: Connection, body: bytes) -> None:
    answer = connection.send(body)
    assert (answer.status, answer.json) == (
        500,
        {"result": None, "error": {"code": -32700, "message": "Parse error"}, "id": None},
    )


@pytest.mark.parametrize("body", ["7", '"x"', "null", "true"])
def test_json_that_is_no_object(connection: Connection, body: str) -> None:
    answer = connection.send(body)
    assert (answer.status, answer.error) == (500, (-32700, "Top-level object parse error"))


def test_notification_is_done_and_not_answered(served: Served, connection: Connection) -> None:
    before = served.node.stats()
    answer = connection.send('{"jsonrpc": "2.0", "method": "getblockcount"}')
    assert (answer.status, answer.body) == (204, b"")
    calls = {name: counters["calls"] for name, counters in served.node.stats().items() if name.startswith("gateway")}
    assert all(count > before[name]["calls"] for name, count in calls.items())


# Batches


def test_batch_is_answered_in_order_with_errors_inside(connection: Connection) -> None:
    # as Core's test/functional/interface_rpc.py
    calls = [
        {"id": 1, "method": "getblockcount"},
        {"id": 2, "method": "invalidmethod"},
        {"jsonrpc": "2.0", "id": 3, "method": "getblockcount"},
        {"jsonrpc": "2.0", "method": "getblockcount"},
        {"jsonrpc": "2.0", "id": 4, "method": "invalidmethod"},
        1,
        {"jsonrpc": "2.0", "id": 5},
    ]
    answer = connection.send(json.dumps(calls))
    not_found = {"code": -32601, "message": "Method not found"}
    assert answer.status == 200
    assert answer.json == [
        {"result": 125, "error": None, "id": 1},
        {"result": None, "error": not_found, "id": 2},
        {"jsonrpc": "2.0", "result": 125, "id": 3},
        {"jsonrpc": "2.0", "error": not_found, "id": 4},
        {"result": None, "error": {"code": -32600, "message": "Invalid Request object"}, "id": None},
        {"jsonrpc": "2.0", "error": {"code": -32600, "message": "Missing method"}, "id": 5},
    ]


def test_empty_batch(connection: Connection) -> None:
    answer = connection.send("[]")
    assert (answer.status, answer.json) == (200, [])


def test_batch_of_notifications(connection: Connection) -> None:
    answer = connection.send(json.dumps([{"jsonrpc": "2.0", "method": "getblockcount"}] * 3))
    assert (answer.status, answer.body) == (204, b"")


def test_batch_that_is_too_long(connection: Connection) -> None:
    answer = connection.send(json.dumps([1] * 10_001))
    assert (answer.status, answer.error[0]) == (400, -32600)


# How it travels


def test_connection_is_kept(served: Served) -> None:
    connection = served.connect()
    connection.call("getblockcount")
    kept = connection._http.sock
    connection.refusal("nosuch")
    connection.send(b"rubbish")
    connection.call("getblockcount")
    assert connection._http.sock is kept
    connection.close()


def test_other_methods_and_paths(connection: Connection) -> None:
    assert connection.send(b"{}", method="PUT").status == 405
    assert connection.send(b"{}", path="/wallet/x").status == 404
    assert connection.get("/nosuch").status == 404


def test_body_of_unknown_length(served: Served) -> None:
    connection = served.connect()
    body = iter([b'{"method": "getblock', b'count", "id": 1}'])
    connection._http.request("POST", "/", body, connection.headers, encode_chunked=True)
    assert json.loads(connection._http.getresponse().read())["result"] == 125
    connection.close()


def test_client_that_waits_to_be_told_to_go_on(served: Served, connection: Connection) -> None:
    body = json.dumps(GET_COUNT | {"id": 1}).encode()
    head = f"POST / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: {len(body)}\r\n"
    head += f"Authorization: {connection.headers['Authorization']}\r\nConnection: close\r\n\r\n"
    with socket.create_connection((served.gateway.host, served.gateway.port), timeout=30) as raw:
        raw.sendall(head.encode())
        assert raw.recv(100).startswith(b"HTTP/1.1 100 Continue")
        raw.sendall(body)
        answer = b""
        while piece := raw.recv(4096):
            answer += piece
    assert answer.startswith(b"HTTP/1.1 200 OK")
    assert b'"result":125' in answer


# Limits


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A gateway that takes two requests at a time, and bodies of 2000 bytes, 3000 together; without actors."""
    limits = {"rpc_concurrency": 2, "rpc_body_bytes": 2000, "rpc_bodies_bytes": 3000}
    with lonely_gateway(tmp_path_factory.mktemp("store"), **limits) as gateway:
        yield gateway


def test_body_that_is_too_large(narrow: Served) -> None:
    connection = narrow.connect()
    answer = connection.send(json.dumps(GET_COUNT | {"pad": "x" * 2000}))
    kept = connection._http.sock
    assert connection.call("getblockcount") == 125
    assert connection._http.sock is kept
    assert (answer.status, answer.error) == (
        413,
        (-32600, "the request is larger than the 2000 bytes that are allowed"),
    )


def test_body_that_grows_too_large(narrow: Served) -> None:
    connection = narrow.connect()
    pieces = iter([b'{"pad": "'] + [b"x" * 500] * 5)
    connection._http.request("POST", "/", pieces, connection.headers, encode_chunked=True)
    assert connection._http.getresponse().status == 413


def test_more_requests_than_allowed_are_refused_at_once_and_others_served(narrow: Served) -> None:
    """Two clients begin a request and do not end it; a third is told that there is no room, and one that comes when
    they have gone is served."""
    waiting = []
    token = narrow.connect().headers["Authorization"]
    head = f"POST / HTTP/1.1\r\nHost: x\r\nAuthorization: {token}\r\nContent-Length: 100\r\n\r\n{{"
    for _ in range(2):
        raw = socket.create_connection((narrow.gateway.host, narrow.gateway.port), timeout=30)
        raw.sendall(head.encode())
        waiting.append(raw)
    limit = time.monotonic() + 30
    third = narrow.connect()
    while (answer := third.ask("getblockcount")).status == 200 and time.monotonic() < limit:
        pass
    kept = third._http.sock
    assert (answer.status, answer.headers["Retry-After"]) == (503, "1")
    assert answer.error == (-32005, "2 requests are under way, the most that are allowed: try again later")
    assert narrow.connect().get("/health").status in (200, 503)
    for raw in waiting:
        raw.close()
    while (answer := third.ask("getblockcount")).status == 503 and time.monotonic() < limit:
        pass
    assert answer.json["result"] == 125
    assert third._http.sock is kept, "a client that is refused keeps its session"


def test_bytes_under_way_are_bounded(narrow: Served) -> None:
    token = narrow.connect().headers["Authorization"]
    head = f"POST / HTTP/1.1\r\nHost: x\r\nAuthorization: {token}\r\nContent-Length: 1900\r\n\r\n{{"
    with socket.create_connection((narrow.gateway.host, narrow.gateway.port), timeout=30) as raw:
        raw.sendall(head.encode())
        limit = time.monotonic() + 30
        body = json.dumps(GET_COUNT | {"pad": "x" * 1500})
        while (answer := narrow.connect().send(body)).status == 200 and time.monotonic() < limit:
            pass
    assert (answer.status, answer.error[0]) == (503, -32005)
    assert "1900 bytes of requests are under way" in answer.error[1]


def test_many_clients_at_once(served: Served) -> None:
    """Every one of forty connections gets its own answers."""
    headers = served.connect().headers

    async def client(http: aiohttp.ClientSession, number: int) -> list[Any]:
        ids = []
        for n in range(5):
            request = {"jsonrpc": "2.0", "method": "getblockcount", "id": f"{number}-{n}"}
            async with http.post(served.gateway.url, json=request) as answer:
                fields = await answer.json()
                assert fields["result"] == 125
                ids.append(fields["id"])
        return ids

    async def all_of_them() -> list[list[Any]]:
        connector = aiohttp.TCPConnector(limit=40)
        async with aiohttp.ClientSession(connector=connector, headers=headers) as http:
            return await asyncio.gather(*(client(http, number) for number in range(40)))

    answers = asyncio.run(all_of_them())
    assert answers == [[f"{number}-{n}" for n in range(5)] for number in range(40)]
