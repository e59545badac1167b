"""The same block told to a draft in pieces: transactions in random groups in random order, their coins in random
batches, BIP30 answers now and then, and a change of the tip in between.
"""

import random
from dataclasses import replace
from typing import Protocol

import numpy as np

from models.coins.codec import split_outpoints
from models.coins.coin import Coin
from models.coins.columns import CoinBatch
from models.consensus.check import BlockJudgement, check_block_draft, drive
from models.consensus.context import BlockContext, Tip, TipVersion
from models.consensus.draft import PROBE_ABSENT, PROBE_PRESENT, BlockDraft
from models.consensus.failure import Failure
from models.consensus.layout import FROM_DATABASE, BlockLayout
from models.consensus.table import TxTable
from models.script.verify import verify_batch
from models.wire.block import Block
from models.wire.merkle import merkle_root
from models.wire.transaction import Transaction, decode_transaction


def groups(count: int, rng: random.Random) -> list[list[int]]:
    """Positions 1 to count in random groups, each ascending, the groups in random order."""
    positions = list(range(1, count + 1))
    rng.shuffle(positions)
    found = []
    while positions:
        size = rng.randint(1, len(positions)) if rng.random() < 0.7 else 1
        found.append(sorted(positions[:size]))
        positions = positions[size:]
    return found


class Below(Protocol):
    """The chain below a block."""

    def context(self) -> BlockContext: ...

    def read(self, outpoints: list[bytes]) -> list[Coin | None]: ...


class Telling:
    """A draft, and whoever tells it of a block."""

    def __init__(self, chain: Below, block: Block, rng: random.Random, now: int | None = None) -> None:
        self.chain = chain
        self.block = block
        self.rng = rng
        self.now = block.header.time if now is None else now
        self.context = chain.context()
        self.layout = BlockLayout()
        self.draft = BlockDraft(len(block.transactions) - 1)
        self.draft.begin(self.context.tip.version, self.context.script_flags)

    def add(self, positions: list[int]) -> None:
        table = TxTable.from_transactions([self.block.transactions[p] for p in positions])
        rewires = self.layout.add(np.array(positions), table)
        self.draft.add(self.layout.segments[-1], rewires)

    def observe_some(self, context: BlockContext) -> None:
        """Some inputs of every segment, asked for as if the chain had `context`'s tip."""
        rng = self.rng
        for number, segment in enumerate(self.layout.segments):
            waiting = np.flatnonzero(segment.source == FROM_DATABASE).tolist()
            some = np.array([i for i in waiting if rng.random() < 0.5], np.int64)
            if len(some):
                spent = split_outpoints(self.draft.outpoints_of_inputs(number, some))
                coins = CoinBatch.of_coins(self.chain.read(spent))
                self.draft.observe(number, some, coins, context.tip.version)
        filled = np.flatnonzero(self.draft.filled).tolist()
        some = np.array([p for p in filled if rng.random() < 0.4], np.int64)
        if len(some):
            states = [PROBE_PRESENT if self.has_outputs(p) else PROBE_ABSENT for p in some.tolist()]
            self.draft.probed(some, np.array(states, np.uint8), context.tip.version)
        if rng.random() < 0.5:
            self.draft.work_out(context)

    def has_outputs(self, position: int) -> bool:
        tx = self.block.transactions[position]
        outputs = [tx.txid + n.to_bytes(4, "little") for n in range(len(tx.values))]
        return any(coin is not None for coin in self.chain.read(outputs))

    def another_tip(self) -> None:
        """The chain goes to another tip and comes back: what was observed there says nothing."""
        here = self.context
        elsewhere = replace(here, tip=Tip(b"\x99" * 32, here.tip.height, TipVersion(1, 10_000)))
        self.draft.begin(elsewhere.tip.version, here.script_flags)
        for number, segment in enumerate(self.layout.segments):
            inputs = np.arange(len(segment.table.ins))
            nothing = CoinBatch.of_coins([None] * len(inputs))
            assert self.draft.observe(number, inputs, nothing, elsewhere.tip.version)
            assert not self.draft.observe(number, inputs, nothing, here.tip.version)
        filled = np.flatnonzero(self.draft.filled)
        self.draft.probed(filled, np.full(len(filled), PROBE_PRESENT, np.uint8), elsewhere.tip.version)
        self.draft.begin(here.tip.version, here.script_flags)

    def judge(self, coinbase: Transaction, inline: bool) -> BlockJudgement:
        root, _ = merkle_root([bytes(32), *(tx.wtxid for tx in self.block.transactions[1:])])
        steps = check_block_draft(
            self.draft, self.block.header, coinbase, self.context, self.now, root, inline_scripts=inline
        )
        return drive(steps, self.chain.read, verify_batch)


def greedier(coinbase: Transaction) -> Transaction:
    """The same coinbase with one satoshi more, or fewer where it pays all there is."""
    raw = coinbase.raw
    at = raw.index(coinbase.values[0].to_bytes(8, "little"), 45)
    return decode_transaction(raw[:at] + (coinbase.values[0] + 1).to_bytes(8, "little") + raw[at + 8 :])


def judge_in_pieces(
    chain: Below, block: Block, rng: random.Random, inline: bool, now: int | None = None
) -> Failure | None:
    """The failure found by a draft that was told of the block in pieces. It is judged twice, and once in between with
    another coinbase, which must leave no trace.
    """
    telling = Telling(chain, block, rng, now)
    for positions in groups(len(block.transactions) - 1, rng):
        telling.add(positions)
        if rng.random() < 0.6:
            telling.observe_some(telling.context)
        if rng.random() < 0.15:
            telling.another_tip()
    coinbase = block.transactions[0]
    first = telling.judge(coinbase, inline).failure
    if coinbase.values and 0 <= coinbase.values[0] < 2**62:
        telling.judge(greedier(coinbase), not inline)
    assert telling.judge(coinbase, inline).failure == first
    return first
