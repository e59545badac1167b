"""Rules of SPEC 2.1 that need coins: rows 20 to 23 (Core: `ConnectBlock`, `CheckTxInputs`, `SequenceLocks`).

`evaluate` works out what each transaction's coins say of it, for one late transaction as for a whole block, as soon as
they are known; `first_failure` then finds, over the results in block order, the rule that Core would have met first.
"""

from collections.abc import Mapping

import numpy as np

from models.coins.columns import ABSENT, UNKNOWN
from models.consensus import reasons as r
from models.consensus.context import BlockContext
from models.consensus.failure import Failure, format_money
from models.consensus.params import COINBASE_MATURITY, MAX_BLOCK_SIGOPS_COST, MAX_MONEY, WITNESS_SCALE_FACTOR
from models.consensus.table import COINBASE, TxTable, starts_of
from models.errors import InternalError
from models.script.classes import P2SH, WITNESS_V0_KEYHASH, WITNESS_V0_SCRIPTHASH
from models.script.verify import P2SH as FLAG_P2SH
from models.script.verify import WITNESS as FLAG_WITNESS
from models.wire.hashes import to_display

__all__ = ["RESULT_ROW", "evaluate", "first_failure"]

SEQUENCE_DISABLED = 1 << 31  # BIP68
SEQUENCE_IS_TIME = 1 << 22
SEQUENCE_MASK = 0xFFFF
SEQUENCE_GRANULARITY = 9  # 512 seconds

(GOOD, MISSING, IMMATURE, BAD_VALUE, BELOW_OUT) = range(5)

#: What the coins of one transaction say of it. `input` is the offending index into its vin where there is one.
RESULT_ROW = np.dtype(
    [
        ("value_in", "<i8"),
        ("fee", "<i8"),
        ("sigop_cost", "<i8"),
        ("input", "<i4"),
        ("depth", "<i4"),  # of a coinbase spent too early
        ("code", "u1"),
        ("locked", "u1"),  # BIP68
    ]
)


def evaluate(table: TxTable, coins: np.ndarray, context: BlockContext, flags: int) -> np.ndarray:
    """Rows of RESULT_ROW for the transactions of `table`, whose inputs spend `coins` (COIN_ROW, in input order).

    Every input of a transaction that is no coinbase must have been observed; InternalError otherwise.
    """
    count = len(table)
    results = np.zeros(count, RESULT_ROW)
    results["input"] = -1
    is_coinbase = table.rows["flags"] & COINBASE != 0
    legacy = table.rows["legacy_sigops"].astype(np.int64) * WITNESS_SCALE_FACTOR
    owner = np.repeat(np.arange(count), table.rows["n_in"])  # transaction of each input
    spends = ~is_coinbase[owner]
    state = coins["state"]
    if (state[spends] == UNKNOWN).any():
        raise InternalError("a transaction was evaluated before its coins were known")
    start, end = table.in_start[:-1], table.in_start[1:]

    results["sigop_cost"] = legacy + _group_sums(np.where(spends, _input_costs(table.ins, coins, flags), 0), start, end)

    value = np.where(spends, coins["value"], 0)
    running = starts_of(value)[1:]  # wraps only after the first sum that is out of range was seen
    partial = running - np.concatenate(([0], running))[start][owner]
    value_in = np.zeros(count, np.int64)
    some = end > start
    value_in[some] = partial[end[some] - 1]
    results["value_in"] = value_in
    results["fee"] = np.where(is_coinbase, 0, value_in - table.rows["value_out"])

    depth = context.height - coins["height"].astype(np.int64)
    missing = spends & (state == ABSENT)
    immature = spends & ~missing & (coins["coinbase"] != 0) & (depth < COINBASE_MATURITY)
    bad_value = spends & ~missing & ((value < 0) | (value > MAX_MONEY) | (partial < 0) | (partial > MAX_MONEY))
    code = np.zeros(count, np.uint8)
    code[~is_coinbase & (value_in < table.rows["value_out"])] = BELOW_OUT
    late = immature | bad_value
    if late.any():
        _mark_first(results, code, owner, late, np.where(immature, IMMATURE, BAD_VALUE), start)
        at = np.flatnonzero(code == IMMATURE)
        results["depth"][at] = depth[start[at] + results["input"][at]]
    if missing.any():
        _mark_first(results, code, owner, missing, np.full(len(owner), MISSING), start)
    results["code"] = code
    results["fee"][code != GOOD] = 0
    if context.csv:
        results["locked"] = _sequence_locked(table, coins, context, owner, spends & ~missing)
    return results


def _mark_first(
    results: np.ndarray, code: np.ndarray, owner: np.ndarray, which: np.ndarray, kinds: np.ndarray, start: np.ndarray
) -> None:
    inputs = np.flatnonzero(which)
    transactions, first = np.unique(owner[inputs], return_index=True)
    code[transactions] = kinds[inputs[first]]
    results["input"][transactions] = inputs[first] - start[transactions]


def _group_sums(values: np.ndarray, start: np.ndarray, end: np.ndarray) -> np.ndarray:
    sums = starts_of(values)
    return sums[end] - sums[start]


