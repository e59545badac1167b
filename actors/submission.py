"""Submitting a block (SPEC 2.6): judged here, stored and connected by the chainstate's owner, one step at a time.

Every step can be asked for twice: a change of the tip names the version that it starts from. So where the owner dies
under one, its replacement is asked the same, and answers that the tip has moved if the step was done.
"""

import asyncio

from actors.peer import Peer
from actors.reading import Reading
from models.consensus import reasons as r
from models.consensus.context import BlockContext
from models.consensus.failure import Failure
from models.consensus.params import ChainParams
from models.consensus.reasons import Category
from models.consensus.whole_block import (
    check_before_context,
    check_in_context_of_parent,
    check_whole_block,
    with_reserved_value,
)
from models.errors import StaleView
from models.wire.block import decode_block
from models.wire.hashes import to_display

__all__ = ["Submission"]


class Submission:
    """One submission at a time: whoever makes it holds the lock of all of them."""

    def __init__(self, chainstate: Peer, reading: Reading, params: ChainParams, complete: bool = True):
        """`complete`: a coinbase without its witness reserved value is given it, as Core's RPC does."""
        self.debug = ""  # Core's text beside the reason of the last answer
        self._chainstate = chainstate
        self._reading = reading
        self._params = params
        self._complete = complete
        self._outcome: dict[bytes, Failure] = {}  # blocks found invalid on the way

    async def submit(self, raw: bytes, now: int) -> str | None:
        """Core's answer to `submitblock`: None for a new tip, or the reason. Raises DecodeError."""
        block = await asyncio.to_thread(decode_block, raw)
        header = block.header
        refusal, stored, context = await self._chainstate.call("look_up", header.serialize())
        if context is not None and self._complete:
            block = with_reserved_value(block, context)
        failure, rows = await asyncio.to_thread(check_before_context, block, self._params)
        if failure:
            return self._refused(failure)
        if refusal:
            if refusal == r.DUPLICATE_INVALID.text:
                self.debug = f"block {to_display(header.hash)} was previously marked invalid"
            return refusal
        if stored:
            await self.activate(now)  # harmless: it was seen before, or the tip was taken back by hand
            return r.DUPLICATE.text
        assert context is not None
        bad_header, bad_body = check_in_context_of_parent(block, rows, context, now)
        if bad_header:
            return self._refused(bad_header)
        if bad_body:
            if bad_body.reason.category is not Category.MUTATED:
                await self._chainstate.call("mark_failed", header.serialize())
            return self._refused(bad_body)
        await self._chainstate.call("store_block", block.raw)
        await self.activate(now)
        if header.hash in self._outcome:
            return self._refused(self._outcome[header.hash])
        info = await self._chainstate.call("block_info", header.hash)
        return None if info and info["active"] else r.INCONCLUSIVE.text

    def _refused(self, failure: Failure) -> str:
        self.debug = failure.debug
        return failure.reason.text

    async def activate(self, now: int) -> int:
        """Steps towards the branch with most work until it is the active one, judging each block on the way."""
        steps = 0
        while True:
            step = await self._chainstate.call("next_step")
            if step is None:
                return steps
            steps += 1
            connect, block_hash, raw, context = step
            try:
                if not connect:
                    await self._chainstate.call("disconnect", tuple(context.tip.version))
                    continue
                await self._judge_and_connect(block_hash, raw, context, now)
            except StaleView:
                continue  # somebody else moved the tip; look again

    async def _judge_and_connect(self, block_hash: bytes, raw: bytes, context: BlockContext, now: int) -> None:
        block = await asyncio.to_thread(decode_block, raw)
        steps = check_whole_block(block, context, self._params, max(now, block.header.time), check_pow=True)
        judgement = await self._reading.drive(steps, context.tip)
        if judgement.failure is None:
            await self._chainstate.call("connect", block_hash, tuple(context.tip.version))
            return
        self._outcome[block_hash] = judgement.failure
        await self._chainstate.call("mark_failed", block.header.serialize())
