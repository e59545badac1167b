"""A draft: what it asks for, what it forgets, and that a judgement leaves it as it was. Whole judgements of drafts told
in pieces are compared in test_against_straight_line.py and in tests/differential.
"""

import hashlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from models.coins.codec import split_outpoints
from models.coins.coin import Coin
from models.coins.columns import CoinBatch
from models.consensus.check import CoinsWanted, ScriptsWanted, check_block_draft, drive
from models.consensus.context import TipVersion
from models.consensus.draft import PROBE_ABSENT, PROBE_PRESENT, BlockDraft
from models.consensus.layout import BlockLayout
from models.consensus.table import TxRecord, TxTable
from models.errors import InternalError, StaleView
from models.script.verify import P2SH, verify_batch
from models.wire.block import Block
from tests.models.consensus.building import (
    FALSE,
    TRUE,
    block_on,
    coinbase_tx,
    empty_chain,
    made_up,
    put_coin,
    refusal,
    txid_of,
)
from tests.models.consensus.replay import ReplayChain
from tests.models.script.building import Input, Output, serialize

HEIGHT = 230


def spend(*outpoints: bytes, out: int = 1, script: bytes = TRUE) -> bytes:
    return serialize([Input(outpoint) for outpoint in outpoints], [Output(out, script)], version=2)


class Told:
    """A chain, a block of `raws` on it, and a draft that holds its transactions, one segment for each group."""

    def __init__(self, chain: ReplayChain, raws: list[bytes], groups: list[list[int]] | None = None) -> None:
        self.chain = chain
        self.block: Block = block_on(chain, raws)
        self.context = chain.context()
        self.layout = BlockLayout()
        self.draft = BlockDraft(len(raws))
        for positions in groups or ([list(range(1, len(raws) + 1))] if raws else []):
            table = TxTable.from_transactions([self.block.transactions[p] for p in positions])
            rewires = self.layout.add(np.array(positions), table)
            self.draft.add(self.layout.segments[-1], rewires)

    def begin(self) -> None:
        self.draft.begin(self.context.tip.version, self.context.script_flags)

    def steps(self, **switches: Any) -> Any:
        coinbase = switches.pop("coinbase", self.block.transactions[0])
        context = switches.pop("context", self.context)
        now = self.block.header.time
        return check_block_draft(self.draft, self.block.header, coinbase, context, now, bytes(32), **switches)

    def judge(self, **switches: Any) -> str | None:
        """The failure's line; what was asked for on the way is kept in `asked` and `ran`."""
        self.asked: list[bytes] = []
        self.ran: list[bytes] = []

        def coins(outpoints: list[bytes]) -> list[Coin | None]:
            self.asked += outpoints
            return self.chain.read(outpoints)

        def scripts(jobs: Any, flags: int) -> list[int]:
            jobs = list(jobs)
            self.ran += [raw for raw, _ in jobs]
            return verify_batch(jobs, flags)

        failure = drive(self.steps(**switches), coins, scripts).failure
        return failure.debug_line if failure else None


def outputs_of(*raws: bytes) -> list[bytes]:
    return [txid_of(raw) + bytes(4) for raw in raws]


def test_a_check_asks_once_for_inputs_own_outputs_and_probes() -> None:
    chain = empty_chain(HEIGHT - 1)
    a, b = put_coin(chain, 1), put_coin(chain, 2)
    parent = spend(a)
    child = spend(txid_of(parent) + bytes(4), b)
    told = Told(chain, [parent, child])
    assert told.judge() is None
    coinbase = told.block.transactions[0].txid + bytes(4)
    assert told.asked == [a, b, coinbase, *outputs_of(parent, child)]


def test_a_second_check_asks_for_nothing_but_the_coinbases_outputs() -> None:
    chain = empty_chain(HEIGHT - 1)
    raws = [spend(put_coin(chain, 1)), spend(put_coin(chain, 2))]
    told = Told(chain, raws)
    assert told.judge() is None
    assert told.ran == raws
    assert told.judge() is None
    assert told.asked == [told.block.transactions[0].txid + bytes(4)]
    assert told.ran == []


