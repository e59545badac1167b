"""How a check gets what it asks for: coins from the workers at one tip, scripts from the workers of all cores."""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from actors.pool import WorkerPool, let_go
from actors.share import FairShare
from models.coins.coin import Coin
from models.coins.columns import CoinBatch
from models.coins.following import FollowingView
from models.consensus.check import BlockJudgement, CoinsWanted, ScriptJob, ScriptsWanted, Steps
from models.consensus.context import BlockContext, Tip, TipVersion
from models.consensus.draft import BlockDraft
from models.errors import CoinsReadError, StaleView
from models.messages import FlatCoin, FlatTip, in_pieces, pack_tip, unpack_batch, unpack_tip, unwrap

__all__ = ["Ahead", "Reading"]

CHUNKS_EACH = 2  # under way for each worker: one runs, one waits at its door
LOCAL_THREADS = 32
SHARED_READ = 2048  # outpoints
OUTPOINT = 36  # bytes
FEW_SCRIPTS = 64  # transactions
VALIDATION_CHUNK = 192  # inputs of one script request; about 6 ms of one core


@dataclass(frozen=True)
class Ahead:
    """Scripts that run while the rest of a block is looked at: of which positions, under which flags."""

    positions: np.ndarray
    flags: int
    firsts: "asyncio.Task[list[int]]"  # as `scripts` answers

    def answers(self, wanted: ScriptsWanted) -> bool:
        """Whether these are the scripts that are wanted."""
        return self.flags == wanted.flags and np.array_equal(self.positions, wanted.positions)


