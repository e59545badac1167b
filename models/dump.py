"""A failed declaration with everything its verdict rests on, so that the verdict can be had again without the node, the
chain or the coins database. How it is written to a file is in `models.dumpfile`.
"""

import time
from dataclasses import dataclass

import numpy as np

from models.coins.codec import split_outpoints
from models.coins.coin import Coin
from models.coins.columns import ABSENT, CoinBatch, CoinColumns
from models.consensus.check import check_block_draft, drive
from models.consensus.context import BlockContext
from models.consensus.draft import BlockDraft
from models.consensus.layout import BlockLayout
from models.consensus.table import TxTable
from models.consensus.verdict import Kind, Verdict
from models.errors import DecodeError
from models.script.verify import verify_batch
from models.wire.block import BlockHeader
from models.wire.hashes import ZERO_HASH, to_display
from models.wire.merkle import witness_merkle_root
from models.wire.transaction import decode_transaction

__all__ = ["Capture", "Dump", "replay"]

LATEST_TIME = 2**32 - 1  # that a header can hold, Unix seconds


@dataclass(frozen=True)
class Dump:
    """Hashes in internal order, raw transactions with witness, times in Unix seconds."""

    created: int
    wtxids: list[bytes]
    transactions: list[bytes]
    coinbase: bytes
    prevhash: bytes
    context: BlockContext
    coins: dict[bytes, Coin | None]  # outpoint -> what the database was seen to hold; None: nothing
    probes: bytes  # one per transaction, for BIP30: PROBE_* of models.consensus.draft
    coinbase_exists: bool  # an output of the coinbase was unspent already (BIP30)
    mode: str  # deferred or inline
    now: int
    verdict: Verdict


class Capture:
    """What a dump needs of a draft, at the moment of its verdict: copies of what changes and references to the rest, so
    that taking it costs about a millisecond. `dump` does the work, later and elsewhere."""

    def __init__(
        self, draft: BlockDraft, coinbase: bytes, context: BlockContext, now: int, mode: str, verdict: Verdict
    ):
        self._tables = list(draft.tables())
        self._observed = list(draft.observed())
        self._probes = draft.probes[1:].tobytes()
        self._count = draft.count
        self._rest = (coinbase, context, now, mode, verdict)
        self._created = int(time.time())

    def dump(self) -> Dump:
        """The whole of it."""
        coinbase, context, now, mode, verdict = self._rest
        raws = [b""] * self._count
        wtxids = [b""] * self._count
        for positions, table in self._tables:
            for index, (position, wtxid) in enumerate(zip(positions.tolist(), table.wtxids(), strict=True)):
                raws[position - 1] = table.raw(index)
                wtxids[position - 1] = wtxid
        coins: dict[bytes, Coin | None] = {}
        for outpoints, batch in self._observed:
            coins.update(zip(np.ascontiguousarray(outpoints).tolist(), _coins_of(batch), strict=True))
        offender = verdict.offender
        exists = verdict.reason == "bad-txns-BIP30" and offender is not None and offender.position == 0
        return Dump(
            self._created, wtxids, raws, coinbase, context.tip.hash, context, coins, self._probes, exists, mode, now,
            Verdict(verdict.kind, verdict.reason, verdict.debug, offender, verdict.category),
        )  # fmt: skip


def _coins_of(batch: CoinBatch) -> list[Coin | None]:
    """All observations of a batch, many times faster than one by one: others wait for this process meanwhile."""
    columns = CoinColumns(len(batch))
    columns.put(np.arange(len(batch)), batch)
    rows = columns.rows
    names = (rows["state"].tolist(), rows["height"].tolist(), rows["coinbase"].tolist(), columns.spent_outputs())
    return [
        None if state == ABSENT else Coin(value, height, bool(coinbase), script)
        for state, height, coinbase, (value, script) in zip(*names, strict=True)
    ]


def replay(dump: Dump, threads: int = 1) -> Verdict:
    """The verdict, worked out anew from nothing but the dump; scripts are run on `threads` threads.

    Raises DecodeError if the check asks for a coin that the dump does not hold.
    """
    context = dump.context
    draft = _draft_of(dump)
    witness_root = witness_merkle_root(dump.wtxids)
    time_ = context.template_time(dump.now)
    if time_ > LATEST_TIME:
        raise DecodeError(f"the block's time would be {time_}, which a header cannot hold")
    bits = context.required_bits(time_)
    header = BlockHeader(context.template_version, context.tip.hash, ZERO_HASH, time_, bits, 0)
    coinbase = decode_transaction(dump.coinbase)

    def coins(outpoints: list[bytes]) -> list[Coin | None]:
        found: list[Coin | None] = []
        for outpoint in outpoints:
            if outpoint in dump.coins:
                found.append(dump.coins[outpoint])
            elif outpoint[:32] == coinbase.txid:
                found.append(Coin(0, 0, True, b"") if dump.coinbase_exists else None)
            else:
                vout = int.from_bytes(outpoint[32:], "little")
                raise DecodeError(f"the dump does not hold coin {to_display(outpoint[:32])}:{vout}, which is asked for")
        return found

    steps = check_block_draft(draft, header, coinbase, context, dump.now, witness_root, dump.mode == "inline")
    judgement = drive(steps, coins, lambda jobs, flags: verify_batch(jobs, flags, threads))
    if judgement.failure is None:
        return Verdict(Kind.VALID)
    return Verdict.of_failure(judgement.failure, judgement.rows)


def _draft_of(dump: Dump) -> BlockDraft:
    """A complete draft that has been told what the dump holds."""
    draft = BlockDraft(len(dump.transactions))
    if not dump.transactions:
        return draft
    layout = BlockLayout()
    table = TxTable.from_transactions(map(decode_transaction, dump.transactions))
    layout.add(np.arange(1, len(table) + 1), table)
    draft.add(layout.segments[0])
    version = dump.context.tip.version
    draft.begin(version, dump.context.script_flags)
    for segment, inputs in draft.unobserved():
        outpoints = split_outpoints(draft.outpoints_of_inputs(segment, inputs))
        known = [i for i, outpoint in enumerate(outpoints) if outpoint in dump.coins]
        batch = CoinBatch.of_coins([dump.coins[outpoints[i]] for i in known])
        draft.observe(segment, inputs[known], batch, version)
    states = np.frombuffer(dump.probes, np.uint8)
    positions = np.flatnonzero(states)
    draft.probed(positions + 1, states[positions], version)
    return draft
