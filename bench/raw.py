"""`bench raw`: the same scattered cold coins by plyvel and by rocksdict, with the same number of threads, in one run
and without any actor: what the way of reading alone is worth.
"""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench.disk import PageCache, is_cold, storage_bytes_read
from bench.errors import RefusedSample
from bench.fixtures import Fixture
from bench.goals import MB, Goal
from bench.nodes import link_store, working_directory
from bench.samples import summarise
from models.coins.codec import coin_key
from models.storage.coinsdb import open_leveldb
from models.storage.reader import CoinsReader

__all__ = ["READERS", "RawReads", "goals_of_raw", "read_raw", "times_faster"]

Values = list[bytes | None]
Get = Callable[[Sequence[bytes]], Values]
Progress = Callable[[str, int, int], None]

MANY = 130_000_000  # coins, from which on the goal for the ratio is the sharper one
SHARP, MILD = 10.0, 4.0  # times faster


@dataclass(slots=True)
class RawReads:
    """Reads of one reader with some threads. Milliseconds and bytes, one of each per sample."""

    reader: str
    threads: int
    coins_ms: list[float] = field(default_factory=list)
    coins_bytes: list[int | None] = field(default_factory=list)
    index_bytes: list[int | None] = field(default_factory=list)  # to open it; LevelDB reads indexes as it meets them
    probes_ms: list[float] = field(default_factory=list)
    probes_bytes: list[int | None] = field(default_factory=list)
    cold: bool = True

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


@contextmanager
def _plyvel(path: Path) -> Iterator[Get]:
    """As the owner of a database reads: one get after the other, through mapped tables."""
    database = open_leveldb(path)
    try:
        yield lambda keys: [database.get(key, verify_checksums=True) for key in keys]
    finally:
        database.close()


@contextmanager
def _rocksdict(path: Path) -> Iterator[Get]:
    """As a fetch worker reads."""
    reader = CoinsReader.open(path)
    try:
        yield reader.multi_get
    finally:
        reader.close()


READERS = {"plyvel": _plyvel, "rocksdict": _rocksdict}


def _spread(get: Get, keys: Sequence[bytes], pool: ThreadPoolExecutor, threads: int) -> Values:
    """Neighbouring keys to one thread; answers in the order of `keys`, which are sorted."""
    share = -(-len(keys) // threads)
    parts = [keys[at : at + share] for at in range(0, len(keys), share)]
    return [value for values in pool.map(get, parts) for value in values]


def _bytes_read() -> int | None:
    return storage_bytes_read([os.getpid()])


def _since(before: int | None) -> int | None:
    now = _bytes_read()
    return None if before is None or now is None else now - before


def read_raw(
    fixture: Fixture, directory: Path, threads: Sequence[int], samples: int, progress: Progress | None = None
) -> list[RawReads]:
    """Every reader with each number of threads, `samples` times, interleaved."""
    coins = sorted(map(coin_key, fixture.outpoints))
    probes = sorted(map(coin_key, fixture.probes))
    rows = [RawReads(name, count) for count in threads for name in READERS]
    with working_directory(directory) as work:
        link_store(fixture.store, work / "store")
        path = work / "store" / "chainstate"
        cache = PageCache([path])
        for number in range(samples):
            for at, row in enumerate(rows):
                if progress:
                    progress("raw reads", number * len(rows) + at, samples * len(rows))
                _sample(row, path, cache, coins, probes)
    return rows


def _sample(row: RawReads, path: Path, cache: PageCache, coins: list[bytes], probes: list[bytes]) -> None:
    cache.drop()
    with ThreadPoolExecutor(row.threads) as pool:
        before = _bytes_read()
        with READERS[row.reader](path) as get:
            row.index_bytes.append(_since(before))
            row.cold = is_cold(cache.drop()) and row.cold
            for keys, times, sizes, there in (
                (coins, row.coins_ms, row.coins_bytes, True),
                (probes, row.probes_ms, row.probes_bytes, False),
            ):
                before = _bytes_read()
                begun = time.perf_counter()
                values = _spread(get, keys, pool, row.threads)
                times.append((time.perf_counter() - begun) * 1000)
                sizes.append(_since(before))
                if any((value is not None) != there for value in values):
                    raise RefusedSample(f"{row.reader} did not find what the fixture holds: make it again")
    cache.drop()


def times_faster(rows: Sequence[RawReads], threads: int) -> float | None:
    """plyvel's median time for the coins divided by rocksdict's, both with this number of threads."""
    medians = {row.reader: summarise(row.coins_ms) for row in rows if row.threads == threads}
    plyvel, rocksdict = medians.get("plyvel"), medians.get("rocksdict")
    return plyvel.median / rocksdict.median if plyvel and rocksdict else None


def goals_of_raw(rows: Sequence[RawReads], fixture: Fixture) -> list[Goal]:
    """How many times faster than plyvel with as many threads (the most that were tried), and how much is read.

    Nothing for a small database, where it says little.
    """
    filler = fixture.manifest["filler"]
    if not filler:
        return []
    goals = []
    threads = max(row.threads for row in rows)
    ratio = times_faster(rows, threads)
    if ratio is not None:
        what = f"cold coins, {threads} threads: plyvel's time against rocksdict's"
        goals.append(Goal(what, round(ratio, 2), SHARP if filler >= MANY else MILD, "x", at_least=True))
    sizes = [s for row in rows if row.reader == "rocksdict" for s in row.coins_bytes if s is not None]
    if sizes:
        goals.append(Goal(f"storage bytes for {len(fixture.outpoints):,} coins", round(max(sizes) / MB, 1), 120, "MB"))
    return goals
