"""What a check begins before it looks at the block: the last coins and scripts. Nothing there can go wrong for it."""

import asyncio
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from actors.reading import FEW_SCRIPTS, Reading
from models.coins.columns import CoinBatch
from models.consensus.check import ScriptsWanted
from models.errors import CoinsReadError, StaleView, TxCollectionError
from models.script.jobs import unpack_jobs
from tests.models.consensus.building import empty_chain, put_coin
from tests.models.consensus.test_draft import HEIGHT, Told, spend


class View:
    """A handle on the coins of a chain, at its tip; or one that cannot read."""

    def __init__(self, told: Told, error: TxCollectionError | None = None) -> None:
        self.version = told.context.tip.version
        self._chain = told.chain
        self._error = error

    def read(self, blob: bytes, _: Any) -> CoinBatch:
        if self._error:
            raise self._error
        return CoinBatch.of_coins(self._chain.read([blob[at : at + 36] for at in range(0, len(blob), 36)]))


class Pool:
    """Script workers that say what they were given, and that all pass."""

    def __init__(self, error: TxCollectionError | None = None) -> None:
        self.inputs = 0
        self._error = error

    def __len__(self) -> int:
        return 1

    async def run(self, _: str, __: int, *pieces: bytes, **___: Any) -> list[int]:
        jobs = unpack_jobs(pieces)
        self.inputs += sum(len(spent) for _, spent in jobs)
        if self._error:
            raise self._error
        return [-1] * len(jobs)


def reading_of(told: Told, view: View, pool: Pool) -> Reading:
    settings = {"local_reads": 0, "validation_fetch": "parallel", "fetch_block_cache": 0, "script_deadline_s": 5}
    reading = Reading("", settings, SimpleNamespace(), pool)  # type: ignore[arg-type]
    reading._view, reading._few = view, 64  # type: ignore[assignment]
    told.begin()
    return reading


def a_block(transactions: int = 2) -> Told:
    chain = empty_chain(HEIGHT - 1)
    return Told(chain, [spend(put_coin(chain, n)) for n in range(transactions)])


def test_the_last_coins_are_read_and_the_last_scripts_run() -> None:
    async def begin() -> None:
        told, pool = a_block(), Pool()
        reading = reading_of(told, View(told), pool)
        ahead = reading.begin(told.draft, told.context)
        assert ahead is not None
        assert (await ahead.firsts(np.array([2, 1]))).tolist() == [-1, -1]
        assert (pool.inputs, reading.read_keys) == (2, 2)
        assert told.draft.unobserved() == []
        flags = told.context.script_flags
        for other in (0, 1):
            positions = np.array([1, 2])
            wanted = ScriptsWanted(iter([]), flags + other, positions, told.draft, told.draft.generation)
            assert (await ahead.covers(wanted)).tolist() == [not other, not other]

    asyncio.run(begin())


@pytest.mark.parametrize("error", [CoinsReadError("checksum"), StaleView("moved")])
def test_coins_that_cannot_be_read_are_left_to_the_check(error: TxCollectionError) -> None:
    """Which may refuse the block before it needs any."""

    async def begin() -> None:
        told, pool = a_block(), Pool()
        assert reading_of(told, View(told, error), pool).begin(told.draft, told.context) is None
        assert pool.inputs == 0

    asyncio.run(begin())


def test_many_scripts_are_not_run_ahead() -> None:
    async def begin() -> None:
        told, pool = a_block(FEW_SCRIPTS + 1), Pool()
        assert reading_of(told, View(told), pool).begin(told.draft, told.context) is None

    asyncio.run(begin())


def test_a_coin_that_is_not_there_runs_no_script() -> None:
    async def begin() -> None:
        told, pool = a_block(), Pool()
        told.chain.coins.popitem()
        assert reading_of(told, View(told), pool).begin(told.draft, told.context) is None
        await asyncio.sleep(0)
        assert pool.inputs == 0

    asyncio.run(begin())
