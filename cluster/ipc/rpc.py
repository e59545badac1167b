"""`Rpc`: the few JSON-RPC methods that Stratum V2 servers ask for over this socket, with Core's answers.

They need the header of the tip and the difficulty of the next block; everything else is `Method not found`.
"""

import inspect
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from cluster.gateway.jsonrpc import METHOD_NOT_FOUND, MISC_ERROR, TYPE_ERROR, Envelope, RpcError, describe, dump, load
from cluster.ipc.node import Node
from cluster.ipc.schemas import rpc
from cluster.ipc.session import Session
from models.consensus.pow import target_from_compact
from models.errors import ClientError, TxCollectionError
from models.wire.hashes import from_display, to_display

__all__ = ["Rpc", "execute"]

NOT_FOUND = -5  # Core: RPC_INVALID_ADDRESS_OR_KEY
OUT_OF_RANGE = -8  # Core: RPC_INVALID_PARAMETER
EASIEST = 0x1D00FFFF  # difficulty 1
CORE_NAMES = {"testnet3": "test"}  # of networks, where they differ from ours


class Rpc(rpc.Rpc.Server):
    """Carries out requests of one client."""

    def __init__(self, session: Session):
        self._session = session

    def executeRpc_context(self, context: Any) -> Coroutine[Any, Any, None]:
        """A JSON text for a JSON text. Mistakes are answered, never raised."""
        request = context.params.request

        async def work() -> None:
            context.results.result = await execute(self._session.node, request)

        return self._session.carry_out(context, work)


async def execute(node: Node, request: str) -> str:
    """The reply to one request."""
    envelope = Envelope()
    try:
        envelope.parse(load(request.encode()))
        method = _METHODS.get(envelope.method)
        if method is None:
            raise RpcError(METHOD_NOT_FOUND, "Method not found")
        if not isinstance(envelope.params, list):
            raise RpcError(TYPE_ERROR, "named parameters are not taken here: give them in order")
        try:
            bound = inspect.signature(method).bind(node, *envelope.params)
        except TypeError:
            raise RpcError(MISC_ERROR, f"{envelope.method}: wrong number of parameters") from None
        reply = envelope.reply(await method(*bound.args))
    except RpcError as error:
        reply = envelope.reply(error=error)
    except TxCollectionError as error:
        reply = envelope.reply(error=describe(error))
    return dump(reply).decode().strip()


def _difficulty(bits: int) -> float:
    """Core: `GetDifficulty`."""
    target, usable = target_from_compact(bits)
    return target_from_compact(EASIEST)[0] / target if usable else 0.0


def _work_fields(bits: int) -> dict[str, Any]:
    return {
        "bits": f"{bits:08x}",
        "difficulty": _difficulty(bits),
        "target": f"{target_from_compact(bits)[0]:064x}",
    }


async def _getbestblockhash(node: Node) -> str:
    return to_display(node.tips.tip().hash)


async def _getblockcount(node: Node) -> int:
    return node.tips.tip().height


async def _getblockhash(node: Node, height: Any) -> str:
    if not isinstance(height, int) or isinstance(height, bool):
        raise RpcError(TYPE_ERROR, "JSON value is not an integer as expected")
    try:
        return to_display((await node.header_at(height)).hash)
    except ClientError:
        raise RpcError(OUT_OF_RANGE, "Block height out of range") from None


async def _getblockheader(node: Node, block_hash: Any, verbose: Any = True) -> Any:
    if not isinstance(block_hash, str):
        raise RpcError(TYPE_ERROR, "JSON value is not a string as expected")
    name = from_display(block_hash, "hash")
    tip = node.tips.tip()
    info = await node.peers.ask("chainstate", "block_info", name)
    header = await node.header_at(info["height"]) if info is not None and info["active"] else None
    if header is None or header.hash != name:
        raise RpcError(NOT_FOUND, "Block not found")
    if not verbose:
        return header.serialize().hex()
    height = info["height"]
    return {
        "hash": block_hash.lower(),
        "confirmations": tip.height - height + 1,
        "height": height,
        "version": header.version,
        "versionHex": f"{header.version & 0xFFFFFFFF:08x}",
        "merkleroot": to_display(header.merkle_root),
        "time": header.time,
        "nonce": header.nonce,
        **_work_fields(header.bits),
        **({"previousblockhash": to_display(header.prev_hash)} if height else {}),
    }


async def _getmininginfo(node: Node) -> dict[str, Any]:
    context = await node.context()
    header = await node.tip_header()
    mempool = await node.peers.ask("mempool", "wtxids")
    bits = context.required_bits(context.template_time(node.now()))
    return {
        "blocks": context.tip.height,
        **_work_fields(header.bits),
        "pooledtx": len(mempool),
        "chain": CORE_NAMES.get(node.params.name, node.params.name),
        "next": {"height": context.height, **_work_fields(bits)},
        "warnings": [],
    }


_METHODS: dict[str, Callable[..., Awaitable[Any]]] = {
    "getbestblockhash": _getbestblockhash,
    "getblockcount": _getblockcount,
    "getblockhash": _getblockhash,
    "getblockheader": _getblockheader,
    "getmininginfo": _getmininginfo,
}
