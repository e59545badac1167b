"""Tables on the terminal: what was measured on what, times with their quartiles, what was counted, and the goals."""

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from bench.cases import ASSEMBLE, COMPLETE, ONE_MISSING
from bench.compare import ColdReads, Comparison
from bench.goals import Goal
from bench.memory import MIB, MemoryUse
from bench.peer import AFTER_LAST, CACHED, CORE, FIRST, OURS, PeerRuns
from bench.raw import RawReads, times_faster
from bench.samples import Sample, summarise
from bench.scripts import KERNEL, ScriptRuns
from bench.sweep import SweepRow

__all__ = [
    "megabytes",
    "new_table",
    "show_comparison",
    "show_goals",
    "show_memory",
    "show_peer",
    "show_preamble",
    "show_raw",
    "show_scripts",
    "show_sweep",
]

COUNTED_CASES = (ONE_MISSING[0].name, COMPLETE.name, ASSEMBLE.name)


def new_table(title: str, *columns: str) -> Table:
    """A table in the style of all of them: names to the left, figures to the right."""
    table = Table(title=title, title_justify="left", title_style="bold", header_style="bold", box=None, padding=(0, 2))
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left", no_wrap=number > 0)
    return table


def megabytes(size: float | None) -> str:
    """Bytes in MB with as many digits as they deserve; a dash where they are not known."""
    if size is None:
        return "-"
    return f"{size / 1e6:,.0f}" if size >= 1e8 else f"{size / 1e6:.1f}" if size >= 1e5 else f"{size / 1e6:.3f}"


def show_preamble(console: Console, run: Mapping[str, Any]) -> None:
    """What was measured, on what."""
    machine, fixture = run["machine"], run["fixture"]
    if fixture:
        where = f"scattered over {fixture['filler']:,} others" if fixture["filler"] else "neighbours in the database"
        console.print(
            f"[bold]{fixture['name']}[/bold]: {fixture['transactions']:,} transactions, {fixture['inputs']:,} coins "
            f"({where}), {fixture['weight']:,} WU ({fixture['weight_percent']} %); database "
            f"{megabytes(fixture['database_bytes'])} MB, coins in {fixture['regions_2mib_hit']:,} of "
            f"{fixture['regions_2mib']:,} regions of 2 MiB"
        )
    memory = machine["memory_bytes"]
    console.print(
        f"{machine['cpu']}, {machine['cores']} cores, {memory >> 30 if memory else '?'} GiB; "
        f"{machine['system']} {machine['kernel']}, {machine['file_system']}, "
        f"read_ahead_kb {machine['read_ahead_kb']}; load before {machine['load_average_before']}; "
        f"Python {run['versions']['python']}, ray {run['versions'].get('ray')}\n"
    )


def _middle(samples: Sequence[Sample], value: Callable[[Sample], float | None]) -> float | None:
    found = [v for v in map(value, samples) if v is not None]
    return median(found) if found else None


def show_comparison(console: Console, result: Comparison) -> None:
    """Everything that `bench compare` found."""
    times = new_table("Milliseconds, median (quartiles)", "case", *result.configurations)
    for case in result.cases:
        times.add_row(case, *(str(result.time(case, name) or "-") for name in result.configurations))
    console.print(times, "")
    if any(s.run == 2 for s in result.samples):
        runs = new_table("Medians of the two runs: in order, in reverse order", "case", *result.configurations)
        for case in result.cases:
            pairs = [[result.time(case, name, run) for run in (1, 2)] for name in result.configurations]
            runs.add_row(case, *(" / ".join(f"{s.median:.1f}" if s else "-" for s in pair) for pair in pairs))
        console.print(runs, "")
    console.print(_counted(result), "")
    if result.trips:
        trips = new_table("Milliseconds after a client's round trip of", "", *result.configurations)
        for case in dict.fromkeys(s.case for s in result.trips):
            length = float(case.split()[2])
            trips.add_row(f"{length:g} ms", *(str(result.trip(length, name) or "-") for name in result.configurations))
        console.print(trips, "")
    _show_reads(console, result.reads)
    _show_doubts(console, result)


