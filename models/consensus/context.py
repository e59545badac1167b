"""Everything a check needs to know of the chain below the block: one value, worked out once per tip and sent around.

A context belongs to one tip version. It never answers questions about coins.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from models.consensus.params import BIP34_IMPLIES_BIP30_LIMIT, MAX_TIMEWARP, ChainParams
from models.consensus.pow import HeaderChain, block_version, next_work_required, timewarp_minimum
from models.script.verify import CHECKLOCKTIMEVERIFY, CHECKSEQUENCEVERIFY, DERSIG, NULLDUMMY, P2SH, TAPROOT, WITNESS
from models.wire.hashes import to_display

__all__ = ["BlockContext", "Tip", "TipVersion", "make_context"]

MEDIAN_TIME_SPAN = 11  # headers, BIP113


class TipVersion(NamedTuple):
    """A tip's name that never repeats: the store's epoch is raised at every open, `n` at every change of the tip."""

    epoch: int
    n: int


@dataclass(frozen=True)
class Tip:
    """The block that the next one builds on. `hash` in internal order."""

    hash: bytes
    height: int
    version: TipVersion

    def __repr__(self) -> str:
        return f"Tip(hash='{to_display(self.hash)}', height={self.height}, version={tuple(self.version)})"


@dataclass(frozen=True)
class BlockContext:
    """What the block on top of `tip` must be. Times in Unix seconds, `subsidy` in satoshis."""

    tip: Tip
    network: str
    height: int  # of the block to be checked
    median_time_past: int  # of the tip
    prev_time: int
    bits: int  # for a block that is not later than `min_difficulty_after`
    min_difficulty_after: int | None  # testnets: a later block must have `pow_limit_bits`
    pow_limit_bits: int
    timewarp_minimum: int | None  # BIP94
    min_version: int
    bip34: bool
    csv: bool
    segwit: bool
    bip30: bool
    subsidy: int
    script_flags: int
    script_flag_exceptions: dict[bytes, int]  # block hash (internal order) -> flags
    bip30_exception: bytes | None  # hash of the one block at this height that is exempt
    template_version: int
    interval: int
    signet_challenge: bytes | None
    times: np.ndarray  # u4 by height, of the whole chain up to the tip

    def required_bits(self, time: int) -> int:
        """Compact target for a block with this time (Core: `GetNextWorkRequired`)."""
        if self.min_difficulty_after is not None and time > self.min_difficulty_after:
            return self.pow_limit_bits
        return self.bits

    def minimum_time(self) -> int:
        """Earliest time of our own header on this tip (Core: `GetMinimumTime`, whose BIP94 rule holds everywhere)."""
        minimum = self.median_time_past + 1
        if self.height % self.interval == 0:
            minimum = max(minimum, self.prev_time - MAX_TIMEWARP)
        return minimum

    def template_time(self, now: int) -> int:
        """Time of our own header at `now` (Core: `UpdateTime`)."""
        return max(now, self.minimum_time())

    def flags_of(self, block_hash: bytes) -> int:
        """Script rules of the block with this hash, which may be one of history's exceptions."""
        return self.script_flag_exceptions.get(block_hash, self.script_flags)

    def enforces_bip30(self, block_hash: bytes) -> bool:
        """Whether outputs may not overwrite unspent ones; two old blocks of main did (Core: `IsBIP30Repeat`)."""
        return self.bip30 and block_hash != self.bip30_exception

    def median_times(self, heights: np.ndarray) -> np.ndarray:
        """Median time past at each of `heights`, as int64 (Core: `GetMedianTimePast`)."""
        unique, back = np.unique(heights, return_inverse=True)
        medians = np.empty(len(unique), np.int64)
        full = unique >= MEDIAN_TIME_SPAN - 1
        if full.any():
            window = unique[full][:, None] + np.arange(-(MEDIAN_TIME_SPAN - 1), 1)
            medians[full] = np.sort(self.times[window], axis=1)[:, MEDIAN_TIME_SPAN // 2]
        for i in np.flatnonzero(~full):
            window = np.sort(self.times[: int(unique[i]) + 1])
            medians[i] = window[len(window) // 2]
        return medians[back]


def make_context(
    params: ChainParams, chain: HeaderChain, tip: Tip, times: np.ndarray, bip34_ancestor: bytes | None
) -> BlockContext:
    """The context of the block on top of `tip`.

    `chain` are the headers up to the tip, `times` their times by height, `bip34_ancestor` the hash of the block at the
    BIP34 height on this chain (None if it is not that high yet).
    """
    height = tip.height + 1
    min_version = max(
        2 if params.active("bip34", height) else -(2**31),
        3 if params.active("dersig", height) else -(2**31),
        4 if params.active("cltv", height) else -(2**31),
    )
    late = None
    if params.allow_min_difficulty and height % params.retarget_interval != 0:
        late = chain.time(tip.height) + 2 * params.target_spacing
    return BlockContext(
        tip=tip,
        network=params.name,
        height=height,
        median_time_past=chain.median_time_past(tip.height),
        prev_time=chain.time(tip.height),
        bits=next_work_required(params, chain, height, 0),
        min_difficulty_after=late,
        pow_limit_bits=params.pow_limit_bits,
        timewarp_minimum=timewarp_minimum(params, chain, height),
        min_version=min_version,
        bip34=params.active("bip34", height),
        csv=params.active("csv", height),
        segwit=params.active("segwit", height),
        bip30=_bip30_enforced(params, height, bip34_ancestor),
        subsidy=params.subsidy(height),
        script_flags=script_flags(params, height),
        script_flag_exceptions={h: script_flags(params, height, h) for h in params.script_flag_exceptions},
        bip30_exception=params.bip30_exceptions.get(height),
        template_version=block_version(params, chain, height),
        interval=params.retarget_interval,
        signet_challenge=params.signet_challenge,
        times=times,
    )


def script_flags(params: ChainParams, height: int, block_hash: bytes | None = None) -> int:
    """Script rules of the block at `height` (Core: `GetBlockScriptFlags`); exceptions are keyed by the block's hash."""
    flags = P2SH | WITNESS | TAPROOT
    if block_hash is not None:
        flags = params.script_flag_exceptions.get(block_hash, flags)
    if params.active("dersig", height):
        flags |= DERSIG
    if params.active("cltv", height):
        flags |= CHECKLOCKTIMEVERIFY
    if params.active("csv", height):
        flags |= CHECKSEQUENCEVERIFY
    if params.active("segwit", height):
        flags |= NULLDUMMY
    return flags


def _bip30_enforced(params: ChainParams, height: int, bip34_ancestor: bytes | None) -> bool:
    """Core: ConnectBlock, `fEnforceBIP30`; the two repeated blocks of main are known by hash and handled on replay."""
    if height >= BIP34_IMPLIES_BIP30_LIMIT:
        return True
    return bip34_ancestor is None or bip34_ancestor != params.bip34_hash
