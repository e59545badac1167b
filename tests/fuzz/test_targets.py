"""Whatever the bytes are, every parser gives a value or the error that it promises, within a memory that the bytes'
number bounds; what it took is the same when it is written again (`tests.fuzz.targets` says how).

Some hundred inputs for each here; `make fuzz` tries millions. Inputs that once broke something are kept and tried too.
"""

import tracemalloc
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.mutation import blown_up, damaged
from tests.fuzz.targets import CORPUS, TARGETS, Target, seeds

#: Targets whose parser has a test with arbitrary bytes of its own, beside its other tests.
ARBITRARY_ELSEWHERE = {
    "block": "tests/models/wire/test_block.py",
    "coin": "tests/models/test_codec.py",
    "coin_batch": "tests/models/coins/test_columns.py",
    "compact_size": "tests/models/wire/test_compactsize.py",
    "dump_file": "tests/cluster/test_dump_file.py",
    "dump_payload": "tests/cluster/test_dump_file.py",
    "transaction": "tests/models/wire/test_transaction.py",
}
NEVER_TAKEN = {"level_current", "level_table_index"}  # the rest of their database is missing
PATIENT = settings(
    max_examples=20,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture],
)

every_target = pytest.mark.parametrize("target", TARGETS.values(), ids=str)


@pytest.fixture(scope="module", autouse=True)
def watched_memory() -> Iterator[None]:
    tracemalloc.start()
    yield
    tracemalloc.stop()


def run(target: Target, data: bytes) -> bool:
    """Whether the bytes were taken; the memory they took at their worst is within the target's bound."""
    tracemalloc.reset_peak()
    before, _ = tracemalloc.get_traced_memory()
    taken = target.run(data)
    _, peak = tracemalloc.get_traced_memory()
    bound = target.allowance + target.factor * len(data)
    assert peak - before <= bound, f"{peak - before} bytes of memory for {len(data)} bytes: {data[:40].hex()}"
    return taken


def test_every_target_has_seeds_and_every_seed_a_target() -> None:
    assert {folder.name for folder in CORPUS.iterdir()} == set(TARGETS)


@every_target
def test_kept_inputs(target: Target) -> None:
    taken = [run(target, data) for data in seeds(target.name)]
    assert any(taken) or target.name in NEVER_TAKEN


@pytest.mark.parametrize("target", [t for t in TARGETS.values() if t.name not in ARBITRARY_ELSEWHERE], ids=str)
@PATIENT
@given(data=st.binary(max_size=200))
def test_arbitrary_bytes(target: Target, data: bytes) -> None:
    run(target, data)


@every_target
@PATIENT
@given(data=st.data())
def test_damaged_inputs(target: Target, data: st.DataObject) -> None:
    run(target, data.draw(damaged(seeds(target.name)), label="input"))


@every_target
def test_claimed_lengths_take_no_memory(target: Target) -> None:
    for seed in seeds(target.name)[:1]:
        for data in blown_up(seed, places=8):
            run(target, data)
