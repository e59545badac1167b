"""`txcollection follow` with real actors: arguments, catching up, and a store from a snapshot that becomes ready."""

import asyncio
import gzip
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cluster.cli_app import run
from cluster.follow import Follower
from cluster.follow_target import RayTarget
from cluster.node_rpc import Login, NodeRpc
from models.errors import NotReady
from models.storage.store import Store
from tests.cluster.test_follow import _node_of_datadir
from tests.fakechain import mine_block
from tests.fakenode import FakeNode


@contextmanager
def in_a_thread(node: FakeNode) -> Iterator[None]:
    """Runs the node's event loop beside the test."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(node.start(), loop).result(30)
        yield
    finally:
        asyncio.run_coroutine_threadsafe(node.stop(), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(30)
        loop.close()


@pytest.fixture
def small_settings(monkeypatch: pytest.MonkeyPatch, ray_session: None) -> None:
    for name, value in {"SCRIPT_WORKERS": 1, "SPARE_WORKERS": 0, "TEMPLATE_ACTORS": 1, "FETCH_THREADS": 4}.items():
        monkeypatch.setenv(f"TXC_{name}", str(value))


def test_arguments_are_looked_at_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = str(tmp_path / "none")
    for arguments, says in [
        ([], "Missing option '--node'"),
        (["--node", "http://127.0.0.1:1"], "give --cookie FILE"),
        (["--node", "http://127.0.0.1:1", "--cookie", "c"], "no store in"),
        (["--node", "http://127.0.0.1:1", "--cookie", "c", "--poll", "0"], "--poll"),
    ]:
        assert run(["follow", "--store", store, *arguments]) == 2
        assert says in capsys.readouterr().err


def test_follow_once(tmp_path: Path, small_settings: None, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with gzip.open(data / "chain_shared1.jsonl.gz") as lines:
        head, *blocks = [json.loads(line) for line in lines]
    Store.create_genesis("regtest", tmp_path / "store")
    node = FakeNode(tmp_path)
    for block in blocks[:40]:
        node.chain.add_block(bytes.fromhex(block["block"]))
    arguments = [
        "--node",
        node.url,
        "--cookie",
        str(node.cookie),
        "--zmq",
        node.zmq,
        "--store",
        str(tmp_path / "store"),
    ]
    with in_a_thread(node):
        assert run(["follow", "--once", "--json", *arguments]) == 0
        last = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert (last["state"], last["height"], last["tip"]) == ("following", 40, blocks[39]["hash"])
        assert not (tmp_path / "store" / "follow.json").exists()
        node.network = "signet"
        assert run(["follow", "--once", *arguments]) == 2
        assert "is on signet, the store on regtest" in capsys.readouterr().err
    assert head["height"] == 130


def test_a_store_from_a_snapshot_becomes_ready(
    tmp_path: Path, datadir: Callable[[str], Path], data: Path, start_node: Callable[..., Any]
) -> None:
    info = json.loads((data / "regtest_datadir.info.json").read_text())
    folder = datadir("regtest_datadir.tar.gz")
    Store.create_from_snapshot(folder / "regtest" / "utxo.dat", tmp_path / "store")
    ours = start_node(tmp_path / "store")
    for question in (ours.tip, lambda: ours.collect_txs([]), lambda: ours.check_block(bytes(81))):
        with pytest.raises(NotReady, match="txcollection follow"):
            question()
    theirs = _node_of_datadir(tmp_path, folder)

    async def catch_up() -> None:
        async with NodeRpc(theirs.url, Login(cookie=theirs.cookie)) as rpc:
            await Follower(rpc, RayTarget(tmp_path / "store", rejoin=False)).run(once=True)

    with in_a_thread(theirs):
        asyncio.run(asyncio.wait_for(catch_up(), 60))
        assert (ours.tip_hash(), ours.tip().height) == (info["tip"], info["height"])
        assert ours.utxo_stats().hash_serialized_3 == info["hash_serialized_3"]
        following = mine_block(asyncio.run(theirs.tip()))
        assert ours.check_block(following).ok
        assert ours.collect_txs([]).make_template(ours.tip_hash()).ok
        theirs.chain.add_block(following)
        asyncio.run(asyncio.wait_for(catch_up(), 60))
    assert ours.tip().height == info["height"] + 1
    assert ours.utxo_stats().hash_serialized_3 == theirs.chain.utxo_hash()
    ours.close()
