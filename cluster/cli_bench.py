"""`bench`: measures the paths that matter, on blocks of our own, and says on what it measured. The work is in `bench/`.

Tables go to standard output; a run is kept as JSON below --dir and, with --json, in a file; plots are PNG files.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from cluster.cli_common import DONE, ERROR, note, stderr

if TYPE_CHECKING:
    from bench.fixtures import Fixture, Plan

__all__ = ["app"]

DEFAULT_DIR = Path("/var/tmp/txcollection-bench")

app = typer.Typer(
    name="bench",
    help="Measures how fast blocks are checked, cold, through real actors; on blocks and chains of its own.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)

DirOption = Annotated[
    Path,
    typer.Option(
        "--dir", metavar="DIR", help="Where fixtures and runs are kept; it chooses the disk that is measured."
    ),
]
JsonFile = Annotated[
    Path | None, typer.Option("--json", metavar="FILE", help="Write the whole run, every sample, to this file as well.")
]
FixtureOption = Annotated[
    Literal["small", "large"],
    typer.Option("--fixture", help="small: coins are neighbours; large: scattered over many others."),
]
CoinsOption = Annotated[
    int | None,
    typer.Option("--coins", min=1000, help="How many others, for large; 20 million by default, 130 million are 10 GB."),
]
ThreadsOption = Annotated[
    int | None, typer.Option("--threads", min=1, max=256, help="Reading threads of every fetch worker.")
]


def _command(*examples: str) -> Callable[[Callable[..., int]], Callable[..., int]]:
    epilog = "Example:\n\n" + "\n\n".join(f"[bold]{example}[/bold]" for example in examples)
    return app.command(epilog=epilog)


@contextmanager
def _progress() -> Iterator[Callable[[str, int, int], None]]:
    """Shows (what, done, of how many) on standard error, on a terminal only."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=stderr(), transient=True, disable=not stderr().is_terminal) as bar:
        task = bar.add_task("", total=None)
        yield lambda what, done, total: bar.update(task, description=what, completed=done, total=total)


def _plan(fixture: str, coins: int | None) -> "Plan":
    from bench.fixtures import LARGE_COINS, Plan
    from models.errors import ClientError

    if fixture == "small":
        if coins is not None:
            raise ClientError("--coins goes with --fixture large")
        return Plan.small()
    return Plan.large(coins or LARGE_COINS)


def _fixture(directory: Path, plan: "Plan") -> "Fixture":
    from bench.fixtures import find_or_make

    with _progress() as progress:
        return find_or_make(directory, plan, progress)


def _console() -> Console:
    return Console(highlight=False, width=None if Console().is_terminal else 200)


def _finish(run: dict[str, Any], directory: Path, command: str, fixture: str, file: Path | None) -> None:
    from bench.results import keep

    note(f"kept as {keep(directory, command, fixture, run, file)}")


def _plots(directory: Path, plots: Path | None) -> Path:
    return plots if plots is not None else directory / "plots"


PlotsOption = Annotated[
    Path | None, typer.Option("--plots", metavar="DIR", help="Where plots go; DIR/plots by default.")
]


@_command("txcollection bench fixture --fixture large --coins 130000000 --dir /mnt/disk/bench")
def fixture(fixture: FixtureOption = "small", coins: CoinsOption = None, directory: DirOption = DEFAULT_DIR) -> int:
    """Makes a fixture, or finds it, and says what it is. Other commands make theirs when they need it."""
    import json

    found = _fixture(directory, _plan(fixture, coins))
    print(json.dumps(found.manifest, indent=2))
    return DONE


@_command(
    "txcollection bench compare",
    "txcollection bench compare --fixture large --samples 11 --dir /mnt/disk/bench --json large.json",
)
def compare(
    fixture: FixtureOption = "small",
    coins: CoinsOption = None,
    samples: Annotated[
        int | None, typer.Option(min=1, help="Samples of each case on each configuration; 101 on small, 31 on large.")
    ] = None,
    warmups: Annotated[int | None, typer.Option(min=0, help="Samples before those; 5 on small, 3 on large.")] = None,
    trip_samples: Annotated[
        int | None, typer.Option(min=0, help="Samples for each length of the round trip; 15 on small, 5 on large.")
    ] = None,
    repeat: Annotated[bool, typer.Option(help="All of it once more, configurations in reverse order.")] = True,
    two_threads: Annotated[
        bool, typer.Option("--two-threads", help="A fifth configuration, prefetching with two reading threads.")
    ] = False,
    threads: ThreadsOption = None,
    directory: DirOption = DEFAULT_DIR,
    json_file: JsonFile = None,
    plots: PlotsOption = None,
) -> int:
    """Times every case on four configurations: prefetch on or off, reads parallel or one by one.

    Caches are emptied before each sample: the coins cache, the databases' own, and the fixture's files in the page
    cache. Exits 2 if a sample was refused because its verdict was not valid or its block another.
    """
    from bench.compare import Effort

    found = _fixture(directory, _plan(fixture, coins))
    usual = Effort.default(found)
    effort = Effort(
        usual.warm_ups if warmups is None else warmups,
        samples or usual.samples,
        usual.trip_samples if trip_samples is None else trip_samples,
        repeat,
    )
    return _compare("compare", found, effort, two_threads, threads, directory, json_file, plots)


