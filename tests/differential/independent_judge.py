"""A judge of proposed blocks that shares no code with `models`: btclib where it can, plain Python for the rest.

What btclib judges, and Core's reasons for it: parsing and hashes; merkle root and its mutation; sizes and weight; every
transaction by itself (`CheckTransaction`); legacy sigops and sigop cost; required target, times and version of the
header; finality, BIP34, witness commitment; BIP68, maturity of coinbases, amounts, what the coinbase may pay; scripts,
by its own interpreter in Python. What is plain Python here, since btclib has no chain: the order of the checks (SPEC
2.1), the coins that are there and those that a block spends and creates, BIP30, running sums.
"""

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path

from btclib.block import Block, BlockHeader
from btclib.block.block_context import BlockContext
from btclib.block.header_context import median_time_past, next_bits_required
from btclib.consensus import CONSENSUS_PARAMS, subsidy
from btclib.exceptions import BTClibException
from btclib.script.engine import sig_op_cost, verify_amounts, verify_input
from btclib.script.engine.flags import ALL_FLAGS
from btclib.script.sig_hash import PrecomputedTxData
from btclib.tx.coin import Coin
from btclib.tx.out_point import OutPoint
from btclib.tx.tx import Tx
from btclib.tx.tx_context import assert_coinbase_maturity, assert_coinbase_value, assert_sequence_locks

__all__ = ["UNDECODABLE", "Judge", "active_chain"]

UNDECODABLE = -22  # the RPC's code for bytes that are no block
MAX_MONEY = 21_000_000 * 100_000_000
MAX_SIGOP_COST = 80_000
CONSENSUS = CONSENSUS_PARAMS["regtest"]

#: How btclib's texts begin, and Core's reasons, where one of its functions knows several.
OF_TRANSACTION = {
    "Missing inputs": "bad-txns-vin-empty",
    "Missing outputs": "bad-txns-vout-empty",
    "invalid transaction size": "bad-txns-oversize",
    "invalid satoshi amount: -": "bad-txns-vout-negative",
    "invalid satoshi amount": "bad-txns-vout-toolarge",
    "invalid total output amount": "bad-txns-txouttotal-toolarge",
    "the same outpoint is spent twice": "bad-txns-inputs-duplicate",
    "Invalid coinbase script size": "bad-cb-length",
    "coinbase input in a non-coinbase": "bad-txns-prevout-null",
}
OF_CONTEXT = {
    "proof-of-work target not the required one": "bad-diffbits",
    "invalid timestamp (not after": "time-too-old",
    "invalid timestamp (too far": "time-too-new",
    "invalid version (outdated)": "bad-version",
    "non-final transaction": "bad-txns-nonfinal",
    "invalid coinbase height": "bad-cb-height",
    "invalid witness nonce": "bad-witness-nonce-size",
    "invalid witness commitment": "bad-witness-merkle-match",
    "unexpected witness": "unexpected-witness",
    "invalid weight": "bad-blk-weight",
}
OF_MERKLE = {"invalid merkle root": "bad-txnmrklroot", "duplicate transaction": "bad-txns-duplicate"}


class Refused(Exception):
    """The first rule that a block breaks, by Core's name."""


def ask(reasons: dict[str, str] | str, check: Callable[..., object], *args: object) -> None:
    """Runs a check of btclib's; its refusal becomes Core's reason."""
    try:
        check(*args)
    except BTClibException as error:
        if isinstance(reasons, str):
            raise Refused(reasons) from error
        for beginning, reason in reasons.items():
            if str(error).startswith(beginning):
                raise Refused(reason) from error
        raise


