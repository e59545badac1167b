"""A store driven in one process, without actors: blocks are submitted as the template actor submits them, or followed
by `Chain.activate`, and judged by the plain loop of `models.consensus.check.drive`.
"""

import asyncio
from pathlib import Path
from typing import Any

from actors.submission import Submission
from models.chain import Chain
from models.coins.coin import Coin
from models.consensus.check import BlockJudgement, Steps, drive
from models.consensus.context import BlockContext, Tip, TipVersion
from models.consensus.reasons import Reason
from models.consensus.whole_block import check_whole_block
from models.script.verify import verify_batch
from models.storage.coinsdb import UtxoStats
from models.storage.store import Store
from models.wire.block import BlockHeader, decode_block

LATE = 2**32 - 1  # a clock for which no recorded block is too new


class LocalChain:
    """An open store, its chain, and answers to questions that actors would be asked."""

    def __init__(self, path: Path, now: int = LATE) -> None:
        self.now = now
        self.store = Store.open(path)
        self.params = self.store.params
        self.chain = Chain(self.store, self.params)
        self.connected = self.disconnected = 0
        self.read_failures: list[Exception] = []

    def close(self) -> None:
        self.store.close()

    @property
    def tip(self) -> Tip:
        return self.chain.tip

    @property
    def tip_id(self) -> str:
        return self.tip.hash[::-1].hex()

    def utxo(self) -> UtxoStats:
        return self.store.coins.utxo_stats()

    def coins(self) -> dict[bytes, Coin]:
        return dict(self.store.coins.iterate())

    def read(self, outpoints: list[bytes]) -> list[Coin | None]:
        return [self.store.coins.get(outpoint) for outpoint in outpoints]

    def judge(self, raw: bytes, context: BlockContext | None = None, **options: Any) -> BlockJudgement:
        """The plain check of a whole block at the tip."""
        steps = check_whole_block(decode_block(raw), context or self.chain.context(), self.params, self.now, **options)
        return drive(steps, self.read, verify_batch)

    # By `Chain.activate` ----------------------------------------------------------------------------------------

    def follow(self, raw: bytes) -> int:
        """Stores a block and follows the branch with most work; how often the tip changed."""
        self.chain.store_block(decode_block(raw))
        return len(self.chain.activate(self._reason))

    def _reason(self, raw: bytes, context: BlockContext) -> Reason | None:
        failure = self.judge(raw, context, check_pow=True).failure
        return failure.reason if failure else None

    def disconnect(self) -> None:
        self.chain.disconnect(self.tip.version)

    # By `Submission`: the peers that it asks ------------------------------------------------------------------------

    def submit(self, raw: bytes) -> str | None:
        """What `submitblock` answers."""
        submission = Submission(self, self, self.params)  # type: ignore[arg-type]
        return asyncio.run(submission.submit(raw, self.now))

    async def call(self, method: str, *args: Any) -> Any:
        return getattr(self, f"_{method}")(*args)

    async def drive(self, steps: Steps, tip: Tip) -> BlockJudgement:
        assert tip == self.tip
        if self.read_failures:
            raise self.read_failures.pop()
        return drive(steps, self.read, verify_batch)

    def _look_up(self, header: bytes) -> tuple[str | None, bool, BlockContext | None]:
        parsed = BlockHeader.parse(header)
        reason, stored = self.chain.look_up(parsed)
        return reason.text if reason else None, stored, self.chain.context_on(parsed.prev_hash)

    def _store_block(self, raw: bytes) -> None:
        self.chain.store_block(decode_block(raw))

    def _mark_failed(self, header: bytes) -> None:
        parsed = BlockHeader.parse(header)
        self.chain.add_header(parsed)
        self.chain.mark_failed(parsed.hash)

    def _next_step(self) -> tuple[bool, bytes, bytes, BlockContext] | None:
        step = self.chain.next_step()
        return None if step is None else (step.connect, step.block_hash, step.raw, self.chain.context())

    def _connect(self, block_hash: bytes, version: tuple[int, int]) -> None:
        self.chain.connect(block_hash, TipVersion(*version))
        self.connected += 1

    def _disconnect(self, version: tuple[int, int]) -> None:
        self.chain.disconnect(TipVersion(*version))
        self.disconnected += 1

    def _block_info(self, block_hash: bytes) -> dict[str, Any] | None:
        i = self.chain.headers.find(block_hash)
        return None if i is None else {"active": self.chain.headers.is_active(i)}
