"""Checking a block that is there as a whole (proposals, submissions), with the same draft and the same rules as a
declaration that came in piece by piece (Core: `TestBlockValidity`, `CheckBlock`).
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from models.consensus import reasons as r
from models.consensus.block_checks import check_block, check_header, check_merkle_root, check_proof, commitment_index
from models.consensus.block_checks import check_transactions_in_context as check_in_context
from models.consensus.check import BlockJudgement, Steps, check_block_draft
from models.consensus.context import BlockContext
from models.consensus.draft import BlockDraft
from models.consensus.failure import Failure
from models.consensus.layout import BlockLayout
from models.consensus.params import ChainParams
from models.consensus.signet import check_signet_solution
from models.consensus.table import TX_ROW, TxRecord, TxTable
from models.wire.block import Block, serialize_block
from models.wire.hashes import ZERO_HASH
from models.wire.merkle import merkle_root, witness_merkle_root
from models.wire.transaction import decode_transaction

__all__ = [
    "VerifiedScripts",
    "check_before_context",
    "check_in_context_of_parent",
    "check_whole_block",
    "draft_of_block",
    "with_reserved_value",
]


class VerifiedScripts(NamedTuple):
    """Which transactions after the coinbase have scripts that all pass under these flags (one bool for each)."""

    passed: np.ndarray
    flags: int

    @classmethod
    def joined(cls, parts: Sequence["VerifiedScripts | None"]) -> "VerifiedScripts | None":
        """Of transactions one after another; None where a part is not known, or all are not of the same flags."""
        known = [part for part in parts if part is not None]
        if not known or len(known) < len(parts) or len({part.flags for part in known}) > 1:
            return None
        return cls(np.concatenate([part.passed for part in known]), known[0].flags)


def draft_of_block(block: Block) -> BlockDraft:
    """A complete draft of every transaction after the first."""
    others = block.transactions[1:]
    draft = BlockDraft(len(others))
    if others:
        layout = BlockLayout()
        layout.add(np.arange(1, len(others) + 1), TxTable.from_transactions(others))
        draft.add(layout.segments[0])
    return draft


def check_whole_block(
    block: Block,
    context: BlockContext,
    params: ChainParams,
    now: int,
    check_pow: bool = False,
    check_merkle: bool = True,
    inline_scripts: bool = False,
    verified: VerifiedScripts | None = None,
) -> Steps:
    """Rows 1 to 23 of SPEC 2.1 in their order; `now` in Unix seconds. See `check_block_draft` for how it is driven.

    `verified` tells of scripts that are known to pass and need not run again.
    """

    def before(_: np.ndarray) -> Failure | None:
        return _rows_2_to_4(block, params, check_pow, check_merkle)

    if not block.transactions:
        rows = np.zeros(0, TX_ROW)
        prevhash = Failure.of(r.NOT_BEST_PREVBLK) if block.header.prev_hash != context.tip.hash else None
        return BlockJudgement(prevhash or before(rows) or check_block(rows), rows)
    draft = draft_of_block(block)
    if verified is not None:
        draft.begin(context.tip.version, context.script_flags)
        draft.scripts_good(np.flatnonzero(verified.passed) + 1, verified.flags)
    judgement = yield from check_block_draft(
        draft,
        block.header,
        block.transactions[0],
        context,
        now,
        _witness_root(block),
        inline_scripts,
        before,
    )
    return judgement


def _witness_root(block: Block) -> bytes:
    return witness_merkle_root(tx.wtxid for tx in block.transactions[1:])


def _rows_2_to_4(block: Block, params: ChainParams, check_pow: bool, check_merkle: bool) -> Failure | None:
    if check_pow:
        failure = check_proof(block.header, params)
        if failure:
            return failure
        challenge = params.signet_challenge
        genesis = block.header.hash == params.genesis_hash
        if challenge is not None and not genesis and not check_signet_solution(block, challenge):
            return Failure.of(r.BAD_SIGNET_BLKSIG)
    if check_merkle:
        return check_merkle_root(block.header, *merkle_root([tx.txid for tx in block.transactions]))
    return None


def _rows_of(block: Block) -> np.ndarray:
    return TxTable.from_records([TxRecord.of(tx) for tx in block.transactions]).rows


def check_before_context(block: Block, params: ChainParams) -> tuple[Failure | None, np.ndarray]:
    """Rows 2 to 9 of a block that was submitted, and its rows (Core: `CheckBlock` with proof of work)."""
    rows = _rows_of(block)
    return _rows_2_to_4(block, params, True, True) or check_block(rows), rows


def check_in_context_of_parent(
    block: Block, rows: np.ndarray, context: BlockContext, now: int
) -> tuple[Failure | None, Failure | None]:
    """Rows 10 to 14, then 15 to 18, of a submitted block on any known parent: (header failure, body failure)."""
    failure = check_header(block.header, context, now)
    if failure:
        return failure, None
    return None, check_in_context(rows, block.transactions[0], block.header, context, _witness_root(block))


def with_reserved_value(block: Block, context: BlockContext) -> Block:
    """The block with the coinbase's witness reserved value, which submitters may leave out (Core:
    `UpdateUncommittedBlockStructures`); the same block where nothing is missing."""
    if not block.transactions or not context.segwit:
        return block
    coinbase = block.transactions[0]
    if coinbase.has_witness or not coinbase.prevouts or commitment_index(coinbase) is None:
        return block
    raw = coinbase.raw
    stack = b"\x01\x20" + ZERO_HASH + b"\x00" * (len(coinbase.prevouts) - 1)
    filled = decode_transaction(raw[:4] + b"\x00\x01" + raw[4:-4] + stack + raw[-4:])
    transactions = [filled, *block.transactions[1:]]
    return Block(block.header, transactions, serialize_block(block.header, [tx.raw for tx in transactions]))
