"""No argument reaches the kernel that would abort the process or be taken for something else: every hostile call is
answered by a typed error, in a process that is still alive after all of them.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[3]

EXPECTED = {
    "good call": "[True, True]",
    "good call, number of inputs given": "[True, True]",
    "no inputs": "[]",
    "empty batch": "[]",
    "unknown flag bit": "InternalError",
    "high flag bit": "InternalError",
    "negative flags": "InternalError",
    "flags no number": "InternalError",
    "flags not to be combined": "InternalError",
    "unknown flag bit in a batch": "InternalError",
    "index behind the last": "InternalError",
    "negative index": "InternalError",
    "index of 2^32": "InternalError",
    "index no number": "InternalError",
    "one bad index behind a good one": "InternalError",
    "index without inputs": "InternalError",
    "too few spent outputs": "InternalError",
    "no spent outputs": "InternalError",
    "too many spent outputs": "InternalError",
    "spent outputs without inputs": "InternalError",
    "number of inputs differs": "InternalError",
    "value above 64 bits": "InternalError",
    "value below 64 bits": "InternalError",
    "value no number": "InternalError",
    "script missing": "InternalError",
    "script no bytes": "InternalError",
    "transaction missing": "InternalError",
    "transaction no bytes": "InternalError",
    "transaction empty": "DecodeError",
    "transaction cut short": "DecodeError",
    "one byte behind the transaction": "DecodeError",
    "a second transaction behind the first": "DecodeError",
    "trailing byte in a batch": "DecodeError",
    "too few spent outputs in a batch": "InternalError",
    "no threads": "InternalError",
    "extreme values": "[True, True]",
    "null prevout": "[True]",
}


@pytest.fixture(scope="module")
def child() -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.models.script.hostile_calls"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_the_process_lives_through_all_hostile_calls(child: subprocess.CompletedProcess[str]) -> None:
    assert (child.returncode, child.stderr) == (0, "")


def test_every_hostile_call_has_an_expectation(child: subprocess.CompletedProcess[str]) -> None:
    assert [json.loads(line)[0] for line in child.stdout.splitlines()] == list(EXPECTED)


@pytest.mark.parametrize(("name", "outcome"), EXPECTED.items(), ids=EXPECTED.keys())
def test_outcome(child: subprocess.CompletedProcess[str], name: str, outcome: str) -> None:
    assert dict(json.loads(line) for line in child.stdout.splitlines())[name] == outcome