def active_chain(blocks: Path, tip: bytes) -> list[bytes]:
    """The raw blocks from height 1 to `tip` (display order) in a node's blocks/ folder; its files may be obfuscated."""
    key = (blocks / "xor.dat").read_bytes()
    found: dict[bytes, bytes] = {}
    for file in sorted(blocks.glob("blk*.dat")):
        stored = file.read_bytes()
        mask = key * (len(stored) // len(key) + 1)
        plain = bytes(a ^ b for a, b in zip(stored, mask, strict=False))
        at = 0
        while any(plain[at : at + 4]):
            size = int.from_bytes(plain[at + 4 : at + 8], "little")
            raw = plain[at + 8 : at + 8 + size]
            found[BlockHeader.parse(raw[:80], check_validity=False).hash] = raw
            at += 8 + size
    chain = []
    while tip in found:
        chain.append(found[tip])
        tip = BlockHeader.parse(chain[-1][:80], check_validity=False).previous_block_hash
    return chain[-2::-1]  # genesis has no undo, and spends nothing


class Judge:
    """A regtest chain from its blocks, which are taken as valid, and verdicts on blocks proposed on top of it."""

    def __init__(self, genesis: bytes, chain: Iterable[bytes], now: int) -> None:
        self.now = now
        self.headers = [BlockHeader.parse(genesis[:80], check_validity=False)]
        self.coins: dict[OutPoint, Coin] = {}
        self.known = {self.headers[0].hash}
        for raw in chain:
            block = Block.parse(raw, check_validity=False)
            for number, tx in enumerate(block.transactions):
                if number:
                    for tx_in in tx.vin:
                        del self.coins[tx_in.prev_out]
                self._create(self.coins, tx, len(self.headers), number == 0)
            self.headers.append(block.header)
            self.known.add(block.header.hash)
        self._at = {header.hash: height for height, header in enumerate(self.headers)}

    @property
    def height(self) -> int:
        """Of the block that comes next."""
        return len(self.headers)

    def _parent(self, header: BlockHeader) -> BlockHeader:
        return self.headers[self._at[header.hash] - 1]

    def median_time(self, height: int) -> int:
        return median_time_past(self.headers[height], height, self._parent)

    @staticmethod
    def _create(coins: dict[OutPoint, Coin], tx: Tx, height: int, is_coinbase: bool) -> None:
        txid = tx.id
        for n, out in enumerate(tx.vout):
            script = out.script_pub_key.script
            if not script.startswith(b"\x6a") and len(script) <= 10_000:
                coins[OutPoint(txid, n)] = Coin(out, height, is_coinbase, check_validity=False)

    def judge(self, raw: bytes, inline: bool) -> str | int | None:
        """Core's first reason, UNDECODABLE, or None for a valid block; proof of work is not asked for."""
        try:
            block = Block.parse(BytesIO(raw), check_validity=False)
        except BTClibException:
            return UNDECODABLE
        if block.header.hash in self.known:
            return "duplicate"
        if block.header.previous_block_hash != self.headers[-1].hash:
            return "inconclusive-not-best-prevblk"
        try:
            self._check_block(block)
            self._check_context(block)
            self._connect(block, inline)
        except Refused as refused:
            return str(refused)
        return None

    def _check_block(self, block: Block) -> None:
        """SPEC 2.1, rows 4 to 9."""
        ask(OF_MERKLE, block.assert_valid_merkle_root)
        ask("bad-blk-length", block.assert_valid_length)
        if not block.transactions[0].is_coinbase:
            raise Refused("bad-cb-missing")
        if any(tx.is_coinbase for tx in block.transactions[1:]):
            raise Refused("bad-cb-multiple")
        for tx in block.transactions:
            ask(OF_TRANSACTION, tx.assert_valid)
        ask("bad-blk-sigops", block.assert_valid_sig_op_count)

    def _check_context(self, block: Block) -> None:
        """Rows 10 to 18."""
        parent = self.headers[-1]
        context = BlockContext(
            self.height,
            datetime.fromtimestamp(self.now, UTC),
            CONSENSUS,
            self.median_time(self.height - 1),
            next_bits_required(block.header, parent, self.height - 1, self._parent, CONSENSUS),
        )
        try:
            ask(OF_CONTEXT, block.assert_valid_contextual, context)
        except Refused as refused:
            if str(refused) == "bad-version":
                raise Refused(f"bad-version(0x{block.header.version & 0xFFFFFFFF:08x})") from None
            raise

    def _connect(self, block: Block, inline: bool) -> None:
        """Rows 20 to 23."""
        view = dict(self.coins)
        for tx in block.transactions:
            txid = tx.id
            if any(OutPoint(txid, n) in view for n in range(len(tx.vout))):
                raise Refused("bad-txns-BIP30")
        fees = cost = 0
        tip_time = self.median_time(self.height - 1)
        failed: Refused | None = None
        for number, tx in enumerate(block.transactions):
            spent: list[Coin] = []
            if number:
                if any(tx_in.prev_out not in view for tx_in in tx.vin):
                    raise Refused("bad-txns-inputs-missingorspent")
                spent = [view[tx_in.prev_out] for tx_in in tx.vin]
                outs = [coin.tx_out for coin in spent]
                ask("bad-txns-premature-spend-of-coinbase", assert_coinbase_maturity, spent, self.height)
                amounts = {
                    "Invalid transaction amounts": "bad-txns-in-belowout",
                    "invalid": "bad-txns-inputvalues-outofrange",
                }
                ask(amounts, verify_amounts, outs, tx)
                fees += sum(out.value for out in outs) - sum(out.value for out in tx.vout)
                if not 0 <= fees <= MAX_MONEY:
                    raise Refused("bad-txns-accumulated-fee-outofrange")
                locks = (tx, spent, self.height, tip_time, self.median_time)
                ask("bad-txns-nonfinal", assert_sequence_locks, *locks)
            cost += sig_op_cost([coin.tx_out for coin in spent], tx, ALL_FLAGS)
            if cost > MAX_SIGOP_COST:
                raise Refused("bad-blk-sigops")
            if failed is None and spent:
                try:
                    self._run_scripts(tx, [coin.tx_out for coin in spent])
                except Refused as refused:
                    failed = refused
                    if inline:
                        raise
            for tx_in in tx.vin if number else ():
                del view[tx_in.prev_out]
            self._create(view, tx, self.height, number == 0)
        reward = subsidy(self.height, CONSENSUS.subsidy_halving_interval)
        ask("bad-cb-amount", assert_coinbase_value, block.transactions[0], reward, fees)
        if failed:
            raise failed

    @staticmethod
    def _run_scripts(tx: Tx, outs: list) -> None:
        shared = PrecomputedTxData(tx, outs)
        for i in range(len(outs)):
            ask("block-script-verify-flag-failed", verify_input, outs, tx, i, ALL_FLAGS, shared)
