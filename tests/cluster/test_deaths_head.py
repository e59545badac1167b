"""The processes that all others depend on are killed: Ray's head under `txcollection up`, and `up` itself. The first is
answered without hands; after the second the same command works at once, whatever it left behind.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from models.errors import StoreInUse
from models.storage.store import Store
from tests.actors.small_chain import SmallChain
from tests.actors.watching import until
from tests.nodes import SMALL

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]


class Up:
    """`txcollection up` on a store, in a process of its own."""

    def __init__(self, store: Path) -> None:
        variables = {f"TXC_{key.upper()}": str(value) for key, value in SMALL.items()}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "cluster.cli", "up", "--store", str(store), "--address", "local", "--json"],
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
            env={**os.environ, **variables},
        )

    def ready(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        pytest.fail(f"up ended with code {self.process.wait()}")

    def below(self, *names: str) -> list[psutil.Process]:
        """Its descendants whose program is one of `names`; all without."""
        found = []
        for child in psutil.Process(self.process.pid).children(recursive=True):
            try:
                if not names or child.name() in names:
                    found.append(child)
            except psutil.Error:
                continue
        return found

    def end(self) -> None:
        """For a test that has failed as well."""
        if self.process.poll() is None:
            left = self.below()
            self.process.kill()
            for child in left:
                try:
                    child.kill()
                except psutil.Error:
                    continue
        self.process.wait()


def test_the_head_dies_and_then_the_command_itself(small_chain: SmallChain) -> None:
    store = small_chain.store()
    first = Up(store)
    try:
        ready = first.ready()
        before = first.below()
        head = first.below("gcs_server", "raylet")
        assert {process.name() for process in head} == {"gcs_server", "raylet"}
        for process in head:
            process.kill()
        again = first.ready()
        assert (again["pid"], again["tip"], again["height"]) == (ready["pid"], small_chain.tip.id, ready["height"])
        assert not [process for process in before if process.is_running() and process.status() != "zombie"]
        with pytest.raises(StoreInUse):
            Store.open(store)
        left = first.below()
        first.process.send_signal(signal.SIGKILL)
        first.process.wait()
        second = Up(store)
        try:
            assert second.ready()["tip"] == small_chain.tip.id
            assert not [process for process in left if process.is_running() and process.status() != "zombie"]
            second.process.terminate()
            assert second.process.wait() == 0
        finally:
            second.end()
    finally:
        first.end()
    Store.open(store).close()
    until(lambda: not (store / "node.json").exists(), "the last one cleaned up behind it")