class Reading:
    """The two pools, the chainstate's owner, and the settings that choose between them."""

    def __init__(self, store: str, settings: dict[str, Any], fetch: WorkerPool, script: WorkerPool):
        self.settings = settings
        few = settings["local_reads"] if settings["validation_fetch"] == "parallel" else 0
        self._few = few  # outpoints that are read right here: a handful is read faster than asked for
        self._view = (
            FollowingView(Path(store) / "chainstate", LOCAL_THREADS, settings["fetch_block_cache"]) if few else None
        )
        self.local_reads = 0
        self.share = FairShare()
        self.fetch = fetch
        self.script = script
        self.chainstate: Any = None
        self.reads = 0
        self.read_keys = 0

    async def coins(self, outpoints: Sequence[bytes], tip: Tip) -> CoinBatch:
        """Observations at `tip`, in order; raises StaleView, CoinsReadError or WorkerLost."""
        if self._view is not None and len(outpoints) <= self._few and self._view.version == tip.version:
            return self._read_here(self._view, outpoints, tip)
        self.reads += 1
        self.read_keys += len(outpoints)
        blob = b"".join(outpoints)
        if self._view is not None and len(outpoints) <= self._few:
            self.local_reads += 1
            return await asyncio.to_thread(self._view.read, blob, tip)  # it has to be opened first
        serial = self.settings["validation_fetch"] == "serial"
        if serial or self.fetch.stopped:  # without a pool the owner itself reads
            fill = serial and self.settings["read_through_cache"] == "on"
            return unpack_batch(unwrap(await self.chainstate.read_serial.remote(blob, pack_tip(tip), fill)))
        if self._view is None or len(outpoints) < SHARED_READ:
            return await self._ask(blob, tip)
        # A read that long is worth two processes: the last half, most of it BIP30 probes, is done here.
        mine = len(outpoints) // 2 * OUTPOINT
        there = asyncio.ensure_future(self._ask(blob[:-mine], tip))
        try:
            here = await asyncio.to_thread(self._view.read, blob[-mine:], tip)
        except BaseException:
            there.cancel()
            raise
        return CoinBatch.joined([await there, here])

    def _read_here(self, view: FollowingView, outpoints: Sequence[bytes], tip: Tip) -> CoinBatch:
        self.reads += 1
        self.local_reads += 1
        self.read_keys += len(outpoints)
        return view.read(b"".join(outpoints), tip)

    def begin(self, draft: BlockDraft, context: BlockContext) -> Ahead | None:
        """Reads the last few coins of a draft and starts its last few scripts, before anything else is checked; None
        where there are more, where the coins are not all there, and where they cannot be read: the check finds out."""
        view, version, flags = self._view, context.tip.version, context.script_flags
        if view is None or view.version != version or draft.version != version or draft.script_flags != flags:
            return None
        positions = draft.unverified()
        if not 0 < len(positions) <= FEW_SCRIPTS:
            return None
        wanted = draft.unobserved()
        outpoints = [o for segment, inputs in wanted for o in draft.outpoints_of_inputs(segment, inputs)]
        if len(outpoints) > self._few:
            return None
        if outpoints:
            try:
                draft.observe_wanted(wanted, self._read_here(view, outpoints, context.tip), version)
            except (CoinsReadError, StaleView):
                return None
        if not draft.coins_seen(positions):
            return None
        firsts = asyncio.create_task(self.scripts(list(draft.script_jobs(positions)), flags))
        firsts.add_done_callback(let_go)
        return Ahead(positions, flags, firsts)

    async def _ask(self, blob: bytes, tip: Tip) -> CoinBatch:
        flat = await self.fetch.call("read", pack_tip(tip), *in_pieces(blob), deadline=self.settings["read_deadline_s"])
        return unpack_batch(flat)

    async def warm_up(self, tip: Tip) -> None:
        """Opens the handle of this process at `tip`, if it has one."""
        if self._view is not None:
            await asyncio.to_thread(self._view.read, b"", tip)

    def follow(
        self, before: tuple[int, int], tip: FlatTip, spent: Sequence[bytes], created: Sequence[FlatCoin]
    ) -> None:
        """Lays one block's changes over the handle of this process."""
        if self._view is not None:
            coins = [(coin[0], Coin(*coin[1:])) for coin in created]
            self._view.follow(TipVersion(*before), unpack_tip(tip), spent, coins)

    def forget(self) -> None:
        """Lets go of the handle of this process; the next read opens it anew."""
        if self._view is not None:
            self._view.forget()

    async def scripts(self, jobs: Iterable[ScriptJob], flags: int) -> list[int]:
        """First failing input of each job, or -1; spread over all workers. Raises Busy past the deadline."""
        deadline = self.settings["script_deadline_s"]
        limit = asyncio.Semaphore(CHUNKS_EACH * max(len(self.script), 1))

        async def run(chunk: list[ScriptJob]) -> list[int]:
            try:
                return await self.script.run("verify", chunk, flags, deadline=deadline)
            finally:
                limit.release()

        tasks: list[asyncio.Task[list[int]]] = []
        try:
            for chunk in _chunks(jobs):
                await limit.acquire()  # the workers run what they have while the next chunk is made
                tasks.append(asyncio.create_task(run(chunk)))
                await asyncio.sleep(0)
            return [first for answer in await asyncio.gather(*tasks) for first in answer]
        except BaseException:
            for task in tasks:
                task.cancel()
            raise

    async def drive(
        self, steps: Steps, tip: Tip, client: str = "", aside: bool = False, ahead: Ahead | None = None
    ) -> BlockJudgement:
        """Runs a check to its end (see `models.consensus.check`); `aside`: in a thread, since its steps are long.

        Between steps others have their turn: whoever's checks have cost least goes first. `ahead` is what `begin` has
        begun for this draft.
        """
        answer: Any = None
        try:
            while True:
                async with self.share.turn(client):
                    wanted = await asyncio.to_thread(_step, steps, answer) if aside else _step(steps, answer)
                if isinstance(wanted, BlockJudgement):
                    return wanted
                if isinstance(wanted, CoinsWanted):
                    answer = await self.coins(wanted.outpoints, tip)
                else:
                    assert isinstance(wanted, ScriptsWanted)
                    if ahead is not None and ahead.answers(wanted):
                        answer = await ahead.firsts
                    else:
                        answer = await self.scripts(wanted.jobs, wanted.flags)
        finally:
            if ahead is not None:
                ahead.firsts.cancel()
            try:
                steps.close()
            except ValueError:
                pass  # given up while a thread is at it: it ends by itself, and nobody hears of it


def _step(steps: Steps, answer: Any) -> CoinsWanted | ScriptsWanted | BlockJudgement:
    """What a check wants next, or its outcome."""
    try:
        return next(steps) if answer is None else steps.send(answer)
    except StopIteration as end:
        return end.value


def _chunks(jobs: Iterable[ScriptJob]) -> Iterator[list[ScriptJob]]:
    chunk: list[ScriptJob] = []
    size = 0
    for job in jobs:
        chunk.append(job)
        size += len(job[1])
        if size >= VALIDATION_CHUNK:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk
