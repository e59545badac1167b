"""`up`, `down` and `status`: a node that stays, and what it is doing.

`up` holds the node for as long as its process lives, so that ending the process ends everything it started. `up
--detach` is the same process in the background. A lock on `up.pid` in the store tells whether one is alive.
"""

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cluster.cli_common import (
    DONE,
    ConfigOption,
    JsonOption,
    NowOption,
    ScriptModeOption,
    StoreOption,
    age_in_words,
    ended_undisturbed,
    note,
    print_json,
    print_rows,
    running_node,
    settings_of,
    stdout,
    time_in_words,
)
from cluster.cli_gateway import (
    RpcAllowRemoteOption,
    RpcAuthOption,
    RpcChoice,
    RpcLogOption,
    RpcOption,
    rpc_gateway,
)
from cluster.reach import listens
from cluster.settings import Settings
from models.errors import NotReady, StoreError, StoreInUse
from models.storage.durable import disk_errors
from models.storage.storeinfo import StoreInfo

if TYPE_CHECKING:
    from cluster.client import Cluster
    from cluster.ipc.process import IpcProcess

__all__ = ["down", "status", "up"]

PID_FILE = "up.pid"  # in the store: locked by the `up` that serves it
LOG_FILE = "up.log"  # in the store: what a detached `up` has to say
LOOK_EVERY = 1.0  # seconds between looks at whether the node still answers
STOP_PATIENCE = 60.0  # seconds for an `up` that was asked to end
ASK_AGAIN = 5.0  # seconds
NO_TIP = "not ready: the header of the coins' block is not known yet, `txcollection follow` fetches it"
RAY_ADDRESS = "RAY_ADDRESS"  # Ray's own variable: which Ray is meant by auto

AddressOption = Annotated[
    str | None,
    typer.Option(
        "--address",
        metavar="local|auto|HOST:PORT",
        help="Which Ray to use. By default the one that `ray start` runs here, or else one of our own (local).",
    ),
]
IpcOption = Annotated[
    Path | None,
    typer.Option("--ipc", metavar="PATH", help="Listen on this unix socket for clients of Bitcoin Core's IPC."),
]


DumpOption = Annotated[
    Path | None,
    typer.Option("--dump", metavar="DIR", help="Write declarations found invalid here, for `txcollection replay`."),
]


