"""Rules of SPEC 2.1 that need no coins: rows 2 to 9 (Core: `CheckBlock`), 10 to 14 (`ContextualCheckBlockHeader`) and
15 to 18 (`ContextualCheckBlock`). Each works on the rows of a whole block, coinbase first, and names the first failure.
"""

import numpy as np

from models.consensus import reasons as r
from models.consensus.context import BlockContext
from models.consensus.failure import Failure
from models.consensus.params import (
    MAX_BLOCK_SIGOPS_COST,
    MAX_BLOCK_WEIGHT,
    MAX_FUTURE_BLOCK_TIME,
    MIN_WITNESS_COMMITMENT,
    WITNESS_COMMITMENT_PREFIX,
    WITNESS_SCALE_FACTOR,
    ChainParams,
)
from models.consensus.pow import check_proof_of_work
from models.consensus.table import ALL_FINAL, COINBASE, HAS_WITNESS
from models.wire.block import HEADER_SIZE, BlockHeader
from models.wire.compactsize import write_compact_size
from models.wire.hashes import sha256d, to_display
from models.wire.transaction import Transaction

__all__ = [
    "block_sizes",
    "check_block",
    "check_header",
    "check_merkle_root",
    "check_proof",
    "check_transactions_in_context",
    "coinbase_height_script",
    "commitment_index",
    "nonfinal",
    "witness_commitment",
]

LOCKTIME_THRESHOLD = 500_000_000  # script/script.h: below it a lock time is a height


def block_sizes(rows: np.ndarray) -> tuple[int, int]:
    """Bytes of the block without and with witnesses, header and transaction count included."""
    frame = HEADER_SIZE + len(write_compact_size(len(rows)))
    return frame + int(rows["base_size"].sum(dtype=np.int64)), frame + int(rows["total_size"].sum(dtype=np.int64))


def check_proof(header: BlockHeader, params: ChainParams) -> Failure | None:
    """Row 2."""
    if not check_proof_of_work(header.hash, header.bits, params):
        return Failure.of(r.HIGH_HASH)
    return None


def check_merkle_root(header: BlockHeader, root: bytes, mutated: bool) -> Failure | None:
    """Rows 4a and 4b, with the root and mutation mark of `models.wire.merkle.merkle_root`."""
    if header.merkle_root != root:
        return Failure.of(r.BAD_TXNMRKLROOT)
    if mutated:
        return Failure.of(r.BAD_TXNS_DUPLICATE)
    return None


def check_block(rows: np.ndarray) -> Failure | None:
    """Rows 5 to 9."""
    count = len(rows)
    if count == 0 or count * WITNESS_SCALE_FACTOR > MAX_BLOCK_WEIGHT:
        return Failure.of(r.BAD_BLK_LENGTH)
    stripped, _ = block_sizes(rows)
    if stripped * WITNESS_SCALE_FACTOR > MAX_BLOCK_WEIGHT:
        return Failure.of(r.BAD_BLK_LENGTH)
    coinbases = rows["flags"] & COINBASE != 0
    if not coinbases[0]:
        return Failure.of(r.BAD_CB_MISSING, 0)
    if coinbases[1:].any():
        return Failure.of(r.BAD_CB_MULTIPLE, int(np.argmax(coinbases[1:])) + 1)
    broken = rows["check"] != r.CHECK_OK
    if broken.any():
        position = int(np.argmax(broken))
        reason = r.TX_CHECK_REASONS[int(rows["check"][position])]
        assert reason is not None
        txid = to_display(rows["txid"][position].tobytes())
        return Failure(reason, f"Transaction check failed (tx hash {txid}) ", position)
    if int(rows["legacy_sigops"].sum(dtype=np.int64)) * WITNESS_SCALE_FACTOR > MAX_BLOCK_SIGOPS_COST:
        return Failure.of(r.BAD_BLK_SIGOPS)
    return None


