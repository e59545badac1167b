"""What an `up` does when a process of the Ray that it started dies (its control service, or the raylet that holds all
workers): nothing can be replaced then, and within a minute everything would end. So it ends all of it at once, and
becomes the same command again, under the same process id, on the same store.
"""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import ray

__all__ = ["dead_of_ray", "restarted_when_ray_dies", "while_ray_lives"]

LOOK_EVERY = 0.5  # seconds
GLANCE = 0.1  # seconds
SURE = 3.0  # seconds that something of Ray has been dead; while Ray ends in order, it is so for a moment
PATIENCE = 40.0  # seconds; Ray ends a process whose control service has been silent for 60
VITAL = ("gcs_server", "raylet")  # without the others it goes on: they make logs and statistics


def dead_of_ray() -> list[str]:
    """Vital processes that have ended by themselves, of the Ray that this process started; none of one it joined."""
    node = ray._private.worker._global_node
    return [] if node is None else [name for name, _ in node.dead_processes() if name in VITAL]


def while_ray_lives(work: Callable[[], object], patience: float = PATIENCE) -> bool:
    """Runs `work`, which asks Ray for something, and waits for it no longer than the Ray that this process started
    lives: a question to a dead one is never answered, and Ray ends the asking process for it, with a code of its own.

    Returns whether `work` came to its end, and raises what it raised. `patience` in seconds, for a Ray that hangs.
    """
    raised: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True, name="asks-ray")
    thread.start()
    limit = time.monotonic() + patience
    lived = time.monotonic()
    while thread.is_alive() and time.monotonic() < min(limit, lived + SURE):
        thread.join(GLANCE)
        if not dead_of_ray():
            lived = time.monotonic()
    if raised and not dead_of_ray():
        raise raised[0]
    return not thread.is_alive() and not raised


def _begin_again(arguments: Sequence[str]) -> None:
    """Ends all that this process started and becomes `python -m cluster.cli ARGUMENTS`; does not return."""
    from cluster.cli import kill_children

    kill_children()
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, "-m", "cluster.cli", *arguments])


def _without_ready_fd(arguments: Sequence[str]) -> list[str]:
    """Whoever waited for the first start waits no more."""
    left = list(arguments)
    if "--ready-fd" in left:
        at = left.index("--ready-fd")
        del left[at : at + 2]
    return left


@contextmanager
def restarted_when_ray_dies(say: Callable[[str], None]) -> Iterator[None]:
    """While the block runs, a death is answered: `say` is told, and the command of this process begins again."""
    over = threading.Event()

    def watch() -> None:
        while not over.wait(LOOK_EVERY):
            dead = dead_of_ray()
            if not dead or over.wait(LOOK_EVERY):  # in between it may be ended in order
                continue
            say(f"Ray's {' and '.join(dead)} died: ending what is left of it and starting again")
            _begin_again(_without_ready_fd(sys.argv[1:]))

    thread = threading.Thread(target=watch, daemon=True, name="ray-watch")
    thread.start()
    try:
        yield
    except Exception:
        if dead_of_ray():  # that is why, and nothing is left to be done here
            thread.join()
        raise
    finally:
        over.set()
