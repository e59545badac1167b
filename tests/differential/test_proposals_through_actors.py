"""Every recorded block proposal through real actors: all stores, both script modes, Core's first reason each time, RPC
errors and what the whole block index decides included.

Several clients ask at once, as a gateway's would; each answer is compared with the node's.
"""

import gzip
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from models.errors import DecodeError
from tests.differential.test_verdicts_in_process import RECORDINGS, Recording, recorded

CLIENTS = 4
MODES = {"par1": "inline", "par2": "deferred"}


@pytest.fixture(scope="module", params=RECORDINGS, ids=str)
def recording(request: pytest.FixtureRequest) -> Recording:
    return request.param


@pytest.fixture(scope="module")
def node(
    recording: Recording, data: Path, make_store: Callable[..., Path], start_node: Callable[..., Any]
) -> Iterator[Any]:
    tip = json.loads((data / recording.folder / "tip.json").read_text())
    store = make_store(f"{recording.folder}/{recording.archive}.tar.gz", **recording.switches)
    made = start_node(store, now=tip["now"], script_workers=2)
    assert (made.tip_hash(), made.tip().height) == (tip["hash"], tip["height"])
    if "total_amount" in tip:
        assert made.utxo_stats().total_amount == tip["total_amount"]
    assert made.utxo_stats().hash_serialized_3 == tip["hash_serialized_3"]
    yield made
    made.close()


@pytest.fixture(scope="module")
def cases(recording: Recording, data: Path) -> list[dict[str, Any]]:
    with gzip.open(data / recording.folder / f"{recording.proposals}.jsonl.gz", "rt") as file:
        return [json.loads(line) for line in file]


def propose(node: Any, block_hex: str | None, mode: str) -> str | int | None:
    """A reason, the code of an RPC error, or None for valid; what stands before the bytes is the caller's matter."""
    if block_hex is None:
        return -3
    try:
        block = bytes.fromhex(block_hex) if not set(block_hex) & set(" \n\t") and block_hex else None
    except ValueError:
        block = None
    if block is None:
        return -22
    try:
        return node.check_block(block, proposal=True, script_mode=mode).reason
    except DecodeError:
        return -22


@pytest.mark.parametrize("par", MODES)
def test_the_first_reason_is_that_of_the_node(
    par: str, recording: Recording, node: Any, cases: list[dict[str, Any]]
) -> None:
    with ThreadPoolExecutor(CLIENTS) as clients:
        answers = list(clients.map(lambda case: propose(node, case["block"], MODES[par]), cases))
    wrong = [
        (case["name"], answer, case[par])
        for case, answer in zip(cases, answers, strict=True)
        if answer != recorded(case[par])
    ]
    assert wrong == []
    assert (len(answers), answers.count(None)) == (recording.cases, recording.valid)
