"""What every command shares: its options, where it prints, and the node it talks to.

Answers go to standard output, everything else to standard error. Nothing here imports ray before a node is needed, so
that `--help` and argument errors come at once.
"""

import json
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Literal

import typer
from rich.console import Console
from rich.text import Text

from cluster.cli import obey_termination
from cluster.settings import Settings, load_settings
from models.errors import ClientError

if TYPE_CHECKING:
    from cluster.client import Cluster

__all__ = [
    "DONE",
    "ERROR",
    "INVALID",
    "ConfigOption",
    "JsonOption",
    "NowOption",
    "ScriptModeOption",
    "StoreOption",
    "age_in_words",
    "ended_undisturbed",
    "node_for_command",
    "note",
    "open_input",
    "print_json",
    "print_rows",
    "running_node",
    "settings_of",
    "stderr",
    "stdout",
    "time_in_words",
]

DONE, INVALID, ERROR = 0, 1, 2  # exit codes: valid or done, an invalid verdict, an error

StoreOption = Annotated[
    Path | None,
    typer.Option("--store", metavar="DIR", help="The store to use; by default ~/.txcollection/regtest, or TXC_STORE."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="A settings file; its keys are those of ray_config.yaml."),
]
NowOption = Annotated[
    int | None,
    typer.Option("--now", metavar="UNIXTIME", help="Check against this time instead of the clock's."),
]
ScriptModeOption = Annotated[
    Literal["deferred", "inline"] | None,
    typer.Option(
        "--script-mode",
        help="Which failure is named first: as Core with script threads (deferred, the default) or with -par=1.",
    ),
]


def stdout() -> Console:
    """Where answers for people go; made anew, since a test may have replaced the stream."""
    return Console(highlight=False, soft_wrap=True)


def stderr() -> Console:
    """Where notes, progress and errors go."""
    return Console(stderr=True, highlight=False, soft_wrap=True)


def note(text: str) -> None:
    """One line for the user that is no answer."""
    stderr().print(Text(text, style="dim"))


def print_json(value: Any) -> None:
    """One JSON value on one line, seen at once by whoever reads a pipe."""
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def print_rows(rows: list[tuple[str, str]]) -> None:
    """Names and values, one pair a line; values are never cut or wrapped."""
    width = max(len(name) for name, _ in rows)
    console = stdout()
    for name, value in rows:
        console.print(Text.assemble((name.ljust(width), "bold"), "  ", value))


def age_in_words(seconds: int) -> str:
    """A length of time in its two largest units; negative ones (a block ahead of our clock) too."""
    if seconds < 0:
        return f"{age_in_words(-seconds)} ahead of this machine's clock"
    parts = []
    for name, size in (("day", 86_400), ("hour", 3600), ("minute", 60), ("second", 1)):
        count, seconds = divmod(seconds, size)
        if count:
            parts.append(f"{count} {name}{'s' if count > 1 else ''}")
    return " ".join(parts[:2]) or "0 seconds"


def time_in_words(unix: int) -> str:
    """A Unix time as a date in UTC."""
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(unix))


def settings_of(**given: Any) -> Settings:
    """The settings with a command's options on top; options left out are None."""
    return load_settings(**given)


@contextmanager
def open_input(source: str) -> Iterator[BinaryIO]:
    """Standard input for `-`, else a file. Raises ClientError naming a file that cannot be read."""
    if source == "-":
        yield sys.stdin.buffer
        return
    try:
        handle = Path(source).expanduser().open("rb")
        with handle:
            handle.peek(1)
            yield handle
    except OSError as error:
        raise ClientError(f"cannot read {source}: {error.strerror}") from error


@contextmanager
def ended_undisturbed(node: "Cluster") -> Iterator["Cluster"]:
    """Closes the node at the end; a second Ctrl-C does not stop it from ending what it started."""
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in signals}
    obey_termination()
    try:
        yield node
    finally:
        for number in signals:
            signal.signal(number, signal.SIG_IGN)
        try:
            node.close()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def running_node(settings: Settings) -> "Cluster | None":
    """The node that serves the store already, None if there is none."""
    from cluster.runtime import NodeFile, NoNode

    try:
        NodeFile.read(settings.store)  # before ray is imported for nothing
        from cluster import Cluster

        return Cluster.connect(store=settings.store)
    except NoNode:
        return None


@contextmanager
def node_for_command(settings: Settings) -> Iterator["Cluster"]:
    """The node that serves the store: the one that runs, else an embedded one that ends with the command."""
    from models.storage.storeinfo import StoreInfo

    StoreInfo.load(settings.store)  # a store that is not there is known without starting anything
    node = running_node(settings)
    if node is None:
        from cluster import Cluster

        note(f"no node runs on {settings.store}: starting one for this command")
        node = Cluster.start(settings)
    with ended_undisturbed(node):
        yield node
