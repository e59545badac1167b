"""Fixtures are what they say: blocks that a judge accepts, of the weight counted by hand, the same every time."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench.errors import BenchError
from bench.fixtures import Fixture, Plan, block_weight, find_or_make
from bench.scripts import script_jobs
from models.coins.codec import coin_key
from models.script.verify import ALL_FLAGS, verify_batch
from models.storage.coinsdb import CoinsOwner
from models.storage.store import Store
from tests.bench.conftest import TRANSACTIONS

# Version 4, input count 1, two inputs of 36 + 1 + 4, output count 1, one output of 8 + 1 + 14, lock time 4.
BASE = 4 + 1 + 2 * 41 + 1 + 23 + 4
# Marker and flag 2; for each input: count 1, signature 1 + 71, public key 1 + 33.
WITNESS = 2 + 2 * (1 + 72 + 34)


def test_every_transaction_has_the_weight_that_was_counted_by_hand(tiny: Fixture) -> None:
    assert {tx.weight for tx in tiny.transactions} == {4 * BASE + WITNESS} == {676}


def test_a_full_block_of_them_is_over_99_7_percent_of_what_is_allowed() -> None:
    assert 0.997 * 4_000_000 < Plan.small().transactions * 676 < 4_000_000 - 2_000


def test_the_manifest_has_the_weight_of_the_block(tiny: Fixture) -> None:
    stripped = len(tiny.block.raw) - TRANSACTIONS * WITNESS - (2 + 34)  # the coinbase: marker, flag, reserved value
    assert tiny.weight == block_weight(tiny.block) == 3 * stripped + len(tiny.block.raw)


@pytest.mark.parametrize("name", ["tiny", "tiny_large"])
def test_the_kernel_accepts_every_signature(name: str, request: pytest.FixtureRequest) -> None:
    jobs = script_jobs(request.getfixturevalue(name))
    assert len(jobs) == TRANSACTIONS
    assert verify_batch(jobs, ALL_FLAGS) == [-1] * TRANSACTIONS


def test_the_same_seed_makes_the_same_block(tiny: Fixture, tmp_path: Path) -> None:
    again = find_or_make(tmp_path, Plan("tiny", TRANSACTIONS), allow_memory=True)
    assert again.block.raw == tiny.block.raw
    other = find_or_make(tmp_path, Plan("other", TRANSACTIONS, seed="another seed"), allow_memory=True)
    assert other.block.raw != tiny.block.raw


def test_a_fixture_that_is_there_is_found_again(tiny: Fixture, bench_dir: Path) -> None:
    made = (tiny.path / "manifest.json").stat().st_mtime_ns
    assert find_or_make(bench_dir, Plan("tiny", TRANSACTIONS), allow_memory=True).manifest == tiny.manifest
    assert (tiny.path / "manifest.json").stat().st_mtime_ns == made


def test_a_fixture_of_another_size_under_the_same_name_is_refused(tiny: Fixture, bench_dir: Path) -> None:
    with pytest.raises(BenchError, match=f"transactions {TRANSACTIONS} instead of 31"):
        find_or_make(bench_dir, Plan("tiny", 31), allow_memory=True)


def test_coins_of_the_small_fixture_come_from_one_transaction_and_those_of_the_large_one_do_not(
    tiny: Fixture, tiny_large: Fixture
) -> None:
    assert len({outpoint[:32] for outpoint in tiny.outpoints}) == 1
    assert len({outpoint[:32] for outpoint in tiny_large.outpoints}) == 2 * TRANSACTIONS


def test_the_large_fixture_holds_its_filler_its_coins_and_its_chains_coins(tiny_large: Fixture, tmp_path: Path) -> None:
    from bench.nodes import link_store

    link_store(tiny_large.store, tmp_path / "store")
    with Store.open(tmp_path / "store") as store:
        stats = store.coins.utxo_stats()
        assert stats.txouts == 50_000 + 2 * TRANSACTIONS + 102  # a coinbase of each of our 102 blocks
        assert all(store.coins.get_raw(coin_key(outpoint)) is not None for outpoint in tiny_large.outpoints)
        assert store.served_tip().height == 102


def test_a_store_copied_by_links_leaves_the_original_as_it_was(tiny_large: Fixture, tmp_path: Path) -> None:
    from bench.nodes import link_store

    before = {path.name: path.read_bytes() for path in tiny_large.chainstate.iterdir()}
    link_store(tiny_large.store, tmp_path / "store")
    with CoinsOwner(tmp_path / "store" / "chainstate") as owner:
        owner.apply(tiny_large.outpoints, [], bytes(32))
    assert {path.name: path.read_bytes() for path in tiny_large.chainstate.iterdir()} == before


def test_a_node_that_judges_accepts_the_chain_and_the_block(
    tiny: Fixture, tmp_path: Path, start_node: Callable[..., Any]
) -> None:
    from bench.peer import _blocks

    Store.create_genesis("regtest", tmp_path / "judge")
    node = start_node(tmp_path / "judge", now=tiny.now)
    for raw in [*_blocks(tiny), tiny.block.raw]:
        assert node.submit_block(raw) is None
    assert node.tip().height == 103
    node.close()


def test_the_manifest_names_seed_and_size(tiny_large: Fixture) -> None:
    manifest = json.loads((tiny_large.path / "manifest.json").read_text())
    assert (manifest["seed"], manifest["filler"], manifest["inputs"]) == ("txcollection-bench-1", 50_000, 60)
    assert 1 <= manifest["regions_2mib_hit"] <= manifest["regions_2mib"]
