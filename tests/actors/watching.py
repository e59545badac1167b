"""Looking into a node from a test: actors by kind, counters summed over workers, and waiting for an event.

`until` is a guard against hanging and no measure of time: a test states what must come about, not how fast.
"""

import time
from collections.abc import Callable
from typing import Any

import ray

PATIENCE = 60.0  # seconds


JUDGES = ("template", "collection")  # kinds of actors that give verdicts


def until(condition: Callable[[], Any], what: str) -> Any:
    """Returns the first true value of `condition`; fails, saying `what` never happened, if there is none."""
    deadline = time.monotonic() + PATIENCE
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"this never happened: {what}"
        time.sleep(0.005)


def actors(node: Any, kind: str) -> list[Any]:
    """Handles of a kind, as the supervisor has them now."""
    node._refresh()
    found = node._directory[kind]
    return list(found) if isinstance(found, list) else [found]


def stats_of(node: Any, kind: str) -> list[dict[str, Any]]:
    """Counters of each actor of a kind."""
    return ray.get([handle.stats.remote() for handle in actors(node, kind)])


def judged(node: Any, counter: str) -> int:
    """A counter of those who give verdicts, summed over all of them."""
    return sum(stats[counter] for kind in JUDGES for stats in stats_of(node, kind))


def drill(node: Any, kind: str, **orders: Any) -> None:
    """Gives every worker of a kind the same orders, and returns when they are followed."""
    ray.get([handle.drill.remote(**orders) for handle in actors(node, kind)])


def fetched(node: Any) -> dict[str, int]:
    """Requests and keys of each sort over all fetch workers: `speculation_requests`, `validation_keys` ..."""
    total: dict[str, int] = {}
    for stats in stats_of(node, "fetch"):
        for what in ("requests", "keys"):
            for group, n in stats[what].items():
                total[f"{group}_{what}"] = total.get(f"{group}_{what}", 0) + n
    return total


class Counters:
    """What happened since: `Counters(node)` notes everything, `since()` tells the differences. What judges count is
    summed over both kinds of them, as `judge.*`."""

    def __init__(self, node: Any) -> None:
        self._node = node
        self._before = self._all()

    def _all(self) -> dict[str, int]:
        counts = fetched(self._node)
        for kind in ("chainstate", *JUDGES, "script"):
            for stats in stats_of(self._node, kind):
                kind = "judge" if kind in JUDGES else kind
                for name, value in stats.items():
                    if isinstance(value, int):
                        counts[f"{kind}.{name}"] = counts.get(f"{kind}.{name}", 0) + value
                    elif isinstance(value, dict):
                        for part, n in value.items():
                            if isinstance(n, int):
                                key = f"{kind}.{name}.{part}"
                                counts[key] = counts.get(key, 0) + n
        return counts

    def since(self) -> dict[str, int]:
        now = self._all()
        return {name: now[name] - self._before.get(name, 0) for name in now}
