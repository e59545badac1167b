"""GatewayActor: serves JSON-RPC over HTTP in a process of its own, so that parsing a client's megabytes delays nobody
else. It holds nothing that a replacement could not do without, except for the clients' connections.
"""

import asyncio
import dataclasses
import logging
import sys
import time
from pathlib import Path
from typing import Any, ClassVar

from actors.answers import answers
from cluster.declaration_log import DeclarationLog
from cluster.gateway.auth import Credentials, remove_cookie, write_cookie
from cluster.gateway.calls import House
from cluster.gateway.facts import Facts
from cluster.gateway.options import GatewayOptions
from cluster.gateway.peers import Peers
from cluster.gateway.service import Service
from cluster.gateway.sessions import Sessions
from cluster.metrics import Metrics
from cluster.runtime import NodeFile, NoNode
from models.errors import SettingsError

__all__ = ["GATEWAY", "GatewayActor"]

GATEWAY = "gateway"  # its kind, for the supervisor
REBIND_PATIENCE = 20.0  # seconds until the port of a predecessor must be free
REBIND_PAUSE = 0.1
STOP_AFTER = 0.2  # seconds in which the answer to `stop` leaves
SWITCH_INTERVAL = 0.0005  # seconds after which a thread that decodes megabytes lets the event loop run

log = logging.getLogger("txcollection")


class GatewayActor:
    """One per node, made by `start_gateway` and registered with the supervisor."""

    RAY_OPTIONS: ClassVar[dict[str, Any]] = {"num_cpus": 0, "max_restarts": 0, "max_concurrency": 1000}

    def __init__(self, store: str, settings: dict[str, Any], options: GatewayOptions):
        sys.setswitchinterval(SWITCH_INTERVAL)
        self._store = Path(store)
        self._settings = settings
        self._options = options
        self._peers = Peers()
        self._service: Service | None = None
        self._starting: asyncio.Task[None] | None = None
        self._sweeping: asyncio.Task[None] | None = None
        self._log: DeclarationLog | None = None

    async def wire(self, directory: dict[str, Any]) -> None:
        """Whom to ask. The first message starts the service."""
        self._peers.set_directory(directory)
        if self._starting is None:
            self._starting = asyncio.create_task(self._start())
            self._starting.add_done_callback(_say_why)

    async def _start(self) -> None:
        options = self._options
        credentials = Credentials(options.users, options.cookie)
        self._log = DeclarationLog(options.log)
        sessions = Sessions(self._settings, self._peers.drop_collection)
        house = House(
            store=self._store,
            settings=self._settings,
            peers=self._peers,
            facts=Facts(self._store, self._peers),
            sessions=sessions,
            metrics=Metrics(),
            log=self._log,
            client=GATEWAY,
            started=_node_started(self._store),
            stop=self._stop_node,
        )
        service = Service(house, credentials, options)
        port = await self._listen(service)
        if options.again:
            self._peers.drop_client(house.client)  # what the clients of a predecessor left behind
        if options.cookie is not None:
            write_cookie(self._store, options.cookie)
        self._options = dataclasses.replace(options, port=port)
        self._service = service
        self._sweeping = asyncio.create_task(self._sweep(sessions))

    async def _listen(self, service: Service) -> int:
        limit = time.monotonic() + (REBIND_PATIENCE if self._options.again else 0)
        while True:
            try:
                return await service.listen()
            except OSError as error:
                if time.monotonic() >= limit:
                    where = f"{self._options.host}:{self._options.port}"
                    raise SettingsError(f"cannot listen on {where}: {error.strerror or error}") from None
            await asyncio.sleep(REBIND_PAUSE)

    @answers
    async def recipe(self) -> tuple[Any, tuple[Any, ...]]:
        """This class, and what a replacement on the same port is made with, once it listens. Raises SettingsError."""
        while self._starting is None:
            await asyncio.sleep(0.01)
        await asyncio.shield(self._starting)
        again = dataclasses.replace(self._options, again=True)
        return GatewayActor, (again,)

    async def _sweep(self, sessions: Sessions) -> None:
        limit = self._settings["collection_idle_s"]
        while True:
            await asyncio.sleep(min(limit / 4, 30))
            sessions.sweep()

    def _stop_node(self) -> None:
        asyncio.get_running_loop().call_later(STOP_AFTER, self._end)

    def _end(self) -> None:
        NodeFile.remove(self._store)  # whoever holds the node sees that, and ends
        self._peers.supervisor.end.remote()

    async def take_log(self) -> list[str]:
        """Lines of the declaration log that wait to be printed."""
        return self._log.take() if self._log is not None else []

    async def close(self) -> None:
        """Ends all connections, frees what they held, takes the cookie away."""
        if self._service is None:
            return
        if self._sweeping is not None:
            self._sweeping.cancel()
        service, self._service = self._service, None
        service.house.sessions.end_all()
        await service.close()
        if self._options.cookie is not None:
            remove_cookie(self._store, self._options.cookie)
        if self._log is not None:
            self._log.close()

    async def stats(self) -> dict[str, Any]:
        """Counters and sizes."""
        counters: dict[str, Any] = {"url": self._options.url, "calls": 0, "sessions": 0, "held": 0}
        if self._service is not None:
            house = self._service.house
            counters["sessions"] = len(house.sessions)
            counters["held"] = house.sessions.collections
            counters["calls"] = house.metrics.total_calls()
            counters["under_way"] = self._service.admission.used
        return counters

    async def ping(self) -> str:
        """Answers as long as the process lives."""
        return GATEWAY


def _say_why(task: "asyncio.Task[None]") -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("the gateway does not serve: %s", error)


def _node_started(store: Path) -> float:
    try:
        return float(NodeFile.read(store).started)
    except NoNode:
        return time.time()
