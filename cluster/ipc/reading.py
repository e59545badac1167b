"""A call's parameters as values, read when it arrives: a mistake found here is refused in Core's own words.

Only the beginning of large blocks and lists is parsed here, so that no client's parse holds up another's call; the rest
is looked at where it is judged.
"""

from collections.abc import Sequence
from typing import Any

from cluster.ipc.refusals import refused, undecodable
from models.errors import Busy, DecodeError
from models.wire.block import HEADER_SIZE, BlockHeader
from models.wire.compactsize import read_compact_size
from models.wire.transaction import Transaction, parse_transaction

__all__ = ["LOOKED_AT", "block_of", "hash_of", "hashes_of", "transaction_of"]

LOOKED_AT = 64  # transactions parsed at arrival; some 10 us each
MOST_HASHES = 100_000  # more than six blocks can hold; reading them takes some 20 ms
HASH_SIZE = 32


def hash_of(data: Any, what: str) -> bytes:
    """A hash of 32 bytes, internal order. Raises Refused for any other length."""
    value = bytes(data)
    if len(value) != HASH_SIZE:
        raise undecodable(f"{what} takes {HASH_SIZE} bytes, got {len(value)}")
    return value


def hashes_of(items: Sequence[Any], what: str) -> list[bytes]:
    """Hashes in order. Raises Refused naming the first of another length, or for more than anybody can mean."""
    if len(items) > MOST_HASHES:
        raise refused(
            Busy(f"{len(items)} {what}s in one call are more than the {MOST_HASHES} that are taken: ask in parts")
        )
    values = [bytes(item) for item in items]
    for number, value in enumerate(values):
        if len(value) != HASH_SIZE:
            raise undecodable(f"{what} {number} takes {HASH_SIZE} bytes, got {len(value)}")
    return values


def transaction_of(raw: bytes) -> Transaction:
    """One transaction; bytes after it are ignored, as in Core. Raises Refused."""
    try:
        return parse_transaction(raw)[0]
    except DecodeError as error:
        raise refused(error) from None


def block_of(data: Any) -> bytes:
    """A block's bytes, of which header and first transactions were parsed. Raises Refused."""
    raw = bytes(data)
    try:
        BlockHeader.parse(raw)
        count, at = read_compact_size(raw, HEADER_SIZE)
        for _ in range(min(count, LOOKED_AT)):
            _, at = parse_transaction(raw, at)
    except DecodeError as error:
        raise refused(error) from None
    return raw
