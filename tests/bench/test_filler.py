"""Filler coins are in key order, each once, in the form that Core's database has, and the same for the same seed."""

from pathlib import Path

from bench.filler import FIRST_HEIGHT, SCRIPTS, filler_chunks, load_filler
from models.coins.codec import decode_coin, obfuscate
from models.storage.coinsdb import CoinsOwner
from models.storage.reader import CoinsReader

KEY = bytes(range(1, 9))
COUNT, TIP = 5_000, 102


def _records(seed: str = "test") -> list[tuple[bytes, bytes]]:
    chunks = filler_chunks(seed, COUNT, TIP, KEY)
    return [record for _, keys, values in chunks for record in zip(keys, values, strict=True)]


def test_keys_come_in_order_and_each_once() -> None:
    keys = [key for key, _ in _records()]
    assert len(keys) == COUNT
    assert keys == sorted(set(keys))
    assert all(key[:1] == b"C" and len(key) == 34 and key[33] < 0x80 for key in keys)


def test_values_are_coins_of_all_four_common_kinds_from_existing_heights() -> None:
    coins = [decode_coin(obfuscate(value, KEY)) for _, value in _records()]
    assert {len(coin.script) for coin in coins} == {22, 25, 23, 34}
    assert all(FIRST_HEIGHT <= coin.height <= TIP and not coin.coinbase for coin in coins)
    assert all(0 < coin.value < 3.1e8 for coin in coins)


def test_kinds_have_the_shares_that_were_asked_for() -> None:
    sizes = [len(decode_coin(obfuscate(value, KEY)).script) for _, value in _records()]
    for (share, _, _), size in zip(SCRIPTS, (22, 25, 23, 34), strict=True):
        assert abs(sizes.count(size) / COUNT - share) < 0.04


def test_the_same_seed_makes_the_same_coins() -> None:
    assert _records() == _records()
    assert not set(_records()) & set(_records("another"))


def test_owner_and_reader_find_filler_and_hidden_coins(tmp_path: Path) -> None:
    hidden = {b"C" + bytes((byte,)) * 33: b"\x02\x01\x00" + bytes(20) for byte in (0x00, 0x41, 0x7F)}
    path, best = tmp_path / "chainstate", bytes(range(32))
    steps: list[tuple[int, int]] = []
    load_filler(path, "test", COUNT, TIP, hidden, best, lambda done, total: steps.append((done, total)))
    assert steps[-1] == (COUNT + 3, COUNT + 3)
    with CoinsOwner(path) as owner:
        assert owner.best_block == best
        assert owner.utxo_stats().txouts == COUNT + 3
        xor_key = owner.xor_key
    reader = CoinsReader.open(path, expect_best=best)
    values = reader.multi_get(list(hidden))
    assert [obfuscate(value or b"", xor_key) for value in values] == list(hidden.values())
    reader.close()
