"""Whole blocks: the first rows of the table in their order, and the two halves of a submission (SPEC 2.1, 2.6)."""

from dataclasses import replace

import numpy as np
import pytest

from models.consensus.context import BlockContext
from models.consensus.whole_block import (
    VerifiedScripts,
    check_before_context,
    check_in_context_of_parent,
    check_whole_block,
    with_reserved_value,
)
from models.wire.block import Block, decode_block
from tests.models.consensus.building import (
    TRUE,
    block_on,
    coinbase_tx,
    empty_chain,
    made_up,
    put_coin,
    refusal,
    without_witness,
)
from tests.models.script.building import NULL_OUTPOINT, Input, Output, compact_size, serialize

HEIGHT = 230


def spend(*outpoints: bytes) -> bytes:
    return serialize([Input(outpoint) for outpoint in outpoints], [Output(1, TRUE)], version=2)


def change(block: Block, at: int, data: bytes) -> Block:
    return decode_block(block.raw[:at] + data + block.raw[at + len(data) :])


def mined(block: Block, good: bool = True) -> Block:
    """With a nonce that meets regtest's target, or misses it."""
    for nonce in range(1000):
        found = change(block, 76, nonce.to_bytes(4, "little"))
        if (found.header.hash[31] < 0x7F) is good:
            return found
    raise AssertionError


def of(block: Block, *raws: bytes) -> Block:
    """The same header over other transactions."""
    return decode_block(block.raw[:80] + compact_size(len(raws)) + b"".join(raws))


def test_the_first_rows_in_their_order() -> None:
    """A block that breaks one rule more each time is refused for the earliest of them."""
    chain = empty_chain(HEIGHT - 1)
    good = block_on(chain)
    twice = [spend(made_up(1)), spend(made_up(1))]
    block = mined(block_on(chain, twice[:1] * 2))  # a coinbase and two equal transactions: the tree marks no pair
    assert (refusal(chain, block, check_pow=True) or "").startswith("bad-txns-inputs-missingorspent")
    block = mined(block_on(chain, [spend(made_up(2)), *twice[:1] * 2]))  # the second pair is equal
    assert refusal(chain, block, check_pow=True) == "bad-txns-duplicate, duplicate transaction"
    block = mined(change(block, 36, bytes(32)))
    assert refusal(chain, block, check_pow=True) == "bad-txnmrklroot, hashMerkleRoot mismatch"
    block = mined(block, good=False)
    assert refusal(chain, block, check_pow=True) == "high-hash, proof of work failed"
    block = change(block, 4, b"\x01" * 32)
    assert refusal(chain, block, check_pow=True) == "inconclusive-not-best-prevblk"
    assert refusal(chain, mined(good), check_pow=True) is None


def test_rows_that_are_not_asked_for_are_left_out() -> None:
    chain = empty_chain(HEIGHT - 1)
    block = change(mined(block_on(chain), good=False), 36, bytes(32))
    assert refusal(chain, block, check_pow=False, check_merkle=False) is None


def test_a_target_that_is_not_allowed_is_no_proof_of_work() -> None:
    chain = empty_chain(HEIGHT - 1)
    block = change(mined(block_on(chain)), 72, (0x2100FFFF).to_bytes(4, "little"))
    assert refusal(chain, block, check_pow=True) == "high-hash, proof of work failed"
    assert refusal(chain, block) == "bad-diffbits, incorrect proof of work"


@pytest.mark.parametrize(
    ("prevhash", "root", "expected"),
    [
        (True, True, "bad-blk-length, size limits failed"),
        (True, False, "bad-txnmrklroot, hashMerkleRoot mismatch"),
        (False, False, "inconclusive-not-best-prevblk"),
    ],
)
def test_a_block_without_transactions(prevhash: bool, root: bool, expected: str) -> None:
    """Its merkle root is zero."""
    chain = empty_chain(HEIGHT - 1)
    block = of(block_on(chain))
    block = change(block, 36, bytes(32) if root else b"\x01" * 32)
    block = block if prevhash else change(block, 4, b"\x01" * 32)
    assert refusal(chain, block) == expected


def test_a_first_transaction_without_inputs_is_no_coinbase() -> None:
    chain = empty_chain(HEIGHT - 1)
    empty = bytes.fromhex("01000000000000000000")
    block = of(block_on(chain), empty)
    assert refusal(chain, block, check_merkle=False) == "bad-cb-missing, first tx is not coinbase"


def test_two_coinbases_that_are_one_transaction() -> None:
    """With the merkle root the pair is seen; without, the second is one coinbase too many."""
    chain = empty_chain(HEIGHT - 1)
    raw = coinbase_tx(HEIGHT, 50)
    block = block_on(chain, [raw], coinbase=raw)
    assert refusal(chain, block) == "bad-txns-duplicate, duplicate transaction"
    assert refusal(chain, block, check_merkle=False) == "bad-cb-multiple, more than one coinbase"


def test_sizes_come_before_shape_and_shape_before_transactions() -> None:
    chain = empty_chain(HEIGHT - 1)
    large = serialize([Input(made_up(1), bytes(1_000_000))], [Output(-1)])
    base = block_on(chain)
    coinbase = base.transactions[0].raw
    length, missing = "bad-blk-length, size limits failed", "bad-cb-missing, first tx is not coinbase"
    negative = serialize([Input(made_up(1))], [Output(-1)])
    assert refusal(chain, of(base, large), check_merkle=False) == length
    assert refusal(chain, of(base, negative, coinbase), check_merkle=False) == missing
    several = refusal(chain, of(base, coinbase, negative, coinbase), check_merkle=False)
    assert several == "bad-cb-multiple, more than one coinbase"
    assert (refusal(chain, of(base, coinbase, negative), check_merkle=False) or "").startswith("bad-txns-vout-negative")