@_command("make bench", "txcollection bench quick --dir /mnt/disk/bench")
def quick(directory: DirOption = DEFAULT_DIR, json_file: JsonFile = None, plots: PlotsOption = None) -> int:
    """The comparison on the small fixture with few samples: two minutes, and figures that are only a first look."""
    from bench.compare import Effort
    from bench.fixtures import Plan

    found = _fixture(directory, Plan.small())
    return _compare("quick", found, Effort(1, 7, 2, repeat=False), False, None, directory, json_file, plots)


def _compare(
    command: str,
    found: "Fixture",
    effort: Any,
    two_threads: bool,
    threads: int | None,
    directory: Path,
    json_file: Path | None,
    plots: Path | None,
) -> int:
    from dataclasses import asdict

    from bench.compare import TRIPS
    from bench.compare import compare as run_comparison
    from bench.goals import goals_of_comparison
    from bench.nodes import FOUR
    from bench.plots import plot_bars, plot_trips
    from bench.report import show_comparison, show_goals, show_preamble
    from bench.results import document, kept

    configurations = [*FOUR, "both, 2 threads"] if two_threads else list(FOUR)
    overrides: dict[str, Any] = {} if threads is None else {"fetch_threads": threads}
    run = document(command, found, directory, {"effort": asdict(effort), "settings": overrides})
    with _progress() as progress:
        result = run_comparison(
            found,
            directory,
            effort,
            configurations,
            trips=TRIPS if command == "compare" else TRIPS[::2],
            progress=progress,
            **overrides,
        )
    goals = goals_of_comparison(result, found, kept(directory, "compare", "small"))
    run |= result.to_dict() | {"goals": [goal.to_dict() for goal in goals]}
    console = _console()
    show_preamble(console, run)
    show_comparison(console, result)
    show_goals(console, goals)
    place = _plots(directory, plots)
    if run["summaries"]:
        note(f"plot: {plot_bars(run, place / f'{command}-{found.name}-bars.png')}")
    if trips := plot_trips(run, place / f"{command}-{found.name}-trips.png"):
        note(f"plot: {trips}")
    _finish(run, directory, command, found.name, json_file)
    return ERROR if result.refused else DONE


@_command("txcollection bench raw --fixture large", "txcollection bench raw --threads 2 --threads 32 --samples 5")
def raw(
    fixture: FixtureOption = "large",
    coins: CoinsOption = None,
    threads: Annotated[
        list[int] | None, typer.Option("--threads", min=1, max=256, help="Reading threads; may be given several times.")
    ] = None,
    samples: Annotated[int, typer.Option(min=1, help="Samples of each reader with each number of threads.")] = 3,
    directory: DirOption = DEFAULT_DIR,
    json_file: JsonFile = None,
) -> int:
    """Reads the block's cold coins by plyvel and by rocksdict, with as many threads, without any actor."""
    from bench.raw import goals_of_raw, read_raw
    from bench.report import show_goals, show_preamble, show_raw
    from bench.results import document

    found = _fixture(directory, _plan(fixture, coins))
    run = document("raw", found, directory, {"samples_each": samples})
    with _progress() as progress:
        rows = read_raw(found, directory, threads or [2, 32], samples, progress)
    goals = goals_of_raw(rows, found)
    run |= {"rows": [row.to_dict() for row in rows], "goals": [goal.to_dict() for goal in goals]}
    console = _console()
    show_preamble(console, run)
    show_raw(console, rows)
    show_goals(console, goals)
    _finish(run, directory, "raw", found.name, json_file)
    return DONE


