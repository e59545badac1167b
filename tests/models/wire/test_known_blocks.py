"""Blocks of real chains: ids, sizes and roots as their headers and an independent implementation (btclib) have them."""

import bz2
import lzma
from pathlib import Path

import pytest
from btclib.tx.tx import Tx

from models.wire.block import Block, decode_block, serialize_block
from models.wire.hashes import to_display
from models.wire.merkle import merkle_root


@pytest.fixture(scope="module")
def full_block(shared_vectors: Path) -> Block:
    """Mainnet block 413,567, from Core's benchmarks."""
    raw = lzma.decompress((shared_vectors / "core" / "block413567.raw.xz").read_bytes())
    return decode_block(raw, allow_trailing=False)


def test_block_413567_has_the_size_its_source_says(full_block: Block) -> None:
    assert len(full_block.transactions) == 1557
    frame = 80 + len(b"\xfd\x15\x06")  # header, and 1557 as a CompactSize
    weight = 4 * frame + sum(tx.weight for tx in full_block.transactions)
    assert weight == 3_999_548
    assert len(full_block.raw) == frame + sum(tx.total_size for tx in full_block.transactions)
    assert not any(tx.has_witness for tx in full_block.transactions)


def test_block_413567_commits_to_its_transactions_and_has_its_proof_of_work(full_block: Block) -> None:
    root, mutated = merkle_root([tx.txid for tx in full_block.transactions])
    assert (root, mutated) == (full_block.header.merkle_root, False)
    exponent, mantissa = full_block.header.bits >> 24, full_block.header.bits & 0xFFFFFF
    assert int.from_bytes(full_block.header.hash, "little") <= mantissa << 8 * (exponent - 3)


def test_ids_and_sizes_of_block_413567_are_those_of_btclib(full_block: Block) -> None:
    for tx in full_block.transactions:
        other = Tx.parse(tx.raw)
        assert (to_display(tx.txid), to_display(tx.wtxid)) == (other.id.hex(), other.hash.hex())
        assert (tx.total_size, tx.weight) == (other.size, other.weight)


def test_ids_and_sizes_of_segwit_transactions_are_those_of_btclib(shared_vectors: Path) -> None:
    lines = lzma.decompress((shared_vectors / "kernel_regtest_blocks.txt.xz").read_bytes()).split()
    blocks = [decode_block(bytes.fromhex(line.decode()), allow_trailing=False) for line in lines]
    transactions = [tx for block in blocks for tx in block.transactions]
    spends = [tx for tx in transactions if tx.has_witness and not tx.is_coinbase]
    assert (len(blocks), sum(len(tx.prevouts) for tx in spends)) == (206, 26)
    for tx in transactions:
        other = Tx.parse(tx.raw)
        assert (to_display(tx.txid), to_display(tx.wtxid)) == (other.id.hex(), other.hash.hex())
        assert (tx.total_size, tx.weight) == (other.size, other.weight)


def test_mainnets_first_blocks_come_back_as_they_were(shared_vectors: Path) -> None:
    stored = bz2.decompress((shared_vectors / "mainnet_blocks1-255.bz2").read_bytes())
    at, previous = 0, None
    count = 0
    while at < len(stored):
        assert stored[at : at + 4].hex() == "f9beb4d9"
        size = int.from_bytes(stored[at + 4 : at + 8], "little")
        raw = stored[at + 8 : at + 8 + size]
        block = decode_block(raw, allow_trailing=False)
        assert serialize_block(block.header, [tx.raw for tx in block.transactions]) == raw
        assert previous is None or block.header.prev_hash == previous
        assert merkle_root([tx.txid for tx in block.transactions]) == (block.header.merkle_root, False)
        previous = block.header.hash
        at += 8 + size
        count += 1
    assert count == 255
