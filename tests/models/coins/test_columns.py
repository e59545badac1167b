"""Coins as columns: whole batches are decoded as the codec decodes one coin, damaged records are errors and never an
absence, and the bytes held are counted exactly.
"""

from collections.abc import Sequence

import numpy as np
import pytest
from coincurve import PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from models.coins.codec import decode_coin, encode_coin, obfuscate, write_varint
from models.coins.coin import Coin
from models.coins.columns import ABSENT, COIN, COIN_ROW, IN_BLOCK, UNKNOWN, CoinBatch, CoinColumns, decode_batch
from models.errors import StoreCorrupt
from models.script.classes import script_class

ROW = 24  # bytes: value 8, height 4, script type 4, script offset 4, four of one byte
KEY = bytes(range(1, 9))
HASH20, HASH32 = bytes(range(20)), bytes(range(32))
P2PKH = b"\x76\xa9\x14" + HASH20 + b"\x88\xac"
P2SH = b"\xa9\x14" + HASH20 + b"\x87"
P2WPKH = b"\x00\x14" + HASH20
P2WSH = b"\x00\x20" + HASH32
P2TR = b"\x51\x20" + HASH32

PRIVATE = PrivateKey(b"\x01" * 32)
COMPRESSED = b"\x21" + PRIVATE.public_key.format(compressed=True) + b"\xac"
UNCOMPRESSED = b"\x41" + PRIVATE.public_key.format(compressed=False) + b"\xac"

SCRIPTS = (
    st.sampled_from([P2PKH, P2SH, P2WPKH, P2WSH, P2TR, COMPRESSED, UNCOMPRESSED, b"", b"\x51", b"\x60\x02\xaa\xbb"])
    | st.binary(max_size=60)
    | st.integers(9_990, 10_010).map(lambda size: b"\x61" * size)
)
VALUES = st.integers(0, 21 * 10**14) | st.integers(0, 50 * 10**8).map(lambda v: v * 1000)
COINS = st.builds(Coin, VALUES, st.integers(0, 2**31 - 1), st.booleans(), SCRIPTS)
KEYS = st.binary(min_size=8, max_size=8)


def stored(coins: Sequence[Coin | None], key: bytes = bytes(8)) -> list[bytes | None]:
    return [None if coin is None else obfuscate(encode_coin(coin), key) for coin in coins]


def coins_of(batch: CoinBatch) -> list[Coin | None]:
    return [batch.coin(i) for i in range(len(batch))]


@given(st.lists(st.none() | COINS, max_size=12), KEYS)
def test_a_batch_decodes_as_the_codec_does_one_by_one(coins: list[Coin | None], key: bytes) -> None:
    batch = decode_batch(stored(coins, key), key)
    assert coins_of(batch) == [None if coin is None else decode_coin(encode_coin(coin)) for coin in coins]
    assert batch.rows["state"].tolist() == [ABSENT if coin is None else COIN for coin in coins]
    expanded = [coin.script if coin else b"" for coin in coins_of(batch)]
    assert batch.rows["script_class"].tolist() == [script_class(script) for script in expanded]


def test_every_kind_of_stored_script_and_its_class() -> None:
    scripts = [P2PKH, P2SH, COMPRESSED, UNCOMPRESSED, P2WPKH, P2WSH, P2TR, b"\x51"]
    batch = decode_batch(stored([Coin(1, 2, False, script) for script in scripts]), bytes(8))
    assert [batch.coin(i).script for i in range(len(scripts))] == scripts  # type: ignore[union-attr]
    # sizes as stored: templates without their opcodes, the rest whole
    assert len(batch.arena) == 20 + 20 + 32 + 32 + 22 + 34 + 34 + 1
    assert batch.rows["script_class"].tolist() == [0, 1, 0, 0, 2, 3, 4, 0]


def test_a_script_above_10_000_bytes_reads_as_op_return() -> None:
    coins = [Coin(5, 1, False, P2WPKH), Coin(6, 1, False, b"\x00\x14" + bytes(9_999)), Coin(7, 1, True, P2SH)]
    batch = decode_batch(stored(coins, KEY), KEY)
    assert coins_of(batch) == [coins[0], Coin(6, 1, False, b"\x6a"), coins[2]]
    assert len(batch.arena) == 22 + 1 + 20


