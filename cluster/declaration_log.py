"""One line of JSON for each verdict: who asked, what came out, why, who was at fault, and where the time went.

Nothing secret is written: a collection appears by the first characters of its id, a client by its user's name and its
session. Lines go to a file (turned over at a size), or are kept for whoever prints them on standard error.
"""

import json
import logging
import logging.handlers
import time
from collections import deque
from pathlib import Path
from typing import Any

from models.consensus.verdict import Kind
from models.errors import SettingsError

__all__ = ["OFF", "STDERR", "DeclarationLog", "verdict_fields"]

OFF, STDERR = "off", "stderr"
MAX_FILE = 64 * 1024 * 1024  # bytes; then it becomes FILE.1, and so on
KEPT_FILES = 3
KEPT_LINES = 10_000  # that wait to be printed; older ones are dropped first
COUNTS = ("coins_read", "scripts_run")  # what a verdict's timings hold that is no time


def verdict_fields(packed: tuple[Any, ...]) -> dict[str, Any]:
    """What a line says of a packed verdict: kind, reason, detail, offender (display hex), milliseconds by phase."""
    kind, reason, debug, offender, _, _, timings = packed
    who = None
    if offender is not None:
        position, txid, wtxid, number = offender
        who = {"position": position, "txid": txid, "wtxid": wtxid, "input": number}
    spent = dict(timings or {})
    fields: dict[str, Any] = {"verdict": Kind(kind).value, "reason": reason, "debug": debug, "offender": who}
    fields |= {name: int(spent.pop(name)) for name in COUNTS if name in spent}
    fields["ms"] = {name: round(value, 3) for name, value in spent.items()}
    return fields


class DeclarationLog:
    """Where lines go: `off`, `stderr` (see `take`), or a file's path."""

    def __init__(self, target: str):
        self.target = target
        self._lines: deque[str] = deque(maxlen=KEPT_LINES)
        self._handler: logging.Handler | None = None
        if target in (OFF, STDERR):
            return
        path = Path(target).expanduser()
        try:
            self._handler = logging.handlers.RotatingFileHandler(
                path, maxBytes=MAX_FILE, backupCount=KEPT_FILES, encoding="utf-8"
            )
        except OSError as error:
            raise SettingsError(f"the declaration log {path} cannot be written: {error.strerror}") from error
        self._handler.setFormatter(logging.Formatter("%(message)s"))

    def write(self, event: str, **fields: Any) -> None:
        """One line; times are UTC to the millisecond."""
        if self.target == OFF:
            return
        now = time.time()
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now * 1000) % 1000:03d}Z"
        line = json.dumps({"time": stamp, "event": event, **fields})
        if self._handler is None:
            self._lines.append(line)
        else:
            self._handler.emit(logging.LogRecord("declarations", logging.INFO, "", 0, line, None, None))

    def take(self) -> list[str]:
        """The lines that wait to be printed; they are forgotten here."""
        lines = list(self._lines)
        self._lines.clear()
        return lines

    def close(self) -> None:
        """Closes the file."""
        if self._handler is not None:
            self._handler.close()
