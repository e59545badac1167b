"""Shared fixtures: where recorded vectors lie, and real Core data directories unpacked once per session."""

import signal
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

import cluster  # noqa: F401  # it sets Ray's environment, which must come before any import of Ray

# A shell has its background jobs ignore Ctrl-C, and what they start does so too: commands are to be interrupted here.
signal.signal(signal.SIGINT, signal.default_int_handler)

pytest_plugins = ["tests.nodes", "tests.actors.small_chain"]

DATA = Path(__file__).parent / "data"
SHARED = Path(__file__).resolve().parents[2] / "shared" / "vectors"


@pytest.fixture(scope="session")
def data() -> Path:
    """Recorded vectors that were made for this project and are kept in the repository."""
    return DATA


@pytest.fixture(scope="session")
def shared_vectors() -> Path:
    """Recorded vectors from public repositories, kept beside the project."""
    if not SHARED.is_dir():
        pytest.skip("the shared vectors folder (../shared/vectors) is not on this machine")
    return SHARED


@pytest.fixture(scope="session")
def datadir(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Unpacks a recorded Core data directory (archive path below tests/data) once; returns Core's `-datadir` folder."""
    made: dict[str, Path] = {}

    def unpack(archive: str) -> Path:
        if archive not in made:
            target = tmp_path_factory.mktemp("datadir")
            with tarfile.open(DATA / archive) as tar:
                tar.extractall(target, filter="data")
            made[archive] = target
        return made[archive]

    return unpack
