"""A soak run of some seconds: everything it is made of works and finds nothing wrong, and what is wrong fails it."""

import json
from io import StringIO

import pytest
from rich.console import Console

from tests.soak.plan import Declaration
from tests.soak.report import show
from tests.soak.run import Plan, soak
from tests.soak.tally import Outage, Reading, Tally


@pytest.mark.cluster
def test_some_seconds_of_it(ray_session: None) -> None:
    tally = soak(
        Plan(seconds=8, seed=7, clients=2, kill_every=3, flood_every=3, flood_for=2, settings=(("script_workers", 1),))
    )
    assert tally.failures() == []
    assert tally.compared > 0
    assert tally.readings
    json.dumps(tally.to_dict())
    out = StringIO()
    show(tally, Console(file=out, width=120))
    assert "nothing went wrong" in out.getvalue()


def readings(memory: list[int]) -> list[Reading]:
    return [Reading(float(n), size << 20, 100, 1 << 20, 9) for n, size in enumerate(memory)]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (Tally(mismatches=["complete on 00: invalid x, not None"]), "verdict: complete"),
        (Tally(faults=["client 1 hangs"]), "client 1 hangs"),
        (Tally(outages=[Outage("fetch", 3.0, False)]), "fetch did not come back"),
        (Tally(outages=[Outage("script", 61.0, True)]), "script did not come back"),
        (Tally(readings=readings([500] * 10 + [900] * 10)), "memory grew"),
    ],
)
def test_what_is_wrong_fails_the_run(wrong: Tally, says: str) -> None:
    assert [failure for failure in wrong.failures() if says in failure]


def test_what_is_as_it_was_does_not() -> None:
    assert Tally(readings=readings([400, 500, 520, 510] * 5), outages=[Outage("fetch", 2.0, True)]).failures() == []


def test_positions_beyond_what_there_is_to_supply_are_left_out() -> None:
    assert Declaration("silent", "00", [], None, ["11" * 32]).raws([0]) == []
