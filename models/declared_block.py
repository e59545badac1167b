"""A whole block that holds what was declared before: told by comparing bytes, without parsing what is known already.

A server that asks which transactions are known, and later sends the block, gives its declaration in two messages that
do not name each other. Here the second is recognised, and only what the declaration lacks is parsed.
"""

from dataclasses import dataclass

import numpy as np

from models.collection import TxCollection
from models.errors import DecodeError
from models.wire.block import HEADER_SIZE, BlockHeader
from models.wire.compactsize import read_compact_size
from models.wire.transaction import Transaction, parse_transaction

__all__ = ["DeclaredBlock", "match_block"]


@dataclass(frozen=True, slots=True)
class DeclaredBlock:
    """The parts of a block that its declaration did not have: `missing` are raw transactions in block order."""

    header: BlockHeader
    coinbase: Transaction
    missing: list[bytes]


def match_block(collection: TxCollection, raw: bytes) -> DeclaredBlock | None:
    """What `raw` adds to the declaration, if its transactions after the coinbase are exactly the declared ones; None
    for any other block, and for bytes that are none. Bytes after the block are ignored.

    Equal bytes have equal wtxids, so what is known is compared; the rest is parsed and its wtxid looked at.
    """
    try:
        header = BlockHeader.parse(raw)
        count, at = read_compact_size(raw, HEADER_SIZE)
        if count != len(collection) + 1:
            return None
        coinbase, at = parse_transaction(raw, at)
        whole = np.frombuffer(raw, np.uint8)
        missing = []
        position = 0
        for first, known in _runs(collection):
            while position < first:
                tx, at = parse_transaction(raw, at)
                if tx.wtxid != collection.wtxids[position]:
                    return None
                missing.append(tx.raw)
                position += 1
            count, expected = known
            if not np.array_equal(whole[at : at + len(expected)], expected):
                return None
            at += len(expected)
            position += count
    except DecodeError:
        return None
    return DeclaredBlock(header, coinbase, missing)


def _runs(collection: TxCollection) -> list[tuple[int, tuple[int, np.ndarray]]]:
    """Known transactions that stand side by side in the block: (position from 0, (how many, their joined bytes)),
    ascending, with an empty run behind the last position."""
    runs = []
    for segment in collection.segments:
        positions, starts = segment.positions, segment.table.raw_start
        cuts = [0, *(np.flatnonzero(np.diff(positions) != 1) + 1).tolist(), len(positions)]
        for begin, end in zip(cuts, cuts[1:], strict=False):
            joined = segment.table.raws[starts[begin] : starts[end]]
            runs.append((int(positions[begin]) - 1, (end - begin, joined)))
    runs.append((len(collection), (0, np.zeros(0, np.uint8))))
    return sorted(runs, key=lambda run: run[0])
