"""`txcollection demo`: a tour on a small chain that Bitcoin Core wrote, from a declaration to its verdict, in a minute.

A client declares a job of which we lack some transactions; while it fetches them, we prefetch; when they arrive, little
is left to do. Then the same job with a double-spend in it. Uses only what any user of `cluster.Cluster` has.
"""

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.padding import Padding
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.rule import Rule
from rich.table import Table

from cluster.cli_common import DONE, ERROR, age_in_words, ended_undisturbed, time_in_words
from cluster.cli_store import unpacked_demo
from models.wire.compactsize import write_compact_size
from models.wire.hashes import to_display
from models.wire.transaction import Transaction, decode_transaction

if TYPE_CHECKING:
    from cluster.client import Cluster, Collection
    from models.consensus.verdict import Verdict

__all__ = ["double_spend_of", "run_demo", "spend_without_signature"]

WITHHELD = 4  # transactions that the miner has and we do not
ROUND_TRIP = 1.0  # seconds until the miner's answer is here; a real one takes some 50 ms, which nobody could watch
LOOK_EVERY = 0.03  # seconds between looks at the collection's counters


@dataclass(slots=True)
class Job:
    """What a miner declares: transactions in block order, without the coinbase, and which of them it alone has."""

    transactions: list[Transaction]
    withheld: list[int]  # positions

    @property
    def wtxids(self) -> list[str]:
        """Display hex, as a client sends them."""
        return [to_display(tx.wtxid) for tx in self.transactions]

    @property
    def supply(self) -> list[bytes]:
        """What the miner sends when it is asked."""
        return [self.transactions[at].raw for at in self.withheld]


def double_spend_of(tx: Transaction) -> bytes:
    """The same spend with a satoshi less in its first output: another transaction, as good by itself as the first one
    where nothing in it is signed."""
    value, script = tx.values[0], tx.script_pubkeys[0]
    rest = write_compact_size(len(script)) + script
    return tx.raw.replace(value.to_bytes(8, "little") + rest, (value - 1).to_bytes(8, "little") + rest, 1)


def _leaves(transactions: list[Transaction]) -> list[int]:
    """Positions of transactions that no other one of the job spends from: they can leave the mempool alone."""
    spent = {prevout[:32] for tx in transactions for prevout in tx.prevouts}
    return [at for at, tx in enumerate(transactions) if tx.txid not in spent]


def spend_without_signature(transactions: list[Transaction]) -> Transaction:
    """A transaction with a single input, whose coin anyone may spend (its script is OP_TRUE)."""
    return next(tx for tx in transactions if tx.script_sigs == [b""] and not tx.has_witness)


def _short(tx: Transaction) -> str:
    return f"{to_display(tx.txid)[:16]}…"


