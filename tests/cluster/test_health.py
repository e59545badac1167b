"""What turns a node's health red: each reason alone, on facts made by hand."""

from typing import Any

import pytest

from cluster.health import NodeLook, TipFacts, judge

SETTINGS: dict[str, Any] = {
    "fetch_workers": 0,
    "script_workers": 2,
    "template_actors": 1,
    "collection_warm": 0,
    "tip_old_s": 100,
    "now": None,
}
TIP = TipFacts("00" * 32, 125, 1_000)


def stats(**changes: Any) -> dict[str, Any]:
    actors = {name: {} for name in ("chainstate-1", "mempool-2", "fetch-3", "script-4", "script-5", "template-6")}
    return {**actors, "supervisor": {}, **{name.replace("_", "-"): value for name, value in changes.items()}}


def look(**changes: Any) -> NodeLook:
    return NodeLook(**{"stats": stats(), "tip": TIP, "taken": 1_050.0} | changes)


def following(**changes: Any) -> dict[str, Any]:
    good = {"node": "http://node:8332", "alive": True, "ready": True, "written": 1_049, "node_height": 125}
    return good | {"state": "following", "detail": "", "height": 125} | changes


def whats(seen: NodeLook, **settings: Any) -> list[str]:
    return [problem.what for problem in judge(seen, SETTINGS | settings).problems]


def test_good() -> None:
    assert judge(look(), SETTINGS).to_dict() == {"ok": True, "problems": []}
    assert judge(look(follow=following()), SETTINGS).ok


def test_nobody_answers() -> None:
    assert whats(look(stats=None)) == ["no-answer"]


def test_worker_that_does_not_answer_is_named() -> None:
    health = judge(look(stats=stats(fetch_3={"error": "ActorDiedError"})), SETTINGS)
    assert [problem.text for problem in health.problems] == [
        "fetch-3 does not answer (ActorDiedError)",
        "0 of 1 fetch actors answer",
    ]


def test_worker_that_is_missing() -> None:
    few = {name: counters for name, counters in stats().items() if name != "script-5"}
    assert [p.text for p in judge(look(stats=few), SETTINGS).problems] == ["1 of 2 script actors answer"]


@pytest.mark.parametrize(("taken", "what"), [(1_100.0, []), (1_101.0, ["tip-old"]), (900.0, [])])
def test_old_tip(taken: float, what: list[str]) -> None:
    assert whats(look(taken=taken)) == what


def test_age_goes_by_the_time_of_the_settings() -> None:
    assert whats(look(), now=1_101) == ["tip-old"]


def test_no_tip() -> None:
    health = judge(look(tip=None, not_ready="headers are missing"), SETTINGS)
    assert [(p.what, p.text) for p in health.problems] == [("not-ready", "headers are missing")]


def test_tip_whose_time_nobody_tells_is_no_old_one() -> None:
    assert whats(look(tip=TipFacts("00" * 32, 125, None))) == []


@pytest.mark.parametrize(
    ("changes", "what", "text"),
    [
        ({"node_height": 127}, "behind", "2 blocks behind"),
        ({"ready": False, "state": "catching-up"}, "behind", "catching-up"),
        ({"ready": False, "state": "waiting", "detail": "wrong password"}, "behind", "waiting: wrong password"),
        ({"alive": False}, "follower", "has ended without a word"),
        ({"written": 1_000}, "follower", "silent for 50 seconds"),
    ],
)
def test_behind_the_node_that_is_followed(changes: dict[str, Any], what: str, text: str) -> None:
    (problem,) = judge(look(follow=following(**changes)), SETTINGS).problems
    assert problem.what == what
    assert text in problem.text
