"""The same block to our node and to a peer. Bitcoin Core itself runs where BITCOIND names it; a stand-in elsewhere."""

import os
import sys
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from bench.corenode import core_node
from bench.errors import BenchError
from bench.fixtures import Fixture
from bench.peer import AFTER_LAST, CACHED, CORE, FIRST, OURS, PeerRuns, bitcoind_of, run_peer
from bench.report import show_peer
from tests.nodes import SMALL


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """Bitcoin Core, or what stands in for it."""
    if os.environ.get("BITCOIND"):
        return Path(os.environ["BITCOIND"])
    path = tmp_path / "bitcoind"
    path.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m tests.bench.stand_in_node "$@"\n')
    path.chmod(0o755)
    return path


def test_both_are_measured_in_one_run_on_the_same_chain(
    ray_session: None, tiny: Fixture, bench_dir: Path, program: Path
) -> None:
    runs = run_peer(tiny, bench_dir, program, samples=1, **SMALL)
    assert set(runs.ms) == {(OURS, FIRST), (OURS, CACHED), (OURS, AFTER_LAST), (CORE, FIRST), (CORE, CACHED)}
    assert runs.core_version and not runs.why_empty


def test_without_a_peer_its_column_says_why_it_is_empty() -> None:
    assert bitcoind_of({}) is None
    out = StringIO()
    show_peer(Console(file=out, width=200), PeerRuns({(OURS, FIRST): [1.0]}, why_empty="BITCOIND is not set"))
    assert "Bitcoin Core: BITCOIND is not set" in out.getvalue()


def test_a_program_that_is_not_there_is_named() -> None:
    with pytest.raises(BenchError, match="BITCOIND=/no/such/bitcoind is no program that can be run"):
        bitcoind_of({"BITCOIND": "/no/such/bitcoind"})


def test_a_program_that_ends_at_once_is_quoted(tmp_path: Path) -> None:
    path = tmp_path / "bitcoind"
    path.write_text("#!/bin/sh\necho 'Error: no such chain' >&2\nexit 1\n")
    path.chmod(0o755)
    with pytest.raises(BenchError, match="ended with 1: Error: no such chain"), core_node(path, tmp_path / "data", 0):
        pass


def test_a_fixture_whose_coins_no_block_made_is_refused(tiny_large: Fixture, bench_dir: Path) -> None:
    with pytest.raises(BenchError, match="use the small fixture"):
        run_peer(tiny_large, bench_dir, None, samples=1)
