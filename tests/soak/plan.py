"""What clients declare, and the verdict that it must get: made from the fake node's own chain, whose coins are a plain
dictionary, by a walk that shares no code with `models.consensus`.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from struct import pack

from models.wire.transaction import Transaction
from tests.fakechain import WITNESS_OP_TRUE, FakeChain, spend_coin

__all__ = ["KINDS", "Declaration", "Planner"]

MATURITY = 100  # blocks until a coinbase can be spent
MISSING = "bad-txns-inputs-missingorspent"
PREMATURE = "bad-txns-premature-spend-of-coinbase"
BELOW_OUT = "bad-txns-in-belowout"
SCRIPT = "block-script-verify-flag-failed"

#: What a declaration is about, and how often. "silent" ones are never completed, "abandoned" and "vanished" ones not
#: asked about, "junk" is supplied with bytes that are no transaction, "wrong" with a transaction nobody asked for.
KINDS = {
    "complete": 6,
    "missing": 8,
    "double spend": 3,
    "no such coin": 2,
    "premature": 2,
    "below out": 2,
    "bad script": 2,
    "wrong": 2,
    "junk": 1,
    "silent": 1,
    "abandoned": 1,
    "vanished": 1,
}


@dataclass(frozen=True)
class Declaration:
    """Transactions in block order on a tip, and Core's reason (None: valid)."""

    kind: str
    prevhash: str  # display hex
    transactions: list[Transaction]
    expected: str | None
    unknown: list[str] = field(default_factory=list)  # wtxids that nobody has

    @property
    def wtxids(self) -> list[str]:
        """In display hex, those that nobody has last."""
        return [tx.wtxid[::-1].hex() for tx in self.transactions] + self.unknown

    def raws(self, positions: Sequence[int]) -> list[bytes]:
        """Raw transactions at positions."""
        return [self.transactions[at].raw for at in positions if at < len(self.transactions)]


class Planner:
    """Makes declarations; to be called where the chain is not changed meanwhile."""

    def __init__(self, chain: FakeChain, seed: int, size: int):
        """`size`: the most mempool transactions in one."""
        self._chain = chain
        self._dice = random.Random(seed)
        self._size = size
        self._at = b""
        self._free: list[bytes] = []

    def kind(self) -> str:
        """What the next one is about."""
        return self._dice.choices(list(KINDS), list(KINDS.values()))[0]

    def make(self, kind: str) -> Declaration:
        """A declaration on the tip as it is."""
        chosen = self._from_mempool()
        fresh = [] if kind == "complete" else [self._fresh() for _ in range(self._dice.randint(1, 3))]
        if kind == "double spend":
            outpoint, value, witness = self._coin()
            fresh += [spend_coin(outpoint, value, fee=fee, witness=witness) for fee in (2_000, 3_000)]
        elif kind == "no such coin":
            fresh.append(spend_coin(self._dice.randbytes(36), 1_000_000))
        elif kind == "premature":
            young = [o for o, coin in self._chain.coins.items() if coin[2] and self._height - coin[1] < MATURITY]
            outpoint = self._dice.choice(young)
            fresh.append(spend_coin(outpoint, self._chain.coins[outpoint][0]))
        elif kind == "below out":
            outpoint, value, witness = self._coin()
            fresh.append(spend_coin(outpoint, value, fee=-1_000, witness=witness))
        elif kind == "bad script":
            wrapped = [o for o in self._coins() if self._chain.coins[o][3] == WITNESS_OP_TRUE]
            if wrapped:
                outpoint = self._dice.choice(wrapped)
                fresh.append(spend_coin(outpoint, self._chain.coins[outpoint][0], witness=False))
        self._dice.shuffle(fresh)
        transactions = self._unique(chosen + fresh)
        tip = self._chain.best[::-1].hex()
        unknown = [self._dice.randbytes(32).hex() for _ in range(3)] if kind == "silent" else []
        return Declaration(kind, tip, transactions, self._judge(transactions), unknown)

    def wrong(self) -> bytes:
        """A transaction that no declaration asks for."""
        return spend_coin(self._dice.randbytes(36), 77_777).raw

    def junk(self, size: int) -> list[bytes]:
        """Bytes that are no transaction, `size` in all."""
        return [pack("<i", 2) + self._dice.randbytes(size // 4) for _ in range(4)]

    @property
    def _height(self) -> int:
        return len(self._chain.active)

    def _from_mempool(self) -> list[Transaction]:
        """Some of it, parents first."""
        pool, chosen = self._chain.mempool, {}
        share = min(1.0, self._size / max(len(pool), 1))
        for txid, tx in pool.items():
            parents = [prevout[:32] for prevout in tx.prevouts if prevout[:32] in pool]
            if all(parent in chosen for parent in parents) and self._dice.random() < share:
                chosen[txid] = tx
        return list(chosen.values())

    def _coins(self) -> list[bytes]:
        """Confirmed coins that nobody in the mempool spends and that can be spent now."""
        if self._at != self._chain.best:
            self._at = self._chain.best
            self._free = [o for o, coin in self._chain.coins.items() if not coin[2] and coin[0] > 50_000]
        spenders = self._chain.spenders
        return [outpoint for outpoint in self._free if outpoint not in spenders]

    def _coin(self) -> tuple[bytes, int, bool]:
        outpoint = self._dice.choice(self._coins())
        value, _, _, script = self._chain.coins[outpoint]
        return outpoint, value, script == WITNESS_OP_TRUE

    def _fresh(self) -> Transaction:
        """A transaction that was never sent."""
        outpoint, value, witness = self._coin()
        return spend_coin(outpoint, value, outputs=3, fee=5_000 + self._dice.randrange(1000), witness=witness)

    def _unique(self, transactions: list[Transaction]) -> list[Transaction]:
        """Each wtxid once: a list that names one twice is refused at once."""
        return list({tx.wtxid: tx for tx in transactions}.values())

    def _judge(self, transactions: Sequence[Transaction]) -> str | None:
        """The reason of the first transaction that breaks a rule, scripts last (Core: `ConnectBlock`)."""
        made: dict[bytes, tuple[int, int, bool, bytes]] = {}
        spent: set[bytes] = set()
        bad_script = False
        for tx in transactions:
            coins = []
            for prevout in tx.prevouts:
                coin = None if prevout in spent else made.get(prevout) or self._chain.coins.get(prevout)
                if coin is None:
                    return MISSING
                coins.append(coin)
            if len(set(tx.prevouts)) < len(tx.prevouts):
                return "bad-txns-inputs-duplicate"
            if any(coinbase and self._height - height < MATURITY for _, height, coinbase, _ in coins):
                return PREMATURE
            if sum(value for value, *_ in coins) < sum(tx.values):
                return BELOW_OUT
            for at, (*_, script) in enumerate(coins):
                bad_script |= (script == WITNESS_OP_TRUE) != bool(tx.witnesses[at])
            spent.update(tx.prevouts)
            for vout, (value, script) in enumerate(zip(tx.values, tx.script_pubkeys, strict=True)):
                made[tx.txid + pack("<I", vout)] = (value, self._height, False, script)
        return SCRIPT if bad_script else None
