"""What a Ray leaves behind whose process was killed: its control service and its raylet end with it, its workers within
seconds, but two agents wait a minute for the control service, to report the death of the raylet to it.
"""

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

__all__ = ["end_leftovers", "leftovers"]

VITAL = ("gcs_server", "raylet")  # a Ray that has one of these lives
RAYS_OWN = "ray::"  # how the names of its workers and agents begin; a client that had joined it is somebody else's
PATIENCE = 5.0  # seconds
GLANCE = 0.02  # seconds
WRITING = 0o200  # of a link in /proc/PID/fd: the file is open for writing


def _logs_in(process: Path, session: str) -> bool:
    """Whether a process holds a log of a session's open for writing, as each of a Ray does."""
    try:
        for link in (process / "fd").iterdir():
            with suppress(OSError):  # closed meanwhile
                if os.readlink(link).split("/")[-3:-1] == [session, "logs"] and link.lstat().st_mode & WRITING:
                    return True
    except OSError:  # it ended meanwhile, or is another user's
        pass
    return False


def leftovers(session: str) -> dict[int, str]:
    """Living processes of a Ray, by the name of its session, which no other Ray has: their ids, and their programs.
    Nothing where there is no /proc. Command lines and environments would not do: Ray writes over them."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        if _logs_in(process, session):
            with suppress(OSError):
                found[int(process.name)] = (process / "comm").read_text().strip()
    return found


def end_leftovers(session: str) -> None:
    """Ends what is left of a Ray whose process is gone, and returns when that is gone too. One that lives after all
    (in a container, where ids of processes are others) is left alone, and so are clients that had joined it."""
    limit = time.monotonic() + PATIENCE
    while time.monotonic() < limit:
        found = leftovers(session)
        lives = any(program in VITAL for program in found.values())
        own = [pid for pid, program in found.items() if program.startswith(RAYS_OWN)]
        if not own and not lives:
            return
        for pid in () if lives else own:
            with suppress(OSError):
                handle = os.pidfd_open(pid)
                try:
                    if _logs_in(Path(f"/proc/{pid}"), session):  # its number was not given to another meanwhile
                        signal.pidfd_send_signal(handle, signal.SIGKILL)
                finally:
                    os.close(handle)
        time.sleep(GLANCE)
