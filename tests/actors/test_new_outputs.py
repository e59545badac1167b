"""Outputs of mempool transactions that were looked for before anybody declared them (BIP30): what was absent may be
believed only as long as no block can have made it, or brought it back.
"""

from collections.abc import Callable
from typing import Any

import pytest

from tests.actors.blocks import Tx, on_top, spend
from tests.actors.small_chain import SmallChain
from tests.actors.watching import until

BIP30 = "bad-txns-BIP30"


@pytest.fixture
def node(chain_node: Callable[..., Any]) -> Any:
    return chain_node(mempool_verify="on")


def reason(node: Any, tx: Tx) -> str | None:
    """Of a declaration of this transaction alone, which the mempool holds and has looked at."""
    node.mempool_add([tx.raw])
    node.wait_mempool()
    with node.collect_txs([tx.id]) as collection:
        assert collection.unknown_tx_pos() == []
        return collection.make_template(node.tip_hash()).reason


def followed(node: Any, tx: Tx, held: bool) -> None:
    """The mempool hears of blocks by messages that nobody waits for."""
    until(lambda: (tx.id in node.mempool_wtxids()) == held, "the mempool has followed the block")


def test_what_is_known_to_be_new_is_not_read_again(node: Any, small_chain: SmallChain) -> None:
    known, late = spend(small_chain.coins[:1]), spend(small_chain.coins[1:2])
    node.mempool_add([known.raw])
    node.wait_mempool()
    with node.collect_txs([known.id, late.id]) as collection:
        prepared = collection.wait_prefetched()
        assert (prepared["probes"], prepared["from_workers"]) == (0, 1)
    block = on_top(small_chain.tip, [spend(small_chain.coins[2:3])])
    assert node.submit_block(block.raw) is None  # another block leaves it as it is
    with node.collect_txs([known.id, late.id]) as collection:
        assert collection.wait_prefetched()["probes"] == 0
        assert collection.make_template(node.tip_hash(), missing=[late.raw]).ok


def test_what_a_block_has_made_is_not_new(node: Any, small_chain: SmallChain) -> None:
    tx = spend(small_chain.coins[:1])
    assert reason(node, tx) is None
    block = on_top(small_chain.tip, [tx])
    assert node.submit_block(block.raw) is None
    followed(node, tx, False)
    assert reason(node, tx) == BIP30
    node.disconnect_tip()
    assert reason(node, tx) is None
    assert node.submit_block(block.raw) == "duplicate"  # and is the tip again
    followed(node, tx, False)
    assert reason(node, tx) == BIP30


def test_what_a_block_that_is_taken_back_has_spent_is_not_new(node: Any, small_chain: SmallChain) -> None:
    """The transaction is in the chain and all of its outputs are spent: it may be made again. Then the spend is
    taken back."""
    tx = spend(small_chain.coins[:1])
    first = on_top(small_chain.tip, [tx])
    second = on_top(first, [spend([tx.coin()])])
    assert node.submit_block(first.raw) is None
    assert node.submit_block(second.raw) is None
    assert reason(node, tx) == "bad-txns-inputs-missingorspent"  # not BIP30: nothing of it is unspent
    node.disconnect_tip()
    assert reason(node, tx) == BIP30
