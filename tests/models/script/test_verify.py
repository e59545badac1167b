"""What `verify_inputs` and `verify_batch` answer: per input, in the order asked for; per job the lowest failing input,
the same on any number of threads; and which bytes the kernel takes for a transaction.
"""

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.errors import DecodeError
from models.script.verify import ALL_FLAGS, P2SH, verify_batch, verify_inputs
from models.wire.block import Block, decode_block
from models.wire.transaction import decode_transaction
from tests.models.script.asm import parse_asm, push
from tests.models.script.building import Input, Output, serialize, spend_of

TRUE = b"\x51"
FALSE = b"\x00"


def spending(scripts: list[bytes]) -> tuple[bytes, list[tuple[int, bytes]]]:
    """A transaction that spends one coin per script, with empty scriptSigs, and those coins."""
    inputs = [Input(bytes(32) + index.to_bytes(4, "little")) for index in range(len(scripts))]
    return serialize(inputs, [Output(0, TRUE)]), [(index, script) for index, script in enumerate(scripts)]


def test_answers_are_per_input() -> None:
    raw, spent = spending([TRUE, FALSE, b"", TRUE])
    assert verify_inputs(raw, spent, ALL_FLAGS) == [True, False, False, True]


def test_answers_follow_the_order_of_the_indices() -> None:
    raw, spent = spending([TRUE, FALSE, TRUE])
    assert verify_inputs(raw, spent, ALL_FLAGS, [2, 1, 1, 0]) == [True, False, False, True]
    assert verify_inputs(raw, spent, ALL_FLAGS, []) == []


def test_flags_decide() -> None:
    hash_of_false = "9f7fd096d37ed2c0e3f7f0cfc924beef4ffceb68"  # HASH160 of one zero byte
    p2sh = parse_asm(f"HASH160 0x14 0x{hash_of_false} EQUAL")
    raw = spend_of(p2sh, push(FALSE))
    assert verify_inputs(raw, [(0, p2sh)], 0) == [True]
    assert verify_inputs(raw, [(0, p2sh)], P2SH) == [False]


def test_a_script_with_a_zero_byte_is_passed_on_whole() -> None:
    script_pubkey = parse_asm("0x04 0x61006200 EQUAL")
    raw = spend_of(script_pubkey, parse_asm("0x04 0x61006200"))
    assert verify_inputs(raw, [(0, script_pubkey)], ALL_FLAGS) == [True]


def test_batch_names_the_lowest_failing_input_of_each_job() -> None:
    jobs = [spending([TRUE, TRUE]), spending([TRUE, FALSE, FALSE]), spending([FALSE]), spending([TRUE] * 3 + [FALSE])]
    assert verify_batch(jobs, ALL_FLAGS) == [-1, 1, 0, 3]


@pytest.mark.parametrize("threads", [1, 2, 5, 100])
def test_batch_answers_the_same_on_any_number_of_threads(threads: int) -> None:
    jobs = [spending([TRUE] * (1 + job % 7) + [FALSE] * (job % 3)) for job in range(200)]
    expected = [1 + job % 7 if job % 3 else -1 for job in range(200)]
    assert verify_batch(jobs, ALL_FLAGS, threads) == expected


def read_chain(path: Path) -> list[Block]:
    with gzip.open(path, "rt") as lines:
        next(lines)  # the header: tip and number of coins
        return [decode_block(bytes.fromhex(json.loads(line)["block"])) for line in lines]


@pytest.fixture(scope="module")
def jobs(data: Path) -> list[tuple[bytes, list[tuple[int, bytes]]]]:
    """Every spending transaction of a chain that a node accepted, with its coins."""
    coins: dict[bytes, tuple[int, bytes]] = {}
    found = []
    for block in read_chain(data / "chain_shared1.jsonl.gz"):
        for tx in block.transactions:
            if not tx.is_coinbase:
                found.append((tx.raw, [coins[prevout] for prevout in tx.prevouts]))
            for index, coin in enumerate(zip(tx.values, tx.script_pubkeys, strict=True)):
                coins[tx.txid + index.to_bytes(4, "little")] = coin
    return found


def test_a_chain_that_a_node_accepted_passes(jobs: list[tuple[bytes, list[tuple[int, bytes]]]]) -> None:
    assert len(jobs) > 50
    assert verify_batch(jobs, ALL_FLAGS, 2) == [-1] * len(jobs)


def test_the_kernel_reads_what_our_decoder_reads(jobs: list[tuple[bytes, list[tuple[int, bytes]]]]) -> None:
    """Cut, lengthened and changed transactions: both take the bytes, with as many inputs, or both refuse them."""
    originals = [raw for raw, _ in jobs]

    @given(
        st.sampled_from(originals),
        st.integers(0, 12),
        st.binary(max_size=3),
        st.lists(st.tuples(st.integers(0, 80), st.integers(0, 255)), max_size=3),
    )
    def both_agree(raw: bytes, cut: int, tail: bytes, changes: list[tuple[int, int]]) -> None:
        changed = bytearray(raw[: len(raw) - cut] + tail)
        for position, value in changes:
            changed[position % len(changed)] = value
        candidate = bytes(changed)
        try:
            count = len(decode_transaction(candidate).prevouts)
        except DecodeError:
            with pytest.raises(DecodeError):
                verify_inputs(candidate, [], 0, [])
            return
        assert verify_inputs(candidate, [(0, TRUE)] * count, 0, [], n_inputs=count) == []

    both_agree()
