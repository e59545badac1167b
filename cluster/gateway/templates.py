"""The answer of `getblocktemplate` in template mode (BIP22, BIP23, BIP9, BIP145; Core: rpc/mining.cpp), from a block
that the node assembled. What Core leaves to its peers and its wallet has no place here, and there is no long polling.
"""

from itertools import accumulate, pairwise
from typing import Any

from cluster.gateway.jsonrpc import INVALID_PARAMETER, RpcError
from models.consensus.context import BlockContext
from models.consensus.params import MAX_BLOCK_SIGOPS_COST, MAX_BLOCK_WEIGHT, WITNESS_SCALE_FACTOR
from models.consensus.pow import target_from_compact
from models.wire.block import BlockHeader
from models.wire.hashes import to_display
from models.wire.transaction import decode_transaction

__all__ = ["check_rules", "template_answer"]

MAX_BLOCK_SIZE = 4_000_000  # bytes (Core: consensus/consensus.h, MAX_BLOCK_SERIALIZED_SIZE)
TESTDUMMY_BIT = 28  # Core: kernel/chainparams.cpp; regtest alone has it
COMMITMENT_START = bytes.fromhex("6a24aa21a9ed")  # BIP141


def check_rules(request: dict[str, Any], signet: bool) -> None:
    """A client must say that it knows segwit, and signet on that network. Raises RpcError with Core's text."""
    rules = request.get("rules")
    said = {rule for rule in rules if isinstance(rule, str)} if isinstance(rules, list) else set()
    if signet and "signet" not in said:
        text = 'getblocktemplate must be called with the signet rule set (call with {"rules": ["segwit", "signet"]})'
        raise RpcError(INVALID_PARAMETER, text)
    if "segwit" not in said:
        text = 'getblocktemplate must be called with the segwit rule set (call with {"rules": ["segwit"]})'
        raise RpcError(INVALID_PARAMETER, text)


def template_answer(packed: tuple[Any, ...], context: BlockContext) -> dict[str, Any]:
    """From the template of `TemplateActor.assemble` on the tip of `context`. Fees in satoshis; runs once per call."""
    raw_header, raw_coinbase, _, earliest, _, _, blob, sizes, fees, sigops = packed
    header, coinbase = BlockHeader.parse(raw_header), decode_transaction(raw_coinbase)
    scale = 1 if context.segwit else WITNESS_SCALE_FACTOR
    target, _ = target_from_compact(header.bits)
    rules = [*(["csv"] if context.csv else []), *(["!segwit", "taproot"] if context.segwit else [])]
    answer: dict[str, Any] = {
        "capabilities": ["proposal"],
        "version": header.version,
        "rules": [*rules, *(["!signet"] if context.signet_challenge is not None else [])],
        "vbavailable": {"testdummy": TESTDUMMY_BIT} if header.version >> TESTDUMMY_BIT & 1 else {},
        "vbrequired": 0,
        "previousblockhash": to_display(header.prev_hash),
        "transactions": _transactions(blob, sizes, fees, sigops, scale),
        "coinbaseaux": {},
        "coinbasevalue": coinbase.values[0],
        "target": f"{target:064x}",
        "mintime": earliest,
        "mutable": ["time", "transactions", "prevblock"],
        "noncerange": "00000000ffffffff",
        "sigoplimit": MAX_BLOCK_SIGOPS_COST // scale,
        "sizelimit": MAX_BLOCK_SIZE // scale,
        "curtime": header.time,
        "bits": f"{header.bits:08x}",
        "height": context.height,
    }
    if context.segwit:
        answer["weightlimit"] = MAX_BLOCK_WEIGHT
    if context.signet_challenge is not None:
        answer["signet_challenge"] = context.signet_challenge.hex()
    commitments = [s for s in coinbase.script_pubkeys if s.startswith(COMMITMENT_START)]
    if commitments:
        answer["default_witness_commitment"] = commitments[-1].hex()
    return answer


def _transactions(
    blob: bytes, sizes: list[int], fees: list[int], sigops: list[int], scale: int
) -> list[dict[str, Any]]:
    ends = list(accumulate(sizes, initial=0))
    numbers: dict[bytes, int] = {}  # txid -> number in the list, from 1
    entries = []
    for number, (start, end) in enumerate(pairwise(ends), 1):
        raw = blob[start:end]
        tx = decode_transaction(raw)
        depends = [numbers[prevout[:32]] for prevout in tx.prevouts if prevout[:32] in numbers]
        numbers[tx.txid] = number
        entries.append(
            {
                "data": raw.hex(),
                "txid": to_display(tx.txid),
                "hash": to_display(tx.wtxid),
                "depends": depends,
                "fee": fees[number - 1],
                "sigops": sigops[number - 1] // scale,
                "weight": tx.weight,
            }
        )
    return entries
