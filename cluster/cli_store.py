"""`init`: makes a store, and says which tip it serves and how old that is."""

import tarfile
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from cluster.cli_common import (
    DONE,
    ConfigOption,
    JsonOption,
    StoreOption,
    age_in_words,
    note,
    print_json,
    print_rows,
    settings_of,
    stderr,
    time_in_words,
)
from cluster.settings import Settings, packaged_file
from models.errors import ClientError, SettingsError, StoreError

if TYPE_CHECKING:
    from models.storage.creation import CreationReport

__all__ = ["DEMO_ARCHIVE", "init", "unpacked_demo"]

DEMO_ARCHIVE = "tests/data/regtest_datadir.tar.gz"  # written by Core: height 140, 52 transactions in its mempool

Network = Literal["main", "testnet3", "testnet4", "signet", "regtest"]


@contextmanager
def unpacked_demo(beside: Path) -> Iterator[Path]:
    """The packaged data directory, unpacked beside `beside` (hard links work within a file system) and removed after.

    Raises StoreError if it is not part of this installation.
    """
    archive = packaged_file(DEMO_ARCHIVE)
    if archive is None:
        raise StoreError(f"the demo's data directory {DEMO_ARCHIVE} is not part of this installation: use a clone")
    beside.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".demo-", dir=beside) as directory:
        with tarfile.open(archive) as tar:
            tar.extractall(directory, filter="data")
        yield Path(directory)


def _heights(values: list[str]) -> dict[str, int] | None:
    """Core's `-testactivationheight=name@height`, several of them. Raises ClientError for another form."""
    heights: dict[str, int] = {}
    for value in values:
        name, at, height = value.partition("@")
        if not at or not name or not (height.isascii() and height.isdigit()):
            raise ClientError(f"--testactivationheight {value!r} must be NAME@HEIGHT, such as segwit@200")
        if name in heights:
            raise ClientError(f"--testactivationheight names {name} twice")
        heights[name] = int(height)
    return heights or None


def _challenge(value: str | None) -> bytes | None:
    if value is None:
        return None
    try:
        challenge = bytes.fromhex(value)
    except ValueError:
        challenge = b""
    if not challenge or len(challenge) * 2 != len(value):
        raise ClientError(f"--signet-challenge {value!r} must be the challenge script as hex")
    return challenge


