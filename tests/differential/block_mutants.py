"""Mutations of valid blocks: bytes, header fields, the list of transactions, every field of a transaction. Most are
mended afterwards (merkle root, witness commitment), so that the rule that was broken is met and not the first hash.

Built with btclib's classes; nothing of `models` is used.
"""

import random
from collections.abc import Callable
from datetime import UTC, datetime
from io import BytesIO

from btclib.block import Block, BlockHeader
from btclib.block.block import merkle_root_and_mutated_from_transactions, witness_commitment_output
from btclib.script.witness import Witness
from btclib.tx.out_point import OutPoint
from btclib.tx.tx import Tx
from btclib.tx.tx_in import TxIn
from btclib.tx.tx_out import TxOut

__all__ = ["Mutator"]

MAX_MONEY = 21_000_000 * 100_000_000
SCRIPTS = (b"", b"\x51", b"\x00", b"\x6a", b"\x51\x51", b"\xac", b"\x52\xae", b"\x4c", b"\x00\x14" + bytes(20))
COMMITMENT = bytes.fromhex("6a24aa21a9ed")


class Mutator:
    """Mutants of one chain's blocks, the same for the same seed. `times`: values at which a rule on a time changes."""

    def __init__(self, seed: int, valid: list[bytes], coins: list[OutPoint], height: int, times: list[int]) -> None:
        self.rng = random.Random(seed)
        self.valid = valid
        self.coins = coins
        self.height = height
        self.times = times

    def mutant(self) -> tuple[str, bytes]:
        """What was done, and the block."""
        rng = self.rng
        raw = rng.choice(self.valid)
        if rng.random() < 0.1:
            return "bytes", self._bytes(bytearray(raw))
        block = Block.parse(BytesIO(raw), check_validity=False)
        done = []
        for _ in range(1 if rng.random() < 0.7 else 2):
            change = rng.choice((self._header, self._list, self._coinbase, self._transaction, self._transaction))
            done.append(change(block))
        if rng.random() < 0.85:
            self._mend_commitment(block)
        if rng.random() < 0.95:
            self._mend_root(block)
        return " and ".join(done), block.serialize(check_validity=False)

    # The whole ----------------------------------------------------------------------------------------------------

    def _bytes(self, data: bytearray) -> bytes:
        rng = self.rng
        at = rng.randrange(80, len(data)) if rng.random() < 0.8 else rng.randrange(len(data))
        match rng.randrange(5):
            case 0:
                data[at] ^= 1 << rng.randrange(8)
            case 1:
                del data[at:]
            case 2:
                del data[at : at + rng.randint(1, 4)]
            case 3:
                data[at:at] = rng.randbytes(rng.randint(1, 4))
            case _:
                data += rng.randbytes(3)  # bytes behind a block are ignored
        return bytes(data)

    def _mend_root(self, block: Block) -> None:
        header = block.header
        root, _ = merkle_root_and_mutated_from_transactions(block.transactions)
        block.header = self._with(header, merkle_root=root)

    @staticmethod
    def _mend_commitment(block: Block) -> None:
        if not block.transactions or not block.transactions[0].vin:
            return
        coinbase = block.transactions[0]
        stack = coinbase.vin[0].script_witness.stack
        for n in reversed(range(len(coinbase.vout))):
            script = coinbase.vout[n].script_pub_key.script
            if script.startswith(COMMITMENT) and len(script) >= 38 and stack and len(stack[0]) == 32:
                made = witness_commitment_output(block.transactions, stack[0]).script_pub_key.script
                coinbase.vout[n] = TxOut(coinbase.vout[n].value, made + script[38:], check_validity=False)
                return

    @staticmethod
    def _with(header: BlockHeader, **changed: object) -> BlockHeader:
        names = ("version", "previous_block_hash", "merkle_root", "time", "bits", "nonce")
        fields = {name: changed.get(name, getattr(header, name)) for name in names}
        return BlockHeader(*fields.values(), check_validity=False)  # type: ignore[arg-type]

    def _header(self, block: Block) -> str:
        rng, header = self.rng, block.header
        match rng.randrange(4):
            case 0:
                version = rng.choice((-1, 0, 1, 2, 3, 4, 0x20000000, 0x7FFFFFFF, -(2**31)))
                block.header = self._with(header, version=version)
                return f"version {version}"
            case 1:
                time = rng.choice(self.times) + rng.randint(-1, 1)
                block.header = self._with(header, time=datetime.fromtimestamp(time, UTC))
                return f"time {time}"
            case 2:
                bits = rng.choice(("207ffffe", "1d00ffff", "20800000", "00000000", "2100ffff"))
                block.header = self._with(header, bits=bytes.fromhex(bits))
                return f"bits {bits}"
            case _:
                block.header = self._with(header, nonce=rng.getrandbits(32))
                return "nonce"

    def _list(self, block: Block) -> str:
        rng, txs = self.rng, block.transactions
        if not txs:
            return "nothing"
        i = rng.randrange(len(txs))
        match rng.randrange(7):
            case 0:
                txs.append(txs[-1])
                return "last one twice"
            case 1:
                txs.insert(rng.randint(0, len(txs)), txs[i])
                return f"transaction {i} twice"
            case 2:
                del txs[i]
                return f"no transaction {i}"
            case 3:
                txs.reverse()
                return "reversed"
            case 4:
                rng.shuffle(txs)
                return "shuffled"
            case 5:
                other = Block.parse(BytesIO(rng.choice(self.valid)), check_validity=False)
                txs += other.transactions[1:]
                return "those of another block too"
            case _:
                block.transactions = txs[: rng.randrange(len(txs) + 1)]
                return "only the first ones"

    # One transaction ------------------------------------------------------------------------------------------------

    def _coinbase(self, block: Block) -> str:
        if not block.transactions or not block.transactions[0].vin:
            return "nothing"
        rng, tx = self.rng, block.transactions[0]
        match rng.randrange(7):
            case 0:
                return self._value(tx)
            case 1:
                height = self.height + rng.choice((-1, 1, 256))
                script = b"\x01" + bytes((height & 0xFF,)) if height < 128 else b"\x02" + height.to_bytes(2, "little")
                self._replace(
                    tx, 0, script_sig=rng.choice((script, script + b"\x51", b"\x51" * 3, b"\x02" + script[1:]))
                )
                return f"coinbase height {height}"
            case 2:
                size = rng.choice((0, 1, 2, 99, 100, 101))
                start = tx.vin[0].script_sig[:size]
                self._replace(tx, 0, script_sig=start + b"\x51" * (size - len(start)))
                return f"coinbase script of {size} bytes"
            case 3:
                stack = rng.choice(([], [b""], [bytes(31)], [bytes(33)], [bytes(32), b""], [b"\x01" * 32], [bytes(32)]))
                self._replace(tx, 0, script_witness=Witness(stack, check_validity=False))
                return f"reserved value of {len(stack)} items"
            case 4:
                script = COMMITMENT + rng.randbytes(rng.choice((31, 32, 33)))
                tx.vout.insert(rng.randint(0, len(tx.vout)), TxOut(0, script, check_validity=False))
                return "one more commitment"
            case 5:
                tx.vout[:] = [out for out in tx.vout if not out.script_pub_key.script.startswith(COMMITMENT)]
                return "no commitment"
            case _:
                return self._any(tx)

    def _transaction(self, block: Block) -> str:
        if len(block.transactions) < 2:
            return self._coinbase(block)
        i = self.rng.randrange(1, len(block.transactions))
        return f"transaction {i}: {self._any(block.transactions[i])}"

    def _any(self, tx: Tx) -> str:
        changes: list[Callable[[Tx], str]] = [self._value, self._script_pub_key, self._lock, self._version]
        if tx.vin:
            changes += [self._prevout, self._sequence, self._script_sig, self._witness, self._inputs]
        return self.rng.choice(changes)(tx)

    def _value(self, tx: Tx) -> str:
        if not tx.vout:
            return "nothing"
        rng = self.rng
        n = rng.randrange(len(tx.vout))
        value = tx.vout[n].value
        value = rng.choice((value + 1, value - 1, value + 50 * 10**8, 0, -1, MAX_MONEY, MAX_MONEY + 1, value // 2))
        tx.vout[n] = TxOut(value, tx.vout[n].script_pub_key.script, check_validity=False)
        return f"value {value}"

    def _script_pub_key(self, tx: Tx) -> str:
        rng = self.rng
        match rng.randrange(3):
            case 0:
                tx.vout.append(TxOut(0, rng.choice(SCRIPTS), check_validity=False))
                return "one more output"
            case 1 if tx.vout:
                del tx.vout[rng.randrange(len(tx.vout))]
                return "one output less"
            case _ if tx.vout:
                n = rng.randrange(len(tx.vout))
                script = rng.choice((*SCRIPTS, b"\xae" * rng.choice((100, 1001)), rng.randbytes(20)))
                tx.vout[n] = TxOut(tx.vout[n].value, script, check_validity=False)
                return "another script"
            case _:
                return "nothing"

    def _lock(self, tx: Tx) -> str:
        locks = (0, 1, self.height - 1, self.height, self.height + 1, 499_999_999, 500_000_000, *self.times, 2**32 - 1)
        tx.lock_time = self.rng.choice(locks)
        if tx.vin and self.rng.random() < 0.5:
            self._replace(tx, 0, sequence=0xFFFFFFFE)
        return f"lock time {tx.lock_time}"

    def _version(self, tx: Tx) -> str:
        tx.version = self.rng.choice((0, 1, 2, 3, 2**31 - 1, 2**31, 2**32 - 1))
        return f"version {tx.version}"

    def _replace(self, tx: Tx, i: int, **changed: object) -> None:
        names = ("prev_out", "script_sig", "sequence", "script_witness")
        fields = {name: changed.get(name, getattr(tx.vin[i], name)) for name in names}
        tx.vin[i] = TxIn(*fields.values(), check_validity=False)  # type: ignore[arg-type]

    def _prevout(self, tx: Tx) -> str:
        rng = self.rng
        i = rng.randrange(len(tx.vin))
        old = tx.vin[i].prev_out
        new = rng.choice(
            (
                rng.choice(self.coins),
                rng.choice(self.coins),
                OutPoint(old.tx_id, old.vout ^ 1, check_validity=False),
                OutPoint(rng.randbytes(32), 0, check_validity=False),
                OutPoint(bytes(32), 0xFFFFFFFF, check_validity=False),
                OutPoint(bytes(32), 0, check_validity=False),
                OutPoint(old.tx_id, 0xFFFFFFFF, check_validity=False),
            )
        )
        self._replace(tx, i, prev_out=new)
        return "another prevout"

    def _sequence(self, tx: Tx) -> str:
        rng = self.rng
        ages = rng.choice((0, 1, 2, 5, 99, 100, self.height - 1, self.height, 0xFFFF))
        sequence = rng.choice((ages, ages | 1 << 22, ages | 1 << 31, ages | 1 << 16, 0xFFFFFFFF, 0xFFFFFFFE))
        self._replace(tx, rng.randrange(len(tx.vin)), sequence=sequence)
        if rng.random() < 0.5:
            tx.version = 2
        return f"sequence {sequence:#x}"

    def _script_sig(self, tx: Tx) -> str:
        i = self.rng.randrange(len(tx.vin))
        self._replace(tx, i, script_sig=self._damaged(tx.vin[i].script_sig))
        return "scriptSig"

    def _witness(self, tx: Tx) -> str:
        rng = self.rng
        i = rng.randrange(len(tx.vin))
        stack = list(tx.vin[i].script_witness.stack)
        match rng.randrange(4):
            case 0 if stack:
                n = rng.randrange(len(stack))
                stack[n] = self._damaged(stack[n])
            case 1 if stack:
                del stack[rng.randrange(len(stack))]
            case 2:
                stack.append(rng.choice((b"", b"\x51", b"\x50", bytes(33))))
            case _:
                stack.insert(0, rng.choice((b"", b"\x01")))
        self._replace(tx, i, script_witness=Witness(stack, check_validity=False))
        return "witness"

    def _inputs(self, tx: Tx) -> str:
        rng = self.rng
        match rng.randrange(3):
            case 0:
                tx.vin.append(tx.vin[rng.randrange(len(tx.vin))])
                return "an input twice"
            case 1:
                del tx.vin[rng.randrange(len(tx.vin))]
                return "an input less"
            case _:
                tx.vin.append(TxIn(rng.choice(self.coins), b"", 0xFFFFFFFF, Witness(), check_validity=False))
                return "one more input"

    def _damaged(self, data: bytes) -> bytes:
        rng = self.rng
        out = bytearray(data)
        match rng.randrange(4):
            case 0 if out:
                out[rng.randrange(len(out))] ^= 1 << rng.randrange(8)
            case 1 if out:
                del out[rng.randrange(len(out))]
            case 2:
                out.insert(rng.randint(0, len(out)), rng.choice(b"\x00\x01\x51\x4c\xac\x69\x75\x87"))
            case _:
                out += rng.choice((b"\x00", b"\x51", b"\x75"))
        return bytes(out)
