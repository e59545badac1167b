"""The checks that need nothing but the transaction (Core: consensus/tx_check.cpp `CheckTransaction`; SPEC 2.2)."""

from models.consensus import reasons as r
from models.consensus.params import MAX_BLOCK_WEIGHT, MAX_MONEY, WITNESS_SCALE_FACTOR
from models.wire.transaction import NULL_PREVOUT, Transaction

__all__ = ["check_transaction"]


def check_transaction(tx: Transaction) -> int:
    """The number in `reasons.TX_CHECK_REASONS` of the first rule that `tx` breaks, in Core's order; 0 if none."""
    if not tx.prevouts:
        return r.VIN_EMPTY
    if not tx.values:
        return r.VOUT_EMPTY
    if tx.base_size * WITNESS_SCALE_FACTOR > MAX_BLOCK_WEIGHT:
        return r.OVERSIZE
    total = 0
    for value in tx.values:
        if value < 0:
            return r.VOUT_NEGATIVE
        if value > MAX_MONEY:
            return r.VOUT_TOOLARGE
        total += value
        if total > MAX_MONEY:
            return r.TXOUTTOTAL_TOOLARGE
    if len(tx.prevouts) > 1 and len(set(tx.prevouts)) != len(tx.prevouts):
        return r.INPUTS_DUPLICATE
    if tx.is_coinbase:
        if not 2 <= len(tx.script_sigs[0]) <= 100:
            return r.CB_LENGTH
    elif NULL_PREVOUT in tx.prevouts:
        return r.PREVOUT_NULL
    return r.CHECK_OK
