"""Prefetch of one collection: the only place where reads are started before anybody has asked for a verdict.

It takes from a `TxCollection` what to ask for, asks the workers in small batches, a few at a time, gives back what they
answer, and passes it on to the template actor. It never raises at anybody: whatever goes wrong ends speculation, and
the check reads the rest. After every wait it looks again whether it is still wanted.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import ray

from actors.pool import WorkerPool, let_go
from models.collection import PrefetchBatch, TxCollection
from models.consensus.context import BlockContext, Tip, TipVersion
from models.consensus.draft import PROBE_ABSENT, PROBE_PRESENT
from models.drafts import Op
from models.errors import StaleView, TxCollectionError
from models.messages import pack_batch, pack_tip, unpack_batch, unwrap
from models.script.jobs import ScriptJob, pack_jobs

__all__ = ["Prefetch", "PrefetchPeers"]

log = logging.getLogger("txcollection")


FACTS_TOGETHER = 6  # answers passed on in one message: each message costs both sides about as much as a batch


class PrefetchPeers:
    """Whom a prefetch asks, and its settings."""

    def __init__(self, settings: dict[str, Any], fetch: WorkerPool, script: WorkerPool):
        self.settings = settings
        self.fetch = fetch
        self.script = script
        self.chainstate: Any = None
        self.mempool: Any = None


class Prefetch:
    """Runs until it is stopped; `wake` when there is more to ask for, `restart` when the tip has moved."""

    def __init__(
        self,
        collection: TxCollection,
        peers: PrefetchPeers,
        tell: Callable[[list[Op]], None],
        context: Callable[[], Awaitable[BlockContext]],
        mempool_positions: set[int],
    ):
        self._collection = collection
        self._peers = peers
        self._send = tell
        self._facts: list[Op] = []  # not passed on yet
        self._cache_empty_at: TipVersion | None = None
        self._context = context
        self._mempool_positions = mempool_positions
        self._more = asyncio.Event()
        self._restart = self._paused = self._closed = False
        self.idle = asyncio.Event()  # set while nothing is on its way
        self.counts = {"cache_hits": 0, "batches": 0, "from_workers": 0, "probes": 0, "scripts": 0, "stale": 0}
        self._task = asyncio.create_task(self._run())

    def wake(self) -> None:
        """More transactions have arrived."""
        if not self._paused:
            self.idle.clear()
        self._more.set()

    def restart(self) -> None:
        """The tip has moved: begin again on the new one."""
        self._restart = True
        self._paused = False
        self.wake()

    def pause(self) -> None:
        """A verdict was asked for: stop until the tip moves. Not waited for; late answers are still taken in."""
        self._paused = True
        self._collection.stop_speculation("a verdict was asked for")
        self._pass_on()

    def close(self) -> None:
        """The collection is gone."""
        self._closed = True
        self._collection.drop_observations()
        self._more.set()

    @property
    def _stopped(self) -> bool:
        return self._paused or self._restart or self._closed

    async def _run(self) -> None:
        while not self._closed:
            self._restart = False
            try:
                await self._one_tip()
            except StaleView:
                self.counts["stale"] += 1
                self._restart = True
                await asyncio.sleep(0.005)
            except (TxCollectionError, ray.exceptions.RayError) as error:
                self._collection.stop_speculation(f"{type(error).__name__}: {error}")
            except Exception as error:  # a bug of ours ends speculation too; the check does without
                log.exception("prefetch ended")
                self._collection.stop_speculation(f"{type(error).__name__}: {error}")
            if not self._restart and not self._closed:
                self.idle.set()
                await self._more.wait()
                self._more.clear()
        self.idle.set()

    def _tell(self, op: Op) -> None:
        """Facts are passed on a few at a time, and at once when there is nothing more to come."""
        self._facts.append(op)
        if len(self._facts) >= FACTS_TOGETHER or self._paused:
            self._pass_on()

    def _pass_on(self) -> None:
        if self._facts and not self._closed:
            self._send(self._facts)
        self._facts = []

    async def _one_tip(self) -> None:
        context = await self._context()
        tip, flags = context.tip, context.script_flags
        if self._stopped:
            return
        collection = self._collection
        collection.begin_scripts(flags)
        if collection.version != tip.version:
            collection.start(tip.version, context.bip30)
        scripts = [op for op in self._facts if op[0] == "scripts"]  # they outlive the tip
        self._facts = [("tip", tuple(tip.version), flags), *scripts]
        while not self._stopped:
            await self._read(tip)
            await self._scripts(tip, flags)
            if self._stopped or not collection.idle:
                continue
            self._pass_on()
            self.idle.set()
            await self._more.wait()
            self._more.clear()
            self.idle.clear()

    async def _peek(self, tip: Tip) -> None:
        """What the owner's cache holds need not be read. It fills only with the tip, so once empty is empty."""
        if self._cache_empty_at == tip.version:
            return
        for segment, inputs, outpoints in self._collection.peek_plan():
            if self._stopped:
                return
            version = tuple(tip.version)
            found = unwrap(await self._peers.chainstate.peek.remote(b"".join(outpoints), version))
            if found is None or self._stopped:
                if found is None:
                    self._cache_empty_at = tip.version
                return
            at, flat = found
            batch = unpack_batch(flat)
            if not len(batch):
                continue
            if self._collection.take_cached(segment, inputs[at], batch, tip.version):
                self.counts["cache_hits"] += len(batch)
                self._tell(("coins", segment, inputs[at], pack_batch(batch), version))

    async def _read(self, tip: Tip) -> None:
        """Empties the queue, a few requests at a time; all of them are answered when it returns."""
        await self._peek(tip)
        running: set[asyncio.Task[None]] = set()
        try:
            while not self._stopped:
                batch = self._collection.next_batch(self._peers.settings["batch_outpoints"])
                if batch is None:
                    break
                running.add(asyncio.create_task(self._request(batch, tip)))
                if len(running) >= self._peers.settings["batches_in_flight"]:
                    done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                    for task in done:
                        task.result()
            for task in list(running):
                await task
        finally:
            for task in running:
                task.add_done_callback(let_go)

    async def _request(self, batch: PrefetchBatch, tip: Tip) -> None:
        self.counts["batches"] += 1
        try:
            flat = await self._peers.fetch.call(
                "prefetch",
                b"".join(batch.outpoints),
                pack_tip(tip),
                deadline=self._peers.settings["read_deadline_s"],
                wait=False,
            )
        except BaseException:
            self._collection.give_up(batch)
            raise
        answer = unpack_batch(flat)
        version = tip.version
        if not self._collection.take_batch(batch, answer, version):
            return
        if batch.segment >= 0:
            self.counts["from_workers"] += len(answer)
            self._tell(("coins", batch.segment, batch.inputs, flat, tuple(version)))
            return
        self.counts["probes"] += len(answer)
        hits = self._collection.probe_hits
        states = np.array([PROBE_PRESENT if hits[p] else PROBE_ABSENT for p in batch.inputs.tolist()], np.uint8)
        self._tell(("probes", batch.inputs, states, tuple(version)))

    async def _scripts(self, tip: Tip, flags: int) -> None:
        """Verifies scripts whose coins have come in; reads of what is supplied meanwhile go first."""
        settings = self._peers.settings
        if settings["speculate_scripts"] != "on":
            return
        for segment in range(len(self._collection.segments)):
            jobs = self._collection.script_jobs(segment)
            running: set[asyncio.Task[None]] = set()
            for chunk in _chunks(jobs, settings["batch_script_inputs"]):
                if not self._collection.idle:
                    await self._read(tip)
                if self._stopped:
                    break
                running.add(asyncio.create_task(self._verify(chunk, flags)))
                if len(running) >= settings["script_batches_in_flight"]:
                    done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                    for task in done:
                        task.result()
            for task in running:
                await task

    async def _verify(self, chunk: list[tuple[int, ScriptJob]], flags: int) -> None:
        firsts = await self._peers.script.run(
            "speculate",
            flags,
            *pack_jobs([job for _, job in chunk]),
            deadline=self._peers.settings["script_deadline_s"],
            wait=False,
            reserve=1,
        )
        if self._collection.script_flags != flags:
            return
        passed = [position for (position, _), first in zip(chunk, firsts, strict=True) if first < 0]
        if not passed:
            return
        self.counts["scripts"] += len(passed)
        positions = np.array(passed, np.int64)
        self._collection.verified[positions] = True
        self._tell(("scripts", positions, flags))
        own = [self._collection.wtxids[p - 1] for p in passed if p in self._mempool_positions]
        if own:
            self._peers.mempool.passed.remote(own, flags)


def _chunks(jobs: list[tuple[int, ScriptJob]], inputs: int) -> list[list[tuple[int, ScriptJob]]]:
    chunks: list[list[tuple[int, ScriptJob]]] = []
    size = inputs
    for job in jobs:
        if size >= inputs:
            chunks.append([])
            size = 0
        chunks[-1].append(job)
        size += len(job[1][1])
    return chunks
