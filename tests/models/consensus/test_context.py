"""What the next block must be: heights of rules, times, script flags and BIP30 by network (SPEC 2.3 to 2.5)."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from models.consensus.context import BlockContext, Tip, TipVersion, make_context, script_flags
from models.consensus.params import ChainParams, get_params
from models.script.verify import CHECKLOCKTIMEVERIFY, CHECKSEQUENCEVERIFY, DERSIG, NULLDUMMY, P2SH, TAPROOT, WITNESS
from models.wire.hashes import from_display
from tests.models.consensus.building import SPACING, START, empty_chain
from tests.models.consensus.test_pow import Headers

MAIN = get_params("main")
BIP34_HASH = from_display("000000000000024b89b42a942fe0d9fea3bb44ab7bd1b19115dd6a759c0808b8")
BASE = P2SH | WITNESS | TAPROOT
TIMES = np.zeros(1, np.uint32)


def context_at(params: ChainParams, height: int, bip34_ancestor: bytes | None = None) -> BlockContext:
    """The context of the block at `height`, on headers ten minutes apart."""
    tip = Tip(b"\x11" * 32, height - 1, TipVersion(1, 1))
    return make_context(params, Headers(), tip, TIMES, bip34_ancestor)


@pytest.mark.parametrize("corpus", ["corpus", "corpus_activation_edge", "corpus_bip94"])
def test_medians_of_recorded_chains(corpus: str, data: Path) -> None:
    tip = json.loads((data / corpus / "tip.json").read_text())
    times = tip["block_times"]
    context = replace(context_at(get_params("regtest"), len(times)), times=np.array(times, np.uint32))
    heights = np.array([*range(len(times)), 5, 5, 0])
    by_hand = []
    for height in heights.tolist():
        window = sorted(times[max(height - 10, 0) : height + 1])
        by_hand.append(window[len(window) // 2])
    assert context.median_times(heights).tolist() == by_hand
    assert by_hand[tip["height"]] == tip["mtp"]  # as the node said


def test_times_beyond_31_bits_are_not_negative() -> None:
    context = replace(context_at(MAIN, 12), times=np.full(12, 0xFFFFFFFF, np.uint32))
    assert context.median_times(np.array([0, 11])).tolist() == [0xFFFFFFFF, 0xFFFFFFFF]


# SPEC 2.4, heights of mainnet
@pytest.mark.parametrize(
    ("height", "flags"),
    [
        (1, BASE),
        (363_724, BASE),
        (363_725, BASE | DERSIG),
        (388_381, BASE | DERSIG | CHECKLOCKTIMEVERIFY),
        (419_327, BASE | DERSIG | CHECKLOCKTIMEVERIFY),
        (419_328, BASE | DERSIG | CHECKLOCKTIMEVERIFY | CHECKSEQUENCEVERIFY),
        (481_824, BASE | DERSIG | CHECKLOCKTIMEVERIFY | CHECKSEQUENCEVERIFY | NULLDUMMY),
    ],
)
def test_script_flags_grow_with_the_heights_of_mainnet(height: int, flags: int) -> None:
    assert script_flags(MAIN, height) == flags
    assert context_at(MAIN, height).script_flags == flags
    assert context_at(MAIN, height).flags_of(bytes(32)) == flags


@pytest.mark.parametrize(
    ("network", "height", "block", "flags"),
    [
        ("main", 170_060, "00000000000002dc756eebf4f49723ed8d30cc28a5f108eb94b1ba88ac4f9c22", 0),
        (
            "main",
            709_632,
            "0000000000000000000f14c35b2d841e986ab5441de8c585d5ffe55ea1e395ad",
            P2SH | WITNESS | DERSIG | CHECKLOCKTIMEVERIFY | CHECKSEQUENCEVERIFY | NULLDUMMY,
        ),
        ("testnet3", 100, "00000000dd30457c001f4095d208cc1296b0eed002427aa599874af7a432b105", 0),
    ],
)
def test_blocks_of_history_that_keep_fewer_rules(network: str, height: int, block: str, flags: int) -> None:
    """An exception replaces the base flags; buried deployments come on top."""
    params = get_params(network)
    assert script_flags(params, height, from_display(block)) == flags
    assert context_at(params, height).flags_of(from_display(block)) == flags
    assert context_at(params, height).flags_of(bytes(32)) & BASE == BASE


def test_versions_that_are_too_low_by_height() -> None:
    heights = {227_930: -(2**31), 227_931: 2, 363_724: 2, 363_725: 3, 388_380: 3, 388_381: 4}
    assert {height: context_at(MAIN, height).min_version for height in heights} == heights


def test_deployments_that_came_in_another_order_count_one_by_one() -> None:
    params = get_params("regtest", {"bip34": 500, "dersig": 500, "cltv": 10})
    assert context_at(params, 10).min_version == 4


def test_rules_of_mainnet_by_height() -> None:
    context = context_at(MAIN, 481_823)
    assert (context.bip34, context.csv, context.segwit) == (True, True, False)
    assert context_at(MAIN, 481_824).segwit
    assert not context_at(MAIN, 227_930).bip34


# SPEC 2.5 ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("network", "height", "ancestor", "enforced"),
    [
        ("main", 100_000, None, True),  # the BIP34 height is still to come
        ("main", 227_932, BIP34_HASH, False),
        ("main", 900_000, BIP34_HASH, False),
        ("main", 900_000, bytes(32), True),  # on another chain than the one we know
        ("main", 1_983_701, BIP34_HASH, False),
        ("main", 1_983_702, BIP34_HASH, True),
        ("testnet3", 30_000, BIP34_HASH, True),
        ("testnet3", 30_000, from_display("0000000023b3a96d3484e5abb3755c413e7d41500f8e2a5c3f0dd01299cd8ef8"), False),
        ("testnet4", 30_000, b"\x05" * 32, True),
        ("signet", 30_000, b"\x05" * 32, True),
        ("regtest", 200, b"\x05" * 32, True),
        ("regtest", 1, None, True),
    ],
)
def test_where_bip30_is_enforced(network: str, height: int, ancestor: bytes | None, enforced: bool) -> None:
    context = context_at(get_params(network), height, ancestor)
    assert context.bip30 is enforced
    assert context.enforces_bip30(b"\x07" * 32) is enforced


@pytest.mark.parametrize(
    ("height", "block"),
    [
        (91_842, "00000000000a4d0a398161ffc163c503763b1f4360639393e0e4c8e300e0caec"),
        (91_880, "00000000000743f190a18c5577a3c2d2a1f610ae9601ac046a38084ccb7cd721"),
    ],
)
def test_two_blocks_of_mainnet_repeated_a_coinbase(height: int, block: str) -> None:
    assert not context_at(MAIN, height).enforces_bip30(from_display(block))
    assert context_at(MAIN, height).enforces_bip30(bytes(32))
    assert context_at(MAIN, height + 1).enforces_bip30(from_display(block))
    assert context_at(get_params("testnet3"), height).enforces_bip30(from_display(block))


# Times and targets of our own header -----------------------------------------------------------------------------


def test_a_template_is_not_older_than_the_median_allows() -> None:
    context = empty_chain(20).context()
    median = START + SPACING * 15
    assert context.median_time_past == median
    assert context.template_time(median - 100) == context.template_time(median) == median + 1
    assert context.template_time(median + 500) == median + 500


def test_the_first_template_of_a_period_is_not_far_behind_its_parent() -> None:
    """Core applies BIP94's bound to its own templates on every network."""
    chain = empty_chain(143)
    context = chain.context()
    assert context.timewarp_minimum is None
    assert context.minimum_time() == chain.headers[-1].time - 600
    assert empty_chain(142).context().minimum_time() == START + SPACING * 137 + 1