def _input_costs(ins: np.ndarray, coins: np.ndarray, flags: int) -> np.ndarray:
    """Sigop cost of each input beyond its legacy count (Core: `GetTransactionSigOpCost`)."""
    kind = coins["script_class"]
    cost = np.zeros(len(ins), np.int64)
    if flags & FLAG_P2SH:
        cost += np.where(kind == P2SH, ins["p2sh_sigops"].astype(np.int64) * WITNESS_SCALE_FACTOR, 0)
        if flags & FLAG_WITNESS:
            program = np.where(kind == P2SH, ins["nested"], kind)
            cost += program == WITNESS_V0_KEYHASH
            cost += np.where(program == WITNESS_V0_SCRIPTHASH, ins["witness_sigops"], 0)
    return cost


def _sequence_locked(
    table: TxTable, coins: np.ndarray, context: BlockContext, owner: np.ndarray, known: np.ndarray
) -> np.ndarray:
    """Which transactions BIP68 keeps out of this block (Core: `CalculateSequenceLocks`, `EvaluateSequenceLocks`)."""
    sequence = table.ins["sequence"].astype(np.int64)
    counts = known & (sequence & SEQUENCE_DISABLED == 0) & (table.rows["version"][owner] >= 2)
    locked = np.zeros(len(table), np.uint8)
    if not counts.any():
        return locked
    height = coins["height"].astype(np.int64)
    lock = sequence & SEQUENCE_MASK
    by_time = counts & (sequence & SEQUENCE_IS_TIME != 0)
    by_height = counts & ~by_time
    blocked = by_height & (height + lock - 1 >= context.height)
    at = np.flatnonzero(by_time)
    if len(at):
        from_time = context.median_times(np.maximum(height[at] - 1, 0))
        until = from_time + (lock[at] << SEQUENCE_GRANULARITY) - 1
        blocked[at] = until >= context.median_time_past
    locked[owner[blocked]] = 1
    return locked


def first_failure(
    rows: np.ndarray,
    results: np.ndarray,
    context: BlockContext,
    overwrites: int | None,
    script_failures: Mapping[int, int],
    inline_scripts: bool,
) -> Failure | None:
    """The rule of rows 20 to 23 that Core meets first, or None.

    `rows` and `results` in block order, coinbase first; `overwrites` the first transaction with an output that is
    already unspent (BIP30), where that counts; `script_failures` position -> input of the scripts found to fail.
    With `inline_scripts` a script counts where it stands, otherwise after everything else (SPEC 2.1, -par).
    """
    if overwrites is not None:
        return Failure.of(r.BAD_TXNS_BIP30, overwrites)
    fees = np.cumsum(results["fee"])
    rules = [  # in the order in which one transaction meets them
        results["code"] != GOOD,
        (fees < 0) | (fees > MAX_MONEY),
        results["locked"] != 0,
        np.cumsum(results["sigop_cost"]) > MAX_BLOCK_SIGOPS_COST,
    ]
    broken = [(int(np.argmax(rule)), order) for order, rule in enumerate(rules) if rule.any()]
    first = min(broken, default=None)
    if inline_scripts and script_failures:
        position = min(script_failures)
        if first is None or position < first[0]:
            return _script_failure(rows, position, script_failures[position])
    if first is not None:
        return _transaction_failure(rows, results, *first)
    limit = context.subsidy + int(fees[-1])
    paid = int(rows["value_out"][0])
    if paid > limit:
        return Failure(r.BAD_CB_AMOUNT, f"coinbase pays too much (actual={paid} vs limit={limit})", 0)
    if script_failures:
        position = min(script_failures)
        return _script_failure(rows, position, script_failures[position])
    return None


def _script_failure(rows: np.ndarray, position: int, input: int) -> Failure:
    txid, wtxid = (to_display(rows[name][position].tobytes()) for name in ("txid", "wtxid"))
    return Failure(r.SCRIPT_FAILED, f"input {input} of {txid} (wtxid {wtxid})", position, input)


def _transaction_failure(rows: np.ndarray, results: np.ndarray, position: int, order: int) -> Failure:
    txid = rows["txid"][position].tobytes()
    result = results[position]
    if order == 1:
        return Failure.of(r.ACCUMULATED_FEE_OUTOFRANGE, position)
    if order == 2:
        debug = f"contains a non-BIP68-final transaction {to_display(txid)}"
        return Failure(r.BIP68_NONFINAL, debug, position)
    if order == 3:
        return Failure.of(r.BAD_BLK_SIGOPS_COST, position)
    code, input = int(result["code"]), int(result["input"])
    if code == MISSING:
        what = "CheckTxInputs: inputs missing/spent"
        return Failure.of_transaction(r.INPUTS_MISSINGORSPENT, what, txid, position, input)
    if code == IMMATURE:
        what = f"tried to spend coinbase at depth {int(result['depth'])}"
        return Failure.of_transaction(r.PREMATURE_SPEND, what, txid, position, input)
    if code == BAD_VALUE:
        return Failure.of_transaction(r.INPUTVALUES_OUTOFRANGE, "", txid, position, input)
    value_in, value_out = format_money(int(result["value_in"])), format_money(int(rows["value_out"][position]))
    what = f"value in ({value_in}) < value out ({value_out})"
    return Failure.of_transaction(r.IN_BELOWOUT, what, txid, position)
