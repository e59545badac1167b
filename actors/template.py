"""TemplateActor: judges blocks. It keeps what declarations have told it so far, fetches what is missing when a verdict
is asked for, and drops what belongs to an old tip.

One of them serves declarations; another takes whole blocks (proposals, submissions, our own templates), so that a
parse of four megabytes never stands in a declaration's way.
"""

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from ray.exceptions import RayError

from actors.answers import answers
from actors.peer import Peer
from actors.pool import WorkerPool, id_of
from actors.reading import Reading
from actors.submission import Submission
from models.assembly import RESERVED_SIGOPS, RESERVED_WEIGHT
from models.consensus import reasons as r
from models.consensus.block_checks import check_merkle_root as check_root
from models.consensus.block_checks import check_proof
from models.consensus.check import BlockJudgement, Steps, check_block_draft
from models.consensus.coinbase import dummy_coinbase
from models.consensus.context import BlockContext, Tip
from models.consensus.draft import BlockDraft
from models.consensus.failure import Failure
from models.consensus.layout import BlockLayout
from models.consensus.params import MAX_FUTURE_BLOCK_TIME, ChainParams, get_params
from models.consensus.table import TxTable
from models.consensus.verdict import Kind, Verdict
from models.consensus.whole_block import VerifiedScripts, check_whole_block
from models.drafts import DraftSlot, Op, unpack_ops
from models.dump import Capture
from models.dumpfile import DumpDirectory
from models.errors import Busy, StaleView, TxCollectionError
from models.messages import FlatCoin, FlatTip, pack_verdict, unwrap
from models.storage.tipfile import TipReader
from models.wire.block import Block, BlockHeader, decode_block
from models.wire.hashes import ZERO_HASH, from_display, to_display
from models.wire.merkle import MerkleTree, merkle_root, witness_merkle_root
from models.wire.transaction import decode_transaction

__all__ = ["RESEND", "TemplateActor"]

RESEND = "resend"  # answer to a check whose draft is not here as it was sent
ORDER_PATIENCE = 5.0  # seconds for a message that was overtaken
TIP_RETRIES = 5
LONG_BLOCK = 100_000  # bytes; working through one takes tens of milliseconds, in which others want answers
REMEMBER_FORGOTTEN = 10_000
MOST_DUMPS_AT_ONCE = 4  # declarations that are being written down; further ones are counted and left
ASSEMBLY_TRIES = 20  # a mempool may hold transactions that are not valid any more: each try leaves one out

log = logging.getLogger("txcollection")


