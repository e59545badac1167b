"""A process that writes a coins database without pause, with a write buffer so small that logs, tables and manifest
change all the time.

Each generation is one batch: `COINS` fresh coins whose keys are never written again, the coins of generation g - `KEPT`
removed, and g itself as best block. So the coins tell exactly which generation a copy is of, and whether it is torn.
Runs as `python -m tests.models.storage.busy_writer PATH` until its standard input is closed.
"""

import hashlib
import itertools
import select
import sys
from collections.abc import Callable

import plyvel

from models.coins.codec import coin_key, encode_coin
from models.coins.coin import Coin
from models.storage.reader import BEST_BLOCK_KEY

COINS = 40
KEPT = 6
SCRIPT = bytes(range(60))


def outpoints(generation: int) -> list[bytes]:
    """The outpoints of the coins that only this generation creates."""
    return [hashlib.sha256(b"%d/%d" % (generation, i)).digest() + i.to_bytes(4, "little") for i in range(COINS)]


def best_block(generation: int) -> bytes:
    """The best block of a generation."""
    return generation.to_bytes(32, "little")


def check_consistent(best: bytes, has: Callable[[bytes], bool]) -> int:
    """Asserts that exactly the coins of this best block are there; returns its generation."""
    generation = int.from_bytes(best, "little")
    for other in range(max(1, generation - 60), generation + 3):
        there = sum(has(outpoint) for outpoint in outpoints(other))
        expected = COINS if generation - KEPT < other <= generation else 0
        assert there == expected, f"at generation {generation}: {there} coins of generation {other}, not {expected}"
    return generation


def main(path: str) -> None:
    db = plyvel.DB(path, create_if_missing=True, compression=None, write_buffer_size=64 << 10, max_file_size=64 << 10)
    for generation in itertools.count(1):
        with db.write_batch() as batch:
            for outpoint in outpoints(generation):
                batch.put(coin_key(outpoint), encode_coin(Coin(generation, generation, False, SCRIPT)))
            if generation > KEPT:
                for outpoint in outpoints(generation - KEPT):
                    batch.delete(coin_key(outpoint))
            batch.put(BEST_BLOCK_KEY, best_block(generation))
        if generation == KEPT:
            print("writing", flush=True)
        if select.select([sys.stdin], [], [], 0)[0]:
            break
    db.close()
    print(generation, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
