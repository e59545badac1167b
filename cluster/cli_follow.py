"""`follow`: keeps a store where a Bitcoin node is.

The follower is a process of its own beside the node that serves the store (`up`), and lives through restarts of either.
Without such a node it runs one itself, for as long as it follows.
"""

import asyncio
import contextlib
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from cluster.cli_common import (
    DONE,
    ConfigOption,
    JsonOption,
    StoreOption,
    ended_undisturbed,
    note,
    print_json,
    running_node,
    settings_of,
    stdout,
)
from cluster.settings import Settings

if TYPE_CHECKING:
    from cluster.follow import Pace
    from cluster.follow_status import FollowStatus
    from cluster.follow_target import RayTarget
    from cluster.node_rpc import Login

__all__ = ["follow"]

PROGRESS_EVERY = 2.0  # seconds between two lines while it catches up
TERMINATED, INTERRUPTED = 143, 130  # exit codes, as shells count


class _Printer:
    """Lines for a person, or for a program that reads them: one for each change that matters."""

    def __init__(self, as_json: bool):
        self._as_json = as_json
        self._last: tuple[str, str, str] | None = None
        self._printed = 0.0

    def show(self, status: "FollowStatus") -> None:
        """Prints it if it says something new."""
        news = (status.state.value, status.detail, status.tip)
        if news == self._last:
            return
        progress = status.state.value in ("catching-up", "headers", "waiting")
        same = self._last is not None and self._last[0] == news[0]
        if progress and same and time.monotonic() - self._printed < PROGRESS_EVERY:
            return
        self._last, self._printed = news, time.monotonic()
        if self._as_json:
            print_json(status.to_dict())
            return
        stdout().print(Text.assemble((f"{status.state.value:<16}", "bold"), self._sentence(status)))

    @staticmethod
    def _sentence(status: "FollowStatus") -> str:
        where = f"block {status.height:,}" if status.height >= 0 else ""
        if status.state.value == "catching-up":
            return f"{where} of {status.node_height:,}"
        if status.state.value == "following":
            return f"{where} {status.tip}, {status.mempool:,} transactions in the mempool"
        return status.detail or where


def follow(
    node: Annotated[str, typer.Option("--node", metavar="URL", help="The node's RPC, such as http://127.0.0.1:8332.")],
    cookie: Annotated[
        Path | None, typer.Option("--cookie", metavar="FILE", help="The node's cookie file, .cookie in its directory.")
    ] = None,
    user: Annotated[str | None, typer.Option("--user", metavar="U", help="An RPC user, with --password-file.")] = None,
    password_file: Annotated[
        Path | None, typer.Option("--password-file", metavar="F", help="A file whose first line is the password.")
    ] = None,
    zmq: Annotated[
        list[str] | None,
        typer.Option(
            "--zmq",
            metavar="ADDRESS",
            help="Where the node publishes rawblock, rawtx and sequence; may be given several times. Without it the "
            "node is asked again and again.",
        ),
    ] = None,
    poll: Annotated[
        float, typer.Option("--poll", min=0.05, metavar="SECONDS", help="Time between questions, without --zmq.")
    ] = 2.0,
    audit: Annotated[
        float,
        typer.Option("--audit", min=0.05, max=40, metavar="SECONDS", help="Time between comparisons, with --zmq."),
    ] = 30.0,
    once: Annotated[bool, typer.Option("--once", help="End when the store is where the node is.")] = False,
    store: StoreOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> int:
    """Keeps a store's chain and mempool equal to those of a Bitcoin node.

    Catches up over RPC, then follows by ZMQ messages, or by asking. Every block goes through all checks. It may be
    stopped at any time and started again; either side may be restarted meanwhile. Exits 2 for what waiting does not
    help: another network, a wrong password, blocks that the node has deleted, a best chain that is invalid.
    """
    from cluster.follow import Pace
    from cluster.followed import Followed
    from cluster.node_rpc import Login
    from models.storage.storeinfo import StoreInfo

    login = Login.of_options(cookie, user, password_file)
    settings = settings_of(store=store, config=config)
    StoreInfo.load(settings.store)
    pace = Pace(poll=poll, audit=audit)
    Followed.of_options(node, cookie, user, password_file).save(settings.store)  # who has a block for the node finds it
    try:
        return _run(settings, node, login, zmq or [], pace, once, as_json)
    finally:
        Followed.forget(settings.store)


def _run(settings: Settings, url: str, login: "Login", zmq: list[str], pace: "Pace", once: bool, as_json: bool) -> int:
    from cluster import Cluster
    from cluster.follow_target import RayTarget

    with contextlib.ExitStack() as stack:
        running = running_node(settings)
        if running is not None:
            running.close()
            target = RayTarget(settings.store)
        else:
            note(f"no node runs on {settings.store}: starting one that ends with this command")
            stack.enter_context(ended_undisturbed(Cluster.start(settings)))
            target = RayTarget(settings.store, rejoin=False)
        return asyncio.run(_follow(settings.store, target, url, login, zmq, pace, once, as_json))


async def _follow(
    store: Path, target: "RayTarget", url: str, login: "Login", zmq: list[str], pace: "Pace", once: bool, as_json: bool
) -> int:
    from cluster.follow import Follower
    from cluster.follow_status import StatusFile
    from cluster.follow_zmq import Notifications
    from cluster.node_rpc import NodeRpc

    printer, file = _Printer(as_json), StatusFile(store)

    def show(status: "FollowStatus") -> None:
        printer.show(status)
        file.show(status)

    code = DONE
    me = asyncio.current_task()

    def end(with_code: int) -> None:
        nonlocal code
        code = with_code
        if me is not None:
            me.cancel()

    def obey() -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, end, INTERRUPTED if number == signal.SIGINT else TERMINATED)

    obey()
    target.on_join = obey
    try:
        async with contextlib.AsyncExitStack() as stack:
            rpc = await stack.enter_async_context(NodeRpc(url, login))
            notifications = await stack.enter_async_context(Notifications(zmq)) if zmq else None
            await Follower(rpc, target, notifications, pace, show).run(once)
    except asyncio.CancelledError:
        if code == DONE:
            raise
    finally:
        file.remove()
    return code
