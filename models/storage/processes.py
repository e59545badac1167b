"""Whether a process that left its id in a name or a file is still there."""

import os

__all__ = ["is_running"]


def is_running(pid: str) -> bool:
    """Whether there is a process of this id, whoever's it is; False for what is no number."""
    try:
        os.kill(int(pid), 0)
    except (ValueError, OverflowError, ProcessLookupError):
        return False
    except PermissionError:
        return True
    return True
