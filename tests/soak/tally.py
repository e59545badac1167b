"""What a run counts, from many threads, and what it makes of it: figures, and whether anything went wrong."""

import statistics
import threading
import time
from collections import Counter
from dataclasses import asdict, dataclass, field, fields
from typing import Any

__all__ = ["Outage", "Reading", "Tally"]

MIB = 1 << 20
GROWTH = 1.25  # of what is held, from the first third of a run to its last
MEMORY_SLACK = 96 * MIB  # bytes on top of it: which collection processes have been used by then is chance
HANDLE_SLACK = 60
DISK_SLACK = 64 * MIB
LONGEST_OUTAGE = 60.0  # seconds
FEW = 6  # readings from which on thirds are compared


@dataclass(frozen=True)
class Outage:
    """A process was killed, and for how many seconds some answer was an error or did not come."""

    kind: str
    seconds: float
    back: bool  # whether everything was there again in time


@dataclass(frozen=True)
class Reading:
    """All processes of the node, at one moment: bytes of their own memory, open handles, bytes of the store."""

    at: float
    memory: int
    handles: int
    disk: int
    processes: int


@dataclass
class Tally:
    """Counts of one run."""

    begun: float = field(default_factory=time.monotonic)
    declarations: Counter[str] = field(default_factory=Counter)  # by what they are about
    verdicts: Counter[str] = field(default_factory=Counter)  # by kind, and reason
    compared: int = 0
    errors: Counter[str] = field(default_factory=Counter)  # typed answers of every sort
    flood_answers: Counter[str] = field(default_factory=Counter)
    mismatches: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)  # whatever else must not happen
    outages: list[Outage] = field(default_factory=list)
    readings: list[Reading] = field(default_factory=list)
    quiet_ms: list[float] = field(default_factory=list)  # from the last transaction to the verdict
    flood_ms: list[float] = field(default_factory=list)
    ask_quiet_ms: list[float] = field(default_factory=list)  # unknown_tx_pos
    ask_flood_ms: list[float] = field(default_factory=list)
    node: dict[str, Any] = field(default_factory=dict)  # what the followed node did

    def __post_init__(self) -> None:
        self._lock = threading.Lock()

    def count(self, counter: Counter[str], name: str, n: int = 1) -> None:
        """One more."""
        with self._lock:
            counter[name] += n

    def fault(self, text: str) -> None:
        """Something that must not happen."""
        with self._lock:
            self.faults.append(text)

    def mismatch(self, text: str) -> None:
        """A verdict that is not the plain check's."""
        with self._lock:
            self.mismatches.append(text)

    def compare(self) -> None:
        """A verdict was compared."""
        with self._lock:
            self.compared += 1

    # What it comes to -------------------------------------------------------------------------------------------

    def growth(self) -> list[str]:
        """What was held more and more of: first third against last, the start-up left out."""
        readings = self.readings[len(self.readings) // 6 :]
        if len(readings) < FEW:
            return []
        third = len(readings) // 3
        found = []
        for name, slack in (("memory", MEMORY_SLACK), ("handles", HANDLE_SLACK), ("disk", DISK_SLACK)):
            first = statistics.median(getattr(reading, name) for reading in readings[:third])
            last = statistics.median(getattr(reading, name) for reading in readings[-third:])
            if last > first * GROWTH + slack:
                found.append(f"{name} grew from {first:,.0f} to {last:,.0f}")
        return found

    @property
    def longest_outage(self) -> float:
        """Seconds."""
        return max((outage.seconds for outage in self.outages), default=0.0)

    def failures(self) -> list[str]:
        """Why the run failed; nothing if it did not."""
        found = [f"verdict: {text}" for text in self.mismatches] + self.faults + self.growth()
        found += [f"{o.kind} did not come back" for o in self.outages if not o.back or o.seconds > LONGEST_OUTAGE]
        return found

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        plain: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(self)}
        plain["outages"] = [asdict(outage) for outage in self.outages]
        plain["readings"] = [asdict(reading) for reading in self.readings]
        for name in ("quiet_ms", "flood_ms", "ask_quiet_ms", "ask_flood_ms"):
            plain[name] = {"count": len(getattr(self, name)), "median": middle(getattr(self, name))}
        return plain | {"seconds": time.monotonic() - self.begun, "failures": self.failures()}


def middle(values: list[float]) -> float | None:
    """The median; None of nothing."""
    return statistics.median(values) if values else None
