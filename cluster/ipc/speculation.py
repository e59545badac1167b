"""Lists that a client asked about by wtxid, held as declarations for some seconds: the block that it is likely to offer
next is then judged with what was read and verified meanwhile.

Nothing a client is told depends on it. It never takes more than half of the node's places for prefetch, and what is
wrong with it is nobody's business: the block is then checked like any other.
"""

import asyncio
from hashlib import sha256

from cluster.ipc.declaration import Declaration
from cluster.ipc.session import Session
from models.collection import check_wtxids
from models.errors import ClientError, DecodeError, TxCollectionError
from models.wire.block import HEADER_SIZE
from models.wire.compactsize import read_compact_size
from models.wire.transaction import parse_transaction

__all__ = ["Speculations"]

KEPT = 20.0  # seconds since it was last of use
MOST = 4  # of all clients together; eight collections prefetch at a time


class _Speculation:
    """One list of one client."""

    def __init__(self, session: Session, wtxids: list[bytes]):
        self.session = session
        self.first = wtxids[0]
        self.count = len(wtxids)
        self.opening = asyncio.create_task(Declaration.open(session, wtxids))
        self.timer: asyncio.TimerHandle | None = None

    async def declaration(self) -> Declaration | None:
        """None if it could not be opened."""
        try:
            return await asyncio.shield(self.opening)
        except TxCollectionError:
            return None

    def close(self) -> None:
        """Frees it, or stops it from being opened."""
        if self.timer is not None:
            self.timer.cancel()
        if not self.opening.done():
            self.opening.cancel()
        elif not self.opening.cancelled() and self.opening.exception() is None:
            self.opening.result().release()


class Speculations:
    """Those of all clients, oldest first."""

    def __init__(self) -> None:
        self._held: dict[tuple[str, bytes], _Speculation] = {}
        self.used = 0  # blocks that were judged with one

    def __len__(self) -> int:
        return len(self._held)

    def begin(self, session: Session, wtxids: list[bytes]) -> None:
        """Holds a list if it can be a block's; the same list again is held for longer."""
        try:
            check_wtxids(wtxids)
        except ClientError:
            return
        if not wtxids or session.closed:
            return
        key = (session.name, sha256(b"".join(wtxids)).digest())
        if key not in self._held:
            self._held[key] = _Speculation(session, wtxids)
            self._held[key].opening.add_done_callback(lambda task: self._opened(key, task))
        self._renew(key)
        while len(self._held) > MOST:
            self._drop(next(iter(self._held)))

    def _opened(self, key: tuple[str, bytes], task: "asyncio.Task[Declaration]") -> None:
        failed = task.cancelled() or task.exception() is not None
        if failed or len(task.result().unknown_positions()) == len(task.result()):
            self._drop(key)  # nothing is known: nothing would be gained

    def _renew(self, key: tuple[str, bytes]) -> None:
        held = self._held.pop(key)
        self._held[key] = held
        if held.timer is not None:
            held.timer.cancel()
        held.timer = asyncio.get_running_loop().call_later(KEPT, self._drop, key)

    def _drop(self, key: tuple[str, bytes]) -> None:
        held = self._held.pop(key, None)
        if held is not None:
            held.close()

    def drop_client(self, session: Session) -> None:
        """A client is gone."""
        for key in [key for key in self._held if key[0] == session.name]:
            self._drop(key)

    async def judge(self, session: Session, block: bytes, check_pow: bool, check_merkle_root: bool) -> tuple | None:
        """The packed verdict on a block that consists of a list held for this client; None if there is none."""
        shape = _shape(block)
        candidates = [
            (key, held)
            for key, held in self._held.items()
            if key[0] == session.name and (held.count, held.first) == shape
        ]
        for key, held in reversed(candidates):
            declaration = await held.declaration()
            if declaration is None or key not in self._held:
                continue
            self._renew(key)
            try:
                verdict = await declaration.check_block(block, check_pow, check_merkle_root)
            except TxCollectionError:
                self._drop(key)
                continue
            if verdict is not None:
                self.used += 1
                return verdict
        return None


def _shape(block: bytes) -> tuple[int, bytes] | None:
    """How many transactions follow the coinbase, and the wtxid of the first of them."""
    try:
        count, at = read_compact_size(block, HEADER_SIZE)
        _, at = parse_transaction(block, at)
        return (count - 1, parse_transaction(block, at)[0].wtxid) if count > 1 else None
    except DecodeError:
        return None
