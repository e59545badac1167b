"""Expected errors travel as values (see `models.messages`): what every actor method that may fail is wrapped in."""

import functools
import inspect
import logging
from collections.abc import Callable
from typing import Any

from ray.exceptions import RayActorError

from models.errors import InternalError, TxCollectionError, WorkerLost
from models.messages import failed, ok

__all__ = ["answers"]

log = logging.getLogger("txcollection")


def answers(method: Callable[..., Any]) -> Callable[..., Any]:
    """Makes a method return `("ok", value)` or `("error", class, text)`; a bug of ours is logged and becomes an
    InternalError, so that a caller never meets a traceback of another process."""

    def describe(error: Exception) -> tuple[Any, ...]:
        if isinstance(error, TxCollectionError):
            return failed(error)
        if isinstance(error, RayActorError):
            return failed(WorkerLost(f"another actor died under {method.__name__}; ask again ({type(error).__name__})"))
        log.exception("unexpected error in %s", method.__qualname__)
        return failed(InternalError(f"{method.__name__}: {type(error).__name__}: {error}"))

    if inspect.iscoroutinefunction(method):

        @functools.wraps(method)
        async def run_async(*args: Any, **kwargs: Any) -> tuple[Any, ...]:
            try:
                return ok(await method(*args, **kwargs))
            except Exception as error:
                return describe(error)

        return _opaque(run_async)

    @functools.wraps(method)
    def run(*args: Any, **kwargs: Any) -> tuple[Any, ...]:
        try:
            return ok(method(*args, **kwargs))
        except Exception as error:
            return describe(error)

    return _opaque(run)


def _opaque(wrapper: Callable[..., Any]) -> Callable[..., Any]:
    """Ray unwraps methods before it looks for what `ray.method` noted on them; this one is to be taken as it is."""
    wrapper.__signature__ = inspect.signature(wrapper)  # type: ignore[attr-defined]
    del wrapper.__wrapped__  # type: ignore[attr-defined]
    return wrapper
