"""The owner's coins cache: looking in changes nothing, the bound holds, and what was filled last is what is there."""

from hypothesis import given
from hypothesis import strategies as st

from models.coins.cache import ENTRY_OVERHEAD, CoinsCache
from models.coins.coin import Coin


def outpoint(n: int) -> bytes:
    return n.to_bytes(36, "big")


def coin(value: int, size: int = 1) -> Coin:
    return Coin(value, 1, False, b"\x51" * size)


def test_peek_changes_neither_contents_nor_order() -> None:
    cache = CoinsCache(3 * (ENTRY_OVERHEAD + 1))
    cache.fill((outpoint(n), coin(n)) for n in range(3))
    before = cache.nbytes
    assert cache.peek(outpoint(0)) == coin(0)
    assert cache.peek(outpoint(9)) is None
    assert (len(cache), cache.nbytes) == (3, before)
    cache.fill([(outpoint(3), coin(3))])
    assert cache.peek(outpoint(0)) is None  # looked at last, filled first: it goes first


def test_what_is_filled_again_becomes_the_most_recent() -> None:
    cache = CoinsCache(2 * (ENTRY_OVERHEAD + 1))
    cache.fill((outpoint(n), coin(n)) for n in (0, 1, 0, 2))
    assert [cache.peek(outpoint(n)) for n in range(3)] == [coin(0), None, coin(2)]


def test_a_coin_that_is_made_anew_replaces_the_old_one() -> None:
    """Two blocks of main repeat a coinbase (BIP30): the same outpoint, another height."""
    cache = CoinsCache(1000)
    cache.fill([(outpoint(1), Coin(5, 91722, True, b"\x51" * 30))])
    cache.fill([(outpoint(1), Coin(5, 91880, True, b"\x51" * 10))])
    assert cache.peek(outpoint(1)) == Coin(5, 91880, True, b"\x51" * 10)
    assert cache.nbytes == ENTRY_OVERHEAD + 10


def test_spent_coins_are_forgotten() -> None:
    cache = CoinsCache(1000)
    cache.fill([(outpoint(1), coin(1, 20)), (outpoint(2), coin(2))])
    cache.drop([outpoint(1), outpoint(7)])
    assert (cache.peek(outpoint(1)), cache.peek(outpoint(2)), cache.nbytes) == (None, coin(2), ENTRY_OVERHEAD + 1)
    cache.clear()
    assert (len(cache), cache.nbytes) == (0, 0)


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("fill"), st.integers(0, 9), st.integers(0, 40)),
        st.tuples(st.just("drop"), st.integers(0, 9), st.just(0)),
        st.tuples(st.just("peek"), st.integers(0, 9), st.just(0)),
    ),
    max_size=60,
)


@given(OPERATIONS, st.integers(0, 500))
def test_bytes_are_those_of_what_is_held_and_never_above_the_bound(operations: list, bound: int) -> None:
    cache = CoinsCache(bound)
    latest: dict[int, Coin] = {}
    for what, n, size in operations:
        if what == "fill":
            latest[n] = coin(size, size)
            cache.fill([(outpoint(n), latest[n])])
        elif what == "drop":
            cache.drop([outpoint(n)])
        held = {n: c for n in range(10) if (c := cache.peek(outpoint(n))) is not None}
        assert cache.nbytes == sum(ENTRY_OVERHEAD + len(c.script) for c in held.values()) <= bound
        assert all(latest[n] == c for n, c in held.items())
