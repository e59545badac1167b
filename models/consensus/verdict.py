"""What a check answers: Core's reason, word for word, with what we know beyond it."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from models.consensus import reasons as r
from models.consensus.failure import Failure
from models.wire.hashes import to_display

__all__ = ["Kind", "Offender", "Verdict"]


class Kind(StrEnum):
    """What sort of answer a verdict is; beside the reason, since Core's strings for prevhash changed with its age."""

    VALID = "valid"
    INVALID = "invalid"
    MISSING = "missing"  # transactions were not supplied
    STALE = "stale"  # prevhash is an ancestor of the tip, or was the tip when the check began
    FORK = "fork"  # prevhash is known, on another branch
    AHEAD = "ahead"  # prevhash is not known


@dataclass(frozen=True, slots=True)
class Offender:
    """Who broke a rule: `position` in the block (coinbase 0), ids in display hex, `input` an index into the vin."""

    position: int
    txid: str
    wtxid: str
    input: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {"position": self.position, "txid": self.txid, "wtxid": self.wtxid, "input": self.input}


@dataclass(frozen=True, slots=True)
class Verdict:
    """`reason` is None for a valid block, else Core's string; `debug` is the detail that Core logs beside it."""

    kind: Kind
    reason: str | None = None
    debug: str = ""
    offender: Offender | None = None
    category: str = ""
    template: Any = None
    timings: dict[str, float] | None = None  # milliseconds by phase

    @property
    def ok(self) -> bool:
        """Whether the block is valid."""
        return self.kind is Kind.VALID

    @classmethod
    def of_failure(cls, failure: Failure, rows: Any = None, kind: Kind = Kind.INVALID) -> "Verdict":
        """The verdict on a broken rule; `rows` (TX_ROW, block order) name the offender."""
        offender = None
        if failure.position is not None and rows is not None:
            row = rows[failure.position]
            txid, wtxid = to_display(row["txid"].tobytes()), to_display(row["wtxid"].tobytes())
            offender = Offender(failure.position, txid, wtxid, failure.input)
        return cls(kind, failure.reason.text, failure.debug, offender, failure.reason.category.value)

    @classmethod
    def missing_txs(cls) -> "Verdict":
        """Transactions are still missing (SPEC 1.5)."""
        return cls(Kind.MISSING, r.MISSING_TXS.text, r.MISSING_TXS.debug)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON; the template is left out."""
        return {
            "ok": self.ok,
            "kind": self.kind.value,
            "reason": self.reason,
            "debug": self.debug,
            "offender": self.offender.to_dict() if self.offender else None,
        }

    def __repr__(self) -> str:
        if self.ok:
            return "<Verdict valid>"
        where = f" at position {self.offender.position}" if self.offender else ""
        return f"<Verdict {self.kind.value}: {self.reason}{where}>"

    def _repr_html_(self) -> str:
        colour = "#1a7f37" if self.ok else "#b35900" if self.kind is not Kind.INVALID else "#b3261e"
        lines = [f"<b style='color:{colour}'>{self.kind.value}</b>"]
        if self.reason:
            lines.append(f"<code>{self.reason}</code> {self.debug}")
        if self.offender:
            o = self.offender
            spot = f", input {o.input}" if o.input is not None else ""
            lines.append(f"transaction {o.position}{spot}: <code>{o.txid}</code>")
        return "<br>".join(lines)