def _counted(result: Comparison) -> Table:
    table = new_table(
        "Counted in a sample (medians)",
        "case, configuration",
        "MB read: index",
        "preparation",
        "verdict",
        "requests",
        "keys",
        "retained",
        "its MB",
        "cached",
        "its MB",
        "WU",
    )
    for case in COUNTED_CASES:
        for name in result.configurations:
            samples = result.of(case, name)
            if not samples:
                continue

            def storage(phase: str, samples: Sequence[Sample] = samples) -> str:
                return megabytes(_middle(samples, lambda s: s.storage.get(phase)))

            def number(value: Callable[[Sample], float | None], samples: Sequence[Sample] = samples) -> str:
                return f"{_middle(samples, value) or 0:,.0f}"

            table.add_row(
                f"{case}, {name}",
                storage("index"),
                storage("preparation"),
                storage("verdict"),
                number(lambda s: _over_phases(s, "prefetches", "fallback_reads", "peeks")),
                number(lambda s: _over_phases(s, "prefetch_keys", "fallback_keys")),
                number(lambda s: s.retained_entries),
                megabytes(_middle(samples, lambda s: s.retained_bytes)),
                number(lambda s: s.cache_entries),
                megabytes(_middle(samples, lambda s: s.cache_bytes)),
                number(lambda s: s.weight),
            )
    return table


def _total(sample: Sample, key: str) -> int:
    return sum(counts.get(key, 0) for counts in sample.requests.values())


def _over_phases(sample: Sample, *keys: str) -> int:
    return sum(_total(sample, key) for key in keys)


def _show_reads(console: Console, reads: ColdReads) -> None:
    if not reads.coins_ms:
        return
    table = new_table("Cold reads by the fetch workers alone", "", "ms", "MB from storage")
    table.add_row("opening the database (index)", "-", megabytes(_worst(reads.index_bytes)))
    table.add_row("the block's coins", str(summarise(reads.coins_ms)), megabytes(_worst(reads.coins_bytes)))
    table.add_row("its outputs, for BIP30", str(summarise(reads.probes_ms)), megabytes(_worst(reads.probes_bytes)))
    console.print(table, "")


def _worst(sizes: Sequence[int | None]) -> int | None:
    known = [size for size in sizes if size is not None]
    return max(known) if known else None


def _show_doubts(console: Console, result: Comparison) -> None:
    """What is to be held against the figures."""
    total = sum(not s.warm_up for s in [*result.samples, *result.trips])
    stayed = [s.resident for s in [*result.samples, *result.trips] if s.resident is not None]
    if result.warm_samples:
        why = "this system cannot do it, databases were only opened anew" if not stayed else "some of it stayed"
        console.print(
            Text(f"PAGE CACHE NOT DROPPED in {result.warm_samples} of {total} samples: {why}", style="bold red")
        )
    elif stayed:
        console.print(f"page cache dropped before all {total} samples (at most {max(stayed) >> 10} KiB stayed mapped)")
    for text in result.refused[:5]:
        console.print(Text(f"refused: {text}", style="bold red"))
    if len(result.refused) > 5:
        console.print(Text(f"and {len(result.refused) - 5} more samples refused", style="bold red"))
    console.print("")


def show_goals(console: Console, goals: Sequence[Goal]) -> None:
    """Measured against wanted."""
    if not goals:
        return
    table = new_table("Goals", "figure", "measured", "goal", "")
    for goal in goals:
        bound = f"{'at least' if goal.at_least else 'at most'} {goal.bound:g} {goal.unit}"
        verdict = Text("reached", style="green") if goal.reached else Text("missed", style="bold red")
        table.add_row(goal.what, f"{goal.measured:,.4g} {goal.unit}", bound, verdict)
    console.print(table, "")


