"""Keeps a store where a Bitcoin node is: the chain, and the mempool.

First over RPC from wherever the store stands to where the node stands, then by the node's ZMQ messages as they come, or
by asking again and again without them. It keeps no state of its own that matters: whatever breaks, it begins anew from
what the two sides have, and does nothing twice that could harm. Whether a block is valid is judged by the store's own
checks; a node whose best chain fails them is an error that ends the follower, never something to pass over.
"""

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from cluster.follow_status import FollowState, FollowStatus
from cluster.follow_zmq import MempoolChange, Note, Notifications, Topic, parse_sequence
from cluster.node_rpc import ChainInfo, NodeRpc
from models.consensus import reasons as r
from models.consensus.context import Tip
from models.consensus.params import ChainParams
from models.consensus.pow import check_proof_of_work
from models.errors import (
    DecodeError,
    NetworkMismatch,
    NodeDisagrees,
    NodePruned,
    NodeUnreachable,
    NotReady,
    StoreCorrupt,
    StoreError,
)
from models.wire.block import HEADER_SIZE, BlockHeader
from models.wire.hashes import sha256d, to_display
from models.wire.transaction import decode_transaction

__all__ = ["Follower", "Pace", "Target", "TargetLost"]

WINDOW = 500  # blocks whose hashes are asked for together
BLOCKS_AHEAD = 8  # bodies asked for before they are needed; each may take some 16 MB on its way
BLOCKS_AT_ONCE = 4  # requests for bodies under way; Core works on 16 calls at a time, for all its clients
HEADERS_AT_ONCE = 2000  # as in one message between nodes
FETCH_AT_ONCE = 500  # transactions given to the mempool together
CACHED_BLOCKS = 8  # bodies that came by ZMQ
CACHED_RAWS = 20_000  # transactions that came by ZMQ and were not asked for yet
ON_PRUNED = (
    "make the store again with `txcollection init --from-datadir` or `--from-snapshot`, or follow a node that keeps "
    "its blocks"
)
SHORTEST_PAUSE, LONGEST_PAUSE = 0.5, 30.0  # seconds between attempts to reach a side that was lost

#: Core's names of networks (util/chaintype.cpp) -> ours
NETWORK_OF_CHAIN = {
    "main": "main",
    "test": "testnet3",
    "testnet4": "testnet4",
    "signet": "signet",
    "regtest": "regtest",
}


class TargetLost(Exception):
    """The store's node does not answer: it was stopped, or one of its actors died. Worth trying again."""


class Target(Protocol):
    """The store that is kept up to date. Every method may raise TargetLost; all of them may be called again."""

    async def connect(self) -> ChainParams:
        """Finds it (again); the parameters of its network."""

    async def tip(self) -> Tip:
        """Its tip. Raises NotReady while the header of the coins' block is not known."""

    async def best_block(self) -> bytes:
        """The block whose coins it has, internal order, also while its header is not known."""

    async def headers(self, start: int, count: int) -> list[bytes]:
        """Serialised headers of its active chain from a height on."""

    async def knows(self, block_hash: bytes) -> bool:
        """Whether a header is in its index."""

    async def add_headers(self, headers: list[bytes]) -> None:
        """Gives it headers, parents first, that were seen to hang together."""

    async def submit(self, raw: bytes) -> str | None:
        """Gives it a block: None for the new tip, else what Core's submitblock answers (SPEC 2.6)."""

    async def mempool_ids(self) -> tuple[list[bytes], list[bytes]]:
        """txids and wtxids of its mempool, in one order."""

    async def mirror(self, gone: Iterable[bytes], raws: Sequence[bytes]) -> tuple[int, int]:
        """Takes txids out of its mempool, then puts transactions in; how many went and came."""


@dataclass(frozen=True)
class Pace:
    """Seconds between questions to the node."""

    poll: float = 2.0  # without ZMQ, or where the node does not publish what is needed
    audit: float = 30.0  # with ZMQ: comparisons that find what no message told
    download: float = 5.0  # while the node is in its initial download


