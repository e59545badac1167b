"""A regtest chain of our own, written into a store through `models.chain`, so that headers, coins and undo data are
what a node would have made. Blocks are not judged here; the tests submit them to a node that judges them.
"""

from pathlib import Path

from models.chain import Chain
from models.consensus.coinbase import dummy_coinbase
from models.consensus.context import BlockContext
from models.consensus.params import ChainParams
from models.consensus.pow import check_proof_of_work
from models.storage.store import Store
from models.wire.block import Block, BlockHeader, decode_block, serialize_block
from models.wire.merkle import merkle_root, witness_merkle_root
from models.wire.transaction import Transaction, decode_transaction

__all__ = ["BLOCK_SPACING", "START_TIME", "Miner", "build_block"]

START_TIME = 1_700_000_000  # Unix time of height 0 of our blocks; genesis is older
BLOCK_SPACING = 600  # seconds


def build_block(context: BlockContext, params: ChainParams, raws: list[bytes], time: int, fees: int = 0) -> Block:
    """A solved block on top of the context's tip; its coinbase claims the subsidy and `fees` (satoshis)."""
    transactions = [decode_transaction(raw) for raw in raws]
    witness_root = witness_merkle_root(tx.wtxid for tx in transactions)
    coinbase = decode_transaction(dummy_coinbase(context, witness_root, fees))
    root, _ = merkle_root([coinbase.txid, *(tx.txid for tx in transactions)])
    bits = context.required_bits(time)
    nonce = 0
    while True:
        header = BlockHeader(context.template_version, context.tip.hash, root, time, bits, nonce)
        if check_proof_of_work(header.hash, bits, params):
            return decode_block(serialize_block(header, [coinbase.raw, *raws]))
        nonce += 1


class Miner:
    """An open store that grows block by block. Use it as a context manager."""

    def __init__(self, store: Path):
        self._store = Store.open(store)
        self._chain = Chain(self._store, self._store.params)

    def __enter__(self) -> "Miner":
        return self

    def __exit__(self, *_: object) -> None:
        self._store.close()

    @property
    def height(self) -> int:
        """Of the tip."""
        return self._chain.tip.height

    @property
    def next_time(self) -> int:
        """Unix time of the next block."""
        return START_TIME + BLOCK_SPACING * (self.height + 1)

    def next_block(self, raws: list[bytes], fees: int = 0) -> Block:
        """A block on the tip, not stored."""
        return build_block(self._chain.context(), self._store.params, raws, self.next_time, fees)

    def mine(self, raws: list[bytes] | None = None) -> Transaction:
        """Adds a block; returns its coinbase, whose first output anyone may spend once it is mature."""
        block = self.next_block(raws or [])
        self._chain.store_block(block)
        self._chain.connect(block.header.hash, self._chain.tip.version)
        return block.transactions[0]
