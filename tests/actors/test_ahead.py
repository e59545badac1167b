"""What runs while a block is parsed: it changes no verdict, runs each script once, and is thrown away without harm."""

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from actors.ahead import CHUNK, Ahead
from actors.reading import Reading
from models.coins.columns import CoinBatch
from models.consensus.check import BlockJudgement
from models.consensus.context import TipVersion
from models.errors import Busy, CoinsReadError, StaleView, TxCollectionError
from models.messages import pack_batch
from models.script.jobs import pack_jobs, unpack_jobs
from models.script.verify import verify_batch
from models.wire.transaction import Transaction
from tests.models.consensus.building import FALSE, empty_chain, made_up, put_coin, txid_of
from tests.models.consensus.test_draft import HEIGHT, Told, spend


class Pools:
    """Stands for both kinds of workers; counts what they are asked for."""

    stopped = False

    def __init__(self, told: Told) -> None:
        self._told = told
        self.asked: list[bytes] = []
        self.ran: list[bytes] = []
        self.errors: dict[str, TxCollectionError] = {}

    def __len__(self) -> int:
        return 2

    async def call(self, method: str, _: Any, *pieces: bytes, **__: Any) -> Any:
        await asyncio.sleep(0)
        if method in self.errors:
            raise self.errors[method]
        blob = b"".join(pieces)
        outpoints = [blob[at : at + 36] for at in range(0, len(blob), 36)]
        self.asked += outpoints
        return pack_batch(CoinBatch.of_coins(self._told.chain.read(outpoints)))

    async def run(self, method: str, flags: int, *pieces: bytes, **_: Any) -> list[int]:
        await asyncio.sleep(0)
        if method in self.errors:
            raise self.errors[method]
        jobs = unpack_jobs(pieces)
        self.ran += [raw for raw, _ in jobs]
        return verify_batch(jobs, flags)


def reading_of(pools: Pools) -> Reading:
    settings = {"local_reads": 0, "validation_fetch": "parallel", "script_deadline_s": 5, "read_deadline_s": 5}
    return Reading("", settings, pools, pools)  # type: ignore[arg-type]


def taken(ahead: Ahead, told: Told, sizes: Sequence[int]) -> None:
    """Tells of all transactions, in groups."""
    at = 1
    for size in sizes:
        ahead.take(np.arange(at, at + size), told.block.transactions[at : at + size])
        at += size
    ahead.end()


async def judged(told: Told, pools: Pools, ahead: Ahead | None, reading: Reading, inline: bool) -> BlockJudgement:
    return await reading.drive(told.steps(inline_scripts=inline), told.context.tip, ahead=ahead)


def a_block(*kinds: str) -> Told:
    """Transactions of some kinds, each with coins of its own."""
    chain = empty_chain(HEIGHT - 1)
    raws: list[bytes] = []
    for number, kind in enumerate(kinds):
        own = put_coin(chain, number, script=FALSE if kind == "false" else b"\x51")
        if kind == "child":
            raws.append(spend(own, txid_of(raws[-1]) + bytes(4)))
        elif kind == "false child":
            raws.append(spend(own, script=FALSE))
            raws.append(spend(txid_of(raws[-1]) + bytes(4)))
        elif kind == "overwritten":  # the database holds what the block makes: another script, the same outpoint
            raws.append(spend(own, script=FALSE))
            chain.coins[txid_of(raws[-1]) + bytes(4)] = chain.coins[own]
            raws.append(spend(txid_of(raws[-1]) + bytes(4)))
        elif kind == "missing":
            raws.append(spend(made_up(1000 + number)))
        elif kind == "again":
            raws.append(spend(own, made_up(0)))
        else:
            raws.append(spend(own))
    return Told(chain, raws)


BLOCKS: list[tuple[str, ...]] = [
    ("good", "good", "good"),
    ("good", "child", "good", "child"),
    ("good", "false", "good", "false"),
    ("good", "false child", "false"),
    ("good", "missing", "good"),
    ("good", "false", "missing"),
    ("good", "again"),
    ("good", "overwritten", "false"),
]


