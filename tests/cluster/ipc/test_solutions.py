"""Where a solved block goes: to the followed node and the store, or to the store alone."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from cluster.followed import Followed
from cluster.ipc.solutions import Solutions
from models.errors import NodeError, StoreError

BLOCK = b"\x01\x02\x03"


class Places:
    """A store that notes what it is given, and a node's RPC that answers as it is told."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.stored: list[bytes] = []
        self.asked: list[Any] = []
        self.answer: str | None = None
        self.solutions = Solutions(folder, self.store)

    async def store(self, block: bytes) -> tuple[str | None, str]:
        self.stored.append(block)
        return (None, "") if len(self.stored) == 1 else ("duplicate", "")

    async def rpc(self, request: web.Request) -> web.Response:
        body = await request.json()
        assert request.headers["Authorization"] == "Basic X19jb29raWVfXzpzZWNyZXQ="  # __cookie__:secret
        self.asked.append((body["method"], body["params"]))
        return web.json_response({"jsonrpc": "2.0", "id": body["id"], "result": self.answer})

    def follow(self, url: str) -> None:
        cookie = self.folder / "cookie"
        cookie.write_text("__cookie__:secret")
        Followed.of_options(url, cookie, None, None).save(self.folder)


def with_a_node(folder: Path, test: Callable[[Places], Awaitable[None]]) -> Places:
    """Runs a test beside a node that is followed."""
    places = Places(folder)

    async def run() -> None:
        app = web.Application()
        app.router.add_post("/", places.rpc)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        places.follow(f"http://{host}:{port}")
        try:
            await test(places)
        finally:
            await places.solutions.close()
            await runner.cleanup()

    asyncio.run(run())
    return places


def test_without_a_followed_node_the_store_takes_it(tmp_path: Path) -> None:
    places = Places(tmp_path)
    assert asyncio.run(places.solutions.submit(BLOCK)) == (None, "")
    assert (places.stored, places.asked) == ([BLOCK], [])


def test_the_followed_node_is_asked_and_the_store_has_it_too(tmp_path: Path) -> None:
    async def test(places: Places) -> None:
        assert await places.solutions.submit(BLOCK) == (None, "")

    places = with_a_node(tmp_path, test)
    assert places.asked == [("submitblock", [BLOCK.hex()])]
    assert places.stored == [BLOCK]


def test_what_the_node_refuses_does_not_reach_the_store(tmp_path: Path) -> None:
    async def test(places: Places) -> None:
        places.answer = "bad-cb-amount"
        assert await places.solutions.submit(BLOCK) == ("bad-cb-amount", "")

    assert with_a_node(tmp_path, test).stored == []


def test_a_node_that_is_followed_no_more_is_not_asked(tmp_path: Path) -> None:
    async def test(places: Places) -> None:
        await places.solutions.submit(BLOCK)
        Followed.forget(tmp_path)
        await places.solutions.submit(BLOCK)

    places = with_a_node(tmp_path, test)
    assert len(places.asked) == 1
    assert places.stored == [BLOCK, BLOCK]


def test_a_node_that_does_not_answer_is_said_and_the_store_has_the_block(tmp_path: Path) -> None:
    places = Places(tmp_path)
    places.follow("http://127.0.0.1:1")

    async def run() -> None:
        with pytest.raises(NodeError, match=r"did not reach http://127\.0\.0\.1:1/?: .*the store answers: accepted"):
            await places.solutions.submit(BLOCK)
        await places.solutions.close()

    asyncio.run(run())
    assert places.stored == [BLOCK]


def test_the_record_holds_no_secret_and_is_the_owners_only(tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("hunter2\n")
    followed = Followed.of_options("http://127.0.0.1:8332", None, "miner", password)
    followed.save(tmp_path)
    file = tmp_path / "followed.json"
    assert "hunter2" not in file.read_text()
    assert file.stat().st_mode & 0o777 == 0o600
    assert Followed.load(tmp_path) == followed


def test_a_record_that_makes_no_sense_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "followed.json").write_text("{]")
    with pytest.raises(StoreError, match="start the follower again"):
        Followed.load(tmp_path)
