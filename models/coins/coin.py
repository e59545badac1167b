"""An unspent output with what consensus needs to know of its origin. How it lies on disk is `models.coins.codec`."""

from dataclasses import dataclass

__all__ = ["Coin"]


@dataclass(frozen=True, slots=True)
class Coin:
    """One unspent transaction output (Core: `Coin`, coins.h)."""

    value: int  # in satoshis
    height: int  # of the block that created it
    coinbase: bool
    script: bytes  # scriptPubKey
