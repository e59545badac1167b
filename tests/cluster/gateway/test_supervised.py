"""The gateway among the node's actors: replaced where it was, told where others went, and closed with the node."""

import os
import signal
import socket
from collections.abc import Callable
from typing import Any

import pytest

from cluster.gateway.start import start_gateway
from models.errors import SettingsError, StoreError
from tests.actors.watching import until
from tests.cluster.gateway.conftest import Connection, Served
from tests.cluster.gateway.test_collections import VALID, open_of


def answers(served: Served) -> bool:
    try:
        client = served.connect()
        good = client.call("getblockcount") == 125
        client.close()
    except OSError:
        return False
    return good


def pid_of(node: Any, kind: str) -> int:
    return next(pid for name, pid in node.pids().items() if name.startswith(f"{kind}-"))


@pytest.mark.cluster
def test_life_of_a_gateway(serve_own: Callable[..., Served]) -> None:
    """One node for the whole of it: idle collections go; the gateway dies and is back at its port with its cookie, and
    what its clients held is freed; other actors die and it asks their replacements; it is closed and opened again."""
    served = serve_own(collection_idle_s=1)
    node, gateway = served.node, served.gateway
    client = served.connect()
    idle = client.call("collecttxs", VALID["wtxids"])["collection"]
    until(lambda: open_of(node) == 0, "the idle collection is closed")
    assert client.refusal("unknowntxpos", idle)[0] == -32001

    port, cookie = gateway.port, gateway.cookie_file.read_text()
    client.call("collecttxs", VALID["wtxids"])
    os.kill(pid_of(node, "gateway"), signal.SIGKILL)
    until(lambda: answers(served), "the gateway is replaced at its port")
    assert (gateway.port, gateway.cookie_file.read_text()) == (port, cookie)
    assert node.stats()["supervisor"]["replaced"]["gateway"] == 1
    until(lambda: open_of(node) == 0, "what its clients held is freed")

    client = served.connect()
    opened = client.call("collecttxs", VALID["wtxids"])
    os.kill(pid_of(node, "collection"), signal.SIGKILL)
    code, text = client.refusal("addmissingtxs", opened["collection"], [])
    assert (code, text) == (-32001, "the actor that held this collection died; declare it again")
    opened = client.call("collecttxs", VALID["wtxids"])
    os.kill(pid_of(node, "template"), signal.SIGKILL)
    missing = [raw for supply in VALID["supply"] for raw in supply]
    verdict = client.call("maketemplate", opened["collection"], VALID["prevhash"], VALID["coinbase"], missing)
    assert verdict["ok"]

    with pytest.raises(StoreError, match="has a gateway already"):
        start_gateway(node)
    gateway.close()
    gateway.close()
    assert not gateway.cookie_file.exists()
    assert not any(name.startswith("gateway") for name in node.stats())
    with pytest.raises(OSError):
        client.call("getblockcount")
    with start_gateway(node, port=port) as again:
        assert answers(Served(node, again))
        assert again.cookie_file.read_text() != cookie


@pytest.mark.cluster
def test_port_in_use_is_an_error_and_leaves_nothing_behind(own_node: Callable[..., Any]) -> None:
    node = own_node()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SettingsError, match=f"cannot listen on 127.0.0.1:{port}: .*[Aa]ddress already in use"):
            start_gateway(node, port=port)
    assert not any(name.startswith("gateway") for name in node.stats())

    with start_gateway(node, port=port) as gateway:
        client = Connection(gateway)
        assert client.call("stop") == "txcollection stopping"
        until(lambda: not (node.store / "node.json").exists(), "the node says that it is gone")
        until(lambda: gone(gateway), "the port is free")
    assert not (node.store / ".cookie").exists()


def gone(gateway: Any) -> bool:
    try:
        socket.create_connection((gateway.host, gateway.port), timeout=5).close()
    except OSError:
        return True
    return False


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"host": "0.0.0.0"}, "reachable from other machines"),
        ({"users": ["x"]}, "must look like user:salt"),
        ({"cookie": False}, "nobody could call"),
        ({"log": "/nosuch/dir/log"}, "the declaration log /nosuch/dir/log cannot be written"),
        ({"host": "256.1.1.1", "allow_remote": True}, "cannot listen on 256.1.1.1"),
    ],
)
def test_options_that_do_not_fit(corpus_node: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        start_gateway(corpus_node, **options)
    assert not any(name.startswith("gateway") for name in corpus_node.stats())
