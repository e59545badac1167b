"""RPC methods about declarations: from the list of wtxids to the verdict and the solved block (SPEC 1).

Every one of them takes a `session` as its last argument, for clients that cannot set the header of that name.
"""

import time
from collections.abc import Sequence
from typing import Any

from cluster.declaration_log import verdict_fields
from cluster.gateway.arguments import Method, Parameter, hash_of, hex_bytes, whole_number
from cluster.gateway.calls import Call, off_loop
from cluster.gateway.chain_methods import script_mode_of
from cluster.gateway.jsonrpc import TYPE_ERROR, RpcError
from cluster.gateway.sessions import Held, Session
from models.collection import parse_wtxids
from models.consensus.verdict import Kind
from models.errors import CollectionLost
from models.wire.block import HEADER_SIZE, BlockHeader
from models.wire.hashes import to_display

__all__ = ["COLLECTION_METHODS"]

ACCEPTED = (None, "duplicate")  # answers of submitblock after which the block is where it should be


async def collecttxs(call: Call, wtxids: list[Any], session: str | None) -> dict[str, Any]:
    """SPEC 1.2."""
    begun = time.perf_counter()
    house, client = call.house, call.session(session)
    _all_text(wtxids, "wtxids")
    blob = await off_loop(66 * len(wtxids), parse_wtxids, wtxids)
    with house.sessions.opening(client):
        actor, key, unknown = await house.peers.open_collection(f"{house.client}/{client.label}", blob)
        house.sessions.add(client, Held(key, actor, len(wtxids), len(unknown)))
    house.metrics.observe("collect", time.perf_counter() - begun)
    return {"collection": key, "unknown": unknown}


async def unknowntxpos(call: Call, collection: str, session: str | None) -> list[int]:
    """SPEC 1.3."""
    client = call.session(session)
    with call.house.sessions.using(client, collection) as held:
        return await _ask(call, client, held, "unknown_tx_pos")


async def addmissingtxs(call: Call, collection: str, txs: list[Any], session: str | None) -> list[int]:
    """SPEC 1.4; answers with what is still missing."""
    begun = time.perf_counter()
    house, client = call.house, call.session(session)
    raws = await _transactions(txs)
    with house.sessions.using(client, collection) as held:
        unknown: list[int] = await _supply(call, client, held, raws, "add_missing_txs", raws)
        _count_supply(held, raws, len(unknown))
    house.metrics.observe("supply", time.perf_counter() - begun)
    return unknown


async def maketemplate(
    call: Call,
    collection: str,
    prevhash: str,
    coinbase: str | None,
    missing: list[Any] | None,
    script_mode: str | None,
    session: str | None,
) -> dict[str, Any]:
    """SPEC 1.5; `missing` is supplied first."""
    begun = time.perf_counter()
    house, client = call.house, call.session(session)
    prev = hash_of(prevhash, "prevhash")
    raw_coinbase = hex_bytes(coinbase, "the coinbase") if coinbase else None
    raws = await _transactions(missing or [])
    mode = script_mode_of(script_mode)
    with house.sessions.using(client, collection) as held:
        packed = await _supply(call, client, held, raws, "make_template", prev, raw_coinbase, raws, None, mode)
        if packed[0] != Kind.MISSING.value:
            _count_supply(held, raws, 0)
        elif raws:
            _count_supply(held, raws, len(await _ask(call, client, held, "unknown_tx_pos")))
    fields = verdict_fields(packed)
    answer = {"ok": packed[0] == Kind.VALID.value, "kind": fields["verdict"]}
    answer |= {name: fields[name] for name in ("reason", "debug", "offender")}
    answer["template"] = _template(packed[5])
    spent = time.perf_counter() - begun
    fields["ms"]["total"] = round(spent * 1000, 3)
    answer["ms"] = fields["ms"]
    house.metrics.observe("verdict", spent)
    house.metrics.verdict("declaration", fields)
    house.log.write(
        "declaration",
        collection=held.prefix,
        client=client.label,
        transactions=held.size,
        prevhash=prevhash,
        supplied=len(raws),
        supplied_bytes=sum(map(len, raws)),
        **fields,
    )
    return answer


async def submitsolution(
    call: Call,
    collection: str,
    template: Any,
    version: Any,
    ntime: Any,
    nonce: Any,
    coinbase: str,
    submit: bool | None,
    session: str | None,
) -> dict[str, Any]:
    """SPEC 1.6: the template's block with another version, time, nonce and coinbase."""
    client = call.session(session)
    solution = (
        whole_number(version, "version", -(2**31), 2**31 - 1),
        whole_number(ntime, "time", 0, 2**32 - 1),
        whole_number(nonce, "nonce", 0, 2**32 - 1),
        hex_bytes(coinbase, "the coinbase"),
    )
    number = whole_number(template, "template", 0, 2**63)
    with call.house.sessions.using(client, collection) as held:
        block: bytes = await _ask(call, client, held, "template_block", number, solution)
    header = BlockHeader.parse(block[:HEADER_SIZE])
    reason, accepted = None, False
    if submit is not False:
        reason = await call.house.peers.ask("template", "submit_block", block, again=False)
        accepted = reason in ACCEPTED
    text = await off_loop(len(block), block.hex)
    return {"accepted": accepted, "reason": reason, "hash": to_display(header.hash), "block": text}


