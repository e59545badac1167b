"""Python's search for cyclic garbage, which stops all threads of a process: what a block is parsed into sets it off,
and then it walks over every object there is, modules included, for thirty milliseconds.
"""

import gc

__all__ = ["collect_seldom"]

THRESHOLDS = 20_000, 10, 10  # young objects, and younger searches, before the next one; a full block makes 70,000


def collect_seldom() -> None:
    """For the beginning of an actor: what is here by now is never looked at again, and the rest less often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