def test_a_late_block_must_have_the_limit_where_a_network_has_that_rule() -> None:
    context = context_at(get_params("testnet4"), 5000)
    late = 600 * 4999 + 1200
    assert (context.required_bits(late), context.required_bits(late + 1)) == (0x1D00FFFF, 0x1D00FFFF)
    chain = Headers(targets={4999: 0x1C05A3F4, 4998: 0x1C05A3F4})
    tip = Tip(bytes(32), 4999, TipVersion(1, 1))
    for network, expected in (("testnet4", 0x1D00FFFF), ("testnet3", 0x1D00FFFF), ("main", 0x1C05A3F4)):
        context = make_context(get_params(network), chain, tip, TIMES, None)
        assert context.required_bits(late) == 0x1C05A3F4
        assert context.required_bits(late + 1) == expected


def test_at_a_retarget_there_is_no_such_rule() -> None:
    context = context_at(get_params("testnet4"), 2016)
    assert context.min_difficulty_after is None
    assert context.required_bits(2**32 - 1) == context.bits


def test_a_tip_shows_itself_readably() -> None:
    tip = Tip(from_display("ab" * 31 + "01"), 7, TipVersion(2, 3))
    assert repr(tip) == f"Tip(hash='{'ab' * 31}01', height=7, version=(2, 3))"
    assert TipVersion(1, 9) < TipVersion(2, 0)