def test_a_plain_script_of_p2sh_form_is_p2sh() -> None:
    """Core stores it as type 1; a record with type 23 + 6 means the same."""
    record = write_varint(1 << 1) + write_varint(9) + write_varint(23 + 6) + P2SH
    batch = decode_batch([record], bytes(8))
    assert batch.rows["script_class"].tolist() == [1]
    assert batch.coin(0) == Coin(10**8, 1, False, P2SH)


# Amounts and their stored form, from Core's compress_tests.cpp.
@pytest.mark.parametrize(
    ("number", "satoshis"), [(0, 0), (1, 1), (7, 10**6), (9, 10**8), (0x32, 50 * 10**8), (0x1406F40, 21 * 10**14)]
)
def test_amounts_of_cores_own_tests(number: int, satoshis: int) -> None:
    batch = decode_batch([write_varint(2) + write_varint(number) + write_varint(6)], bytes(8))
    assert batch.rows["value"].tolist() == [satoshis]


@given(st.lists(st.none() | COINS, min_size=1, max_size=4), KEYS, st.data())
def test_a_cut_record_is_an_error(coins: list[Coin | None], key: bytes, data: st.DataObject) -> None:
    values = stored(coins, key)
    present = [i for i, value in enumerate(values) if value]
    if not present:
        return
    i = data.draw(st.sampled_from(present))
    value = values[i]
    assert value is not None
    values[i] = value[: data.draw(st.integers(0, len(value) - 1))]
    with pytest.raises(StoreCorrupt):
        decode_batch(values, key)


@given(st.lists(st.none() | COINS, min_size=1, max_size=4), KEYS, st.data())
def test_a_record_with_a_byte_too_many_is_an_error(coins: list[Coin | None], key: bytes, data: st.DataObject) -> None:
    plain = [None if coin is None else encode_coin(coin) for coin in coins]
    present = [i for i, value in enumerate(plain) if value]
    if not present:
        return
    i = data.draw(st.sampled_from(present))
    plain[i] = (plain[i] or b"") + data.draw(st.binary(min_size=1, max_size=40))
    with pytest.raises(StoreCorrupt):
        decode_batch([None if value is None else obfuscate(value, key) for value in plain], key)


@settings(max_examples=300)
@given(st.lists(st.binary(max_size=50), min_size=1, max_size=5), KEYS)
def test_arbitrary_records_are_what_the_codec_makes_of_them(records: list[bytes], key: bytes) -> None:
    """Both refuse, or both read the same; a record that is there is never an absence."""
    try:
        expected = [decode_coin(obfuscate(record, key)) for record in records]
    except StoreCorrupt:
        with pytest.raises(StoreCorrupt):
            decode_batch(records, key)
        return
    batch = decode_batch(records, key)
    assert batch.rows["state"].tolist() == [COIN] * len(records)
    for found, coin in zip(coins_of(batch), expected, strict=True):
        assert found is not None
        assert (found.height, found.coinbase, found.script) == (coin.height, coin.coinbase, coin.script)
        assert found.value % 2**64 == coin.value % 2**64  # signed here, as in Core


@pytest.mark.parametrize(
    "record",
    [
        b"\x8e\xfe\xfe\xff\x00" + write_varint(1) + write_varint(6),  # code 2^32: VARINT(uint32_t) refuses it
        write_varint(2) + write_varint(2**64 - 1)[:-1] + b"\xff\x00" + write_varint(6),  # amount of eleven digits
        write_varint(2) + b"\xff" * 9 + b"\x7f" + write_varint(6),  # amount of ten digits above 2^64
        write_varint(2) + write_varint(1) + write_varint(2**32 + 5),
    ],
)
def test_numbers_that_are_too_large_are_errors(record: bytes) -> None:
    with pytest.raises(StoreCorrupt):
        decode_coin(record)
    with pytest.raises(StoreCorrupt):
        decode_batch([None, record], bytes(8))


