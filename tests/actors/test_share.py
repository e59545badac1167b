"""Turns at work that only one can do at a time: equal shares, and whoever has used least goes first."""

import asyncio
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.share import FairShare


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


async def work(share: FairShare, clock: Clock, client: str, cost: float, done: list[str]) -> None:
    async with share.turn(client):
        clock.now += cost
        done.append(client)


@given(st.lists(st.floats(2.0, 20.0), min_size=16, max_size=16))
def test_sixteen_clients_who_always_want_more_get_equal_shares_of_time_whatever_one_turn_costs(
    costs: list[float],
) -> None:
    """No turn is interrupted: who asks anew waits for one to end, so that much shorter turns cannot fill a share."""
    used = time_used(costs)
    mean = sum(used.values()) / 16
    assert all(mean / 2 < time < mean * 2 for time in used.values())


@pytest.mark.parametrize("short", [0.01, 0.1, 0.5])
def test_a_client_whose_turns_are_very_short_has_no_fewer_of_them_than_others(short: float) -> None:
    used = time_used([short, *[20.0] * 15])
    assert round(used.pop("0") / short) >= max(used.values()) / 20.0


def time_used(costs: list[float]) -> Counter[str]:
    """What clients whose turns cost this have after a while in which all want one turn after another."""

    async def flood() -> Counter[str]:
        clock, share = Clock(), FairShare(clock=lambda: clock.now)
        used: Counter[str] = Counter()

        async def client(name: str, cost: float) -> None:
            while clock.now < 4000:
                async with share.turn(name):
                    clock.now += cost
                    used[name] += cost  # type: ignore[assignment]
                await asyncio.sleep(0)

        await asyncio.gather(*(client(str(n), cost) for n, cost in enumerate(costs)))
        return used

    return asyncio.run(flood())


def test_a_client_with_many_calls_gets_no_more_than_one_with_few() -> None:
    async def flood() -> list[str]:
        clock, share, done = Clock(), FairShare(), []
        share._clock = clock
        greedy = [asyncio.create_task(work(share, clock, "greedy", 1, done)) for _ in range(50)]
        await asyncio.sleep(0)
        modest = [asyncio.create_task(work(share, clock, "modest", 1, done)) for _ in range(5)]
        await asyncio.gather(*greedy, *modest)
        return done

    assert asyncio.run(flood())[:11].count("modest") == 5


def test_a_newcomer_goes_before_everybody_who_has_used_much() -> None:
    async def arrive() -> list[str]:
        clock, share, done = Clock(), FairShare(), []
        share._clock = clock
        old = [asyncio.create_task(work(share, clock, f"old {n % 4}", 10, done)) for n in range(40)]
        while len(done) < 12:
            await asyncio.sleep(0)
        so_far = len(done)
        new = asyncio.create_task(work(share, clock, "new", 0.1, done))
        await asyncio.gather(*old, new)
        return done[so_far:]

    assert "new" in asyncio.run(arrive())[:3]


def test_a_call_given_up_while_it_waits_leaves_the_turn_to_others() -> None:
    async def give_up() -> list[str]:
        clock, share, done = Clock(), FairShare(), []
        share._clock = clock
        gate = asyncio.Event()

        async def hold() -> None:
            async with share.turn("first"):
                await gate.wait()

        first = asyncio.create_task(hold())
        await asyncio.sleep(0)
        waiting = [asyncio.create_task(work(share, clock, str(n), 1, done)) for n in range(3)]
        await asyncio.sleep(0)
        waiting[1].cancel()
        await asyncio.sleep(0)
        assert share.waiting == 2
        gate.set()
        await first
        waiting[0].cancel()  # it may have been given the turn in this very moment
        await asyncio.gather(*waiting, return_exceptions=True)
        assert share.waiting == 0
        await work(share, clock, "last", 1, done)
        return done

    assert asyncio.run(give_up()) in (["2", "last"], ["0", "2", "last"])


def test_an_error_in_a_turn_ends_the_turn() -> None:
    async def fail() -> None:
        share = FairShare()
        with pytest.raises(ValueError, match="mistake"):
            async with share.turn("a"):
                raise ValueError("mistake")
        async with share.turn("b"):
            pass

    asyncio.run(fail())
