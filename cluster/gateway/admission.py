"""How much a gateway takes on at a time: requests, and bytes of their bodies. What is above it is refused before it is
read, so that a flood costs little.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from aiohttp import web

from models.errors import Busy, TxCollectionError

__all__ = ["Admission", "TooLarge"]

SILENCE = 30.0  # seconds between two pieces of a body (Core: -rpcservertimeout)


class TooLarge(TxCollectionError):
    """A request body above the limit."""


class Admission:
    """Slots for requests under way, and room for their bodies."""

    def __init__(self, slots: int, body_limit: int, bodies_limit: int):
        self.slots = slots
        self.used = 0
        self.bytes = 0
        self._body_limit = body_limit
        self._bodies_limit = bodies_limit

    @contextmanager
    def slot(self) -> Iterator[None]:
        """Holds one. Raises Busy if all are taken."""
        if self.used >= self.slots:
            raise Busy(f"{self.used} requests are under way, the most that are allowed: try again later")
        self.used += 1
        try:
            yield
        finally:
            self.used -= 1

    @contextmanager
    def room(self, size: int) -> Iterator[None]:
        """Holds bytes. Raises Busy if there are too many on their way already."""
        if self.bytes + size > self._bodies_limit:
            raise Busy(f"{self.bytes} bytes of requests are under way; {size} more are too many: try again later")
        self.bytes += size
        try:
            yield
        finally:
            self.bytes -= size

    def expected(self, request: web.BaseRequest) -> int:
        """Bytes to make room for: what the request says of itself, or the most that it may have. Raises TooLarge."""
        said = request.content_length
        if said is None:
            return self._body_limit if request.can_read_body else 0
        if said > self._body_limit:
            raise self._too_large()
        return said

    def _too_large(self) -> TooLarge:
        return TooLarge(f"the request is larger than the {self._body_limit} bytes that are allowed")

    async def read(self, request: web.BaseRequest) -> bytes:
        """The body. Raises TooLarge, Busy if it does not come."""
        pieces: list[bytes] = []
        size = 0
        try:
            while True:
                async with asyncio.timeout(SILENCE):
                    piece = await request.content.readany()
                if not piece:
                    return b"".join(pieces)
                size += len(piece)
                if size > self._body_limit:
                    raise self._too_large()
                pieces.append(piece)
        except TimeoutError:
            raise Busy(f"nothing more of the request came within {SILENCE:g} s") from None
