"""Reads that fail: a worker told to, and a database with one flipped byte. The client gets an error that says so; it
never becomes an absence, so never a verdict, and speculation that meets it ends without a sound.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import ray

from models.coins.codec import coin_key
from models.errors import CoinsReadError
from models.storage.reader import CoinsReader
from models.storage.store import Store
from tests.actors.blocks import TestCoin, Tx, on_top, spend
from tests.actors.small_chain import QUIET, SmallChain
from tests.actors.watching import Counters, actors, drill, stats_of, until

NOWHERE = TestCoin(b"\x22" * 32, 0, 100_000)


@pytest.fixture(scope="module")
def node(module_node: Callable[..., Any]) -> Any:
    return module_node()


@pytest.fixture(scope="module")
def coins(small_chain: SmallChain) -> Iterator[TestCoin]:
    return iter(small_chain.coins)


def fail_next_read(node: Any, text: str) -> None:
    """Of the first worker."""
    ray.get(actors(node, "fetch")[0].drill.remote(fail=text))


def test_a_failing_read_of_a_check_is_an_error_at_the_client_and_the_next_check_is_served(
    node: Any, small_chain: SmallChain, coins: Iterator[TestCoin]
) -> None:
    tx = spend([next(coins)])
    with node.collect_txs([tx.id]) as collection:
        collection.add_missing_txs([tx.raw])
        collection.wait_prefetched()
        fail_next_read(node, "Corruption: block checksum mismatch in 000123.ldb")
        with pytest.raises(CoinsReadError, match="checksum mismatch in 000123.ldb"):
            collection.make_template(small_chain.tip.id)
        assert collection.make_template(small_chain.tip.id).ok


def test_a_failing_speculative_read_ends_speculation_silently(
    node: Any, small_chain: SmallChain, coins: Iterator[TestCoin]
) -> None:
    known, late = spend([next(coins), next(coins)]), spend([NOWHERE])
    node.mempool_add([known.raw])
    fail_next_read(node, "Input/output error")
    with node.collect_txs([known.id, late.id]) as collection:
        stats = collection.wait_prefetched()
        assert (stats["stopped"], stats["observations"]) == ("CoinsReadError: Input/output error", 0)
        verdict = collection.make_template(small_chain.tip.id, missing=[late.raw])
        assert (verdict.reason, verdict.offender.txid) == ("bad-txns-inputs-missingorspent", late.id)


def test_a_failing_read_of_a_proposal_and_of_a_submission(node: Any, small_chain: SmallChain, coins: Any) -> None:
    block = on_top(small_chain.tip, [spend([next(coins)])])
    before = Counters(node)
    for ask in (node.check_block, node.submit_block):
        fail_next_read(node, "Input/output error")
        with pytest.raises(CoinsReadError, match="Input/output error"):
            ask(block.raw)
    assert node.tip_hash() == small_chain.tip.id
    assert node.check_block(block.raw).ok
    assert node.submit_block(block.raw) == "duplicate"  # its body was kept; now it is connected
    assert node.tip_hash() == block.id
    assert before.since()["chainstate.connected"] == 1
    node.disconnect_tip()


def test_a_failing_read_does_not_stop_others_at_the_same_worker(node: Any, small_chain: SmallChain, coins: Any) -> None:
    first, second = spend([next(coins)]), spend([next(coins)])
    with node.collect_txs([first.id]) as one, node.collect_txs([second.id]) as other:
        one.add_missing_txs([first.raw])
        other.add_missing_txs([second.raw])
        one.wait_prefetched()
        other.wait_prefetched()
        drill(node, "fetch", hold_checks=True)
        asked = [c._actor.make_template.remote(c._key, node.tip().hash, None, None, None, None) for c in (one, other)]
        until(lambda: stats_of(node, "fetch")[0]["waiting"]["validation"] == 2, "both reads lie at the worker")
        fail_next_read(node, "once")
        drill(node, "fetch", hold_checks=False)
        answers = sorted(answer[0] for answer in ray.get(asked))
        assert answers == ["error", "ok"]


@dataclass
class Damaged:
    """A store with one flipped byte, and coins whose records can and cannot be read any more."""

    path: Path
    readable: list[TestCoin]
    unreadable: list[TestCoin]


@pytest.fixture(scope="module")
def damaged(small_chain: SmallChain) -> Damaged:
    path = small_chain.store()
    Store.open(path).close()  # LevelDB moves what lies in its log into a table
    table = max((path / "chainstate").glob("*.ldb"), key=lambda file: file.stat().st_size)
    content = bytearray(table.read_bytes())
    content[len(content) // 3] ^= 0x40
    table.write_bytes(content)
    reader = CoinsReader.open(path / "chainstate")
    readable, unreadable = [], []
    for coin in small_chain.coins:
        try:
            assert reader.multi_get([coin_key(coin.outpoint)]) != [None]
            readable.append(coin)
        except CoinsReadError:
            unreadable.append(coin)
    reader.close()
    assert readable and unreadable, "the flipped byte must spoil some records and not all"
    return Damaged(path, readable, unreadable)


@pytest.fixture(scope="module", params=["parallel", "serial", "on the spot"])
def damaged_node(damaged: Damaged, start_node: Callable[..., Any], request: pytest.FixtureRequest) -> Iterator[Any]:
    fetch = "serial" if request.param == "serial" else "parallel"
    local = 64 if request.param == "on the spot" else 0
    node = start_node(damaged.path, **{**QUIET, "validation_fetch": fetch, "local_reads": local})
    yield node
    node.close()


def test_what_can_be_read_is_served(damaged_node: Any, damaged: Damaged, small_chain: SmallChain) -> None:
    tx = spend(damaged.readable[:2])
    with damaged_node.collect_txs([tx.id]) as collection:
        assert collection.make_template(small_chain.tip.id, missing=[tx.raw]).ok


def test_a_flipped_byte_is_a_named_error_and_never_an_absence(
    damaged_node: Any, damaged: Damaged, small_chain: SmallChain
) -> None:
    coin = damaged.unreadable[len(damaged.unreadable) // 2]
    known, late = spend([coin, damaged.readable[0]]), spend(damaged.readable[1:2])
    refused(damaged_node, small_chain, known, late)
    block = on_top(small_chain.tip, [known])
    with pytest.raises(CoinsReadError):
        damaged_node.check_block(block.raw)
    with pytest.raises(CoinsReadError):
        damaged_node.submit_block(block.raw)
    assert damaged_node.tip_hash() == small_chain.tip.id
    with pytest.raises(CoinsReadError, match="chainstate"):
        damaged_node.coins([(coin.txid[::-1].hex(), coin.n)])


def test_where_a_coin_would_lie_in_the_damaged_place_nothing_is_said_about_it(
    damaged_node: Any, damaged: Damaged, small_chain: SmallChain
) -> None:
    """There is no such coin, but a reader that must look into the damaged block cannot know. The owner need not look:
    LevelDB's filter, in another place of the file, tells it so; that is an absence, and a right one."""
    near = damaged.unreadable[len(damaged.unreadable) // 2]
    known, late = spend([TestCoin(near.txid, 200, near.value)]), spend(damaged.readable[1:2])
    if damaged_node.settings.validation_fetch == "serial":
        with damaged_node.collect_txs([known.id]) as collection:
            verdict = collection.make_template(small_chain.tip.id, missing=[known.raw])
            assert verdict.reason == "bad-txns-inputs-missingorspent"
        return
    refused(damaged_node, small_chain, known, late)


def refused(node: Any, chain: SmallChain, known: Tx, late: Tx) -> None:
    """Speculation ends, and each check is an error that names the database and what is wrong."""
    node.mempool_add([known.raw])
    with node.collect_txs([known.id, late.id]) as collection:
        assert collection.wait_prefetched()["stopped"].startswith("CoinsReadError")
        for _ in range(2):
            with pytest.raises(CoinsReadError, match=r"chainstate.*(checksum|Corruption)"):
                collection.make_template(chain.tip.id, missing=[late.raw])
    node.mempool_remove(known.id)


def test_counting_all_coins_meets_the_flipped_byte(damaged_node: Any) -> None:
    with pytest.raises(CoinsReadError, match="chainstate"):
        damaged_node.utxo_stats()
