"""The figures that the project has set itself, next to what was measured. A goal that a run says nothing about is left
out; one that was missed is shown as missed.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from bench.cases import COMPLETE, ONE_MISSING
from bench.compare import Comparison
from bench.fixtures import Fixture

__all__ = ["Goal", "goals_of_comparison"]

AFTER_SILENCE, BACK_TO_BACK = ONE_MISSING[0].name, ONE_MISSING[1].name
LARGE_ENOUGH = 20_000_000  # coins, for goals that are about a large database
MB = 1_000_000


@dataclass(frozen=True, slots=True)
class Goal:
    """`measured` and `bound` in `unit`; reached if measured is not above the bound (or, with `at_least`, below)."""

    what: str
    measured: float
    bound: float
    unit: str
    at_least: bool = False

    @property
    def reached(self) -> bool:
        """Whether the figure is within its bound."""
        return self.measured >= self.bound if self.at_least else self.measured <= self.bound

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {**asdict(self), "reached": self.reached}


def goals_of_comparison(result: Comparison, fixture: Fixture, other: Mapping[str, Any] | None) -> list[Goal]:
    """Goals that `bench compare` can speak of; `other` is the stored result on the small fixture, for the ratio."""
    goals = []
    large = fixture.manifest["filler"] > 0

    def median(case: str, configuration: str) -> float | None:
        summary = result.time(case, configuration)
        return summary.median if summary else None

    def add(what: str, measured: float | None, bound: float, unit: str = "ms", at_least: bool = False) -> None:
        if measured is not None:
            goals.append(Goal(what, round(measured, 2), bound, unit, at_least))

    both = median(AFTER_SILENCE, "both")
    add(f"{AFTER_SILENCE}, both", both, 10)
    add(f"{BACK_TO_BACK}, both", median(BACK_TO_BACK, "both"), 7)
    if not large:
        add("complete, scripts cached, both", median(COMPLETE.name, "both"), 30)
    if large:
        small = _stored_median(other, AFTER_SILENCE, "both")
        if both is not None and small:
            add(f"{AFTER_SILENCE}, both: this fixture against small", both / small, 1.2, "x")
        baseline = median(AFTER_SILENCE, "baseline")
        if both and baseline is not None:
            add(f"{AFTER_SILENCE}: baseline against both", baseline / both, 20, "x", at_least=True)
        add(f"{AFTER_SILENCE}, parallel only", median(AFTER_SILENCE, "parallel only"), 200)
    sizes = [size for size in result.reads.coins_bytes if size is not None]
    if large and sizes and fixture.manifest["filler"] >= LARGE_ENOUGH:
        add(f"storage bytes for {fixture.manifest['inputs']:,} cold coins", max(sizes) / MB, 120, "MB")
    return goals


def _stored_median(stored: Mapping[str, Any] | None, case: str, configuration: str) -> float | None:
    for summary in (stored or {}).get("summaries", []):
        if (summary["case"], summary["configuration"], summary["run"]) == (case, configuration, None):
            return float(summary["median"])
    return None
