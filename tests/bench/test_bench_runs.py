"""The bench from end to end on tiny fixtures: every case on every configuration, tables, plots and JSON. No figure is
looked at; what is refused is.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from bench.cases import COMPLETE, ONE_MISSING
from bench.compare import KNOWN_INPUTS, Comparison, Effort, compare
from bench.errors import RefusedSample
from bench.fixtures import Fixture
from bench.goals import goals_of_comparison
from bench.nodes import FOUR, BenchNode, running_nodes, working_directory
from bench.plots import plot_bars, plot_sweep, plot_trips
from bench.raw import goals_of_raw, read_raw, times_faster
from bench.report import show_comparison, show_goals, show_preamble, show_raw, show_sweep
from bench.results import document, keep, kept
from bench.sweep import sweep
from models.wire.transaction import Transaction, decode_transaction
from tests.nodes import SMALL

PNG = b"\x89PNG\r\n"


@pytest.fixture(scope="module")
def compared(ray_session: None, tiny_large: Fixture, bench_dir: Path) -> Comparison:
    """One sample of everything, in both orders."""
    return compare(tiny_large, bench_dir, Effort(0, 1, 1), trips=(20,), **SMALL)


def test_every_case_was_sampled_on_every_configuration_in_both_orders(compared: Comparison) -> None:
    assert compared.refused == []
    for name in FOUR:
        for case in compared.cases:
            for run in (1, 2):
                assert compared.time(case, name, run) is not None, (case, name, run)
        assert compared.trip(20, name)


def test_all_cases_of_the_issue_are_there(compared: Comparison) -> None:
    assert compared.cases[0] == KNOWN_INPUTS
    assert [case.split(",")[0] for case in compared.cases[1:]] == ["one-missing"] * 4 + ["complete", "assemble"]


def test_what_configurations_read_is_what_they_are_named_for(compared: Comparison, tiny_large: Fixture) -> None:
    coins, case = len(tiny_large.outpoints), ONE_MISSING[0].name
    baseline, prefetch, parallel, both = (compared.of(case, name)[0] for name in FOUR)
    assert baseline.retained_entries == parallel.retained_entries == 0
    assert baseline.cache_entries == coins  # as a plain TxCollection leaves them behind
    assert both.cache_entries == 0
    assert both.retained_entries >= coins - 2
    assert both.requests["preparation"]["prefetch_keys"] >= coins - 2
    assert both.requests["verdict"]["serial_reads"] == 0
    assert 0 < prefetch.requests["verdict"]["serial_reads"] < coins
    assert parallel.requests["verdict"]["fallback_keys"] >= coins


def test_samples_have_the_blocks_weight(compared: Comparison, tiny_large: Fixture) -> None:
    assert {s.weight for s in compared.samples if s.case != "assemble"} == {tiny_large.weight}


def test_the_report_has_tables_plots_and_json_without_names_of_this_machine(
    compared: Comparison, tiny_large: Fixture, bench_dir: Path, tmp_path: Path
) -> None:
    import socket

    run = document("compare", tiny_large, bench_dir, compared.to_dict())
    text = json.dumps(run)
    assert str(bench_dir) not in text and str(Path.home()) not in text
    assert f'"{socket.gethostname()}"' not in text
    place = keep(bench_dir, "compare", tiny_large.name, run, tmp_path / "run.json")
    assert json.loads(place.read_text()) == json.loads((tmp_path / "run.json").read_text()) == json.loads(text)
    assert plot_bars(run, tmp_path / "bars.png").read_bytes().startswith(PNG)
    trips = plot_trips(run, tmp_path / "trips.png")
    assert trips is not None and trips.read_bytes().startswith(PNG)
    out = StringIO()
    console = Console(file=out, width=250)
    show_preamble(console, run)
    show_comparison(console, compared)
    show_goals(console, goals_of_comparison(compared, tiny_large, kept(bench_dir, "compare", tiny_large.name)))
    for word in ("one-missing, two calls, back to back", "baseline", "BIP30", "60 coins", "Goals"):
        assert word in out.getvalue()


def test_a_run_whose_page_cache_could_not_be_dropped_is_marked(compared: Comparison) -> None:
    doubtful = Comparison(compared.configurations, [replace(s, cold=False, resident=None) for s in compared.samples])
    out = StringIO()
    show_comparison(Console(file=out, width=250), doubtful)
    assert "PAGE CACHE NOT DROPPED" in out.getvalue()
    assert doubtful.to_dict()["page_cache_dropped"] is False


@pytest.fixture(scope="module")
def one_node(ray_session: None, tiny: Fixture, bench_dir: Path) -> Iterator[BenchNode]:
    """A node on the tiny fixture."""
    with working_directory(bench_dir) as work, running_nodes(tiny, work, ["both"], **SMALL) as nodes:
        yield nodes["both"]


class _Wrong(Fixture):
    """A fixture whose client hands in a coinbase that takes a satoshi too much, or one more output."""

    change: Any = staticmethod(lambda raw: raw)

    @property
    def coinbase(self) -> bytes:
        return self.change(super().coinbase)

    @cached_property
    def transactions(self) -> list[Transaction]:
        return self.block.transactions[1:]


def _greedy(raw: bytes) -> bytes:
    value = decode_transaction(raw).values[0]
    return raw.replace(value.to_bytes(8, "little"), (value + 1).to_bytes(8, "little"), 1)


def _longer(raw: bytes) -> bytes:
    """The same coinbase with another output of nothing to OP_TRUE."""
    count = raw.index(b"\x02" + decode_transaction(raw).values[0].to_bytes(8, "little"))
    return raw[:count] + b"\x03" + bytes(8) + b"\x01\x51" + raw[count + 1 :]


def test_a_sample_whose_verdict_is_not_valid_is_refused(one_node: BenchNode, tiny: Fixture) -> None:
    one_node.set_mempool(tiny, complete=True)
    wrong = _Wrong(tiny.path, tiny.manifest)
    wrong.__dict__["change"] = _greedy
    with pytest.raises(RefusedSample, match="bad-cb-amount"):
        COMPLETE.sample(one_node, wrong)


def test_a_sample_of_another_weight_is_refused(one_node: BenchNode, tiny: Fixture) -> None:
    one_node.set_mempool(tiny, complete=True)
    wrong = _Wrong(tiny.path, tiny.manifest)
    wrong.__dict__["change"] = _longer
    with pytest.raises(RefusedSample, match=f"weight {tiny.weight + 40}, but not the fixture's of {tiny.weight}"):
        COMPLETE.sample(one_node, wrong)


def test_a_good_sample_is_not_refused(one_node: BenchNode, tiny: Fixture) -> None:
    one_node.set_mempool(tiny, complete=True)
    assert COMPLETE.sample(one_node, tiny).weight == tiny.weight


def test_both_readers_find_every_coin(tiny_large: Fixture, bench_dir: Path) -> None:
    rows = read_raw(tiny_large, bench_dir, [1, 4], samples=1)
    assert [(row.reader, row.threads) for row in rows] == [
        ("plyvel", 1),
        ("rocksdict", 1),
        ("plyvel", 4),
        ("rocksdict", 4),
    ]
    assert all(len(row.coins_ms) == len(row.probes_ms) == 1 for row in rows)
    assert times_faster(rows, 4) and len(goals_of_raw(rows, tiny_large)) >= 1
    out = StringIO()
    show_raw(Console(file=out, width=200), rows)
    assert "rocksdict, 4" in out.getvalue()


def test_a_sweep_has_a_row_for_each_combination_and_a_plot(
    ray_session: None, tiny_large: Fixture, bench_dir: Path, tmp_path: Path
) -> None:
    rows = sweep(tiny_large, bench_dir, workers=[1], threads=[2], batches=[16, 0], samples=1)
    assert [(row.workers, row.threads, row.batch) for row in rows] == [(1, 2, 16), (1, 2, 0)]
    run = document("sweep", tiny_large, bench_dir, {"rows": [row.to_dict() for row in rows]})
    assert plot_sweep(run, tmp_path / "sweep.png").read_bytes().startswith(PNG)
    out = StringIO()
    show_sweep(Console(file=out, width=200), rows)
    assert "1 x 2" in out.getvalue()
