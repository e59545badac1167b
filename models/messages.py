"""What crosses a process boundary: tuples, bytes and flat arrays, because pickling anything richer costs milliseconds.

An actor answers `("ok", value)` or `("error", class name, text)`: an error that is expected travels as a value, without
a traceback, and becomes the same exception at the caller. Verdicts and coin batches have flat forms here.
"""

from typing import Any

import numpy as np

from models import errors
from models.coins.coin import Coin
from models.coins.columns import COIN_ROW, CoinBatch
from models.consensus.context import Tip, TipVersion
from models.consensus.verdict import Kind, Offender, Verdict

__all__ = [
    "Answer",
    "FlatCoin",
    "FlatTip",
    "failed",
    "flat_coin",
    "in_pieces",
    "ok",
    "pack_batch",
    "pack_tip",
    "pack_verdict",
    "unpack_batch",
    "unpack_tip",
    "unpack_verdict",
    "unwrap",
]

MOST_INLINE = 96_000  # bytes: an argument of 100 KiB or more goes by way of Ray's object store, a millisecond longer

Answer = tuple[Any, ...]
FlatTip = tuple[bytes, int, int, int]  # hash (internal order), height, epoch, n
FlatCoin = tuple[bytes, int, int, bool, bytes]  # outpoint, satoshis, height, coinbase, scriptPubKey


def ok(value: Any = None) -> Answer:
    """A good answer."""
    return ("ok", value)


def failed(error: errors.TxCollectionError) -> Answer:
    """An expected error as a value."""
    return ("error", type(error).__name__, str(error))


def unwrap(answer: Answer) -> Any:
    """The value of an answer; raises the error that it carries."""
    if answer[0] == "ok":
        return answer[1]
    kind = getattr(errors, answer[1], errors.InternalError)
    raise kind(answer[2])


def in_pieces(data: bytes) -> list[bytes]:
    """Bytes as several arguments of one call; whoever is called joins them."""
    return [data[at : at + MOST_INLINE] for at in range(0, len(data), MOST_INLINE)]


def pack_tip(tip: Tip) -> FlatTip:
    """A tip as a flat tuple."""
    return (tip.hash, tip.height, tip.version.epoch, tip.version.n)


def unpack_tip(flat: FlatTip) -> Tip:
    """The tip of a flat tuple."""
    return Tip(flat[0], flat[1], TipVersion(flat[2], flat[3]))


def flat_coin(outpoint: bytes, coin: Coin) -> FlatCoin:
    """A coin as a flat tuple."""
    return (outpoint, coin.value, coin.height, coin.coinbase, coin.script)


def pack_batch(batch: CoinBatch) -> tuple[np.ndarray, np.ndarray]:
    """A coin batch as two byte arrays."""
    return (batch.rows.view(np.uint8), batch.arena)


def unpack_batch(flat: tuple[np.ndarray, np.ndarray]) -> CoinBatch:
    """The batch of two byte arrays, without a copy: it keeps the message's memory alive, so copy what is retained."""
    return CoinBatch(flat[0].view(COIN_ROW), flat[1])


def pack_verdict(verdict: Verdict) -> tuple[Any, ...]:
    """A verdict as a flat tuple; its template travels as whatever tuple it holds."""
    o = verdict.offender
    offender = (o.position, o.txid, o.wtxid, o.input) if o else None
    return (
        verdict.kind.value,
        verdict.reason,
        verdict.debug,
        offender,
        verdict.category,
        verdict.template,
        verdict.timings,
    )


def unpack_verdict(flat: tuple[Any, ...]) -> Verdict:
    """The verdict of a flat tuple."""
    kind, reason, debug, offender, category, template, timings = flat
    return Verdict(Kind(kind), reason, debug, Offender(*offender) if offender else None, category, template, timings)