def test_an_amount_of_64_bits_keeps_its_bits() -> None:
    number = 2**64 - 1  # decompresses to some number modulo 2^64; both decoders agree on it
    record = write_varint(2) + write_varint(number) + write_varint(6)
    batch = decode_batch([record], bytes(8))
    assert int(batch.rows["value"][0]) % 2**64 == decode_coin(record).value


def test_nothing_found_is_a_batch_of_absences() -> None:
    batch = decode_batch([None, None], KEY)
    assert coins_of(batch) == [None, None]
    assert len(batch.arena) == 0
    assert len(decode_batch([], KEY)) == 0


@given(st.lists(st.none() | COINS, max_size=6))
def test_a_batch_of_coins_at_hand_is_the_same_as_one_from_the_database(coins: list[Coin | None]) -> None:
    at_hand, decoded = CoinBatch.of_coins(coins), decode_batch(stored(coins), bytes(8))
    assert coins_of(at_hand) == coins_of(decoded)
    for name in ("value", "height", "coinbase", "state", "script_class"):
        assert at_hand.rows[name].tolist() == decoded.rows[name].tolist()


# Columns -----------------------------------------------------------------------------------------------------------


def test_a_row_takes_24_bytes() -> None:
    assert COIN_ROW.itemsize == ROW


def test_bytes_are_counted_by_rows_observed_and_scripts_as_stored() -> None:
    columns = CoinColumns(5)
    assert (columns.nbytes, columns.observed) == (0, 0)
    batch = decode_batch(stored([Coin(1, 1, False, P2PKH), None, Coin(2, 1, False, P2WPKH)]), bytes(8))
    assert CoinColumns.cost_of(batch) == 3 * ROW + 20 + 22
    columns.put(np.array([4, 0, 2]), batch)
    assert (columns.nbytes, columns.observed) == (3 * ROW + 20 + 22, 3)
    assert columns.unknown().tolist() == [1, 3]
    assert [columns.coin(i) for i in (4, 0, 2)] == coins_of(batch)


def test_what_is_known_stays_and_costs_nothing_again() -> None:
    columns = CoinColumns(3)
    columns.put(np.array([0, 1]), CoinBatch.of_coins([Coin(1, 1, False, P2WPKH), None]))
    before = columns.nbytes
    again = [Coin(9, 9, True, P2TR), Coin(3, 3, False, b"\x51\x52"), Coin(8, 8, False, P2TR)]
    columns.put(np.array([0, 2, 1]), CoinBatch.of_coins(again))
    assert columns.nbytes == before + ROW + 2
    assert [columns.coin(i) for i in range(3)] == [Coin(1, 1, False, P2WPKH), None, again[1]]


def test_columns_do_not_keep_the_batch_alive_or_follow_it() -> None:
    batch = CoinBatch.of_coins([Coin(1, 1, False, P2WPKH)])
    batch.rows.flags.writeable = False  # as it arrives from another process
    columns = CoinColumns(1)
    columns.put(np.array([0]), batch)
    assert not np.shares_memory(columns.rows, batch.rows)
    assert columns.coin(0) == Coin(1, 1, False, P2WPKH)


@given(st.lists(st.none() | COINS, min_size=1, max_size=10), st.data())
def test_columns_filled_in_any_order_give_every_coin_back(coins: list[Coin | None], data: st.DataObject) -> None:
    columns = CoinColumns(len(coins))
    order = data.draw(st.permutations(range(len(coins))))
    cost = 0
    while order:
        size = data.draw(st.integers(1, len(order)))
        now, order = order[:size], order[size:]
        batch = decode_batch(stored([coins[i] for i in now], KEY), KEY)
        cost += CoinColumns.cost_of(batch)
        columns.put(np.array(now), batch)
    assert (columns.observed, columns.nbytes) == (len(coins), cost)
    expected = coins_of(decode_batch(stored(coins), bytes(8)))
    assert [columns.coin(i) for i in range(len(coins))] == expected
    some = data.draw(st.lists(st.integers(0, len(coins) - 1), unique=True))
    taken = columns.take(np.array(some, np.int64))
    assert coins_of(taken) == [expected[i] for i in some]
    if len(some) < len(coins):
        assert CoinColumns.cost_of(taken) == sum(ROW + stored_size(coins[i]) for i in some)


