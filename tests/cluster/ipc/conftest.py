"""Servers in front of nodes, each the process that an operator would start."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest


class ServerProcess:
    """`python -m cluster.ipc` on the store of a node that runs."""

    def __init__(self, store: Path, path: Path, *options: str, **environment: str) -> None:
        self.path = path
        self.process = subprocess.Popen(
            [sys.executable, "-m", "cluster.ipc", "--store", str(store), "--socket", str(path), *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )
        assert self.process.stdout is not None
        self.said = self.process.stdout.readline().strip()

    @property
    def pid(self) -> int:
        return self.process.pid

    def open_files(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def memory(self) -> int:
        """Resident bytes."""
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def alive(self) -> bool:
        return self.process.poll() is None

    def stop(self) -> tuple[int, str]:
        """Ends it as a service manager would; its exit code and what it wrote to standard error."""
        self.process.terminate()
        _, errors = self.process.communicate(timeout=20)
        return self.process.returncode, errors


@pytest.fixture(scope="session")
def start_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., ServerProcess]]:
    """Starts servers: `start_server(store, *options, path=..., **environment)`; all are ended with the session."""
    folder = tmp_path_factory.mktemp("ipc")
    made: list[ServerProcess] = []

    def start(store: Path, *options: str, path: Path | None = None, **environment: str) -> ServerProcess:
        made.append(ServerProcess(store, path or folder / f"{len(made)}.sock", *options, **environment))
        return made[-1]

    yield start
    for server in made:
        if server.alive():
            server.stop()


@pytest.fixture(scope="session")
def corpus_now(data: Path) -> int:
    """The time at which the corpus's verdicts were recorded."""
    return json.loads((data / "corpus" / "tip.json").read_text())["now"]


@pytest.fixture(scope="session")
def corpus_server(corpus_node: Any, corpus_now: int, start_server: Callable[..., ServerProcess]) -> ServerProcess:
    """In front of the shared node on the corpus's chain."""
    return start_server(corpus_node.store, "--now", str(corpus_now))
