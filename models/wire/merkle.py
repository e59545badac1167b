"""Merkle trees over transaction hashes (Core: consensus/merkle.cpp), with the CVE-2012-2459 mark, and a tree that takes
late leaves: when a template's last transaction arrives, thirteen hashes bring the root up to date instead of 5,900.
"""

from collections.abc import Iterable
from hashlib import sha256

__all__ = ["MerkleTree", "merkle_root", "path_root", "witness_merkle_root"]

_PLACEHOLDER = bytes(32)


def _parent(left: bytes, right: bytes) -> bytes:
    return sha256(sha256(left + right).digest()).digest()


def merkle_root(leaves: list[bytes]) -> tuple[bytes, bool]:
    """Root and mutation mark of 32-byte leaves (internal order). No leaves give the zero hash.

    The mark is set if any two siblings that both exist are equal, at any level (CVE-2012-2459): such a list of
    transactions shares its root with a shorter one.
    """
    if not leaves:
        return bytes(32), False
    level = leaves
    mutated = False
    while len(level) > 1:
        even = len(level) & ~1
        pairs = [level[i] + level[i + 1] for i in range(0, even, 2)]
        if not mutated:
            mutated = any(pair[:32] == pair[32:] for pair in pairs)
        if even != len(level):
            pairs.append(level[-1] + level[-1])
        level = [sha256(sha256(pair).digest()).digest() for pair in pairs]
    return level[0], mutated


def witness_merkle_root(wtxids: Iterable[bytes]) -> bytes:
    """Root over the wtxids of all transactions but the coinbase, whose leaf is zero (BIP141). 32 bytes."""
    root, _ = merkle_root([_PLACEHOLDER, *wtxids])
    return root


def path_root(leaf: bytes, path: list[bytes]) -> bytes:
    """The root that `leaf` at position 0 has with its siblings `path`, lowest first."""
    for sibling in path:
        leaf = _parent(leaf, sibling)
    return leaf


class MerkleTree:
    """A tree of a fixed number of leaves whose values may arrive in any order.

    `leaves`: 32-byte hashes, or None where not known yet. Setting k leaves of n costs about k * log2(n) hashes.
    """

    __slots__ = ("_levels",)

    def __init__(self, leaves: list[bytes | None]):
        level = [leaf if leaf is not None else _PLACEHOLDER for leaf in leaves]
        self._levels = [level]
        while len(level) > 1:
            pairs = [level[i] + level[i + 1] for i in range(0, len(level) & ~1, 2)]
            if len(level) & 1:
                pairs.append(level[-1] + level[-1])
            level = [sha256(sha256(pair).digest()).digest() for pair in pairs]
            self._levels.append(level)

    def set_leaves(self, leaves: dict[int, bytes]) -> None:
        """Puts hashes at positions and recomputes the branches above them."""
        bottom = self._levels[0]
        for position, leaf in leaves.items():
            bottom[position] = leaf
        touched = {position >> 1 for position in leaves}
        for below, level in zip(self._levels, self._levels[1:], strict=False):
            last = len(below) - 1
            for index in touched:
                left = 2 * index
                level[index] = _parent(below[left], below[min(left + 1, last)])
            touched = {index >> 1 for index in touched}

    @property
    def root(self) -> bytes:
        """32 bytes, internal order; the zero hash for no leaves."""
        top = self._levels[-1]
        return top[0] if top else bytes(32)

    def path_of_first(self) -> list[bytes]:
        """Siblings of leaf 0, lowest first: the coinbase merkle path (Core: `TransactionMerklePath(block, 0)`)."""
        return [level[min(1, len(level) - 1)] for level in self._levels if len(level) > 1]
