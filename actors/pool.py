"""A pool of workers as an async actor sees it: the least busy one is asked, a request whose worker dies is tried once
more elsewhere, and a second death is an error of its own. Membership comes from the supervisor.
"""

import asyncio
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import ray

from models.errors import Busy, InternalError, WorkerLost
from models.messages import unwrap

__all__ = ["WorkerPool", "id_of", "let_go"]

REPLACEMENT_PATIENCE = 10.0  # seconds to wait for a spare when the pool is empty
STATE_PATIENCE = 2.0  # seconds in which a worker must say what it is at
AT_LEAST = 0.9  # of the deadline: what has run that long when it is looked at will not be waited for
MOST_WORKERS_TRIED = 8  # for one batch, others' faults included


def id_of(actor: Any) -> str:
    """An actor's id in hex. Messages about an actor that may be dead name it so: a handle that several running tasks
    of one async actor were given, which lets go of it meanwhile, ends that actor's process (a failed check in Ray)."""
    return actor._actor_id.hex()


def let_go(task: "asyncio.Future[Any]") -> None:
    """A done-callback for what nobody waits for any more: whatever went wrong has been acted upon already, or the next
    look sees it."""
    if not task.cancelled():
        task.exception()


class WorkerPool:
    """Handles of one kind of worker. `report(handle, why)` tells the supervisor of one to be replaced."""

    def __init__(self, kind: str, report: Callable[[Any, str], None]):
        self.kind = kind
        self.requests = 0
        self.retries = 0
        self.stopped = False
        self._report = report
        self._handles: list[Any] = []
        self._busy: dict[Any, int] = {}
        self._lost: set[Any] = set()
        self._killed: set[Any] = set()  # by us, for one call that took too long: the others at them are not at fault
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        return len(self._handles)

    def set_members(self, handles: list[Any]) -> None:
        """The supervisor's list; workers seen dead stay out of it. An empty one means that the pool was stopped."""
        self.stopped = not handles
        self._handles = [handle for handle in handles if handle not in self._lost]
        self._busy = {handle: self._busy.get(handle, 0) for handle in self._handles}
        self._changed.set()
        self._changed = asyncio.Event()

    def _choose(self, reserve: int) -> Any | None:
        """The least busy worker; the first `reserve` are left alone if there are others."""
        members = self._handles[reserve:] or self._handles
        return min(members, key=self._busy.__getitem__, default=None)

    async def _member(self, reserve: int, wait: bool) -> Any:
        worker = self._choose(reserve)
        if worker is None and wait and not self.stopped:
            try:
                await asyncio.wait_for(self._changed.wait(), REPLACEMENT_PATIENCE)
            except TimeoutError:
                pass
            worker = self._choose(reserve)
        if worker is None:
            raise WorkerLost(f"there is no {self.kind} worker; the supervisor has not put one in")
        return worker

    async def call(self, method: str, *args: Any, deadline: float, wait: bool = True, reserve: int = 0) -> Any:
        """Calls `method` on a worker and returns its value.

        Raises WorkerLost when two workers died under it (or, without `wait`, when there is none), Busy when it took
        longer than `deadline` seconds.
        """
        for attempt in range(2):
            worker = await self._member(reserve, wait)
            try:
                with self._at(worker):
                    async with asyncio.timeout(deadline):
                        answer = await getattr(worker, method).remote(*args)
                return unwrap(answer)
            except TimeoutError:
                raise Busy(f"a {self.kind} request took longer than {deadline:g} s") from None
            except ray.exceptions.RayActorError as error:
                self._drop(worker, str(type(error).__name__))
                self.retries += 1
                if attempt:
                    raise WorkerLost(f"two {self.kind} workers died under one request") from None
        raise AssertionError("unreachable")

    async def run(self, method: str, *args: Any, deadline: float, wait: bool = True, reserve: int = 0) -> Any:
        """Calls a `method` that cannot be interrupted, and that takes a name of the call as its last argument.

        The deadline is for the work, not for waiting behind others: a worker that has been at one call for longer than
        `deadline` seconds is killed and replaced. Raises Busy if it was this call, InternalError if two workers
        died under it, which is then not tried again, WorkerLost if there is no worker.
        """
        name = secrets.token_hex(8)
        deaths = 0
        for _ in range(MOST_WORKERS_TRIED):
            worker = await self._member(reserve, wait)
            try:
                with self._at(worker):
                    answer = await self._patiently(worker, method, *args, name, deadline=deadline)
                return unwrap(answer)
            except ray.exceptions.RayActorError as error:
                deaths += worker not in self._killed
                self._drop(worker, str(type(error).__name__))
                self.retries += 1
                if deaths == 2:
                    raise InternalError(
                        f"two {self.kind} workers died under one batch; it is not tried again"
                    ) from None
        raise Busy(f"{MOST_WORKERS_TRIED} {self.kind} workers were replaced while a batch waited at them; ask again")

    async def _patiently(self, worker: Any, method: str, *args: Any, deadline: float) -> Any:
        """The answer, however long others keep the worker from it. `args` end with the call's name."""
        answer = asyncio.ensure_future(_answer(getattr(worker, method).remote(*args)))
        try:
            while True:
                done, _ = await asyncio.wait({answer}, timeout=deadline)
                if done:
                    return answer.result()
                running = await self._running(worker)
                mine = running is None or running.get(args[-1], 0.0) >= deadline * AT_LEAST
                if mine or max((running or {}).values(), default=0.0) >= deadline:
                    self._killed.add(worker)
                    self._drop(worker, "it went past its deadline", kill=True)
                if mine:
                    raise Busy(f"a {self.kind} request took longer than {deadline:g} s")
        finally:
            answer.cancel()

    async def _running(self, worker: Any) -> dict[str, float] | None:
        """Calls that the worker is at, with the seconds since they began; None if it does not even say that."""
        try:
            async with asyncio.timeout(STATE_PATIENCE):
                return await worker.running.remote()
        except TimeoutError:
            return None
        except ray.exceptions.RayActorError:
            return {}  # the call itself says so next

    @contextmanager
    def _at(self, worker: Any) -> Iterator[None]:
        """Counts a request at a worker."""
        self.requests += 1
        self._busy[worker] = self._busy.get(worker, 0) + 1
        try:
            yield
        finally:
            if worker in self._busy:
                self._busy[worker] -= 1

    def keep_awake(self) -> None:
        """Speaks to the first worker, which a check will need soon; not waited for."""
        if self._handles:
            self._handles[0].ping.remote()

    def _drop(self, worker: Any, why: str, kill: bool = False) -> None:
        if worker in self._lost:
            return
        self._lost.add(worker)
        self._handles = [handle for handle in self._handles if handle != worker]
        self._busy.pop(worker, None)
        self._report(worker, why)
        if kill:
            ray.kill(worker)


async def _answer(reference: Any) -> Any:
    """An object reference as a coroutine."""
    return await reference
