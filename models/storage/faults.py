"""Named places at which a test can make the process die at once, as a power cut would.

Every step of a write calls `fault_point`. It does nothing unless the environment variable TXC_FAULT names that place;
then the process ends without flushing, closing or unwinding anything. TXC_FAULT=NAME:N dies at the N-th passage.
"""

import os

__all__ = ["FAULT_EXIT_CODE", "FAULT_VARIABLE", "fault_point"]

FAULT_VARIABLE = "TXC_FAULT"
FAULT_EXIT_CODE = 137  # what a shell reports for SIGKILL

_passages: dict[str, int] = {}


def fault_point(name: str) -> None:
    """Ends the process here, with exit code 137, if TXC_FAULT asks for it."""
    wanted = os.environ.get(FAULT_VARIABLE)
    if not wanted:
        return
    place, _, count = wanted.partition(":")
    if place != name:
        return
    _passages[name] = _passages.get(name, 0) + 1
    if _passages[name] >= int(count or 1):
        os._exit(FAULT_EXIT_CODE)
