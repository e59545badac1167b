"""Errors in the words that Core's clients know: the exception of the other side is always `std::exception: <text>`.

pycapnp makes that text itself, in two ways. An exception raised at a call's arrival, before it returns a coroutine, is
named by the repr of its class and arrives word for word as Core's. One that comes later is formatted as a traceback, of
which only the last line may be left; it arrives as `message = std::exception: <text>`.
"""

import logging
from typing import Any

from models.errors import DecodeError, TxCollectionError

__all__ = ["Refused", "RefusedLater", "later", "refused", "undecodable"]

_AS_IN_CORE = "std::exception"
_END_OF_DATA = "SpanReader::read(): end of data: "

log = logging.getLogger("txcollection.ipc")


class _NamedAsInCore(type):
    def __repr__(cls) -> str:
        return _AS_IN_CORE


class Refused(Exception, metaclass=_NamedAsInCore):
    """To be raised at arrival. Its class's repr, a colon and its str make up the text at the client."""

    def __str__(self) -> str:
        return f" {self.args[0]}"


class RefusedLater(Exception, metaclass=_NamedAsInCore):
    """To be raised by a coroutine: it has neither traceback nor cause, so that none is sent to the client."""

    __traceback__ = property(lambda self: None, lambda self, value: None)
    __context__ = property(lambda self: None, lambda self, value: None)
    __cause__ = property(lambda self: None, lambda self, value: None)


RefusedLater.__module__ = "builtins"  # is not shown in front of the name
RefusedLater.__qualname__ = _AS_IN_CORE


def _text(error: Any) -> str:
    """What Core would say, or what we have to say, in one line."""
    if isinstance(error, DecodeError):
        return f"{_END_OF_DATA}{error}"
    return str(error)


def undecodable(what: str) -> Refused:
    """Bytes that are not what they should be, as Core reports them."""
    return Refused(f"{_END_OF_DATA}{what}")


def refused(error: TxCollectionError | str) -> Refused:
    """An expected error, found at arrival."""
    return Refused(_text(error))


def later(error: BaseException, method: str) -> RefusedLater:
    """An error met while a call was carried out; a bug of ours is logged and named, never shown."""
    if isinstance(error, RefusedLater):
        return error
    if isinstance(error, Refused):
        return RefusedLater(error.args[0])
    if isinstance(error, TxCollectionError):
        return RefusedLater(_text(error))
    log.error("unexpected error in %s", method, exc_info=error)
    return RefusedLater(f"internal error in {method}: {type(error).__name__}")
