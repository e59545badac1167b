"""Whether something can be reached at all, asked before Ray is: it would wait minutes for what is not there."""

import os
import socket
from pathlib import Path

__all__ = ["listens", "process_is_gone"]

PROBE_PATIENCE = 2.0  # seconds; the other side is on this host or near


def listens(address: str) -> bool:
    """Whether anything listens at host:port."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), PROBE_PATIENCE):
            return True
    except (OSError, ValueError):
        return False


def process_is_gone(pid: int) -> bool:
    """Whether no process has this id any more, or one that has ended and that its parent has not asked after yet."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:  # it went in between, or there is no /proc
        return Path("/proc/self").exists()
    except OSError:
        return False
