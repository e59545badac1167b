"""One client: its threads, what it holds, and the calls it has under way. All of it goes when the connection ends.

Calls that name one thread are carried out one after the other, others side by side; heavy ones wait for their turn
among all clients. What can be refused is refused at arrival, before a call is queued.
"""

import asyncio
import itertools
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import capnp

from cluster.ipc.refusals import RefusedLater, later, refused
from cluster.ipc.schemas import proxy
from models.errors import Busy, CollectionLost
from models.quotas import check_pending

if TYPE_CHECKING:
    from cluster.ipc.node import Node

__all__ = ["Limits", "Session", "ThreadMap"]

MOST_THREADS = 1000  # of one client


@dataclass(frozen=True)
class Limits:
    """What one client may have at a time (see the settings of these names)."""

    pending_calls: int
    collections: int  # and as many templates of its own
    supplied_bytes: int


class Thread(proxy.Thread.Server):
    """A client's thread: a lane in which its calls follow each other."""

    def __init__(self, name: str, number: int):
        self.name = name
        self.number = number
        self.lane = asyncio.Lock()

    async def getName_context(self, context: Any) -> None:
        """What the client called it."""
        context.results.result = self.name

    async def getId_context(self, context: Any) -> None:
        """Our own number of it, by which it is recognised when a client hands it back."""
        context.results.result = self.number


@dataclass(eq=False)
class Session:
    """The state of one connection. `node` and `turns` are shared by all."""

    node: "Node"
    limits: Limits
    name: str  # under which the node's actors know its collections
    closed: bool = False
    pending: int = 0
    collections: int = 0
    templates: int = 0
    supplied_bytes: int = 0
    threads: "weakref.WeakValueDictionary[int, Thread]" = field(default_factory=weakref.WeakValueDictionary)
    on_close: dict[int, Callable[[], None]] = field(default_factory=dict)
    _numbers: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))

    # Threads ----------------------------------------------------------------------------------------------------

    def make_thread(self, name: str) -> Thread:
        """A new lane. Raises Refused beyond the bound."""
        if len(self.threads) >= MOST_THREADS:
            raise refused(Busy(f"a client may have {MOST_THREADS} threads at a time"))
        thread = Thread(name, next(self._numbers))
        self.threads[thread.number] = thread
        return thread

    async def _lane(self, thread: Any) -> Any:
        """The lane of the thread that a call names; without one (a pool's call) it goes its own way."""
        if thread is None:
            return nullcontext()
        try:
            number = (await thread.getId()).result
        except capnp.KjException:
            number = 0  # an object of the client's own
        found = self.threads.get(number)
        if found is None:
            raise RefusedLater("invalid thread handle")
        return found.lane

    # Calls ------------------------------------------------------------------------------------------------------

    def carry_out(
        self, context: Any, work: Callable[[], Awaitable[None]], heavy: bool = False
    ) -> Coroutine[Any, Any, None]:
        """The coroutine of a call whose parameters have been read: it waits for its lane, and its turn if it is heavy.

        Raises Refused at once if too many calls of this client are waiting. The request is let go here.
        """
        try:
            check_pending(self.pending, self.limits.pending_calls)
        except Busy as busy:
            raise refused(busy) from None
        named = context.params.context
        thread = named.thread if named._has("thread") else None
        del named
        context.release_params()
        return self._run(thread, work, heavy)

    async def _run(self, thread: Any, work: Callable[[], Awaitable[None]], heavy: bool) -> None:
        self.pending += 1
        try:
            async with await self._lane(thread), self._turn(heavy):
                await work()
        except Exception as error:
            raise later(error, getattr(work, "__qualname__", "a call")) from None
        finally:
            self.pending -= 1

    @asynccontextmanager
    async def _turn(self, heavy: bool) -> AsyncIterator[None]:
        if not heavy:
            yield
            return
        async with self.node.turns.turn(self.name):
            yield

    # What it holds ----------------------------------------------------------------------------------------------

    def hold(self, free: Callable[[], None]) -> int:
        """Remembers what has to be called when the connection ends; `let_go` forgets it."""
        number = next(self._numbers)
        if self.closed:
            free()
        else:
            self.on_close[number] = free
        return number

    def let_go(self, number: int) -> None:
        """Harmless to repeat."""
        self.on_close.pop(number, None)

    def close(self) -> None:
        """The connection has ended: everything goes."""
        self.closed = True
        while self.on_close:
            _, free = self.on_close.popitem()
            free()

    def check_open(self, destroyed: bool) -> None:
        """Raises for an object that its client has destroyed."""
        if destroyed:
            raise CollectionLost("this object was destroyed")


class ThreadMap(proxy.ThreadMap.Server):
    """Makes threads. Pools need no making: a call that names no thread runs beside all others."""

    def __init__(self, session: Session):
        self._session = session

    def makeThread_context(self, context: Any) -> Coroutine[Any, Any, None]:
        """A new thread."""
        thread = self._session.make_thread(context.params.name)

        async def answer() -> None:
            context.results.result = thread

        return answer()

    async def makePool_context(self, context: Any) -> None:
        """Nothing to do."""
