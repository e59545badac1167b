"""The follower's target without Ray: a store, its chain and a mempool in the test's own process, judged by the same
rules. It can be stopped and started as a node can."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from cluster.follow import TargetLost
from models.chain import Chain
from models.consensus import reasons as r
from models.consensus.check import BlockJudgement, drive
from models.consensus.context import Tip
from models.consensus.params import ChainParams
from models.consensus.whole_block import check_before_context, check_in_context_of_parent, check_whole_block
from models.mempool import Mempool
from models.script.verify import verify_batch
from models.storage.store import Store
from models.wire.block import BlockHeader, decode_block
from models.wire.transaction import decode_transaction

NOW = 1_800_000_000  # Unix seconds; no block of a test is later


class LocalTarget:
    """See `cluster.follow.Target`."""

    def __init__(self, path: Path):
        self.path = path
        self.store: Store | None = None
        self.submitted: list[str | None] = []
        self.start()

    def start(self) -> None:
        """Opens the store; the mempool begins empty, as after a restart."""
        self.store = Store.open(self.path)
        self.chain = Chain(self.store, self.store.params)
        self.pool = Mempool()

    def stop(self) -> None:
        """Every call is refused until `start`."""
        if self.store is not None:
            self.store.close()
            self.store = None

    def _open(self) -> Store:
        if self.store is None:
            raise TargetLost("stopped by the test")
        return self.store

    def utxo_hash(self) -> str:
        return self._open().coins.utxo_stats().hash_serialized_3

    async def connect(self) -> ChainParams:
        return self._open().params

    async def tip(self) -> Tip:
        self._open()
        return self.chain.tip

    async def best_block(self) -> bytes:
        return self._open().coins.best_block

    async def headers(self, start: int, count: int) -> list[bytes]:
        index = self._open().headers
        end = min(start + count, index.tip_height + 1)
        return [index.header(index.active(height)).serialize() for height in range(start, end)]

    async def knows(self, block_hash: bytes) -> bool:
        return self._open().headers.find(block_hash) is not None

    async def add_headers(self, headers: list[bytes]) -> None:
        self._open().add_headers([BlockHeader.parse(raw) for raw in headers])

    async def submit(self, raw: bytes) -> str | None:
        self._open()
        answer = self._submit(raw)
        self.submitted.append(answer)
        return answer

    def _submit(self, raw: bytes) -> str | None:
        block = decode_block(raw)
        refusal, stored = self.chain.look_up(block.header)
        failure, rows = check_before_context(block, self.chain.params)
        if failure or refusal:
            return (failure.reason if failure else refusal).text
        if not stored:
            context = self.chain.context_on(block.header.prev_hash)
            assert context is not None
            for failure in check_in_context_of_parent(block, rows, context, NOW):
                if failure:
                    return failure.reason.text
            self.chain.store_block(block)
        outcome: dict[bytes, str] = {}
        while (step := self.chain.next_step()) is not None:
            if not step.connect:
                delta = self.chain.disconnect(self.chain.tip.version)
                for tx in decode_block(self.chain.body(delta.block_hash)).transactions[1:]:
                    self.pool.add(tx.raw)
                continue
            judgement = self._judge(step.raw)
            if judgement.failure is None:
                self.chain.connect(step.block_hash, self.chain.tip.version)
                self.pool.block_connected([(tx.txid, tx.prevouts) for tx in decode_block(step.raw).transactions[1:]])
            else:
                outcome[step.block_hash] = judgement.failure.reason.text
                self.chain.mark_failed(step.block_hash)
        if stored:
            return r.DUPLICATE.text
        if block.header.hash in outcome:
            return outcome[block.header.hash]
        i = self.chain.headers.find(block.header.hash)
        assert i is not None
        return None if self.chain.headers.is_active(i) else r.INCONCLUSIVE.text

    def _judge(self, raw: bytes) -> BlockJudgement:
        steps = check_whole_block(decode_block(raw), self.chain.context(), self.chain.params, NOW, check_pow=True)
        read = self._open().coins.get
        return drive(
            steps, lambda outpoints: [read(o) for o in outpoints], lambda jobs, flags: verify_batch(jobs, flags)
        )

    async def mempool_ids(self) -> tuple[list[bytes], list[bytes]]:
        self._open()
        records = [entry.record for _, entry in self.pool.entries()]
        return [record.txid for record in records], [record.wtxid for record in records]

    async def mirror(self, gone: Iterable[bytes], raws: Sequence[bytes]) -> tuple[int, int]:
        self._open()
        removed = added = 0
        for txid in gone:
            entry = self.pool.by_txid(txid)
            removed += entry is not None and len(self.pool.remove(entry.record.wtxid))
        for raw in raws:
            tx = decode_transaction(raw)
            entry = self.pool.by_txid(tx.txid)
            if entry is not None and entry.record.wtxid != tx.wtxid:
                removed += len(self.pool.remove(entry.record.wtxid))
            added += self.pool.add(raw) is not None
        return removed, added