def test_the_header_is_looked_at_between_the_two_kinds_of_sigop_limits() -> None:
    chain = empty_chain(HEIGHT - 1)
    many = serialize([Input(made_up(1))], [Output(0, b"\xac" * 20_001)])
    block = change(block_on(chain, [many]), 72, bytes(4))
    assert refusal(chain, block) == "bad-blk-sigops, out-of-bounds SigOpCount"
    fewer = serialize([Input(made_up(1))], [Output(0, b"\xac" * 20_000)])
    block = change(block_on(chain, [fewer]), 72, bytes(4))
    assert refusal(chain, block) == "bad-diffbits, incorrect proof of work"


def test_rows_of_the_judgement_name_every_transaction() -> None:
    chain = empty_chain(HEIGHT - 1)
    block = block_on(chain, [spend(put_coin(chain, 1)), spend(put_coin(chain, 2))])
    judgement = chain.judge(block)
    assert [row.tobytes() for row in judgement.rows["txid"]] == [tx.txid for tx in block.transactions]
    assert judgement.fees == 2 * 999


# Submissions -----------------------------------------------------------------------------------------------------


def line(failure: object) -> str | None:
    return failure.debug_line if failure else None  # type: ignore[attr-defined]


def test_a_submitted_block_needs_work_and_merkle_root_first() -> None:
    chain = empty_chain(HEIGHT - 1)
    block = block_on(chain)
    assert line(check_before_context(mined(block), chain.params)[0]) is None
    lazy = check_before_context(mined(block, good=False), chain.params)[0]
    assert line(lazy) == "high-hash, proof of work failed"
    wrong = check_before_context(mined(change(block, 36, bytes(32))), chain.params)[0]
    assert line(wrong) == "bad-txnmrklroot, hashMerkleRoot mismatch"
    nothing = check_before_context(mined(change(of(block), 36, bytes(32))), chain.params)[0]
    assert line(nothing) == "bad-blk-length, size limits failed"


def test_a_submitted_blocks_header_is_refused_apart_from_its_body() -> None:
    chain = empty_chain(HEIGHT - 1)
    context = chain.context()
    block = block_on(chain)
    _, rows = check_before_context(block, chain.params)
    now = block.header.time
    assert check_in_context_of_parent(block, rows, context, now) == (None, None)
    header, body = check_in_context_of_parent(change(block, 68, bytes(4)), rows, context, now)
    assert (line(header), body) == ("time-too-old, block's timestamp is too early", None)
    low = block_on(chain, coinbase=coinbase_tx(HEIGHT - 1, 50))
    header, body = check_in_context_of_parent(low, check_before_context(low, chain.params)[1], context, now)
    assert (header, line(body)) == (None, "bad-cb-height, block height mismatch in coinbase")


def context() -> BlockContext:
    return empty_chain(HEIGHT - 1).context()


def test_a_submitter_may_leave_the_reserved_value_out() -> None:
    """Core: `UpdateUncommittedBlockStructures`."""
    chain = empty_chain(HEIGHT - 1)
    raws = [serialize([Input(put_coin(chain, 1), b"", (b"",))], [Output(1, TRUE)], version=2)]
    whole = block_on(chain, raws, segwit=True)
    bare = of(whole, without_witness(whole.transactions[0].raw), *raws)
    assert (refusal(chain, bare) or "").startswith("bad-witness-nonce-size")
    filled = with_reserved_value(bare, context())
    assert filled.raw == whole.raw
    assert filled.transactions[0].raw == whole.transactions[0].raw
    assert with_reserved_value(whole, context()) is whole


@pytest.mark.parametrize("why", ["no segwit", "no commitment", "no transactions"])
def test_otherwise_nothing_is_put_in(why: str) -> None:
    chain = empty_chain(HEIGHT - 1)
    block = block_on(chain, segwit=True)
    bare = of(block, without_witness(block.transactions[0].raw))
    here = context()
    if why == "no segwit":
        here = replace(here, segwit=False)
    elif why == "no commitment":
        bare = block_on(chain)
    else:
        bare = of(block)
    assert with_reserved_value(bare, here) is bare


def test_a_first_transaction_that_is_no_coinbase_does_no_harm() -> None:
    chain = empty_chain(HEIGHT - 1)
    commitment = Output(0, bytes.fromhex("6a24aa21a9ed") + bytes(32))
    raw = serialize([Input(made_up(1)), Input(NULL_OUTPOINT)], [commitment])
    filled = with_reserved_value(of(block_on(chain), raw), context())
    assert filled.transactions[0].witnesses == [(bytes(32),), ()]
    assert decode_block(filled.raw).transactions[0].raw == filled.transactions[0].raw


def test_checking_needs_nothing_but_answers() -> None:
    """A check is a generator, driven by anything; it ends without a question for a block that fails early."""
    chain = empty_chain(HEIGHT - 1)
    block = change(block_on(chain), 72, bytes(4))
    steps = check_whole_block(block, chain.context(), chain.params, block.header.time)
    with pytest.raises(StopIteration) as ended:
        next(steps)
    assert line(ended.value.value.failure) == "bad-diffbits, incorrect proof of work"


def test_what_is_known_of_scripts_is_joined_only_under_the_same_flags() -> None:
    a, b = VerifiedScripts(np.array([True, False]), 1), VerifiedScripts(np.array([True]), 1)
    joined = VerifiedScripts.joined([a, b])
    assert joined is not None and (joined.passed.tolist(), joined.flags) == ([True, False, True], 1)
    for parts in ([], [None], [a, None], [a, VerifiedScripts(b.passed, 2)]):
        assert VerifiedScripts.joined(parts) is None
