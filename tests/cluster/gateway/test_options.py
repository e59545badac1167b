"""Addresses to listen on, and which of them others can reach."""

import pytest

from cluster.gateway.options import GatewayOptions, is_loopback, parse_address
from models.errors import SettingsError


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("127.0.0.1:8332", ("127.0.0.1", 8332)),
        ("localhost:0", ("localhost", 0)),
        ("[::1]:65535", ("::1", 65535)),
        ("node-1.example:1", ("node-1.example", 1)),
    ],
)
def test_address(text: str, parsed: tuple[str, int]) -> None:
    assert parse_address(text) == parsed


@pytest.mark.parametrize("text", ["", "8332", ":8332", "127.0.0.1", "127.0.0.1:65536", "::1:8332", "a b:1", "x:-1"])
def test_no_address(text: str) -> None:
    with pytest.raises(SettingsError, match="must be HOST:PORT"):
        parse_address(text)


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("localhost.example.com", False),
    ],
)
def test_who_can_reach_it(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback
    GatewayOptions(host, 1, allow_remote=True).check()
    if not loopback:
        with pytest.raises(SettingsError, match="--rpc-allow-remote"):
            GatewayOptions(host, 1).check()


def test_url() -> None:
    assert GatewayOptions("::1", 8332).url == "http://[::1]:8332"
