"""Plots of a run as PNG files, without a display; from the run's JSON form, so that a kept run can be drawn again."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.samples import summarise

__all__ = ["plot_bars", "plot_sweep", "plot_trips"]

#: One colour per configuration, the same in every plot; told apart by people who see few colours.
COLOURS = {
    "baseline": "#9a9a9a",
    "prefetch only": "#56b4e9",
    "parallel only": "#e69f00",
    "both": "#0b6e4f",
    "both, 2 threads": "#cc79a7",
}
OTHER_COLOURS = ("#0072b2", "#d55e00", "#f0e442", "#000000")
WIDTH, HEIGHT, DPI = 11, 5.5, 130
TICKS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000)


def _colour(name: str, number: int) -> str:
    return COLOURS.get(name, OTHER_COLOURS[number % len(OTHER_COLOURS)])


def _title(run: Mapping[str, Any], text: str) -> str:
    fixture, machine = run["fixture"], run["machine"]
    coins = f"{fixture['filler']:,} other coins" if fixture["filler"] else "small database"
    return (
        f"{text}\n{fixture['inputs']:,} inputs, {coins}, {machine['cores']} cores, "
        f"{machine['file_system']}, read-ahead {machine['read_ahead_kb']} KiB"
    )


def _log_milliseconds(axes: Axes, low: float, high: float) -> None:
    axes.set_yscale("log")
    axes.set_ylim(low * 0.7, high * 1.6)
    ticks = [tick for tick in TICKS if low * 0.7 <= tick <= high * 1.6]
    axes.set_yticks(ticks, [f"{tick:,}" for tick in ticks])
    axes.minorticks_off()
    axes.set_ylabel("milliseconds (log scale)")
    axes.grid(axis="y", color="#dddddd", linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _save(figure: Figure, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=DPI)
    return path


def plot_bars(run: Mapping[str, Any], path: Path) -> Path:
    """Median of every case on every configuration, with quartiles."""
    summaries = {(s["case"], s["configuration"]): s for s in run["summaries"] if s["run"] is None}
    cases = list(dict.fromkeys(case for case, _ in summaries))
    names = list(run["configurations"])
    figure = Figure(figsize=(WIDTH, HEIGHT), layout="constrained")
    axes = figure.subplots()
    width = 0.8 / len(names)
    for number, name in enumerate(names):
        found = [(i, summaries[case, name]) for i, case in enumerate(cases) if (case, name) in summaries]
        places = [i + (number - (len(names) - 1) / 2) * width for i, _ in found]
        medians = [s["median"] for _, s in found]
        spread = [[s["median"] - s["low"] for _, s in found], [s["high"] - s["median"] for _, s in found]]
        axes.bar(places, medians, width * 0.94, color=_colour(name, number), label=name)
        axes.errorbar(places, medians, yerr=spread, fmt="none", ecolor="#333333", elinewidth=1, capsize=2)
        for place, (_, s) in zip(places, found, strict=True):
            text = f"{s['median']:,.0f}" if s["median"] >= 20 else f"{s['median']:.1f}"
            axes.annotate(text, (place, s["high"]), (0, 3), textcoords="offset points", ha="center", fontsize=7)
    _log_milliseconds(axes, min(s["low"] for s in summaries.values()), max(s["high"] for s in summaries.values()))
    axes.set_xticks(range(len(cases)), [case.replace(", ", "\n") for case in cases], fontsize=8)
    axes.set_title(_title(run, "Cold disk: median of each case, with quartiles"), fontsize=10, loc="left")
    axes.legend(frameon=False, ncols=len(names), fontsize=8, loc="upper right")
    return _save(figure, path)


def plot_trips(run: Mapping[str, Any], path: Path) -> Path | None:
    """What is left to do after a round trip, by its length; None if none were measured."""
    found: dict[str, dict[float, list[float]]] = {}
    for sample in run["round_trips"]:
        if not sample["warm_up"]:
            length = float(sample["case"].split()[2])
            found.setdefault(sample["configuration"], {}).setdefault(length, []).append(sample["ms"])
    if not found:
        return None
    figure = Figure(figsize=(WIDTH * 0.8, HEIGHT), layout="constrained")
    axes = figure.subplots()
    low, high = float("inf"), 0.0
    for number, (name, by_length) in enumerate(found.items()):
        lengths = sorted(by_length)
        points = [s for length in lengths if (s := summarise(by_length[length]))]
        axes.plot(lengths, [s.median for s in points], "o-", color=_colour(name, number), label=name, markersize=4)
        axes.fill_between(
            lengths, [s.low for s in points], [s.high for s in points], color=_colour(name, number), alpha=0.18, lw=0
        )
        low, high = min(low, *(s.low for s in points)), max(high, *(s.high for s in points))
    _log_milliseconds(axes, low, high)
    axes.set_xlabel("milliseconds between declaration and the last transaction (the client's round trip)")
    axes.set_title(_title(run, "From the last transaction to the verdict, cold disk"), fontsize=10, loc="left")
    axes.legend(frameon=False, fontsize=8)
    return _save(figure, path)


def plot_sweep(run: Mapping[str, Any], path: Path) -> Path:
    """Time of all cold coins by threads, a line for each number of workers, a panel for each batch size."""
    rows: Sequence[Mapping[str, Any]] = run["rows"]
    batches = sorted({row["batch"] for row in rows})
    workers = sorted({row["workers"] for row in rows})
    figure = Figure(figsize=(WIDTH, HEIGHT * 0.85), layout="constrained")
    panels = figure.subplots(1, len(batches), sharey=True, squeeze=False)
    low, high = min(r["low"] for r in rows), max(r["high"] for r in rows)
    for panel, batch in zip(panels[0], batches, strict=True):
        for number, count in enumerate(workers):
            points = sorted(
                (r for r in rows if (r["batch"], r["workers"]) == (batch, count)), key=lambda r: r["threads"]
            )
            panel.errorbar(
                [r["threads"] for r in points],
                [r["median"] for r in points],
                yerr=[[r["median"] - r["low"] for r in points], [r["high"] - r["median"] for r in points]],
                marker="o",
                markersize=4,
                capsize=2,
                color=OTHER_COLOURS[number % len(OTHER_COLOURS)],
                label=f"{count} worker{'s' if count > 1 else ''}",
            )
        threads = sorted({row["threads"] for row in rows})
        _log_milliseconds(panel, low, high)
        panel.set_xscale("log", base=2)
        panel.set_xticks(threads, [str(t) for t in threads])
        panel.set_xlabel("threads in each worker")
        panel.set_title(f"batches of {batch:,}" if batch else "all at once", fontsize=9)
        if panel is not panels[0][0]:
            panel.set_ylabel("")
    panels[0][-1].legend(frameon=False, fontsize=8)
    figure.suptitle(_title(run, "Reading every coin of the block, cold"), fontsize=10, x=0.01, ha="left")
    return _save(figure, path)
