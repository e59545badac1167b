"""The console script `txcollection`: it sees to it that nothing which a command started outlives it.

The commands themselves are imported by `main`, so that a Ctrl-C is met without a traceback from the first moment on.
"""

import ctypes
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import FrameType

__all__ = ["kill_children", "main", "obey_termination"]

INTERRUPTED = 130  # 128 + SIGINT, as shells count
TERMINATED = 143  # 128 + SIGTERM
PR_SET_CHILD_SUBREAPER = 36  # Linux, sys/prctl.h
MAIN_PROCESS = os.getpid()
AGAIN = 0.1  # seconds
POLITE = 0.5  # seconds between SIGTERM and SIGKILL


def _terminate(_number: int, _frame: FrameType | None) -> None:
    raise SystemExit(TERMINATED)


def obey_termination() -> None:
    """SIGTERM, and a terminal that goes away, end the command in order. Ray puts a handler of its own in their place
    when it starts, so this is called again afterwards."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _terminate)


def _unraisable(problem: "sys.UnraisableHookArgs") -> None:
    """A Ctrl-C that arrives where Python can only report an exception (a finalizer, a fork) is sent once more."""
    if not isinstance(problem.exc_value, KeyboardInterrupt):
        sys.__unraisablehook__(problem)
    elif os.getpid() == MAIN_PROCESS:
        threading.Timer(AGAIN, os.kill, (MAIN_PROCESS, signal.SIGINT)).start()


def _adopt_orphans() -> None:
    """Makes this process the parent of grandchildren whose parent dies: of Ray's agents, when their raylet does."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _children() -> list[int]:
    """Living children of this process; none where there is no /proc."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
        except (OSError, ValueError):
            continue
        if int(parent) == os.getpid() and state != "Z":
            found.append(int(stat.parent.name))
    return found


def kill_children() -> None:
    """Ends every process below this one at once; grandchildren come up as their parents end."""
    while children := _children():
        for pid in children:
            os.kill(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass
        time.sleep(0.02)


def _end_ray() -> None:
    """Ends Ray's processes, also those of a start that was interrupted; grandchildren come up as their parents end."""
    ray = sys.modules.get("ray")
    if ray is None:
        return
    if hasattr(ray, "shutdown"):
        from cluster.head import while_ray_lives

        with suppress(Exception):  # of a Ray that ends at the same time; what is left of it is ended below
            while_ray_lives(ray.shutdown)
    limit = time.monotonic() + POLITE
    asked: set[int] = set()
    while children := _children():
        late = time.monotonic() > limit
        for pid in children:
            if late or pid not in asked:
                os.kill(pid, signal.SIGKILL if late else signal.SIGTERM)  # ours, so its number is not another's yet
                asked.add(pid)
        time.sleep(0.05)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass


def main() -> None:
    """Runs the command line of this process and exits."""
    code = INTERRUPTED
    try:
        sys.unraisablehook = _unraisable
        _adopt_orphans()
        obey_termination()
        from cluster.cli_app import run

        code = run(sys.argv[1:])
    except KeyboardInterrupt:
        pass
    except SystemExit:
        code = TERMINATED
    finally:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        _end_ray()
    with suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)  # a start of Ray that was interrupted can crash while Python takes itself apart


if __name__ == "__main__":
    main()
