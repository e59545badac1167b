"""The template of a valid declaration, wherever it was judged: what a miner needs of it, and that it lasts."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.actors.blocks import coinbase, merkle_root, sha256d, spend, subsidy
from tests.actors.small_chain import SmallChain


@pytest.fixture(scope="module", params=["on", "off"])
def node(request: pytest.FixtureRequest, module_node: Callable[..., Any]) -> Any:
    return module_node(prefetch=request.param)


@pytest.mark.parametrize("late", [0, 1, 7])
@pytest.mark.parametrize("closed", [False, True])
def test_the_path_leads_to_the_root(node: Any, small_chain: SmallChain, late: int, closed: bool) -> None:
    """`late` of the seven transactions are unknown at first; the path is asked for before or after the end."""
    transactions = [spend([coin]) for coin in small_chain.coins[:7]]
    node.mempool_add([tx.raw for tx in transactions[late:]])
    first = coinbase(small_chain.tip.height + 1, [subsidy(small_chain.tip.height + 1)])
    collection = node.collect_txs([tx.id for tx in transactions])
    missing = [tx.raw for tx in transactions[:late]]
    template = collection.make_template(small_chain.tip.id, first.raw, missing=missing).template
    if closed:
        collection.close()
    folded = first.txid
    for sibling in template.coinbase_merkle_path:
        folded = sha256d(folded + sibling)
    assert folded == merkle_root([first.txid, *(tx.txid for tx in transactions)])
    assert len(template.coinbase_merkle_path) == 3
    collection.close()
    for tx in transactions[late:]:
        node.mempool_remove(tx.id)


def test_a_template_without_transactions_has_no_path(node: Any, small_chain: SmallChain) -> None:
    with node.collect_txs([]) as collection:
        assert collection.make_template(small_chain.tip.id).template.coinbase_merkle_path == []