def test_what_was_observed_before_is_not_asked_for() -> None:
    chain = empty_chain(HEIGHT - 1)
    a, b = put_coin(chain, 1), put_coin(chain, 2)
    raws = [spend(a), spend(b)]
    told = Told(chain, raws)
    told.begin()
    version = told.context.tip.version
    assert told.draft.observe(0, np.array([0]), CoinBatch.of_coins(chain.read([a])), version)
    assert told.draft.probed(np.array([2]), np.array([PROBE_ABSENT], np.uint8), version)
    told.draft.scripts_good(np.array([1]), told.context.script_flags)
    assert told.judge() is None
    assert told.asked == [b, told.block.transactions[0].txid + bytes(4), *outputs_of(raws[0])]
    assert told.ran == [raws[1]]


def test_no_coin_is_read_for_a_block_that_breaks_an_earlier_rule() -> None:
    chain = empty_chain(HEIGHT - 1)
    told = Told(chain, [spend(put_coin(chain, 1), out=-1)])
    assert (told.judge() or "").startswith("bad-txns-vout-negative")
    assert told.asked == []


def test_no_script_is_run_for_a_block_that_breaks_another_rule() -> None:
    chain = empty_chain(HEIGHT - 1)
    bad = spend(put_coin(chain, 1, script=FALSE))
    told = Told(chain, [bad, spend(made_up(99))])
    assert (told.judge() or "").startswith("bad-txns-inputs-missingorspent")
    assert told.ran == []


def test_inline_scripts_run_up_to_the_transaction_that_breaks_another_rule() -> None:
    chain = empty_chain(HEIGHT - 1)
    good = [spend(put_coin(chain, n)) for n in range(3)]
    told = Told(chain, [good[0], good[1], spend(made_up(99)), good[2]])
    assert (told.judge(inline_scripts=True) or "").startswith("bad-txns-inputs-missingorspent")
    assert told.ran == good[:2]


def test_a_probe_that_found_an_output_is_believed() -> None:
    chain = empty_chain(HEIGHT - 1)
    told = Told(chain, [spend(put_coin(chain, 1)), spend(put_coin(chain, 2))])
    told.begin()
    told.draft.probed(np.array([2]), np.array([PROBE_PRESENT], np.uint8), told.context.tip.version)
    failure = drive(told.steps(), chain.read, verify_batch).failure
    assert failure and (failure.reason.text, failure.position) == ("bad-txns-BIP30", 2)


def test_failing_scripts_are_not_remembered_and_passing_ones_are() -> None:
    chain = empty_chain(HEIGHT - 1)
    good, bad = spend(put_coin(chain, 1)), spend(put_coin(chain, 2, script=FALSE))
    told = Told(chain, [good, bad])
    for ran in ([good, bad], [bad]):
        assert (told.judge() or "").startswith("block-script-verify-flag-failed")
        assert told.ran == ran


# Tips ------------------------------------------------------------------------------------------------------------


def test_observations_of_another_tip_are_refused() -> None:
    chain = empty_chain(HEIGHT - 1)
    a = put_coin(chain, 1)
    told = Told(chain, [spend(a)])
    coins = CoinBatch.of_coins(chain.read([a]))
    version = told.context.tip.version
    assert not told.draft.observe(0, np.array([0]), coins, version)  # none was named yet
    told.begin()
    other = TipVersion(version.epoch, version.n + 1)
    assert not told.draft.observe(0, np.array([0]), coins, other)
    assert not told.draft.probed(np.array([1]), np.array([PROBE_PRESENT], np.uint8), other)
    assert told.draft.nbytes == 0
    assert told.judge() is None


