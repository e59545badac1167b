"""How a check gets what it asks for: coins from the workers at one tip, scripts from the workers of all cores."""

import asyncio
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from actors.ahead import Ahead, Jobs, Known, ScriptStream
from actors.pool import WorkerPool
from actors.share import FairShare
from models.coins.codec import OUTPOINT_SIZE
from models.coins.coin import Coin
from models.coins.columns import CoinBatch
from models.coins.following import FollowingView
from models.consensus.check import BlockJudgement, CoinsWanted, ScriptsWanted, Steps
from models.consensus.context import BlockContext, Tip, TipVersion
from models.consensus.draft import BlockDraft
from models.errors import CoinsReadError, StaleView
from models.messages import FlatCoin, FlatTip, in_pieces, pack_tip, unpack_batch, unpack_tip, unwrap
from models.script.jobs import ScriptJob

__all__ = ["Reading"]

LOCAL_THREADS = 32
SHARED_READ = 2048  # outpoints
MORE_HERE = 512  # outpoints; about what is read in the time of one message
FEW_SCRIPTS = 64  # transactions


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

    async def coins(self, outpoints: bytes, tip: Tip) -> CoinBatch:
        """Observations of joined outpoints at `tip`, in order; raises StaleView, CoinsReadError or WorkerLost."""
        count = len(outpoints) // OUTPOINT_SIZE
        if self._view is not None and count <= self._few and self._view.version == tip.version:
            return self._read_here(self._view, outpoints, tip)
        self.reads += 1
        self.read_keys += count
        if self._view is not None and count <= self._few:
            self.local_reads += 1
            return await asyncio.to_thread(self._view.read, outpoints, tip)  # it has to be opened first
        serial = self.settings["validation_fetch"] == "serial"
        if serial or self.fetch.stopped:  # without a pool the owner itself reads
            fill = serial and self.settings["read_through_cache"] == "on"
            return unpack_batch(unwrap(await self.chainstate.read_serial.remote(outpoints, pack_tip(tip), fill)))
        if self._view is None or count < SHARED_READ:
            return await self._ask(outpoints, tip)
        # A read that long is worth two processes: the last half and a little more, most of it BIP30 probes, is done
        # here, where it need not cross to another process first.
        mine = (count // 2 + MORE_HERE) * OUTPOINT_SIZE
        there = asyncio.ensure_future(self._ask(outpoints[:-mine], tip))
        try:
            here = await asyncio.to_thread(self._view.read, outpoints[-mine:], tip)
        except BaseException:
            there.cancel()
            raise
        return CoinBatch.joined([await there, here])

    def _read_here(self, view: FollowingView, outpoints: bytes, tip: Tip) -> CoinBatch:
        self.reads += 1
        self.local_reads += 1
        self.read_keys += len(outpoints) // OUTPOINT_SIZE
        return view.read(outpoints, tip)

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
        outpoints = draft.outpoints_wanted(wanted)
        if len(outpoints) > self._few * OUTPOINT_SIZE:
            return None
        if outpoints:
            try:
                draft.observe_wanted(wanted, self._read_here(view, outpoints, context.tip), version)
            except (CoinsReadError, StaleView):
                return None
        if not draft.coins_seen(positions):
            return None
        return self._ahead(context.tip, flags, ready=(positions, list(draft.script_jobs(positions))))

    def begin_block(self, context: BlockContext, known: Known | None = None) -> Ahead | None:
        """For a block that is going to be checked in this context, while it is parsed; None where coins are not to be
        read side by side. `known`: see `Ahead`."""
        if self.settings["validation_fetch"] == "serial" or self.fetch.stopped:
            return None
        return self._ahead(context.tip, context.script_flags, known, reserve=1)  # the parse needs a core as well

    def _ahead(
        self, tip: Tip, flags: int, known: Known | None = None, reserve: int = 0, ready: Jobs | None = None
    ) -> Ahead:
        async def read(outpoints: bytes) -> CoinBatch:
            self.reads += 1
            self.read_keys += len(outpoints) // OUTPOINT_SIZE
            return await self._ask(outpoints, tip)

        return Ahead(tip, flags, self._stream(flags, reserve), read, known, ready)

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
        return await self._stream(flags).all_of(jobs)

    def _stream(self, flags: int, reserve: int = 0) -> ScriptStream:
        return ScriptStream(self.script, flags, self.settings["script_deadline_s"], reserve)

    async def drive(
        self, steps: Steps, tip: Tip, client: str = "", aside: bool = False, ahead: Ahead | None = None
    ) -> BlockJudgement:
        """Runs a check to its end (see `models.consensus.check`); `aside`: in a thread, since its steps are long.

        Between steps others have their turn: whoever's checks have cost least goes first. `ahead` is what was begun for
        this block; it ends with the check.
        """
        if ahead is not None and ahead.tip.version != tip.version:
            ahead.cancel()
            ahead = None
        answer: Any = None
        try:
            while True:
                async with self.share.turn(client):
                    wanted = await asyncio.to_thread(_step, steps, answer) if aside else _step(steps, answer)
                if isinstance(wanted, BlockJudgement):
                    return wanted
                if isinstance(wanted, CoinsWanted):
                    answer = await self._coins_wanted(wanted.outpoints, tip, ahead)
                else:
                    assert isinstance(wanted, ScriptsWanted)
                    answer = await self._scripts_wanted(wanted, ahead)
        finally:
            if ahead is not None:
                ahead.cancel()
            try:
                steps.close()
            except ValueError:
                pass  # given up while a thread is at it: it ends by itself, and nobody hears of it

    async def _coins_wanted(self, outpoints: bytes, tip: Tip, ahead: Ahead | None) -> CoinBatch:
        if ahead is None or not ahead.reads:
            return await self.coins(outpoints, tip)
        found, at = await ahead.coins(outpoints)
        missing = np.flatnonzero(at < 0)
        if len(missing) == len(at):
            return await self.coins(outpoints, tip)
        rest = np.frombuffer(outpoints, f"V{OUTPOINT_SIZE}")[missing].tobytes()
        both = CoinBatch.joined([found, await self.coins(rest, tip)])
        at[missing] = len(found) + np.arange(len(missing))
        return CoinBatch(both.rows[at], both.arena)

    async def _scripts_wanted(self, wanted: ScriptsWanted, ahead: Ahead | None) -> Sequence[int]:
        covered = None if ahead is None else await ahead.covers(wanted)
        if ahead is None or covered is None or not covered.any():
            return await self.scripts(wanted.jobs, wanted.flags)
        firsts = np.zeros(len(covered), np.int64)
        if not covered.all():
            firsts[~covered] = await self.scripts(wanted.some(~covered), wanted.flags)
        firsts[covered] = await ahead.firsts(wanted.positions[covered])
        return firsts.tolist()


def _step(steps: Steps, answer: Any) -> CoinsWanted | ScriptsWanted | BlockJudgement:
    """What a check wants next, or its outcome."""
    try:
        return next(steps) if answer is None else steps.send(answer)
    except StopIteration as end:
        return end.value
