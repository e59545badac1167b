"""Coins and scripts of a check before it asks for them: while a block is still parsed, the coins of what is parsed by
now are read, and the scripts that they complete run. So no core waits for the parse, and the check finds its answers.

Nothing here judges. An answer is used only where the check asks for the very same: a coin at the same tip, a script
whose transaction spends nothing but coins of the database. What a check does not ask for is thrown away, and what goes
wrong is heard of only by who asks.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any, TypeVar

import numpy as np

from actors.pool import WorkerPool, let_go
from models.coins.codec import find_outpoints
from models.coins.columns import COIN, CoinBatch, spent_outputs
from models.consensus.check import ScriptsWanted
from models.consensus.context import Tip
from models.consensus.table import starts_of
from models.script.jobs import ScriptJob, pack_jobs
from models.wire.transaction import Transaction

__all__ = ["Ahead", "Jobs", "Known", "ScriptStream"]

CHUNKS_EACH = 2  # under way for each worker: one runs, one waits at its door
CHUNK = 640  # inputs of one script request; about 26 ms of one core

T = TypeVar("T")
Known = Callable[[Sequence[Transaction]], Awaitable[np.ndarray]]
Jobs = tuple[np.ndarray, list[ScriptJob]]  # positions in the block, and their scripts


class ScriptStream:
    """Scripts of one check on their way to all workers but the first `reserve`, in chunks as they come."""

    def __init__(self, pool: WorkerPool, flags: int, deadline: float, reserve: int = 0):
        self._pool = pool
        self._flags = flags
        self._deadline = deadline
        self._reserve = reserve
        self._limit = asyncio.Semaphore(CHUNKS_EACH * max(len(pool) - reserve, 1))
        self._tasks: list[asyncio.Task[list[int]]] = []
        self._chunk: list[ScriptJob] = []
        self._inputs = 0

    async def send(self, jobs: Iterable[ScriptJob]) -> None:
        """Hands out jobs; the workers run what they have while the next are made."""
        for job in jobs:
            self._chunk.append(job)
            self._inputs += len(job[1])
            if self._inputs >= CHUNK:
                await self.flush()

    async def flush(self) -> None:
        """Sends what does not fill a chunk."""
        if not self._chunk:
            return
        await self._limit.acquire()
        self._tasks.append(_begin(self._run(self._chunk)))
        self._chunk, self._inputs = [], 0
        await asyncio.sleep(0)

    async def _run(self, chunk: list[ScriptJob]) -> list[int]:
        try:
            packed = pack_jobs(chunk)
            return await self._pool.run("verify", self._flags, *packed, deadline=self._deadline, reserve=self._reserve)
        finally:
            self._limit.release()

    async def all_of(self, jobs: Iterable[ScriptJob]) -> list[int]:
        """First failing input of each job, or -1. Raises Busy past the deadline."""
        try:
            await self.send(jobs)
            return await self.firsts()
        except BaseException:
            self.cancel()
            raise

    async def firsts(self) -> list[int]:
        """The same of each job so far."""
        await self.flush()
        return [first for answer in await asyncio.gather(*map(asyncio.shield, self._tasks)) for first in answer]

    def cancel(self) -> None:
        """Nobody waits for them any more. What a worker has is not taken from it: it cannot be interrupted, and goes on
        counting as busy, and being watched for its deadline."""
        self._chunk = []


class Ahead:
    """What is under way for one block at one tip, under the flags of its scripts.

    `read` reads coins at this tip; `stream` takes the scripts; `known` says of transactions whose scripts are known to
    pass, one bool each.
    """

    def __init__(
        self,
        tip: Tip,
        flags: int,
        stream: ScriptStream,
        read: Callable[[bytes], Awaitable[CoinBatch]],
        known: Known | None = None,
        ready: Jobs | None = None,
    ):
        """`ready`: scripts that need nothing more. They are all there will be, and their requests leave as soon as the
        event loop runs twice."""
        self.tip = tip
        self.flags = flags
        self._stream = stream
        self._read = read
        self._known = known
        self.reads: list[tuple[bytes, asyncio.Task[CoinBatch]]] = []  # joined outpoints, and their coins
        self._ready: list[asyncio.Task[Jobs]] = []
        self._more = asyncio.Event()
        self._ended = ready is not None
        if ready is not None:
            self._ready.append(_begin(_done(ready)))
        self._work = _begin(self._run() if ready is None else stream.all_of(ready[1]))

    def take(self, positions: np.ndarray, transactions: Sequence[Transaction]) -> None:
        """Parsed transactions and their positions in the block: their coins are read, and their scripts run."""
        if self._ended:
            return
        outpoints = b"".join([prevout for tx in transactions for prevout in tx.prevouts])
        coins = _begin(self._read(outpoints))
        self.reads.append((outpoints, coins))
        passed = self._known(transactions) if self._known else None
        self._ready.append(_begin(self._jobs(positions, transactions, coins, passed)))
        self._more.set()

    def taker(self) -> Callable[[np.ndarray, Sequence[Transaction]], None]:
        """`take`, for a thread that parses."""
        loop = asyncio.get_running_loop()

        def take(positions: np.ndarray, transactions: Sequence[Transaction]) -> None:
            loop.call_soon_threadsafe(self.take, positions, transactions)

        return take

    def end(self) -> None:
        """Nothing more will come."""
        self._ended = True
        self._more.set()

    def cancel(self) -> None:
        """Nobody waits for anything of it any more."""
        self.end()
        for task in (self._work, *self._ready, *(coins for _, coins in self.reads)):
            task.cancel()

    async def _jobs(
        self,
        positions: np.ndarray,
        transactions: Sequence[Transaction],
        reading: "asyncio.Task[CoinBatch]",
        known: Awaitable[np.ndarray] | None,
    ) -> Jobs:
        passed = np.zeros(len(transactions), bool) if known is None else await known
        batch = await reading
        starts = starts_of(np.array([len(tx.prevouts) for tx in transactions]))
        held = starts_of(batch.rows["state"] == COIN)
        wanted = np.flatnonzero((held[starts[1:]] - held[starts[:-1]] == np.diff(starts)) & ~passed)
        spent = spent_outputs(batch.rows, batch.arena)
        jobs = [(transactions[i].raw, spent[starts[i] : starts[i + 1]]) for i in wanted.tolist()]
        return positions[wanted], jobs

    async def _run(self) -> list[int]:
        try:
            at = 0
            while True:
                self._more.clear()
                for ready in self._ready[at:]:
                    await self._stream.send((await ready)[1])
                    at += 1
                if self._ended and at == len(self._ready):
                    return await self._stream.firsts()
                if at == len(self._ready):
                    await self._stream.flush()
                    await self._more.wait()
        except BaseException:
            self._stream.cancel()
            raise

    async def coins(self, outpoints: bytes) -> tuple[CoinBatch, np.ndarray]:
        """Coins that were read, and for each of the joined `outpoints` the number of its coin there, or -1."""
        batches = [await coins for _, coins in self.reads]
        read = b"".join([outpoints for outpoints, _ in self.reads])
        return CoinBatch.joined([CoinBatch.of_coins([]), *batches]), find_outpoints(outpoints, read)

    async def covers(self, wanted: ScriptsWanted) -> np.ndarray:
        """Which of the scripts that are wanted are under way here, one bool each."""
        if wanted.flags != self.flags:
            return np.zeros(len(wanted.positions), bool)
        own = np.concatenate([np.zeros(0, np.int64), *[(await ready)[0] for ready in self._ready]])
        return np.isin(wanted.positions, own) & wanted.spend_database()

    async def firsts(self, positions: np.ndarray) -> np.ndarray:
        """First failing input, or -1, of transactions whose scripts are under way here."""
        firsts = np.array(await self._work, np.int64)
        own = np.concatenate([(await ready)[0] for ready in self._ready])
        order = np.argsort(own, kind="stable")
        return firsts[order[np.searchsorted(own[order], positions)]]


async def _done(jobs: Jobs) -> Jobs:
    return jobs


def _begin(work: Coroutine[Any, Any, T] | Awaitable[T]) -> "asyncio.Task[T]":
    """A task that nobody has to wait for."""
    task: asyncio.Task[T] = asyncio.ensure_future(work)
    task.add_done_callback(let_go)
    return task