def check_header(header: BlockHeader, context: BlockContext, now: int) -> Failure | None:
    """Rows 10 to 14; `now` is the checker's clock in Unix seconds."""
    if header.bits != context.required_bits(header.time):
        return Failure.of(r.BAD_DIFFBITS)
    if header.time <= context.median_time_past:
        return Failure.of(r.TIME_TOO_OLD)
    if context.timewarp_minimum is not None and header.time < context.timewarp_minimum:
        return Failure.of(r.TIME_TIMEWARP)
    if header.time > now + MAX_FUTURE_BLOCK_TIME:
        return Failure.of(r.TIME_TOO_NEW)
    if header.version < context.min_version:
        return Failure.of(r.bad_version(header.version))
    return None


def check_transactions_in_context(
    rows: np.ndarray, coinbase: Transaction, header: BlockHeader, context: BlockContext, witness_root: bytes
) -> Failure | None:
    """Rows 15 to 18. `witness_root` is the merkle root over wtxids with a zero hash for the coinbase (BIP141)."""
    cutoff = context.median_time_past if context.csv else header.time
    late = nonfinal(rows, context, cutoff)
    if late.any():
        return Failure.of(r.BAD_TXNS_NONFINAL, int(np.argmax(late)))
    if context.bip34 and not coinbase.script_sigs[0].startswith(coinbase_height_script(context.height)):
        return Failure.of(r.BAD_CB_HEIGHT, 0)
    failure = _check_witness_commitment(rows, coinbase, context, witness_root)
    if failure:
        return failure
    stripped, total = block_sizes(rows)
    if 3 * stripped + total > MAX_BLOCK_WEIGHT:
        return Failure.of(r.BAD_BLK_WEIGHT)
    return None


def nonfinal(rows: np.ndarray, context: BlockContext, cutoff: int) -> np.ndarray:
    """Which transactions their lock time keeps out of the block (Core: `IsFinalTx`); `cutoff` in Unix seconds."""
    locktime = rows["locktime"]
    limit = np.where(locktime < LOCKTIME_THRESHOLD, context.height, cutoff)
    return (locktime != 0) & (locktime >= limit) & (rows["flags"] & ALL_FINAL == 0)


def _check_witness_commitment(
    rows: np.ndarray, coinbase: Transaction, context: BlockContext, witness_root: bytes
) -> Failure | None:
    """Row 17 (Core: `CheckWitnessMalleation`)."""
    if context.segwit:
        index = commitment_index(coinbase)
        if index is not None:
            stack = coinbase.witnesses[0]
            if len(stack) != 1 or len(stack[0]) != 32:
                return Failure.of(r.BAD_WITNESS_NONCE_SIZE, 0)
            if witness_commitment(witness_root, stack[0]) != coinbase.script_pubkeys[index][6:38]:
                return Failure.of(r.BAD_WITNESS_MERKLE_MATCH, 0)
            return None
    witness = rows["flags"] & HAS_WITNESS != 0
    if witness.any():
        return Failure.of(r.UNEXPECTED_WITNESS, int(np.argmax(witness)))
    return None


def commitment_index(coinbase: Transaction) -> int | None:
    """The last output that can be a witness commitment (Core: `GetWitnessCommitmentIndex`), or None."""
    found = None
    for index, script in enumerate(coinbase.script_pubkeys):
        if len(script) >= MIN_WITNESS_COMMITMENT and script.startswith(WITNESS_COMMITMENT_PREFIX):
            found = index
    return found


def witness_commitment(witness_root: bytes, reserved: bytes) -> bytes:
    """BIP141: what the coinbase commits to."""
    return sha256d(witness_root + reserved)


def coinbase_height_script(height: int) -> bytes:
    """The push of the height that BIP34 wants first in the coinbase's scriptSig (Core: `CScript() << nHeight`)."""
    if height == 0:
        return b"\x00"
    if height <= 16:
        return bytes((0x50 + height,))
    number = height.to_bytes((height.bit_length() + 8) // 8, "little")  # one more bit, for the sign
    return bytes((len(number),)) + number
