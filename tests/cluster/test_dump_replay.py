"""Declarations that real actors found invalid, written down by `dump_dir` and judged again from the files alone."""

import gzip
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from models.consensus.verdict import Kind, Verdict
from models.dump import Dump, replay
from models.dumpfile import read_dump
from models.errors import ClientError, StoreError


def _flows(data: Path) -> list[dict[str, Any]]:
    with gzip.open(data / "corpus" / "collections.jsonl.gz", "rt") as file:
        return [json.loads(line) for line in file]


def _wait_for(directory: Path, count: int) -> list[Path]:
    limit = time.monotonic() + 60
    while len(files := sorted(directory.glob("*.txcdump"))) < count:
        assert time.monotonic() < limit, f"{len(files)} of {count} dumps"
        time.sleep(0.01)
    return files


@pytest.fixture(scope="module")
def dumps(
    make_store: Callable[..., Path],
    start_node: Callable[..., Any],
    data: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[list[tuple[Verdict, Dump]]]:
    """Every verdict of the recorded flows that is a refusal, in both script modes, with its dump."""
    directory = tmp_path_factory.mktemp("dumps")
    now = json.loads((data / "corpus" / "tip.json").read_text())["now"]
    node = start_node(make_store("corpus/regtest_datadir.tar.gz"), dump_dir=directory, dump_files=1000)
    refused = []
    for flow in _flows(data):
        if flow.get("construct_error"):
            continue
        with node.collect_txs(flow["wtxids"]) as collection:
            for supply in flow["supply"]:
                try:
                    collection.add_missing_txs([bytes.fromhex(raw) for raw in supply])
                except ClientError:
                    pass
            coinbase = None if flow["coinbase"] is None else bytes.fromhex(flow["coinbase"])
            for mode in ("deferred", "inline"):
                verdict = collection.make_template(flow["prevhash"], coinbase, now=now, script_mode=mode)
                if verdict.kind is Kind.INVALID:
                    refused.append(verdict)
                    _wait_for(directory, len(refused))
    files = _wait_for(directory, len(refused))
    node.close()
    assert len(files) == len(refused) > 20
    yield list(zip(refused, map(read_dump, files), strict=True))


def test_the_verdict_is_recorded(dumps: list[tuple[Verdict, Dump]]) -> None:
    for verdict, dump in dumps:
        recorded = dump.verdict
        assert (recorded.reason, recorded.debug, recorded.offender) == (verdict.reason, verdict.debug, verdict.offender)


def test_a_replay_gives_the_same_verdict(dumps: list[tuple[Verdict, Dump]]) -> None:
    for _, dump in dumps:
        assert replay(dump) == dump.verdict


def test_many_reasons_were_met(dumps: list[tuple[Verdict, Dump]]) -> None:
    reasons = {verdict.reason for verdict, _ in dumps}
    assert {"bad-txns-inputs-missingorspent", "block-script-verify-flag-failed", "bad-cb-amount"} <= reasons


def test_nothing_is_dumped_of_other_answers(
    make_store: Callable[..., Path], start_node: Callable[..., Any], tmp_path: Path
) -> None:
    node = start_node(make_store("corpus/regtest_datadir.tar.gz"), dump_dir=tmp_path / "dumps")
    assert node.collect_txs([]).make_template(node.tip_hash()).ok
    assert node.collect_txs([]).make_template("11" * 32).kind is Kind.AHEAD
    assert node.collect_txs(["22" * 32]).make_template(node.tip_hash()).kind is Kind.MISSING
    node.close()
    assert list((tmp_path / "dumps").iterdir()) == []


def test_a_directory_that_cannot_be_made_is_named_before_anything_starts(
    make_store: Callable[..., Path], ray_session: None, tmp_path: Path
) -> None:
    from cluster import Cluster

    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="no dumps can be written to .*file/dumps: Not a directory"):
        Cluster.start(store=make_store("corpus/regtest_datadir.tar.gz"), dump_dir=tmp_path / "file" / "dumps")
