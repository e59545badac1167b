"""Recorded chains through `node.submit_block`: every block is judged and connected by real actors, and after every step
that records one, tip, coins and `hash_serialized_3` are those of the node; taken back, nothing is left.
"""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from models.errors import DecodeError, StoreError
from models.storage.store import Store
from tests.actors.watching import stats_of
from tests.differential.recorded_chains import (
    EMPTY_SET,
    kernel_blocks,
    lines,
    mainnet_blocks,
    reorg,
    shared_chain,
)


@pytest.fixture
def genesis_node(tmp_path: Path, start_node: Callable[..., Any]) -> Iterator[Callable[..., Any]]:
    made: list[Any] = []

    def make(network: str, **settings: Any) -> Any:
        Store.create_genesis(network, tmp_path / "store")
        made.append(start_node(tmp_path / "store", **settings))
        return made[-1]

    yield make
    for node in made:
        node.close()
    shutil.rmtree(tmp_path, ignore_errors=True)


def back_to_genesis(node: Any) -> None:
    while node.tip().height:
        node.disconnect_tip()
    utxo = node.utxo_stats()
    assert (utxo.height, utxo.txouts, utxo.total_amount, utxo.hash_serialized_3) == (0, 0, 0, EMPTY_SET)
    with pytest.raises(StoreError, match="genesis"):
        node.disconnect_tip()


def test_chain_shared1_its_proposals_and_its_reorg(genesis_node: Callable[..., Any], data: Path) -> None:
    node = genesis_node("regtest")
    head, blocks = shared_chain(data)
    for block in blocks:
        assert node.submit_block(bytes.fromhex(block["block"])) is None
        tip = node.tip()
        assert (tip.height, tip.hash[::-1].hex()) == (block["height"], block["hash"])
    utxo = node.utxo_stats()
    assert (utxo.txouts, utxo.hash_serialized_3) == (head["utxos"], head["hash_serialized_3"])

    wrong = []
    proposals = lines(data / "proposals_shared1.jsonl.gz")
    for case in proposals:
        try:
            answer = node.check_block(bytes.fromhex(case["block"]), proposal=True).reason
        except DecodeError:
            answer = "rpc:-22:Block decode failed"
        if answer != (case["verdict"] and case["verdict"].split(" (")[0]):
            wrong.append((case["name"], answer, case["verdict"]))
    assert wrong == []
    assert len(proposals) == 81

    for step in reorg(data):
        assert node.submit_block(bytes.fromhex(step["block"])) == step["submit_result"]
        utxo = node.utxo_stats()
        assert (node.tip_hash(), node.tip().height) == (step["tip_after"], step["height_after"])
        assert (utxo.height, utxo.txouts, utxo.hash_serialized_3) == (
            step["height_after"],
            step["utxos"],
            step["hash_serialized_3"],
        )
    [chainstate] = stats_of(node, "chainstate")
    assert (chainstate["connected"], chainstate["disconnected"]) == (137, 5)
    back_to_genesis(node)


def test_kernel_regtest_blocks(genesis_node: Callable[..., Any], shared_vectors: Path) -> None:
    node = genesis_node("regtest", script_mode="inline")
    blocks = kernel_blocks(shared_vectors)
    for height, raw in enumerate(blocks, 1):
        assert node.submit_block(raw) is None
        assert node.tip().height == height
    assert node.submit_block(blocks[-1]) == node.submit_block(blocks[100]) == "duplicate"
    assert node.utxo_stats().height == len(blocks) == 206
    back_to_genesis(node)


def test_the_first_255_blocks_of_main(genesis_node: Callable[..., Any], shared_vectors: Path) -> None:
    node = genesis_node("main")
    for height, raw in enumerate(mainnet_blocks(shared_vectors), 1):
        assert node.submit_block(raw) is None
        assert node.tip().height == height
    # No fees yet and the coin of genesis cannot be spent, so 255 subsidies are there.
    assert node.utxo_stats().total_amount == 255 * 50 * 10**8
    back_to_genesis(node)
