"""Whether a node serves what it should: a judgement on facts that somebody else gathered, for `/health`, the status
page and the command line. It asks nobody and changes nothing.
"""

import os
import time
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Health", "NodeLook", "Problem", "TipFacts", "judge"]

FOLLOWER_SILENT = 30.0  # seconds without a word in `follow.json` after which its writer counts as hung


@dataclass(frozen=True, slots=True)
class TipFacts:
    """The served tip: display hex, height, header time in Unix seconds (None: its owner did not say)."""

    hash: str
    height: int
    time: int | None


@dataclass(slots=True)
class NodeLook:
    """What was seen of a node at one moment. `stats` and `tip` are None where nobody answered."""

    stats: dict[str, Any] | None = None
    tip: TipFacts | None = None
    not_ready: str = ""  # why there is no tip
    follow: dict[str, Any] | None = None  # `cluster.follow_status.read_status`
    taken: float = field(default_factory=time.time)


@dataclass(frozen=True, slots=True)
class Problem:
    """`what` is for programs: not-ready, no-answer, worker-down, behind, follower or tip-old; `text` is for people."""

    what: str
    text: str


@dataclass(frozen=True, slots=True)
class Health:
    """Green without problems."""

    problems: list[Problem]

    @property
    def ok(self) -> bool:
        """Whether clients can rely on the verdicts of this node now."""
        return not self.problems

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {"ok": self.ok, "problems": [{"what": p.what, "text": p.text} for p in self.problems]}


def wanted_actors(settings: dict[str, Any]) -> dict[str, int]:
    """How many actors of each kind there must be; collection actors are started on demand."""
    return {
        "chainstate": 1,
        "mempool": 1,
        "fetch": settings["fetch_workers"] or 1,
        "script": settings["script_workers"] or (os.cpu_count() or 1) + 1,
        "template": settings["template_actors"],
        "collection": settings["collection_warm"],
    }


def judge(look: NodeLook, settings: dict[str, Any]) -> Health:
    """All that is wrong at this moment, the worst first."""
    problems = [*_actors(look, settings), *_following(look), *_tip(look, settings)]
    return Health(problems)


def _actors(look: NodeLook, settings: dict[str, Any]) -> list[Problem]:
    if look.stats is None:
        return [Problem("no-answer", "the node's actors do not answer")]
    problems = []
    for name, counters in look.stats.items():
        if "error" in counters:
            problems.append(Problem("worker-down", f"{name} does not answer ({counters['error']})"))
    running: dict[str, int] = {}
    for name, counters in look.stats.items():
        if "error" not in counters:
            kind = name.rpartition("-")[0]
            running[kind] = running.get(kind, 0) + 1
    for kind, wanted in wanted_actors(settings).items():
        if running.get(kind, 0) < wanted:
            problems.append(Problem("worker-down", f"{running.get(kind, 0)} of {wanted} {kind} actors answer"))
    return problems


def _following(look: NodeLook) -> list[Problem]:
    follow = look.follow
    if follow is None:
        return []
    if not follow.get("alive"):
        return [Problem("follower", f"the follower of {follow.get('node')} has ended without a word: start it again")]
    silent = look.taken - follow.get("written", 0)
    if silent > FOLLOWER_SILENT:
        return [Problem("follower", f"the follower of {follow.get('node')} has been silent for {silent:.0f} seconds")]
    if not follow.get("ready"):
        detail = f": {follow['detail']}" if follow.get("detail") else ""
        where = f" (store {follow.get('height')}, node {follow.get('node_height')})"
        return [Problem("behind", f"the store is not where its node is, {follow.get('state')}{detail}{where}")]
    tip = look.tip
    if tip is not None and follow.get("node_height", -1) > tip.height:
        behind = follow["node_height"] - tip.height
        return [Problem("behind", f"the store is {behind} blocks behind the node that it follows")]
    return []


def _tip(look: NodeLook, settings: dict[str, Any]) -> list[Problem]:
    if look.tip is None:
        return [Problem("not-ready", look.not_ready or "the tip is not known")]
    age = tip_age(look, settings)
    if age is not None and age > settings["tip_old_s"]:
        limit = settings["tip_old_s"]
        return [Problem("tip-old", f"the tip's block is {age} seconds old, more than {limit} (tip_old_s)")]
    return []


def tip_age(look: NodeLook, settings: dict[str, Any]) -> int | None:
    """Seconds from the tip's header time to now, as the settings tell the time; negative for a block ahead of it."""
    if look.tip is None or look.tip.time is None:
        return None
    now = settings["now"]
    return int(look.taken if now is None else now) - look.tip.time
