"""Parameters of RPC methods: names, types, and Core's answers to calls that do not fit them (rpc/util.cpp,
rpc/server.cpp). Positions and names may be mixed as in Core: `{"args": [...], "name": ...}`.
"""

import binascii
import json
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from cluster.gateway.jsonrpc import INVALID_PARAMETER, MISC_ERROR, TYPE_ERROR, RpcError
from models.errors import DecodeError

__all__ = ["Method", "Parameter", "hash_of", "hex_bytes", "whole_number"]

_HEX64 = re.compile(r"[0-9a-fA-F]{64}")
_HEX = re.compile(r"[0-9a-fA-F]*")
_SHOWN = 80  # characters of a wrong value that are repeated to the client


def _type_name(value: Any) -> str:
    """As UniValue names it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, (int, float)):
        return "number"
    names: dict[type, str] = {str: "string", list: "array", dict: "object"}
    return names[type(value)]


@dataclass(frozen=True, slots=True)
class Parameter:
    """`type` is UniValue's name of it: string, number, bool, array or object."""

    name: str
    type: str
    about: str
    required: bool = True


@dataclass(frozen=True, slots=True)
class Method:
    """One RPC method: what it takes, what it says in `help`, and the coroutine function that answers a Call with it."""

    name: str
    handler: Callable[..., Awaitable[Any]]
    about: str
    parameters: tuple[Parameter, ...] = ()
    long_answer: bool = False  # megabytes of it

    @property
    def usage(self) -> str:
        """The method's line in the list of all."""
        shown = [p.name if p.required else f"( {p.name} )" for p in self.parameters]
        return " ".join([self.name, *shown])

    @property
    def help(self) -> str:
        """All that there is to say about it."""
        lines = [self.usage, "", self.about]
        if self.parameters:
            lines += ["", "Arguments:"]
        for number, p in enumerate(self.parameters, 1):
            need = "required" if p.required else "optional"
            lines.append(f"{number}. {p.name} ({p.type}, {need}) {p.about}")
        return "\n".join(lines) + "\n"

    def bind(self, params: list[Any] | dict[str, Any]) -> list[Any]:
        """One value for each parameter, None for what was left out.

        Raises RpcError as Core does: the help text for a wrong number of arguments, names that are not known, and a
        list of arguments of the wrong type.
        """
        values = self._in_order(params) if isinstance(params, dict) else list(params)
        least = sum(p.required for p in self.parameters)
        if not least <= len(values) <= len(self.parameters):
            raise RpcError(MISC_ERROR, self.help)
        values += [None] * (len(self.parameters) - len(values))
        wrong = {
            f"Position {number} ({p.name})": f"JSON value of type {_type_name(value)} is not of expected type {p.type}"
            for number, (p, value) in enumerate(zip(self.parameters, values, strict=True), 1)
            if _type_name(value) != p.type and (p.required or value is not None)
        }
        if wrong:
            raise RpcError(TYPE_ERROR, f"Wrong type passed:\n{json.dumps(wrong, indent=4)}")
        return values

    def _in_order(self, named: dict[str, Any]) -> list[Any]:
        rest = dict(named)
        values = rest.pop("args", [])
        if not isinstance(values, list):
            raise RpcError(INVALID_PARAMETER, "Parameter args must be an array")
        values = list(values)
        names = [p.name for p in self.parameters]
        for name in names[: len(values)]:
            if name in rest:
                text = f"Parameter {name} specified twice both as positional and named argument"
                raise RpcError(INVALID_PARAMETER, text)
        for name in rest:
            if name not in names:
                raise RpcError(INVALID_PARAMETER, f"Unknown named parameter {name[:_SHOWN]}")
        last = max((names.index(name) for name in rest), default=-1)
        values += [rest.get(name) for name in names[len(values) : last + 1]]
        return values


def hash_of(text: str, name: str) -> bytes:
    """32 bytes in internal order from display hex; Core's texts (`ParseHashV`) for what is none."""
    if _HEX64.fullmatch(text):
        return bytes.fromhex(text)[::-1]
    shown = text if len(text) <= _SHOWN else text[:_SHOWN] + "..."
    if len(text) != 64:
        raise RpcError(INVALID_PARAMETER, f"{name} must be of length 64 (not {len(text)}, for '{shown}')")
    raise RpcError(INVALID_PARAMETER, f"{name} must be hexadecimal string (not '{shown}')")


def hex_bytes(text: str, what: str) -> bytes:
    """Bytes of hex digits alone (Core: `IsHex`). Raises DecodeError saying what is wrong with the text."""
    try:
        return binascii.unhexlify(text)
    except (binascii.Error, ValueError):
        pass
    good = len(_HEX.match(text)[0])  # type: ignore[index]  # it always matches, if only nothing
    if good == len(text):
        raise DecodeError(f"{what} has an odd number of hex digits ({len(text)})")
    raise DecodeError(f"{what} is not hexadecimal: {text[good]!r} at position {good}")


def whole_number(value: Any, name: str, low: int, high: int) -> int:
    """An integer within bounds; Core's text (`UniValue::getInt`) for one that is not."""
    if isinstance(value, int) and low <= value <= high:
        return value
    raise RpcError(MISC_ERROR, f"JSON integer out of range ({name} must be from {low} to {high})")
