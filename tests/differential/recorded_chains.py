"""Whole chains that were recorded: their blocks in order, and what a node answered and had after them."""

import bz2
import gzip
import json
import lzma
from pathlib import Path
from typing import Any

#: SHA-256 twice of nothing, in display order: `hash_serialized_3` of a set without coins.
EMPTY_SET = "56944c5d3f98413ef45cf54545538103cc9f298e0575820ad3591376e2e0f65d"


def lines(path: Path) -> list[Any]:
    with gzip.open(path, "rt") as file:
        return [json.loads(line) for line in file]


def shared_chain(data: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Header line (tip, hash_serialized_3, utxos) and 130 blocks with height and hash."""
    head, *blocks = lines(data / "chain_shared1.jsonl.gz")
    return head, blocks


def shared_coins(data: Path) -> dict[bytes, tuple[int, int, bool, bytes]]:
    """The coins that the node had at the tip of the shared chain: outpoint -> satoshis, height, coinbase, script."""
    return {
        bytes.fromhex(txid)[::-1] + n.to_bytes(4, "little"): (value, height, bool(coinbase), bytes.fromhex(script))
        for txid, n, height, coinbase, value, script, _ in lines(data / "chain_shared1.utxo.jsonl.gz")
    }


def reorg(data: Path) -> list[dict[str, Any]]:
    """Seven blocks that fork at height 125, with what `submitblock` answered and the node had after each."""
    return lines(data / "reorg_shared1.jsonl.gz")


def kernel_blocks(shared_vectors: Path) -> list[bytes]:
    """206 regtest blocks from height 1."""
    text = lzma.decompress((shared_vectors / "kernel_regtest_blocks.txt.xz").read_bytes()).decode()
    return [bytes.fromhex(line) for line in text.split()]


def mainnet_blocks(shared_vectors: Path) -> list[bytes]:
    """The first 255 blocks of main after genesis."""
    stored = bz2.decompress((shared_vectors / "mainnet_blocks1-255.bz2").read_bytes())
    blocks, at = [], 0
    while at < len(stored):
        size = int.from_bytes(stored[at + 4 : at + 8], "little")
        blocks.append(stored[at + 8 : at + 8 + size])
        at += 8 + size
    return blocks
