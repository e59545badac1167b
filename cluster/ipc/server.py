"""The server: it takes connections, gives each a session, and ends when it is told to or when its node has ended."""

import asyncio
import itertools
import logging
import os
import secrets
import signal
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import capnp
import ray

from cluster.ipc import socketfile
from cluster.ipc.mining import Mining
from cluster.ipc.node import Node
from cluster.ipc.refusals import refused
from cluster.ipc.rpc import Rpc
from cluster.ipc.schemas import echo, init
from cluster.ipc.session import Limits, Session, ThreadMap
from cluster.runtime import NodeFile, NoNode

__all__ = ["Server"]

LOOK_EVERY = 1.0  # seconds between looks at whether the node lives, and at the parent
NODE_PATIENCE = 15.0  # seconds without an answer after which a node counts as gone

log = logging.getLogger("txcollection.ipc")


class Echo(echo.Echo.Server):
    """Gives back what it is given."""

    def __init__(self, session: Session):
        self._session = session

    def destroy_context(self, context: Any) -> Coroutine[Any, Any, None]:
        """There is nothing to free."""

        async def work() -> None:
            pass

        return self._session.carry_out(context, work)

    def echo_context(self, context: Any) -> Coroutine[Any, Any, None]:
        """The same text."""
        text = context.params.echo

        async def work() -> None:
            context.results.result = text

        return self._session.carry_out(context, work)


class Init(init.Init.Server):
    """What a client meets first."""

    def __init__(self, session: Session):
        self._session = session

    async def construct_context(self, context: Any) -> None:
        """Our thread map; the client's is of no use to us, since we never call it."""
        context.results.threadMap = ThreadMap(self._session)

    def makeMiningOld2_context(self, context: Any) -> Coroutine[Any, Any, None]:
        """For clients of an interface that is gone."""
        raise refused("Old mining interface (@2) not supported. Please update your client!")

    def makeEcho_context(self, context: Any) -> Coroutine[Any, Any, None]:
        """An `Echo`."""
        return self._make(context, Echo)

    def makeMining_context(self, context: Any) -> Coroutine[Any, Any, None]:
        """A `Mining`."""
        return self._make(context, Mining)

    def makeRpc_context(self, context: Any) -> Coroutine[Any, Any, None]:
        """An `Rpc`."""
        return self._make(context, Rpc)

    def _make(self, context: Any, kind: Callable[[Session], Any]) -> Coroutine[Any, Any, None]:
        async def work() -> None:
            context.results.result = kind(self._session)

        return self._session.carry_out(context, work)


class Server:
    """One socket in front of one node."""

    def __init__(self, node: Node, store: Path, limits: Limits):
        self._node = node
        self._store = store
        self._limits = limits
        self._sessions: set[Session] = set()
        self._numbers = itertools.count(1)
        self._name = f"ipc-{os.getpid()}-{secrets.token_hex(4)}"
        self._end = asyncio.Event()
        self._why = ""

    async def run(self, path: Path, ready: Callable[[], None], with_parent: bool) -> str:
        """Serves until a signal (then it returns nothing), or until the node or the parent is gone: the reason."""
        listening = socketfile.bind(path)
        ours = socketfile.identity(path)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(number, self._end.set)
        watching = [asyncio.create_task(self._watch_node())]
        if with_parent:
            watching.append(asyncio.create_task(self._watch_parent(os.getppid())))
        try:
            server = await capnp.AsyncIoStream.create_unix_server(self._connected, sock=listening)
            ready()
            await self._end.wait()
            server.close()
        finally:
            socketfile.unlink(path, ours)
            for task in watching:
                task.cancel()
            for session in list(self._sessions):
                self._disconnected(session)
            await self._node.close()
        return self._why

    async def _connected(self, stream: Any) -> None:
        number = next(self._numbers)
        session = Session(self._node, self._limits, f"{self._name}-{number}")
        self._sessions.add(session)
        log.info("client %d has connected; %d in all", number, len(self._sessions))
        try:
            await capnp.TwoPartyServer(stream, bootstrap=Init(session)).on_disconnect()
        except capnp.KjException as error:
            log.info("client %d: %s", number, error.description)  # half a message, or one that is too large
        finally:
            self._disconnected(session)
            log.info("client %d has disconnected; %d are left", number, len(self._sessions))

    def _disconnected(self, session: Session) -> None:
        self._sessions.discard(session)
        self._node.speculations.drop_client(session)
        session.close()

    # When to end ------------------------------------------------------------------------------------------------

    def _finish(self, why: str) -> None:
        self._why = why
        self._end.set()

    async def _watch_parent(self, parent: int) -> None:
        while os.getppid() == parent:
            await asyncio.sleep(LOOK_EVERY)
        self._finish("the process that started this one has ended")

    async def _watch_node(self) -> None:
        """Ends the server with its node: clients then see the connection end, as when a Core stops."""
        loop = asyncio.get_running_loop()
        answered = loop.time()
        while True:
            await asyncio.sleep(LOOK_EVERY)
            try:
                found = NodeFile.read(self._store)
                async with asyncio.timeout(NODE_PATIENCE):
                    await self._node.ping()
                answered = loop.time()
            except NoNode:
                return self._finish(f"the node on {self._store} has ended")
            except (ray.exceptions.RayError, TimeoutError):
                if loop.time() - answered > NODE_PATIENCE or found.ended:
                    return self._finish(f"the node on {self._store} does not answer any more")
