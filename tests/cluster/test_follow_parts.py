"""The follower's parts by themselves: logins, JSON-RPC and its failures, ZMQ messages and their numbers, its status."""

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from struct import pack
from typing import Any

import pytest
import zmq
from aiohttp import web

from cluster.follow_status import FollowState, FollowStatus, StatusFile, read_status
from cluster.follow_zmq import MempoolChange, Note, Notifications, Topic, parse_sequence
from cluster.node_rpc import ChainInfo, Login, NodeRpc, NodeRpcError
from models.errors import NodeError, NodeRefused, NodeUnreachable, SettingsError
from tests.fakechain import mine_block
from tests.fakenode import FakeNode, free_port

LOGIN = Login(user="user", password="secret")


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 60))


# Logins ---------------------------------------------------------------------------------------------------------------


def test_a_cookie() -> None:
    assert Login.of_options(Path("/c"), None, None).cookie == Path("/c")


def test_a_password_file(tmp_path: Path) -> None:
    (tmp_path / "p").write_text("pa:ss word\nrest\n")
    # base64 of "u:pa:ss word"
    assert Login.of_options(None, "u", tmp_path / "p").header() == "Basic dTpwYTpzcyB3b3Jk"


@pytest.mark.parametrize(
    ("cookie", "user", "password", "says"),
    [
        (None, None, None, "--cookie FILE"),
        (None, "u", None, "--password-file F"),
        (None, None, "p", "--user U"),
        ("c", "u", "p", "not both"),
        (None, "u", "empty", "is empty"),
        (None, "u", "none", "cannot read the password file"),
    ],
)
def test_half_a_login(cookie: str | None, user: str | None, password: str | None, says: str, tmp_path: Path) -> None:
    (tmp_path / "p").write_text("x")
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(SettingsError, match=says):
        Login.of_options(cookie and Path(cookie), user, password and tmp_path / password)


def test_a_password_is_never_shown() -> None:
    assert "secret" not in repr(LOGIN) + LOGIN.what


@pytest.mark.parametrize("url", ["ftp://x", "http://", "http://127.0.0.1:port", ""])
def test_an_address_that_is_none(url: str) -> None:
    with pytest.raises(SettingsError, match="must be like http://127.0.0.1:8332"):
        NodeRpc(url, LOGIN)


def test_a_password_in_the_address() -> None:
    with pytest.raises(SettingsError, match="must not hold a password") as caught:
        NodeRpc("http://u:hush@127.0.0.1:8332", LOGIN)
    assert "hush" not in str(caught.value)


def test_an_address_without_a_scheme() -> None:
    assert NodeRpc("127.0.0.1:8332", LOGIN).url == "http://127.0.0.1:8332/"
    assert NodeRpc("[::1]:8332", LOGIN).url == "http://[::1]:8332/"


# JSON-RPC -------------------------------------------------------------------------------------------------------------


