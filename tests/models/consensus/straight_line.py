"""Core's `ConnectBlock` loop told once more, one line after the other, on a dict of coins and in plain integers (SPEC
2.1, rows 20 to 23, and 2.3). Slow on purpose; what `models.consensus` says of a block is compared with it.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from models.coins.coin import Coin
from models.wire.transaction import Transaction

MAX_MONEY = 21_000_000 * 100_000_000
P2SH, WITNESS = 1 << 0, 1 << 11

#: Whether the scripts of input i of a transaction pass, given all the coins it spends.
RunScript = Callable[[Transaction, list[Coin], int], bool]


@dataclass(frozen=True)
class Rules:
    """What of the chain the loop looks at."""

    height: int  # of the block
    times: list[int]  # of all blocks below it
    bip30: bool
    csv: bool
    flags: int
    subsidy: int

    def median_time_past(self, height: int) -> int:
        window = sorted(self.times[max(height - 10, 0) : height + 1])
        return window[len(window) // 2]


@dataclass(frozen=True)
class Refusal:
    reason: str
    debug: str
    position: int
    input: int | None = None


def in_range(value: int) -> bool:
    return 0 <= value <= MAX_MONEY


def money(value: int) -> str:
    whole, rest = divmod(value, 100_000_000)
    digits = f"{rest:08d}"
    while len(digits) > 2 and digits.endswith("0"):
        digits = digits[:-1]
    return f"{whole}.{digits}"


def connect_block(
    transactions: Sequence[Transaction], coins: dict[bytes, Coin], rules: Rules, run: RunScript, inline: bool
) -> Refusal | None:
    """The first rule that the block breaks, None if it is valid. `coins` is left as it was."""
    view = dict(coins)
    if rules.bip30:
        for position, tx in enumerate(transactions):
            for n in range(len(tx.values)):
                if tx.txid + n.to_bytes(4, "little") in view:
                    return Refusal("bad-txns-BIP30", "tried to overwrite transaction", position)
    fees = 0
    cost = 0
    failed: Refusal | None = None
    for position, tx in enumerate(transactions):
        txid = tx.txid[::-1].hex()
        if position > 0:
            for i, prevout in enumerate(tx.prevouts):
                if prevout not in view:
                    debug = f"CheckTxInputs: inputs missing/spent in transaction {txid}"
                    return Refusal("bad-txns-inputs-missingorspent", debug, position, i)
            value_in = 0
            for i, prevout in enumerate(tx.prevouts):
                coin = view[prevout]
                depth = rules.height - coin.height
                if coin.coinbase and depth < 100:
                    debug = f"tried to spend coinbase at depth {depth} in transaction {txid}"
                    return Refusal("bad-txns-premature-spend-of-coinbase", debug, position, i)
                value_in += coin.value
                if not in_range(coin.value) or not in_range(value_in):
                    return Refusal("bad-txns-inputvalues-outofrange", f" in transaction {txid}", position, i)
            value_out = sum(tx.values)
            if value_in < value_out:
                debug = f"value in ({money(value_in)}) < value out ({money(value_out)}) in transaction {txid}"
                return Refusal("bad-txns-in-belowout", debug, position)
            fees += value_in - value_out
            if not in_range(fees):
                debug = "accumulated fee in the block out of range"
                return Refusal("bad-txns-accumulated-fee-outofrange", debug, position)
            if rules.csv and is_locked(tx, [view[prevout].height for prevout in tx.prevouts], rules):
                return Refusal("bad-txns-nonfinal", f"contains a non-BIP68-final transaction {txid}", position)
        spent = [view[prevout] for prevout in tx.prevouts] if position > 0 else []
        cost += sigop_cost(tx, spent, rules.flags)
        if cost > 80_000:
            return Refusal("bad-blk-sigops", "too many sigops", position)
        for i in range(len(spent)):
            if not run(tx, spent, i):
                n = int.from_bytes(tx.prevouts[i][32:], "little")
                debug = f"input {i} of {txid} (wtxid {tx.wtxid[::-1].hex()}), "
                debug += f"spending {tx.prevouts[i][31::-1].hex()}:{n}"
                refusal = Refusal("block-script-verify-flag-failed", debug, position, i)
                if inline:
                    return refusal
                failed = failed or refusal
        for prevout in tx.prevouts if position > 0 else []:
            del view[prevout]
        for n, (value, script) in enumerate(zip(tx.values, tx.script_pubkeys, strict=True)):
            if not script.startswith(b"\x6a") and len(script) <= 10_000:
                view[tx.txid + n.to_bytes(4, "little")] = Coin(value, rules.height, position == 0, script)
    paid, limit = sum(transactions[0].values), rules.subsidy + fees
    if paid > limit:
        return Refusal("bad-cb-amount", f"coinbase pays too much (actual={paid} vs limit={limit})", 0)
    return failed


def is_locked(tx: Transaction, heights: list[int], rules: Rules) -> bool:
    """BIP68: whether a relative lock keeps the transaction out of the block."""
    if tx.version % 2**32 < 2:
        return False
    min_height = min_time = -1
    for sequence, coin_height in zip(tx.sequences, heights, strict=True):
        if sequence >> 31:
            continue
        if sequence >> 22 & 1:
            coin_time = rules.median_time_past(max(coin_height - 1, 0))
            min_time = max(min_time, coin_time + ((sequence & 0xFFFF) << 9) - 1)
        else:
            min_height = max(min_height, coin_height + (sequence & 0xFFFF) - 1)
    return min_height >= rules.height or min_time >= rules.median_time_past(rules.height - 1)


def operations(script: bytes) -> Iterator[tuple[int, bytes] | None]:
    """Opcode and data, one by one; None at the first that does not parse, which ends it."""
    at = 0
    while at < len(script):
        opcode = script[at]
        at += 1
        size = 0
        if opcode < 0x4C:
            size = opcode
        elif opcode <= 0x4E:
            width = {0x4C: 1, 0x4D: 2, 0x4E: 4}[opcode]
            if at + width > len(script):
                yield None
                return
            size = int.from_bytes(script[at : at + width], "little")
            at += width
        if at + size > len(script):
            yield None
            return
        yield opcode, script[at : at + size]
        at += size


def sigops(script: bytes, accurate: bool) -> int:
    count, last = 0, 0
    for operation in operations(script):
        if operation is None:
            break
        opcode = operation[0]
        if opcode in (0xAC, 0xAD):
            count += 1
        elif opcode in (0xAE, 0xAF):
            count += last - 0x50 if accurate and 0x51 <= last <= 0x60 else 20
        last = opcode
    return count


def last_push(script: bytes) -> bytes | None:
    data = b""
    for operation in operations(script):
        if operation is None or operation[0] > 0x60:
            return None
        data = operation[1]
    return data


def is_p2sh(script: bytes) -> bool:
    return len(script) == 23 and script[:2] == b"\xa9\x14" and script[22] == 0x87


def witness_cost(program: bytes, witness: tuple[bytes, ...]) -> int:
    if program[:2] == b"\x00\x14" and len(program) == 22:
        return 1
    if program[:2] == b"\x00\x20" and len(program) == 34 and witness:
        return sigops(witness[-1], True)
    return 0


def sigop_cost(tx: Transaction, spent: list[Coin], flags: int) -> int:
    cost = 4 * sum(sigops(script, False) for script in [*tx.script_sigs, *tx.script_pubkeys])
    for coin, script_sig, witness in zip(spent, tx.script_sigs, tx.witnesses, strict=bool(spent)):
        pushed = last_push(script_sig)
        if flags & P2SH and is_p2sh(coin.script) and pushed is not None:
            cost += 4 * sigops(pushed, True)
        if flags & WITNESS:
            if is_p2sh(coin.script):
                cost += witness_cost(pushed, witness) if pushed is not None else 0
            else:
                cost += witness_cost(coin.script, witness)
    return cost
