"""Declarations made to be slow: they are answered, or refused as over the deadline, and others are served meanwhile."""

import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from cluster import Cluster
from models.errors import Busy, DecodeError
from tests.actors.blocks import OP_RETURN, TestBlock, TestCoin, Tx, on_top, spend
from tests.actors.small_chain import SmallChain
from tests.actors.watching import actors, until

MOST_TRANSACTIONS = 16_666  # in a declaration (SPEC 1.2)
#: A signature of the right form that signs nothing, and the generator point of secp256k1 as the key.
SIGNATURE = bytes.fromhex("300602010102010101")
KEY = bytes.fromhex("0279be667ef9dcbbac55a06295ce870b07029bfcdb2dce28d959f2815b16f81798")
UNLOCK = bytes((len(SIGNATURE),)) + SIGNATURE + bytes((len(KEY),)) + KEY
#: Fifty checks, each over a hash of the whole transaction with another part of the script: OP_2DUP OP_CODESEPARATOR
#: OP_CHECKSIG OP_DROP, then OP_2DROP OP_1. 201 operations, the most that a script may have.
SLOW_SCRIPT = bytes.fromhex("6eabac75") * 50 + bytes.fromhex("6d51")
SLOW_INPUTS = 120
PADDING = 950_000  # bytes: 120 x 50 x 0.95 MB are hashed, 5.7 GB
PUSHDATA4 = b"\x4e"


@pytest.fixture(scope="module")
def node(module_node: Callable[..., Any]) -> Any:
    return module_node(collection_actors=1)


def slow_block(parent: TestBlock, coin: TestCoin) -> tuple[TestBlock, Tx]:
    """A block that makes slow coins, and the transaction that spends all of them: quadratic hashing (before BIP143)."""
    maker = spend([coin], [(coin.value // (SLOW_INPUTS + 1), SLOW_SCRIPT)] * SLOW_INPUTS)
    coins = [maker.coin(n) for n in range(SLOW_INPUTS)]
    total = sum(c.value for c in coins)
    filling = OP_RETURN + PUSHDATA4 + PADDING.to_bytes(4, "little") + bytes(PADDING)
    return on_top(parent, [maker]), spend(coins, [total - 1000, (0, filling)], script_sig=UNLOCK)


@pytest.mark.timeout(120)
def test_scripts_past_the_deadline_are_refused_and_others_are_served_meanwhile(
    chain_node: Callable[..., Any], small_chain: SmallChain
) -> None:
    node = chain_node(script_workers=3, spare_workers=1, script_deadline_s=3, collection_actors=2)
    block, slow = slow_block(small_chain.tip, small_chain.coins[0])
    assert node.submit_block(block.raw) is None
    before = {handle._actor_id for handle in actors(node, "script")}
    others = [spend([coin]) for coin in small_chain.coins[1:21]]
    with Cluster.connect(store=node.store) as hostile, ThreadPoolExecutor(1) as thread:
        declared = hostile.collect_txs([slow.id])
        asked = thread.submit(declared.make_template, block.id, missing=[slow.raw])
        served = 0
        while not asked.done():
            with node.collect_txs([tx.id for tx in others]) as collection:
                assert collection.make_template(block.id, missing=[tx.raw for tx in others]).ok
            served += 1
        with pytest.raises(Busy, match="script request took longer than 3 s"):
            asked.result()
        assert served > 1
        until(
            lambda: len(now := {h._actor_id for h in actors(node, "script")}) == 3 and now != before,
            "the worker that was at it was replaced",
        )
        with node.collect_txs([tx.id for tx in others]) as collection:
            assert collection.make_template(block.id, missing=[tx.raw for tx in others]).ok


def test_the_longest_list_of_ids_that_nobody_has(node: Any, small_chain: SmallChain) -> None:
    with node.collect_txs([secrets.token_hex(32) for _ in range(MOST_TRANSACTIONS)]) as collection:
        assert collection.unknown_tx_pos() == list(range(MOST_TRANSACTIONS))
        assert collection.make_template(small_chain.tip.id).kind == "missing"


def test_four_megabytes_of_junk(node: Any, small_chain: SmallChain) -> None:
    tx = spend([small_chain.coins[0]])
    with node.collect_txs([tx.id]) as collection:
        for junk in (secrets.token_bytes(4_000_000), tx.raw[:4] + b"\xfe\xff\xff\xff\x00" + bytes(4_000_000)):
            with pytest.raises(DecodeError, match="transaction 0 of 1 does not decode"):
                collection.add_missing_txs([junk])
        assert collection.make_template(small_chain.tip.id, missing=[tx.raw]).ok
