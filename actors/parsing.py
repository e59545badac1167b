"""Settings of a process that parses whole blocks in a thread while its event loop serves others."""

import gc
import sys

__all__ = ["get_ready_to_parse"]

THREAD_SWITCH = 0.0005  # seconds for which a parse may keep the event loop waiting
THRESHOLDS = 20_000, 10, 10  # young objects, and younger searches, before the next one; a full block makes 70,000


def get_ready_to_parse() -> None:
    """For the beginning of an actor.

    Python's search for cyclic garbage stops all threads. What a block is parsed into sets it off, and then it walks
    over every object there is, modules included, for thirty milliseconds: what is here by now is never looked at again,
    and the rest less often.
    """
    sys.setswitchinterval(THREAD_SWITCH)
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
