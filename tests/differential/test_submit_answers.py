"""What submitting a block answers (SPEC 2.6), on a small chain in one process: Core's `submitblock` word for word, and
what becomes of the tip, of the block index and of the branches.
"""

from collections.abc import Iterator

import pytest

from models.errors import CoinsReadError, DecodeError
from models.wire.block import BlockHeader, decode_block
from tests.actors.blocks import OP_TRUE, SUBSIDY, TestBlock, TestCoin, coinbase, mine, on_top, sha256d, spend
from tests.actors.small_chain import SmallChain
from tests.differential.local_chain import LocalChain

NOWHERE = TestCoin(b"\x66" * 32, 0, 50_000)
MISSING = "bad-txns-inputs-missingorspent"


@pytest.fixture
def chain(small_chain: SmallChain) -> Iterator[LocalChain]:
    made = LocalChain(small_chain.store())
    yield made
    made.close()


@pytest.fixture
def base(small_chain: SmallChain) -> TestBlock:
    return small_chain.tip


def test_a_new_tip_is_answered_with_nothing(chain: LocalChain, base: TestBlock) -> None:
    block = on_top(base)
    assert chain.submit(block.raw) is None
    assert chain.tip_id == block.id


def test_bytes_after_the_block_are_ignored(chain: LocalChain, base: TestBlock) -> None:
    block = on_top(base)
    assert chain.submit(block.raw + b"\x00") is None
    assert chain.store.archive.get_block(block.hash) == block.raw


@pytest.mark.parametrize("height", [5, 110])
def test_a_block_of_the_chain_is_a_duplicate(chain: LocalChain, small_chain: SmallChain, height: int) -> None:
    assert chain.submit(small_chain.blocks[height - 1].raw) == "duplicate"
    assert chain.tip_id == small_chain.tip.id


def test_a_branch_that_is_not_heavier_is_inconclusive_and_then_a_duplicate(
    chain: LocalChain, small_chain: SmallChain
) -> None:
    branch = on_top(small_chain.blocks[-2], tag=b"branch")
    assert chain.submit(branch.raw) == "inconclusive"
    assert chain.submit(branch.raw) == "duplicate"
    assert chain.tip_id == small_chain.tip.id


def test_the_branch_with_most_work_is_followed(chain: LocalChain, small_chain: SmallChain) -> None:
    first = on_top(small_chain.blocks[-3], tag=b"branch")
    second, third = on_top(first, tag=b"branch"), None
    third = on_top(second, tag=b"branch")
    assert [chain.submit(block.raw) for block in (first, second, third)] == ["inconclusive", "inconclusive", None]
    assert (chain.tip_id, chain.tip.height) == (third.id, 111)
    back = on_top(on_top(small_chain.tip))
    assert chain.submit(on_top(small_chain.tip).raw) == "inconclusive"
    assert chain.submit(back.raw) is None
    assert chain.tip_id == back.id


def test_a_block_without_its_parent_is_not_kept(chain: LocalChain, base: TestBlock) -> None:
    parent = on_top(base)
    child = on_top(parent)
    assert chain.submit(child.raw) == "prev-blk-not-found"
    assert chain.submit(parent.raw) is None
    assert chain.tip_id == parent.id
    assert chain.submit(child.raw) is None


def test_an_invalid_block_stays_invalid_and_so_does_what_builds_on_it(chain: LocalChain, base: TestBlock) -> None:
    bad = on_top(base, [spend([NOWHERE])])
    assert chain.submit(bad.raw) == MISSING
    assert chain.submit(bad.raw) == "duplicate-invalid"
    child = on_top(bad)
    assert chain.submit(child.raw) == "bad-prevblk"
    assert chain.submit(child.raw) == "bad-prevblk"
    assert chain.tip_id == base.id
    assert chain.chain.proposal_preface(bad.hash) is not None


