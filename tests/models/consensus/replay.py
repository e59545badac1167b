"""A chain in memory for tests: headers in a list, coins in a dict. It judges blocks with `models.consensus` and applies
those that are valid in the plainest way, so that a test needs neither a store nor a node.
"""

from collections.abc import Iterable

import numpy as np

from models.coins.coin import Coin
from models.consensus.check import BlockJudgement, drive
from models.consensus.context import BlockContext, Tip, TipVersion, make_context
from models.consensus.params import ChainParams
from models.consensus.whole_block import check_whole_block
from models.script.verify import verify_batch
from models.wire.block import Block, BlockHeader, decode_block


class ReplayChain:
    """Starts at a network's genesis block. Also the `HeaderChain` that difficulty rules look at."""

    def __init__(self, params: ChainParams) -> None:
        self.params = params
        self.headers = [BlockHeader.parse(params.genesis_block)]
        self.coins: dict[bytes, Coin] = {}

    def time(self, height: int) -> int:
        return self.headers[height].time

    def bits(self, height: int) -> int:
        return self.headers[height].bits

    def version(self, height: int) -> int:
        return self.headers[height].version

    def median_time_past(self, height: int) -> int:
        window = sorted(header.time for header in self.headers[max(height - 10, 0) : height + 1])
        return window[len(window) // 2]

    @property
    def tip(self) -> Tip:
        height = len(self.headers) - 1
        return Tip(self.headers[-1].hash, height, TipVersion(1, height))

    def context(self) -> BlockContext:
        bip34 = self.params.activation["bip34"]
        ancestor = self.headers[bip34].hash if bip34 < len(self.headers) else None
        times = np.array([header.time for header in self.headers], np.uint32)
        return make_context(self.params, self, self.tip, times, ancestor)

    def read(self, outpoints: list[bytes]) -> list[Coin | None]:
        return [self.coins.get(outpoint) for outpoint in outpoints]

    def judge(
        self,
        block: Block,
        now: int | None = None,
        check_pow: bool = False,
        check_merkle: bool = True,
        inline: bool = False,
    ) -> BlockJudgement:
        """The judgement on a block on top of the tip; `now` is the block's own time unless given."""
        now = block.header.time if now is None else now
        steps = check_whole_block(block, self.context(), self.params, now, check_pow, check_merkle, inline)
        return drive(steps, self.read, verify_batch)

    def connect(self, block: Block) -> None:
        """Spends and creates what a valid block does, and makes it the tip."""
        height = len(self.headers)
        for number, tx in enumerate(block.transactions):
            if number:
                for prevout in tx.prevouts:
                    del self.coins[prevout]
            for vout, (value, script) in enumerate(zip(tx.values, tx.script_pubkeys, strict=True)):
                if script[:1] != b"\x6a" and len(script) <= 10_000:
                    self.coins[tx.txid + vout.to_bytes(4, "little")] = Coin(value, height, number == 0, script)
        self.headers.append(block.header)

    def follow(self, raws: Iterable[bytes], check_pow: bool = False) -> list[tuple[int, str]]:
        """Judges and connects blocks one after the other; (height, reason) of those that were refused."""
        refused = []
        for raw in raws:
            block = decode_block(raw, allow_trailing=False)
            failure = self.judge(block, check_pow=check_pow).failure
            if failure:
                refused.append((len(self.headers), failure.debug_line))
                break
            self.connect(block)
        return refused