@contextmanager
def _only_up_of(store: Path) -> Iterator[None]:
    """Holds the lock that says that an `up` serves this store. Raises StoreInUse if another one does."""
    with disk_errors(store / PID_FILE, "write"):
        handle = os.open(store / PID_FILE, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            pid = os.read(handle, 20).decode().strip()
            raise StoreInUse(f"`txcollection up` serves {store} already (process {pid}); `down` ends it") from None
        with disk_errors(store / PID_FILE, "write"):
            os.truncate(handle, 0)
            os.write(handle, f"{os.getpid()}\n".encode())
        yield
    finally:
        os.close(handle)


def _pid_of_up(store: Path) -> int | None:
    """The process whose `up` serves the store, None if there is none."""
    with disk_errors(store / PID_FILE, "open"):
        try:
            handle = os.open(store / PID_FILE, os.O_RDWR)
        except FileNotFoundError:
            return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return int(os.read(handle, 20) or b"0") or None
    finally:
        os.close(handle)
    return None


def _ray_of_this_host() -> str | None:
    """The address that the last `ray start` on this host left behind, as `ray.init(address="auto")` finds it."""
    if address := os.environ.get(RAY_ADDRESS):
        return address
    place = os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp"
    try:
        return (Path(place) / "ray" / "ray_current_cluster").read_text().strip() or None
    except OSError:
        return None


def _start(settings: Settings, choose: bool) -> "Cluster":
    """Starts a node; with `choose`, in the Ray that runs on this host if there is one."""
    from cluster import Cluster
    from cluster.runtime import NoNode

    found = _ray_of_this_host() if choose else None
    if found is not None and listens(found):
        try:
            node = Cluster.start(settings.model_copy(update={"address": found}))
            note(f"using the Ray at {found}; --address local starts one of our own")
            return node
        except NoNode:
            pass
    if found is not None:
        note(f"no Ray answers at {found}, where `ray start` left its address: starting one of our own")
    if settings.address not in ("local", "auto") and not listens(settings.address):
        raise StoreError(f"no Ray answers at {settings.address}: start one there, or use --address local")
    return Cluster.start(settings)


def _serve(node: "Cluster", store: Path, ipc: "IpcProcess | None") -> None:
    """Returns when the node was stopped by someone else (`stop` over RPC, or `stop_node` in Python)."""
    from cluster.runtime import NODE_FILE, NodeFile, NoNode

    while True:
        time.sleep(LOOK_EVERY)
        try:
            NodeFile.read(store)
        except NoNode:
            return
        try:
            with suppress(NotReady):
                node.tip()
        except Exception:
            if (store / NODE_FILE).exists():
                raise
            return  # it was stopped while it was asked
        if ipc is not None:
            ipc.look(note)


def up(
    detach: Annotated[
        bool, typer.Option("--detach", help="Return when the node is ready, and leave it running.")
    ] = False,
    address: AddressOption = None,
    store: StoreOption = None,
    config: ConfigOption = None,
    script_mode: ScriptModeOption = None,
    now: NowOption = None,
    ipc: IpcOption = None,
    rpc: RpcOption = None,
    rpcauth: RpcAuthOption = None,
    rpc_allow_remote: RpcAllowRemoteOption = False,
    rpc_log: RpcLogOption = "off",
    dump: DumpOption = None,
    as_json: JsonOption = False,
    ready_fd: Annotated[int | None, typer.Option("--ready-fd", hidden=True)] = None,
) -> int:
    """Starts a node on a store and keeps it running until Ctrl-C, or until `down`.

    Other commands and `Cluster.connect()` find it by its store.
    """
    dump = dump and dump.expanduser().absolute()
    settings = settings_of(store=store, config=config, address=address, script_mode=script_mode, now=now, dump_dir=dump)
    StoreInfo.load(settings.store)
    choice = RpcChoice.of(rpc, rpcauth, rpc_allow_remote, rpc_log)
    config, ipc = config and config.resolve(), ipc and ipc.expanduser().absolute()
    if detach:
        given = {"address": address, "config": config, "script-mode": script_mode, "now": now, "ipc": ipc, "dump": dump}
        return _detach(settings, given, choice.arguments(), as_json)
    try:
        with _only_up_of(settings.store):
            choose = address is None and settings.address == "local" and "TXC_ADDRESS" not in os.environ
            with ended_undisturbed(_start(settings, choose)) as node:
                from cluster.head import restarted_when_ray_dies
                from cluster.ipc.process import ipc_process

                with (
                    rpc_gateway(node, choice) as gateway,
                    ipc_process(settings.store, ipc, {"config": config, "now": settings.now}) as server,
                ):
                    listening = {"ipc": str(ipc) if ipc else None, "rpc": gateway.url if gateway else None}
                    _announce(node, settings, as_json, ready_fd, listening)
                    with restarted_when_ray_dies(note):
                        _serve(node, settings.store, server)
    except SystemExit:  # SIGTERM: `down` asked for it
        pass
    return DONE


def _announce(
    node: "Cluster", settings: Settings, as_json: bool, ready_fd: int | None, listening: dict[str, str | None]
) -> None:
    ready: dict[str, Any] = {"store": str(settings.store), "pid": os.getpid(), "tip": None, "height": None}
    with suppress(NotReady):
        ready |= {"tip": node.tip_hash(), "height": node.tip().height}
    ready |= {name: where for name, where in listening.items() if where is not None}
    if ready_fd is not None:
        with os.fdopen(ready_fd, "w") as pipe:
            json.dump(ready, pipe)
        return
    if as_json:
        print_json(ready)
        return
    _print_ready(ready)
    note("Ctrl-C, or `txcollection down`, ends it.")


def _print_ready(ready: dict[str, Any]) -> None:
    rows = [("serving", ready["store"])]
    if ready["tip"] is None:
        rows.append(("tip", NO_TIP))
    else:
        rows += [("tip", ready["tip"]), ("height", str(ready["height"]))]
    if "ipc" in ready:
        rows.append(("IPC socket", ready["ipc"]))
    if "rpc" in ready:
        rows.append(("JSON-RPC", ready["rpc"]))
    print_rows([*rows, ("process", str(ready["pid"]))])


def _detach(settings: Settings, given: dict[str, Any], more: list[str], as_json: bool) -> int:
    """Runs `up` in a session of its own and waits until it says that it is ready, or ends."""
    log = settings.store / LOG_FILE
    reading, writing = os.pipe()
    command = [sys.executable, "-m", "cluster.cli", "up", "--store", str(settings.store), "--ready-fd", str(writing)]
    for name, value in given.items():
        if value is not None:
            command += [f"--{name}", str(value)]
    command += more
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=(writing,),
            start_new_session=True,
        )
    os.close(writing)
    try:
        with os.fdopen(reading) as pipe:
            said = pipe.read()
    except BaseException:
        process.terminate()
        process.wait()
        raise
    if not said:
        process.wait()
        lines = [line for line in log.read_text(errors="replace").splitlines() if line.startswith("error: ")]
        raise StoreError(lines[-1].removeprefix("error: ") if lines else f"the node did not start, see {log}")
    for line in log.read_text(errors="replace").splitlines():
        note(line)
    ready = json.loads(said)
    if as_json:
        print_json(ready)
    else:
        _print_ready(ready)
        note(f"`txcollection down --store {settings.store}` ends it; its log is {log}")
    return DONE


