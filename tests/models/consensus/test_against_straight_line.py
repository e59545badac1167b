"""Random blocks, valid and broken in every way that coins can break one, get the same first failure (reason, text,
transaction and input) from `models.consensus` as from a straight-line walk in Core's order; as a whole and in pieces.
"""

import hashlib
import random
from collections import Counter

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from models.coins.coin import Coin
from models.script.verify import verify_batch, verify_inputs
from models.wire.block import Block
from models.wire.transaction import Transaction, decode_transaction
from tests.models.consensus.building import (
    FALSE,
    TRUE,
    block_on,
    coinbase_tx,
    dsha256,
    empty_chain,
    made_up,
)
from tests.models.consensus.pieces import judge_in_pieces
from tests.models.consensus.replay import ReplayChain
from tests.models.consensus.straight_line import MAX_MONEY, Refusal, Rules, connect_block
from tests.models.script.building import Input, Output, serialize, with_length

HEIGHT = 230
HEADERS = empty_chain(HEIGHT - 1).headers
SUBSIDY = 2_500_000_000  # after regtest's first halving

HEAVY = b"\x00\x63" + b"\xae" * 190 + b"\x68\x51"  # OP_0 OP_IF 190 CHECKMULTISIG OP_ENDIF OP_1: 3,800 sigops
NESTED = b"\x00\x20" + hashlib.sha256(HEAVY).digest()


def p2sh(script: bytes) -> bytes:
    return b"\xa9\x14" + hashlib.new("ripemd160", hashlib.sha256(script).digest()).digest() + b"\x87"


#: kind -> (scriptPubKey, scriptSig, witness); all pass but `false`
SPENDS: dict[str, tuple[bytes, bytes, tuple[bytes, ...]]] = {
    "true": (TRUE, b"", ()),
    "false": (FALSE, b"", ()),
    "p2sh": (p2sh(HEAVY), b"\x4c" + with_length(HEAVY), ()),
    "p2wsh": (b"\x00\x20" + hashlib.sha256(HEAVY).digest(), b"", (HEAVY,)),
    "nested": (p2sh(NESTED), with_length(NESTED), (HEAVY,)),
    "future": (b"\x52\x02\xaa\xbb", b"", ()),
}
WITNESS_KINDS = ("p2wsh", "nested")
COIN_KINDS = ["true"] * 8 + ["false", "p2sh", "p2wsh", "nested", "future"]
OUTPUT_SCRIPTS = [TRUE] * 8 + [FALSE, b"\x6a", b"\x6a\x01\x01", b"\x51" * 10_001, HEAVY, SPENDS["p2sh"][0]]
VALUES = [1_000] * 30 + [0, 700, MAX_MONEY, MAX_MONEY, MAX_MONEY - 1, MAX_MONEY - 1, MAX_MONEY + 1, -1]
COIN_HEIGHTS = [1, 1, 1, 1, 1, 1, 100, HEIGHT - 101, HEIGHT - 100, HEIGHT - 99, HEIGHT - 1]


