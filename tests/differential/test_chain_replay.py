"""Recorded chains replayed in one process through the store: tip, coins and `hash_serialized_3` are those of the node
after every step that records one, and taking everything back ends with the empty set.
"""

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from models.coins.coin import Coin
from models.errors import DecodeError, StaleView, StoreError
from models.storage.store import Store
from models.wire.block import decode_block
from tests.differential.local_chain import LocalChain
from tests.differential.recorded_chains import (
    EMPTY_SET,
    kernel_blocks,
    lines,
    mainnet_blocks,
    reorg,
    shared_chain,
    shared_coins,
)


def block_id(raw: bytes) -> str:
    return hashlib.sha256(hashlib.sha256(raw[:80]).digest()).digest()[::-1].hex()


@pytest.fixture
def make_chain(tmp_path: Path) -> Iterator[Callable[..., LocalChain]]:
    made: list[LocalChain] = []

    def make(network: str) -> LocalChain:
        path = tmp_path / f"store{len(made)}"
        Store.create_genesis(network, path)
        made.append(LocalChain(path))
        return made[-1]

    yield make
    for chain in made:
        chain.close()


class PlainCoins:
    """The coins of a chain as a dictionary, spent and created in the plainest way."""

    def __init__(self) -> None:
        self.coins: dict[bytes, Coin] = {}
        self.states: list[dict[bytes, Coin]] = [{}]  # by height

    def apply(self, raw: bytes) -> None:
        height = len(self.states)
        for number, tx in enumerate(decode_block(raw).transactions):
            for prevout in tx.prevouts if number else ():
                del self.coins[prevout]
            for n, (value, script) in enumerate(zip(tx.values, tx.script_pubkeys, strict=True)):
                if script[:1] != b"\x6a" and len(script) <= 10_000:
                    self.coins[tx.txid + n.to_bytes(4, "little")] = Coin(value, height, number == 0, script)
        self.states.append(dict(self.coins))


def replay(chain: LocalChain, blocks: list[bytes]) -> None:
    """Forward block by block, then back to genesis, comparing all coins at every height."""
    plain = PlainCoins()
    for height, raw in enumerate(blocks, 1):
        assert chain.follow(raw) == 1
        assert (chain.tip.height, chain.tip_id) == (height, block_id(raw))
        plain.apply(raw)
        assert chain.store.coins.best_block == chain.tip.hash
        if height % 16 == 0 or height == len(blocks):
            assert chain.coins() == plain.coins
    for height in range(len(blocks) - 1, -1, -1):
        chain.disconnect()
        assert chain.tip.height == height
        if height % 16 == 0:
            assert chain.coins() == plain.states[height]
    assert chain.tip.hash == chain.params.genesis_hash
    assert (chain.utxo().txouts, chain.utxo().hash_serialized_3) == (0, EMPTY_SET)
    with pytest.raises(StoreError, match="genesis"):
        chain.disconnect()


def test_chain_shared1_and_its_reorg(make_chain: Callable[..., LocalChain], data: Path) -> None:
    head, blocks = shared_chain(data)
    chain = make_chain("regtest")
    for block in blocks:
        assert chain.submit(bytes.fromhex(block["block"])) is None
        assert (chain.tip.height, chain.tip_id) == (block["height"], block["hash"])
    utxo = chain.utxo()
    assert (chain.tip_id, utxo.txouts, utxo.hash_serialized_3) == (
        head["tip"],
        head["utxos"],
        head["hash_serialized_3"],
    )
    coins = {o: (c.value, c.height, c.coinbase, c.script) for o, c in chain.coins().items()}
    assert coins == shared_coins(data)

    for step in reorg(data):
        assert chain.submit(bytes.fromhex(step["block"])) == step["submit_result"]
        utxo = chain.utxo()
        assert (chain.tip_id, chain.tip.height) == (step["tip_after"], step["height_after"])
        assert (utxo.txouts, utxo.hash_serialized_3) == (step["utxos"], step["hash_serialized_3"])
    assert (chain.connected, chain.disconnected) == (130 + 7, 5)

    while chain.tip.height:
        chain.disconnect()
    assert (chain.utxo().txouts, chain.utxo().hash_serialized_3) == (0, EMPTY_SET)


def test_chain_shared1_is_the_same_forwards_and_backwards(make_chain: Callable[..., LocalChain], data: Path) -> None:
    replay(make_chain("regtest"), [bytes.fromhex(block["block"]) for block in shared_chain(data)[1]])


def test_the_81_proposals_on_the_tip_of_chain_shared1(make_chain: Callable[..., LocalChain], data: Path) -> None:
    chain = make_chain("regtest")
    for block in shared_chain(data)[1]:
        chain.follow(bytes.fromhex(block["block"]))
    chain.now = chain.chain.context().prev_time
    proposals = lines(data / "proposals_shared1.jsonl.gz")
    wrong = []
    for case in proposals:
        answer: str | None
        try:
            block = decode_block(bytes.fromhex(case["block"]))
            known = chain.chain.proposal_preface(block.header.hash)
            failure = None if known else chain.judge(bytes.fromhex(case["block"])).failure
            answer = known.text if known else failure.reason.text if failure else None
        except DecodeError:
            answer = "rpc:-22:Block decode failed"
        if answer != (case["verdict"] and case["verdict"].split(" (")[0]):
            wrong.append((case["name"], answer, case["verdict"]))
    assert wrong == []
    assert len(proposals) == 81


def test_kernel_regtest_blocks(make_chain: Callable[..., LocalChain], shared_vectors: Path) -> None:
    replay(make_chain("regtest"), kernel_blocks(shared_vectors))


def test_the_first_255_blocks_of_main(make_chain: Callable[..., LocalChain], shared_vectors: Path) -> None:
    blocks = mainnet_blocks(shared_vectors)
    assert len(blocks) == 255
    assert block_id(blocks[0]) == "00000000839a8e6886ab5951d76f411475428afc90947ee320161bbf18eb6048"
    replay(make_chain("main"), blocks)


def test_a_step_that_was_judged_at_another_tip_is_refused_and_changes_nothing(
    make_chain: Callable[..., LocalChain], data: Path
) -> None:
    chain = make_chain("regtest")
    first, second = (bytes.fromhex(block["block"]) for block in shared_chain(data)[1][:2])
    old = chain.tip.version
    chain.follow(first)
    chain.chain.store_block(decode_block(second))
    with pytest.raises(StaleView):
        chain.chain.connect(decode_block(second).header.hash, old)
    with pytest.raises(StaleView):
        chain.chain.disconnect(old)
    assert (chain.tip.height, len(chain.coins())) == (1, 1)
