"""Keeps the way to a declaration's actor warm while its client is away: a process that has slept for a tenth of a
second answers milliseconds later than one that was spoken to just now, and the client's return is when those count.
"""

import asyncio
from typing import Any

import ray

__all__ = ["Awake"]

QUIET_AFTER = 2.0  # seconds without a client's call after which nobody is kept awake any more


class Awake:
    """Speaks to the actors of declarations that were used lately, every `pause` seconds; never if that is zero."""

    def __init__(self, pause: float):
        self._pause = pause
        self._used: dict[Any, float] = {}  # actor -> loop time of the last call
        self._speaking: asyncio.Task[None] | None = None

    def touch(self, actor: Any) -> None:
        """A client has used a declaration of this actor."""
        if not self._pause:
            return
        self._used[actor] = asyncio.get_running_loop().time()
        if self._speaking is None or self._speaking.done():
            self._speaking = asyncio.create_task(self._speak())

    async def _speak(self) -> None:
        loop = asyncio.get_running_loop()
        while self._used:
            await asyncio.sleep(self._pause)
            for actor, used in list(self._used.items()):
                if loop.time() - used > QUIET_AFTER or not await _answers(actor):
                    self._used.pop(actor, None)


async def _answers(actor: Any) -> bool:
    try:
        await actor.ping.remote()
    except ray.exceptions.RayError:
        return False
    return True
