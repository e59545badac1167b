"""Blocks of real and regtest chains: every spend whose coin is in the data passes, and fails with one bit of its script
changed; and the legacy sigops of a full mainnet block, counted per transaction by an independent implementation.
"""

import bz2
import lzma
from dataclasses import dataclass
from pathlib import Path

import pytest
from btclib.tx.tx import Tx

from models.script import verify
from models.script.classes import OTHER, WITNESS_V0_KEYHASH, script_class
from models.script.sigops import count_sigops
from models.wire.block import Block, decode_block
from models.wire.hashes import to_display
from models.wire.merkle import merkle_root
from models.wire.transaction import Transaction

# In force at mainnet height 413,567: BIP65 since 388,381; BIP112 and BIP147 not yet (Core: kernel/chainparams.cpp).
FLAGS_413567 = verify.P2SH | verify.DERSIG | verify.CHECKLOCKTIMEVERIFY | verify.WITNESS | verify.TAPROOT
FLAGS_2009 = verify.P2SH | verify.WITNESS | verify.TAPROOT


@dataclass(frozen=True)
class Spend:
    tx: Transaction
    spent: list[tuple[int, bytes]]  # a coin that is not in the data is (0, b"")
    known: list[int]  # input indices whose coin is in the data


def spends_in(blocks: list[Block]) -> list[Spend]:
    coins: dict[bytes, tuple[int, bytes]] = {}
    found = []
    for block in blocks:
        for tx in block.transactions:
            known = [index for index, prevout in enumerate(tx.prevouts) if prevout in coins]
            if known:
                found.append(Spend(tx, [coins.get(prevout, (0, b"")) for prevout in tx.prevouts], known))
            for index, coin in enumerate(zip(tx.values, tx.script_pubkeys, strict=True)):
                coins[tx.txid + index.to_bytes(4, "little")] = coin
    return found


def count_known(spends: list[Spend]) -> int:
    return sum(len(spend.known) for spend in spends)


def kinds(spends: list[Spend]) -> set[int]:
    return {script_class(spend.spent[index][1]) for spend in spends for index in spend.known}


def outcomes(spends: list[Spend], flags: int) -> set[bool]:
    return {ok for spend in spends for ok in verify.verify_inputs(spend.tx.raw, spend.spent, flags, spend.known)}


def with_a_bit_changed(spend: Spend) -> Spend:
    """The same spend, with one bit of the key or of the key's hash in each coin's script turned round."""
    spent = [
        (value, script[:5] + bytes([script[5] ^ 1]) + script[6:] if script else b"") for value, script in spend.spent
    ]
    return Spend(spend.tx, spent, spend.known)


@pytest.fixture(scope="module")
def block_413567(shared_vectors: Path) -> Block:
    return decode_block(lzma.decompress((shared_vectors / "core" / "block413567.raw.xz").read_bytes()))


def test_block_413567_is_read_whole(block_413567: Block) -> None:
    assert to_display(block_413567.header.hash) == "0000000000000000025aff8be8a55df8f89c77296db6198f272d6577325d4069"
    root, mutated = merkle_root([tx.txid for tx in block_413567.transactions])
    assert (root, mutated) == (block_413567.header.merkle_root, False)
    assert len(block_413567.transactions) == 1557
    # Without witness four times its size: 80 bytes of header, 3 of the count, the transactions.
    assert 4 * (80 + 3) + sum(tx.weight for tx in block_413567.transactions) == 3_999_548


def test_legacy_sigops_of_block_413567(block_413567: Block) -> None:
    counted = [
        sum(count_sigops(script, False) for script in tx.script_sigs + tx.script_pubkeys)
        for tx in block_413567.transactions
    ]
    assert counted == [Tx.parse(tx.raw).sig_op_count for tx in block_413567.transactions]
    assert sum(counted) == 2841


def test_spends_inside_block_413567_pass(block_413567: Block) -> None:
    spends = spends_in([block_413567])
    assert count_known(spends) == 287
    assert outcomes(spends, FLAGS_413567) == {True}


def test_spends_inside_block_413567_fail_with_a_bit_changed(block_413567: Block) -> None:
    spends = [with_a_bit_changed(spend) for spend in spends_in([block_413567])]
    assert outcomes(spends, FLAGS_413567) == {False}


@pytest.fixture(scope="module")
def kernel_regtest(shared_vectors: Path) -> list[Spend]:
    with lzma.open(shared_vectors / "kernel_regtest_blocks.txt.xz", "rt") as lines:
        blocks = [decode_block(bytes.fromhex(line)) for line in lines]
    assert len(blocks) == 206
    return spends_in(blocks)


def test_regtest_keyhash_spends(kernel_regtest: list[Spend]) -> None:
    assert (count_known(kernel_regtest), kinds(kernel_regtest)) == (26, {WITNESS_V0_KEYHASH})
    assert outcomes(kernel_regtest, verify.ALL_FLAGS) == {True}
    assert outcomes([with_a_bit_changed(spend) for spend in kernel_regtest], verify.ALL_FLAGS) == {False}


def test_a_keyhash_signature_covers_the_amount(kernel_regtest: list[Spend]) -> None:
    richer = [Spend(s.tx, [(value + 1, script) for value, script in s.spent], s.known) for s in kernel_regtest]
    assert outcomes(richer, verify.ALL_FLAGS) == {False}


def test_mainnet_2009_pubkey_spends(shared_vectors: Path) -> None:
    stored = bz2.decompress((shared_vectors / "mainnet_blocks1-255.bz2").read_bytes())
    blocks = []
    position = 0
    while position < len(stored):  # magic, size, block
        size = int.from_bytes(stored[position + 4 : position + 8], "little")
        blocks.append(decode_block(stored[position + 8 : position + 8 + size]))
        position += 8 + size
    spends = spends_in(blocks)
    assert (len(blocks), count_known(spends), kinds(spends)) == (255, 7, {OTHER})
    assert outcomes(spends, FLAGS_2009) == {True}
    assert outcomes([with_a_bit_changed(spend) for spend in spends], FLAGS_2009) == {False}
