"""How a check gets what it asks for: coins from the workers at one tip, scripts from the workers of all cores."""

import asyncio
from collections.abc import Sequence
from typing import Any

from actors.pool import WorkerPool
from models.coins.columns import CoinBatch
from models.consensus.check import BlockJudgement, CoinsWanted, ScriptJob, ScriptsWanted, Steps
from models.consensus.context import Tip
from models.messages import pack_tip, unpack_batch, unwrap

__all__ = ["Reading"]

VALIDATION_CHUNK = 192  # inputs of one script request; about 6 ms of one core


class Reading:
    """The two pools, the chainstate's owner, and the settings that choose between them."""

    def __init__(self, settings: dict[str, Any], fetch: WorkerPool, script: WorkerPool):
        self.settings = settings
        self.fetch = fetch
        self.script = script
        self.chainstate: Any = None
        self.reads = 0
        self.read_keys = 0

    async def coins(self, outpoints: Sequence[bytes], tip: Tip) -> CoinBatch:
        """Observations at `tip`, in order; raises StaleView, CoinsReadError or WorkerLost."""
        self.reads += 1
        self.read_keys += len(outpoints)
        blob = b"".join(outpoints)
        if self.settings["validation_fetch"] == "serial":
            fill = self.settings["read_through_cache"] == "on"
            return unpack_batch(unwrap(await self.chainstate.read_serial.remote(blob, pack_tip(tip), fill)))
        flat = await self.fetch.call("read", blob, pack_tip(tip), deadline=self.settings["read_deadline_s"])
        return unpack_batch(flat)

    async def scripts(self, jobs: Sequence[ScriptJob], flags: int) -> list[int]:
        """First failing input of each job, or -1; spread over all workers. Raises Busy past the deadline."""
        chunks: list[list[ScriptJob]] = [[]]
        size = 0
        for job in jobs:
            if size >= VALIDATION_CHUNK:
                chunks.append([])
                size = 0
            chunks[-1].append(job)
            size += len(job[1])
        limit = asyncio.Semaphore(2 * max(len(self.script), 1))

        async def run(chunk: list[ScriptJob]) -> list[int]:
            async with limit:
                deadline = self.settings["script_deadline_s"]
                return await self.script.call("verify", chunk, flags, deadline=deadline, kill_late=True)

        answers = await asyncio.gather(*(run(chunk) for chunk in chunks))
        return [first for answer in answers for first in answer]

    async def drive(self, steps: Steps, tip: Tip) -> BlockJudgement:
        """Runs a check to its end (see `models.consensus.check`)."""
        answer: Any = None
        try:
            while True:
                wanted = next(steps) if answer is None else steps.send(answer)
                if isinstance(wanted, CoinsWanted):
                    answer = await self.coins(wanted.outpoints, tip)
                else:
                    assert isinstance(wanted, ScriptsWanted)
                    answer = await self.scripts(wanted.jobs, wanted.flags)
        except StopIteration as end:
            return end.value
        finally:
            steps.close()