@contextmanager
def _snapshot_progress() -> Iterator[Callable[[int, int], None]]:
    columns = (TextColumn("coins"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = stderr()
    bar = Progress(*columns, console=console, transient=True)
    task = bar.add_task("coins", total=None)

    def show(done: int, total: int) -> None:
        if console.is_terminal:
            bar.start()
        bar.update(task, completed=done, total=total)

    try:
        yield show
    finally:
        if bar.live.is_started:
            bar.stop()


def _make(
    settings: Settings,
    switches: dict[str, Any],
    network: Network | None,
    datadir: Path | None,
    snapshot: Path | None,
    genesis: bool,
    expect_hash: str | None,
) -> "CreationReport":
    from models.storage.store import Store

    if datadir is not None:
        return Store.create_from_datadir(datadir, settings.store, network, **switches)
    if snapshot is not None:
        with _snapshot_progress() as progress:
            return Store.create_from_snapshot(
                snapshot, settings.store, network, **switches, expect_hash=expect_hash, progress=progress
            )
    if genesis:
        return Store.create_genesis(network or "regtest", settings.store, **switches)
    with unpacked_demo(settings.store.parent) as directory:
        return Store.create_from_datadir(directory, settings.store, network, **switches)


def _refuse_default_place(settings: Settings, store: Path | None, network: str) -> None:
    """The default store is named for regtest: another network's coins would be found there by nobody."""
    if store is None and network != "regtest" and settings.store == Path("~/.txcollection/regtest").expanduser():
        raise SettingsError(f"the default store {settings.store} is for regtest: name one for {network} with --store")


def init(
    from_datadir: Annotated[
        Path | None, typer.Option("--from-datadir", metavar="DIR", help="A Bitcoin Core data directory, in use or not.")
    ] = None,
    from_snapshot: Annotated[
        Path | None, typer.Option("--from-snapshot", metavar="FILE", help="A file written by Core's dumptxoutset.")
    ] = None,
    genesis: Annotated[bool, typer.Option("--genesis", help="The network's first block alone.")] = False,
    demo: Annotated[bool, typer.Option("--demo", help="A small regtest chain that comes with the program.")] = False,
    network: Annotated[
        Network | None, typer.Option("--network", help="The network; found from the data where it is left out.")
    ] = None,
    expect_hash: Annotated[
        str | None,
        typer.Option("--expect-hash", metavar="HEX", help="The hash_serialized_3 that a snapshot's coins must have."),
    ] = None,
    signet_challenge: Annotated[
        str | None, typer.Option("--signet-challenge", metavar="HEX", help="The challenge of a signet of your own.")
    ] = None,
    testactivationheight: Annotated[
        list[str] | None,
        typer.Option(
            "--testactivationheight", metavar="NAME@HEIGHT", help="As Core's, for regtest; may be given several times."
        ),
    ] = None,
    test: Annotated[Literal["bip94"] | None, typer.Option("--test", help="As Core's -test, for regtest.")] = None,
    store: StoreOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> int:
    """Makes a store: from a node's data directory (which is only read), from a snapshot, or of the first block.

    Coins are taken over by hard links where the file system allows it, so that takes no space at first. The switches
    of the network are kept in the store.
    """
    chosen = [from_datadir is not None, from_snapshot is not None, genesis, demo]
    if sum(chosen) != 1:
        raise ClientError("give one of --from-datadir DIR, --from-snapshot FILE, --genesis and --demo")
    if expect_hash is not None and from_snapshot is None:
        raise ClientError("--expect-hash goes with --from-snapshot")
    settings = settings_of(store=store, config=config)
    challenge = _challenge(signet_challenge)
    heights = _heights(testactivationheight or [])
    switches = {"activation_heights": heights, "bip94": test == "bip94", "signet_challenge": challenge}
    _refuse_default_place(settings, store, _network_before(from_datadir, network, challenge))
    report = _make(settings, switches, network, from_datadir, from_snapshot, genesis, expect_hash)
    for warning in report.warnings:
        note(f"warning: {warning}")
    _show(report, settings, as_json, of_a_node=from_datadir is not None)
    return DONE


def _network_before(datadir: Path | None, network: Network | None, challenge: bytes | None) -> str:
    """The network as far as it is known before anything is made."""
    if network is not None or datadir is None:
        return network or "regtest"
    from models.storage.datadir import find_node_files

    return find_node_files(datadir, None, challenge).network


def _show(report: "CreationReport", settings: Settings, as_json: bool, of_a_node: bool) -> None:
    from time import time

    from models.wire.hashes import to_display

    tip = to_display(report.best_block)
    age = None if report.time is None else int(time() if settings.now is None else settings.now) - report.time
    if as_json:
        fields = {"store": str(report.path), "network": report.network, "warnings": report.warnings}
        print_json(fields | {"tip": {"hash": tip, "height": report.height, "time": report.time, "age": age}})
    else:
        rows = [("store", str(report.path)), ("network", report.network), ("tip", tip)]
        if report.height is not None:
            rows.append(("height", str(report.height)))
        if report.time is not None and age is not None:
            rows.append(("tip's time", f"{time_in_words(report.time)}, {age_in_words(age)} old"))
        if report.checkpoint is not None:
            done = report.checkpoint
            how = "copied" if done.copied_because else "taken over by hard links"
            rows.append(("coins", f"{done.bytes:,} bytes, {how}"))
        rows.append(("recent blocks", str(report.blocks)))
        mempool = report.path / "mempool.dat"
        if mempool.is_file():
            rows.append(("mempool", f"{mempool.stat().st_size:,} bytes"))
        print_rows(rows)
    if age is None:
        note("The snapshot's block is known by its hash alone: `txcollection follow` fetches the headers from a node.")
    elif of_a_node and age > settings.tip_old_s:
        note(
            "This tip is old. A running node writes its coins to disk now and then: make it do so now with "
            "`bitcoin-cli gettxoutsetinfo none` and `bitcoin-cli savemempool`, remove this store, and run init again."
        )
