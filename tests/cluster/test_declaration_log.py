"""Lines of the declaration log: fields, targets, nothing secret, and what becomes of lines that nobody takes."""

import json
from pathlib import Path
from typing import Any

import pytest

from cluster.declaration_log import KEPT_LINES, DeclarationLog, verdict_fields
from models.errors import SettingsError

REFUSED = (
    "invalid",
    "bad-txns-in-belowout",
    "value in (1.00) < value out (2.00)",
    (3, "aa" * 32, "bb" * 32, None),
    "CONSENSUS",
    None,
    {"check": 1.23456, "collection": 5.0, "coins_read": 4, "scripts_run": 2},
)


def test_fields_of_a_verdict() -> None:
    assert verdict_fields(REFUSED) == {
        "verdict": "invalid",
        "reason": "bad-txns-in-belowout",
        "debug": "value in (1.00) < value out (2.00)",
        "offender": {"position": 3, "txid": "aa" * 32, "wtxid": "bb" * 32, "input": None},
        "coins_read": 4,
        "scripts_run": 2,
        "ms": {"check": 1.235, "collection": 5.0},
    }


def test_verdict_without_timings() -> None:
    fields: dict[str, Any] = verdict_fields(("missing", "missing-txs", "x", None, "", None, None))
    assert (fields["ms"], fields["offender"], "coins_read" in fields) == ({}, None, False)


def test_file(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    for n in range(2):
        log = DeclarationLog(str(path))
        log.write("declaration", collection="01234567", n=n)
        log.close()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(line["event"], line["n"]) for line in lines] == [("declaration", 0), ("declaration", 1)]
    assert all(line["time"].endswith("Z") for line in lines)


def test_lines_for_standard_error_are_taken_once() -> None:
    log = DeclarationLog("stderr")
    log.write("declaration", n=1)
    assert [json.loads(line)["n"] for line in log.take()] == [1]
    assert log.take() == []


def test_lines_that_nobody_takes_are_bounded() -> None:
    log = DeclarationLog("stderr")
    for n in range(KEPT_LINES + 5):
        log.write("declaration", n=n)
    lines = log.take()
    assert (len(lines), json.loads(lines[0])["n"]) == (KEPT_LINES, 5)


def test_off() -> None:
    log = DeclarationLog("off")
    log.write("declaration")
    assert log.take() == []


def test_file_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot be written: No such file"):
        DeclarationLog(str(tmp_path / "none" / "log"))
