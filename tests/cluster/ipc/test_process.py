"""The server as a process: started, watched and ended by `up --ipc`, and on its own."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.actors.small_chain import SmallChain
from tests.cluster.ipc.client import Client, drive
from tests.cluster.ipc.conftest import ServerProcess

PATIENCE = 60.0  # seconds for a process to start or to end


def height_over(path: Path) -> int:
    async def run() -> int:
        client = await Client.connect(path)
        return (await client.mining.getTip(client.context)).result.height

    return drive(run())


def wait_until(condition: Callable[[], Any]) -> Any:
    limit = time.monotonic() + PATIENCE
    while not (found := condition()):
        assert time.monotonic() < limit
        time.sleep(0.1)
    return found


def server_of(path: Path) -> int | None:
    """The process that serves a socket, by its command line."""
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = entry.read_bytes().split(b"\0")
        except OSError:
            continue
        if b"cluster.ipc" in words and os.fsencode(path) in words:
            return int(entry.parent.name)
    return None


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "Ctrl-C"])
def test_a_signal_ends_it_without_a_word(number: int, corpus_node: Any, start_server: Any) -> None:
    server: ServerProcess = start_server(corpus_node.store)
    height_over(server.path)
    server.process.send_signal(number)
    out, err = server.process.communicate(timeout=PATIENCE)
    assert (server.process.returncode, out, err) == (0, "", "")
    assert not server.path.exists()
    assert corpus_node.tip().height > 0  # the node goes on


def test_it_takes_the_place_of_one_that_was_killed(corpus_node: Any, start_server: Any) -> None:
    first: ServerProcess = start_server(corpus_node.store)
    first.process.kill()
    first.process.wait(PATIENCE)
    assert first.path.is_socket()
    second = start_server(corpus_node.store, path=first.path)
    assert height_over(second.path) == corpus_node.tip().height
    assert second.stop() == (0, "")


def run_once(*options: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "cluster.ipc", *options], capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.stdout == ""
    return done.returncode, done.stderr


def test_where_another_process_listens_it_says_so(corpus_node: Any, tmp_path: Path) -> None:
    path = tmp_path / "taken.sock"
    with socket.socket(socket.AF_UNIX) as taken:
        taken.bind(str(path))
        taken.listen()
        code, said = run_once("--store", str(corpus_node.store), "--socket", str(path))
    assert code == 2
    assert said == f"error: another process listens at {path}: end it, or choose another path\n"


def test_without_a_node_it_says_so(small_chain: SmallChain, tmp_path: Path) -> None:
    store = small_chain.store()
    code, said = run_once("--store", str(store), "--socket", str(tmp_path / "s"))
    assert code == 2
    assert said == f"error: no node runs on {store}: start one with `txcollection up --store {store}`\n"


def test_it_ends_with_its_node(
    small_chain: SmallChain, start_node: Callable[..., Any], start_server: Callable[..., Any]
) -> None:
    node = start_node(small_chain.store())
    server: ServerProcess = start_server(node.store)
    node.close()
    _, err = server.process.communicate(timeout=PATIENCE)
    assert server.process.returncode == 2
    assert err == f"error: the node on {node.store} has ended\n"
    assert not server.path.exists()


@pytest.mark.cluster
def test_up_starts_watches_and_ends_it(small_chain: SmallChain, tmp_path: Path) -> None:
    store, path = small_chain.store(), tmp_path / "node.sock"
    command = [
        sys.executable,
        "-m",
        "cluster.cli",
        "up",
        "--store",
        str(store),
        "--ipc",
        str(path),
        "--address",
        "local",
    ]
    up = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert up.stdout is not None
        said = "".join(up.stdout.readline() for _ in range(5))
        assert re.search(rf"IPC socket +{re.escape(str(path))}\n", said)
        assert path.stat().st_mode & 0o777 == 0o600
        assert height_over(path) == small_chain.tip.height
        first = server_of(path)
        assert first is not None
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: server_of(path) not in (None, first) and path.is_socket())
        wait_until(lambda: answers(path))
        assert height_over(path) == small_chain.tip.height
        up.send_signal(signal.SIGINT)
        _, err = up.communicate(timeout=PATIENCE)
    finally:
        up.kill()
        up.wait()
    assert up.returncode == 130
    assert "the IPC server has ended (code -9): starting it again" in err
    assert "Traceback" not in err
    assert server_of(path) is None
    assert not path.exists()


def answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as trying:
        try:
            trying.connect(str(path))
        except OSError:
            return False
        return True
