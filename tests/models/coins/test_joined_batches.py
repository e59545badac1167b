"""Batches read by two processes become one."""

from hypothesis import given
from hypothesis import strategies as st

from models.coins.coin import Coin
from models.coins.columns import CoinBatch

_COINS = st.lists(
    st.none()
    | st.builds(Coin, st.integers(0, 2**40), st.integers(0, 2**31 - 1), st.booleans(), st.binary(max_size=60)),
    max_size=8,
)


@given(st.lists(_COINS, min_size=1, max_size=4))
def test_joined_in_order(parts: list[list[Coin | None]]) -> None:
    joined = CoinBatch.joined([CoinBatch.of_coins(part) for part in parts])
    assert [joined.coin(i) for i in range(len(joined))] == [coin for part in parts for coin in part]
