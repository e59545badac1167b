"""Every recorded proposal over HTTP, through a client that was not written here, gets the answer that a node gave, and
the one that `Cluster` gives."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from bitcoinrpc.authproxy import JSONRPCException

from models.errors import DecodeError
from tests.cluster.gateway.conftest import Connection, Served

DECODE_FAILED = {"code": -22, "message": "Block decode failed"}
MISSING_DATA = {"code": -3, "message": "Missing data String key for proposal"}


@pytest.fixture(scope="module")
def proposals(data: Path) -> list[dict[str, Any]]:
    with gzip.open(data / "corpus" / "proposals.jsonl.gz", "rt") as file:
        return [json.loads(line) for line in file]


def recorded(answer: Any) -> Any:
    """A reason without the script error in brackets, an error object of the RPC, or None."""
    if isinstance(answer, dict):
        return DECODE_FAILED if answer["rpc_error"] == -22 else MISSING_DATA
    return answer.split(" (")[0] if answer and answer.startswith("block-script") else answer


def proposed(proxy: Any, block: str | None, **more: Any) -> Any:
    request = {"mode": "proposal", **({} if block is None else {"data": block}), **more}
    try:
        return proxy.getblocktemplate(request)
    except JSONRPCException as error:
        return error.error


def through_cluster(node: Any, block: str | None) -> Any:
    if block is None:
        return MISSING_DATA
    try:
        return node.check_block(bytes.fromhex(block), proposal=True).reason
    except (ValueError, DecodeError):
        return DECODE_FAILED


def test_all_of_them(served: Served, proposals: list[dict[str, Any]]) -> None:
    proxy = served.proxy()
    wrong, valid = [], 0
    for case in proposals:
        answer = proposed(proxy, case["block"])
        valid += answer is None
        if answer != recorded(case["par2"]) or answer != through_cluster(served.node, case["block"]):
            wrong.append((case["name"], answer, case["par2"]))
    assert wrong == []
    assert (len(proposals), valid) == (495, 182)


def test_with_scripts_checked_in_line(served: Served, proposals: list[dict[str, Any]]) -> None:
    """Those whose first reason depends on script threads, and as many others."""
    differing = [case for case in proposals if case["par1"] != case["par2"]]
    proxy = served.proxy()
    sample = differing + proposals[:: len(proposals) // 12]
    answers = [(case["name"], proposed(proxy, case["block"], script_mode="inline")) for case in sample]
    assert answers == [(case["name"], recorded(case["par1"])) for case in sample]
    assert len(differing) == 6


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        ({"mode": "proposal"}, (-3, "Missing data String key for proposal")),
        ({"mode": "proposal", "data": None}, (-3, "Missing data String key for proposal")),
        ({"mode": "proposal", "data": 5}, (-3, "Missing data String key for proposal")),
        ({"mode": "proposal", "data": ""}, (-22, "Block decode failed")),
        ({"mode": "proposal", "data": "00"}, (-22, "Block decode failed")),
        ({"mode": "proposal", "data": "xyz"}, (-22, "Block decode failed")),
        ({"mode": "nosuch"}, (-8, "Invalid mode")),
        ({"mode": 1}, (-8, "Invalid mode")),
        ({"mode": "proposal", "data": "00", "script_mode": "x"}, (-8, "script_mode must be deferred or inline")),
        (
            {},
            (-8, 'getblocktemplate must be called with the segwit rule set (call with {"rules": ["segwit"]})'),
        ),
    ],
)
def test_mistakes(connection: Connection, request_: dict[str, Any], error: tuple[int, str]) -> None:
    answer = connection.ask("getblocktemplate", request_)
    assert (answer.status, answer.error) == (500, error)


def test_without_a_request_the_help_is_the_error(connection: Connection) -> None:
    code, text = connection.refusal("getblocktemplate")
    assert code == -1
    assert text.startswith("getblocktemplate template_request")