def test_another_tip_drops_coins_and_keeps_verified_scripts() -> None:
    chain = empty_chain(HEIGHT - 1)
    coin = put_coin(chain, 1)
    raw = spend(coin)
    told = Told(chain, [raw])
    assert told.judge() is None
    moved = replace(told.context, tip=replace(told.context.tip, version=TipVersion(9, 9)))
    del chain.coins[coin]
    assert (told.judge(context=moved) or "").startswith("bad-txns-inputs-missingorspent")
    chain.coins[coin] = Coin(5, 1, False, TRUE)
    assert (told.judge(context=moved) or "").startswith("bad-txns-inputs-missingorspent")  # observed at that tip
    later = replace(told.context, tip=replace(told.context.tip, version=TipVersion(9, 10)))
    assert told.judge(context=later) is None
    assert told.ran == []


def test_verified_scripts_are_forgotten_when_a_tip_has_other_flags() -> None:
    chain = empty_chain(HEIGHT - 1)
    raw = spend(put_coin(chain, 1))
    told = Told(chain, [raw])
    assert told.judge() is None
    moved = replace(told.context, tip=replace(told.context.tip, version=TipVersion(9, 9)), script_flags=P2SH)
    assert told.judge(context=moved) is None
    assert told.ran == [raw]


def test_scripts_that_passed_under_other_flags_do_not_count() -> None:
    chain = empty_chain(HEIGHT - 1)
    raw = spend(put_coin(chain, 1))
    told = Told(chain, [raw])
    told.begin()
    told.draft.scripts_good(np.array([1]), P2SH)
    assert told.judge() is None
    assert told.ran == [raw]


@pytest.mark.parametrize("when", ["forgotten", "moved"])
def test_a_tip_that_moves_while_coins_are_read_makes_the_check_stale(when: str) -> None:
    """Never a verdict, and never an error of ours: whoever asked begins again."""
    chain = empty_chain(HEIGHT - 1)
    told = Told(chain, [spend(put_coin(chain, 1))])
    steps = told.steps()
    wanted = next(steps)
    assert isinstance(wanted, CoinsWanted)
    if when == "forgotten":
        told.draft.forget_coins()
    else:
        told.draft.begin(TipVersion(9, 9), told.context.script_flags)
    with pytest.raises(StaleView, match="the tip moved"):
        steps.send(CoinBatch.of_coins(chain.read(split_outpoints(wanted.outpoints))))
    told.draft.forget_coins()
    assert told.judge() is None


def test_what_was_forgotten_and_begun_anew_by_another_check_makes_the_check_stale() -> None:
    """Both are at the same version; but the coins that the first did not have to ask for are gone."""
    chain = empty_chain(HEIGHT - 1)
    coins = [put_coin(chain, n) for n in range(2)]
    told = Told(chain, [spend(coin) for coin in coins])
    told.begin()
    told.draft.observe(0, np.array([0]), CoinBatch.of_coins(chain.read(coins[:1])), told.context.tip.version)
    first = told.steps()
    wanted = next(first)
    assert coins[0] not in wanted.outpoints
    told.draft.forget_coins()
    second = told.steps()
    next(second)
    with pytest.raises(StaleView, match="the tip moved"):
        first.send(CoinBatch.of_coins(chain.read(split_outpoints(wanted.outpoints))))
    assert told.judge() is None


def test_a_check_on_an_older_tip_takes_nothing_from_a_draft_that_knows_a_later_one() -> None:
    chain = empty_chain(HEIGHT - 1)
    told = Told(chain, [spend(put_coin(chain, 1))])
    told.draft.begin(TipVersion(9, 9), told.context.script_flags)
    with pytest.raises(StaleView, match="later tip"):
        next(told.steps())
    assert told.draft.version == TipVersion(9, 9)


