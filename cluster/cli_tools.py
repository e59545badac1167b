"""`replay` gives a verdict again from a dump alone, `verify` checks a whole store, `replicate` copies one's coins to
another host. The first two need neither a node nor Ray."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.text import Text

from cluster.cli_check import print_verdict
from cluster.cli_common import (
    DONE,
    ERROR,
    INVALID,
    ConfigOption,
    JsonOption,
    StoreOption,
    note,
    print_json,
    print_rows,
    running_node,
    settings_of,
    stderr,
    stdout,
    time_in_words,
)
from models.errors import ClientError, StoreError

if TYPE_CHECKING:
    from cluster.replicate import Replica
    from models.storage.verify import Finding, Verified

__all__ = ["replay", "replicate", "verify"]


def replay(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A dump, as `up --dump DIR` writes them.")],
    as_json: JsonOption = False,
) -> int:
    """Judges a dumped declaration once more, from nothing but the dump.

    Exits 0 if it is valid, 1 if it is not, 2 if it cannot be judged or the verdict is another than the recorded one.
    """
    from models.dump import replay as judge
    from models.dumpfile import read_dump
    from models.wire.hashes import to_display

    dump = read_dump(file.expanduser())
    verdict = judge(dump, os.cpu_count() or 1)
    facts: dict[str, Any] = {
        "recorded": dump.verdict.to_dict(),
        "same": verdict == dump.verdict,
        "created": dump.created,
        "network": dump.context.network,
        "prevhash": to_display(dump.prevhash),
        "height": dump.context.height,
        "transactions": len(dump.transactions),
        "coins": len(dump.coins),
        "mode": dump.mode,
        "now": dump.now,
    }
    if as_json:
        print_json(verdict.to_dict() | facts)
    else:
        print_verdict(verdict)
        print_rows(
            [
                ("declared", f"{facts['transactions']:,} transactions on {facts['prevhash']} ({dump.context.network})"),
                ("dumped", f"{time_in_words(dump.created)}, with {facts['coins']:,} coins and absences"),
            ]
        )
    if not facts["same"]:
        recorded = dump.verdict
        note(
            f"the recorded verdict is another: {recorded.kind.value} {recorded.reason or ''} {recorded.debug}".rstrip()
        )
        return ERROR
    return DONE if verdict.ok else INVALID


@contextmanager
def _bars() -> Iterator[Callable[[str, int, int], None]]:
    """Shows how far each stage is, on a terminal only."""
    console = stderr()
    bars = Progress(
        TextColumn("{task.description:<8}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn(), console=console,
        transient=True,
    )  # fmt: skip
    tasks: dict[str, Any] = {}

    def show(stage: str, done: int, total: int) -> None:
        if not console.is_terminal:
            return
        bars.start()
        if stage not in tasks:
            tasks[stage] = bars.add_task(stage)
        bars.update(tasks[stage], completed=done, total=max(total, 1))

    try:
        yield show
    finally:
        if tasks:
            bars.stop()


def verify(
    expect: Annotated[
        str | None,
        typer.Option("--expect", metavar="HEX", help="The hash_serialized_3 that the coins must have."),
    ] = None,
    store: StoreOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> int:
    """Checks a whole store: every file against its checksums, the chain of headers, and every coin.

    Names each file in which something is wrong and what to do; changes nothing, and works beside a running node. Exits
    0 if all is well, 2 if not. A large store takes many minutes.
    """
    from models.storage.verify import Finding, Severity, Verified, verify_store
    from models.storage.verify import Progress as Step

    if expect is not None and (len(expect) != 64 or not set(expect.lower()) <= set("0123456789abcdef")):
        raise ClientError(f"--expect {expect!r} must be a hash of 64 hex digits")
    settings = settings_of(store=store, config=config)
    findings: list[Finding] = []
    verified: Verified | None = None
    with _bars() as show:
        for report in verify_store(settings.store):
            if isinstance(report, Step):
                show(report.stage, report.done, report.total)
            elif isinstance(report, Verified):
                verified = report
            else:
                findings.append(report)
                if not as_json:
                    _print_finding(report)
    if verified is None:
        raise StoreError(f"{settings.store} was not checked to its end")
    utxo_hash = None if verified.utxo is None else verified.utxo.hash_serialized_3
    if expect is not None and utxo_hash is not None and utxo_hash != expect.lower():
        what = f"its coins hash to {utxo_hash}, not to {expect.lower()}"
        findings.append(Finding(settings.store / "chainstate", what, "do not use it: make the store again"))
        if not as_json:
            _print_finding(findings[-1])
    errors = sum(finding.severity is Severity.ERROR for finding in findings)
    good = errors == 0 and verified.utxo is not None
    _print_verified(verified, findings, good, as_json)
    return DONE if good else ERROR


def _print_finding(finding: "Finding") -> None:
    style = "bold red" if finding.severity.value == "error" else "bold yellow"
    stdout().print(Text.assemble((f"{finding.severity.value}: ", style), f"{finding.file}: {finding.what}"))
    stdout().print(Text(f"    {finding.advice}", style="dim"))


def _print_verified(verified: "Verified", findings: "list[Finding]", good: bool, as_json: bool) -> None:
    from models.wire.hashes import to_display

    tip = None if verified.best_block is None else to_display(verified.best_block)
    utxo = verified.utxo
    if as_json:
        print_json(
            {
                "ok": good,
                "findings": [
                    {"file": str(f.file), "what": f.what, "advice": f.advice, "severity": f.severity.value}
                    for f in findings
                ],
                "network": verified.network or None,
                "tip": tip,
                "height": verified.height,
                "headers": verified.headers,
                "blocks": verified.blocks,
                "txouts": utxo and utxo.txouts,
                "total_amount": utxo and utxo.total_amount,
                "hash_serialized_3": utxo and utxo.hash_serialized_3,
                "running": verified.running,
            }
        )
        return
    rows = [("store", "all is well" if good else "NOT to be used as it is")]
    if tip is not None:
        rows.append(("tip", tip))
    if verified.height is not None:
        rows.append(("height", str(verified.height)))
    rows.append(("checked", f"{verified.headers:,} headers, {verified.blocks:,} recent blocks"))
    if utxo is not None:
        rows.append(("coins", f"{utxo.txouts:,}, {utxo.total_amount:,} satoshis"))
        rows.append(("UTXO hash", utxo.hash_serialized_3))
    else:
        rows.append(("coins", "not read to their end, because of what is wrong above"))
    print_rows(rows)


def replicate(
    to: Annotated[
        Path | None,
        typer.Option("--to", metavar="DIR", help="Where to make it; by default the setting replica_dir."),
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(
            "--address", metavar="HOST:PORT", help="The Ray in which the store's node runs, from another host."
        ),
    ] = None,
    store: StoreOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> int:
    """Makes a replica of a store's coins, so that fetch workers can read them on another host.

    Run it there, once that host has joined the node's Ray: `ray start --address=HOST:PORT
    --resources='{"txcollection_replica": 1}'`. Workers there begin when the replica is complete, and each block's
    changes reach it from then on. Where no node runs, the store's files must be at hand.
    """
    from models.storage.storeinfo import StoreInfo
    from models.wire.hashes import to_display

    settings = settings_of(store=store, config=config)
    target = (to or Path(settings.replica_dir)).expanduser().absolute()
    with _bars() as show:

        def progress(done: int, total: int) -> None:
            show("coins", done, total)

        if address is not None:
            made = _from_another_host(address, store, target, progress)
        else:
            StoreInfo.load(settings.store)
            from cluster import replicate as making

            running = running_node(settings)
            if running is None:
                made = making.of_store(settings.store, target)
            else:
                with running:
                    made = making.of_node(_owner_of(running.supervisor), target, progress)
    facts = {"replica": str(made.path), "block": to_display(made.best_block), "bytes": made.bytes}
    if as_json:
        print_json(facts)
    else:
        rows = [("replica", str(made.path)), ("block", facts["block"]), ("coins", f"{made.bytes:,} bytes")]
        print_rows([(name, str(value)) for name, value in rows])
        if to is not None and str(target) != str(Path(settings.replica_dir).expanduser().absolute()):
            note(f"the node looks for it in {settings.replica_dir} on each host: set replica_dir there to {target}")
    return DONE


def _owner_of(supervisor: Any) -> Any:
    """The chainstate actor of a node."""
    import ray

    from models.messages import unwrap

    owner = unwrap(ray.get(supervisor.directory.remote(), timeout=60))["chainstate"]
    if owner is None:
        raise StoreError("the owner of the store is being replaced: try again in a moment")
    return owner


def _from_another_host(
    address: str, store: Path | None, target: Path, progress: Callable[[int, int], None]
) -> "Replica":
    """Joins the Ray at an address and takes the one node in it, or that of the store with this path on its own host."""
    import ray

    from actors.supervisor import SUPERVISOR
    from cluster.replicate import of_node
    from cluster.runtime import ensure_ray, namespace_of

    ensure_ray(address)
    names = [n for n in ray.util.list_named_actors(all_namespaces=True) if n["name"] == SUPERVISOR]
    namespaces = {entry["namespace"] for entry in names}
    if store is not None:
        namespaces &= {namespace_of(store)}
    if len(namespaces) != 1:
        which = "no node" if not namespaces else f"{len(namespaces)} nodes"
        raise StoreError(f"{which} in the Ray at {address}: start one there, or name its store's path with --store")
    return of_node(_owner_of(ray.get_actor(SUPERVISOR, namespace=namespaces.pop())), target, progress)