async def _answering(answer: Callable[[Any], Any]) -> tuple[str, web.AppRunner]:
    """A server that answers each JSON body with `answer(body)`: a response, or a value."""

    async def handle(request: web.Request) -> web.StreamResponse:
        result = answer(json.loads(await request.read()))
        return result if isinstance(result, web.StreamResponse) else web.json_response(result)

    app = web.Application()
    app.router.add_post("/", handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    port = free_port()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    return f"http://127.0.0.1:{port}", runner


async def _ask(answer: Callable[[Any], Any], ask: Callable[[NodeRpc], Awaitable[Any]]) -> Any:
    url, runner = await _answering(answer)
    try:
        async with NodeRpc(url, LOGIN) as rpc:
            return await ask(rpc)
    finally:
        await runner.cleanup()


def test_answers_of_a_batch_in_any_order() -> None:
    def answer(body: list[dict[str, Any]]) -> Any:
        good = [{"id": one["id"], "result": one["params"][0] * 2} for one in body if one["params"][0] != 3]
        bad = [{"id": one["id"], "error": {"code": -8, "message": "three"}} for one in body if one["params"][0] == 3]
        return [*bad, *reversed(good)]

    async def test() -> None:
        numbers = list(range(250))  # more than one request
        results = await _ask(answer, lambda rpc: rpc.batch([("double", [n]) for n in numbers]))
        error = results[3]
        assert isinstance(error, NodeRpcError) and error.code == -8
        assert [result for result in results if not isinstance(result, NodeRpcError)] == [
            2 * n for n in numbers if n != 3
        ]

    run(test)


@pytest.mark.parametrize(
    ("answer", "kind", "says"),
    [
        ({"error": {"code": -28, "message": "Loading"}}, NodeUnreachable, "the node is starting: Loading"),
        ({"error": {"code": -1, "message": "no"}}, NodeRpcError, r"getblockchaininfo: no \(code -1\)"),
        ({}, NodeError, "gave no answer"),
        ([], NodeError, "does not speak JSON-RPC"),
        ({"result": {"chain": "main"}}, NodeError, "makes no sense"),
        (web.Response(text="<html>"), NodeError, "does not speak JSON-RPC: HTTP 200 '<html>'"),
        (web.Response(status=503, text="Work queue depth exceeded"), NodeUnreachable, "busy or stopping: HTTP 503"),
        (web.Response(status=403), NodeRefused, "forbids this host to ask"),
        (web.Response(status=404, text="no"), NodeError, "HTTP 404"),
    ],
)
def test_bad_answers_have_names(answer: Any, kind: type[Exception], says: str) -> None:
    async def test() -> None:
        with pytest.raises(kind, match=says) as caught:
            await _ask(lambda body: answer, lambda rpc: rpc.chain_info())
        assert type(caught.value) is kind

    run(test)


def test_errors_with_http_500_as_old_versions_answer() -> None:
    body = json.dumps({"result": None, "error": {"code": -8, "message": "Block height out of range"}, "id": 1})

    async def test() -> None:
        with pytest.raises(NodeRpcError, match="out of range") as caught:
            await _ask(lambda _: web.Response(status=500, text=body), lambda rpc: rpc.call("getblockhash", 9))
        assert caught.value.code == -8

    run(test)


def test_nobody_listens() -> None:
    async def test() -> None:
        async with NodeRpc(f"http://127.0.0.1:{free_port()}", LOGIN) as rpc:
            with pytest.raises(NodeUnreachable, match="no connection to the node at .*: Connection refused"):
                await rpc.best()

    run(test)


def test_a_node_that_does_not_answer_in_time() -> None:
    async def test() -> None:
        async def silent(request: web.Request) -> web.Response:
            await asyncio.sleep(5)
            return web.Response()

        app = web.Application()
        app.router.add_post("/", silent)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        port = free_port()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        async with NodeRpc(f"http://127.0.0.1:{port}", LOGIN, timeout=0.2) as rpc:
            with pytest.raises(NodeUnreachable, match="no answer in 0.2 s"):
                await rpc.best()
        await runner.cleanup()

    run(test)


def test_a_block_that_is_another_one(tmp_path: Path) -> None:
    async def test() -> None:
        node = await FakeNode(tmp_path).start()
        raw = mine_block(await node.tip())
        with pytest.raises(NodeError, match="with another block"):
            await _ask(lambda body: {"id": 1, "result": raw.hex()}, lambda rpc: rpc.block(b"\x01" * 32))
        await node.stop()

    run(test)


def test_pruning_is_told_only_of_nodes_that_prune() -> None:
    fields = {"chain": "main", "blocks": 5, "headers": 6, "bestblockhash": "00" * 32, "pruneheight": 3}
    assert ChainInfo.of(fields | {"pruned": False}).prune_height is None
    assert ChainInfo.of(fields | {"pruned": True}).prune_height == 3


# ZMQ ------------------------------------------------------------------------------------------------------------------


def test_the_meaning_of_sequence_messages() -> None:
    txid = bytes(range(32))
    added = parse_sequence(txid[::-1] + b"A" + pack("<Q", 7))
    assert added == MempoolChange(True, txid, 7)
    assert parse_sequence(txid[::-1] + b"R" + pack("<Q", 2**40)) == MempoolChange(False, txid, 2**40)
    assert parse_sequence(txid + b"C") is None
    assert parse_sequence(txid + b"D") is None
    assert parse_sequence(b"") is None


@pytest.mark.parametrize("address", ["", "127.0.0.1:28332", "http://x", "tcp://"])
def test_a_zmq_address_that_is_none(address: str) -> None:
    with pytest.raises(SettingsError, match="must be like tcp://127.0.0.1:28332"):
        Notifications([address])


def test_gaps_in_numbers() -> None:
    async def collect(notifications: Notifications, count: int) -> list[Note]:
        notes: list[Note] = []
        while len(notes) < count:
            notes += [note for note in await notifications.next(5) if note.topic is not Topic.CONNECTION]
        return notes

    async def test() -> None:
        context = zmq.Context()
        socket = context.socket(zmq.PUB)
        port = socket.bind_to_random_port("tcp://127.0.0.1")

        def publish(topic: bytes, number: int) -> None:
            socket.send_multipart([topic, b"body", pack("<I", number)])

        async with Notifications([f"tcp://127.0.0.1:{port}"]) as notifications:
            await notifications.next(5)  # the connection came up
            await asyncio.sleep(0.3)  # and the subscriptions are there
            for topic, number in [
                (b"rawtx", 5), (b"rawtx", 6), (b"sequence", 9), (b"rawtx", 8), (b"rawtxxx", 1), (b"sequence", 10),
                (b"rawtx", 0xFFFFFFFF), (b"rawtx", 0),
            ]:  # fmt: skip
                publish(topic, number)
            notes = await collect(notifications, 7)
            assert [(note.topic.value, note.lost) for note in notes] == [
                ("rawtx", True),  # the first: nobody knows what came before
                ("rawtx", False),
                ("sequence", True),
                ("rawtx", True),  # 7 is missing
                ("sequence", False),
                ("rawtx", True),
                ("rawtx", False),  # numbers begin again after 2^32 - 1
            ]
            assert notifications.gaps == 4
        with suppress(zmq.ZMQError):
            socket.close(0)
        context.term()

    run(test)


# The status file ------------------------------------------------------------------------------------------------------


def test_a_status_is_read_by_others(tmp_path: Path) -> None:
    file = StatusFile(tmp_path)
    assert read_status(tmp_path) is None
    file.show(FollowStatus("http://node", FollowState.FOLLOWING, height=7))
    fields = read_status(tmp_path)
    assert fields is not None
    assert (fields["state"], fields["ready"], fields["height"]) == ("following", True, 7)
    assert (fields["pid"], fields["alive"]) == (os.getpid(), True)
    file.remove()
    assert read_status(tmp_path) is None


def test_only_following_is_ready() -> None:
    assert [state.value for state in FollowState if FollowStatus("", state).ready] == ["following"]


def test_a_status_whose_writer_died(tmp_path: Path) -> None:
    (tmp_path / "follow.json").write_text(json.dumps({"state": "following", "pid": 2**22 + 1}))
    fields = read_status(tmp_path)
    assert fields is not None and not fields["alive"]
