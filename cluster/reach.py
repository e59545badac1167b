"""Whether something can be reached at all, asked before Ray is: it would wait minutes for what is not there."""

import os
import socket

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
    """Whether no process has this id any more."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass
    return False
