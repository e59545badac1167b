"""Verdicts, wherever they are given: at declarations' own actors while they prefetch, else at the template actors. A
judge knows the tip and its context, has a handle on the coins and two pools to ask, and is told of every new tip.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from ray.exceptions import RayError

from actors.ahead import Ahead, Known
from actors.peer import Peer
from actors.pool import WorkerPool, id_of
from actors.reading import Reading
from models.consensus import reasons as r
from models.consensus.block_checks import check_merkle_root as check_root
from models.consensus.block_checks import check_proof
from models.consensus.check import BlockJudgement, Steps, check_block_draft
from models.consensus.coinbase import dummy_coinbase
from models.consensus.context import BlockContext, Tip
from models.consensus.failure import Failure
from models.consensus.params import MAX_FUTURE_BLOCK_TIME, ChainParams, get_params
from models.consensus.verdict import Kind, Verdict
from models.drafts import DraftSlot
from models.dump import Capture
from models.dumpfile import DumpDirectory
from models.errors import Busy, StaleView, TxCollectionError
from models.messages import FlatCoin, FlatTip
from models.storage.tipfile import TipReader
from models.wire.block import BlockHeader
from models.wire.hashes import ZERO_HASH, to_display
from models.wire.merkle import merkle_root
from models.wire.transaction import decode_transaction

__all__ = ["TIP_RETRIES", "Judge", "with_timings"]

TIP_RETRIES = 5
MOST_DUMPS_AT_ONCE = 4  # declarations that are being written down; further ones are counted and left

log = logging.getLogger("txcollection")


class Judge:
    """One in each actor that gives verdicts."""

    def __init__(self, store: str, settings: dict[str, Any]):
        self.settings = settings
        self.tips = TipReader(Path(store))
        self.chainstate = Peer("chainstate", self.report)
        self.reading = Reading(store, settings, WorkerPool("fetch", self.report), WorkerPool("script", self.report))
        self.context: BlockContext | None = None
        self.counts = {"checks": 0, "valid": 0, "invalid": 0, "stale": 0, "dumps": 0, "dumps_skipped": 0}
        self._params: ChainParams | None = None
        self._supervisor: Any = None
        self._warming: asyncio.Task[None] | None = None
        directory = settings["dump_dir"]
        self._dumps = DumpDirectory(Path(directory), settings["dump_files"]) if directory else None
        self._dumping: set[asyncio.Task[None]] = set()
        self._following = asyncio.Lock()

    def report(self, worker: Any, why: str) -> None:
        """Tells the supervisor of an actor that was seen dead."""
        if self._supervisor is not None:
            self._supervisor.lost.remote(id_of(worker), why)

    def wire(self, directory: dict[str, Any]) -> bool:
        """Whom to ask; whether the chainstate is another actor than before."""
        self._supervisor = directory["supervisor"]
        changed = self.chainstate.set(directory["chainstate"])
        if changed:
            self.context = None
        self.reading.chainstate = self.chainstate.handle
        self.reading.fetch.set_members(directory["fetch"])
        self.reading.script.set_members(directory["script"])
        if self.context is None:
            self._warming = asyncio.create_task(self._warm_up())
        return changed

    async def _warm_up(self) -> None:
        """Gets the context and opens the handle on the coins before anybody needs them."""
        try:
            await self.context_of(self.tips.read())
            await self.warm_up()
        except (TxCollectionError, RayError):
            pass  # the first check does it

    async def warm_up(self) -> None:
        """Opens the handle on the coins now."""
        await self.reading.warm_up(self.tips.read())

    def learn(self, context: BlockContext) -> None:
        """The chainstate's word of a new tip. Harmless to repeat."""
        if self.context is None or self.context.tip.version < context.tip.version:
            self.context = context

    async def follow(
        self, before: tuple[int, int], tip: FlatTip, spent: Sequence[bytes], created: Sequence[FlatCoin]
    ) -> None:
        """What it changed in the coins, laid over the handle in a thread: a block's changes are some ten thousand, and
        now and then the handle is opened anew. A check that needs coins meanwhile waits in a thread of its own."""
        async with self._following:
            await asyncio.to_thread(self.reading.follow, before, tip, spent, created)

    async def context_of(self, tip: Tip) -> BlockContext:
        """What is to be known of the next block. Raises StaleView if the tip is another one by now."""
        context = self.context
        if context is None or context.tip.version != tip.version:
            context = await self.chainstate.call("context")
            if context.tip.version != tip.version:
                raise StaleView("the tip has moved")
            self.context = context
        return context

    async def chain_params(self) -> ChainParams:
        """Of the network that the store is of."""
        if self._params is None:
            self._params = get_params(**await self.chainstate.call("params"))
        return self._params

    def now(self, now: int | None) -> int:
        """Unix time: the caller's, else the settings', else the clock's."""
        return now or self.settings["now"] or int(time.time())

    def inline(self, mode: str | None) -> bool:
        """Whether scripts are run transaction by transaction (SPEC 2.1)."""
        return (mode or self.settings["script_mode"]) == "inline"

    async def begin_ahead(self, prevhash: bytes, mode: str | None, known: Known | None = None) -> Ahead | None:
        """For a block whose parse takes long: begins with its coins and scripts meanwhile. None where it does not build
        on the tip, which is found out before any of them is looked at, and where scripts run one after another."""
        tip = self.tips.read()
        if prevhash != tip.hash or self.inline(mode):
            return None
        try:
            return self.reading.begin_block(await self.context_of(tip), known)
        except (TxCollectionError, RayError):
            return None  # the check says what is wrong

    # Declarations -----------------------------------------------------------------------------------------------

    async def check(
        self,
        slot: DraftSlot,
        client: str,
        prevhash: bytes,
        coinbase: bytes | None,
        now: int | None,
        mode: str | None,
        with_path: bool,
        ahead: Ahead | None = None,
    ) -> Verdict:
        """Verdict on a complete declaration (SPEC 1.5, from step 3). Clients have turns by what their checks cost.

        A valid one's template is (header, coinbase, coinbase path, earliest time, latest time, fees). Without
        `with_path` the path is None where it would have to be worked out (Core: a template does when it is asked).

        `ahead` is what `begin_ahead` has begun for it. Raises Busy past the deadline.
        """
        begun = time.perf_counter()
        check = self._check_slot(slot, client, prevhash, coinbase, self.now(now), mode, ahead)
        verdict = await self._counted(check)
        if verdict.template is not None and (with_path or slot.tree is not None):
            header, first, _, *rest = verdict.template
            verdict = replace(verdict, template=(header, first, slot.coinbase_path(), *rest))
        self._trim(slot)
        if verdict.timings is not None:
            verdict.timings["template"] = (time.perf_counter() - begun) * 1000
        return verdict

    async def check_declared(
        self,
        slot: DraftSlot,
        client: str,
        header: bytes,
        coinbase: bytes,
        check_pow: bool,
        check_merkle_root: bool,
        now: int | None = None,
        mode: str | None = None,
    ) -> Verdict | None:
        """The verdict on a block with this header and coinbase whose other transactions are a complete declaration's;
        None: the block's own bytes are needed (a signet solution)."""
        params = await self.chain_params()
        if check_pow and params.signet_challenge is not None:
            return None
        parsed, first = BlockHeader.parse(header), decode_transaction(coinbase)
        draft, witness_root = slot.draft, slot.witness_root

        def before(rows: np.ndarray) -> Failure | None:
            failure = check_proof(parsed, params) if check_pow else None
            if failure is None and check_merkle_root:
                txids = np.ascontiguousarray(rows["txid"]).tolist()
                failure = check_root(parsed, *merkle_root(txids))
            return failure

        def steps(context: BlockContext) -> Steps:
            return check_block_draft(
                draft, parsed, first, context, self.now(now), witness_root, self.inline(mode), before
            )

        verdict = await self.check_on_tip(steps, parsed.prev_hash, client)
        self._trim(slot)
        return verdict

    def _trim(self, slot: DraftSlot) -> None:
        if slot.draft.nbytes > self.settings["collection_budget"]:
            slot.draft.forget_coins()  # too much to be kept for another check; that one reads again

    async def _counted(self, check: Coroutine[Any, Any, Verdict]) -> Verdict:
        """The outcome of a check, within the deadline."""
        self.counts["checks"] += 1
        limit = self.settings["check_deadline_s"]
        try:
            async with asyncio.timeout(limit):
                verdict = await check
        except TimeoutError:
            raise Busy(f"the check took longer than {limit:g} s") from None
        self.counts[{Kind.VALID: "valid", Kind.INVALID: "invalid"}.get(verdict.kind, "stale")] += 1
        return verdict

    async def _check_slot(
        self,
        slot: DraftSlot,
        client: str,
        prevhash: bytes,
        coinbase: bytes | None,
        now: int,
        mode: str | None,
        ahead: Ahead | None,
    ) -> Verdict:
        for _ in range(TIP_RETRIES):
            tip = self.tips.read()
            if prevhash != tip.hash:
                return await self._not_best(prevhash, tip)
            try:
                context = await self.context_of(tip)
                verdict = await self._judge(slot, client, context, coinbase, now, mode, ahead)
            except StaleView:
                ahead = None
                await asyncio.sleep(0.001)
                continue
            if self.tips.read().version == tip.version:
                if verdict.kind is Kind.INVALID and self._dumps is not None:
                    self._dump(slot, context, coinbase, now, mode, verdict)
                return verdict
        return await self._not_best(prevhash, self.tips.read())

    async def _judge(
        self,
        slot: DraftSlot,
        client: str,
        context: BlockContext,
        coinbase: bytes | None,
        now: int,
        mode: str | None,
        ahead: Ahead | None,
    ) -> Verdict:
        begun = time.perf_counter()
        header = self.template_header(context, now)
        raw = dummy_coinbase(context, slot.witness_root) if coinbase is None else coinbase
        if ahead is None and (ahead := self.reading.begin(slot.draft, context)):
            for _ in range(2):
                await asyncio.sleep(0)  # its requests leave before the check takes the event loop
        steps = check_block_draft(
            slot.draft, header, decode_transaction(raw), context, now, slot.witness_root, self.inline(mode)
        )
        judgement = await self.reading.drive(steps, context.tip, client, ahead=ahead)
        if judgement.failure:
            return with_timings(Verdict.of_failure(judgement.failure, judgement.rows), judgement, begun)
        template = (
            header.serialize(),
            raw,
            None,
            context.minimum_time(),
            now + MAX_FUTURE_BLOCK_TIME,
            judgement.fees,
        )
        return with_timings(Verdict(Kind.VALID, template=template), judgement, begun)

    def _dump(
        self,
        slot: DraftSlot,
        context: BlockContext,
        coinbase: bytes | None,
        now: int,
        mode: str | None,
        verdict: Verdict,
    ) -> None:
        """Takes down what the verdict rests on; the file is written while nobody waits for it."""
        if len(self._dumping) >= MOST_DUMPS_AT_ONCE:
            self.counts["dumps_skipped"] += 1
            return
        raw = dummy_coinbase(context, slot.witness_root) if coinbase is None else coinbase
        capture = Capture(slot.draft, raw, context, now, mode or self.settings["script_mode"], verdict)
        task = asyncio.create_task(asyncio.to_thread(self._write_dump, capture))
        self._dumping.add(task)
        task.add_done_callback(self._dumping.discard)

    def _write_dump(self, capture: Capture) -> None:
        assert self._dumps is not None
        try:
            self._dumps.write(capture.dump())
            self.counts["dumps"] += 1
        except Exception as error:  # a full disk, say: the verdict was given, and stands
            self.counts["dumps_skipped"] += 1
            log.warning("a failed declaration could not be written down: %s", error)

    async def _not_best(self, prevhash: bytes, tip: Tip) -> Verdict:
        """Step 3 of SPEC 1.5, with what SPEC 1.1 lets callers of every age know."""
        kind = Kind.STALE if prevhash == tip.hash else Kind(await self.chainstate.call("classify", prevhash))
        debug = f"previous block {to_display(prevhash)} is not the best block {to_display(tip.hash)}"
        return Verdict(kind, r.NOT_BEST_PREVBLK.text, debug, category=r.NOT_BEST_PREVBLK.category.value)

    # Whole blocks -----------------------------------------------------------------------------------------------

    async def check_on_tip(
        self,
        steps: Callable[[BlockContext], Steps],
        prevhash: bytes,
        client: str,
        aside: bool = False,
        ahead: Ahead | None = None,
    ) -> Verdict:
        """Drives the check of a whole block on the tip as it is now; again if the tip moves meanwhile. Raises Busy past
        the deadline."""
        return await self._counted(self._check_on_tip(steps, prevhash, client, aside, ahead))

    async def _check_on_tip(
        self,
        steps: Callable[[BlockContext], Steps],
        prevhash: bytes,
        client: str,
        aside: bool,
        ahead: Ahead | None,
    ) -> Verdict:
        for _ in range(TIP_RETRIES):
            begun = time.perf_counter()
            tip = self.tips.read()
            try:
                context = await self.context_of(tip)
                judgement = await self.reading.drive(steps(context), tip, client, aside, ahead)
            except StaleView:
                ahead = None
                await asyncio.sleep(0.001)
                continue
            if self.tips.read().version == tip.version:
                return await self._verdict_on_block(judgement, prevhash, begun)
        return await self._not_best(prevhash, self.tips.read())

    async def _verdict_on_block(self, judgement: BlockJudgement, prevhash: bytes, begun: float) -> Verdict:
        failure = judgement.failure
        if failure is None:
            return with_timings(Verdict(Kind.VALID), judgement, begun)
        if failure.reason is r.NOT_BEST_PREVBLK:
            kind = Kind(await self.chainstate.call("classify", prevhash))
            return Verdict(kind, failure.reason.text, category=failure.reason.category.value)
        return with_timings(Verdict.of_failure(failure, judgement.rows), judgement, begun)

    def template_header(self, context: BlockContext, now: int) -> BlockHeader:
        """Step 4 of SPEC 1.5; the merkle root stays zero."""
        time_ = context.template_time(now)
        bits = context.required_bits(time_)
        return BlockHeader(context.template_version, context.tip.hash, ZERO_HASH, time_, bits, 0)

    def stats(self) -> dict[str, Any]:
        """Counters."""
        reading = self.reading
        return {
            **self.counts,
            "fallback_reads": reading.reads,
            "fallback_keys": reading.read_keys,
            "local_reads": reading.local_reads,
            "retries": reading.fetch.retries + reading.script.retries,
        }


def with_timings(verdict: Verdict, judgement: BlockJudgement, begun: float) -> Verdict:
    """A verdict with what it took: `check` in milliseconds since `begun` (`time.perf_counter`), and counts."""
    timings = {
        "check": (time.perf_counter() - begun) * 1000,
        "coins_read": judgement.coins_read,
        "scripts_run": judgement.scripts_run,
    }
    return Verdict(
        verdict.kind, verdict.reason, verdict.debug, verdict.offender, verdict.category, verdict.template, timings
    )
