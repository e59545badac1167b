"""Compact targets, difficulty adjustment and proof of work (Core: arith_uint256.cpp, pow.cpp), and the version bits of
our own templates (BIP9, Core: versionbits.cpp). The chain is seen through `HeaderChain`, so tests need no store.
"""

from typing import Protocol

from models.consensus.params import MAX_TIMEWARP, ChainParams

__all__ = [
    "HeaderChain",
    "block_version",
    "block_work",
    "check_proof_of_work",
    "compact_from_target",
    "next_work_required",
    "target_from_compact",
    "timewarp_minimum",
]

VERSIONBITS_TOP_BITS = 0x20000000
TESTDUMMY_BIT = 28


class HeaderChain(Protocol):
    """The headers from one block back to genesis, by height."""

    def time(self, height: int) -> int:
        """Unix time of the header at `height`."""

    def bits(self, height: int) -> int:
        """Compact target of the header at `height`."""

    def median_time_past(self, height: int) -> int:
        """Median of the times of the (at most) eleven headers ending at `height` (BIP113)."""

    def version(self, height: int) -> int:
        """Version of the header at `height`, signed."""


def target_from_compact(bits: int) -> tuple[int, bool]:
    """The 256-bit target of a compact form, and whether it is usable (not zero, negative or overflowing)."""
    size, word = bits >> 24, bits & 0x007FFFFF
    target = word >> 8 * (3 - size) if size <= 3 else word << 8 * (size - 3)
    negative = word != 0 and bits & 0x00800000 != 0
    overflow = word != 0 and (size > 34 or (word > 0xFF and size > 33) or (word > 0xFFFF and size > 32))
    return target & (2**256 - 1), not (negative or overflow or target == 0)


def compact_from_target(target: int) -> int:
    """The compact form of a target, rounded down (Core: `GetCompact`)."""
    size = (target.bit_length() + 7) // 8
    word = target << 8 * (3 - size) if size <= 3 else target >> 8 * (size - 3)
    if word & 0x00800000:
        word >>= 8
        size += 1
    return word | size << 24


def block_work(bits: int) -> int:
    """Expected hashes that a block with this target stands for (Core: `GetBlockProof`); 0 for an unusable target."""
    target, usable = target_from_compact(bits)
    return 2**256 // (target + 1) if usable else 0


def check_proof_of_work(block_hash: bytes, bits: int, params: ChainParams) -> bool:
    """Whether the hash (internal order) meets the target and the target is allowed (Core: `CheckProofOfWork`)."""
    target, usable = target_from_compact(bits)
    limit, _ = target_from_compact(params.pow_limit_bits)
    return usable and target <= limit and int.from_bytes(block_hash, "little") <= target


def next_work_required(params: ChainParams, chain: HeaderChain, height: int, time: int) -> int:
    """Compact target that the block at `height` with this header time must have (Core: `GetNextWorkRequired`)."""
    last = height - 1
    interval = params.retarget_interval
    if height % interval == 0:
        return _retarget(params, chain, last)
    if not params.allow_min_difficulty:
        return chain.bits(last)
    if time > chain.time(last) + 2 * params.target_spacing:
        return params.pow_limit_bits
    while last > 0 and last % interval != 0 and chain.bits(last) == params.pow_limit_bits:
        last -= 1
    return chain.bits(last)


def _retarget(params: ChainParams, chain: HeaderChain, last: int) -> int:
    if params.no_retargeting:
        return chain.bits(last)
    first = last - (params.retarget_interval - 1)
    timespan = chain.time(last) - chain.time(first)
    timespan = max(params.target_timespan // 4, min(timespan, params.target_timespan * 4))
    base, _ = target_from_compact(chain.bits(first) if params.enforce_bip94 else chain.bits(last))
    limit, _ = target_from_compact(params.pow_limit_bits)
    target = (base * timespan & (2**256 - 1)) // params.target_timespan
    return compact_from_target(min(target, limit))


def timewarp_minimum(params: ChainParams, chain: HeaderChain, height: int) -> int | None:
    """Earliest time that BIP94 allows the block at `height`; None where it says nothing."""
    if params.enforce_bip94 and height % params.retarget_interval == 0:
        return chain.time(height - 1) - MAX_TIMEWARP
    return None


def block_version(params: ChainParams, chain: HeaderChain, height: int) -> int:
    """Version of our own template at `height` (Core: `ComputeBlockVersion`).

    The only deployment left to BIP9 is regtest's TESTDUMMY on bit 28; it is signalled while STARTED or LOCKED_IN.
    """
    version = VERSIONBITS_TOP_BITS
    if params.testdummy is None:
        return version
    start_time, period, threshold = params.testdummy
    if _signalling(params, chain, height, start_time, period, threshold):
        version |= 1 << TESTDUMMY_BIT
    return version


def _signalling(
    params: ChainParams, chain: HeaderChain, height: int, start_time: int, period: int, threshold: int
) -> bool:
    """Walks the periods below `height`: DEFINED, STARTED, LOCKED_IN, ACTIVE (BIP9; no timeout on regtest)."""
    state = "defined"
    for boundary in range(period, height + 1, period):  # state of the period that begins at `boundary`
        if state == "defined":
            if chain.median_time_past(boundary - 1) >= start_time:
                state = "started"
        elif state == "started":
            signalled = sum(
                chain.version(h) & 0xE0000000 == VERSIONBITS_TOP_BITS and chain.version(h) >> TESTDUMMY_BIT & 1
                for h in range(boundary - period, boundary)
            )
            if signalled >= threshold:
                state = "locked-in"
        elif state == "locked-in":
            return False
    return state in ("started", "locked-in")
