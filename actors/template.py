"""TemplateActor: judges blocks. It keeps what declarations have told it so far, fetches what is missing when a verdict
is asked for, and drops what belongs to an old tip. Whoever holds declarations hears of new tips from it.

One of them serves declarations, all but those that prefetch and have an actor of their own for it (see
`actors.collection`); another takes whole blocks (proposals, submissions, our own templates), so that a parse of four
megabytes never stands in a declaration's way.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Sequence
from typing import Any, ClassVar

import numpy as np
import ray
from ray.exceptions import RayError

from actors.ahead import Ahead
from actors.answers import answers
from actors.judge import Judge, with_timings
from actors.parsing import get_ready_to_parse
from actors.peer import Peer
from actors.pool import id_of
from actors.submission import Submission
from models.assembly import RESERVED_SIGOPS, RESERVED_WEIGHT
from models.consensus.block_checks import check_proof
from models.consensus.check import Steps, check_block_draft
from models.consensus.coinbase import dummy_coinbase
from models.consensus.context import BlockContext, TipVersion
from models.consensus.draft import PROBE_ABSENT, BlockDraft
from models.consensus.layout import BlockLayout
from models.consensus.params import MAX_FUTURE_BLOCK_TIME
from models.consensus.table import TxTable
from models.consensus.verdict import Kind, Verdict
from models.consensus.whole_block import VerifiedScripts, check_whole_block
from models.drafts import DraftSlot, Op, unpack_ops
from models.errors import Busy, StaleView, TxCollectionError
from models.messages import FlatCoin, FlatTip, pack_verdict, unwrap
from models.wire.block import Block, BlockHeader, decode_block
from models.wire.hashes import from_display
from models.wire.merkle import MerkleTree, witness_merkle_root
from models.wire.transaction import Transaction, decode_transaction

__all__ = ["RESEND", "TemplateActor"]

RESEND = "resend"  # answer to a check whose draft is not here as it was sent
ORDER_PATIENCE = 5.0  # seconds for a message that was overtaken
LONG_BLOCK = 100_000  # bytes; working through one takes tens of milliseconds, in which others want answers
REMEMBER_FORGOTTEN = 10_000
ASSEMBLY_TRIES = 20  # a mempool may hold transactions that are not valid any more: each try leaves one out


class TemplateActor:
    """Two by default: the last for whole blocks, all others for declarations, which collection actors share out."""

    RAY_OPTIONS: ClassVar[dict[str, Any]] = {"num_cpus": 0, "max_restarts": 0, "max_concurrency": 1000}

    def __init__(self, store: str, settings: dict[str, Any]):
        get_ready_to_parse()
        self._judge = Judge(store, settings)
        self._mempool = Peer("mempool", self._judge.report)
        self._collections: list[Any] = []
        self._drafts: dict[str, DraftSlot] = {}
        self._forgotten: OrderedDict[str, None] = OrderedDict()  # a message may come after its story has ended
        self._arrived = asyncio.Condition()
        self._submitting = asyncio.Lock()
        self._resends = 0

    async def wire(self, directory: dict[str, Any]) -> None:
        """Whom to ask, and whom to tell of tips."""
        self._judge.wire(directory)
        self._mempool.set(directory["mempool"])
        self._collections = directory["collection"]
        owners = {id_of(collection) for collection in self._collections}
        for story in [story for story in self._drafts if story.partition("/")[0] not in owners]:
            await self.forget(story)  # its actor died

    async def tip_moved(
        self,
        before: tuple[int, int],
        tip: FlatTip,
        context: BlockContext,
        spent: list[bytes],
        created: list[FlatCoin],
    ) -> None:
        """The chainstate's message: what is known of the old tip's coins is dropped here and in every collection."""
        self._judge.learn(context)
        if self._collections:
            changes = [ray.put(part) for part in (context, spent, created)]
            for collection in self._collections:
                collection.tip_moved.remote(before, tip, *changes)
        for slot in self._drafts.values():
            slot.drop_before(context.tip.version)
        await self._judge.follow(before, tip, spent, created)

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
        slot.get_ready(self._judge.context)
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
            self._resends += 1
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
        with_path: bool = True,
    ) -> tuple[Any, ...] | str:
        """Verdict on a complete declaration (SPEC 1.5, from step 3) of which `seq` messages were sent before this one,
        which brings the last facts with it (`pack_ops`); or RESEND. Clients have turns by what their checks cost."""
        slot = await self._slot(key, seq, ops)
        if slot is None:
            return RESEND
        return pack_verdict(await self._judge.check(slot, client, prevhash, coinbase, now, mode, with_path))

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
        judge = self._judge
        params = await judge.chain_params()
        header = BlockHeader.parse(raw)
        asked: list[asyncio.Task[VerifiedScripts | None]] = []  # of groups of transactions, in their order

        def known(transactions: Sequence[Transaction]) -> Awaitable[np.ndarray]:
            asked.append(asyncio.create_task(self._verified_scripts(transactions)))
            return _passed(asked[-1], len(transactions))

        ahead = None
        if len(raw) > LONG_BLOCK and not (check_pow and check_proof(header, params)):
            ahead = await judge.begin_ahead(header.prev_hash, mode, known)
        try:
            block = await _decode(raw, ahead)
            if proposal:
                refusal = await judge.chainstate.call("proposal_preface", block.header.hash)
                if refusal:
                    return pack_verdict(Verdict(Kind.INVALID, refusal))
            if ahead is None:
                verified = await self._verified_scripts(block.transactions[1:])
            else:
                verified = VerifiedScripts.joined([await task for task in asked])

            def steps(context: BlockContext) -> Steps:
                return check_whole_block(
                    block, context, params, judge.now(now), check_pow, check_merkle_root, judge.inline(mode), verified
                )

            aside = len(raw) > LONG_BLOCK
            verdict = await judge.check_on_tip(steps, block.header.prev_hash, client, aside, ahead)
            return pack_verdict(verdict)
        finally:
            if ahead is not None:
                ahead.cancel()

    async def _verified_scripts(self, transactions: Sequence[Transaction]) -> VerifiedScripts | None:
        """What the mempool knows of their scripts, as Core's script cache does; None if it cannot be asked."""
        if not transactions:
            return None
        try:
            flags = (await self._judge.context_of(self._judge.tips.read())).script_flags
            wtxids = b"".join([tx.wtxid for tx in transactions])
            return VerifiedScripts(await self._mempool.call("verified", wtxids, flags), flags)
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
        verdict = await self._judge.check_declared(
            slot, client, header, coinbase, check_pow, check_merkle_root, now, mode
        )
        return None if verdict is None else pack_verdict(verdict)

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
        now = self._judge.now(now)
        refused: list[bytes] = []
        for _ in range(ASSEMBLY_TRIES):
            tip = self._judge.tips.read()
            try:
                context = await self._judge.context_of(tip)
                chosen = await self._mempool.call("choose", reserved_weight, reserved_sigops, refused)
                verdict = await self._assembled(chosen, context, coinbase, now)
            except StaleView:
                await asyncio.sleep(0.001)
                continue
            if self._judge.tips.read().version != tip.version:
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
            new = np.flatnonzero(chosen["new"]) + 1
            draft.probed(new, np.full(len(new), PROBE_ABSENT, np.uint8), TipVersion(*chosen["new_at"].tolist()))
        witness_root = witness_merkle_root(table.wtxids())
        raw = dummy_coinbase(context, witness_root, int(chosen["fees"].sum())) if coinbase is None else coinbase
        header = self._judge.template_header(context, now)
        steps = check_block_draft(draft, header, decode_transaction(raw), context, now, witness_root)
        judgement = await self._judge.reading.drive(steps, context.tip)
        if judgement.failure:
            return with_timings(Verdict.of_failure(judgement.failure, judgement.rows), judgement, begun)
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
        return with_timings(Verdict(Kind.VALID, template=template), judgement, begun)

    @answers
    async def submit_block(self, raw: bytes, now: int | None = None) -> str | None:
        """Full validation and connection (SPEC 2.6): None when it is the tip now, else what submitblock answers."""
        params = await self._judge.chain_params()
        async with self._submitting:
            submission = Submission(self._judge.chainstate, self._judge.reading, params)
            return await submission.submit(raw, self._judge.now(now))

    @answers
    async def submit_as_is(self, raw: bytes, now: int | None = None) -> tuple[str | None, str]:
        """`submit_block` with Core's debug text, and without giving the coinbase a reserved value that it lacks (Core:
        the IPC interface's submitBlock)."""
        params = await self._judge.chain_params()
        async with self._submitting:
            submission = Submission(self._judge.chainstate, self._judge.reading, params, complete=False)
            reason = await submission.submit(raw, self._judge.now(now))
            return reason, submission.debug

    @answers
    async def activate(self, now: int | None = None) -> int:
        """Follows stored blocks to the branch with most work; how many steps that took."""
        params = await self._judge.chain_params()
        async with self._submitting:
            return await Submission(self._judge.chainstate, self._judge.reading, params).activate(self._judge.now(now))

    @answers
    async def disconnect_tip(self) -> FlatTip:
        """Takes the tip back; the new one."""
        async with self._submitting:
            return await self._judge.chainstate.call("disconnect", again=False)

    async def reopen(self) -> None:
        """Lets go of the handle on the coins and its caches; the next check opens it anew."""
        self._judge.reading.forget()

    @answers
    async def warm_up(self) -> None:
        """Opens that handle now."""
        await self._judge.warm_up()

    async def stats(self) -> dict[str, Any]:
        """Counters and sizes."""
        return {
            **self._judge.stats(),
            "resends": self._resends,
            "drafts": len(self._drafts),
            "draft_bytes": sum(slot.draft.nbytes for slot in self._drafts.values()),
        }

    async def ping(self) -> str:
        """Answers as long as the process lives."""
        return "template"


async def _passed(asked: asyncio.Task[VerifiedScripts | None], count: int) -> np.ndarray:
    verified = await asked
    return np.zeros(count, bool) if verified is None else verified.passed


async def _decode(raw: bytes, ahead: Ahead | None) -> Block:
    """Parses a block in a thread; `ahead` is told of its transactions meanwhile."""
    if ahead is None:
        return await asyncio.to_thread(decode_block, raw)
    take = ahead.taker()

    def seen(first: int, transactions: list[Transaction]) -> None:
        if first == 0:
            first, transactions = 1, transactions[1:]  # the coinbase spends nothing
        take(np.arange(first, first + len(transactions)), transactions)

    block = await asyncio.to_thread(decode_block, raw, seen=seen)
    ahead.end()
    return block
