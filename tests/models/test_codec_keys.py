"""Keys made in columns are the keys made one by one, and the order is the database's."""

from hypothesis import given
from hypothesis import strategies as st

from models.coins.codec import coin_key, coin_keys

_VOUTS = st.one_of(
    st.integers(0, 300), st.sampled_from([127, 128, 16511, 16512, 2113663, 2113664]), st.integers(0, 2**32 - 1)
)
_OUTPOINTS = st.lists(st.tuples(st.binary(min_size=32, max_size=32), _VOUTS), max_size=40)


@given(_OUTPOINTS)
def test_same_keys_as_one_by_one(outpoints: list[tuple[bytes, int]]) -> None:
    packed = [txid + vout.to_bytes(4, "little") for txid, vout in outpoints]
    keys, order = coin_keys(b"".join(packed))
    assert keys == [coin_key(outpoint) for outpoint in packed]
    assert sorted(order) == list(range(len(packed)))


@given(_OUTPOINTS)
def test_order_is_the_databases_for_small_numbers(outpoints: list[tuple[bytes, int]]) -> None:
    packed = [txid + (vout % 16512).to_bytes(4, "little") for txid, vout in outpoints]
    keys, order = coin_keys(b"".join(packed))
    sorted_prefixes = [keys[i][:9] for i in order]
    assert sorted_prefixes == sorted(sorted_prefixes)