def test_proof_of_work_comes_first_and_leaves_no_trace(chain: LocalChain, base: TestBlock) -> None:
    block = on_top(base)
    lazy = block.with_nonce(work=False)
    assert chain.submit(lazy.raw) == "high-hash"
    assert chain.submit(lazy.raw) == "high-hash"
    orphan = mine(b"\x01" * 32, 111, base.time + 600).with_nonce(work=False)
    assert chain.submit(orphan.raw) == "high-hash"
    assert chain.submit(block.raw) is None


def test_a_bad_header_is_judged_anew_each_time(chain: LocalChain, base: TestBlock) -> None:
    early = mine(base.hash, 111, base.time - 11 * 600)
    assert chain.submit(early.raw) == chain.submit(early.raw) == "time-too-old"


def test_a_body_that_is_not_that_of_the_header_does_not_spoil_the_header(
    chain: LocalChain, base: TestBlock, small_chain: SmallChain
) -> None:
    block = on_top(base, [spend(small_chain.coins[:1])])
    other = on_top(base, [spend(small_chain.coins[1:2])])
    assert chain.submit(block.raw[:80] + other.raw[80:]) == "bad-txnmrklroot"
    assert chain.submit(block.raw) is None


def test_a_wrong_witness_commitment_does_not_spoil_the_header(chain: LocalChain, base: TestBlock) -> None:
    first = coinbase(111, [SUBSIDY, (0, bytes.fromhex("6a24aa21a9ed") + bytes(32))])
    block = mine(base.hash, 111, base.time + 600, first=first)
    assert chain.submit(block.raw) == "bad-witness-merkle-match"
    assert chain.submit(block.raw) == "bad-witness-merkle-match"


def test_a_rule_of_the_body_that_needs_no_coins_marks_the_block(chain: LocalChain, base: TestBlock) -> None:
    block = mine(base.hash, 111, base.time + 600, first=coinbase(112, [SUBSIDY]))
    assert chain.submit(block.raw) == "bad-cb-height"
    assert chain.submit(block.raw) == "duplicate-invalid"


def test_the_witness_reserved_value_is_added(chain: LocalChain, base: TestBlock) -> None:
    """A block of a coinbase alone has the witness root zero, so its commitment hashes 64 zero bytes."""
    commitment = bytes.fromhex("6a24aa21a9ed") + sha256d(bytes(64))
    block = mine(base.hash, 111, base.time + 600, first=coinbase(111, [SUBSIDY, (0, commitment)]))
    assert chain.judge(block.raw).failure.reason.text == "bad-witness-nonce-size"  # a proposal is taken as it is
    assert chain.submit(block.raw) is None
    stored = decode_block(chain.store.archive.get_block(block.hash))
    assert stored.transactions[0].witnesses == [(bytes(32),)]


def test_bytes_that_are_no_block(chain: LocalChain, base: TestBlock) -> None:
    for raw in (b"", on_top(base).raw[:-1], on_top(base).raw[:40], b"\xff" * 200):
        with pytest.raises(DecodeError):
            chain.submit(raw)
    assert chain.tip_id == base.id


def test_a_block_that_is_invalid_in_the_middle_of_a_heavier_branch(chain: LocalChain, small_chain: SmallChain) -> None:
    """Four blocks on the tip's grandparent, the second of which spends a coin that does not exist. The chain goes back
    two blocks and forward one, meets the bad one, and returns: one back and two forward."""
    old = chain.utxo()
    first = on_top(small_chain.blocks[-3], [spend(small_chain.coins[:1])])
    second = on_top(first, [spend([NOWHERE])])
    third = on_top(second)
    fourth = on_top(third)
    assert chain.submit(first.raw) == "inconclusive"
    assert chain.submit(second.raw) == "inconclusive"
    assert chain.submit(third.raw) == "inconclusive"  # what is wrong is not with the block that was submitted
    assert (chain.disconnected, chain.connected) == (3, 3)
    assert chain.tip_id == small_chain.tip.id
    assert (chain.utxo().hash_serialized_3, chain.utxo().txouts) == (old.hash_serialized_3, old.txouts)
    assert chain.submit(second.raw) == chain.submit(third.raw) == "duplicate-invalid"
    assert chain.submit(fourth.raw) == "bad-prevblk"
    # Its first block is good and can be built upon.
    good = on_top(first, tag=b"good")
    assert chain.submit(good.raw) == "inconclusive"
    assert chain.submit(on_top(good).raw) is None


