"""One sample is one timed flow on one node, with everything that was counted meanwhile; a summary is its median and
quartiles over many. Times are milliseconds, sizes bytes. Every sample is kept.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from statistics import quantiles
from typing import Any

__all__ = ["Sample", "Summary", "summarise"]


@dataclass(slots=True)
class Sample:
    """`storage` and `requests` go by phase: opening the database anew (index), preparation, verdict."""

    case: str
    configuration: str
    ms: float
    prep_ms: float | None = None  # creation through the end of prefetch, where the case has such a phase
    run: int = 1  # 1: configurations in order; 2: in reverse order
    number: int = 0
    warm_up: bool = False
    cold: bool = False  # whether the page cache was seen to be empty before
    resident: int | None = None  # bytes of the fixture that stayed in the page cache
    storage: dict[str, int | None] = field(default_factory=dict)
    requests: dict[str, dict[str, int]] = field(default_factory=dict)
    cache_entries: int = 0
    cache_bytes: int = 0
    retained_entries: int = 0
    retained_bytes: int = 0
    weight: int = 0
    inside: dict[str, float] = field(default_factory=dict)  # what the verdict says of itself

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Summary:
    """Median and quartiles of `count` values."""

    median: float
    low: float
    high: float
    count: int

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        digits = 0 if self.median >= 1000 else 1 if self.median >= 100 else 2
        return f"{self.median:,.{digits}f} ({self.low:,.{digits}f}-{self.high:,.{digits}f})"


def summarise(values: Iterable[float]) -> Summary | None:
    """Median and quartiles (inclusive method); None of nothing."""
    ordered: Sequence[float] = sorted(values)
    if not ordered:
        return None
    if len(ordered) == 1:
        return Summary(ordered[0], ordered[0], ordered[0], 1)
    low, middle, high = quantiles(ordered, n=4, method="inclusive")
    return Summary(middle, low, high, len(ordered))
