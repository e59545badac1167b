"""How long it may be believed that a transaction's outputs are not among the coins."""

import pytest

from models.consensus.context import TipVersion
from models.mempool import Mempool, NewOutputs
from tests.actors.blocks import TestCoin, spend

HERE = TipVersion(3, 7)


@pytest.fixture
def known() -> tuple[NewOutputs, Mempool]:
    """A mempool of one transaction whose outputs were looked for at `HERE`."""
    new, pool = NewOutputs(), Mempool()
    assert pool.add(spend([TestCoin(b"\x01" * 32, 0, 5_000)]).raw) is not None
    new.begin(HERE)
    for _, entry in pool.entries():
        entry.new_in = new.era
    return new, pool


def knows(known: tuple[NewOutputs, Mempool]) -> bool:
    [entry] = [entry for _, entry in known[1].entries()]
    return known[0].knows(entry)


def test_nothing_is_known_at_first() -> None:
    pool = Mempool()
    pool.add(spend([TestCoin(b"\x01" * 32, 0, 5_000)]).raw)
    assert not knows((NewOutputs(), pool))


def test_it_outlives_blocks_that_follow(known: tuple[NewOutputs, Mempool]) -> None:
    for n in range(HERE.n + 1, HERE.n + 5):
        known[0].follow(TipVersion(HERE.epoch, n), block_connected=True)
        assert knows(known) and known[0].version == (HERE.epoch, n)


def test_a_message_that_comes_late_changes_nothing(known: tuple[NewOutputs, Mempool]) -> None:
    for connected in (True, False):
        for n in (HERE.n, HERE.n - 1):
            known[0].follow(TipVersion(HERE.epoch, n), connected)
            assert knows(known) and known[0].version == HERE


@pytest.mark.parametrize(
    ("version", "connected"),
    [
        (TipVersion(HERE.epoch, HERE.n + 1), False),  # a block was taken back, or nobody says what changed
        (TipVersion(HERE.epoch, HERE.n + 2), True),  # a message is missing
        (TipVersion(HERE.epoch + 1, 0), True),  # another owner of the coins
        (TipVersion(HERE.epoch + 1, HERE.n + 1), True),
    ],
)
def test_anything_else_ends_it(known: tuple[NewOutputs, Mempool], version: TipVersion, connected: bool) -> None:
    known[0].follow(version, connected)
    assert not knows(known) and known[0].version == version


def test_it_ends_with_whoever_told_of_tips(known: tuple[NewOutputs, Mempool]) -> None:
    known[0].forget()
    assert not knows(known) and known[0].version is None
