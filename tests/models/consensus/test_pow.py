"""Compact targets, difficulty and version bits, with the numbers of Core's own unit tests (arith_uint256_tests.cpp,
pow_tests.cpp) and rules worked by hand on made-up headers.
"""

from dataclasses import dataclass, field

import pytest

from models.consensus.params import ChainParams, get_params
from models.consensus.pow import (
    block_version,
    block_work,
    check_proof_of_work,
    compact_from_target,
    next_work_required,
    target_from_compact,
    timewarp_minimum,
)

MAIN = get_params("main")
TESTNET3 = get_params("testnet3")
TESTNET4 = get_params("testnet4")
REGTEST = get_params("regtest")
LIMIT = 0x1D00FFFF


@dataclass
class Headers:
    """Headers by height; what a test does not set is ten minutes apart, of the limit and of version 4."""

    times: dict[int, int] = field(default_factory=dict)
    targets: dict[int, int] = field(default_factory=dict)
    versions: dict[int, int] = field(default_factory=dict)

    def time(self, height: int) -> int:
        return self.times.get(height, 600 * height)

    def bits(self, height: int) -> int:
        return self.targets.get(height, LIMIT)

    def version(self, height: int) -> int:
        return self.versions.get(height, 4)

    def median_time_past(self, height: int) -> int:
        window = sorted(self.time(h) for h in range(max(height - 10, 0), height + 1))
        return window[len(window) // 2]


# arith_uint256_tests.cpp, bignum_SetCompact: compact form, target, negative or overflowing, compact form of the target.
COMPACT = [
    (0x00000000, 0, 0),
    (0x00123456, 0, 0),
    (0x01003456, 0, 0),
    (0x02000056, 0, 0),
    (0x03000000, 0, 0),
    (0x04000000, 0, 0),
    (0x00923456, 0, 0),
    (0x01803456, 0, 0),
    (0x02800056, 0, 0),
    (0x03800000, 0, 0),
    (0x04800000, 0, 0),
    (0x01123456, 0x12, 0x01120000),
    (0x02123456, 0x1234, 0x02123400),
    (0x03123456, 0x123456, 0x03123456),
    (0x04123456, 0x12345600, 0x04123456),
    (0x05009234, 0x92340000, 0x05009234),
    (0x20123456, 0x123456 << 232, 0x20123456),
]


@pytest.mark.parametrize(("compact", "target", "again"), COMPACT)
def test_targets_of_compact_forms(compact: int, target: int, again: int) -> None:
    assert target_from_compact(compact) == (target, target != 0)
    assert compact_from_target(target) == again


@pytest.mark.parametrize(("compact", "target"), [(0x01FEDCBA, 0x7E), (0x04923456, 0x12345600)])
def test_negative_targets_cannot_be_used(compact: int, target: int) -> None:
    assert target_from_compact(compact) == (target, False)


@pytest.mark.parametrize("compact", [0xFF123456, 0x23000001, 0x22000100, 0x21010000])
def test_targets_beyond_256_bits_cannot_be_used(compact: int) -> None:
    assert target_from_compact(compact)[1] is False


@pytest.mark.parametrize("compact", [0x22000001, 0x220000FF, 0x21000100, 0x2100FFFF, 0x207FFFFF])
def test_the_largest_compact_forms_that_fit(compact: int) -> None:
    exponent, mantissa = compact >> 24, compact & 0xFFFFFF
    assert target_from_compact(compact) == (mantissa << 8 * (exponent - 3), True)


def test_a_compact_form_never_has_the_sign_bit() -> None:
    assert compact_from_target(0x80) == 0x02008000


def test_work_of_known_targets() -> None:
    assert block_work(0x1D00FFFF) == 0x100010001  # the chain work of mainnet's genesis block
    assert block_work(0x207FFFFF) == 2
    assert block_work(0) == block_work(0x01FEDCBA) == block_work(0xFF123456) == 0


# pow_tests.cpp: get_next_work, _pow_limit, _lower_limit_actual, _upper_limit_actual.
@pytest.mark.parametrize(
    ("last", "first_time", "last_time", "bits", "expected"),
    [
        (32255, 1261130161, 1262152739, 0x1D00FFFF, 0x1D00D86A),
        (2015, 1231006505, 1233061996, 0x1D00FFFF, 0x1D00FFFF),
        (68543, 1279008237, 1279297671, 0x1C05A3F4, 0x1C0168FD),
        (46367, 1263163443, 1269211443, 0x1C387F6F, 0x1D00E1FD),
    ],
)
def test_retargets_of_mainnet(last: int, first_time: int, last_time: int, bits: int, expected: int) -> None:
    chain = Headers({last - 2015: first_time, last: last_time}, {last: bits, last - 2015: 0x1B00FFFF})
    assert next_work_required(MAIN, chain, last + 1, 0) == expected


def test_between_retargets_the_target_stays() -> None:
    chain = Headers(targets={100: 0x1C05A3F4, 2014: 0x1C05A3F4})
    for params in (MAIN, get_params("signet")):
        assert next_work_required(params, chain, 101, 10**9) == 0x1C05A3F4
        assert next_work_required(params, chain, 2015, 10**9) == 0x1C05A3F4


def test_a_late_testnet_block_may_have_the_limit() -> None:
    chain = Headers(targets={100: 0x1C05A3F4})
    time = chain.time(100)
    assert next_work_required(TESTNET3, chain, 101, time + 1200) == 0x1C05A3F4
    assert next_work_required(TESTNET3, chain, 101, time + 1201) == LIMIT
    assert next_work_required(MAIN, chain, 101, time + 1201) == 0x1C05A3F4


def test_a_testnet_block_in_time_has_the_last_target_that_is_not_the_limit() -> None:
    chain = Headers(targets={2020: 0x1C05A3F4})  # 2021 to 2029 were late
    assert next_work_required(TESTNET3, chain, 2030, chain.time(2029) + 600) == 0x1C05A3F4


def test_the_way_back_ends_at_the_last_retarget() -> None:
    chain = Headers(targets={2015: 0x1C05A3F4})
    assert next_work_required(TESTNET3, chain, 2030, chain.time(2029)) == LIMIT
    chain = Headers(targets={2016: 0x1C0AAAAA, 2015: 0x1C05A3F4})
    assert next_work_required(TESTNET3, chain, 2030, chain.time(2029)) == 0x1C0AAAAA


def test_at_a_retarget_a_testnet_block_that_is_late_is_not_let_off() -> None:
    chain = Headers(targets={4031: 0x1C05A3F4})
    chain.times[4031] = chain.time(2016) + 14 * 86_400
    assert next_work_required(TESTNET3, chain, 4032, 10**9) == 0x1C05A3F4


def test_bip94_retargets_from_the_first_block_of_the_period() -> None:
    """The last block was a late one with the limit; testnet3 starts from it, testnet4 from the period's first."""
    chain = Headers(targets={2016: 0x1C05A3F4, 4031: LIMIT})
    chain.times[4031] = chain.time(2016) + 14 * 86_400
    assert next_work_required(TESTNET3, chain, 4032, 0) == LIMIT
    assert next_work_required(TESTNET4, chain, 4032, 0) == 0x1C05A3F4


def test_a_step_is_no_larger_than_four_in_either_direction() -> None:
    fast = Headers({4031: 0, 2016: 0}, {4031: 0x1C040000})
    assert next_work_required(MAIN, fast, 4032, 0) == 0x1C010000
    backwards = Headers({4031: 0, 2016: 10**9}, {4031: 0x1C040000})
    assert next_work_required(MAIN, backwards, 4032, 0) == 0x1C010000
    slow = Headers({4031: 10**9, 2016: 0}, {4031: 0x1C010000})
    assert next_work_required(MAIN, slow, 4032, 0) == 0x1C040000


def test_regtest_never_retargets() -> None:
    chain = Headers({143: 10**9, 0: 0}, {143: 0x1C05A3F4})
    assert next_work_required(REGTEST, chain, 144, 2 * 10**9) == 0x1C05A3F4


def test_a_regtest_block_that_is_late_has_the_limit() -> None:
    chain = Headers(targets={143: 0x1C05A3F4, 144: 0x1C05A3F4})
    assert next_work_required(REGTEST, chain, 145, chain.time(144) + 1201) == 0x207FFFFF


@pytest.mark.parametrize(("params", "height", "minimum"), [
    (TESTNET4, 4032, 600 * 4031 - 600),
    (TESTNET4, 4033, None),
    (TESTNET3, 4032, None),
    (MAIN, 4032, None),
    (REGTEST, 144, None),
    (get_params("regtest", bip94=True), 144, 600 * 143 - 600),
    (get_params("regtest", bip94=True), 145, None),
])  # fmt: skip
def test_bip94_bounds_the_time_of_a_periods_first_block(params: ChainParams, height: int, minimum: int | None) -> None:
    assert timewarp_minimum(params, Headers(), height) == minimum


# pow_tests.cpp, CheckProofOfWork_test_*
def test_proof_of_work_wants_a_hash_below_a_target_that_is_allowed() -> None:
    hash_one = (1).to_bytes(32, "little")
    limit = 0xFFFF << 208
    assert check_proof_of_work(hash_one, LIMIT, MAIN)
    assert check_proof_of_work(limit.to_bytes(32, "little"), LIMIT, MAIN)
    assert not check_proof_of_work((limit + 1).to_bytes(32, "little"), LIMIT, MAIN)
    assert not check_proof_of_work(hash_one, LIMIT | 0x00800000, MAIN)  # negative
    assert not check_proof_of_work(hash_one, 0xFFFFFFFF, MAIN)  # overflow
    assert not check_proof_of_work(hash_one, 0x1D010000, MAIN)  # easier than the limit
    assert not check_proof_of_work(bytes(32), 0, MAIN)
    assert check_proof_of_work(hash_one, 0x207FFFFF, REGTEST)


# BIP9 on regtest: bit 28, period 144, threshold 108, start time 0.
TOP, SIGNAL = 0x20000000, 0x30000000


@pytest.mark.parametrize(
    ("height", "version"), [(1, TOP), (143, TOP), (144, SIGNAL), (287, SIGNAL), (288, SIGNAL), (5000, SIGNAL)]
)
def test_testdummy_is_signalled_from_its_second_period_on(height: int, version: int) -> None:
    assert block_version(REGTEST, Headers(), height) == version


@pytest.mark.parametrize(("signals", "locks_in"), [(107, False), (108, True), (144, True)])
def test_testdummy_locks_in_at_108_signals_and_is_then_active(signals: int, locks_in: bool) -> None:
    chain = Headers(versions=dict.fromkeys(range(144, 144 + signals), SIGNAL))
    assert block_version(REGTEST, chain, 288) == SIGNAL  # locked in, or still started
    assert block_version(REGTEST, chain, 431) == SIGNAL
    assert block_version(REGTEST, chain, 432) == (TOP if locks_in else SIGNAL)
    assert block_version(REGTEST, chain, 10_000) == (TOP if locks_in else SIGNAL)


@pytest.mark.parametrize("version", [0x10000000, 0x50000000, -0x50000000, 0x70000000])
def test_bit_28_counts_only_below_the_top_bits(version: int) -> None:
    chain = Headers(versions=dict.fromkeys(range(144, 288), version))
    assert block_version(REGTEST, chain, 432) == SIGNAL


def test_signals_before_the_start_do_not_count() -> None:
    chain = Headers(versions=dict.fromkeys(range(144), SIGNAL))
    assert block_version(REGTEST, chain, 432) == SIGNAL


@pytest.mark.parametrize("params", [MAIN, TESTNET3, TESTNET4, get_params("signet")])
def test_elsewhere_nothing_is_signalled(params: ChainParams) -> None:
    assert block_version(params, Headers(), 900_000) == TOP
