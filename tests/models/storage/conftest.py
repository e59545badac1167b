"""Fixtures of the storage tests: recorded chainstates as checkpoints, and a process that writes without pause."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from models.storage.checkpoint import checkpoint

REPOSITORY = Path(__file__).resolve().parents[3]


@pytest.fixture
def chainstate(datadir: Callable[[str], Path], tmp_path: Path) -> Callable[[str], Path]:
    """A checkpoint of a recorded data directory's chainstate, free to be written to."""

    def make(archive: str) -> Path:
        target = tmp_path / Path(archive).name.removesuffix(".tar.gz") / "chainstate"
        checkpoint(datadir(archive) / "regtest" / "chainstate", target)
        return target

    return make


class BusyWriter:
    """A running `busy_writer`; `stop` returns the last generation it wrote."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.models.storage.busy_writer", str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=REPOSITORY,
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "writing\n"

    def stop(self) -> int:
        output, _ = self.process.communicate(timeout=60)
        assert self.process.returncode == 0, "the writer died"
        return int(output)


@pytest.fixture
def busy_writer(tmp_path: Path) -> Iterator[BusyWriter]:
    """Another process that writes and compacts `tmp_path/busy` without pause."""
    writer = BusyWriter(tmp_path / "busy")
    yield writer
    if writer.process.poll() is None:
        writer.process.kill()
        writer.process.wait()
