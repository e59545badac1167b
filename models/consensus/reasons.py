"""The one table of reason strings (Core: validation.cpp, consensus/tx_check.cpp, consensus/tx_verify.cpp; SPEC 2).

A reason is what Core's BIP22 answer says; its category is Core's `BlockValidationResult`. Small numbers stand for the
reasons that are kept in columns.
"""

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Category", "Reason", "TX_CHECK_REASONS"]


class Category(StrEnum):
    """Core's BlockValidationResult, for those that a template can meet."""

    UNSET = "unset"
    CONSENSUS = "consensus"
    MUTATED = "mutated"
    INVALID_HEADER = "invalid-header"
    TIME_FUTURE = "time-future"
    INVALID_PREV = "invalid-prev"
    MISSING_PREV = "missing-prev"
    CACHED_INVALID = "cached-invalid"


@dataclass(frozen=True, slots=True)
class Reason:
    """A reason string of Core with its category and, where it is always the same, its debug text."""

    text: str
    category: Category = Category.CONSENSUS
    debug: str = ""


_HEADER = Category.INVALID_HEADER
_MUTATED = Category.MUTATED

MISSING_TXS = Reason("missing-txs", Category.UNSET, "collected transaction(s) still missing")
NOT_BEST_PREVBLK = Reason("inconclusive-not-best-prevblk", Category.UNSET)

HIGH_HASH = Reason("high-hash", _HEADER, "proof of work failed")
BAD_SIGNET_BLKSIG = Reason("bad-signet-blksig", Category.CONSENSUS, "signet block signature validation failure")
BAD_TXNMRKLROOT = Reason("bad-txnmrklroot", _MUTATED, "hashMerkleRoot mismatch")
BAD_TXNS_DUPLICATE = Reason("bad-txns-duplicate", _MUTATED, "duplicate transaction")
BAD_BLK_LENGTH = Reason("bad-blk-length", Category.CONSENSUS, "size limits failed")
BAD_CB_MISSING = Reason("bad-cb-missing", Category.CONSENSUS, "first tx is not coinbase")
BAD_CB_MULTIPLE = Reason("bad-cb-multiple", Category.CONSENSUS, "more than one coinbase")
BAD_BLK_SIGOPS = Reason("bad-blk-sigops", Category.CONSENSUS, "out-of-bounds SigOpCount")
BAD_BLK_SIGOPS_COST = Reason("bad-blk-sigops", Category.CONSENSUS, "too many sigops")

BAD_DIFFBITS = Reason("bad-diffbits", _HEADER, "incorrect proof of work")
TIME_TOO_OLD = Reason("time-too-old", _HEADER, "block's timestamp is too early")
TIME_TIMEWARP = Reason("time-timewarp-attack", _HEADER, "block's timestamp is too early on diff adjustment block")
TIME_TOO_NEW = Reason("time-too-new", Category.TIME_FUTURE, "block timestamp too far in the future")

BAD_TXNS_NONFINAL = Reason("bad-txns-nonfinal", Category.CONSENSUS, "non-final transaction")
BAD_CB_HEIGHT = Reason("bad-cb-height", Category.CONSENSUS, "block height mismatch in coinbase")
BAD_WITNESS_NONCE_SIZE = Reason(
    "bad-witness-nonce-size", _MUTATED, "CheckWitnessMalleation : invalid witness reserved value size"
)
BAD_WITNESS_MERKLE_MATCH = Reason(
    "bad-witness-merkle-match", _MUTATED, "CheckWitnessMalleation : witness merkle commitment mismatch"
)
UNEXPECTED_WITNESS = Reason("unexpected-witness", _MUTATED, "CheckWitnessMalleation : unexpected witness data found")
BAD_BLK_WEIGHT = Reason("bad-blk-weight", Category.CONSENSUS, "ContextualCheckBlock : weight limit failed")

BAD_TXNS_BIP30 = Reason("bad-txns-BIP30", Category.CONSENSUS, "tried to overwrite transaction")
INPUTS_MISSINGORSPENT = Reason("bad-txns-inputs-missingorspent")
PREMATURE_SPEND = Reason("bad-txns-premature-spend-of-coinbase")
INPUTVALUES_OUTOFRANGE = Reason("bad-txns-inputvalues-outofrange")
IN_BELOWOUT = Reason("bad-txns-in-belowout")
FEE_OUTOFRANGE = Reason("bad-txns-fee-outofrange")
ACCUMULATED_FEE_OUTOFRANGE = Reason(
    "bad-txns-accumulated-fee-outofrange", Category.CONSENSUS, "accumulated fee in the block out of range"
)
BIP68_NONFINAL = Reason("bad-txns-nonfinal")
BAD_CB_AMOUNT = Reason("bad-cb-amount")
SCRIPT_FAILED = Reason("block-script-verify-flag-failed")

#: What submitting or proposing a block answers before it is checked (rpc/mining.cpp, validation.cpp).
DUPLICATE = Reason("duplicate", Category.UNSET)
DUPLICATE_INVALID = Reason("duplicate-invalid", Category.CACHED_INVALID)
DUPLICATE_INCONCLUSIVE = Reason("duplicate-inconclusive", Category.UNSET)
INCONCLUSIVE = Reason("inconclusive", Category.UNSET)
PREV_BLK_NOT_FOUND = Reason("prev-blk-not-found", Category.MISSING_PREV)
BAD_PREVBLK = Reason("bad-prevblk", Category.INVALID_PREV)


def bad_version(version: int) -> Reason:
    """`bad-version(0x........)` of a header whose version (signed 32 bit) is too low for its height."""
    shown = f"0x{version & 0xFFFFFFFF:08x}"
    return Reason(f"bad-version({shown})", _HEADER, f"rejected nVersion={shown} block")


#: CheckTransaction's reasons (consensus/tx_check.cpp) by the number kept in a transaction's row; 0 means none.
TX_CHECK_REASONS: tuple[Reason | None, ...] = (
    None,
    Reason("bad-txns-vin-empty"),
    Reason("bad-txns-vout-empty"),
    Reason("bad-txns-oversize"),
    Reason("bad-txns-vout-negative"),
    Reason("bad-txns-vout-toolarge"),
    Reason("bad-txns-txouttotal-toolarge"),
    Reason("bad-txns-inputs-duplicate"),
    Reason("bad-cb-length"),
    Reason("bad-txns-prevout-null"),
)
(
    CHECK_OK,
    VIN_EMPTY,
    VOUT_EMPTY,
    OVERSIZE,
    VOUT_NEGATIVE,
    VOUT_TOOLARGE,
    TXOUTTOTAL_TOOLARGE,
    INPUTS_DUPLICATE,
    CB_LENGTH,
    PREVOUT_NULL,
) = range(10)
