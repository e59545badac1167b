"""`status --watch`: what the live table shows of a node, by facts of a real one and by facts made by hand."""

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from cluster.cli_app import run
from cluster.cli_watch import picture, watch
from cluster.settings import Settings, load_settings
from models.storage.store import Store

COLLECTION = {
    "transactions": 5900,
    "unknown": 3,
    "prefetching": True,
    "stopped": None,
    "idle": False,
    "observations": 11_794,
    "probes": 5_897,
    "scripts_verified": 17,
    "queued": 4,
    "bytes": 536 * 1024,
    "budget": 8 * 1024 * 1024,
    "verdicts": 2,
}
FACTS: dict[str, Any] = {
    "tip": {"hash": "ab" * 32, "height": 850_123, "time": 1_000, "age": 61},
    "actors": {
        "chainstate-1": {"connected": 5},
        "mempool-2": {"transactions": 1234, "bytes": 2048, "unsettled": 7},
        "fetch-3": {"error": "ActorDiedError"},
        "script-4": {"inputs": {"validation": 6, "speculation": 0}},
        "template-5": {},
        "collection-6": {"slot_used": True, "collections": [COLLECTION]},
        "supervisor": {"replaced": {"fetch": 2, "script": 0}},
    },
}


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return load_settings(store=tmp_path, now=1_061, script_workers=1, template_actors=1, collection_warm=1)


def shown(facts: dict[str, Any], settings: Settings) -> str:
    stream = io.StringIO()
    Console(file=stream, width=140).print(picture(facts, settings))
    return " ".join(stream.getvalue().split())


def test_facts_are_shown(settings: Settings) -> None:
    text = shown(FACTS, settings)
    for part in (
        "tip 850,123 " + "ab" * 32,
        "age 1 minute 1 second",
        "prefetch slots 1 of 8 in use",
        "mempool 1,234 transactions, 2.0 KiB, 7 still being looked at",
        "5,900 3 on its way 11,794 5,897 17 4",
        "536 KiB of 8.0 MiB 2",
        "fetch-3 down ActorDiedError",
        "script-4 up inputs of validation 6",
        "template-5 up idle",
        "supervisor up replaced 2 fetch",
        "node fetch-3 does not answer (ActorDiedError); 0 of 1 fetch actors answer",
    ):
        assert part in text


def test_good_node_without_collections(settings: Settings) -> None:
    actors = FACTS["actors"] | {"fetch-3": {}, "collection-6": {"slot_used": False, "collections": []}}
    text = shown(FACTS | {"actors": actors}, settings)
    assert "node healthy" in text
    assert "no open collections" in text


def test_many_collections_are_cut(settings: Settings) -> None:
    many = {"collection-6": {"slot_used": True, "collections": [COLLECTION] * 40}}
    assert "and 28 more" in shown(FACTS | {"actors": FACTS["actors"] | many}, settings)


def test_no_tip_yet(settings: Settings) -> None:
    text = shown(FACTS | {"tip": {"hash": None, "height": None, "time": None, "age": None}}, settings)
    assert "the header of the coins' block is not known yet" in text


def test_looks_again(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cluster.cli_watch.EVERY", 0)
    looks = []
    watch(lambda: looks.append(1) or FACTS, settings, Console(file=io.StringIO()), times=3)  # type: ignore[func-returns-value]
    assert len(looks) == 3


def test_without_a_node(tmp_path: Path, datadir: Any, capsys: pytest.CaptureFixture[str]) -> None:
    store = tmp_path / "store"
    Store.create_from_datadir(datadir("corpus/regtest_datadir.tar.gz"), store)
    assert run(["status", "--watch", "--store", str(store)]) == 2
    assert "no node runs on" in capsys.readouterr().err