def medians() -> list[int]:
    times = [header.time for header in HEADERS]
    windows = [sorted(times[max(h - 10, 0) : h + 1]) for h in range(len(times))]
    return [window[len(window) // 2] for window in windows]


MEDIANS = medians()


class Maker:
    """Makes one block from a random source: coins first, then transactions that spend them and one another."""

    def __init__(self, rng: random.Random, witnesses: bool) -> None:
        self.rng = rng
        self.witnesses = witnesses
        self.chain = ReplayChain(empty_chain(0).params)
        self.chain.headers = list(HEADERS)
        self.spends: dict[bytes, tuple[bytes, tuple[bytes, ...]]] = {}
        self.heights: dict[bytes, int] = {}
        self.values: dict[bytes, int] = {}
        draw = rng.random()
        heavy = draw < 0.1  # now and then a block that may have too many sigops, or too many fees, and else is good
        rich = 0.1 < draw < 0.14
        self.kinds = ["p2sh"] if heavy else ["true"] if rich else COIN_KINDS
        self.amounts = [1_000] if heavy else [MAX_MONEY] if rich else VALUES
        self.most_inputs = 1 if rich else 4
        for number in range(rng.randint(8 if heavy or rich else 1, 12)):
            self.coin(number)

    def coin(self, number: int) -> None:
        rng = self.rng
        kind = rng.choice(self.kinds)
        if kind in WITNESS_KINDS and not self.witnesses:
            kind = "true"
        script, script_sig, witness = SPENDS[kind]
        outpoint = made_up(number, rng.choice([0, 0, 1, 300]))
        coin = Coin(rng.choice(self.amounts), rng.choice(COIN_HEIGHTS), rng.random() < 0.08, script)
        self.chain.coins[outpoint] = coin
        self.offer(outpoint, script_sig, witness, coin.height, coin.value)

    def offer(self, outpoint: bytes, sig: bytes, witness: tuple[bytes, ...], height: int, value: int) -> None:
        self.spends[outpoint] = (sig, witness)
        self.heights[outpoint] = height
        self.values[outpoint] = value

    def sequence(self, outpoint: bytes) -> int:
        """No lock mostly; else one that is just met or just not."""
        rng = self.rng
        height = self.heights[outpoint]
        draw = rng.random()
        if draw < 0.85:
            return rng.choice([0xFFFFFFFF, 0xFFFFFFFE, 0x80000005])
        if draw < 0.93:
            return max(min(HEIGHT - height + rng.choice([-1, 0, 0, 1]), 0xFFFF), 0) | rng.choice([0, 1 << 20])
        passed = MEDIANS[HEIGHT - 1] - MEDIANS[max(height - 1, 0)]
        return max(min((passed >> 9) + rng.choice([-1, 0, 0, 1]), 0xFFFF), 0) | 1 << 22

    def transaction(self, number: int) -> bytes:
        rng = self.rng
        if not self.spends:
            self.coin(500 + number)
        pool = list(self.spends)
        if rng.random() < 0.04:
            absent = made_up(1000 + number)
            self.offer(absent, b"", (), 1, 1_000)
            pool.append(absent)
        # later offers are mostly unspent
        spent = list(
            dict.fromkeys(pool[int(len(pool) * rng.random() ** 0.7)] for _ in range(rng.randint(1, self.most_inputs)))
        )
        inputs = [Input(o, *self.spends[o], self.sequence(o)) for o in spent]
        value_in = sum(self.values[o] for o in spent)
        for o in spent:
            if rng.random() < 0.9:
                self.spends.pop(o)  # mostly no double spends
        fee = rng.choice([0, 0, 1, 500, value_in, -1 if rng.random() < 0.2 else 0])
        left = max(min(value_in - fee, MAX_MONEY), 0)
        outputs = []
        for _ in range(rng.randint(1, 3)):
            value = rng.randint(0, left) if rng.random() < 0.5 else left
            left -= value
            outputs.append(Output(value, rng.choice(OUTPUT_SCRIPTS)))
        version = rng.choice([1, 2, 2, 2, 3, 0xFFFFFFFF, 0])
        raw = serialize(inputs, outputs, version, locktime=rng.choice([0, 0, number]))
        txid = decode_transaction(raw).txid
        for n, output in enumerate(outputs):
            self.offer_output(txid, n, output)
        if rng.random() < 0.03:
            self.offer(txid + (len(outputs)).to_bytes(4, "little"), b"", (), HEIGHT, 0)  # one it does not have
        return raw

    def offer_output(self, txid: bytes, n: int, output: Output) -> None:
        unspendable = len(output.script) > 10_000 or output.script[:1] == b"\x6a"
        if unspendable and self.rng.random() < 0.8:
            return
        sig = SPENDS["p2sh"][1] if output.script == SPENDS["p2sh"][0] else b""
        self.offer(txid + n.to_bytes(4, "little"), sig, (), HEIGHT, output.value)

    def block(self) -> Block:
        rng = self.rng
        reward = SUBSIDY + rng.choice([0, 0, 0, -5, 1, 500, 1_000])
        plain = None
        if not self.witnesses:
            plain = coinbase_tx(HEIGHT, max(reward, 0), extra=rng.randbytes(2))
            if rng.random() < 0.05:
                self.offer(dsha256(plain) + rng.choice([bytes(4), b"\x01\0\0\0"]), b"", (), HEIGHT, reward)
        raws = [self.transaction(number) for number in range(rng.randint(0, 10))]
        if raws and rng.random() < 0.05:
            raws.append(rng.choice(raws))
        if len(raws) > 1 and rng.random() < 0.15:
            i, j = rng.sample(range(len(raws)), 2)
            raws[i], raws[j] = raws[j], raws[i]
        block = block_on(self.chain, raws, max(reward, 0), plain, segwit=self.witnesses)
        if rng.random() < 0.05:  # an output that is there already
            tx = rng.choice(block.transactions)
            n = rng.randrange(len(tx.values))
            self.chain.coins[tx.txid + n.to_bytes(4, "little")] = Coin(1, 5, False, TRUE)
        return block


def passes(tx: Transaction, spent: list[Coin], i: int, flags: int) -> bool:
    return verify_inputs(tx.raw, [(coin.value, coin.script) for coin in spent], flags, [i]) == [True]


def straight(chain: ReplayChain, block: Block, inline: bool) -> Refusal | None:
    context = chain.context()
    rules = Rules(
        context.height,
        [header.time for header in chain.headers],
        context.bip30,
        context.csv,
        context.script_flags,
        context.subsidy,
    )
    return connect_block(
        block.transactions,
        chain.coins,
        rules,
        lambda tx, spent, i: passes(tx, spent, i, context.script_flags),
        inline,
    )


EARLIER_RULES = {"bad-txns-inputs-duplicate", "bad-txns-duplicate", "bad-blk-length", "bad-blk-weight"}


def compare(seed: int, witnesses: bool) -> Counter[str]:
    """Judges one random block in both modes, whole and in pieces; what it was found to be."""
    rng = random.Random(seed)
    maker = Maker(rng, witnesses)
    block = maker.block()
    seen: Counter[str] = Counter()
    for inline in (False, True):
        failure = maker.chain.judge(block, inline=inline, check_merkle=False).failure
        found = Refusal(failure.reason.text, failure.debug, failure.position or 0, failure.input) if failure else None
        in_pieces = judge_in_pieces(maker.chain, block, rng, inline)
        assert in_pieces == failure, seed
        if failure and (failure.reason.text in EARLIER_RULES or failure.debug == "out-of-bounds SigOpCount"):
            seen["earlier rule"] += 1
            continue
        assert found == straight(maker.chain, block, inline), seed
        seen[f"{found.reason}{' inline' if inline else ''}" if found else "valid"] += 1
    return seen


@settings(max_examples=150)
@given(st.integers(0, 2**32), st.booleans())
def test_random_blocks(seed: int, witnesses: bool) -> None:
    for outcome in compare(seed, witnesses):
        event(outcome)


@pytest.mark.parametrize("witnesses", [False, True])
def test_every_reason_turns_up_in_a_fixed_set_of_random_blocks(witnesses: bool) -> None:
    """So that the property above is known to look at all of them."""
    seen: Counter[str] = Counter()
    for seed in range(300):
        seen += compare(seed, witnesses)
    reasons = {outcome.removesuffix(" inline") for outcome in seen}
    assert reasons >= {
        "valid",
        "bad-txns-BIP30",
        "bad-txns-inputs-missingorspent",
        "bad-txns-premature-spend-of-coinbase",
        "bad-txns-inputvalues-outofrange",
        "bad-txns-in-belowout",
        "bad-txns-accumulated-fee-outofrange",
        "bad-txns-nonfinal",
        "bad-blk-sigops",
        "bad-cb-amount",
        "block-script-verify-flag-failed",
    }
    assert seen["valid"] > 50


def test_the_kinds_of_spends_pass_or_fail_as_they_are_meant_to() -> None:
    flags = empty_chain(HEIGHT - 1).context().script_flags
    for kind, (script, script_sig, witness) in SPENDS.items():
        raw = serialize([Input(made_up(1), script_sig, witness)], [Output(1)])
        assert verify_batch([(raw, [(1, script)])], flags) == [0 if kind == "false" else -1], kind