@pytest.mark.parametrize("count", [2, 70])
def test_a_tip_that_moves_while_scripts_are_made_ready_makes_the_check_stale(count: int) -> None:
    """Jobs are made while earlier ones run; by then the coins may be gone."""
    chain = empty_chain(HEIGHT - 1)
    told = Told(chain, [spend(put_coin(chain, n)) for n in range(count)])
    for moved_after in (0, 1):
        steps = told.steps()
        wanted = next(steps)
        assert isinstance(wanted, CoinsWanted)
        wanted = steps.send(CoinBatch.of_coins(chain.read(split_outpoints(wanted.outpoints))))
        assert isinstance(wanted, ScriptsWanted)
        for _ in range(moved_after):
            next(wanted.jobs)
        told.draft.forget_coins()
        with pytest.raises(StaleView, match="the tip moved"):
            next(wanted.jobs)
        with pytest.raises(StaleView, match="the tip moved"):
            steps.send([-1] * count)
    assert told.judge() is None


def test_an_answer_of_another_length_is_an_error_of_ours() -> None:
    chain = empty_chain(HEIGHT - 1)
    told = Told(chain, [spend(put_coin(chain, 1))])
    steps = told.steps()
    next(steps)
    with pytest.raises(InternalError, match="3 coins were asked for, 1 came"):
        steps.send(CoinBatch.of_coins([None]))


def test_two_checks_of_one_draft_side_by_side() -> None:
    chain = empty_chain(HEIGHT - 1)
    raws = [spend(put_coin(chain, 1)), spend(put_coin(chain, 2))]
    told = Told(chain, raws)
    greedy = TxRecord.of(block_on(chain, raws, reward=2**40).transactions[0])
    first, second = told.steps(), told.steps(coinbase=block_on(chain, raws, reward=2**40).transactions[0])
    one, two = next(first), next(second)
    wanted = first.send(CoinBatch.of_coins(chain.read(split_outpoints(one.outpoints))))
    assert isinstance(wanted, ScriptsWanted)
    with pytest.raises(StopIteration) as ended:
        second.send(CoinBatch.of_coins(chain.read(split_outpoints(two.outpoints))))
    assert ended.value.value.failure.reason.text == "bad-cb-amount"
    assert ended.value.value.rows["txid"][0].tobytes() == greedy.txid
    with pytest.raises(StopIteration) as ended:
        first.send(verify_batch(list(wanted.jobs), wanted.flags))
    assert ended.value.value.failure is None


# Coinbases -------------------------------------------------------------------------------------------------------


def test_many_coinbases_leave_no_trace() -> None:
    chain = empty_chain(HEIGHT - 1)
    mine = coinbase_tx(HEIGHT, 50)
    raws = [spend(put_coin(chain, 1)), spend(txid_of(mine) + bytes(4))]
    told = Told(chain, raws)
    own = block_on(chain, raws, coinbase=mine).transactions[0]
    other = told.block.transactions[0]
    before = told.draft.results.copy()
    for _ in range(2):
        assert (told.judge(coinbase=other) or "").startswith("bad-txns-inputs-missingorspent")
        assert (told.judge(coinbase=own) or "").startswith("bad-txns-premature-spend-of-coinbase")
    told.draft.work_out(told.context)
    assert told.draft.results[0] == before[0]
    assert told.draft.rows[0] == np.zeros((), told.draft.rows.dtype)


def test_an_outpoint_of_the_coinbase_that_was_spent_before_is_missing() -> None:
    """The first spender is too young; of the second nobody hears. Without the first it would be the second's turn."""
    chain = empty_chain(HEIGHT - 1)
    mine = coinbase_tx(HEIGHT, 50)
    own = txid_of(mine) + bytes(4)
    block = block_on(chain, [spend(own, out=1), spend(own, out=2)], coinbase=mine)
    failure = chain.judge(block).failure
    assert failure and (failure.reason.text, failure.position) == ("bad-txns-premature-spend-of-coinbase", 1)


# Blocks of history -----------------------------------------------------------------------------------------------