class Follower:
    """Follows one node with one store."""

    def __init__(
        self,
        node: NodeRpc,
        target: Target,
        notifications: Notifications | None = None,
        pace: Pace | None = None,
        report: Callable[[FollowStatus], None] = lambda _: None,
    ):
        self._node = node
        self._target = target
        self._notifications = notifications
        self._pace = pace or Pace()
        self._report = report
        self._params: ChainParams | None = None
        self._by_messages = False  # the node publishes everything that is needed
        self._mirrored = 0  # changes of the node's mempool with a lower number are in ours
        self._bodies: OrderedDict[bytes, bytes] = OrderedDict()
        self._raws: deque[bytes] = deque(maxlen=CACHED_RAWS)
        self._apart: tuple[bytes, bytes] | None = None  # tip and the node's best, between which work does not decide
        self.status = FollowStatus(node.url)

    def _show(self, state: FollowState | None = None, detail: str = "") -> None:
        if state is not None:
            self.status.state, self.status.detail = state, detail
        if self._notifications is not None:
            self.status.gaps = self._notifications.gaps
        self._report(self.status)

    # The whole of it --------------------------------------------------------------------------------------------

    async def run(self, once: bool = False) -> None:
        """Follows until it is cancelled; with `once`, until store and node are equal.

        Raises NetworkMismatch, NodeRefused, NodePruned, NodeDisagrees and other NodeError and StoreError for what
        trying again does not help.
        """
        pause = SHORTEST_PAUSE
        while True:
            try:
                await self._begin()
                while not await self._ready():
                    await asyncio.sleep(self._pace.download)
                pause = SHORTEST_PAUSE
                if not once:
                    await self._follow()
                elif self.status.ready:
                    return
                else:
                    await asyncio.sleep(self._pace.poll)
            except (NodeUnreachable, TargetLost) as error:
                self.status.reconnects += 1
                self._show(FollowState.WAITING, str(error))
                await asyncio.sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE)
            except BaseException as error:
                self._show(FollowState.STOPPED, str(error))
                raise

    async def _begin(self) -> None:
        """Finds both sides, and sees that they are of one network."""
        self._bodies.clear()
        self._raws.clear()
        self._apart = None
        while self._notifications is not None and await self._notifications.next(0):
            pass  # told before what is looked at now
        self._params = await self._target.connect()
        info = await self._node.chain_info()
        await self._check_network(info, self._params)
        if self._notifications is not None:
            topics = await self._node.published_topics()
            self._by_messages = topics is None or Topic.SEQUENCE.value in topics

    async def _check_network(self, info: ChainInfo, params: ChainParams) -> None:
        network = NETWORK_OF_CHAIN.get(info.chain, info.chain)
        if network != params.name:
            raise NetworkMismatch(
                f"the node at {self._node.url} is on {network}, the store on {params.name}: "
                "follow another node, or make a store for that network"
            )
        challenge = info.signet_challenge
        if challenge is not None and params.signet_challenge is not None and challenge != params.signet_challenge:
            raise NetworkMismatch(
                f"the node at {self._node.url} is on a signet with the challenge {challenge.hex()}, "
                f"the store on one with {params.signet_challenge.hex()}"
            )
        genesis = (await self._node.block_hashes([0]))[0]
        if genesis != params.genesis_hash:
            shown = to_display(genesis) if genesis else "none"
            raise NetworkMismatch(
                f"the chain of the node at {self._node.url} begins with block {shown}, that of {params.name} with "
                f"{to_display(params.genesis_hash)}: it is another network"
            )

    async def _ready(self) -> bool:
        """Brings the store to the node; False while the node is not where its network is."""
        await self._give_headers()
        await self._sync_blocks()
        info = await self._node.chain_info()
        if info.initial_download:
            self._show(
                FollowState.DOWNLOADING,
                f"not ready: the node is in its initial download, at block {info.blocks} of {info.headers}",
            )
            return False
        await self._compare_mempools()
        await self._compare_witnesses()
        self._show_following()
        return True

    def _show_following(self) -> None:
        if self._apart is None:
            self._show(FollowState.FOLLOWING)

    # After that -------------------------------------------------------------------------------------------------

    async def _follow(self) -> None:
        audited = time.monotonic()
        interval = self._pace.audit if self._by_messages else self._pace.poll
        while True:
            due = audited + interval - time.monotonic()
            if self._notifications is None:
                await asyncio.sleep(max(due, 0))
            elif due > 0:
                notes = await self._notifications.next(due)
                if notes and self._by_messages:
                    await self._take(notes)
                    continue
                if not notes:
                    continue
                # A message that does not say everything is still a reason to look.
            await self._audit()
            audited = time.monotonic()

    async def _audit(self) -> None:
        """Compares both sides over RPC, and repairs what differs."""
        info = await self._node.chain_info()
        if info.initial_download:
            raise NodeUnreachable("the node is in its initial download again")
        tip = await self._target.tip()
        if info.best == tip.hash:
            self._apart, changed = None, False
        else:
            changed = await self._sync_blocks()
        differences = await self._compare_mempools()
        if self._by_messages and (changed or differences):
            self.status.repairs += 1
        self._show_following()

    async def _take(self, notes: Sequence[Note]) -> None:
        """Acts on messages: the mempool's changes one by one, everything else by looking at the node."""
        look = compare = False
        changes: list[MempoolChange] = []
        for note in notes:
            if note.topic is Topic.RAWTX:
                self._raws.append(note.body)
                continue
            if note.topic is Topic.RAWBLOCK:
                self._bodies[sha256d(note.body[:HEADER_SIZE])] = note.body
                while len(self._bodies) > CACHED_BLOCKS:
                    self._bodies.popitem(last=False)
                look = True
            elif note.topic is Topic.CONNECTION:
                look = compare = True
            else:
                change = parse_sequence(note.body)
                if change is None:
                    look = True
                else:
                    changes.append(change)
                compare = compare or note.lost
                look = look or note.lost
        if changes and not compare:
            await self._take_changes(changes)
        if look and await self._sync_blocks():
            compare = True  # what a block confirmed, and what a reorganisation gave back, is not told one by one
        if compare and await self._compare_mempools():
            self.status.repairs += any(note.lost for note in notes)
        self._show_following()

    # Blocks -----------------------------------------------------------------------------------------------------

    async def _sync_blocks(self) -> bool:
        """Gives the store what leads to the node's best block; whether its tip moved."""
        moved = False
        missing_parents = 0
        while True:
            info = await self._node.chain_info()
            tip = await self._target.tip()
            self._note_heights(tip, info)
            if tip.hash == info.best:
                self._apart = None
                return moved
            if self._apart == (tip.hash, info.best):
                return moved
            common = await self._common_height(tip, info)
            if common == info.blocks < tip.height:
                self._stand_apart(tip, info, f"the node is behind, at block {info.blocks}, the store at {tip.height}")
                return moved
            if info.prune_height is not None and info.prune_height > common + 1:
                raise NodePruned(
                    f"the node has deleted its blocks below height {info.prune_height}, and the store goes on from "
                    f"height {common}: {ON_PRUNED}"
                )
            if tip.height < info.blocks - 1:
                self._show(FollowState.CATCHING_UP)
            complete = await self._submit_from(common, info, common < tip.height)
            after = await self._target.tip()
            self._note_heights(after, info)
            if after.hash != tip.hash:
                moved = True
                self.status.reorgs += common < tip.height
            elif complete and await self._node.best() == info.best:
                self._stand_apart(
                    tip,
                    info,
                    f"the node's best block {to_display(info.best)} has no more work than the store's tip: "
                    "the next block decides",
                )
                return moved
            elif not complete:
                missing_parents += 1
                if missing_parents > 3:
                    raise NodeDisagrees(
                        f"the node's blocks above height {common} do not lead to its best block "
                        f"{to_display(info.best)}: look at its log"
                    )

    def _stand_apart(self, tip: Tip, info: ChainInfo, why: str) -> None:
        self._apart = (tip.hash, info.best)
        self._show(FollowState.APART, why)

    def _note_heights(self, tip: Tip, info: ChainInfo) -> None:
        status = self.status
        status.height, status.tip = tip.height, to_display(tip.hash)
        status.node_height, status.node_headers = info.blocks, info.headers

    async def _common_height(self, tip: Tip, info: ChainInfo) -> int:
        """The height of the last block that the store's chain and the node's have in common."""
        top = min(tip.height, info.blocks)
        count = 1
        while True:
            start = max(0, top - count + 1)
            ours = [sha256d(raw) for raw in await self._target.headers(start, top - start + 1)]
            theirs = await self._node.block_hashes(range(start, top + 1))
            for height in range(top, start - 1, -1):
                at = height - start
                if at < len(ours) and ours[at] == theirs[at]:
                    return height
            if start == 0:
                raise NetworkMismatch("the node's chain has not even the first block in common with the store's")
            top, count = start - 1, min(count * 4, WINDOW)

    async def _submit_from(self, common: int, info: ChainInfo, leaving: bool) -> bool:
        """Submits the node's blocks above a height, `leaving` the store's own; False if the chain changed meanwhile."""
        for start in range(common + 1, info.blocks + 1, WINDOW):
            heights = range(start, min(start + WINDOW, info.blocks + 1))
            hashes = await self._node.block_hashes(heights)
            if None in hashes:
                return False
            if not await self._submit_all([h for h in hashes if h is not None], start, leaving):
                return False
        return True

    async def _submit_all(self, hashes: Sequence[bytes], start: int, leaving: bool) -> bool:
        at_once = asyncio.Semaphore(BLOCKS_AT_ONCE)

        async def body(block_hash: bytes) -> bytes | None:
            known = self._bodies.get(block_hash)
            if known is not None:
                return known
            async with at_once:
                return await self._node.block(block_hash)

        waiting: deque[asyncio.Task[bytes | None]] = deque()
        ahead = iter(hashes)
        try:
            for number, block_hash in enumerate(hashes):
                while len(waiting) < BLOCKS_AHEAD and (following := next(ahead, None)) is not None:
                    waiting.append(asyncio.create_task(body(following)))
                raw = await waiting.popleft()
                if raw is None or not await self._submit(raw, block_hash, start + number, leaving):
                    return False
        except NodePruned as error:
            raise NodePruned(f"{error}: {ON_PRUNED}") from None
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
        return True

    async def _submit(self, raw: bytes, block_hash: bytes, height: int, leaving: bool) -> bool:
        """One block; False if its parent is not known, because the node's chain changed meanwhile."""
        try:
            answer = await self._target.submit(raw)
        except StoreError as error:
            if not leaving or isinstance(error, NotReady | StoreCorrupt):
                raise
            raise NodeDisagrees(
                f"the store cannot follow the node to block {to_display(block_hash)} at height {height}, which is on "
                f"another branch: {error}. Make the store again with `txcollection init`"
            ) from None
        self.status.blocks += 1
        if answer in (None, r.DUPLICATE.text, r.INCONCLUSIVE.text):
            self.status.height = max(self.status.height, height) if answer is None else self.status.height
            self._report(self.status)
            return True
        if answer == r.PREV_BLK_NOT_FOUND.text:
            return False
        hint = "look at what differs before you trust either: another version, other consensus switches, a bad disk"
        if answer == r.TIME_TOO_NEW.text:
            hint = "the clock of this machine may be wrong"
        raise NodeDisagrees(
            f"block {to_display(block_hash)} at height {height} is on the node's best chain, but invalid here: "
            f"{answer}; {hint}"
        )

    # Headers, for a store from a snapshot -----------------------------------------------------------------------

    async def _give_headers(self) -> None:
        """Fetches the headers up to the block whose coins the store has, if they are not there yet."""
        try:
            await self._target.tip()
            return
        except NotReady:
            pass
        base = await self._target.best_block()
        found = await self._node.height_of(base)
        if found is None:
            raise NodeDisagrees(
                f"the node does not know block {to_display(base)}, whose coins the store has: wait until it has come "
                "so far, or make the store from a snapshot of its chain"
            )
        height, active = found
        if not active:
            raise NodeDisagrees(
                f"block {to_display(base)}, whose coins the store has, is not on the node's best chain: make the store "
                "from another snapshot"
            )
        start = await self._first_unknown(height)
        before = (await self._node.block_hashes([start - 1]))[0]
        while start <= height:
            heights = range(start, min(start + HEADERS_AT_ONCE, height + 1))
            self._show(FollowState.HEADERS, f"headers {start} to {height}")
            hashes = [h for h in await self._node.block_hashes(heights) if h is not None]
            headers = await self._node.headers(hashes)
            if not headers or not self._hang_together(headers, before):
                raise NodeUnreachable("the node's chain changed while its headers were fetched")
            await self._target.add_headers([header.serialize() for header in headers])
            self.status.headers += len(headers)
            before = headers[-1].hash
            start += len(headers)
        await self._target.tip()

    async def _first_unknown(self, height: int) -> int:
        """The first height whose header the store does not have; a search by halves, as they come in order."""
        known, unknown = 0, height + 1  # genesis is there
        while unknown - known > 1:
            middle = (known + unknown) // 2
            block_hash = (await self._node.block_hashes([middle]))[0]
            if block_hash is not None and await self._target.knows(block_hash):
                known = middle
            else:
                unknown = middle
        return min(unknown, height)

    def _hang_together(self, headers: Sequence[BlockHeader], before: bytes | None) -> bool:
        """Whether each builds on the one before. Raises NodeDisagrees for one without proof of work."""
        assert self._params is not None
        for header in headers:
            if header.prev_hash != before:
                return False
            if not check_proof_of_work(header.hash, header.bits, self._params):
                raise NodeDisagrees(f"header {to_display(header.hash)} of the node has no proof of work")
            before = header.hash
        return True

    # The mempool ------------------------------------------------------------------------------------------------

    async def _compare_mempools(self) -> int:
        """Makes our mempool hold the node's transactions; how many differed."""
        theirs, number = await self._node.mempool()
        ours, _ = await self._target.mempool_ids()
        gone = set(ours).difference(theirs)
        known = set(ours)
        new = [txid for txid in theirs if txid not in known]
        await self._mirror(gone, new)
        self._mirrored = number
        self.status.mempool = len(theirs)
        self._raws.clear()
        return len(gone) + len(new)

    async def _mirror(self, gone: Iterable[bytes], new: Sequence[bytes]) -> None:
        """Removes, then fetches and adds in the order given."""
        first = list(gone)
        raws = self._raws_of(new) if self._raws else {}
        for at in range(0, max(len(new), 1), FETCH_AT_ONCE):
            part = new[at : at + FETCH_AT_ONCE]
            unknown = [txid for txid in part if txid not in raws]
            fetched = await self._node.transactions(unknown)
            raws.update((txid, raw) for txid, raw in zip(unknown, fetched, strict=True) if raw is not None)
            found = [raws[txid] for txid in part if txid in raws]
            if first or found:
                removed, added = await self._target.mirror(first, found)
                self.status.transactions_removed += removed
                self.status.transactions_added += added
            first = []

    def _raws_of(self, txids: Iterable[bytes]) -> dict[bytes, bytes]:
        """Those that came by ZMQ. Everything that came is parsed once at most: the queue is used up."""
        wanted = set(txids)
        found: dict[bytes, bytes] = {}
        while self._raws and len(found) < len(wanted):
            raw = self._raws.popleft()
            try:
                txid = decode_transaction(raw).txid
            except DecodeError:
                continue
            if txid in wanted:
                found[txid] = raw
        return found

    async def _take_changes(self, changes: Sequence[MempoolChange]) -> None:
        """What the node told of its mempool since the last comparison."""
        gone: dict[bytes, None] = {}
        new: dict[bytes, None] = {}
        for change in changes:
            if change.number < self._mirrored:
                continue  # the comparison knew of it
            self._mirrored = change.number + 1
            self.status.mempool += 1 if change.added else -1
            if change.added:
                new[change.txid] = None
            else:
                new.pop(change.txid, None)
                gone[change.txid] = None
        if gone or new:
            await self._mirror(gone, list(new))

    async def _compare_witnesses(self) -> None:
        """At the start only: a transaction that we have from elsewhere may have another witness than the node's."""
        ours = dict(zip(*await self._target.mempool_ids(), strict=True))
        if not ours or not self._foreign(ours):
            return
        theirs = await self._node.mempool_wtxids()
        other = [txid for txid, wtxid in theirs.items() if ours.get(txid, wtxid) != wtxid]
        if other:
            await self._mirror(other, other)

    def _foreign(self, ours: dict[bytes, bytes]) -> bool:
        """Whether any of these has a witness at all; without one there is nothing that could differ."""
        return any(txid != wtxid for txid, wtxid in ours.items())
