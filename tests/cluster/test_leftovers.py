"""What a killed Ray leaves behind is found by the logs that it writes, and nothing else is ended with it."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cluster import leftovers as module
from cluster.leftovers import end_leftovers, leftovers
from cluster.reach import process_is_gone

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")

SESSION = "session_2026-01-01_00-00-00_000000_1"
HOLDS = """
import sys
held = open(sys.argv[1], sys.argv[2])
open("/proc/self/comm", "w").write(sys.argv[3])
print(flush=True)
sys.stdin.read()
"""
Holder = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    path = tmp_path / SESSION / "logs"
    path.mkdir(parents=True)
    (path / "raylet.out").touch()
    return path


@pytest.fixture
def holds() -> Iterator[Holder]:
    """Starts processes that hold a file open."""
    made = []

    def start(path: Path, mode: str = "a", name: str = "ray::Agent") -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-c", HOLDS, str(path), mode, name]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        made.append(process)
        assert process.stdout is not None and process.stdout.readline()
        return process

    yield start
    for process in made:
        process.kill()
        process.communicate()


def test_who_writes_its_logs_is_ended_and_nobody_else(logs: Path, holds: Holder) -> None:
    agent, another = holds(logs / "agent.out"), holds(logs / "raylet.out")
    client = holds(logs / "python-core-driver.log", "a", "python")  # a notebook, say, that had joined
    reader = holds(logs / "raylet.out", "r")
    others = client, reader, holds(logs.parent / "mine", "w"), holds(logs.parents[1] / "mine", "w")
    assert leftovers(SESSION) == {agent.pid: "ray::Agent", another.pid: "ray::Agent", client.pid: "python"}
    end_leftovers(SESSION)
    assert agent.wait() == another.wait() == -9
    assert [process.poll() for process in others] == [None] * 4


@pytest.mark.parametrize("vital", ["gcs_server", "raylet"])
def test_a_ray_that_lives_is_left_alone(vital: str, logs: Path, holds: Holder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE", 0.2)
    processes = holds(logs / "agent.out"), holds(logs / "raylet.out", "a", vital)
    end_leftovers(SESSION)
    assert [process.poll() for process in processes] == [None, None]


def test_nothing_is_left() -> None:
    assert leftovers(SESSION) == leftovers("") == {}
    end_leftovers(SESSION)


def test_a_process_that_ended_and_was_not_asked_after_is_gone() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert not process_is_gone(process.pid)
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert process_is_gone(process.pid)
    process.communicate()
    assert process_is_gone(process.pid)
