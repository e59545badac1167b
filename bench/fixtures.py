"""The blocks that are measured, and the stores that hold their coins; made once, and found again by their manifest.

    DIR/<name>/manifest.json   what it is: seed, counts, weight, tip, regions hit
    DIR/<name>/block.bin       the full block, solved
    DIR/<name>/store/          a store for `Cluster.start`, with the transactions in its mempool.dat

`small`: all coins are outputs of one transaction, neighbours in the database. `large`: each coin has the txid of a
SHA-256 output, scattered over millions of filler coins. The same seed gives the same block in every place.
"""

import json
import random
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

from bench.disk import refuse_memory
from bench.errors import BenchError
from bench.filler import BYTES_PER_COIN, load_filler, region_count
from bench.mining import BLOCK_SPACING, Miner
from bench.signing import OwnCoin, derive_key, sign_spend
from models.coins.codec import coin_key, encode_coin
from models.coins.coin import Coin
from models.storage.coinsdb import CoinsOwner, open_leveldb
from models.storage.durable import write_atomic
from models.storage.mempooldat import MempoolEntry, write_mempool
from models.storage.store import Store
from models.wire.block import Block, decode_block
from models.wire.hashes import to_display
from models.wire.transaction import Transaction, decode_transaction

__all__ = ["LARGE_COINS", "SEED", "Fixture", "Plan", "block_weight", "find_or_make"]

SEED = "txcollection-bench-1"
FORMAT = 1  # of a fixture; raised when what is made from a plan changes
TRANSACTIONS = 5_900
INPUTS_EACH = 2
LARGE_COINS = 20_000_000
COIN_VALUE = 420_000  # satoshis; 11,800 of them are a little less than one subsidy of regtest
LOWEST_FEE, FEE_STEPS = 2_000, 1_000  # satoshis; fees differ, so that an assembly has something to sort
MATURITY = 100  # blocks
PROGRAM_SIZE = 12  # bytes of the witness v16 program that each transaction pays to
SPACE_FACTOR = 2.5  # a load writes every coin to the log and to a table

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """What to make. `filler` coins around the block's own; with none of them its coins come from one transaction."""

    name: str
    transactions: int = TRANSACTIONS
    filler: int = 0
    seed: str = SEED

    @classmethod
    def small(cls, seed: str = SEED) -> "Plan":
        """A full block on a small chain."""
        return cls("small", seed=seed)

    @classmethod
    def large(cls, coins: int = LARGE_COINS, seed: str = SEED) -> "Plan":
        """A full block whose coins are scattered over `coins` others."""
        return cls(f"large-{coins}", filler=coins, seed=seed)

    @property
    def scattered(self) -> bool:
        """Whether every coin has a txid of its own."""
        return self.filler > 0

    @property
    def inputs(self) -> int:
        """Of the whole block, its coinbase left out."""
        return INPUTS_EACH * self.transactions


@dataclass(frozen=True)
class Fixture:
    """A fixture that is there. Hashes in display hex, sizes in bytes, `weight` of the whole block in weight units."""

    path: Path
    manifest: dict[str, Any]

    @property
    def name(self) -> str:
        """As in the plan."""
        return self.manifest["name"]

    @property
    def store(self) -> Path:
        """The store; nodes of a bench run on copies of it."""
        return self.path / "store"

    @property
    def chainstate(self) -> Path:
        """Its coins database."""
        return self.store / "chainstate"

    @property
    def weight(self) -> int:
        """Of the block, header and coinbase included."""
        return self.manifest["weight"]

    @property
    def now(self) -> int:
        """The Unix time to check at."""
        return self.manifest["now"]

    @property
    def prevhash(self) -> str:
        """The tip that the block builds on."""
        return self.manifest["tip"]

    @cached_property
    def block(self) -> Block:
        """The full block."""
        return decode_block((self.path / "block.bin").read_bytes())

    @property
    def coinbase(self) -> bytes:
        """Raw."""
        return self.block.transactions[0].raw

    @cached_property
    def transactions(self) -> list[Transaction]:
        """In block order, without the coinbase."""
        return self.block.transactions[1:]

    @cached_property
    def wtxids(self) -> list[str]:
        """As a client declares them."""
        return [to_display(tx.wtxid) for tx in self.transactions]

    @property
    def late(self) -> int:
        """The position of the one transaction that the mempool does not have: the middle one."""
        return len(self.transactions) // 2

    @property
    def outpoints(self) -> list[bytes]:
        """Every coin that the block spends, 36 bytes each, in block order."""
        return [prevout for tx in self.transactions for prevout in tx.prevouts]

    @property
    def probes(self) -> list[bytes]:
        """Every output that the block creates, which BIP30 looks for, 36 bytes each."""
        return [
            tx.txid + n.to_bytes(4, "little") for tx in self.block.transactions for n in range(len(tx.script_pubkeys))
        ]


def block_weight(block: Block) -> int:
    """Weight units of a whole block (BIP141)."""
    stripped = len(block.raw) - sum(tx.total_size - tx.base_size for tx in block.transactions)
    return 3 * stripped + len(block.raw)


