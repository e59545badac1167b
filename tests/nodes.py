"""Real actors for tests: one embedded Ray for the session, and nodes on stores made from recorded data directories.

A node with default settings on a recorded chain is made once and shared; tests that change the chain, kill actors or
need other settings make one of their own.
"""

import shutil
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from models.storage.store import Store

#: Settings that keep a test's node small: every process costs about 0.3 s and 60 MB.
SMALL: dict[str, Any] = {
    "script_workers": 1,
    "spare_workers": 0,
    "template_actors": 1,
    "fetch_threads": 4,
    "local_reads": 0,  # so that requests can be counted at the workers
    "object_store_memory": 512 * 1024 * 1024,
}

ACTIVATION_EDGE = {"csv": 132, "dersig": 132, "segwit": 132, "cltv": 133, "bip34": 133}


@pytest.fixture(scope="session")
def ray_session() -> Iterator[None]:
    """Ray for every test of the session."""
    import ray

    from cluster.runtime import ensure_ray

    ensure_ray("local", SMALL["object_store_memory"])
    yield
    ray.shutdown()


@pytest.fixture(scope="session")
def make_store(datadir: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Makes a store of its own from a recorded data directory (archive path below tests/data); keywords as
    `Store.create_from_datadir`."""

    def make(archive: str = "corpus/regtest_datadir.tar.gz", **options: Any) -> Path:
        store = tmp_path_factory.mktemp("store") / uuid.uuid4().hex[:8]
        Store.create_from_datadir(datadir(archive), store, **options)
        return store

    return make


@pytest.fixture(scope="session")
def start_node(ray_session: None) -> Iterator[Callable[..., Any]]:
    """Starts a node on a store; keywords are settings. What a test does not close is closed at the end."""
    from cluster import Cluster

    nodes = []

    def start(store: Path, **settings: Any) -> Any:
        node = Cluster.start(store=store, **{**SMALL, **settings})
        nodes.append(node)
        return node

    yield start
    for node in nodes:
        node.close()


@pytest.fixture(scope="session")
def corpus_node(make_store: Callable[..., Path], start_node: Callable[..., Any]) -> Any:
    """A shared node on the corpus's chain, for tests that leave the chain and the mempool as they are."""
    return start_node(make_store("corpus/regtest_datadir.tar.gz"))


@pytest.fixture
def own_node(make_store: Callable[..., Path], start_node: Callable[..., Any]) -> Iterator[Callable[..., Any]]:
    """Makes nodes that end with the test: `own_node(archive=..., store=..., **settings)`."""
    made = []

    def make(archive: str = "corpus/regtest_datadir.tar.gz", store: Path | None = None, **settings: Any) -> Any:
        path = store or make_store(archive)
        node = start_node(path, **settings)
        made.append((node, path, store is None))
        return node

    yield make
    for node, path, ours in made:
        node.close()
        if ours:
            shutil.rmtree(path, ignore_errors=True)