def stored_size(coin: Coin | None) -> int:
    """Bytes that a coin's script takes in an arena, by the table in SPEC 3.1."""
    if coin is None:
        return 0
    if len(coin.script) > 10_000:
        return 1
    sizes = {P2PKH: 20, P2SH: 20, COMPRESSED: 32, UNCOMPRESSED: 32}
    return sizes.get(coin.script, len(coin.script))


def test_a_coin_of_the_block_itself_replaces_what_the_database_said() -> None:
    columns = CoinColumns(3)
    columns.put(np.array([0, 1]), CoinBatch.of_coins([Coin(1, 1, True, P2WPKH), None]))
    inside = CoinBatch.of_coins([Coin(7, 200, False, b"\x51"), Coin(8, 200, False, P2TR), None])
    inside.rows["state"][:2] = IN_BLOCK
    columns.replace(np.array([1, 2, 0]), inside)
    assert [columns.coin(i) for i in range(3)] == [None, Coin(7, 200, False, b"\x51"), Coin(8, 200, False, P2TR)]
    assert columns.rows["state"].tolist() == [ABSENT, IN_BLOCK, IN_BLOCK]
    assert columns.rows["coinbase"].tolist() == [0, 0, 0]
    assert columns.observed == 3
    assert columns.nbytes == 3 * ROW + 22 + 1 + 34  # the replaced script is still there


def test_a_spent_output_is_expanded_for_verification() -> None:
    scripts = [P2PKH, P2SH, COMPRESSED, UNCOMPRESSED, P2TR, b""]
    columns = CoinColumns(len(scripts))
    batch = decode_batch(stored([Coin(i, 1, False, script) for i, script in enumerate(scripts)]), bytes(8))
    columns.put(np.arange(len(scripts)), batch)
    assert [columns.spent_output(i) for i in range(len(scripts))] == list(enumerate(scripts))


def test_spent_outputs_all_at_once_are_those_one_by_one() -> None:
    scripts = [P2PKH, P2SH, COMPRESSED, UNCOMPRESSED, P2TR, b"", b"\x51" * 300]
    columns = CoinColumns(2 * len(scripts))
    batch = decode_batch(stored([Coin(i, 1, False, script) for i, script in enumerate(scripts)]), bytes(8))
    columns.put(np.arange(1, 2 * len(scripts), 2), batch)
    columns.put(np.array([0]), CoinBatch.of_coins([None]))
    together = columns.spent_outputs()  # also where nothing was observed, or an absence
    assert len(together) == 2 * len(scripts)
    assert together[1::2] == list(enumerate(scripts))


def test_a_key_that_is_no_point_leaves_an_empty_script() -> None:
    """Types 4 and 5 hold an x coordinate; 5 is on no point of secp256k1 (y^2 = 132 has no root)."""
    record = write_varint(2) + write_varint(1) + write_varint(4) + (5).to_bytes(32, "big")
    assert decode_batch([record], bytes(8)).coin(0) == Coin(1, 1, False, b"")


def test_nothing_was_observed_at_first() -> None:
    assert CoinColumns(2).rows["state"].tolist() == [UNKNOWN, UNKNOWN]
    assert len(CoinColumns(2)) == 2


@given(st.lists(st.tuples(st.integers(0, 2**50), st.binary(max_size=40)), max_size=12))
def test_unpacking_all_spent_outputs_is_unpacking_each(outputs: list[tuple[int, bytes]]) -> None:
    columns = CoinColumns(len(outputs) + 1)  # the last one is never observed
    batch = CoinBatch.of_coins([Coin(value, 7, False, script) for value, script in outputs])
    columns.put(np.arange(len(outputs)), batch)
    assert columns.spent_outputs()[: len(outputs)] == [columns.spent_output(i) for i in range(len(outputs))]
