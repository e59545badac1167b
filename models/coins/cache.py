"""The coins cache of the chainstate's owner: recently created or read coins within a byte bound.

Looking in (`peek`) changes nothing, neither contents nor order; only `fill` and the connection of blocks do.
"""

from collections import OrderedDict
from collections.abc import Iterable

from models.coins.coin import Coin

__all__ = ["CoinsCache"]

ENTRY_OVERHEAD = 60  # bytes charged beside the script: outpoint, value, height, flags


class CoinsCache:
    """Outpoint (36 bytes) -> coin. What is least recently filled goes first."""

    def __init__(self, bound: int):
        self.bound = bound
        self.nbytes = 0
        self.hits = 0
        self.misses = 0
        self._coins: OrderedDict[bytes, Coin] = OrderedDict()

    def __len__(self) -> int:
        return len(self._coins)

    def peek(self, outpoint: bytes) -> Coin | None:
        """The coin if it is held."""
        coin = self._coins.get(outpoint)
        if coin is None:
            self.misses += 1
        else:
            self.hits += 1
        return coin

    def fill(self, coins: Iterable[tuple[bytes, Coin]]) -> None:
        """Takes coins in as the most recent."""
        for outpoint, coin in coins:
            old = self._coins.pop(outpoint, None)  # there is one only where a block repeats an old coinbase (BIP30)
            if old is not None:
                self.nbytes -= ENTRY_OVERHEAD + len(old.script)
            self._coins[outpoint] = coin
            self.nbytes += ENTRY_OVERHEAD + len(coin.script)
        while self.nbytes > self.bound and self._coins:
            _, coin = self._coins.popitem(last=False)
            self.nbytes -= ENTRY_OVERHEAD + len(coin.script)

    def drop(self, outpoints: Iterable[bytes]) -> None:
        """Forgets spent coins."""
        for outpoint in outpoints:
            coin = self._coins.pop(outpoint, None)
            if coin is not None:
                self.nbytes -= ENTRY_OVERHEAD + len(coin.script)

    def clear(self) -> None:
        """Forgets everything."""
        self._coins.clear()
        self.nbytes = 0
