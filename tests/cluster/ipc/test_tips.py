"""Waiting for a tip: change, time-out, interrupt, and nothing running while nobody waits."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from cluster.ipc.tips import LONGEST, Interrupt, TipWatch, seconds_of
from models.consensus.context import Tip, TipVersion
from models.storage.tipfile import TipWriter

OLD, NEW = bytes(32), bytes(31) + b"\x01"
Waiting = Callable[[TipWriter, TipWatch, Interrupt], Coroutine[Any, Any, None]]


def on_a_store(path: Path, test: Waiting) -> None:
    async def run() -> None:
        writer = TipWriter(path)
        writer.publish(Tip(OLD, 7, TipVersion(1, 1)))
        watch = TipWatch(path)
        try:
            await test(writer, watch, Interrupt())
        finally:
            watch.close()
            writer.close()

    asyncio.run(run())


def test_wakes_when_the_tip_is_another(tmp_path: Path) -> None:
    async def test(writer: TipWriter, watch: TipWatch, interrupt: Interrupt) -> None:
        waiting = asyncio.create_task(watch.wait(OLD, LONGEST, interrupt))
        await asyncio.sleep(0.02)
        assert not waiting.done()
        writer.publish(Tip(NEW, 8, TipVersion(1, 2)))
        found = await asyncio.wait_for(waiting, 5)
        assert found is not None and (found.hash, found.height) == (NEW, 8)

    on_a_store(tmp_path, test)


def test_a_tip_that_is_another_already_is_answered_at_once(tmp_path: Path) -> None:
    async def test(writer: TipWriter, watch: TipWatch, interrupt: Interrupt) -> None:
        found = await asyncio.wait_for(watch.wait(NEW, LONGEST, interrupt), 5)
        assert found is not None and found.hash == OLD

    on_a_store(tmp_path, test)


def test_a_tip_that_went_and_came_back_does_not_end_a_wait(tmp_path: Path) -> None:
    async def test(writer: TipWriter, watch: TipWatch, interrupt: Interrupt) -> None:
        waiting = asyncio.create_task(watch.wait(OLD, LONGEST, interrupt))
        await asyncio.sleep(0.02)
        writer.publish(Tip(OLD, 7, TipVersion(1, 3)))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        waiting.cancel()

    on_a_store(tmp_path, test)


def test_time_out_gives_the_tip_as_it_is(tmp_path: Path) -> None:
    async def test(writer: TipWriter, watch: TipWatch, interrupt: Interrupt) -> None:
        found = await asyncio.wait_for(watch.wait(OLD, 0.01, interrupt), 5)
        assert found is not None and found.hash == OLD

    on_a_store(tmp_path, test)


def test_interrupt_ends_every_wait_that_is_under_way_and_no_later_one(tmp_path: Path) -> None:
    async def test(writer: TipWriter, watch: TipWatch, interrupt: Interrupt) -> None:
        waiting = [asyncio.create_task(watch.wait(OLD, LONGEST, interrupt)) for _ in range(3)]
        await asyncio.sleep(0.01)
        interrupt.set()
        assert await asyncio.wait_for(asyncio.gather(*waiting), 5) == [None, None, None]
        assert await asyncio.wait_for(watch.wait(OLD, 0.01, interrupt), 5) is not None

    on_a_store(tmp_path, test)


def test_interrupt_while_nobody_waits_ends_the_next_wait_only(tmp_path: Path) -> None:
    async def test(writer: TipWriter, watch: TipWatch, interrupt: Interrupt) -> None:
        interrupt.set()
        assert await asyncio.wait_for(watch.wait(OLD, LONGEST, interrupt), 5) is None
        assert await asyncio.wait_for(watch.wait(OLD, 0.01, interrupt), 5) is not None

    on_a_store(tmp_path, test)


def test_nothing_is_looked_at_while_nobody_waits(tmp_path: Path) -> None:
    async def test(writer: TipWriter, watch: TipWatch, interrupt: Interrupt) -> None:
        waiting = asyncio.create_task(watch.wait(OLD, LONGEST, interrupt))
        await asyncio.sleep(0.01)
        waiting.cancel()
        await asyncio.sleep(0.05)
        assert not interrupt.waiters
        assert len(asyncio.all_tasks()) == 1  # this one

    on_a_store(tmp_path, test)


@pytest.mark.parametrize(
    ("milliseconds", "seconds"),
    [(1500.0, 1.5), (0.0, 0.0), (-1.0, 0.0), (float("nan"), 0.0), (float("inf"), LONGEST), (1.7e308, LONGEST)],
)
def test_time_outs_of_clients(milliseconds: float, seconds: float) -> None:
    assert seconds_of(milliseconds) == seconds