def test_the_block_that_makes_a_branch_heaviest_is_invalid_itself(chain: LocalChain, small_chain: SmallChain) -> None:
    first = on_top(small_chain.blocks[-2], tag=b"branch")
    second = on_top(first, [spend(small_chain.coins[:1], script_sig=b"\x6a")])
    assert chain.submit(first.raw) == "inconclusive"
    assert chain.submit(second.raw) == "block-script-verify-flag-failed"
    assert chain.tip_id == small_chain.tip.id  # and not the branch's first block, which is as heavy but came later
    assert (chain.disconnected, chain.connected) == (2, 2)


def test_a_header_that_was_known_long_before_its_body_does_not_come_first(
    chain: LocalChain, small_chain: SmallChain
) -> None:
    early = on_top(small_chain.tip, tag=b"early header")
    chain.chain.add_header(BlockHeader.parse(early.raw[:80]))
    block = on_top(small_chain.tip)
    assert chain.submit(block.raw) is None
    assert chain.submit(early.raw) == "inconclusive"
    assert chain.tip_id == block.id


def test_a_read_error_is_an_error_and_the_block_is_taken_the_next_time(chain: LocalChain, base: TestBlock) -> None:
    block = on_top(base)
    chain.read_failures.append(CoinsReadError("checksum mismatch in 000005.ldb"))
    with pytest.raises(CoinsReadError, match="checksum"):
        chain.submit(block.raw)
    assert chain.tip_id == base.id
    assert chain.submit(block.raw) == "duplicate"  # its body was kept; now it is connected
    assert chain.tip_id == block.id


def test_branches_are_remembered_over_a_restart(small_chain: SmallChain) -> None:
    path = small_chain.store()
    chain = LocalChain(path)
    first = on_top(small_chain.blocks[-2], tag=b"branch")
    bad = on_top(small_chain.tip, [spend([NOWHERE])])
    assert chain.submit(first.raw) == "inconclusive"
    assert chain.submit(bad.raw) == MISSING
    epoch = chain.tip.version.epoch
    chain.close()
    chain = LocalChain(path)
    assert chain.tip.version == (epoch + 1, 0)
    assert chain.submit(bad.raw) == "duplicate-invalid"
    second = on_top(first)
    assert chain.submit(second.raw) is None
    assert chain.tip_id == second.id
    chain.close()


def test_a_tip_taken_back_by_hand_comes_again_when_it_is_submitted(chain: LocalChain, base: TestBlock) -> None:
    chain.disconnect()
    assert chain.tip.height == 109
    assert chain.submit(base.raw) == "duplicate"
    assert chain.tip_id == base.id


def test_outputs_that_can_never_be_spent_come_and_go_with_their_block(chain: LocalChain, base: TestBlock) -> None:
    old = chain.utxo().hash_serialized_3
    first = coinbase(111, [SUBSIDY - 10, (5, b"\x6a"), (5, b"\x00" * 10_001), (0, OP_TRUE)])
    assert chain.submit(mine(base.hash, 111, base.time + 600, first=first).raw) is None
    assert chain.utxo().txouts == 759 + 2
    chain.disconnect()
    assert (chain.utxo().txouts, chain.utxo().hash_serialized_3) == (759, old)


def test_a_coin_created_and_spent_inside_one_block_leaves_no_trace(
    chain: LocalChain, base: TestBlock, small_chain: SmallChain
) -> None:
    old = chain.coins()
    parent = spend(small_chain.coins[:2])
    child = spend([parent.coin()], [1000, 2000])
    grandchild = spend([child.coin(1)])
    block = on_top(base, [parent, child, grandchild])
    assert chain.submit(block.raw) is None
    gone = {coin.outpoint for coin in small_chain.coins[:2]}
    new = {block.transactions[0].coin().outpoint, child.coin(0).outpoint, grandchild.coin().outpoint}
    assert set(chain.coins()) == (set(old) - gone) | new
    chain.disconnect()
    assert chain.coins() == old
