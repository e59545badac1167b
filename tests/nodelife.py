"""The life of a node, made up by dice: transactions, children and replacements in its mempool, blocks, and branches
that spend a coin for the second time. The node is the fake one, or a real one (see `tests.fakenode`).
"""

import random
from typing import Any

from models.wire.block import decode_block
from models.wire.transaction import Transaction
from tests.fakechain import OP_TRUE, BranchTip, mine_block, spend_coin

__all__ = ["NodeLife"]

FAN = 200  # coins made of one coinbase


class NodeLife:
    """What happens at a node, the same for the same seed; knows what it made. `events` is for how many mempool events
    there will be coins."""

    def __init__(self, node: Any, seed: int, events: int):
        self.node = node
        self.dice = random.Random(seed)
        self.expected = events
        self.coins: list[tuple[bytes, int, bool]] = []  # outpoint, satoshis, whether it is a P2WSH
        self.sent: dict[bytes, Transaction] = {}  # parents before children
        self.spent_coin: dict[bytes, tuple[bytes, int, bool]] = {}  # txid -> the confirmed coin it spends
        self.confirmed: list[list[bytes]] = []  # txids of each block of the best chain since the preparation
        self.events = 0
        self.reorgs = 0

    async def prepare(self) -> None:
        """Enough confirmed coins for every event."""
        sources = max(2, self.expected // FAN + 1)
        firsts = []
        for _ in range(sources):
            raw = mine_block(await self.node.tip())
            await self.node.submit_block(raw)
            firsts.append(decode_block(raw).transactions[0])
        for _ in range(100):
            await self.node.submit_block(mine_block(await self.node.tip()))
        fans = []
        for number, first in enumerate(firsts):
            witness = number % 2 == 1
            fan = spend_coin(first.txid + bytes(4), first.values[0], outputs=FAN, fee=100_000, to_witness=witness)
            fans.append(fan)
            self.coins += [(fan.txid + n.to_bytes(4, "little"), fan.values[n], witness) for n in range(FAN)]
        await self.node.submit_block(mine_block(await self.node.tip(), fans))
        for _ in range(6):  # no reorganisation reaches them
            await self.node.submit_block(mine_block(await self.node.tip()))

    async def event(self) -> None:
        """One transaction, child, or replacement."""
        pool = await self.node.mempool() if not self.node.is_fake else self.node.chain.mempool
        roll = self.dice.random()
        candidates = [txid for txid in self.spent_coin if txid in pool] if roll > 0.6 else []
        if roll > 0.8 and candidates:
            await self._replace(self.dice.choice(candidates))
        elif roll > 0.6 and candidates:
            parent = self.sent[self.dice.choice(candidates)]
            wraps = parent.script_pubkeys[1] != OP_TRUE
            child = spend_coin(parent.txid + b"\x01\x00\x00\x00", parent.values[1], outputs=2, witness=wraps)
            await self._send(child, None)
        elif self.coins:
            outpoint, value, witness = coin = self.coins.pop()
            await self._send(spend_coin(outpoint, value, witness=witness, to_witness=witness), coin)

    async def _replace(self, txid: bytes) -> None:
        outpoint, value, witness = coin = self.spent_coin[txid]
        fee = value - sum(self.sent[txid].values) + 20_000
        if await self._send(spend_coin(outpoint, value, fee=fee, witness=witness), coin):
            self.events += 1  # one went, too

    async def _send(self, tx: Transaction, coin: tuple[bytes, int, bool] | None) -> bool:
        accepted = await self.node.send(tx)
        if accepted:
            self.events += 1
            self.sent[tx.txid] = tx
            if coin is not None:
                self.spent_coin[tx.txid] = coin
        return accepted

    async def _choose(self, share: float) -> list[Transaction]:
        """Some of the mempool, parents first."""
        pool = await self.node.mempool()
        chosen: dict[bytes, Transaction] = {}
        for txid, tx in self.sent.items():
            parents = [prevout[:32] for prevout in tx.prevouts if prevout[:32] in pool]
            if txid in pool and all(p in chosen for p in parents) and self.dice.random() < share:
                chosen[txid] = tx
        return list(chosen.values())

    async def block(self) -> None:
        """The next block, with about half of the mempool."""
        chosen = await self._choose(0.6)
        await self.node.submit_block(mine_block(await self.node.tip(), chosen))
        self.confirmed.append([tx.txid for tx in chosen])

    async def reorganise(self, depth: int) -> None:
        """A longer branch that double-spends one of the transactions that the blocks taken back held."""
        gone = [txid for block in self.confirmed[-depth:] for txid in block]
        victims = [txid for txid in gone if txid in self.spent_coin]
        conflicts = []
        if victims:
            outpoint, value, witness = self.spent_coin[self.dice.choice(victims)]
            conflicts = [spend_coin(outpoint, value, fee=90_000, outputs=3, witness=witness)]
        parent: BranchTip = await self.node.tip(below=depth)
        for number in range(depth + 1):
            raw = mine_block(parent, conflicts if number == 0 else [], tag=self.reorgs.to_bytes(2, "big"))
            parent = BranchTip(await self.node.submit_block(raw), parent.height + 1, parent.time + 60)
        self.confirmed[-depth:] = [[] for _ in range(depth + 1)]
        self.reorgs += 1
