"""What a soak run found, as tables."""

from collections import Counter
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.soak.tally import MIB, Tally, middle

__all__ = ["show"]


def show(tally: Tally, console: Console) -> None:
    """Prints the summary."""
    _counts(console, "declarations, by what they are about", tally.declarations)
    _counts(console, "verdicts", tally.verdicts)
    _counts(console, "errors that clients were answered with", tally.errors)
    _counts(console, "answers under floods", tally.flood_answers)
    table = Table("killed", "times", "longest outage, s", "back", title="kills")
    for kind in sorted({outage.kind for outage in tally.outages}):
        of_kind = [outage for outage in tally.outages if outage.kind == kind]
        longest = max(outage.seconds for outage in of_kind)
        table.add_row(kind, str(len(of_kind)), f"{longest:.1f}", "yes" if all(o.back for o in of_kind) else "NO")
    console.print(table)
    table = Table("milliseconds, median (count)", "quiet", "under floods", title="latencies")
    table.add_row("make_template", _middle(tally.quiet_ms), _middle(tally.flood_ms))
    table.add_row("unknown_tx_pos", _middle(tally.ask_quiet_ms), _middle(tally.ask_flood_ms))
    console.print(table)
    if tally.readings:
        table = Table("", "start", "peak", "end", title="what the node's processes hold")
        readings = tally.readings
        for name, unit, digits in (("memory", MIB, "MiB"), ("handles", 1, ""), ("disk", MIB, "MiB")):
            values = [getattr(reading, name) / unit for reading in readings]
            table.add_row(f"{name} {digits}", *(f"{value:,.0f}" for value in (values[0], max(values), values[-1])))
        table.add_row("processes", *(str(n) for n in _ends([reading.processes for reading in readings])))
        console.print(table)
    facts = ", ".join(f"{value} {name}" for name, value in tally.node.items())
    console.print(f"the followed node: {facts}")
    failures = tally.failures()
    console.print(
        f"{tally.compared} verdicts compared, {len(tally.mismatches)} mismatches; {len(tally.outages)} kills, "
        f"longest outage {tally.longest_outage:.1f} s"
    )
    for failure in failures:
        console.print(f"[red]failed:[/red] {failure}", highlight=False)
    console.print("[red]the run failed[/red]" if failures else "[green]nothing went wrong[/green]")


def _counts(console: Console, title: str, counts: Counter[str]) -> None:
    table = Table("", "count", title=title)
    for name, count in counts.most_common():
        table.add_row(name, f"{count:,}")
    if counts:
        console.print(table)


def _middle(values: list[float]) -> str:
    median = middle(values)
    return "-" if median is None else f"{median:.1f} ({len(values)})"


def _ends(values: list[Any]) -> tuple[Any, Any, Any]:
    return values[0], max(values), values[-1]
