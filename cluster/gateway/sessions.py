"""Clients, what each of them holds, and what each may hold. A client is a user and a session: the connection it calls
on, or a name of its own choosing that outlives connections.

A collection is found by its id and only by the client that made it. It is freed when it is closed, when nobody has used
it for long, and when its client's connection ends; a call that is under way is let finish first.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from cluster.gateway.jsonrpc import INVALID_PARAMETER, RpcError
from models.errors import Busy, CollectionLost
from models.quotas import check_collections, check_pending, check_supplied

__all__ = ["Held", "Session", "Sessions"]

MAX_SESSION_NAME = 64  # characters
_ID_SHOWN = 8  # characters of a collection's id in logs; the rest is its secret


@dataclass(slots=True, eq=False)
class Held:
    """One collection: which actor holds it under which key, and what was supplied to it."""

    key: str
    actor: Any
    size: int  # transactions
    unknown: int
    supplied: int = 0  # bytes
    calls: int = 0  # under way
    closed: bool = False
    used: float = field(default_factory=time.monotonic)

    @property
    def prefix(self) -> str:
        """Enough of its id to recognise it in a log, too little to use it."""
        return self.key[:_ID_SHOWN]


@dataclass(slots=True, eq=False)
class Session:
    """One client."""

    user: str
    name: str
    on_connection: bool
    held: dict[str, Held] = field(default_factory=dict)
    opening: int = 0  # collections that are being made
    pending: int = 0
    ended: bool = False

    @property
    def label(self) -> str:
        """How logs name it."""
        return f"{self.user}/{self.name}"

    @property
    def supplied(self) -> int:
        """Bytes that were supplied to its open collections."""
        return sum(held.supplied for held in self.held.values())


class Sessions:
    """All clients. `free(actor, key)` lets a collection go; limits come from the settings."""

    def __init__(self, settings: dict[str, Any], free: Callable[[Any, str], None]):
        self._settings = settings
        self._free = free
        self._sessions: dict[tuple[str, str, bool], Session] = {}
        self._connections: dict[Any, list[Session]] = {}
        self._numbers = 0
        self._names: dict[Any, str] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def collections(self) -> int:
        """How many are open or being opened."""
        return sum(len(session.held) + session.opening for session in self._sessions.values())

    @property
    def pending(self) -> int:
        """Calls that wait for an answer."""
        return sum(session.pending for session in self._sessions.values())

    # Who calls --------------------------------------------------------------------------------------------------

    def of(self, user: str, connection: Any, name: str | None) -> Session:
        """The client that a request belongs to. Raises RpcError for a name that is none."""
        if name is not None:
            if not 0 < len(name) <= MAX_SESSION_NAME or not name.isprintable():
                text = f"a session's name must have 1 to {MAX_SESSION_NAME} printable characters"
                raise RpcError(INVALID_PARAMETER, text)
            return self._session(user, name, False)
        if connection not in self._names:
            self._numbers += 1
            self._names[connection] = f"connection-{self._numbers}"
        session = self._session(user, self._names[connection], True)
        on_it = self._connections.setdefault(connection, [])
        if session not in on_it:
            on_it.append(session)
        return session

    def _session(self, user: str, name: str, on_connection: bool) -> Session:
        key = (user, name, on_connection)
        if key not in self._sessions:
            self._sessions[key] = Session(user, name, on_connection)
        return self._sessions[key]

    def connection_lost(self, connection: Any) -> None:
        """Everything that was made on a connection without a session's name goes."""
        self._names.pop(connection, None)
        for session in self._connections.pop(connection, []):
            self._end(session)

    def _end(self, session: Session) -> None:
        session.ended = True
        for held in list(session.held.values()):
            self.close(session, held)
        self._forget_if_empty(session)

    def _forget_if_empty(self, session: Session) -> None:
        if session.held or session.pending or session.opening:
            return
        if session.ended or not session.on_connection:
            self._sessions.pop((session.user, session.name, session.on_connection), None)

    def end_all(self) -> None:
        """The gateway closes."""
        for session in list(self._sessions.values()):
            self._end(session)

    # What they may do -------------------------------------------------------------------------------------------

    @contextmanager
    def calling(self, session: Session) -> Iterator[None]:
        """Counts a request of a client while it is answered. Raises Busy beyond `pending_calls_per_client`."""
        check_pending(session.pending, self._settings["pending_calls_per_client"])
        session.pending += 1
        try:
            yield
        finally:
            session.pending -= 1
            self._forget_if_empty(session)

    @contextmanager
    def opening(self, session: Session) -> Iterator[None]:
        """Reserves room for one more collection. Raises Busy if there is none."""
        check_collections(len(session.held) + session.opening, self._settings["max_collections_per_client"])
        if self.collections >= self._settings["max_collections"]:
            raise Busy(f"{self.collections} collections are open here, the most that are allowed")
        session.opening += 1
        try:
            yield
        finally:
            session.opening -= 1

    def add(self, session: Session, held: Held) -> None:
        """A collection was made. If its client went meanwhile, it goes too."""
        session.held[held.key] = held
        if session.ended:
            self.close(session, held)

    @contextmanager
    def using(self, session: Session, key: str) -> Iterator[Held]:
        """The collection with this id, for one call. Raises CollectionLost for an id of nobody's, or of another's."""
        held = session.held.get(key)
        if held is None:
            raise CollectionLost(
                "this client has no collection with this id: it was closed, nobody used it for too long, its session "
                "has ended, or it belongs to another client"
            )
        held.used = time.monotonic()
        held.calls += 1
        try:
            yield held
        finally:
            held.calls -= 1
            held.used = time.monotonic()
            if held.closed and not held.calls:
                self._free(held.actor, held.key)

    def room_for(self, session: Session, size: int) -> None:
        """Raises Busy if so many more supplied bytes are too many."""
        check_supplied(session.supplied, size, self._settings["supplied_bytes_per_client"])

    def close(self, session: Session, held: Held) -> None:
        """Forgets a collection at once, and frees it when the calls on it have ended."""
        if session.held.pop(held.key, None) is None:
            return
        held.closed = True
        if not held.calls:
            self._free(held.actor, held.key)

    def lose(self, session: Session, key: str) -> None:
        """Forgets a collection whose actor died."""
        session.held.pop(key, None)

    def sweep(self) -> None:
        """Closes what nobody has used for long."""
        oldest = time.monotonic() - self._settings["collection_idle_s"]
        for session in list(self._sessions.values()):
            for held in list(session.held.values()):
                if held.used < oldest and not held.calls:
                    self.close(session, held)
            self._forget_if_empty(session)
