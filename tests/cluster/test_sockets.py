"""Whom an embedded node listens to: every listening socket of its processes, Ray's among them, is on loopback."""

import ipaddress
import os
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest

from cluster.gateway.start import Gateway, start_gateway


@pytest.fixture(scope="module")
def gateway(make_store: Callable[..., Any], start_node: Callable[..., Any]) -> Iterator[tuple[Any, Gateway]]:
    node = start_node(make_store("corpus/regtest_datadir.tar.gz"))
    with start_gateway(node) as gateway:
        yield node, gateway
    node.close()


def listening() -> dict[tuple[str, int], str]:
    """Address and port of every TCP socket that listens, and UDP socket, of this process and all below it."""
    found: dict[tuple[str, int], str] = {}
    here = psutil.Process(os.getpid())
    for process in [here, *here.children(recursive=True)]:
        try:
            name = process.name()
            for socket in process.net_connections("inet"):
                udp = socket.status == psutil.CONN_NONE and not socket.raddr
                if socket.status == psutil.CONN_LISTEN or udp:
                    found[socket.laddr.ip, socket.laddr.port] = name
        except psutil.NoSuchProcess:  # it ended between two looks
            continue
    return found


def is_loopback(text: str) -> bool:
    """Whether only this machine reaches an address, which may be one of IPv4 written as one of IPv6."""
    address = ipaddress.ip_address(text)
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


@pytest.mark.parametrize(("text", "good"), [("::ffff:127.0.0.1", True), ("::", False), ("0.0.0.0", False)])
def test_what_is_loopback(text: str, good: bool) -> None:
    assert is_loopback(text) is good


def test_every_socket_of_an_embedded_node_is_on_loopback(gateway: tuple[Any, Gateway]) -> None:
    node, served = gateway
    below = {child.pid for child in psutil.Process(os.getpid()).children(recursive=True)}
    assert set(node.pids().values()) <= below, "a process of the node that is not looked at"
    found = listening()
    assert (served.host, served.port) in found
    assert any(name.startswith("gcs_server") for name in found.values()), "Ray's own were looked at"
    assert any(name.startswith("raylet") for name in found.values())
    assert {place: name for place, name in found.items() if not is_loopback(place[0])} == {}