class Tour:
    """Shows the steps in order; each says what is about to happen, does it, and prints what came out."""

    def __init__(self, console: Console, node: "Cluster"):
        self._console = console
        self._node = node
        self._step = 1

    def say(self, title: str, *paragraphs: str) -> None:
        """The heading of the next step and what it is about."""
        self._step += 1
        _say(self._console, self._step, title, *paragraphs)

    def _show(self, rows: Sequence[tuple[str, ...]], header: tuple[str, ...] = ()) -> None:
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", show_header=bool(header))
        for column in header or rows[0]:
            table.add_column(column if header else "", overflow="fold")
        for row in rows:
            table.add_row(*row)
        self._console.print(Padding(table, (0, 0, 1, 2)))

    def make_job(self) -> Job:
        """The block that we would build from the mempool, as if a miner had built it; some of it taken away from us."""
        self._node.wait_mempool()
        verdict = self._node.assemble_template()
        transactions = [decode_transaction(raw) for raw in verdict.template.transactions]
        leaves = _leaves(transactions)
        withheld = [leaves[number * len(leaves) // WITHHELD] for number in range(WITHHELD)]
        job = Job(transactions, withheld)
        for at in withheld:
            self._node.mempool_remove(job.wtxids[at])
        return job

    def declare(self, job: Job) -> "Collection":
        """Declares the job and shows what of it is unknown."""
        self.say(
            "A miner declares a job",
            f"It names the {len(job.transactions)} transactions of the block it wants to mine by their wtxids, parents "
            f"before children. Our mempool has all but {WITHHELD} of them, which were taken out of it for this tour.",
        )
        began = time.perf_counter()
        collection = self._node.collect_txs(job.wtxids)
        unknown = collection.unknown_tx_pos()
        took = (time.perf_counter() - began) * 1000
        self._console.print(f"  collection.unknown_tx_pos() → [bold]{unknown}[/bold]  after {took:.1f} ms\n")
        rows = [(at, job.transactions[at]) for at in unknown]
        self._show(
            [(str(at), _short(tx), str(len(tx.prevouts)), str(tx.weight)) for at, tx in rows],
            ("position", "txid", "inputs", "weight"),
        )
        return collection

    def wait_for_the_miner(self, collection: "Collection") -> None:
        """A round trip, with what is prefetched meanwhile."""
        self.say(
            "The miner is asked for them, and nobody waits idly",
            "While they are on their way, the coins of everything known are read, and scripts that were not verified "
            "when their transactions entered our mempool are verified: within 8 MiB, and without touching anything "
            "that others see.",
        )
        columns = (TextColumn("  {task.description}"), BarColumn(30), TextColumn("{task.fields[seen]}"))
        with Progress(*columns, TimeElapsedColumn(), console=self._console) as bar:
            task = bar.add_task("round trip", total=ROUND_TRIP, seen="")
            began = time.perf_counter()
            while (passed := time.perf_counter() - began) < ROUND_TRIP:
                stats = collection.stats()
                seen = f"{stats['observations']} coins, {stats['probes']} absences"
                bar.update(task, completed=passed, seen=seen)
                time.sleep(LOOK_EVERY)
            bar.update(task, completed=ROUND_TRIP)
        self._console.print()
        stats = collection.stats()
        verified = stats["scripts_verified"]
        self._show(
            [
                ("coins read from the database", f"{stats['from_workers']}"),
                ("coins found in the node's cache", f"{stats['cache_hits']}"),
                ("absences, which BIP30 asks for", f"{stats['probes']}"),
                ("requests to fetch workers", f"{stats['batches']}"),
                ("transactions with verified scripts", f"{verified}, {stats['scripts']} of them just now"),
                ("memory", f"{stats['bytes']:,} of {stats['budget']:,} bytes"),
            ],
            ("at hand before the miner's answer", ""),
        )

    def ask(self, collection: "Collection", supply: list[bytes]) -> "Verdict":
        """Supplies what was missing and asks for the verdict, in one message."""
        began = time.perf_counter()
        verdict = collection.make_template(self._node.tip_hash(), None, missing=supply)
        took = (time.perf_counter() - began) * 1000
        colour = "green" if verdict.ok else "red"
        self._console.print(f"  verdict: [bold {colour}]{verdict.kind.value}[/bold {colour}] after {took:.1f} ms\n")
        return verdict

    def show_timings(self, verdict: "Verdict") -> None:
        """Where the time between the last message and the verdict went."""
        timings = verdict.timings or {}
        rows = [
            (label, f"{timings[name]:.2f} ms")
            for name, label in (
                ("collection", "in the collection's process, all together"),
                ("template", "  of that with the judge"),
                ("check", "    of that for the check itself"),
            )
            if name in timings
        ]
        rows.append(("look-ups left for the check", f"{timings.get('coins_read', 0):.0f} coins and absences"))
        rows.append(("scripts left for the check", f"{timings.get('scripts_run', 0):.0f} inputs"))
        self._show(rows, ("where the time went", ""))

    def show_template(self, verdict: "Verdict") -> None:
        """What a miner gets."""
        template = verdict.template
        self._show(
            [
                ("fees", f"{template.fees:,} sat"),
                ("block", f"{len(template.block):,} bytes"),
                ("coinbase merkle path", f"{len(template.coinbase_merkle_path)} hashes"),
                ("when it is solved", "template.submit_solution(version, time, nonce, coinbase) → block"),
            ],
            ("verdict.template", ""),
        )

    def show_failure(self, verdict: "Verdict") -> None:
        """Why not, and who."""
        rows = [("verdict.reason", f"[bold]{verdict.reason}[/bold]"), ("verdict.debug", verdict.debug)]
        if verdict.offender is not None:
            who = verdict.offender
            rows.append(("verdict.offender", f"transaction {who.position} in the block (0 is the coinbase)"))
            rows += [("", f"txid  {who.txid}"), ("", f"wtxid {who.wtxid}"), ("", f"input {who.input}")]
        self._show(rows)


def _say(console: Console, step: int, title: str, *paragraphs: str) -> None:
    console.print(Rule(f"[bold]{step}. {title}[/bold]", align="left", style="cyan"))
    for paragraph in paragraphs:
        console.print(Padding(paragraph, (0, 0, 1, 2)), style="dim")


def _open_store(console: Console, directory: Path) -> Path:
    from models.storage.store import Store

    _say(
        console,
        1,
        "A store, from a data directory that Bitcoin Core wrote",
        "Its coins are taken over by hard links, its block index, last blocks and mempool are read, and nothing is "
        "written to it; a node may run on it meanwhile.",
    )
    store = directory / "store"
    with unpacked_demo(directory) as datadir:
        report = Store.create_from_datadir(datadir, store)
    console.print(f"  {report.network}, height {report.height}, tip [bold]{to_display(report.best_block)}[/bold]")
    if report.time is not None:
        age = age_in_words(int(time.time()) - report.time)
        console.print(
            f"  of {time_in_words(report.time)}, {age} old: this chain was made to be checked, not mined on\n"
        )
    return store


def run_demo(console: Console) -> int:
    """The whole tour; the exit code is 0 if both verdicts are what they must be."""
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="txcollection-demo-") as directory:
        store = _open_store(console, Path(directory))
        with console.status("starting the actors in an embedded Ray…"):
            from cluster import Cluster

            node = Cluster.start(store=store, address="local")
        with ended_undisturbed(node):
            good = _tour(console, node)
    console.print(
        f"  That took {time.perf_counter() - began:.0f} seconds, start and end of the actors included. For a node of "
        "your own:\n  [bold]txcollection init --from-datadir DIR --store DIR[/bold] and "
        "[bold]txcollection up --store DIR[/bold]"
    )
    return DONE if good else ERROR


def _tour(console: Console, node: "Cluster") -> bool:
    tour = Tour(console, node)
    job = tour.make_job()
    with tour.declare(job) as collection:
        tour.wait_for_the_miner(collection)
        tour.say(
            "They arrive, and the verdict is asked for",
            f"One message supplies the {WITHHELD} transactions and asks for a template; every rule that Bitcoin Core "
            "has for a block is checked, in its order. Then the same question once more: a collection may be asked any "
            "number of times, with another coinbase for example.",
        )
        verdict = tour.ask(collection, job.supply)
        tour.show_timings(verdict)
        again = tour.ask(collection, [])
        if again.ok:
            tour.show_template(again)
    first = spend_without_signature(job.transactions)
    conflict = decode_transaction(double_spend_of(first))
    tour.say(
        "The same job, with a double-spend in it",
        f"One transaction more, at the end: it spends the coin that {_short(first)}, at position "
        f"{job.transactions.index(first) + 1} of the block, spends already. By itself either would be valid.",
    )
    with node.collect_txs([*job.wtxids, to_display(conflict.wtxid)]) as collection:
        refused = tour.ask(collection, [*job.supply, conflict.raw])
        tour.show_failure(refused)
    return verdict.ok and again.ok and refused.reason == "bad-txns-inputs-missingorspent"