def down(store: StoreOption = None, config: ConfigOption = None, as_json: JsonOption = False) -> int:
    """Ends the node that serves a store, and returns when it is gone."""
    settings = settings_of(store=store, config=config)
    StoreInfo.load(settings.store)
    pid = _pid_of_up(settings.store)
    if pid is not None:
        _end_up(settings.store, pid)
    else:
        _end_joined(settings)
    if as_json:
        print_json({"store": str(settings.store), "ended": True})
    else:
        note(f"the node on {settings.store} has ended")
    return DONE


def _end_up(store: Path, pid: int) -> None:
    began = asked = 0.0
    while _pid_of_up(store) == pid:
        now = time.monotonic()
        began = began or now
        if now - began > STOP_PATIENCE:
            raise StoreError(f"process {pid} has not ended within {STOP_PATIENCE:g} s; look at it, or kill it")
        if not asked or now - asked > ASK_AGAIN:  # a signal that meets Ray while it starts is lost
            os.kill(pid, signal.SIGTERM)
            asked = now
        time.sleep(0.1)


def _end_joined(settings: Settings) -> None:
    """A node that no `up` holds: one that runs in an existing Ray, or was started in Python."""
    from cluster.runtime import NodeFile

    node = running_node(settings)
    if node is None:
        NodeFile.end_killed(settings.store)  # there may be one
        NodeFile.remove(settings.store)
        raise StoreError(f"no node runs on {settings.store}")
    with ended_undisturbed(node):
        node.stop_node()


def status(
    watch: Annotated[bool, typer.Option("--watch", help="Show a live table of the running node until Ctrl-C.")] = False,
    store: StoreOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> int:
    """Says whether a node runs on a store, which tip it serves, how old that is, and what its processes have done.

    Without a running node it tells what the store's files say.
    """
    settings = settings_of(store=store, config=config)
    info = StoreInfo.load(settings.store)
    if watch:
        return _watch(settings)
    facts: dict[str, Any] = {"store": str(settings.store), "network": info.network, "running": False}
    facts |= _of_the_node(settings) or {"tip": _tip_in_files(settings)}
    if as_json:
        print_json(facts)
    else:
        _print_status(facts, settings)
    return DONE


def _of_the_node(settings: Settings) -> dict[str, Any] | None:
    node = running_node(settings)
    if node is None:
        return None
    with ended_undisturbed(node):
        return _facts_of(node, settings)


def _watch(settings: Settings) -> int:
    from cluster.cli_watch import watch

    node = running_node(settings)
    if node is None:
        raise StoreError(f"no node runs on {settings.store}: start one with `txcollection up --store {settings.store}`")
    with ended_undisturbed(node), suppress(KeyboardInterrupt):
        watch(lambda: _facts_of(node, settings), settings, stdout())
    return DONE


def _facts_of(node: "Cluster", settings: Settings) -> dict[str, Any]:
    stats = node.stats()
    tip_hash: str | None = None
    height: int | None = None
    with suppress(NotReady):
        tip_hash, height = node.tip_hash(), node.tip().height
    tip = {"hash": tip_hash, "height": height, "time": None, "age": None}
    in_files = _tip_in_files(settings)
    if in_files["hash"] == tip_hash:
        tip = in_files
    return {"running": True, "tip": tip, "actors": stats}


def _tip_in_files(settings: Settings) -> dict[str, Any]:
    """The tip by the header index: read without locking anything, so also while a node runs."""
    from models.storage.store import Store
    from models.wire.hashes import to_display

    with Store.open(settings.store, write=False) as opened:
        if not opened.headers.has_tip:
            return {"hash": None, "height": None, "time": None, "age": None}
        tip = opened.served_tip(settings.now)
    return {"hash": to_display(tip.hash), "height": tip.height, "time": tip.time, "age": tip.age}


def _print_status(facts: dict[str, Any], settings: Settings) -> None:
    tip = facts["tip"]
    rows = [("store", facts["store"]), ("network", facts["network"])]
    rows.append(("node", "running" if facts["running"] else "not running"))
    if tip["hash"] is not None:
        rows += [("tip", tip["hash"]), ("height", str(tip["height"]))]
    else:
        rows.append(("tip", NO_TIP))
    if tip["time"] is not None:
        old = " (old)" if tip["age"] > settings.tip_old_s else ""
        rows.append(("tip's time", f"{time_in_words(tip['time'])}, {age_in_words(tip['age'])} old{old}"))
    for name, counters in facts.get("actors", {}).items():
        shown = [f"{key} {value:,}" for key, value in counters.items() if isinstance(value, int | float) and value]
        rows.append((name, ", ".join(shown) or "idle"))
    print_rows(rows)
