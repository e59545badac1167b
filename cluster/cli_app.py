"""The commands of `txcollection` and how their errors are shown: a thin skin on `cluster.Cluster`.

Standard output carries answers only, each error is one line on standard error, and no traceback is ever shown. Exit
codes: 0 valid or done, 1 an invalid verdict, 2 an error, 130 after Ctrl-C. What commands do is in `cluster/cli_*.py`.
"""

import logging
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

import typer
from rich.console import Console
from rich.text import Text
from typer.exceptions import TyperException

from cluster import cli_bench, cli_check, cli_follow, cli_node, cli_store, cli_tools
from cluster.cli_common import ERROR, stderr
from models.errors import TxCollectionError

__all__ = ["app", "run"]

PROGRAM = "txcollection"
INTERRUPTED = 130  # 128 + SIGINT, as shells count
PIPE_CLOSED = 141

app = typer.Typer(
    name=PROGRAM,
    help="Checks Bitcoin block templates made by others, with the coins they spend prefetched meanwhile.",
    epilog="A first look: [bold]txcollection demo[/bold]",
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)


def demo() -> int:
    """Shows all of it on a small chain that Bitcoin Core wrote: a job, prefetch, a verdict, a double-spend."""
    from cluster.demo import run_demo

    return run_demo(Console(highlight=False))


def _command(function: Callable[..., Any], *examples: str) -> None:
    epilog = "Example:\n\n" + "\n\n".join(f"[bold]{example}[/bold]" for example in examples)
    app.command(function.__name__, epilog=epilog)(function)


_command(
    cli_store.init,
    "txcollection init --from-datadir ~/.bitcoin --store ~/.txcollection/main",
    "txcollection init --demo",
)
_command(cli_node.up, "txcollection up --store ~/.txcollection/main", "txcollection up --detach")
_command(cli_node.down, "txcollection down --store ~/.txcollection/main")
_command(cli_node.status, "txcollection status --json")
_command(
    cli_check.propose,
    "txcollection propose block.hex --store ~/.txcollection/main",
    "cat proposals.jsonl | txcollection propose --jsonl - --script-mode inline",
)
_command(cli_check.collect, "txcollection collect jobs.jsonl --store ~/.txcollection/main")
_command(
    cli_follow.follow,
    "txcollection follow --node http://127.0.0.1:8332 --cookie ~/.bitcoin/.cookie --zmq tcp://127.0.0.1:28332",
)
_command(cli_tools.verify, "txcollection verify --store ~/.txcollection/main --expect HASH")
_command(cli_tools.replicate, "txcollection replicate --address 10.0.0.1:6379 --to ~/.txcollection/replica")
_command(cli_tools.replay, "txcollection replay dumps/01796178134000000000-bad-cb-amount-5f1c2a90.txcdump")
_command(demo, "txcollection demo")
app.add_typer(cli_bench.app, name="bench")


def _fail(message: str) -> int:
    stderr().print(Text.assemble(("error: ", "bold red"), " ".join(message.split())))
    return ERROR


def run(arguments: list[str]) -> int:
    """Runs one command line and returns its exit code; what it started has ended by then."""
    logging.getLogger().addHandler(logging.NullHandler())  # what users are to know is printed, not logged
    try:
        command = typer.main.get_command(app)
        return int(command.main(arguments or ["--help"], prog_name=PROGRAM, standalone_mode=False) or 0)
    except TyperException as error:
        context = getattr(error, "ctx", None)
        where = context.command_path if context else PROGRAM
        message = error.format_message().replace(": Value error, ", ": ")  # the library's own name for any wrong value
        return _fail(f"{message} (`{where} --help` shows how)")
    except TxCollectionError as error:
        return _fail(str(error))
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except SystemExit as asked:
        if asked.code != 1:
            raise
        # Typer's way of saying that whoever read our output is gone; Python would complain when it flushes at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.__stdout__.fileno() if sys.__stdout__ else 1)
        return PIPE_CLOSED
    except Exception as error:
        if os.environ.get("TXC_LOG_LEVEL") == "debug":
            traceback.print_exc()
        return _fail(f"unexpected {type(error).__name__}: {error} (TXC_LOG_LEVEL=debug shows where)")
