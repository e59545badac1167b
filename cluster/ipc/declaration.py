"""A declaration that an actor of the node holds for one client: what is known here of it, and questions about it.

Everything that a supply can be refused for is decided here, from the list alone, so a supply that was accepted need not
be waited for. One that completes the declaration is held back for a moment, since a client's next word is its call for
a verdict: both then travel as one message, and no reading is begun that the check would have to wait behind. Any other
is sent on at once, and carried again by the verdict's message if its arrival was not confirmed; taken twice, it counts
once.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

from cluster.ipc.reading import LOOKED_AT
from cluster.ipc.session import Session
from models.collection import TxCollection
from models.consensus.verdict import Verdict
from models.errors import CollectionLost, TxCollectionError
from models.messages import unpack_verdict
from models.quotas import check_supplied

__all__ = ["Declaration"]

CARRIED = 64 * 1024  # bytes of supply that a verdict's message may carry
HELD_BACK = 0.005  # seconds


class Declaration:
    """Open from `open` until its last user has released it, or the connection has ended."""

    def __init__(self, session: Session, wtxids: list[bytes], actor: Any, key: str, unknown: list[int]):
        self._session = session
        self._list = TxCollection(wtxids)  # for the checks of a supply; it holds no transactions
        self._actor = actor
        self._key = key
        self._unknown = {wtxids[position]: position for position in unknown}
        self._unconfirmed: dict[asyncio.Task[None], list[bytes]] = {}
        self._held_back: list[bytes] = []
        self._timer: asyncio.TimerHandle | None = None
        self._lost: TxCollectionError | None = None
        self._users = 1
        self._held = session.hold(self._close)
        self._supplied_bytes = 0
        self._closed = False
        session.node.awake.touch(actor)

    @classmethod
    async def open(cls, session: Session, wtxids: list[bytes]) -> "Declaration":
        """Declares a checked list. If the client goes away meanwhile, so does what the node made for it."""
        opening = asyncio.create_task(session.node.peers.open_collection(session.name, b"".join(wtxids)))
        try:
            actor, key, unknown = await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(lambda task: _drop(session, task))
            raise
        return cls(session, wtxids, actor, key, unknown)

    def __len__(self) -> int:
        return len(self._list)

    @property
    def wtxids(self) -> list[bytes]:
        """In block order, without the coinbase."""
        return self._list.wtxids

    # Users ------------------------------------------------------------------------------------------------------

    def acquire(self) -> None:
        """One more object needs it: a template outlives its collection."""
        self._users += 1

    def release(self) -> None:
        """One less; the last one frees it."""
        self._users -= 1
        if self._users == 0:
            self._session.let_go(self._held)
            self._close()

    def _close(self) -> None:
        if not self._closed:
            self._closed = True
            self._session.supplied_bytes -= self._supplied_bytes
            if self._timer is not None:
                self._timer.cancel()
            for task in self._unconfirmed:
                task.cancel()
            self._session.node.peers.drop_collection(self._actor, self._key)

    # Supply -----------------------------------------------------------------------------------------------------

    def unknown_positions(self) -> list[int]:
        """Positions still missing, ascending; no other client and no change of the mempool moves them."""
        return sorted(self._unknown.values())

    def check_supply(self, raws: Sequence[bytes | None]) -> list[tuple[bytes, bytes]] | None:
        """Raises ClientError for what Core refuses (SPEC 1.4); (wtxid, raw) of what is new. None for a list that is too
        long to be parsed here."""
        if len(raws) > len(self._list) or len(raws) <= LOOKED_AT:
            return [(record.wtxid, record.raw) for record in self._list.check_supply(raws)]
        return None

    async def supply(self, raws: Sequence[bytes | None], checked: list[tuple[bytes, bytes]] | None) -> None:
        """Sends transactions on; waits for the answer only where `check_supply` left them unchecked."""
        self._check_alive()
        size = sum(len(raw or b"") for raw in raws)
        if checked is None:
            self._count(size)
            unknown = await self._ask("add_missing_txs", list(raws))
            left = set(unknown)
            self._unknown = {wtxid: position for wtxid, position in self._unknown.items() if position in left}
            return
        fresh = [(wtxid, raw) for wtxid, raw in checked if wtxid in self._unknown]
        if not fresh:
            return
        self._count(sum(len(raw) for _, raw in fresh))
        for wtxid, _ in fresh:
            del self._unknown[wtxid]
        self._held_back += [raw for _, raw in fresh]
        if self._unknown or sum(map(len, self._held_back)) > CARRIED:
            self._send_on()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(HELD_BACK, self._send_on)

    def _take_held_back(self) -> list[bytes]:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        raws, self._held_back = self._held_back, []
        return raws

    def _send_on(self) -> None:
        raws = self._take_held_back()
        task = asyncio.create_task(self._send(raws))
        self._unconfirmed[task] = raws
        task.add_done_callback(self._confirmed)

    def _count(self, size: int) -> None:
        check_supplied(self._session.supplied_bytes, size, self._session.limits.supplied_bytes)
        self._supplied_bytes += size
        self._session.supplied_bytes += size

    async def _send(self, raws: list[bytes]) -> None:
        try:
            await self._ask("add_missing_txs", raws)
        except TxCollectionError as error:
            self._lost = error

    def _confirmed(self, task: "asyncio.Task[None]") -> None:
        self._unconfirmed.pop(task, None)
        if not task.cancelled() and task.exception() is not None:
            self._lost = CollectionLost(f"a supply did not arrive: {type(task.exception()).__name__}")

    # Questions --------------------------------------------------------------------------------------------------

    async def make_template(self, prevhash: bytes, coinbase: bytes | None) -> Verdict:
        """The verdict; of a valid one the template is (number, header, coinbase, coinbase path, ...)."""
        self._check_alive()
        if self._unknown:
            return Verdict.missing_txs()
        carried = [raw for raws in self._unconfirmed.values() for raw in raws]
        if sum(map(len, carried)) > CARRIED:
            await asyncio.wait(list(self._unconfirmed))
            carried = []
        carried += self._take_held_back()
        try:
            return unpack_verdict(await self._ask("make_template", prevhash, coinbase, carried, None, None))
        except CollectionLost as lost:
            self._lost = lost  # and what it carried with it
            raise

    async def check_block(self, block: bytes, check_pow: bool, check_merkle_root: bool) -> tuple[Any, ...] | None:
        """The packed verdict on a block that consists of this declaration, or None for any other."""
        return await self._ask("check_block", block, check_pow, check_merkle_root)

    async def transactions(self) -> bytes:
        """All of them in block order, joined."""
        return await self._ask("transactions")

    async def _ask(self, method: str, *args: Any) -> Any:
        node = self._session.node
        node.awake.touch(self._actor)
        return await node.peers.ask_collection(self._actor, method, self._key, *args)

    def _check_alive(self) -> None:
        if self._closed:
            raise CollectionLost("this collection was destroyed; declare it again")
        if self._lost is not None:
            raise self._lost


def _drop(session: Session, opening: "asyncio.Task[tuple[Any, str, list[int]]]") -> None:
    """What was opened for a client that is gone."""
    if not opening.cancelled() and opening.exception() is None:
        actor, key, _ = opening.result()
        session.node.peers.drop_collection(actor, key)