async def closecollection(call: Call, collection: str, session: str | None) -> None:
    """Frees it."""
    client = call.session(session)
    sessions = call.house.sessions
    with sessions.using(client, collection) as held:
        sessions.close(client, held)


# Shared by them ---------------------------------------------------------------------------------------------------


def _all_text(values: list[Any], name: str) -> None:
    """Raises RpcError for the first entry that is no string."""
    wrong = next((at for at, value in enumerate(values) if not isinstance(value, str)), None)
    if wrong is not None:
        raise RpcError(TYPE_ERROR, f"{name}[{wrong}] is not of expected type string")


async def _transactions(texts: list[Any]) -> list[bytes]:
    """Raw transactions of hex; null and "" become no bytes, which the collection refuses with Core's text."""
    given = ["" if text is None else text for text in texts]
    _all_text(given, "transactions")

    def decode() -> list[bytes]:
        return [hex_bytes(text, f"transaction {at}") for at, text in enumerate(given)]

    return await off_loop(sum(map(len, given)), decode)


async def _ask(call: Call, client: Session, held: Held, method: str, *args: Any) -> Any:
    try:
        return await call.house.peers.ask_collection(held.actor, method, held.key, *args)
    except CollectionLost:
        call.house.sessions.lose(client, held.key)
        raise


async def _supply(call: Call, client: Session, held: Held, raws: Sequence[bytes], method: str, *args: Any) -> Any:
    """A call that supplies `raws`: their bytes are taken from the client's share before, and given back if it fails."""
    size = sum(map(len, raws))
    call.house.sessions.room_for(client, size)
    held.supplied += size
    try:
        return await _ask(call, client, held, method, *args)
    except BaseException:
        held.supplied -= size
        raise


def _count_supply(held: Held, raws: Sequence[bytes], unknown: int) -> None:
    """What brought nothing new is not held against the client."""
    if unknown == held.unknown:
        held.supplied -= sum(map(len, raws))
    held.unknown = unknown


def _template(made: tuple[Any, ...] | None) -> dict[str, Any] | None:
    if made is None:
        return None
    number, header, coinbase, path, earliest, latest, fees = made
    return {
        "id": number,
        "header": header.hex(),
        "coinbase": coinbase.hex(),
        "coinbasemerklepath": [node.hex() for node in path],
        "mintime": earliest,
        "maxtime": latest,
        "fees": fees,
    }


_ID = Parameter("collection", "string", "its id, as collecttxs answered")
_SESSION = Parameter(
    "session", "string", "a name that outlives connections, as in the X-Session header", required=False
)

COLLECTION_METHODS = [
    Method(
        "collecttxs",
        collecttxs,
        "Declares a block as a list of wtxids in block order, without the coinbase. Answers with the collection's id "
        "and the positions of transactions that must still be supplied.",
        (Parameter("wtxids", "array", "display-hex wtxids"), _SESSION),
    ),
    Method("unknowntxpos", unknowntxpos, "Positions still missing, ascending, from 0.", (_ID, _SESSION)),
    Method(
        "addmissingtxs",
        addmissingtxs,
        "Supplies transactions, all of them or none. Answers with the positions still missing.",
        (_ID, Parameter("transactions", "array", "raw transactions as hex"), _SESSION),
    ),
    Method(
        "maketemplate",
        maketemplate,
        "The verdict on the declared block: ok, kind, reason, debug, offender, and for a valid one the template.",
        (
            _ID,
            Parameter("prevhash", "string", "the block that it builds on"),
            Parameter("coinbase", "string", "raw coinbase; without it a dummy that claims the subsidy", required=False),
            Parameter("missing", "array", "raw transactions to be supplied first", required=False),
            Parameter("script_mode", "string", "deferred or inline", required=False),
            _SESSION,
        ),
    ),
    Method(
        "submitsolution",
        submitsolution,
        "Makes the solved block of a template, and submits it unless submit is false. Answers with accepted, reason "
        "(as submitblock), hash and block.",
        (
            _ID,
            Parameter("template", "number", "its id, as maketemplate answered"),
            Parameter("version", "number", "header version"),
            Parameter("time", "number", "header time"),
            Parameter("nonce", "number", "header nonce"),
            Parameter("coinbase", "string", "the raw coinbase that was mined"),
            Parameter("submit", "bool", "submit it here, default true", required=False),
            _SESSION,
        ),
        long_answer=True,
    ),
    Method("closecollection", closecollection, "Frees a collection.", (_ID, _SESSION)),
]
