"""`propose`, `collect` and `status` with a node that runs: they find it by its store, and answer as Core did."""

import gzip
import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from cluster.cli_app import run

CORPUS = Path(__file__).parents[1] / "data" / "corpus"


def records(name: str) -> dict[str, dict[str, Any]]:
    with gzip.open(CORPUS / f"{name}.jsonl.gz", "rt") as lines:
        return {record["name"]: record for record in map(json.loads, lines)}


@pytest.fixture(scope="module")
def now() -> str:
    return str(json.loads((CORPUS / "tip.json").read_text())["now"])


@pytest.fixture
def command(corpus_node: Any, now: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs a command on the corpus's node with this standard input: exit code, lines of output, standard error."""
    monkeypatch.setenv("COLUMNS", "400")

    def execute(*arguments: str, stdin: str = "") -> tuple[int, list[str], str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        code = run([*arguments, "--store", str(corpus_node.store)])
        captured = capsys.readouterr()
        return code, captured.out.splitlines(), captured.err

    return execute


def expected_answer(record: dict[str, Any], mode: str) -> tuple[Any, ...]:
    verdict = record[mode]
    if isinstance(verdict, dict):
        return record["name"], verdict["rpc_error"], verdict["message"]
    return record["name"], verdict.split(" (")[0] if verdict and verdict.startswith("block-script") else verdict


def given_answer(answer: dict[str, Any]) -> tuple[Any, ...]:
    if "error" in answer:
        return answer["name"], answer["error"]["code"], answer["error"]["message"]
    assert answer["ok"] == (answer["reason"] is None)
    return answer["name"], answer["reason"]


@pytest.mark.parametrize(("mode", "recorded"), [("deferred", "par2"), ("inline", "par1")])
def test_proposals_as_core(mode: str, recorded: str, command: Any, now: str) -> None:
    # Every tenth, and all that Core answered with an error instead of a verdict.
    every = list(records("proposals").values())
    some = [r for i, r in enumerate(every) if i % 10 == 0 or isinstance(r[recorded], dict)]
    lines = "\n".join(json.dumps({"name": r["name"], "block": r.get("block")}) for r in some)
    code, out, _ = command("propose", "--jsonl", "-", "--now", now, "--script-mode", mode, stdin=lines)
    answers = [given_answer(json.loads(line)) for line in out]
    assert answers == [expected_answer(r, recorded) for r in some]
    assert code == 2


def test_valid_block(command: Any, now: str) -> None:
    block = records("proposals")["header-plain-valid"]["block"]
    assert command("propose", "-", "--now", now, stdin=block + "\n") == (0, ["valid"], "")


def test_invalid_block_for_people(command: Any, now: str) -> None:
    record = next(r for r in records("proposals").values() if r["par2"] == "bad-txns-inputs-missingorspent")
    code, out, _ = command("propose", "-", "--now", now, stdin=record["block"])
    shown = {line.split("  ", 1)[0].strip(): line.split("  ", 1)[1].strip() for line in out}
    assert code == 1
    assert shown["invalid"] == "bad-txns-inputs-missingorspent"
    assert shown["txid"] in record["debug_par2"]  # which ends in "... in transaction <txid>"


def test_invalid_block_as_json(command: Any, now: str) -> None:
    record = next(r for r in records("proposals").values() if r["par2"] == "bad-txns-inputs-missingorspent")
    code, out, _ = command("propose", "-", "--now", now, "--json", stdin=record["block"])
    verdict = json.loads(out[0])
    assert (code, len(out)) == (1, 1)
    assert (verdict["ok"], verdict["kind"]) == (False, "invalid")
    assert verdict["offender"]["txid"] in record["debug_par2"]


def test_truncated_block_is_one_line_and_the_next_is_served(command: Any, now: str) -> None:
    block = records("proposals")["header-plain-valid"]["block"]
    code, out, err = command("propose", "-", "--now", now, stdin=block[:-2])
    assert (code, out) == (2, [])
    assert err.startswith("error: Block decode failed: ")
    assert err.count("\n") == 1
    assert command("propose", "-", "--now", now, stdin=block)[0] == 0


def test_bytes_after_a_block_are_ignored(command: Any, now: str) -> None:
    block = records("proposals")["header-plain-valid"]["block"]
    assert command("propose", "-", "--now", now, stdin=block + "00")[0] == 0


FLOWS = [
    "one-missing",
    "one-missing-never-supplied",
    "supply-null",
    "supply-unrequested-after-good-is-atomic",
    "supplied-bad-signature",
    "prevhash-unknown-complete",
    "coinbase-amount-plus-1",
    "construct-duplicate",
]


@pytest.mark.parametrize(("mode", "field"), [("deferred", "verdict"), ("inline", "verdict_inline")])
def test_collections_as_recorded(mode: str, field: str, command: Any, now: str) -> None:
    flows = [records("collections")[name] for name in FLOWS]
    keys = ("name", "wtxids", "coinbase", "prevhash", "supply")
    lines = "\n".join(json.dumps({key: flow[key] for key in keys}) for flow in flows)
    code, out, _ = command("collect", "-", "--now", now, "--script-mode", mode, stdin=lines)
    assert code == 2
    for flow, answer in zip(flows, map(json.loads, out), strict=True):
        if flow.get("construct_error"):
            assert answer == {"name": flow["name"], "error": {"code": -8, "message": flow["construct_error"]}}
            continue
        assert (answer["name"], answer["unknown"], answer["errors"]) == (flow["name"], flow["unknown"], flow["errors"])
        assert answer["reason"] == (flow[field].split(" (")[0] if flow[field] else None)


def test_collect_exit_codes(command: Any, now: str) -> None:
    valid = json.dumps({"name": "a", "wtxids": []})
    incomplete = json.dumps({"name": "b", "wtxids": ["11" * 32]})
    assert command("collect", "-", "--now", now, stdin=valid)[0] == 0
    code, out, _ = command("collect", "-", "--now", now, stdin=f"{valid}\n{incomplete}\n")
    assert (code, json.loads(out[1])["kind"]) == (1, "missing")


def test_status_of_a_running_node(command: Any) -> None:
    code, out, _ = command("status", "--json")
    facts = json.loads(out[0])
    tip = json.loads((CORPUS / "tip.json").read_text())
    assert (code, facts["running"], facts["network"]) == (0, True, "regtest")
    assert (facts["tip"]["hash"], facts["tip"]["height"], facts["tip"]["time"]) == (
        tip["hash"],
        tip["height"],
        tip["time"],
    )
    assert {name.rpartition("-")[0] for name in facts["actors"]} >= {"chainstate", "mempool", "fetch", "script"}


def test_status_for_people(command: Any) -> None:
    code, out, _ = command("status")
    shown = {line.split("  ", 1)[0].strip(): line.split("  ", 1)[1].strip() for line in out}
    assert (code, shown["node"], shown["height"]) == (0, "running", "125")


def test_status_of_files_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = str(tmp_path / "s")
    assert run(["init", "--genesis", "--store", store]) == 0
    capsys.readouterr()
    assert run(["status", "--store", store, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    # Core: kernel/chainparams.cpp, regtest's genesis block
    genesis = "0f9188f13cb7b2c71f2a335e3a4fc328bf5beb436012afca590b1a11466e2206"
    assert (facts["running"], facts["tip"]["hash"], facts["tip"]["height"]) == (False, genesis, 0)
