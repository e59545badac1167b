"""What every actor method that may fail is wrapped in: errors become values, and Ray still sees the method's group."""

import asyncio
import inspect
from typing import Any

import pytest
import ray

from actors.answers import answers
from actors.chainstate import ChainstateActor
from actors.fetch import FetchWorker
from actors.script import ScriptWorker
from models.errors import ClientError, InternalError, StaleView
from models.messages import unwrap


@answers
def divide(a: int, b: int) -> float:
    if b < 0:
        raise ClientError("no negative numbers")
    return a / b


@answers
async def divide_later(a: int, b: int) -> float:
    await asyncio.sleep(0)
    return divide(a, b)[1] if b else a / b


def test_a_value_comes_through() -> None:
    assert unwrap(divide(6, 3)) == 2
    assert unwrap(asyncio.run(divide_later(6, 3))) == 2


def test_an_expected_error_is_raised_again_at_the_caller_with_its_text() -> None:
    assert divide(1, -1) == ("error", "ClientError", "no negative numbers")
    with pytest.raises(ClientError, match="^no negative numbers$"):
        unwrap(divide(1, -1))


@pytest.mark.parametrize("answer", [lambda: divide(1, 0), lambda: asyncio.run(divide_later(1, 0))])
def test_a_bug_becomes_an_internal_error_and_never_a_verdict(answer: Any) -> None:
    with pytest.raises(InternalError, match="ZeroDivisionError"):
        unwrap(answer())


def test_an_error_of_another_version_is_an_internal_error() -> None:
    with pytest.raises(InternalError, match="from the future"):
        unwrap(("error", "NoSuchError", "from the future"))
    with pytest.raises(StaleView):
        unwrap(("error", "StaleView", "moved"))


@pytest.mark.parametrize("cls", [ChainstateActor, FetchWorker, ScriptWorker])
def test_ray_sees_the_group_of_every_method(cls: Any) -> None:
    """Ray looks below `functools.wraps` for it: a method it does not find waits in a queue of one behind all others."""
    methods = ray.remote(**cls.RAY_OPTIONS)(cls).__ray_metadata__.method_meta.concurrency_group_for_methods
    public = [name for name, _ in inspect.getmembers(cls, inspect.isfunction) if not name.startswith("_")]
    assert sorted(methods) == sorted(public)
