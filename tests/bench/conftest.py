"""A tiny fixture of the bench, made once: the same in everything but its size."""

from pathlib import Path

import pytest

from bench.fixtures import Fixture, Plan, find_or_make

TRANSACTIONS = 30


@pytest.fixture(scope="session")
def bench_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the tests' fixtures and runs are kept."""
    return tmp_path_factory.mktemp("bench")


@pytest.fixture(scope="session")
def tiny(bench_dir: Path) -> Fixture:
    """Thirty transactions on a small chain."""
    return find_or_make(bench_dir, Plan("tiny", TRANSACTIONS), allow_memory=True)


@pytest.fixture(scope="session")
def tiny_large(bench_dir: Path) -> Fixture:
    """The same among fifty thousand other coins."""
    return find_or_make(bench_dir, Plan("tiny-large", TRANSACTIONS, filler=50_000), allow_memory=True)
