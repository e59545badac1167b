"""Input lines to answers: block hex and collection requests, with Core's error codes for what cannot be answered.

Pure functions over the client facade: nothing here reads files, prints or knows the command line.
"""

import json
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from models.errors import Busy, ClientError, CollectionLost, DecodeError, TxCollectionError

if TYPE_CHECKING:
    from cluster.client import Cluster, Collection
    from models.consensus.verdict import Verdict

__all__ = [
    "HowToCheck",
    "answer_collection",
    "answer_proposal",
    "block_of_hex",
    "check_proposal",
    "error_answer",
    "parse_line",
]

# Core: rpc/protocol.h
RPC_PARSE_ERROR = -32700
RPC_INTERNAL_ERROR = -32603
RPC_TYPE_ERROR = -3
RPC_INVALID_PARAMETER = -8
RPC_DESERIALIZATION_ERROR = -22
RPC_VERIFY_ERROR = -25

MISSING_DATA = "Missing data String key for proposal"  # Core: rpc/mining.cpp, getblocktemplate
DECODE_FAILED = "Block decode failed"

HEX_DIGITS = frozenset("0123456789abcdefABCDEF")


class RequestError(ClientError):
    """A request that cannot be answered, with the code that Core gives it."""

    def __init__(self, message: str, code: int = RPC_INVALID_PARAMETER):
        super().__init__(message)
        self.code = code

    def __reduce__(self) -> tuple[type, tuple[str, int]]:
        return type(self), (str(self), self.code)


def error_answer(error: TxCollectionError) -> dict[str, Any]:
    """The error object of an answer line: Core's code where Core has one."""
    if isinstance(error, RequestError):
        code = error.code
    elif isinstance(error, DecodeError):
        code = RPC_DESERIALIZATION_ERROR
    elif isinstance(error, ClientError):
        code = RPC_INVALID_PARAMETER
    elif isinstance(error, Busy | CollectionLost):
        code = RPC_VERIFY_ERROR
    else:
        code = RPC_INTERNAL_ERROR
    return {"code": code, "message": str(error)}


def _bytes_of_hex(text: str, what: str) -> bytes:
    """Bytes of hex digits alone, as Core's IsHex wants them. Raises DecodeError saying what is wrong with the text."""
    try:
        raw = bytes.fromhex(text)
    except ValueError:
        raw = b""
    if len(raw) * 2 == len(text):  # fromhex skips white space, which Core refuses
        return raw
    wrong = next((at for at, digit in enumerate(text) if digit not in HEX_DIGITS), None)
    if wrong is not None:
        raise DecodeError(f"{what} is not hexadecimal: {text[wrong]!r} at position {wrong}")
    raise DecodeError(f"{what} has an odd number of hex digits ({len(text)})")


def block_of_hex(text: str) -> bytes:
    """A block's bytes. Raises DecodeError for text that is empty or no hex."""
    if not text:
        raise DecodeError("the block is empty")
    return _bytes_of_hex(text, "the block")


def parse_line(line: bytes) -> dict[str, Any]:
    """The object on one input line. Raises RequestError for anything else."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"Parse error: not a line of JSON ({error})", RPC_PARSE_ERROR) from None
    if not isinstance(value, dict):
        raise RequestError(f"Parse error: expected an object, got {type(value).__name__}", RPC_PARSE_ERROR)
    return value


@dataclass(frozen=True, slots=True)
class HowToCheck:
    """What a command line says of a check; None leaves it to the node."""

    now: int | None = None  # Unix time to check against
    script_mode: str | None = None


AS_THE_NODE = HowToCheck()


def check_proposal(node: "Cluster", raw: bytes, how: HowToCheck) -> "Verdict":
    """Core's proposal call: no proof of work, merkle root checked, blocks in the index answered. Raises DecodeError."""
    return node.check_block(raw, proposal=True, now=how.now, script_mode=how.script_mode)


def answer_proposal(node: "Cluster", request: dict[str, Any], how: HowToCheck = AS_THE_NODE) -> dict[str, Any]:
    """The answer to `{"name", "block"}`: a verdict, or an error object with Core's code and text."""
    name = request.get("name")
    block = request.get("block")
    if not isinstance(block, str):
        return {"name": name, "error": {"code": RPC_TYPE_ERROR, "message": MISSING_DATA}}
    try:
        verdict = check_proposal(node, block_of_hex(block), how)
    except DecodeError:
        return {"name": name, "error": {"code": RPC_DESERIALIZATION_ERROR, "message": DECODE_FAILED}}
    except TxCollectionError as error:
        return {"name": name, "error": error_answer(error)}
    return {"name": name, **verdict_fields(verdict)}


def verdict_fields(verdict: "Verdict") -> dict[str, Any]:
    """What answer lines say of a verdict."""
    fields = verdict.to_dict()
    return {key: fields[key] for key in ("ok", "reason", "debug", "offender")}


def _texts(request: dict[str, Any], key: str) -> list[str]:
    values = request.get(key, [])
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise RequestError(f"{key} must be a list of strings", RPC_TYPE_ERROR)
    return values


def _optional_text(request: dict[str, Any], key: str) -> str | None:
    value = request.get(key)
    if value is not None and not isinstance(value, str):
        raise RequestError(f"{key} must be a string or null", RPC_TYPE_ERROR)
    return value


def _supplies(request: dict[str, Any]) -> list[list[str | None]]:
    supplies = request.get("supply") or []
    if not isinstance(supplies, list) or not all(isinstance(supply, list) for supply in supplies):
        raise RequestError("supply must be a list of lists of transactions", RPC_TYPE_ERROR)
    for supply in supplies:
        if not all(tx is None or isinstance(tx, str) for tx in supply):
            raise RequestError("a supplied transaction must be a string of hex digits or null", RPC_TYPE_ERROR)
    return supplies


def _supply(collection: "Collection", transactions: list[str | None]) -> str | None:
    """One call of add_missing_txs; the error's text, or None if it was taken."""
    try:
        raws = [_bytes_of_hex(tx or "", f"transaction {at}") for at, tx in enumerate(transactions)]
        collection.add_missing_txs(raws)
    except ClientError as error:
        return str(error)
    return None


def answer_collection(node: "Cluster", request: dict[str, Any], how: HowToCheck = AS_THE_NODE) -> dict[str, Any]:
    """The answer to `{"name", "wtxids", "coinbase", "prevhash", "supply"}`.

    `unknown` are the positions unknown at the start, `errors` has the text (or null) of each supply call; the verdict
    follows. Without `prevhash` the tip is meant, without `coinbase` a dummy that claims the subsidy only.
    """
    answer: dict[str, Any] = {"name": request.get("name")}
    try:
        wtxids, supplies = _texts(request, "wtxids"), _supplies(request)
        prevhash, coinbase = _optional_text(request, "prevhash"), _optional_text(request, "coinbase")
        coinbase_raw = _bytes_of_hex(coinbase, "the coinbase") if coinbase else None
        with closing(node.collect_txs(wtxids)) as collection:
            answer["unknown"] = collection.unknown_tx_pos()
            answer["errors"] = [_supply(collection, supply) for supply in supplies]
            prevhash = prevhash or node.tip_hash()
            verdict = collection.make_template(prevhash, coinbase_raw, now=how.now, script_mode=how.script_mode)
    except TxCollectionError as error:
        return answer | {"error": error_answer(error)}
    return answer | {"kind": verdict.kind.value} | verdict_fields(verdict)
