"""RPC methods about blocks and the chain: proposals and templates, submission, the tip, coins and the mempool.

Answers have Core's shapes; what we do not know is left out rather than made up.
"""

import time
from typing import Any

from cluster.declaration_log import verdict_fields
from cluster.gateway.arguments import Method, Parameter, hash_of, hex_bytes, whole_number
from cluster.gateway.calls import Call, off_loop
from cluster.gateway.jsonrpc import (
    DESERIALIZATION_ERROR,
    INVALID_PARAMETER,
    TYPE_ERROR,
    VERIFY_ERROR,
    RpcError,
)
from cluster.gateway.templates import check_rules, template_answer
from models.consensus.context import BlockContext
from models.consensus.pow import target_from_compact
from models.errors import Busy, ClientError, DecodeError, NotReady, TxCollectionError
from models.messages import pack_tip
from models.wire.hashes import to_display
from models.wire.transaction import decode_transaction

__all__ = ["CHAIN_METHODS"]

DECODE_FAILED = "Block decode failed"
#: Core's names of networks (util/chaintype.cpp)
CHAIN_NAMES = {"testnet3": "test"}
MAX_TIP_AGE = 24 * 3600  # seconds; with an older tip Core says that it is in initial block download
COIN = 100_000_000  # satoshis


# Proposals and templates ------------------------------------------------------------------------------------------


async def getblocktemplate(call: Call, request: dict[str, Any]) -> Any:
    """Core: rpc/mining.cpp, in its order."""
    mode = request.get("mode", "template")
    if mode is None:
        mode = "template"
    if mode == "proposal":
        return await _propose(call, request)
    if mode != "template":
        raise RpcError(INVALID_PARAMETER, "Invalid mode")
    house = call.house
    context: BlockContext = await house.peers.ask("chainstate", "context")
    check_rules(request, context.signet_challenge is not None)
    for _ in range(5):
        kind, reason, _, _, _, template, _ = await house.peers.ask("template", "assemble", None)
        if template is None:
            raise RpcError(VERIFY_ERROR, f"the node's own template is {kind}: {reason}")
        if template[0][4:36] == context.tip.hash:
            return await off_loop(len(template[6]), template_answer, template, context)
        context = await house.peers.ask("chainstate", "context")
    raise Busy("the tip changes faster than a template can be made; ask again")


async def _propose(call: Call, request: dict[str, Any]) -> str | None:
    data = request.get("data")
    if not isinstance(data, str):
        raise RpcError(TYPE_ERROR, "Missing data String key for proposal")
    begun = time.perf_counter()
    house = call.house
    raw = await _block_of_hex(data)
    mode = script_mode_of(request.get("script_mode"))
    try:
        client = f"{house.client}/{call.session().label}"
        packed = await house.peers.ask("template", "check_block", raw, False, True, True, None, mode, client)
    except DecodeError:
        raise RpcError(DESERIALIZATION_ERROR, DECODE_FAILED) from None
    except (ClientError, Busy, NotReady):
        raise
    except TxCollectionError as error:
        raise RpcError(VERIFY_ERROR, str(error)) from None  # as Core answers a check that could not be made
    spent = time.perf_counter() - begun
    fields = verdict_fields(packed)
    fields["ms"]["total"] = round(spent * 1000, 3)
    house.metrics.observe("proposal", spent)
    house.metrics.verdict("proposal", fields)
    house.log.write("proposal", client=call.session().label, **fields)
    return fields["reason"]


async def _block_of_hex(text: str) -> bytes:
    try:
        raw = await off_loop(len(text), hex_bytes, text, "the block")
    except DecodeError:
        raw = b""
    if not raw:
        raise RpcError(DESERIALIZATION_ERROR, DECODE_FAILED)
    return raw


def script_mode_of(mode: Any) -> str | None:
    """`deferred`, `inline`, or None for the node's own. Raises RpcError for anything else."""
    if mode not in (None, "deferred", "inline"):
        raise RpcError(INVALID_PARAMETER, "script_mode must be deferred or inline")
    return mode


async def submitblock(call: Call, hexdata: str, _dummy: str | None) -> str | None:
    """Core: rpc/mining.cpp. The second argument is for compatibility with BIP22 and ignored."""
    raw = await _block_of_hex(hexdata)
    try:
        return await call.house.peers.ask("template", "submit_block", raw, again=False)
    except DecodeError:
        raise RpcError(DESERIALIZATION_ERROR, DECODE_FAILED) from None


# The chain --------------------------------------------------------------------------------------------------------


async def getbestblockhash(call: Call) -> str:
    """Display hex."""
    return to_display((await call.house.facts.tip_by_owner()).hash)


async def getblockcount(call: Call) -> int:
    """The tip's height."""
    return (await call.house.facts.tip_by_owner()).height


