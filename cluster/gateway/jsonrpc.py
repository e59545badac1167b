"""Envelopes of JSON-RPC 1.0 and 2.0 with the codes, texts and HTTP statuses of Bitcoin Core (rpc/request.cpp,
rpc/protocol.h, httprpc.cpp). Pure functions: nothing here knows a method or a socket.

The two versions differ in how errors travel: 1.0 puts them into the HTTP status too and always answers with both
`result` and `error`; 2.0 answers 200 with one of the two, and not at all to a request without an id.
"""

import json
import math
from typing import Any

from models.errors import Busy, ClientError, CollectionLost, DecodeError, NotReady, TxCollectionError

__all__ = [
    "BUSY",
    "DESERIALIZATION_ERROR",
    "INTERNAL_ERROR",
    "INVALID_PARAMETER",
    "INVALID_REQUEST",
    "IN_WARMUP",
    "METHOD_NOT_FOUND",
    "MISC_ERROR",
    "NO_SUCH_COLLECTION",
    "PARSE_ERROR",
    "TYPE_ERROR",
    "VERIFY_ERROR",
    "Envelope",
    "RpcError",
    "describe",
    "dump",
    "http_status",
    "load",
]

# Core: rpc/protocol.h
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INTERNAL_ERROR = -32603
PARSE_ERROR = -32700
MISC_ERROR = -1
TYPE_ERROR = -3
INVALID_PARAMETER = -8
DESERIALIZATION_ERROR = -22
VERIFY_ERROR = -25
IN_WARMUP = -28

# Ours, from the range that JSON-RPC 2.0 leaves to servers
NO_SUCH_COLLECTION = -32001
BUSY = -32005

_MAX_DIGITS = 400  # of a number; beyond this Python's conversion becomes expensive
_MAX_DEPTH = 512  # of lists and objects in each other (Core: MAX_JSON_DEPTH, univalue_read.cpp)


class RpcError(Exception):
    """An error that a client is told: a code of `rpc/protocol.h` and a text."""

    def __init__(self, code: int, message: str):
        super().__init__(message)
        self.code = code
        self.message = message

    def __reduce__(self) -> tuple[type, tuple[int, str]]:
        return type(self), (self.code, self.message)


def describe(error: TxCollectionError) -> RpcError:
    """Core's code for an error of ours, with its text unchanged."""
    if isinstance(error, DecodeError):
        code = DESERIALIZATION_ERROR
    elif isinstance(error, ClientError):
        code = INVALID_PARAMETER
    elif isinstance(error, Busy):
        code = BUSY
    elif isinstance(error, CollectionLost):
        code = NO_SUCH_COLLECTION
    elif isinstance(error, NotReady):
        code = IN_WARMUP
    else:
        code = INTERNAL_ERROR
    return RpcError(code, str(error))


def http_status(code: int) -> int:
    """HTTP status that goes with an error under JSON-RPC 1.0, and with an envelope that is no request under 2.0."""
    return {INVALID_REQUEST: 400, METHOD_NOT_FOUND: 404, BUSY: 503}.get(code, 500)


def _number(digits: str) -> int:
    if len(digits) > _MAX_DIGITS:
        raise ValueError("a number is too long")
    return int(digits)


def _fraction(digits: str) -> float:
    value = float(digits) if len(digits) <= _MAX_DIGITS else math.inf
    if math.isinf(value):
        raise ValueError("a number is too long, or too large to be sent back")
    return value


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def load(body: bytes) -> Any:
    """The JSON value of a request's body. Raises RpcError with Core's text for anything else."""
    try:
        value = json.loads(body.decode("utf-8"), parse_int=_number, parse_float=_fraction, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise RpcError(PARSE_ERROR, "Parse error") from None
    if body.count(b"[") + body.count(b"{") > _MAX_DEPTH and _is_too_deep(value):
        raise RpcError(PARSE_ERROR, "Parse error")
    return value


def _is_too_deep(value: Any) -> bool:
    """Whether it goes on below the depth that Core reads; what does not can also be written in any reply."""
    level = [value]
    for _ in range(_MAX_DEPTH):
        below: list[Any] = []
        for one in level:
            if isinstance(one, dict):
                below += one.values()
            elif isinstance(one, list):
                below += one
        level = [one for one in below if isinstance(one, (dict, list))]
        if not level:
            return False
    return True


def dump(value: Any) -> bytes:
    """One line of JSON."""
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"


class Envelope:
    """One request. Made empty and filled by `parse`, so that a mistake half-way is answered with the right id."""

    __slots__ = ("has_id", "id", "method", "params", "v2")

    def __init__(self) -> None:
        self.id: Any = None
        self.has_id = True
        self.v2 = False
        self.method = ""
        self.params: list[Any] | dict[str, Any] = []

    def parse(self, request: Any) -> None:
        """Takes the fields of a request in Core's order. Raises RpcError (INVALID_REQUEST) with Core's text."""
        if not isinstance(request, dict):
            raise RpcError(INVALID_REQUEST, "Invalid Request object")
        self.has_id = "id" in request
        self.id = request.get("id")
        version = request.get("jsonrpc")
        if version is not None:
            if not isinstance(version, str):
                raise RpcError(INVALID_REQUEST, "jsonrpc field must be a string")
            if version not in ("1.0", "2.0"):
                raise RpcError(INVALID_REQUEST, "JSON-RPC version not supported")
            self.v2 = version == "2.0"
        method = request.get("method")
        if method is None:
            raise RpcError(INVALID_REQUEST, "Missing method")
        if not isinstance(method, str):
            raise RpcError(INVALID_REQUEST, "Method must be a string")
        self.method = method
        params = request.get("params")
        if params is None:
            params = []
        if not isinstance(params, (list, dict)):
            raise RpcError(INVALID_REQUEST, "Params must be an array or object")
        self.params = params

    @property
    def is_notification(self) -> bool:
        """Whether nobody waits for an answer."""
        return self.v2 and not self.has_id

    def reply(self, result: Any = None, error: RpcError | None = None) -> dict[str, Any]:
        """The answer's object (Core: `JSONRPCReplyObj`)."""
        fields: dict[str, Any] = {"jsonrpc": "2.0"} if self.v2 else {}
        if error is None:
            fields["result"] = result
            if not self.v2:
                fields["error"] = None
        else:
            if not self.v2:
                fields["result"] = None
            fields["error"] = {"code": error.code, "message": error.message}
        if self.has_id:
            fields["id"] = self.id
        return fields
