"""A node's ZMQ notifications as a stream of notes that says where something was lost.

ZMQ drops messages when a queue is full or a connection breaks. Each message carries a number per publisher, so a gap
shows with the message after it; a publisher's first message, and the first after a broken connection, count as gaps
too, since nobody knows what came before them. What to do about a gap is the follower's business.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import TracebackType
from typing import Any

import zmq
import zmq.asyncio
from zmq.utils.monitor import parse_monitor_message

from models.errors import SettingsError

__all__ = ["MempoolChange", "Note", "Notifications", "Topic", "parse_sequence"]

HIGH_WATER_MARK = 100_000  # messages that may wait here; Core's own default for what waits there is 1,000
MOST_AT_ONCE = 2000  # messages handed over together


class Topic(StrEnum):
    """What is listened to (Core: doc/zmq.md), and what the connection itself has to say."""

    RAWBLOCK = "rawblock"
    RAWTX = "rawtx"
    SEQUENCE = "sequence"
    CONNECTION = "connection"  # came up, or broke


@dataclass(frozen=True, slots=True)
class Note:
    """One message. `lost`: before it, messages of this topic may be missing."""

    topic: Topic
    body: bytes
    lost: bool = False


@dataclass(frozen=True, slots=True)
class MempoolChange:
    """A transaction that entered the node's mempool (`added`), or left it otherwise than by a block."""

    added: bool
    txid: bytes  # internal order
    number: int  # the mempool's own count of changes


def parse_sequence(body: bytes) -> MempoolChange | None:
    """The meaning of a `sequence` message; None for a block that was connected or taken back, and for what is unknown.

    Layout (Core: zmqpublishnotifier.cpp): hash 32, in display order; one letter; for A and R a u64, little-endian.
    """
    if len(body) != 41 or body[32:33] not in (b"A", b"R"):
        return None
    return MempoolChange(body[32:33] == b"A", body[31::-1], int.from_bytes(body[33:], "little"))


class Notifications:
    """Subscriptions to one or several of the node's ZMQ addresses. Open it with `async with`."""

    def __init__(self, addresses: Sequence[str]):
        """Raises SettingsError for an address that is none."""
        for address in addresses:
            if not address.startswith(("tcp://", "ipc://")) or len(address) <= len("tcp://"):
                raise SettingsError(f"--zmq {address!r} must be like tcp://127.0.0.1:28332")
        self.addresses = list(dict.fromkeys(addresses))
        self.messages = 0
        self.gaps = 0
        self._context: zmq.asyncio.Context | None = None
        self._sockets: dict[Any, str] = {}  # socket -> address
        self._monitors: dict[Any, str] = {}
        self._expected: dict[tuple[str, str], int] = {}  # (address, topic) -> number of the next message
        self._poller = zmq.asyncio.Poller()

    async def __aenter__(self) -> "Notifications":
        self._context = zmq.asyncio.Context()
        for address in self.addresses:
            socket = self._context.socket(zmq.SUB)
            socket.set(zmq.RCVHWM, HIGH_WATER_MARK)
            socket.set(zmq.LINGER, 0)
            socket.set(zmq.TCP_KEEPALIVE, 1)
            socket.set(zmq.RECONNECT_IVL, 200)  # milliseconds
            socket.set(zmq.RECONNECT_IVL_MAX, 5000)
            for topic in (Topic.RAWBLOCK, Topic.RAWTX, Topic.SEQUENCE):
                socket.subscribe(topic.value.encode())
            monitor = socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
            try:
                socket.connect(address)
            except zmq.ZMQError as error:
                await self.close()
                raise SettingsError(f"--zmq {address!r} cannot be used: {error}") from None
            self._sockets[socket] = address
            self._monitors[monitor] = address
            self._poller.register(socket, zmq.POLLIN)
            self._poller.register(monitor, zmq.POLLIN)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends the subscriptions. Harmless to repeat."""
        for socket in self._sockets:
            socket.disable_monitor()
        for socket in (*self._sockets, *self._monitors):
            socket.close(0)
        self._sockets.clear()
        self._monitors.clear()
        self._poller = zmq.asyncio.Poller()
        if self._context is not None:
            self._context.term()
            self._context = None

    async def next(self, patience: float) -> list[Note]:
        """What has arrived, at least one note if any comes within `patience` seconds, in order per address."""
        ready = dict(await self._poller.poll(patience * 1000))
        notes: list[Note] = []
        for socket in ready:
            if socket in self._monitors:
                notes += await self._connection_notes(socket)
        for socket in ready:
            if socket in self._sockets:
                notes += await self._messages_of(socket)
        return notes

    async def _connection_notes(self, monitor: Any) -> list[Note]:
        address = self._monitors[monitor]
        notes: list[Note] = []
        while True:
            try:
                event = parse_monitor_message(await monitor.recv_multipart(zmq.NOBLOCK))
            except zmq.Again:
                return notes
            if event["event"] in (zmq.EVENT_HANDSHAKE_SUCCEEDED, zmq.EVENT_DISCONNECTED):
                self._expected = {key: n for key, n in self._expected.items() if key[0] != address}
                notes.append(Note(Topic.CONNECTION, address.encode(), lost=True))

    async def _messages_of(self, socket: Any) -> list[Note]:
        notes: list[Note] = []
        while len(notes) < MOST_AT_ONCE:
            try:
                parts = await socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                break
            note = self._note_of(self._sockets[socket], parts)
            if note is not None:
                notes.append(note)
            if len(notes) % 200 == 199:
                await asyncio.sleep(0)
        return notes

    def _note_of(self, address: str, parts: list[bytes]) -> Note | None:
        if len(parts) != 3 or len(parts[2]) != 4:
            return None
        name = parts[0].decode("latin-1")
        if name not in (Topic.RAWBLOCK, Topic.RAWTX, Topic.SEQUENCE):
            return None  # subscriptions match beginnings of names
        self.messages += 1
        number = int.from_bytes(parts[2], "little")
        lost = self._expected.get((address, name)) != number
        self.gaps += lost
        self._expected[address, name] = (number + 1) & 0xFFFFFFFF
        return Note(Topic(name), parts[1], lost)
