"""Arguments of a method: by position, by name, mixed, missing, too many, of the wrong type; hashes, hex, integers."""

import asyncio
from typing import Any

import pytest

from cluster.gateway.arguments import Method, Parameter, hash_of, hex_bytes, whole_number
from cluster.gateway.jsonrpc import RpcError
from models.errors import DecodeError


async def nothing(*_: Any) -> None:
    await asyncio.sleep(0)


METHOD = Method(
    "echo",
    nothing,
    "Does nothing.",
    (
        Parameter("first", "string", "a text"),
        Parameter("second", "number", "a number"),
        Parameter("third", "bool", "a switch", required=False),
        Parameter("fourth", "array", "a list", required=False),
    ),
)


@pytest.mark.parametrize(
    ("params", "values"),
    [
        (["a", 1], ["a", 1, None, None]),
        (["a", 1.5, True, []], ["a", 1.5, True, []]),
        (["a", 1, None, [2]], ["a", 1, None, [2]]),
        ({"first": "a", "second": 1}, ["a", 1, None, None]),
        ({"second": 1, "fourth": [], "first": "a"}, ["a", 1, None, []]),
        ({"args": ["a"], "second": 1}, ["a", 1, None, None]),
        ({"args": ["a", 1]}, ["a", 1, None, None]),
    ],
)
def test_in_order(params: Any, values: list[Any]) -> None:
    assert METHOD.bind(params) == values


@pytest.mark.parametrize("params", [[], ["a"], ["a", 1, True, [], 5], {}, {"first": "a"}])
def test_wrong_number_of_arguments_is_answered_with_the_help(params: Any) -> None:
    with pytest.raises(RpcError) as caught:
        METHOD.bind(params)
    assert (caught.value.code, caught.value.message) == (-1, METHOD.help)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"fifth": 1}, "Unknown named parameter fifth"),
        (
            {"args": ["a"], "first": "b", "second": 1},
            "Parameter first specified twice both as positional and named argument",
        ),
        ({"args": "a"}, "Parameter args must be an array"),
    ],
)
def test_wrong_names(params: Any, message: str) -> None:
    with pytest.raises(RpcError) as caught:
        METHOD.bind(params)
    assert (caught.value.code, caught.value.message) == (-8, message)


def test_wrong_types_are_all_named() -> None:
    # Core: rpc/util.cpp, RPCHelpMan::HandleRequest
    with pytest.raises(RpcError) as caught:
        METHOD.bind([1, None, "x", {}])
    assert caught.value.code == -3
    assert caught.value.message == (
        "Wrong type passed:\n{\n"
        '    "Position 1 (first)": "JSON value of type number is not of expected type string",\n'
        '    "Position 2 (second)": "JSON value of type null is not of expected type number",\n'
        '    "Position 3 (third)": "JSON value of type string is not of expected type bool",\n'
        '    "Position 4 (fourth)": "JSON value of type object is not of expected type array"\n}'
    )


def test_help() -> None:
    assert METHOD.usage == "echo first second ( third ) ( fourth )"
    assert "3. third (bool, optional) a switch" in METHOD.help


def test_hash() -> None:
    assert hash_of("00" * 31 + "Ff", "txid") == b"\xff" + bytes(31)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "txid must be of length 64 (not 0, for '')"),
        ("ab", "txid must be of length 64 (not 2, for 'ab')"),
        ("g" * 64, f"txid must be hexadecimal string (not '{'g' * 64}')"),
    ],
)
def test_no_hash(text: str, message: str) -> None:
    # Core: rpc/util.cpp, ParseHashV
    with pytest.raises(RpcError) as caught:
        hash_of(text, "txid")
    assert (caught.value.code, caught.value.message) == (-8, message)


def test_hex() -> None:
    assert hex_bytes("", "it") == b""
    assert hex_bytes("00fF", "it") == b"\x00\xff"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0", "it has an odd number of hex digits (1)"),
        ("0x00", "it is not hexadecimal: 'x' at position 1"),
        ("00 00", "it is not hexadecimal: ' ' at position 2"),
        ("00\n", "it is not hexadecimal: '\\n' at position 2"),
        ("ü0", "it is not hexadecimal: 'ü' at position 0"),
        ("٣٣", "it is not hexadecimal: '٣' at position 0"),
    ],
)
def test_no_hex(text: str, message: str) -> None:
    with pytest.raises(DecodeError) as caught:
        hex_bytes(text, "it")
    assert str(caught.value) == message


@pytest.mark.parametrize("value", [-1, 5, 1.0, 2**70])
def test_number_out_of_range(value: Any) -> None:
    with pytest.raises(RpcError, match="JSON integer out of range") as caught:
        whole_number(value, "n", 0, 4)
    assert caught.value.code == -1
