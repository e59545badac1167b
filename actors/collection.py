"""CollectionActor: holds declarations, prefetches one of them at a time, and answers for them.

A slot for prefetch is an actor: at most eight run, so at most eight collections prefetch, and one that dies frees its
slot. Its verdict is given right here, where everything is known already: another process would be a message further
away. Further collections live here too; they work without prefetch, and a template actor gives their verdicts, so that
a long check of one of them does not stand in the first one's way.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import numpy as np
import ray

from actors.ahead import Ahead
from actors.answers import answers
from actors.clients import Clients
from actors.judge import TIP_RETRIES, Judge
from actors.parsing import get_ready_to_parse
from actors.peer import Peer
from actors.pool import let_go
from actors.prefetch import Prefetch, PrefetchPeers
from actors.share import FairShare
from actors.template import RESEND
from models.collection import TxCollection
from models.consensus.context import BlockContext, TipVersion
from models.consensus.draft import PROBE_ABSENT
from models.consensus.layout import Rewire
from models.consensus.table import TxTable
from models.consensus.verdict import Kind, Verdict
from models.declared_block import match_block
from models.drafts import DraftSlot, Op, pack_ops
from models.errors import ClientError, CollectionLost, StaleView, WorkerLost
from models.messages import FlatCoin, FlatTip, in_pieces, pack_batch, pack_verdict, unwrap
from models.wire.block import BlockHeader, serialize_block
from models.wire.hashes import split_hashes
from models.wire.merkle import MerkleTree, path_root
from models.wire.transaction import decode_transaction

__all__ = ["CollectionActor"]

KEEP_TEMPLATES = 16  # per collection; older ones cannot be solved any more
QUIET_AFTER = 2.0  # seconds without a client's call after which peers are not kept awake any more
DECLARED_ID = 400  # bytes of a declared transaction here and in the template actor, before anything is known of it
COPIES = 3  # of a known transaction: one here, one in the template actor, and what parsing leaves to the allocator
LONG_SUPPLY = 100_000  # bytes; more are parsed in a thread, one client's at a time, so that others' calls go on
LOOKED_UP = 0.005  # seconds in which the mempool has said that it knows few of a block's transactions
READY_AFTER = 0.001  # seconds; facts come in groups, and an answer to the client goes first


@dataclass
class _Entry:
    """One declaration and what of it the template actor has been told."""

    key: str
    client: str
    collection: TxCollection
    mempool_positions: set[int]
    story: str  # the name under which the template actor knows it
    draft: DraftSlot | None = None  # what else the template actor keeps, where the verdict is given here
    prefetch: Prefetch | None = None
    template: Any = None  # the actor that was told
    seq: int = 0  # messages that were sent, or taken in here
    readying: bool = False
    templates: dict[int, tuple[bytes, bytes]] = field(default_factory=dict)  # number -> (header, coinbase)
    made: int = 0
    used: float = field(default_factory=time.monotonic)
    room: int = 0  # bytes that it counts for, here and in the template actor
    supplied_bytes: int = 0
    verdicts: int = 0


class CollectionActor:
    """One per prefetching collection, one kept warm."""

    RAY_OPTIONS: ClassVar[dict[str, Any]] = {"num_cpus": 0, "max_restarts": 0, "max_concurrency": 1000}

    def __init__(self, store: str, settings: dict[str, Any]):
        self._settings = settings
        self._judge = Judge(store, settings)
        self._peers = PrefetchPeers(settings, self._judge.reading.fetch, self._judge.reading.script)
        self._entries: dict[str, _Entry] = {}
        self._clients = Clients(settings)
        self._parsing = FairShare()
        self._slot: str | None = None  # key of the collection that prefetches
        self._mempool = Peer("mempool", self._judge.report)
        self._template = Peer("template", self._judge.report)
        self._wired = asyncio.Event()
        self._last_call = 0.0
        self._beating: asyncio.Task[None] | None = None
        self._sweeping: asyncio.Task[None] | None = None
        self._prefetched: Counter[str] = Counter()  # by collections that are closed
        self._counts = {"opened": 0, "closed": 0, "verdicts": 0, "errors": 0}
        get_ready_to_parse()
        self._id: str = ray.get_runtime_context().get_actor_id() or "0"  # every story begins with it

    async def wire(self, directory: dict[str, Any]) -> None:
        """Whom to ask."""
        first = self._judge.chainstate.handle is None
        if self._judge.wire(directory) and not first:
            self._begin_again()
        self._mempool.set(directory["mempool"])
        self._peers.chainstate, self._peers.mempool = self._judge.chainstate.handle, self._mempool.handle
        judges = directory["template"][:-1] or directory["template"]  # the last one takes whole blocks
        self._template.set(judges[int(self._id[:8], 16) % len(judges)] if judges else None)
        self._wired.set()
        if self._sweeping is None:
            self._sweeping = asyncio.create_task(self._sweep())

    async def tip_moved(
        self,
        before: tuple[int, int],
        tip: FlatTip,
        context: BlockContext,
        spent: list[bytes],
        created: list[FlatCoin],
    ) -> None:
        """A template actor's message: what was observed of the old tip is dropped; the declaration that prefetches
        begins again."""
        self._judge.learn(context)
        for entry in self._entries.values():
            version = entry.collection.version
            if entry.prefetch is not None and (version is None or version < context.tip.version):
                entry.collection.drop_observations()
                entry.prefetch.restart()
            if entry.draft is not None:
                entry.draft.drop_before(context.tip.version)
        await self._judge.follow(before, tip, spent, created)

    def _begin_again(self) -> None:
        """The owner of the coins was replaced: what prefetches begins again on the versions of the new one."""
        for entry in self._entries.values():
            if entry.prefetch is not None:
                entry.collection.drop_observations()
                entry.prefetch.restart()

    async def _context(self) -> BlockContext:
        """What is to be known of the next block. Raises StaleView if the tip keeps moving."""
        for _ in range(TIP_RETRIES):
            try:
                return await self._judge.context_of(self._judge.tips.read())
            except StaleView:
                await asyncio.sleep(0.001)
        raise StaleView("the tip moves faster than it can be looked at; ask again")

    # Declarations -----------------------------------------------------------------------------------------------

    @answers
    async def open(self, key: str, client: str, must_prefetch: bool, *pieces: bytes) -> list[int] | None:
        """Makes a collection of joined 32-byte wtxids (checked by `parse_wtxids`); its unknown positions.

        None, and nothing made, if `must_prefetch` and another collection prefetches here.
        """
        self._touch()
        await self._wired.wait()
        wants_slot = self._settings["prefetch"] == "on"
        if wants_slot and must_prefetch and self._slot is not None:
            return None
        wtxids = b"".join(pieces)
        with self._clients.calling(client):
            room = len(wtxids) // 32 * DECLARED_ID
            self._clients.open(client, room)
            takes_slot = wants_slot and self._slot is None
            if takes_slot:
                self._slot = key
            entry = looking = None
            try:
                context = await self._context()
                looking = self._look_up(wtxids, context.script_flags)
                await asyncio.sleep(0)  # the mempool looks while the list is taken in, here and where it is judged
                collection = TxCollection(split_hashes(wtxids), self._settings["collection_budget"])
                entry = _Entry(key, client, collection, set(), f"{self._id}/{key}", room=room)
                entry.draft = DraftSlot() if takes_slot else None
                return await self._make(entry, wtxids, context, looking)
            except BaseException:
                if looking is not None:
                    looking.cancel()
                if self._slot == key:
                    self._slot = None
                self._entries.pop(key, None)
                self._clients.close(client, entry.room if entry else room, 0)
                if entry is not None:
                    self._forget_story(entry)
                raise

    def _look_up(self, wtxids: bytes, flags: int) -> "asyncio.Task[tuple[Any, Any]] | None":
        """Asks the mempool which of them it has."""
        if not wtxids:
            return None
        asking = asyncio.ensure_future(self._mempool.call_kept("lookup", flags, *in_pieces(wtxids)))
        asking.add_done_callback(let_go)
        return asking

    async def _make(
        self,
        entry: _Entry,
        wtxids: bytes,
        context: BlockContext,
        looking: "asyncio.Task[tuple[Any, Any]] | None",
    ) -> list[int]:
        collection, key, flags = entry.collection, entry.key, context.script_flags
        self._tell(entry, [("open", wtxids)])
        if looking is not None and entry.draft is not None:
            done, _ = await asyncio.wait({looking}, timeout=LOOKED_UP)
            if not done:  # the mempool has many of them: time for what `get_ready` would do once the client is away
                _ = entry.draft.witness_root
        reference, known = (None, None) if looking is None else await looking
        if known is not None:
            positions = known["positions"]
            table = TxTable.from_columns(known)
            self._clients.take(COPIES * table.nbytes)
            entry.room += COPIES * table.nbytes
            collection.take_known(positions, table)
            collection.begin_scripts(flags)
            verified = positions[known["verified"]] + 1
            collection.verified[verified] = True
            entry.mempool_positions = set((positions + 1).tolist())
            columns = None if entry.draft is None else table  # the template actor gets the mempool's answer itself
            add: Op = ("add", positions + 1, columns, collection.segments[0].source, [])
            ops: list[Op] = [add]
            new, version = positions[known["new"]] + 1, TipVersion(*known["new_at"].tolist())
            if len(new) and version == context.tip.version:
                collection.take_new_outputs(new, version)
                states = np.full(len(new), PROBE_ABSENT, np.uint8)
                ops += [("tip", tuple(version), flags), ("probes", new, states, tuple(version))]
            self._tell(entry, [*ops, ("scripts", verified, flags)], reference)
        self._entries[key] = entry
        self._soon_ready(entry)  # also where nothing is known, and nothing was told
        self._counts["opened"] += 1
        if entry.draft is not None:
            if collection.complete:
                self._slot = None  # nothing will be on its way for it
            else:
                self._start_prefetch(entry)
        self._beat()
        return collection.unknown_tx_pos()

    def _start_prefetch(self, entry: _Entry) -> None:
        entry.prefetch = Prefetch(
            entry.collection,
            self._peers,
            lambda ops: self._tell(entry, ops),
            self._context,
            entry.mempool_positions,
        )

    def _tell(self, entry: _Entry, ops: list[Op], attachment: Any = None) -> None:
        """Passes facts on; not waited for. The first message of a new template actor is the whole story."""
        if entry.draft is not None:
            entry.draft.take(entry.seq, ops, attachment)
            entry.seq += 1
            self._soon_ready(entry)
            return
        if entry.template is None and ops[0][0] == "open":
            entry.template = self._template.handle
        if entry.template is None:
            return  # without its beginning a story is of no use; all of it is told when a verdict is asked for
        entry.template.tell.remote(entry.story, entry.seq, ops, attachment)
        entry.seq += 1

    def _soon_ready(self, entry: _Entry) -> None:
        """What can be worked out is, once there is time for it."""
        if entry.draft is not None and not entry.readying:
            entry.readying = True
            asyncio.get_running_loop().call_later(READY_AFTER, self._get_ready, entry)

    def _get_ready(self, entry: _Entry) -> None:
        entry.readying = False
        if entry.draft is not None and self._entries.get(entry.key) is entry:
            entry.draft.get_ready(self._judge.context)

    def _entry(self, key: str) -> _Entry:
        entry = self._entries.get(key)
        if entry is None:
            raise CollectionLost(f"no collection {key} here: it was closed, or its actor died; declare it again")
        entry.used = time.monotonic()
        return entry

    def _touch(self) -> None:
        self._last_call = time.monotonic()

    @answers
    async def unknown_tx_pos(self, key: str) -> list[int]:
        """Positions still missing, ascending (SPEC 1.3)."""
        self._touch()
        entry = self._entry(key)
        with self._clients.calling(entry.client):
            return entry.collection.unknown_tx_pos()

    @answers
    async def add_missing_txs(self, key: str, raws: list[bytes | None]) -> list[int]:
        """Supplies transactions (SPEC 1.4); the positions still missing afterwards."""
        self._touch()
        entry = self._entry(key)
        with self._clients.calling(entry.client):
            ops = await self._supply(entry, raws)
            if ops:
                self._tell(entry, ops)
                if entry.prefetch is not None:
                    entry.prefetch.wake()
            return entry.collection.unknown_tx_pos()

    async def _supply(self, entry: _Entry, raws: Sequence[bytes | None], ahead: Ahead | None = None) -> list[Op]:
        """Takes supplied transactions in; what the template actor must be told of them. `ahead` is told of each."""
        size = sum(len(raw) for raw in raws if raw)
        self._clients.supply(entry.client, size)
        kept = 0
        try:
            if size < LONG_SUPPLY:
                records = entry.collection.check_supply(raws)
            else:
                async with self._parsing.turn(entry.client):
                    seen = None if ahead is None else ahead.taker()
                    records = await asyncio.to_thread(entry.collection.check_supply, raws, seen)
                if ahead is not None:
                    ahead.end()
                if self._entries.get(entry.key) is not entry:
                    raise CollectionLost("this collection was closed while transactions were supplied to it")
            room = COPIES * sum(record.nbytes for record in records)
            self._clients.take(room)
            arrival = entry.collection.take_supplied(records)
            if arrival.segment is None:  # another call has brought them meanwhile
                self._clients.give_back(room)
                return []
            kept = size
        finally:
            self._clients.unsupply(entry.client, size - kept)
        entry.supplied_bytes += kept
        entry.room += room
        return [self._op_add(entry, arrival.segment, arrival.rewires)]

    def _op_add(self, entry: _Entry, segment: int, rewires: list[Rewire]) -> Op:
        part = entry.collection.segments[segment]
        changes = [(r.segment, r.input, r.source) for r in rewires]
        table = part.table if entry.draft is not None else part.table.to_columns()
        return ("add", part.positions, table, part.source, changes)

    @answers
    async def make_template(
        self,
        key: str,
        prevhash: bytes,
        coinbase: bytes | None,
        missing: list[bytes | None] | None = None,
        now: int | None = None,
        mode: str | None = None,
        with_path: bool = True,
    ) -> tuple[Any, ...]:
        """Verdict (packed) on the declaration with this prevhash and coinbase (SPEC 1.5); `missing` is supplied first.

        A valid one's template is (number, header, coinbase, coinbase path, earliest time, latest time, fees); without
        `with_path` the path may be None, and `coinbase_path` answers with it.
        """
        begun = time.perf_counter()
        self._touch()
        entry = self._entry(key)
        with self._clients.calling(entry.client):
            if coinbase is not None:
                decode_transaction(coinbase)  # a client's mistake is answered before anything changes
            ahead = await self._begin_ahead(entry, prevhash, missing or [], mode)
            try:
                ops = await self._supply(entry, missing, ahead) if missing else []
                if not entry.collection.complete:
                    if ops:
                        self._tell(entry, ops)
                    if ops and entry.prefetch is not None:
                        entry.prefetch.wake()
                    return pack_verdict(Verdict.missing_txs())
                if entry.prefetch is not None:
                    entry.prefetch.pause()
                flat = await self._check(entry, "check", ops, prevhash, coinbase, now, mode, with_path, ahead=ahead)
            finally:
                if ahead is not None:
                    ahead.cancel()
            self._touch()
            self._soon_ready(entry)
            entry.verdicts += 1
            self._counts["verdicts"] += 1
            return self._with_template(entry, flat, begun)

    @answers
    async def check_block(
        self,
        key: str,
        raw: bytes,
        check_pow: bool,
        check_merkle_root: bool,
        now: int | None = None,
        mode: str | None = None,
    ) -> tuple[Any, ...] | None:
        """The verdict that `TemplateActor.check_block` gives on a block, with what was learned for this declaration;
        None if the block is not made of the declared transactions. Those that were missing are taken from it."""
        self._touch()
        entry = self._entry(key)
        with self._clients.calling(entry.client):
            declared = match_block(entry.collection, raw)
            if declared is None:
                return None
            ops = await self._supply(entry, declared.missing) if declared.missing else []
            if entry.prefetch is not None:
                entry.prefetch.pause()
            header, coinbase = declared.header.serialize(), declared.coinbase.raw
            flat = await self._check(
                entry, "check_declared", ops, header, coinbase, check_pow, check_merkle_root, now, mode
            )
            self._touch()
            entry.verdicts += 1
            self._counts["verdicts"] += 1
            return flat

    async def _begin_ahead(
        self, entry: _Entry, prevhash: bytes, missing: Sequence[bytes | None], mode: str | None
    ) -> Ahead | None:
        """For a long supply after which a verdict will be given here."""
        if entry.draft is None or sum(len(raw) for raw in missing if raw) < LONG_SUPPLY:
            return None
        if len(missing) < len(entry.collection.unknown_tx_pos()):
            return None
        return await self._judge.begin_ahead(prevhash, mode)

    async def _check(self, entry: _Entry, method: str, ops: list[Op], *args: Any, ahead: Ahead | None = None) -> Any:
        """Judges here, if the declaration's draft is here, `ops` being the last of it. Else asks the template actor,
        with `ops` as the last message; one that does not know the story, or died, is told all of it once more."""
        if entry.draft is not None:
            if ops:
                entry.draft.take(entry.seq, ops)
                entry.seq += 1
            judge: Any = self._judge.check_declared
            if method == "check":
                judge = partial(self._judge.check, ahead=ahead)
            verdict = await judge(entry.draft, entry.client, *args)
            return None if verdict is None else pack_verdict(verdict)
        for _ in range(3):
            template = entry.template
            if template is not None:
                seq, last = entry.seq, pack_ops(ops) if ops else b""
                entry.seq += bool(ops)
                ops = []
                try:
                    call = getattr(template, method).remote(entry.story, entry.client, seq, last, *args)
                    answer = unwrap(await call)
                    if answer != RESEND:
                        return answer
                except ray.exceptions.RayActorError:
                    self._template.lose(template, "died under a check")
            await self._template.there()
            self._tell_everything(entry)
        raise WorkerLost("template actors died under a check more than once")

    def _tell_everything(self, entry: _Entry) -> None:
        """The whole story in one message, to whichever template actor serves now."""
        collection = entry.collection
        ops: list[Op] = [("open", b"".join(collection.wtxids))]
        for number in range(len(collection.segments)):
            ops.append(self._op_add(entry, number, []))
        if collection.version is not None and collection.script_flags is not None:
            version = tuple(collection.version)
            ops.append(("tip", version, collection.script_flags))
            for number in range(len(collection.segments)):
                observed = collection.observed_inputs(number)
                if len(observed):
                    batch = collection.coins[number].take(observed)
                    ops.append(("coins", number, observed, pack_batch(batch), version))
            if collection.verified.any():
                ops.append(("scripts", collection.verified.nonzero()[0], collection.script_flags))
        self._forget_story(entry)
        entry.story = f"{self._id}/{entry.key}#{time.monotonic_ns()}"  # a name that no late message bears
        entry.template = None
        entry.seq = 0
        self._tell(entry, ops)

    def _with_template(self, entry: _Entry, flat: tuple[Any, ...], begun: float) -> tuple[Any, ...]:
        kind, reason, debug, offender, category, template, timings = flat
        if kind == Kind.VALID.value:
            header, coinbase, path, earliest, latest, fees = template
            entry.made += 1
            entry.templates[entry.made] = (header, coinbase)
            while len(entry.templates) > KEEP_TEMPLATES:
                del entry.templates[min(entry.templates)]
            template = (entry.made, header, coinbase, path, earliest, latest, fees)
        timings = dict(timings or {})
        timings["collection"] = (time.perf_counter() - begun) * 1000
        return (kind, reason, debug, offender, category, template, timings)

    @answers
    async def template_block(self, key: str, number: int, solution: tuple[int, int, int, bytes] | None = None) -> bytes:
        """Full bytes of a template's block: as made (merkle root zero), or with a (version, time, nonce, coinbase)."""
        entry = self._entry(key)
        made = entry.templates.get(number)
        if made is None:
            raise ClientError(f"template {number} of this collection is not kept: only the last {KEEP_TEMPLATES} are")
        header, coinbase = BlockHeader.parse(made[0]), made[1]
        if solution is not None:
            version, time_, nonce, coinbase = solution
            solved = decode_transaction(coinbase)
            path = self._path(entry)
            root = path_root(solved.txid, path)
            header = BlockHeader(version, header.prev_hash, root, time_, header.bits, nonce)
        return serialize_block(header, [coinbase, *entry.collection.raws()])

    @answers
    async def transactions(self, key: str) -> bytes:
        """All transactions of a complete declaration in block order, joined: what stands behind a block's coinbase."""
        entry = self._entry(key)
        if not entry.collection.complete:
            raise ClientError("transactions are missing")
        return b"".join(entry.collection.raws())

    @answers
    async def coinbase_path(self, key: str) -> list[bytes]:
        """Siblings of the coinbase in the merkle tree of a complete declaration, lowest first, 32 bytes each."""
        entry = self._entry(key)
        if not entry.collection.complete:
            raise ClientError("transactions are missing")
        return self._path(entry)

    def _path(self, entry: _Entry) -> list[bytes]:
        if entry.draft is not None:
            return entry.draft.coinbase_path()
        txids: dict[int, bytes] = {}
        for segment in entry.collection.segments:
            txids.update(zip(segment.positions.tolist(), segment.table.txids(), strict=True))
        return MerkleTree([None, *(txids[p] for p in range(1, len(entry.collection) + 1))]).path_of_first()

    @answers
    async def wait_prefetched(self, key: str) -> dict[str, Any]:
        """Returns the collection's counters once nothing more is on its way for it."""
        entry = self._entry(key)
        if entry.prefetch is not None:
            await entry.prefetch.idle.wait()
        return self._stats_of(entry)

    @answers
    async def collection_stats(self, key: str) -> dict[str, Any]:
        """Counters of one collection."""
        return self._stats_of(self._entry(key))

    def _stats_of(self, entry: _Entry) -> dict[str, Any]:
        collection = entry.collection
        return {
            "transactions": len(collection),
            "unknown": len(collection.unknown_tx_pos()),
            "prefetching": entry.prefetch is not None,
            "bytes": collection.nbytes,
            "queue_bytes": collection.queue_bytes,
            "observed_bytes": collection.observed_bytes,
            "budget": collection.budget,
            "queued": collection.queued,
            "observations": collection.observations,
            "probes": collection.probes_observed,
            "scripts_verified": int(collection.verified.sum()),
            "stopped": collection.speculation_stopped,
            "verdicts": entry.verdicts,
            "version": tuple(collection.version) if collection.version else None,
            "ready": entry.draft is not None and entry.draft.ready,
            "idle": entry.prefetch is None or entry.prefetch.idle.is_set(),
            **(entry.prefetch.counts if entry.prefetch else {}),
        }

    @answers
    async def close(self, key: str) -> None:
        """Frees a collection and, if it had one, its slot. Harmless to repeat."""
        self._touch()
        self._drop(key)

    @answers
    async def close_client(self, client: str) -> int:
        """Frees everything of one client, or of a gateway and all of its clients (`gateway/client`); how many
        collections that were."""
        keys = [key for key, entry in self._entries.items() if client in (entry.client, entry.client.partition("/")[0])]
        for key in keys:
            self._drop(key)
        return len(keys)

    def _drop(self, key: str) -> None:
        entry = self._entries.pop(key, None)
        if entry is None:
            return
        self._counts["closed"] += 1
        self._clients.close(entry.client, entry.room, entry.supplied_bytes)
        if entry.prefetch is not None:
            entry.prefetch.close()
            self._prefetched.update(entry.prefetch.counts)
        self._forget_story(entry)
        if self._slot == key:
            self._slot = None

    def _forget_story(self, entry: _Entry) -> None:
        if entry.template is not None:
            entry.template.forget.remote(entry.story)

    # Housekeeping -----------------------------------------------------------------------------------------------

    def _beat(self) -> None:
        if self._settings["heartbeat_ms"] and (self._beating is None or self._beating.done()):
            self._beating = asyncio.create_task(self._keep_awake())

    async def _keep_awake(self) -> None:
        """While a client is away, its peers are spoken to, so that they do not have to wake up when it comes back."""
        pause = self._settings["heartbeat_ms"] / 1000
        while self._entries and time.monotonic() - self._last_call < QUIET_AFTER:
            await asyncio.sleep(pause)
            if self._template.handle is not None:
                self._template.handle.ping.remote()
            for pool in (self._peers.fetch, self._peers.script):
                pool.keep_awake()

    async def _sweep(self) -> None:
        """Frees collections that nobody has used for long."""
        limit = self._settings["collection_idle_s"]
        while True:
            await asyncio.sleep(min(limit / 4, 30))
            oldest = time.monotonic() - limit
            for key in [key for key, entry in self._entries.items() if entry.used < oldest]:
                self._drop(key)

    async def reopen(self) -> None:
        """Lets go of the handle on the coins and its caches; the next check opens it anew."""
        self._judge.reading.forget()

    @answers
    async def warm_up(self) -> None:
        """Opens that handle now."""
        await self._judge.warm_up()

    async def stats(self) -> dict[str, Any]:
        """Counters and sizes of everything here."""
        return {
            **self._counts,
            **self._judge.stats(),
            "open": len(self._entries),
            "slot_used": self._slot is not None,
            "bytes": sum(entry.collection.nbytes for entry in self._entries.values()),
            **self._clients.stats(),
            "fetch_requests": self._peers.fetch.requests,
            "script_requests": self._peers.script.requests,
            "prefetched": self._prefetched_so_far(),
            "collections": [self._stats_of(entry) for entry in self._entries.values()],
        }

    def _prefetched_so_far(self) -> dict[str, int]:
        """What was prefetched since the start, for collections that are closed by now too."""
        total = Counter(self._prefetched)
        for entry in self._entries.values():
            if entry.prefetch is not None:
                total.update(entry.prefetch.counts)
        return dict(total)

    async def ping(self) -> str:
        """Answers as long as the process lives."""
        return "collection"
