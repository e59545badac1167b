"""Two Ray nodes on this machine stand for two hosts: workers on the second, a replica there that follows the tip, the
death of its owner, and the second host going away."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cluster.cli_app import run
from models.storage.coinsdb import CoinsOwner
from models.storage.store import Store


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the program `two_hosts` saw; it has a Ray of its own."""
    directory = tmp_path_factory.mktemp("hosts")
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-m", "tests.cluster.two_hosts", str(directory)],
        cwd=root,
        env={name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "TXC_"))},
        capture_output=True,
        text=True,
        timeout=280,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("SEEN ")]
    assert lines, done.stdout + done.stderr
    return json.loads(lines[0].removeprefix("SEEN "))


@pytest.mark.cluster
def test_workers_go_to_the_second_host_and_nothing_else_does(seen: dict[str, Any]) -> None:
    assert seen["fetch_before"] == 1  # without a replica no coins are read there
    assert seen["far_is_elsewhere"]
    assert seen["the_rest_is_here"]


@pytest.mark.cluster
def test_each_change_of_the_tip_reaches_the_replica(seen: dict[str, Any]) -> None:
    assert seen["after_a_block"]
    assert seen["after_a_reorganisation"]
    assert seen["after_opening_anew"]


@pytest.mark.cluster
def test_a_replica_that_missed_blocks_catches_up(seen: dict[str, Any]) -> None:
    assert seen["caught_up"] >= 1
    assert seen["same_coins"]


@pytest.mark.cluster
def test_a_host_that_goes_is_not_missed(seen: dict[str, Any]) -> None:
    assert seen["without_it"]


def test_a_replica_of_a_store_that_nobody_serves(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Store.create_genesis("regtest", tmp_path / "store")
    arguments = ["replicate", "--store", str(tmp_path / "store"), "--to", str(tmp_path / "deep" / "replica")]
    assert run([*arguments, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["block"] == "0f9188f13cb7b2c71f2a335e3a4fc328bf5beb436012afca590b1a11466e2206"
    with CoinsOwner(tmp_path / "deep" / "replica" / "chainstate") as coins:
        assert coins.best_block[::-1].hex() == answer["block"]
    assert run(arguments) == 2
    assert "exists already" in capsys.readouterr().err
