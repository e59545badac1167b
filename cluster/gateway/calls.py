"""One RPC call and what answers it: the things that methods share, whatever they are about."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from cluster.declaration_log import DeclarationLog
from cluster.gateway.facts import Facts
from cluster.gateway.peers import Peers
from cluster.gateway.sessions import Session, Sessions
from cluster.metrics import Metrics

__all__ = ["Call", "House", "off_loop"]

T = TypeVar("T")

BIG = 64 * 1024  # bytes of text from which on it is worked on in a thread


@dataclass(slots=True)
class House:
    """What a gateway is made of, for its methods."""

    store: Path
    settings: dict[str, Any]
    peers: Peers
    facts: Facts
    sessions: Sessions
    metrics: Metrics
    log: DeclarationLog
    client: str  # under this name collections are opened
    started: float  # Unix time of the node's start
    stop: Callable[[], None]  # ends the node once the answer is on its way


@dataclass(slots=True)
class Call:
    """Who calls: the user, the connection, and the session's name that the request bears, if any."""

    house: House
    user: str
    connection: Any
    named: str | None
    _own: Session | None = None

    def session(self, name: str | None = None) -> Session:
        """The client; a name given as an argument goes before that of the request. Raises RpcError for a bad one."""
        if name is not None:
            return self.house.sessions.of(self.user, self.connection, name)
        if self._own is None:  # found once: the connection may end while the call is under way
            self._own = self.house.sessions.of(self.user, self.connection, self.named)
        return self._own


async def off_loop(size: int, function: Callable[..., T], *args: Any) -> T:
    """Runs what takes long for large input in a thread, and at once what does not, so that nobody waits for either."""
    if size < BIG:
        return function(*args)
    return await asyncio.to_thread(function, *args)
