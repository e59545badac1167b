"""Commands as processes: a node that is brought up and taken down, interruptions, and that nothing is left behind."""

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cluster.cli_app import run
from cluster.leftovers import leftovers
from cluster.runtime import NodeFile

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc"),
    pytest.mark.timeout(600),
]

PATIENCE = 240  # seconds; a loaded machine takes its time to start Ray
SMALL = {"TXC_SCRIPT_WORKERS": "1", "TXC_SPARE_WORKERS": "0", "TXC_TEMPLATE_ACTORS": "1", "TXC_FETCH_THREADS": "4"}


class Commands:
    """Runs commands that bear a mark in their environment, and so does everything that they start."""

    def __init__(self) -> None:
        self.mark = uuid.uuid4().hex
        self.env = {**os.environ, **SMALL, "MARK_OF_THIS_TEST": self.mark, "COLUMNS": "400"}

    def start(self, *arguments: str, stdin: int = subprocess.DEVNULL) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            [sys.executable, "-m", "cluster.cli", *arguments],
            env=self.env,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    def run(self, *arguments: str) -> tuple[int, str, str]:
        process = self.start(*arguments)
        out, err = process.communicate(timeout=PATIENCE)
        return process.returncode, out.decode(), err.decode()

    def living(self) -> list[str]:
        found = []
        for place in Path("/proc").glob("[0-9]*"):
            try:
                state = (place / "stat").read_text().rpartition(")")[2].split()[0]
                if state != "Z" and self.mark.encode() in (place / "environ").read_bytes():
                    found.append((place / "cmdline").read_bytes().replace(b"\0", b" ").decode())
            except OSError:
                continue
        return found


@pytest.fixture
def commands() -> Commands:
    return Commands()


@pytest.fixture
def store(tmp_path: Path) -> str:
    path = str(tmp_path / "store")
    assert run(["init", "--demo", "--store", path]) == 0
    return path


def wait_for(condition: Callable[[], bool]) -> None:
    limit = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.1)


def test_up_status_propose_down(commands: Commands, store: str, tmp_path: Path) -> None:
    code, out, err = commands.run("up", "--detach", "--address", "local", "--store", store, "--json")
    assert code == 0, err
    assert json.loads(out)["height"] == 140

    code, _, err = commands.run("up", "--store", store)
    assert (code, "serves" in err) == (2, True)

    code, out, _ = commands.run("status", "--store", store, "--json")
    assert (code, json.loads(out)["running"]) == (0, True)

    block = tmp_path / "block.hex"
    block.write_text("00")
    code, out, err = commands.run("propose", str(block), "--store", store)
    assert (code, out, err.count("\n")) == (2, "", 1)

    code, _, _ = commands.run("down", "--store", store)
    assert code == 0
    wait_for(lambda: commands.living() == [])
    assert commands.run("status", "--store", store, "--json")[1].count('"running": false') == 1


def test_node_that_was_killed_is_not_waited_for_and_down_ends_what_it_left(commands: Commands, store: str) -> None:
    code, out, err = commands.run("up", "--detach", "--address", "local", "--store", store, "--json")
    assert code == 0, err
    session = NodeFile.read(Path(store)).session
    assert {"raylet", "gcs_server"} < set(leftovers(session).values())
    os.kill(json.loads(out)["pid"], signal.SIGKILL)
    code, out, _ = commands.run("status", "--store", store, "--json")
    assert (code, json.loads(out)["running"]) == (0, False)
    code, _, err = commands.run("down", "--store", store)
    assert (code, "no node runs on" in err) == (2, True)
    assert leftovers(session) == {}  # Ray's agents would stay for a minute
    assert commands.living() == []


@pytest.mark.parametrize("whole_group", [True, False], ids=["terminal", "process"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_command_leaves_nothing(
    number: signal.Signals, whole_group: bool, commands: Commands, store: str
) -> None:
    process = commands.start("propose", "--jsonl", "-", "--store", store, stdin=subprocess.PIPE)
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(b'{"name": 1, "block": "00"}\n')
    process.stdin.flush()
    answer = process.stdout.readline()
    assert answer, process.communicate()[1]
    assert json.loads(answer)["error"]["code"] == -22  # it serves
    if whole_group:
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 128 + number
    assert b"Traceback" not in err
    assert commands.living() == []


@pytest.mark.parametrize("started", ["raylet", "ray::"])
def test_interrupted_start_leaves_nothing(started: str, commands: Commands, store: str) -> None:
    process = commands.start("up", "--address", "local", "--store", store)
    wait_for(lambda: any(started in line for line in commands.living()))
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert b"Traceback" not in err
    assert commands.living() == []


def test_reader_that_goes_away(commands: Commands, store: str) -> None:
    process = commands.start("propose", "--jsonl", "-", "--store", store, stdin=subprocess.PIPE)
    assert process.stdin is not None and process.stdout is not None
    process.stdout.close()
    process.stdin.write(b'{"name": 1}\n' * 3)
    process.stdin.close()
    assert process.wait(PATIENCE) == 141
    assert process.stderr is not None
    err = process.stderr.read()
    assert b"Traceback" not in err
    assert commands.living() == []


def test_demo(commands: Commands) -> None:
    code, out, err = commands.run("demo")
    assert code == 0, err
    assert "verdict: valid" in out
    assert "bad-txns-inputs-missingorspent" in out
    assert commands.living() == []


def test_double_spend_of_the_demo_is_valid_by_itself(own_node: Callable[..., Any]) -> None:
    """What the tour says of it: it is refused for the other spend, and for nothing else."""
    from cluster.demo import double_spend_of, spend_without_signature
    from models.wire.hashes import to_display
    from models.wire.transaction import decode_transaction

    node = own_node("regtest_datadir.tar.gz")
    transactions = [decode_transaction(raw) for raw in node.assemble_template().template.transactions]
    other = double_spend_of(spend_without_signature(transactions))
    with node.collect_txs([to_display(decode_transaction(other).wtxid)]) as collection:
        assert collection.make_template(node.tip_hash(), None, missing=[other]).ok
