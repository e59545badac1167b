"""Merkle roots against two blocks of mainnet and a tree written out here, the mark of CVE-2012-2459, and the tree whose
leaves arrive late.
"""

import hashlib
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.wire.merkle import MerkleTree, merkle_root, path_root

LEAF = st.binary(min_size=32, max_size=32)


def pair(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(hashlib.sha256(left + right).digest()).digest()


def plain_root(leaves: list[bytes]) -> bytes:
    """As the protocol describes it: pairs, the last one with itself where the number is odd."""
    while len(leaves) > 1:
        if len(leaves) % 2:
            leaves = [*leaves, leaves[-1]]
        leaves = [pair(leaves[i], leaves[i + 1]) for i in range(0, len(leaves), 2)]
    return leaves[0] if leaves else bytes(32)


def leaves_of(count: int, seed: int = 0) -> list[bytes]:
    return [hashlib.sha256(f"{seed} {i}".encode()).digest() for i in range(count)]


# Blocks 170 and 100,000 of mainnet, transaction ids and merkle root as any explorer shows them.
KNOWN = [
    (
        [
            "b1fea52486ce0c62bb442b530a3f0132b826c74e473d1f2c220bfa78111c5082",
            "f4184fc596403b9d638783cf57adfe4c75c605f6356fbc91338530e9831e9e16",
        ],
        "7dac2c5666815c17a3b36427de37bb9d2e2c5ccec3f8633eb91a4205cb4c10ff",
    ),
    (
        [
            "8c14f0db3df150123e6f3dbbf30f8b955a8249b62ac1d1ff16284aefa3d06d87",
            "fff2525b8931402dd09222c50775608f75787bd2b87e56995a7bdd30f79702c4",
            "6359f0868171b1d194cbee1af2f16ea598ae8fad666d9b012c8ed2b79a236ec4",
            "e9a66845e05d5abc0ad04ec80f774a7e585c6e8db975962d069a522137b80c1d",
        ],
        "f3e94742aca4b5ef85488dc37c06c3282295ffec960994b2c0d5ac2a25a95766",
    ),
]


@pytest.mark.parametrize(("txids", "root"), KNOWN)
def test_roots_of_mainnet_blocks(txids: list[str], root: str) -> None:
    leaves = [bytes.fromhex(txid)[::-1] for txid in txids]
    assert merkle_root(leaves) == (bytes.fromhex(root)[::-1], False)


@pytest.mark.parametrize("count", range(41))
def test_root_and_late_leaves_for_every_count(count: int) -> None:
    leaves = leaves_of(count)
    expected = plain_root(leaves)
    assert merkle_root(leaves) == (expected, False)
    late = MerkleTree([None] * count)
    late.set_leaves(dict(enumerate(leaves)))
    assert MerkleTree(list(leaves)).root == late.root == expected


@pytest.mark.parametrize("count", range(1, 41))
def test_leaves_that_arrive_in_random_groups_in_random_order(count: int) -> None:
    rng = random.Random(count)
    leaves = leaves_of(count)
    early = set(rng.sample(range(count), rng.randint(0, count)))
    tree = MerkleTree([leaf if i in early else None for i, leaf in enumerate(leaves)])
    late = [i for i in range(count) if i not in early]
    rng.shuffle(late)
    while late:
        size = rng.randint(1, 5)
        group, late = late[:size], late[size:]
        tree.set_leaves({i: leaves[i] for i in group})
    assert tree.root == plain_root(leaves)


@given(st.lists(LEAF, min_size=1, max_size=70), st.data())
def test_a_replaced_leaf_gives_the_root_of_the_new_list(leaves: list[bytes], data: st.DataObject) -> None:
    tree = MerkleTree(list(leaves))
    changed = data.draw(st.dictionaries(st.integers(0, len(leaves) - 1), LEAF, max_size=10))
    tree.set_leaves(changed)
    now = [changed.get(i, leaf) for i, leaf in enumerate(leaves)]
    assert tree.root == plain_root(now) == merkle_root(now)[0]


@given(st.lists(LEAF, min_size=1, max_size=70), LEAF)
def test_the_path_of_the_first_leaf_leads_any_first_leaf_to_its_root(leaves: list[bytes], other: bytes) -> None:
    path = MerkleTree(list(leaves)).path_of_first()
    assert len(path) == (len(leaves) - 1).bit_length()
    assert path_root(leaves[0], path) == plain_root(leaves)
    if len(leaves) > 1:  # as TransactionMerklePath, which lists siblings: those of a first leaf do not hold it
        assert path_root(other, path) == plain_root([other, *leaves[1:]])


def test_a_path_by_hand() -> None:
    a, b, c = leaves_of(3)
    assert MerkleTree([a, b, c]).path_of_first() == [b, pair(c, c)]
    assert MerkleTree([a]).path_of_first() == []


def test_no_leaves_give_the_zero_hash() -> None:
    assert merkle_root([]) == (bytes(32), False)
    assert MerkleTree([]).root == bytes(32)
    assert MerkleTree([]).path_of_first() == []


# CVE-2012-2459: lists that share their root with a shorter one, from the description in Core's consensus/merkle.cpp.
@pytest.mark.parametrize(
    ("honest", "repeated"),
    [
        ([0, 1, 2], [0, 1, 2, 2]),
        ([0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4, 5, 4, 5]),
        ([0, 1, 2, 3, 4], [0, 1, 2, 3, 4, 4]),
        ([0, 1, 2, 3, 4], [0, 1, 2, 3, 4, 4, 4, 4]),
    ],
)
def test_a_list_repeated_at_its_end_has_the_same_root_and_the_mark(honest: list[int], repeated: list[int]) -> None:
    leaves = leaves_of(8)
    root, mutated = merkle_root([leaves[i] for i in honest])
    assert not mutated
    assert merkle_root([leaves[i] for i in repeated]) == (root, True)


def test_equal_leaves_that_are_no_siblings_leave_no_mark() -> None:
    a, b, c, _ = leaves_of(4)
    assert merkle_root([a, b, b, c])[1] is False
    assert merkle_root([b, a, c, a, b])[1] is False


def test_two_equal_siblings_in_the_middle_leave_the_mark() -> None:
    a, b, c, d = leaves_of(4)
    assert merkle_root([a, b, c, c, d])[1] is True
    assert merkle_root([a, b, a, b, d])[1] is True  # equal one level up