def test_a_block_that_is_exempt_from_script_rules() -> None:
    """A redeem script that fails: without P2SH the hash alone is compared (SPEC 2.4)."""
    chain = empty_chain(HEIGHT - 1)
    redeem = FALSE
    script = bytes.fromhex("a914") + bytes.fromhex("9f7fd096d37ed2c0e3f7f0cfc924beef4ffceb68") + b"\x87"  # HASH160(00)
    raw = serialize([Input(put_coin(chain, 1, script=script), b"\x01" + redeem)], [Output(1, TRUE)])
    block = block_on(chain, [raw])
    assert (refusal(chain, block) or "").startswith("block-script-verify-flag-failed")
    context = replace(chain.context(), script_flag_exceptions={block.header.hash: 0})
    chain.context = lambda: context  # type: ignore[method-assign]
    assert refusal(chain, block) is None


def test_the_sigops_of_an_exempt_block_are_those_of_its_flags() -> None:
    """20 redeem scripts of 190 CHECKMULTISIGs cost 304,000 with P2SH, and nothing without."""
    chain = empty_chain(HEIGHT - 1)
    redeem = b"\x00\x63" + b"\xae" * 190 + b"\x68\x51"
    script = b"\xa9\x14" + hashlib.new("ripemd160", hashlib.sha256(redeem).digest()).digest() + b"\x87"
    coins = [put_coin(chain, n, script=script) for n in range(20)]
    raws = [serialize([Input(c, b"\x4c" + bytes((len(redeem),)) + redeem)], [Output(1, TRUE)]) for c in coins]
    block = block_on(chain, raws)
    assert refusal(chain, block) == "bad-blk-sigops, too many sigops"
    context = replace(chain.context(), script_flag_exceptions={block.header.hash: 0})
    chain.context = lambda: context  # type: ignore[method-assign]
    assert refusal(chain, block) is None


def test_a_block_that_repeats_a_coinbase_of_old() -> None:
    chain = empty_chain(HEIGHT - 1)
    block = block_on(chain)
    chain.coins[block.transactions[0].txid + bytes(4)] = Coin(50, 5, True, TRUE)
    assert refusal(chain, block) == "bad-txns-BIP30, tried to overwrite transaction"
    context = replace(chain.context(), bip30_exception=block.header.hash)
    chain.context = lambda: context  # type: ignore[method-assign]
    assert refusal(chain, block) is None


# What the draft holds --------------------------------------------------------------------------------------------


def test_missing_positions_count_from_one() -> None:
    chain = empty_chain(HEIGHT - 1)
    raws = [spend(put_coin(chain, n)) for n in range(4)]
    told = Told(chain, raws, groups=[[2], [4]])
    assert told.draft.missing().tolist() == [1, 3]
    assert told.draft.raw(4) == raws[3]


def test_a_draft_is_not_judged_before_its_coins_are_known() -> None:
    chain = empty_chain(HEIGHT - 1)
    told = Told(chain, [spend(put_coin(chain, 1))])
    told.begin()
    coinbase = TxRecord.of(told.block.transactions[0])
    with pytest.raises(InternalError, match="before its coins were known"):
        told.draft.results_with(coinbase, told.context, told.context.script_flags)


def test_facts_are_worked_out_as_soon_as_coins_are_known() -> None:
    chain = empty_chain(HEIGHT - 1)
    a, b = put_coin(chain, 1, 500), put_coin(chain, 2, 700)
    told = Told(chain, [spend(a, out=100), spend(b, out=100)], groups=[[1], [2]])
    told.begin()
    told.draft.observe(1, np.array([0]), CoinBatch.of_coins(chain.read([b])), told.context.tip.version)
    told.draft.work_out(told.context)
    assert told.draft.results["fee"].tolist() == [0, 0, 600]
    told.draft.observe(0, np.array([0]), CoinBatch.of_coins(chain.read([a])), told.context.tip.version)
    told.draft.work_out(told.context)
    assert told.draft.results["fee"].tolist() == [0, 400, 600]


def test_bytes_of_observed_coins_are_counted() -> None:
    chain = empty_chain(HEIGHT - 1)
    a, b = put_coin(chain, 1, script=b"\x51" * 30), put_coin(chain, 2)
    told = Told(chain, [spend(a), spend(b)], groups=[[1], [2]])
    told.begin()
    told.draft.observe(0, np.array([0]), CoinBatch.of_coins(chain.read([a])), told.context.tip.version)
    assert told.draft.nbytes == 24 + 30
    assert told.judge() is None
    assert told.draft.nbytes == 2 * 24 + 30 + 1
    told.draft.forget_coins()
    assert told.draft.nbytes == 0


