"""`status --watch`: the node as a live table, until Ctrl-C. Where standard output is no terminal, its last picture."""

import time
from collections.abc import Callable
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from cluster.cli_common import age_in_words
from cluster.follow_status import read_status
from cluster.health import NodeLook, TipFacts, judge, tip_age
from cluster.settings import Settings

__all__ = ["picture", "watch"]

EVERY = 1.0  # seconds between looks
MAX_COLLECTIONS = 12  # rows
BAR = 16  # characters


def watch(look: Callable[[], dict[str, Any]], settings: Settings, console: Console, times: int = 0) -> None:
    """Shows what `look` finds every second, `times` times (0: until Ctrl-C)."""
    shown = 0
    with Live(console=console, auto_refresh=False, screen=False, vertical_overflow="visible") as live:
        while not times or shown < times:
            live.update(picture(look(), settings), refresh=True)
            shown += 1
            if not times or shown < times:
                time.sleep(EVERY)


def picture(facts: dict[str, Any], settings: Settings) -> Group:
    """The node at one moment; `facts` as `txcollection status --json` prints them."""
    tip, stats = facts["tip"], facts["actors"]
    seen = TipFacts(tip["hash"], tip["height"], tip["time"]) if tip["hash"] is not None else None
    look = NodeLook(stats, seen, "the header of the coins' block is not known yet", read_status(settings.store))
    options = settings.model_dump(mode="json")
    return Group(_summary(look, options, facts), Text(), _collections(stats), Text(), _workers(stats))


def _summary(look: NodeLook, options: dict[str, Any], facts: dict[str, Any]) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    health = judge(look, options)
    state = Text("healthy", style="green")
    if not health.ok:
        state = Text("; ".join(problem.text for problem in health.problems), style="red")
    table.add_row("node", state)
    if look.tip is not None:
        age = tip_age(look, options)
        table.add_row("tip", f"{look.tip.height:,}  {look.tip.hash}")
        table.add_row("age", age_in_words(age) if age is not None else "not known")
    slots = sum(bool(c.get("slot_used")) for c in _of_kind(facts["actors"], "collection").values())
    table.add_row("prefetch slots", f"{slots} of {options['collection_actors']} in use")
    for mempool in _of_kind(facts["actors"], "mempool").values():
        waiting = f", {mempool['unsettled']:,} still being looked at" if mempool["unsettled"] else ""
        table.add_row("mempool", f"{mempool['transactions']:,} transactions, {_size(mempool['bytes'])}{waiting}")
    return table


def _of_kind(stats: dict[str, Any], kind: str) -> dict[str, Any]:
    return {n: c for n, c in stats.items() if n.rpartition("-")[0] == kind and "error" not in c}


def _collections(stats: dict[str, Any]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("transactions", "unknown"):
        table.add_column(name, justify="right")
    table.add_column("prefetch")
    for name in ("coins", "absences", "scripts", "queued"):
        table.add_column(name, justify="right")
    table.add_column("memory of its budget", min_width=BAR)
    table.add_column()
    table.add_column("verdicts", justify="right")
    found = [c for counters in _of_kind(stats, "collection").values() for c in counters["collections"]]
    for c in found[:MAX_COLLECTIONS]:
        state = "none" if not c["prefetching"] else "stopped" if c["stopped"] else "done" if c["idle"] else "on its way"
        numbers = [f"{c[key]:,}" for key in ("observations", "probes", "scripts_verified", "queued")]
        bar = ProgressBar(total=max(c["budget"], 1), completed=c["bytes"], width=BAR)
        share = f"{_size(c['bytes'])} of {_size(c['budget'])}"
        table.add_row(f"{c['transactions']:,}", f"{c['unknown']:,}", state, *numbers, bar, share, f"{c['verdicts']:,}")
    if len(found) > MAX_COLLECTIONS:
        table.add_row("", "", f"and {len(found) - MAX_COLLECTIONS:,} more")
    elif not found:
        table.add_row("", "", "no open collections")
    return table


def _workers(stats: dict[str, Any]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("process", style="bold", no_wrap=True)
    table.add_column("state")
    table.add_column("work so far", overflow="fold")
    for name, counters in stats.items():
        if name == "supervisor":
            replaced = [f"{n} {kind}" for kind, n in counters["replaced"].items() if n]
            table.add_row(name, "up", f"replaced {', '.join(replaced)}" if replaced else "nothing had to be replaced")
        elif "error" in counters:
            table.add_row(name, Text("down", style="red"), counters["error"])
        else:
            table.add_row(name, Text("up", style="green"), _work(counters))
    return table


def _work(counters: dict[str, Any]) -> str:
    """The counters that are not zero; those of groups are named with their group."""
    parts = []
    for key, value in counters.items():
        if isinstance(value, dict) and all(isinstance(v, int) for v in value.values()):
            parts += [f"{key} of {group} {n:,}" for group, n in value.items() if n]
        elif isinstance(value, int | float) and not isinstance(value, bool) and value:
            parts.append(f"{key} {value:,}")
    return ", ".join(parts).replace("_", " ") or "idle"


def _size(size: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"