async def getblockchaininfo(call: Call) -> dict[str, Any]:
    """What of Core's answer is known here."""
    house = call.house
    found = await house.facts.tip_headers()
    network = await house.peers.ask("chainstate", "params")
    name = network["network"]
    header = found.header
    target, _ = target_from_compact(header.bits)
    now = house.settings["now"]
    age = (int(time.time()) if now is None else now) - header.time
    return {
        "chain": CHAIN_NAMES.get(name, name),
        "blocks": found.tip.height,
        "headers": found.tip.height,
        "bestblockhash": to_display(found.tip.hash),
        "bits": f"{header.bits:08x}",
        "target": f"{target:064x}",
        "difficulty": difficulty(header.bits),
        "time": header.time,
        "mediantime": found.median_time_past,
        "verificationprogress": 1,
        "initialblockdownload": age > MAX_TIP_AGE,
        "pruned": True,
        "warnings": [],
    }


def difficulty(bits: int) -> float:
    """How much harder than the easiest target of main (Core: rpc/blockchain.cpp, GetDifficulty)."""
    exponent, mantissa = bits >> 24, bits & 0x00FFFFFF
    return 0xFFFF / mantissa * 256.0 ** (29 - exponent) if mantissa else 0.0


async def gettxout(call: Call, txid: str, n: Any, include_mempool: bool | None) -> dict[str, Any] | None:
    """Core: rpc/blockchain.cpp; None for an output that is spent or was never there."""
    house = call.house
    outpoint = hash_of(txid, "txid") + whole_number(n, "n", 0, 2**32 - 1).to_bytes(4, "little")
    raw, spent = None, False
    if include_mempool is not False:
        raw, spent = await house.peers.ask("mempool", "output", outpoint)
    for _ in range(10):
        tip = await house.facts.tip_by_owner()
        (coin,) = await house.peers.ask("chainstate", "coins", [outpoint])
        if pack_tip(await house.facts.tip_by_owner()) == pack_tip(tip):
            break
    else:
        raise Busy("the tip changes faster than it can be asked; ask again")
    if spent:
        return None
    if coin is not None:
        value, height, coinbase, script = coin
        return _output(tip.hash, tip.height - height + 1, value, script, bool(coinbase))
    if raw is not None:
        tx, vout = decode_transaction(raw), int.from_bytes(outpoint[32:], "little")
        if vout < len(tx.values):
            return _output(tip.hash, 0, tx.values[vout], tx.script_pubkeys[vout], False)
    return None


def _output(tip: bytes, confirmations: int, value: int, script: bytes, coinbase: bool) -> dict[str, Any]:
    return {
        "bestblock": to_display(tip),
        "confirmations": confirmations,
        "value": value / COIN,
        "scriptPubKey": {"hex": script.hex()},
        "coinbase": coinbase,
    }


async def getmempoolinfo(call: Call) -> dict[str, Any]:
    """Counts of the mempool; `usage` are the bytes that its packed transactions take."""
    stats = await call.house.peers.ask_plain("mempool", "stats")
    return {
        "loaded": True,
        "size": stats["transactions"],
        "usage": stats["bytes"],
        "maxmempool": stats["bound"],
        "evicted": stats["evicted"],
        "scripts_known": stats["scripts_known"],
        "unsettled": stats["unsettled"],
    }


_TEMPLATE = Parameter(
    "template_request",
    "object",
    '{"mode": "proposal", "data": block as hex} to have a block checked, {"rules": ["segwit"]} for a block to mine; '
    'a proposal may bear "script_mode": "deferred" or "inline"',
)

CHAIN_METHODS = [
    Method(
        "getblocktemplate",
        getblocktemplate,
        "With mode proposal: null for a valid block, else why it is not. Otherwise a block of our own (BIP22, BIP23).",
        (_TEMPLATE,),
        long_answer=True,
    ),
    Method(
        "submitblock",
        submitblock,
        "Validates a block in full, stores it, and follows the branch with most work. null if it is the new tip.",
        (
            Parameter("hexdata", "string", "the block"),
            Parameter("dummy", "string", "ignored", required=False),
        ),
    ),
    Method("getbestblockhash", getbestblockhash, "The hash of the tip."),
    Method("getblockcount", getblockcount, "The height of the tip."),
    Method("getblockchaininfo", getblockchaininfo, "What the served chain is."),
    Method(
        "gettxout",
        gettxout,
        "An unspent output, or null.",
        (
            Parameter("txid", "string", "the transaction"),
            Parameter("n", "number", "the output's number"),
            Parameter("include_mempool", "bool", "look at the mempool first, default true", required=False),
        ),
    ),
    Method("getmempoolinfo", getmempoolinfo, "Counts of the mempool."),
]