class TemplateActor:
    """Two by default: the last for whole blocks, all others for declarations, which collection actors share out."""

    RAY_OPTIONS: ClassVar[dict[str, Any]] = {"num_cpus": 0, "max_restarts": 0, "max_concurrency": 1000}

    def __init__(self, store: str, settings: dict[str, Any]):
        self._settings = settings
        self._tips = TipReader(Path(store))
        self._reading = Reading(store, settings, WorkerPool("fetch", self._report), WorkerPool("script", self._report))
        self._supervisor: Any = None
        self._chainstate = Peer("chainstate", self._report)
        self._mempool = Peer("mempool", self._report)
        self._collections: list[Any] = []
        self._context: BlockContext | None = None
        self._warming: asyncio.Task[None] | None = None
        self._params: ChainParams | None = None
        self._drafts: dict[str, DraftSlot] = {}
        self._forgotten: OrderedDict[str, None] = OrderedDict()  # a message may come after its story has ended
        self._arrived = asyncio.Condition()
        self._submitting = asyncio.Lock()
        self._counts = {"checks": 0, "valid": 0, "invalid": 0, "stale": 0, "resends": 0, "fast": 0}
        self._counts |= {"dumps": 0, "dumps_skipped": 0}
        directory = settings["dump_dir"]
        self._dumps = DumpDirectory(Path(directory), settings["dump_files"]) if directory else None
        self._dumping: set[asyncio.Task[None]] = set()

    def _report(self, worker: Any, why: str) -> None:
        if self._supervisor is not None:
            self._supervisor.lost.remote(id_of(worker), why)

    async def wire(self, directory: dict[str, Any]) -> None:
        """Whom to ask, and whom to tell of tips."""
        self._supervisor = directory["supervisor"]
        if self._chainstate.set(directory["chainstate"]):
            self._context = None
        self._mempool.set(directory["mempool"])
        self._reading.chainstate = self._chainstate.handle
        self._collections = directory["collection"]
        owners = {id_of(collection) for collection in self._collections}
        for story in [story for story in self._drafts if story.partition("/")[0] not in owners]:
            await self.forget(story)  # its actor died
        self._reading.fetch.set_members(directory["fetch"])
        self._reading.script.set_members(directory["script"])
        if self._context is None:
            self._warming = asyncio.create_task(self._warm_up())

    async def _warm_up(self) -> None:
        """Gets the context and opens the handle on the coins before anybody needs them."""
        try:
            await self._context_of(self._tips.read())
            await self._reading.warm_up(self._tips.read())
        except (TxCollectionError, RayError):
            pass  # the first check does it

    async def tip_moved(
        self,
        before: tuple[int, int],
        tip: FlatTip,
        context: BlockContext,
        spent: list[bytes],
        created: list[FlatCoin],
    ) -> None:
        """The chainstate's message: what is known of the old tip's coins is dropped here and in every collection."""
        self._reading.follow(before, tip, spent, created)
        if self._context is None or self._context.tip.version < context.tip.version:
            self._context = context
        for collection in self._collections:
            collection.tip_moved.remote(tip)
        for slot in self._drafts.values():
            version = slot.draft.version
            if version is not None and version < context.tip.version:
                slot.draft.forget_coins()

    async def _context_of(self, tip: Tip) -> BlockContext:
        context = self._context
        if context is None or context.tip.version != tip.version:
            context = await self._chainstate.call("context")
            if context.tip.version != tip.version:
                raise StaleView("the tip has moved")
            self._context = context
        return context

    async def _chain_params(self) -> ChainParams:
        if self._params is None:
            self._params = get_params(**await self._chainstate.call("params"))
        return self._params

    def _now(self, now: int | None) -> int:
        return now or self._settings["now"] or int(time.time())

    # Declarations -----------------------------------------------------------------------------------------------

    async def tell(self, key: str, seq: int, ops: list[Op], attachment: Any = None) -> None:
        """Message number `seq` about the declaration `key` (see `models.drafts`)."""
        slot = self._drafts.get(key)
        if slot is None:
            if key in self._forgotten:
                return
            slot = self._drafts[key] = DraftSlot()
        if isinstance(attachment, tuple):
            attachment = unwrap(attachment)
        slot.take(seq, ops, attachment)
        slot.get_ready(self._context)
        async with self._arrived:
            self._arrived.notify_all()

    async def forget(self, key: str) -> None:
        """A collection was closed."""
        self._drafts.pop(key, None)
        self._forgotten[key] = None
        while len(self._forgotten) > REMEMBER_FORGOTTEN:
            self._forgotten.popitem(last=False)

    async def _slot(self, key: str, seq: int, ops: bytes) -> DraftSlot | None:
        """The draft once messages 0 .. seq - 1 are in it, and then `ops`; None if they do not come."""
        slot = await self._whole_slot(key, seq)
        if slot is not None and ops:
            slot.take(seq, unpack_ops(ops))
        return slot

    async def _whole_slot(self, key: str, seq: int) -> DraftSlot | None:
        slot = self._drafts.get(key)
        if slot is not None and slot.applied >= seq:
            return slot

        def there() -> bool:
            found = self._drafts.get(key)
            return found is not None and found.applied >= seq

        try:
            async with self._arrived:
                await asyncio.wait_for(self._arrived.wait_for(there), ORDER_PATIENCE if slot else 0.2)
        except TimeoutError:
            self._counts["resends"] += 1
            return None
        return self._drafts.get(key)

    @answers
    async def check(
        self,
        key: str,
        client: str,
        seq: int,
        ops: bytes,
        prevhash: bytes,
        coinbase: bytes | None,
        now: int | None = None,
        mode: str | None = None,
    ) -> tuple[Any, ...] | str:
        """Verdict on a complete declaration (SPEC 1.5, from step 3) of which `seq` messages were sent before this one,
        which brings the last facts with it (`pack_ops`); or RESEND. Clients have turns by what their checks cost."""
        begun = time.perf_counter()
        slot = await self._slot(key, seq, ops)
        if slot is None:
            return RESEND
        self._counts["checks"] += 1
        verdict = await self._deadline(self._check_slot(slot, client, prevhash, coinbase, self._now(now), mode))
        if slot.draft.nbytes > self._settings["collection_budget"]:
            slot.draft.forget_coins()  # too much to be kept for another check; that one reads again
        self._count(verdict)
        if verdict.timings is not None:
            verdict.timings["template"] = (time.perf_counter() - begun) * 1000
        return pack_verdict(verdict)

    async def _deadline(self, check: Any) -> Verdict:
        limit = self._settings["check_deadline_s"]
        try:
            async with asyncio.timeout(limit):
                return await check
        except TimeoutError:
            raise Busy(f"the check took longer than {limit:g} s") from None

    def _count(self, verdict: Verdict) -> None:
        name = {Kind.VALID: "valid", Kind.INVALID: "invalid"}.get(verdict.kind, "stale")
        self._counts[name] += 1

    async def _check_slot(
        self, slot: DraftSlot, client: str, prevhash: bytes, coinbase: bytes | None, now: int, mode: str | None
    ) -> Verdict:
        for _ in range(TIP_RETRIES):
            tip = self._tips.read()
            if prevhash != tip.hash:
                return await self._not_best(prevhash, tip)
            try:
                context = await self._context_of(tip)
                verdict = await self._judge(slot, client, context, coinbase, now, mode)
            except StaleView:
                await asyncio.sleep(0.001)
                continue
            if self._tips.read().version == tip.version:
                if verdict.kind is Kind.INVALID and self._dumps is not None:
                    self._dump(slot, context, coinbase, now, mode, verdict)
                return verdict
        return await self._not_best(prevhash, self._tips.read())

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
            self._counts["dumps_skipped"] += 1
            return
        raw = dummy_coinbase(context, slot.witness_root) if coinbase is None else coinbase
        capture = Capture(slot.draft, raw, context, now, mode or self._settings["script_mode"], verdict)
        task = asyncio.create_task(asyncio.to_thread(self._write_dump, capture))
        self._dumping.add(task)
        task.add_done_callback(self._dumping.discard)

    def _write_dump(self, capture: Capture) -> None:
        assert self._dumps is not None
        try:
            self._dumps.write(capture.dump())
            self._counts["dumps"] += 1
        except Exception as error:  # a full disk, say: the verdict was given, and stands
            self._counts["dumps_skipped"] += 1
            log.warning("a failed declaration could not be written down: %s", error)

    async def _not_best(self, prevhash: bytes, tip: Tip) -> Verdict:
        """Step 3 of SPEC 1.5, with what SPEC 1.1 lets callers of every age know."""
        kind = Kind.STALE if prevhash == tip.hash else Kind(await self._chainstate.call("classify", prevhash))
        debug = f"previous block {to_display(prevhash)} is not the best block {to_display(tip.hash)}"
        return Verdict(kind, r.NOT_BEST_PREVBLK.text, debug, category=r.NOT_BEST_PREVBLK.category.value)

    async def _judge(
        self, slot: DraftSlot, client: str, context: BlockContext, coinbase: bytes | None, now: int, mode: str | None
    ) -> Verdict:
        begun = time.perf_counter()
        header = self._template_header(context, now)
        raw = dummy_coinbase(context, slot.witness_root) if coinbase is None else coinbase
        inline = (mode or self._settings["script_mode"]) == "inline"
        ahead = self._reading.begin(slot.draft, context)
        steps = check_block_draft(slot.draft, header, decode_transaction(raw), context, now, slot.witness_root, inline)
        judgement = await self._reading.drive(steps, context.tip, client, ahead=ahead)
        if judgement.failure:
            return _with_timings(Verdict.of_failure(judgement.failure, judgement.rows), judgement, begun)
        template = (
            header.serialize(),
            raw,
            slot.coinbase_path(),
            context.minimum_time(),
            now + MAX_FUTURE_BLOCK_TIME,
            judgement.fees,
        )
        return _with_timings(Verdict(Kind.VALID, template=template), judgement, begun)

    # Whole blocks -----------------------------------------------------------------------------------------------

    @answers
    async def check_block(
        self,
        raw: bytes,
        check_pow: bool,
        check_merkle_root: bool,
        proposal: bool = False,
        now: int | None = None,
        mode: str | None = None,
        client: str = "",
    ) -> tuple[Any, ...]:
        """Verdict on a whole block (Core: `TestBlockValidity`); a `proposal` is first looked for in the index.

        Raises DecodeError for bytes that are no block.
        """
        block = await asyncio.to_thread(decode_block, raw)
        self._counts["checks"] += 1
        if proposal:
            known = await self._chainstate.call("proposal_preface", block.header.hash)
            if known:
                return pack_verdict(Verdict(Kind.INVALID, known))
        params = await self._chain_params()
        inline = (mode or self._settings["script_mode"]) == "inline"

        verified = await self._verified_scripts(block)

        def steps(context: BlockContext) -> Steps:
            return check_whole_block(
                block, context, params, self._now(now), check_pow, check_merkle_root, inline, verified
            )

        aside = len(raw) > LONG_BLOCK
        verdict = await self._deadline(self._check_on_tip(steps, block.header.prev_hash, client, aside))
        self._count(verdict)
        return pack_verdict(verdict)

    async def _verified_scripts(self, block: Block) -> VerifiedScripts | None:
        """What the mempool knows of the block's scripts, as Core's script cache does; None if it cannot be asked."""
        wtxids = [tx.wtxid for tx in block.transactions[1:]]
        if not wtxids:
            return None
        try:
            flags = (await self._context_of(self._tips.read())).script_flags
            return VerifiedScripts(await self._mempool.call("verified", b"".join(wtxids), flags), flags)
        except (TxCollectionError, RayError):
            return None

    @answers
    async def check_declared(
        self,
        key: str,
        client: str,
        seq: int,
        ops: bytes,
        header: bytes,
        coinbase: bytes,
        check_pow: bool,
        check_merkle_root: bool,
        now: int | None = None,
        mode: str | None = None,
    ) -> tuple[Any, ...] | str | None:
        """`check_block` on a block with this header and coinbase whose other transactions are a complete declaration's,
        of which `seq` messages were sent before this one; or RESEND. None: the block's own bytes are needed (a signet
        solution)."""
        slot = await self._slot(key, seq, ops)
        if slot is None:
            return RESEND
        params = await self._chain_params()
        if check_pow and params.signet_challenge is not None:
            return None
        self._counts["checks"] += 1
        parsed, first = BlockHeader.parse(header), decode_transaction(coinbase)
        inline = (mode or self._settings["script_mode"]) == "inline"
        draft, witness_root = slot.draft, slot.witness_root

        def before(rows: np.ndarray) -> Failure | None:
            failure = check_proof(parsed, params) if check_pow else None
            if failure is None and check_merkle_root:
                txids = np.ascontiguousarray(rows["txid"]).tolist()
                failure = check_root(parsed, *merkle_root(txids))
            return failure

        def steps(context: BlockContext) -> Steps:
            return check_block_draft(draft, parsed, first, context, self._now(now), witness_root, inline, before)

        verdict = await self._deadline(self._check_on_tip(steps, parsed.prev_hash, client))
        if draft.nbytes > self._settings["collection_budget"]:
            draft.forget_coins()
        self._count(verdict)
        return pack_verdict(verdict)

    async def _check_on_tip(
        self, steps: Callable[[BlockContext], Steps], prevhash: bytes, client: str, aside: bool = False
    ) -> Verdict:
        """Drives the check of a whole block on the tip as it is now; again if the tip moves meanwhile."""
        for _ in range(TIP_RETRIES):
            begun = time.perf_counter()
            tip = self._tips.read()
            try:
                context = await self._context_of(tip)
                judgement = await self._reading.drive(steps(context), tip, client, aside)
            except StaleView:
                await asyncio.sleep(0.001)
                continue
            if self._tips.read().version == tip.version:
                return await self._verdict_on_block(judgement, prevhash, tip, begun)
        return await self._not_best(prevhash, self._tips.read())

    async def _verdict_on_block(self, judgement: BlockJudgement, prevhash: bytes, tip: Tip, begun: float) -> Verdict:
        failure = judgement.failure
        if failure is None:
            return _with_timings(Verdict(Kind.VALID), judgement, begun)
        if failure.reason is r.NOT_BEST_PREVBLK:
            kind = Kind(await self._chainstate.call("classify", prevhash))
            return Verdict(kind, failure.reason.text, category=failure.reason.category.value)
        return _with_timings(Verdict.of_failure(failure, judgement.rows), judgement, begun)

    @answers
    async def assemble(
        self,
        coinbase: bytes | None,
        now: int | None = None,
        reserved_weight: int = RESERVED_WEIGHT,
        reserved_sigops: int = RESERVED_SIGOPS,
    ) -> tuple[Any, ...]:
        """A block of our own from the mempool, checked like any other (Core: `CreateNewBlock`): a packed verdict whose
        template is (header, coinbase, coinbase path, earliest time, latest time, fees, raw transactions, fee and sigop
        cost of each)."""
        now = self._now(now)
        refused: list[bytes] = []
        for _ in range(ASSEMBLY_TRIES):
            tip = self._tips.read()
            try:
                context = await self._context_of(tip)
                chosen = await self._mempool.call("choose", reserved_weight, reserved_sigops, refused)
                verdict = await self._assembled(chosen, context, coinbase, now)
            except StaleView:
                await asyncio.sleep(0.001)
                continue
            if self._tips.read().version != tip.version:
                continue
            if verdict.ok or verdict.offender is None or verdict.offender.position == 0:
                return pack_verdict(verdict)
            refused.append(from_display(verdict.offender.txid))
        raise Busy("the mempool or the tip changed faster than a template could be made; ask again")

    async def _assembled(
        self,
        chosen: dict[str, Any],
        context: BlockContext,
        coinbase: bytes | None,
        now: int,
    ) -> Verdict:
        begun = time.perf_counter()
        table = TxTable.from_columns(chosen)
        draft = BlockDraft(len(table))
        if len(table):
            layout = BlockLayout()
            layout.add(np.arange(1, len(table) + 1), table)
            draft.add(layout.segments[0])
            draft.begin(context.tip.version, context.script_flags)
            draft.scripts_good(np.flatnonzero(chosen["verified"]) + 1, chosen["flags"])
        witness_root = witness_merkle_root(table.wtxids())
        raw = dummy_coinbase(context, witness_root, int(chosen["fees"].sum())) if coinbase is None else coinbase
        header = self._template_header(context, now)
        steps = check_block_draft(draft, header, decode_transaction(raw), context, now, witness_root)
        judgement = await self._reading.drive(steps, context.tip)
        if judgement.failure:
            return _with_timings(Verdict.of_failure(judgement.failure, judgement.rows), judgement, begun)
        path = MerkleTree([None, *table.txids()]).path_of_first()
        template = (
            header.serialize(),
            raw,
            path,
            context.minimum_time(),
            now + MAX_FUTURE_BLOCK_TIME,
            judgement.fees,
            table.raws.tobytes(),
            table.rows["total_size"].tolist(),
            chosen["fees"].tolist(),
            chosen["sigops"].tolist(),
        )
        return _with_timings(Verdict(Kind.VALID, template=template), judgement, begun)

    def _template_header(self, context: BlockContext, now: int) -> BlockHeader:
        """Step 4 of SPEC 1.5; the merkle root stays zero."""
        time_ = context.template_time(now)
        bits = context.required_bits(time_)
        return BlockHeader(context.template_version, context.tip.hash, ZERO_HASH, time_, bits, 0)

    @answers
    async def submit_block(self, raw: bytes, now: int | None = None) -> str | None:
        """Full validation and connection (SPEC 2.6): None when it is the tip now, else what submitblock answers."""
        params = await self._chain_params()
        async with self._submitting:
            return await Submission(self._chainstate, self._reading, params).submit(raw, self._now(now))

    @answers
    async def submit_as_is(self, raw: bytes, now: int | None = None) -> tuple[str | None, str]:
        """`submit_block` with Core's debug text, and without giving the coinbase a reserved value that it lacks (Core:
        the IPC interface's submitBlock)."""
        params = await self._chain_params()
        async with self._submitting:
            submission = Submission(self._chainstate, self._reading, params, complete=False)
            reason = await submission.submit(raw, self._now(now))
            return reason, submission.debug

    @answers
    async def activate(self, now: int | None = None) -> int:
        """Follows stored blocks to the branch with most work; how many steps that took."""
        params = await self._chain_params()
        async with self._submitting:
            return await Submission(self._chainstate, self._reading, params).activate(self._now(now))

    @answers
    async def disconnect_tip(self) -> FlatTip:
        """Takes the tip back; the new one."""
        async with self._submitting:
            return await self._chainstate.call("disconnect", again=False)

    async def reopen(self) -> None:
        """Lets go of the handle on the coins and its caches; the next check opens it anew."""
        self._reading.forget()

    @answers
    async def warm_up(self) -> None:
        """Opens that handle now."""
        await self._reading.warm_up(self._tips.read())

    async def stats(self) -> dict[str, Any]:
        """Counters and sizes."""
        return {
            **self._counts,
            "drafts": len(self._drafts),
            "draft_bytes": sum(slot.draft.nbytes for slot in self._drafts.values()),
            "fallback_reads": self._reading.reads,
            "fallback_keys": self._reading.read_keys,
            "local_reads": self._reading.local_reads,
            "retries": self._reading.fetch.retries + self._reading.script.retries,
        }

    async def ping(self) -> str:
        """Answers as long as the process lives."""
        return "template"


def _with_timings(verdict: Verdict, judgement: BlockJudgement, begun: float) -> Verdict:
    timings = {
        "check": (time.perf_counter() - begun) * 1000,
        "coins_read": judgement.coins_read,
        "scripts_run": judgement.scripts_run,
    }
    return Verdict(
        verdict.kind, verdict.reason, verdict.debug, verdict.offender, verdict.category, verdict.template, timings
    )