@_command("txcollection bench scripts --samples 11")
def scripts(
    samples: Annotated[int, typer.Option(min=1, help="Samples of each way.")] = 7,
    directory: DirOption = DEFAULT_DIR,
    json_file: JsonFile = None,
) -> int:
    """Times the first full validation of a block of which no script is known, against the kernel on two threads."""
    from bench.fixtures import Plan
    from bench.report import show_goals, show_preamble, show_scripts
    from bench.results import document
    from bench.scripts import goals_of_scripts, run_scripts

    found = _fixture(directory, Plan.small())
    run = document("scripts", found, directory, {})
    with _progress() as progress:
        runs = run_scripts(found, directory, samples, progress)
    goals = goals_of_scripts(runs)
    run |= runs.to_dict() | {"goals": [goal.to_dict() for goal in goals]}
    console = _console()
    show_preamble(console, run)
    show_scripts(console, runs)
    show_goals(console, goals)
    _finish(run, directory, "scripts", found.name, json_file)
    return DONE


@_command("txcollection bench memory")
def memory(directory: DirOption = DEFAULT_DIR, json_file: JsonFile = None) -> int:
    """Weighs eight full declarations while they prefetch: memory of all actors that no other process shares."""
    from bench.fixtures import Plan
    from bench.memory import goals_of_memory, measure_memory
    from bench.report import show_goals, show_memory, show_preamble
    from bench.results import document

    found = _fixture(directory, Plan.small())
    run = document("memory", found, directory, {})
    with _progress() as progress:
        use = measure_memory(found, directory, progress)
    goals = goals_of_memory(use)
    run |= use.to_dict() | {"goals": [goal.to_dict() for goal in goals]}
    console = _console()
    show_preamble(console, run)
    show_memory(console, use)
    show_goals(console, goals)
    _finish(run, directory, "memory", found.name, json_file)
    return DONE


@_command("BITCOIND=/usr/local/bin/bitcoind txcollection bench peer")
def peer(
    samples: Annotated[int, typer.Option(min=1, help="Samples of each proposal.")] = 7,
    directory: DirOption = DEFAULT_DIR,
    json_file: JsonFile = None,
) -> int:
    """Proposes the same block to our node and to Bitcoin Core on the same chain, and shows both in one table.

    BITCOIND in the environment names Core's program; it is started on loopback, in a directory of its own.
    """
    from bench.fixtures import Plan
    from bench.peer import bitcoind_of, run_peer
    from bench.report import show_peer, show_preamble
    from bench.results import document

    bitcoind = bitcoind_of()
    found = _fixture(directory, Plan.small())
    run = document("peer", found, directory, {})
    with _progress() as progress:
        runs = run_peer(found, directory, bitcoind, samples, progress)
    run |= runs.to_dict()
    console = _console()
    show_preamble(console, run)
    show_peer(console, runs)
    _finish(run, directory, "peer", found.name, json_file)
    return DONE


@_command("txcollection bench sweep --fixture large", "txcollection bench sweep --workers 1 --threads 8 --threads 64")
def sweep(
    fixture: FixtureOption = "large",
    coins: CoinsOption = None,
    workers: Annotated[list[int] | None, typer.Option(min=1, max=64, help="Fetch workers; several times.")] = None,
    threads: Annotated[list[int] | None, typer.Option(min=1, max=256, help="Threads of each; several times.")] = None,
    batch: Annotated[
        list[int] | None, typer.Option(min=0, help="Coins in a request, 0 for all at once; several times.")
    ] = None,
    samples: Annotated[int, typer.Option(min=1, help="Samples of each combination.")] = 3,
    directory: DirOption = DEFAULT_DIR,
    json_file: JsonFile = None,
    plots: PlotsOption = None,
) -> int:
    """Reads all cold coins of the block for numbers of fetch workers, threads and batch sizes, and draws it."""
    from bench.plots import plot_sweep
    from bench.report import show_preamble, show_sweep
    from bench.results import document
    from bench.sweep import BATCHES, THREADS, WORKERS
    from bench.sweep import sweep as run_sweep

    found = _fixture(directory, _plan(fixture, coins))
    run = document("sweep", found, directory, {})
    with _progress() as progress:
        rows = run_sweep(found, directory, workers or WORKERS, threads or THREADS, batch or BATCHES, samples, progress)
    run |= {"rows": [row.to_dict() for row in rows]}
    console = _console()
    show_preamble(console, run)
    show_sweep(console, rows)
    note(f"plot: {plot_sweep(run, _plots(directory, plots) / f'sweep-{found.name}.png')}")
    _finish(run, directory, "sweep", found.name, json_file)
    return DONE
