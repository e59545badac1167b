"""Whole chains replayed from genesis: every block is found valid on its parent, and the coins they leave are those
that a node had.
"""

import bz2
import gzip
import json
import lzma
from pathlib import Path

import pytest

from models.coins.coin import Coin
from models.consensus.params import get_params
from models.wire.block import decode_block
from models.wire.hashes import to_display
from tests.models.consensus.replay import ReplayChain


def test_130_regtest_blocks_leave_the_coins_that_the_node_had(data: Path) -> None:
    with gzip.open(data / "chain_shared1.jsonl.gz", "rt") as file:
        head, *blocks = map(json.loads, file)
    with gzip.open(data / "chain_shared1.utxo.jsonl.gz", "rt") as file:
        expected = {
            bytes.fromhex(txid)[::-1] + n.to_bytes(4, "little"): Coin(
                value, height, bool(coinbase), bytes.fromhex(script)
            )
            for txid, n, height, coinbase, value, script, _ in map(json.loads, file)
        }
    chain = ReplayChain(get_params("regtest"))
    assert chain.follow(bytes.fromhex(block["block"]) for block in blocks) == []
    assert (chain.tip.height, to_display(chain.tip.hash)) == (130, head["tip"])
    assert chain.coins == expected


def test_206_regtest_blocks_with_witness_spends(shared_vectors: Path) -> None:
    lines = lzma.decompress((shared_vectors / "kernel_regtest_blocks.txt.xz").read_bytes()).split()
    chain = ReplayChain(get_params("regtest"))
    assert chain.follow(bytes.fromhex(line.decode()) for line in lines) == []
    assert chain.tip.height == 206


@pytest.fixture(scope="module")
def mainnet_blocks(shared_vectors: Path) -> list[bytes]:
    stored = bz2.decompress((shared_vectors / "mainnet_blocks1-255.bz2").read_bytes())
    blocks, at = [], 0
    while at < len(stored):
        size = int.from_bytes(stored[at + 4 : at + 8], "little")
        blocks.append(stored[at + 8 : at + 8 + size])
        at += 8 + size
    return blocks


def test_mainnets_first_255_blocks_with_their_proof_of_work(mainnet_blocks: list[bytes]) -> None:
    chain = ReplayChain(get_params("main"))
    assert chain.follow(mainnet_blocks, check_pow=True) == []
    assert chain.tip.height == 255
    # Genesis created no coin; nobody paid a fee yet, so every other subsidy is still there.
    assert sum(coin.value for coin in chain.coins.values()) == 255 * 50 * 10**8


def test_a_mainnet_block_with_another_nonce_has_no_proof_of_work(mainnet_blocks: list[bytes]) -> None:
    chain = ReplayChain(get_params("main"))
    raw = mainnet_blocks[0]
    changed = raw[:76] + b"\x00\x00\x00\x00" + raw[80:]
    failure = chain.judge(decode_block(changed), check_pow=True).failure
    assert failure
    assert failure.debug_line == "high-hash, proof of work failed"