def test_the_coins_of_many_segments_take_no_more_than_their_own_bytes() -> None:
    """All are answered together; each segment keeps its part, not the whole answer."""
    chain = empty_chain(HEIGHT - 1)
    raws = [spend(put_coin(chain, n, script=b"\x61" * 200 + TRUE)) for n in range(50)]
    told = Told(chain, raws, groups=[[p] for p in range(1, 51)])
    assert told.judge() is None
    assert told.draft.nbytes == 50 * (24 + 201)


def test_a_segment_that_cannot_be_written_to_is_taken_all_the_same() -> None:
    """As it arrives from another process; what is rewired is the draft's own."""
    chain = empty_chain(HEIGHT - 1)
    parent = spend(put_coin(chain, 1, 1_000), out=900)
    child = spend(txid_of(parent) + bytes(4), out=800)
    told = Told(chain, [parent, child])
    layout, draft = BlockLayout(), BlockDraft(2)
    for position in (2, 1):
        table = TxTable.from_transactions([told.block.transactions[position]])
        rewires = layout.add(np.array([position]), table)
        segment = layout.segments[-1]
        frozen = segment.source.copy()
        frozen.flags.writeable = False
        draft.add(replace(segment, source=frozen), rewires)
    told.draft = draft
    assert told.judge() is None


def test_an_empty_draft_is_a_block_of_a_coinbase() -> None:
    told = Told(empty_chain(HEIGHT - 1), [])
    assert told.judge() is None
    assert told.asked == [told.block.transactions[0].txid + bytes(4)]


def test_script_jobs_are_the_same_one_by_one_and_together() -> None:
    """More than 64 of a segment are unpacked together."""
    chain = empty_chain(HEIGHT - 1)
    scripts = [TRUE, b"\x76\xa9\x14" + bytes(20) + b"\x88\xac", b"\x00\x14" + bytes(20)]
    raws = [spend(put_coin(chain, n, n, script=scripts[n % 3]), put_coin(chain, 1000 + n)) for n in range(100)]
    told = Told(chain, raws, groups=[[*range(1, 91)], [*range(91, 101)]])
    told.judge()
    positions = np.array([*range(3, 101, 2), *range(4, 101, 2)])
    jobs = list(told.draft.script_jobs(positions))
    assert jobs == [told.draft.script_job(p) for p in positions.tolist()]
    assert jobs[0] == (raws[2], [(2, scripts[2]), (1000, TRUE)])


def test_which_transactions_spend_only_the_database() -> None:
    chain = empty_chain(HEIGHT - 1)
    a, b, c = (put_coin(chain, n) for n in (1, 2, 3))
    parent = spend(a)
    raws = [parent, spend(b, txid_of(parent) + bytes(4)), spend(c), spend(made_up(9))]
    for groups in (None, [[2, 4], [1, 3]]):
        told = Told(chain, raws, groups)
        positions = np.array([4, 3, 2, 1])
        assert told.draft.spend_database(positions).tolist() == [True, True, False, True]


def test_jobs_of_some_are_those_of_the_drafts_generation() -> None:
    chain = empty_chain(HEIGHT - 1)
    told = Told(chain, [spend(put_coin(chain, n)) for n in range(3)])
    steps = told.steps()
    wanted = next(steps)
    assert isinstance(wanted, CoinsWanted)
    wanted = steps.send(CoinBatch.of_coins(chain.read(split_outpoints(wanted.outpoints))))
    assert isinstance(wanted, ScriptsWanted)
    jobs = list(wanted.some(np.array([False, True, True])))
    assert jobs == list(wanted.jobs)[1:]
    told.draft.forget_coins()
    with pytest.raises(StaleView):
        list(wanted.some(np.array([True, False, False])))
