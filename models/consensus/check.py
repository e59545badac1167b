"""One check of one block, in Core's order (Core: `TestBlockValidity`; SPEC 2.1), without input or output of its own.

`check_block_draft` is a generator: it yields what it wants to know (coins, scripts) and is sent the answers, so that a
plain loop in a test and an async actor drive the same code. It compares tips only at the beginning; whoever drives it
compares again before the answer leaves.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from models.coins.codec import OUTPOINT_SIZE, split_outpoints
from models.coins.coin import Coin
from models.coins.columns import ABSENT, CoinBatch
from models.consensus import reasons as r
from models.consensus.block_checks import check_block, check_header, check_transactions_in_context
from models.consensus.connect import first_failure
from models.consensus.context import BlockContext
from models.consensus.draft import PROBE_ABSENT, PROBE_PRESENT, BlockDraft
from models.consensus.failure import Failure
from models.consensus.table import TxRecord
from models.errors import InternalError, StaleView
from models.script.jobs import ScriptJob
from models.wire.block import BlockHeader
from models.wire.hashes import to_display
from models.wire.transaction import Transaction

__all__ = ["BlockJudgement", "CoinsWanted", "ScriptsWanted", "check_block_draft", "drive"]


@dataclass(frozen=True)
class CoinsWanted:
    """Answer with a CoinBatch for these outpoints (joined), at the tip version of the context."""

    outpoints: bytes


@dataclass(frozen=True)
class ScriptsWanted:
    """Answer with the first failing input of each job, or -1. A job is (raw transaction, its spent outputs).

    Jobs are made while they are taken, so that the first can run before the last is made.
    """

    jobs: Iterator[ScriptJob]
    flags: int
    positions: np.ndarray  # in the block, of each job
    draft: BlockDraft
    generation: int  # of the draft

    def some(self, which: np.ndarray) -> Iterator[ScriptJob]:
        """The jobs of some, instead of `jobs`: one bool for each."""
        return self.draft.script_jobs(self.positions[which], self.generation)

    def spend_database(self) -> np.ndarray:
        """Which of them spend nothing but what the database holds, not what the block itself makes or spends before:
        one bool each."""
        return self.draft.spend_database(self.positions)


@dataclass
class BlockJudgement:
    """The outcome: `failure` None means valid. `rows` in block order name the offender."""

    failure: Failure | None
    rows: np.ndarray
    fees: int = 0
    coins_read: int = 0
    scripts_run: int = 0


Steps = Generator[CoinsWanted | ScriptsWanted, CoinBatch | Sequence[int], BlockJudgement]


def check_block_draft(
    draft: BlockDraft,
    header: BlockHeader,
    coinbase: Transaction,
    context: BlockContext,
    now: int,
    witness_root: bytes,
    inline_scripts: bool = False,
    before: Callable[[np.ndarray], Failure | None] | None = None,
) -> Steps:
    """Judges a complete draft with one coinbase and header. `witness_root`: see `check_transactions_in_context`.

    `before` runs the checks that some callers want first (proof of work, merkle root: rows 2 to 4). Coins are asked
    for only when every check that needs none has passed, all that are left in one request; scripts come last, or, with
    `inline_scripts`, up to the first transaction that breaks another rule.
    """
    record = TxRecord.of(coinbase)
    rows = draft.rows.copy()
    rows[0] = np.frombuffer(record.row, rows.dtype)[0]
    judgement = BlockJudgement(None, rows)
    failure = _check_prevhash(header, context) or (before(rows) if before else None) or check_block(rows)
    failure = failure or check_header(header, context, now)
    failure = failure or check_transactions_in_context(rows, coinbase, header, context, witness_root)
    if failure:
        judgement.failure = failure
        return judgement

    if draft.version is not None and context.tip.version < draft.version:
        raise StaleView("the draft knows of a later tip")
    draft.begin(context.tip.version, context.script_flags)
    bip30 = context.enforces_bip30(header.hash)
    overwrites = yield from _read_coins(draft, record, bip30, judgement)
    flags = context.flags_of(header.hash)
    results = draft.results_with(record, context, flags)
    judgement.fees = int(results["fee"].sum())
    failure = first_failure(rows, results, context, overwrites, {}, inline_scripts)
    if failure and (not inline_scripts or failure.reason is r.BAD_TXNS_BIP30):
        judgement.failure = failure
        return judgement
    # Inline, a script counts if its transaction stands before the one that breaks another rule.
    limit = failure.position if failure and failure.reason is not r.BAD_CB_AMOUNT else None
    failed = yield from _verify_scripts(draft, flags, limit, judgement)
    judgement.failure = first_failure(rows, results, context, overwrites, failed, inline_scripts)
    if judgement.failure and judgement.failure.reason is r.SCRIPT_FAILED:
        judgement.failure = _name_prevout(judgement.failure, draft)
    return judgement


def _check_prevhash(header: BlockHeader, context: BlockContext) -> Failure | None:
    """Row 1. Core leaves the debug text empty here."""
    return Failure.of(r.NOT_BEST_PREVBLK) if header.prev_hash != context.tip.hash else None


def _read_coins(
    draft: BlockDraft, coinbase: TxRecord, bip30: bool, judgement: BlockJudgement
) -> Generator[CoinsWanted, CoinBatch, int | None]:
    """Asks once for everything not observed yet; returns the first transaction that would overwrite an output.

    Raises StaleView if the draft lost what it knew meanwhile, which another tip does, also if it is back at this one.
    """
    version, generation = draft.version, draft.generation
    assert version is not None
    wanted = draft.unobserved()
    outpoints = draft.outpoints_wanted(wanted)
    probes = draft.unprobed() if bip30 else np.zeros(0, np.int64)
    outputs, counts = draft.outpoints_of_outputs(probes)
    own = b"".join([coinbase.txid + n.to_bytes(4, "little") for n in range(coinbase.n_out)]) if bip30 else b""
    overwrites_own = False
    if outpoints or outputs or own:
        batch = yield CoinsWanted(outpoints + own + outputs)
        if draft.generation != generation:
            raise StaleView("the tip moved while the coins of a block were read")
        spent, made, asked = (len(part) // OUTPOINT_SIZE for part in (outpoints, own, outpoints + own + outputs))
        if len(batch) != asked:
            raise InternalError(f"{asked} coins were asked for, {len(batch)} came")
        judgement.coins_read = len(batch)
        draft.observe_wanted(wanted, batch, version)
        present = batch.rows["state"][spent:] != ABSENT
        overwrites_own = bool(present[:made].any())
        present = present[made:]
        if len(probes):
            ends = np.cumsum(counts)
            hits = np.concatenate(([0], np.cumsum(present)))
            some = hits[ends] - hits[ends - counts] > 0
            draft.probed(probes, np.where(some, PROBE_PRESENT, PROBE_ABSENT), version)
    if not bip30:
        return None
    if overwrites_own:
        return 0
    hit = draft.probes == PROBE_PRESENT
    return int(np.argmax(hit)) if hit.any() else None


def _verify_scripts(
    draft: BlockDraft, flags: int, before: int | None, judgement: BlockJudgement
) -> Generator[ScriptsWanted, Sequence[int], dict[int, int]]:
    """Verifies what is not known to pass, up to position `before`; returns failing position -> input."""
    positions = draft.unverified() if flags == draft.script_flags else np.flatnonzero(draft.filled)
    if before is not None:
        positions = positions[positions < before]
    if not len(positions):
        return {}
    generation = draft.generation
    firsts = yield ScriptsWanted(draft.script_jobs(positions), flags, positions, draft, generation)
    if draft.generation != generation:
        raise StaleView("the tip moved while the scripts of a block were verified")
    judgement.scripts_run = int(draft.rows["n_in"][positions].sum())
    answers = np.array(firsts, np.int64)
    draft.scripts_good(positions[answers < 0], flags)
    bad = answers >= 0
    return dict(zip(positions[bad].tolist(), answers[bad].tolist(), strict=True))


def _name_prevout(failure: Failure, draft: BlockDraft) -> Failure:
    """Core ends the text of a script failure with the outpoint that was spent."""
    assert failure.position is not None and failure.input is not None
    prevout = draft.prevout(failure.position, failure.input)
    spent = f"spending {to_display(prevout[:32])}:{int.from_bytes(prevout[32:], 'little')}"
    return Failure(failure.reason, f"{failure.debug}, {spent}", failure.position, failure.input)


def drive(
    steps: Steps,
    coins: Callable[[list[bytes]], Sequence[Coin | None] | CoinBatch],
    scripts: Callable[[list[ScriptJob], int], Sequence[int]],
) -> BlockJudgement:
    """Runs a check to its end with plain functions, in one process."""
    answer: CoinBatch | Sequence[int] | None = None
    try:
        while True:
            wanted = next(steps) if answer is None else steps.send(answer)
            if isinstance(wanted, CoinsWanted):
                read = coins(split_outpoints(wanted.outpoints))
                answer = read if isinstance(read, CoinBatch) else CoinBatch.of_coins(read)
            else:
                answer = scripts(list(wanted.jobs), wanted.flags)
    except StopIteration as end:
        return end.value
