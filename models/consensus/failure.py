"""A broken rule with everything that an answer says of it, and the ways in which Core words its debug texts."""

from dataclasses import dataclass

from models.consensus.params import COIN
from models.consensus.reasons import Reason
from models.wire.hashes import to_display

__all__ = ["Failure", "format_money"]


@dataclass(frozen=True, slots=True)
class Failure:
    """The first rule that a block breaks. `position` counts from the coinbase at 0; `input` indexes its vin."""

    reason: Reason
    debug: str = ""
    position: int | None = None
    input: int | None = None

    @classmethod
    def of(cls, reason: Reason, position: int | None = None, input: int | None = None) -> "Failure":
        """A failure whose debug text is always the same."""
        return cls(reason, reason.debug, position, input)

    @classmethod
    def of_transaction(
        cls, reason: Reason, what: str, txid: bytes, position: int, input: int | None = None
    ) -> "Failure":
        """A failure whose debug text ends in the transaction's id."""
        return cls(reason, f"{what} in transaction {to_display(txid)}", position, input)

    @property
    def debug_line(self) -> str:
        """Reason and debug text as Core logs them (`BlockValidationState::ToString`)."""
        return f"{self.reason.text}, {self.debug}" if self.debug else self.reason.text


def format_money(satoshis: int) -> str:
    """Coins with at least two decimals (Core: util/moneystr.cpp `FormatMoney`)."""
    sign = "-" if satoshis < 0 else ""
    whole, rest = divmod(abs(satoshis), COIN)
    decimals = f"{rest:08d}".rstrip("0").ljust(2, "0")
    return f"{sign}{whole}.{decimals}"