def show_raw(console: Console, rows: Sequence[RawReads]) -> None:
    """Readers side by side."""
    table = new_table(
        "The block's cold coins, without actors",
        "reader, threads",
        "ms",
        "times faster",
        "MB from storage",
        "MB to open it",
        "outputs for BIP30, ms",
        "MB",
    )
    for row in rows:
        table.add_row(
            f"{row.reader}, {row.threads}",
            str(summarise(row.coins_ms)),
            f"{times_faster(rows, row.threads) or 0:.1f}" if row.reader == "rocksdict" else "",
            megabytes(_worst(row.coins_bytes)),
            megabytes(_worst(row.index_bytes)),
            str(summarise(row.probes_ms)),
            megabytes(_worst(row.probes_bytes)),
        )
    console.print(table, "")
    if not all(row.cold for row in rows):
        console.print(Text("PAGE CACHE NOT DROPPED before some of these", style="bold red"))


def show_scripts(console: Console, runs: ScriptRuns) -> None:
    """Our ways and the kernel's."""
    kernel = summarise(runs.ms[KERNEL])
    table = new_table("First full validation, no script known", "", "ms", "against the kernel")
    for name, values in runs.ms.items():
        summary = summarise(values)
        ratio = f"{summary.median / kernel.median:.2f} x" if summary and kernel else "-"
        table.add_row(name, str(summary or "-"), ratio)
    console.print(table, "")


def show_memory(console: Console, use: MemoryUse) -> None:
    """What eight declarations take."""
    table = new_table("Memory of all actors that nobody shares (USS), MiB", "", "MiB", "more than before")
    table.add_row("a node as it starts, one collection process", f"{use.idle / MIB:.0f}", "")
    table.add_row("eight collection processes", f"{use.processes / MIB:.0f}", f"{(use.processes - use.idle) / MIB:.0f}")
    table.add_row("eight full declarations", f"{use.full / MIB:.0f}", f"{(use.full - use.processes) / MIB:.0f}")
    for kind, (before, after) in sorted(use.by_kind.items()):
        table.add_row(f"    of these, {kind}", f"{after / MIB:.0f}", f"{(after - before) / MIB:.1f}")
    console.print(table)
    console.print(f"each declaration counts {max(use.retained):,} bytes of queue and observations itself\n")


def show_peer(console: Console, runs: PeerRuns) -> None:
    """Us and them."""
    core = runs.core_version or CORE
    table = new_table("Milliseconds in the client, median (quartiles)", "", OURS, core)
    for what in (FIRST, CACHED, AFTER_LAST):
        ours, theirs = summarise(runs.ms.get((OURS, what), [])), summarise(runs.ms.get((CORE, what), []))
        none = "-" if runs.why_empty else "it is asked about the whole block again"
        table.add_row(what, str(ours or "-"), str(theirs or none))
    console.print(table, "")
    how = (
        "Ours: check_block; a collection by wtxids, all known; make_template(missing=[tx]) after 50 ms. "
        "Core: getblocktemplate in proposal mode over RPC, the node started anew before the first time."
    )
    console.print(Text(how, style="dim"))
    if runs.why_empty:
        console.print(Text(f"{CORE}: {runs.why_empty}", style="bold"))
    console.print("")


def show_sweep(console: Console, rows: Sequence[SweepRow]) -> None:
    """A row for each number of workers and threads, a column for each batch size."""
    batches = sorted({row.batch for row in rows}, key=lambda batch: batch or 1 << 30)
    heads = [f"batches of {batch:,}" if batch else "all at once" for batch in batches]
    table = new_table("All cold coins of the block, ms: median (quartiles)", "workers x threads", *heads, "MB read")
    for workers, threads in sorted({(row.workers, row.threads) for row in rows}):
        cells = [
            row
            for batch in batches
            for row in rows
            if (row.workers, row.threads, row.batch) == (workers, threads, batch)
        ]
        sizes = [row.storage for row in cells if row.storage is not None]
        times = [str(summarise(row.samples)) for row in cells]
        table.add_row(f"{workers} x {threads}", *times, megabytes(max(sizes) if sizes else None))
    console.print(table, "")
    if not all(row.cold for row in rows):
        console.print(Text("PAGE CACHE NOT DROPPED before some of these", style="bold red"))
