"""Envelopes without a server: fields, versions, ids, and Core's codes and texts for what is no request
(rpc/request.cpp, and what test/functional/interface_rpc.py expects of them)."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.gateway.jsonrpc import Envelope, RpcError, describe, dump, http_status, load
from models.errors import Busy, ClientError, CollectionLost, DecodeError, InternalError, NotReady, TxCollectionError


def parsed(request: Any) -> Envelope:
    envelope = Envelope()
    envelope.parse(request)
    return envelope


def test_version_1_answers_with_both_fields() -> None:
    envelope = parsed({"method": "x", "id": 7})
    assert envelope.reply("good") == {"result": "good", "error": None, "id": 7}
    bad = envelope.reply(error=RpcError(-8, "no"))
    assert bad == {"result": None, "error": {"code": -8, "message": "no"}, "id": 7}


def test_version_2_answers_with_one_field() -> None:
    envelope = parsed({"jsonrpc": "2.0", "method": "x", "id": "a"})
    assert envelope.reply(None) == {"jsonrpc": "2.0", "result": None, "id": "a"}
    bad = envelope.reply(error=RpcError(-8, "no"))
    assert bad == {"jsonrpc": "2.0", "error": {"code": -8, "message": "no"}, "id": "a"}


@pytest.mark.parametrize("version", [{}, {"jsonrpc": None}, {"jsonrpc": "1.0"}, {"version": "1.1"}])
def test_what_counts_as_version_1(version: dict[str, Any]) -> None:
    assert not parsed({"method": "x", "id": 1} | version).v2


@pytest.mark.parametrize(
    ("request_", "notification"),
    [
        ({"jsonrpc": "2.0", "method": "x"}, True),
        ({"jsonrpc": "2.0", "method": "x", "id": None}, False),
        ({"jsonrpc": "1.0", "method": "x"}, False),
        ({"method": "x"}, False),
    ],
)
def test_notification(request_: dict[str, Any], notification: bool) -> None:
    assert parsed(request_).is_notification is notification


def test_an_id_that_is_left_out_is_left_out_of_the_answer() -> None:
    assert "id" not in parsed({"method": "x"}).reply(1)
    assert parsed({"method": "x", "id": None}).reply(1)["id"] is None


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (7, "Invalid Request object"),
        (None, "Invalid Request object"),
        ([], "Invalid Request object"),
        ({"jsonrpc": 2, "method": "x"}, "jsonrpc field must be a string"),
        ({"jsonrpc": "3.0", "method": "x"}, "JSON-RPC version not supported"),
        ({}, "Missing method"),
        ({"method": None}, "Missing method"),
        ({"method": 5}, "Method must be a string"),
        ({"method": "x", "params": "y"}, "Params must be an array or object"),
        ({"method": "x", "params": 0}, "Params must be an array or object"),
    ],
)
def test_no_request(request_: Any, message: str) -> None:
    with pytest.raises(RpcError) as caught:
        parsed(request_)
    assert (caught.value.code, caught.value.message) == (-32600, message)


def test_a_mistake_half_way_is_answered_with_id_and_version() -> None:
    envelope = Envelope()
    with pytest.raises(RpcError):
        envelope.parse({"jsonrpc": "2.0", "id": 3})
    assert envelope.reply(error=RpcError(-32600, "x"))["id"] == 3
    assert envelope.v2


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"this is bad",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"a": NaN}',
        b"[Infinity]",
        b"9" * 10_000,
        b"{} {}",
        b"'x'",
    ],
)
def test_no_json(body: bytes) -> None:
    with pytest.raises(RpcError) as caught:
        load(body)
    assert (caught.value.code, caught.value.message) == (-32700, "Parse error")


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.text(max_size=10)
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)


@given(JSON)
def test_json_goes_round(value: Any) -> None:
    assert load(dump(value)) == value


@given(JSON)
def test_any_json_is_a_request_or_is_refused(value: Any) -> None:
    try:
        envelope = parsed(value)
    except RpcError as error:
        assert error.code == -32600
    else:
        assert isinstance(envelope.method, str)


@given(st.binary(max_size=64))
def test_any_bytes_are_json_or_are_refused(body: bytes) -> None:
    try:
        value = load(body)
    except RpcError as error:
        assert error.code == -32700
    else:
        json.dumps(value, allow_nan=False)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ClientError("x"), -8),
        (DecodeError("x"), -22),
        (Busy("x"), -32005),
        (CollectionLost("x"), -32001),
        (NotReady("x"), -28),
        (InternalError("x"), -32603),
    ],
)
def test_codes_of_errors(error: TxCollectionError, code: int) -> None:
    assert (describe(error).code, describe(error).message) == (code, "x")


@pytest.mark.parametrize(
    ("code", "status"), [(-32600, 400), (-32601, 404), (-32700, 500), (-8, 500), (-1, 500), (-32005, 503)]
)
def test_http_status_of_version_1(code: int, status: int) -> None:
    # Core: httprpc.cpp, JSONErrorReply; 503 for busy is what Core answers when its work queue is full
    assert http_status(code) == status