@pytest.mark.parametrize("kinds", BLOCKS, ids="-".join)
@pytest.mark.parametrize("inline", [False, True], ids=["deferred", "inline"])
@pytest.mark.parametrize("groups", [1, 2])
def test_a_verdict_is_the_same_with_a_head_start(kinds: tuple[str, ...], inline: bool, groups: int) -> None:
    async def run(head_start: bool) -> BlockJudgement:
        told = a_block(*kinds)
        pools = Pools(told)
        reading = reading_of(pools)
        ahead = None
        if head_start:
            ahead = reading.begin_block(told.context)
            assert ahead is not None
            count = told.draft.count
            taken(ahead, told, [count] if groups == 1 else [1, count - 1])
        return await judged(told, pools, ahead, reading, inline)

    with_it, without = asyncio.run(run(True)), asyncio.run(run(False))
    assert with_it.failure == without.failure
    assert (with_it.fees, with_it.coins_read, with_it.scripts_run) == (
        without.fees,
        without.coins_read,
        without.scripts_run,
    )


def test_everything_is_read_and_run_once() -> None:
    async def run() -> None:
        told = a_block("good", "child", "good")
        pools = Pools(told)
        reading = reading_of(pools)
        ahead = reading.begin_block(told.context)
        assert ahead is not None
        taken(ahead, told, [2, 1])
        judgement = await judged(told, pools, ahead, reading, False)
        assert judgement.failure is None
        raws = [tx.raw for tx in told.block.transactions[1:]]
        assert sorted(pools.ran) == sorted(raws)
        made = {tx.txid for tx in told.block.transactions[1:]}
        read = [outpoint for outpoint in pools.asked if outpoint[:32] not in made]
        assert len(read) == len(set(read))

    asyncio.run(run())


def test_scripts_that_are_known_to_pass_do_not_run() -> None:
    async def run() -> None:
        told = a_block("good", "false", "good")
        pools = Pools(told)

        async def known(transactions: Sequence[Transaction]) -> np.ndarray:
            return np.array([tx is told.block.transactions[2] for tx in transactions])

        reading = reading_of(pools)
        ahead = reading.begin_block(told.context, known)
        assert ahead is not None
        taken(ahead, told, [3])
        told.begin()
        told.draft.scripts_good(np.array([2]), told.context.script_flags)
        assert (await judged(told, pools, ahead, reading, False)).failure is None
        assert pools.ran == [told.block.transactions[n].raw for n in (1, 3)]

    asyncio.run(run())


@pytest.mark.parametrize(
    "method, error", [("read", CoinsReadError("x")), ("read", StaleView("x")), ("verify", Busy("x"))], ids=str
)
def test_what_goes_wrong_is_the_checks_own_error(method: str, error: TxCollectionError) -> None:
    async def run() -> None:
        told = a_block("good", "good")
        pools = Pools(told)
        pools.errors[method] = error
        reading = reading_of(pools)
        ahead = reading.begin_block(told.context)
        assert ahead is not None
        taken(ahead, told, [2])
        with pytest.raises(type(error)):
            await judged(told, pools, ahead, reading, False)

    asyncio.run(run())


def test_an_answer_of_another_tip_is_not_used() -> None:
    async def run() -> None:
        told = a_block("good", "good")
        pools = Pools(told)
        reading = reading_of(pools)
        other = SimpleNamespace(version=TipVersion(9, 9), hash=bytes(32), height=1)
        ahead = Ahead(other, told.context.script_flags, reading._stream(0), lambda _: pools.call("fail", None))  # type: ignore[arg-type]
        pools.errors["fail"] = StaleView("x")
        taken(ahead, told, [2])
        assert (await judged(told, pools, ahead, reading, False)).failure is None

    asyncio.run(run())


def test_what_is_cancelled_asks_for_nothing_more() -> None:
    async def run() -> None:
        told = a_block(*["good"] * (3 * CHUNK))
        pools = Pools(told)
        ahead = reading_of(pools).begin_block(told.context)
        assert ahead is not None
        ahead.take(np.arange(1, told.draft.count + 1), told.block.transactions[1:])
        ahead.cancel()
        ahead.take(np.arange(1, 2), told.block.transactions[1:2])
        for _ in range(5):
            await asyncio.sleep(0)
        assert (pools.asked, pools.ran) == ([], [])

    asyncio.run(run())


def test_without_workers_there_is_no_head_start() -> None:
    told = a_block("good")
    pools = Pools(told)
    reading = reading_of(pools)
    pools.stopped = True
    assert reading.begin_block(told.context) is None
    pools.stopped = False
    reading.settings["validation_fetch"] = "serial"
    assert reading.begin_block(told.context) is None


def test_jobs_cross_as_they_were() -> None:
    jobs = [(b"a" * 200_000, [(-1, b""), (2**63 - 1, b"\x51")]), (b"", [])]
    pieces = pack_jobs(jobs)
    assert max(map(len, pieces)) < 100_000
    assert unpack_jobs(pieces) == [(raw, tuple(spent)) for raw, spent in jobs]
