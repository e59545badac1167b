"""A block is recognised as a declaration's by its bytes: whatever is known of the declaration, and if all is equal."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.collection import TxCollection
from models.consensus.table import TxTable
from models.declared_block import match_block
from models.wire.transaction import decode_transaction
from tests.actors.blocks import TestBlock, TestCoin, Tx, mine, spend

TXS = [spend([TestCoin(bytes([n]) * 32, n, 5000)], script_sig=bytes(n)) for n in range(12)]


def block_of(txs: Sequence[Tx]) -> TestBlock:
    return mine(bytes(32), 7, 1_700_000_000, txs)


def declaration(txs: Sequence[Tx], known: Sequence[int], supplied: Sequence[int] = ()) -> TxCollection:
    """A list of which some transactions were in the mempool, and some were supplied afterwards."""
    collection = TxCollection([tx.txid for tx in txs])
    if known:
        table = TxTable.from_transactions([decode_transaction(txs[n].raw) for n in known])
        collection.take_known(np.array(known), table)
    for n in supplied:
        collection.take_supplied(collection.check_supply([txs[n].raw]))
    return collection


@given(
    count=st.integers(0, len(TXS)),
    shares=st.lists(st.sampled_from(["known", "supplied", "missing"]), min_size=len(TXS), max_size=len(TXS)),
)
def test_whatever_is_known_the_rest_is_found(count: int, shares: list[str]) -> None:
    txs = TXS[:count]
    places = {share: [n for n in range(count) if shares[n] == share] for share in ("known", "supplied", "missing")}
    collection = declaration(txs, places["known"], places["supplied"])
    block = block_of(txs)
    found = match_block(collection, block.raw)
    assert found is not None
    assert found.missing == [txs[n].raw for n in places["missing"]]
    assert found.header.serialize() == block.raw[:80]
    assert found.coinbase.raw == block.transactions[0].raw


def test_bytes_after_the_block_are_ignored() -> None:
    assert match_block(declaration(TXS, range(12)), block_of(TXS).raw + b"more") is not None


@pytest.mark.parametrize("known", [(), (0, 1), (2, 3), (0, 1, 2, 3)], ids=str)
@pytest.mark.parametrize(
    "others",
    [TXS[:3], TXS[:5], [TXS[0], TXS[2], TXS[1], TXS[3]], [*TXS[:3], TXS[5]], [TXS[5], *TXS[1:4]], []],
    ids=["shorter", "longer", "other order", "other last", "other first", "none"],
)
def test_another_block_is_none_of_it(known: Sequence[int], others: Sequence[Tx]) -> None:
    assert match_block(declaration(TXS[:4], known), block_of(others).raw) is None


@pytest.mark.parametrize("known", [(), (0, 1), (0, 1, 2, 3)], ids=str)
def test_a_block_cut_off_anywhere_is_none_of_it(known: Sequence[int]) -> None:
    raw = block_of(TXS[:4]).raw
    collection = declaration(TXS[:4], known)
    assert [cut for cut in range(len(raw)) if match_block(collection, raw[:cut]) is not None] == []


def test_one_byte_of_a_known_transaction_changed() -> None:
    raw = bytearray(block_of(TXS[:4]).raw)
    raw[-1] ^= 1
    assert match_block(declaration(TXS[:4], range(4)), bytes(raw)) is None