def find_or_make(directory: Path, plan: Plan, progress: Progress | None = None, allow_memory: bool = False) -> Fixture:
    """The fixture of a plan below `directory`, made if it is not there. `progress` gets (step, done, of how many).

    Raises BenchError for a directory in memory (unless allowed, for tests), a fixture of another plan or format under
    this name, and a disk with too little room.
    """
    path = directory / plan.name
    directory.mkdir(parents=True, exist_ok=True)
    if not allow_memory:
        refuse_memory(directory)
    if (path / "manifest.json").is_file():
        manifest = json.loads((path / "manifest.json").read_text())
        wanted = {"format": FORMAT, **asdict(plan)}
        for field, value in wanted.items():
            if manifest.get(field) != value:
                raise BenchError(
                    f"{path} holds a fixture with {field} {manifest.get(field)!r} instead of {value!r}: "
                    "remove it, or use another --dir"
                )
        return Fixture(path, manifest)
    needed = int(SPACE_FACTOR * BYTES_PER_COIN * plan.filler) + (64 << 20)
    free = shutil.disk_usage(directory).free
    if free < needed:
        raise BenchError(f"{plan.name} takes up to {needed >> 20} MiB while it is made; {directory} has {free >> 20}")
    for left in directory.glob(f".making-{plan.name}*"):
        shutil.rmtree(left, ignore_errors=True)
    making = directory / f".making-{plan.name}"
    try:
        making.mkdir()
        _make(making, plan, progress or (lambda *_: None))
        making.rename(path)
    except BaseException:
        shutil.rmtree(making, ignore_errors=True)
        raise
    return Fixture(path, json.loads((path / "manifest.json").read_text()))


def _make(path: Path, plan: Plan, progress: Progress) -> None:
    store = path / "store"
    Store.create_genesis("regtest", store)
    keys = []
    for number in range(plan.inputs):
        keys.append(derive_key(plan.seed, number))
        if number % 500 == 0:
            progress("keys", number, plan.inputs)
    with Miner(store) as miner:
        first = miner.mine()
        for _ in range(MATURITY):
            miner.mine()
            progress("blocks", miner.height, MATURITY + 2)
        if plan.scattered:
            coins = [
                OwnCoin(sha256(f"{plan.seed}/coin/{n}".encode()).digest() + bytes(4), COIN_VALUE, key)
                for n, key in enumerate(keys)
            ]
            miner.mine()
        else:
            funding = _funding(first, [key.script for key in keys])
            miner.mine([funding.raw])
            coins = [OwnCoin(funding.txid + n.to_bytes(4, "little"), COIN_VALUE, key) for n, key in enumerate(keys)]
        raws, fees = _spends(plan, coins, progress)
        block = miner.next_block(raws, fees)
        tip, height, now = block.header.prev_hash, miner.height, miner.next_time
    if plan.scattered:
        _scatter(store, plan, coins, tip, height, progress)
    database = open_leveldb(store / "chainstate")
    if not plan.scattered:
        database.compact_range()
    hit, regions = region_count(database, [coin_key(coin.outpoint) for coin in coins])
    database.close()
    open_leveldb(store / "chainstate").close()  # so that no log has to be replayed by every reader
    write_mempool(store / "mempool.dat", [MempoolEntry(raw, now - BLOCK_SPACING, 0) for raw in raws])
    (path / "block.bin").write_bytes(block.raw)
    weight = block_weight(block)
    manifest = {
        "format": FORMAT,
        **asdict(plan),
        "inputs": plan.inputs,
        "weight": weight,
        "weight_percent": round(weight / 40_000, 3),
        "block_bytes": len(block.raw),
        "fees": fees,
        "tip": to_display(tip),
        "height": height,
        "now": now,
        "database_bytes": sum(file.stat().st_size for file in (store / "chainstate").iterdir()),
        "regions_2mib": regions,
        "regions_2mib_hit": hit,
    }
    write_atomic(path / "manifest.json", json.dumps(manifest, indent=2).encode() + b"\n")


def _funding(first: Transaction, scripts: list[bytes]) -> Transaction:
    """Spends a coinbase that anyone may spend to one output for each script."""
    outputs = b"".join(COIN_VALUE.to_bytes(8, "little") + bytes((len(script),)) + script for script in scripts)
    return decode_transaction(
        (2).to_bytes(4, "little")
        + b"\x01"
        + first.txid
        + bytes(5)  # output 0, empty script
        + b"\xfd\xff\xff\xff"
        + (b"\xfd" + len(scripts).to_bytes(2, "little") if len(scripts) >= 253 else bytes((len(scripts),)))
        + outputs
        + bytes(4)
    )


def _spends(plan: Plan, coins: list[OwnCoin], progress: Progress) -> tuple[list[bytes], int]:
    """The block's transactions, two coins each in shuffled order, and their fees together (satoshis)."""
    order = random.Random(f"{plan.seed}/order")
    shuffled = order.sample(coins, len(coins))
    raws, fees = [], 0
    for number in range(plan.transactions):
        spent = shuffled[INPUTS_EACH * number : INPUTS_EACH * (number + 1)]
        fee = LOWEST_FEE + order.randrange(FEE_STEPS)
        value = sum(coin.value for coin in spent) - fee
        fees += fee
        raw = None
        tries = 0
        while raw is None:
            program = sha256(f"{plan.seed}/program/{number}/{tries}".encode()).digest()[:PROGRAM_SIZE]
            raw = sign_spend(spent, [(value, bytes((0x60, PROGRAM_SIZE)) + program)])
            tries += 1
        raws.append(raw)
        if number % 100 == 0:
            progress("signatures", number, plan.transactions)
    return raws, fees


def _scatter(store: Path, plan: Plan, coins: list[OwnCoin], tip: bytes, height: int, progress: Progress) -> None:
    """Replaces the store's coins by the same ones, the block's, and the filler."""
    with CoinsOwner(store / "chainstate") as owner:
        hidden = {coin_key(outpoint): encode_coin(coin) for outpoint, coin in owner.iterate()}
    for coin in coins:
        hidden[coin_key(coin.outpoint)] = encode_coin(Coin(coin.value, height, False, coin.key.script))
    shutil.rmtree(store / "chainstate")
    load_filler(
        store / "chainstate",
        plan.seed,
        plan.filler,
        height,
        hidden,
        tip,
        lambda done, total: progress("coins", done, total),
    )
