"""Mutated blocks judged twice: by `models.consensus`, and by a judge that shares no code with it.

The judge (`independent_judge`) is btclib for parsing, hashes, merkle roots, sizes, `CheckTransaction`, sigops, rules of
the header, finality, BIP34, BIP68, BIP141, maturity, amounts and scripts, and plain Python from SPEC 2.1 for the order
of checks, coins, BIP30 and sums. First it is shown to agree with what bitcoind answered to recorded proposals. Compared
is the first reason by Core's name, in both modes (with script threads and without), and of every block that can be read
its hash, ids, sizes and weight. The judge learns the chain from the node's own blk files.

    DIFFERENTIAL_MUTANTS=50000   mutants instead of 400, some 100 a second
    DIFFERENTIAL_SEED=7          others than those of seed 1
    BITCOIND=path                the same mutants are also proposed to a real node, which is asked as a third
"""

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from btclib.block import Block
from btclib.block.block import merkle_root_and_mutated_from_transactions
from btclib.exceptions import BTClibException

from bench.corenode import core_node
from bench.errors import BenchError
from models.consensus.params import get_params
from models.errors import DecodeError
from models.wire.block import decode_block
from models.wire.merkle import merkle_root
from tests.differential.block_mutants import Mutator
from tests.differential.independent_judge import UNDECODABLE, Judge, active_chain
from tests.differential.recorded_chains import lines
from tests.differential.test_verdicts_in_process import Node, recorded, without_script_error

MUTANTS = int(os.environ.get("DIFFERENTIAL_MUTANTS", "400"))
SEED = int(os.environ.get("DIFFERENTIAL_SEED", "1"))
LARGEST = 20_000  # bytes of a recorded proposal that the judge is asked about; its scripts run in Python
MUTATED = 3000  # bytes of a valid block that is mutated, at most

#: What the judge cannot know: headers that bitcoind had met beside its chain. The store does, from the block index.
REMEMBERED = {"duplicate-stale-fork", "duplicate-invalid", "duplicate-header-only"}

Answer = str | int | None


@pytest.fixture(scope="module")
def tip(data: Path) -> dict[str, Any]:
    return json.loads((data / "corpus" / "tip.json").read_text())


@pytest.fixture(scope="module")
def proposals(data: Path) -> list[tuple[dict[str, Any], bytes]]:
    """Those that are hex, and not too large, with their bytes."""
    cases = [case for case in lines(data / "corpus" / "proposals.jsonl.gz") if case["block"]]
    cases = [case for case in cases if re.fullmatch("([0-9a-fA-F]{2})*", case["block"])]
    return [(case, bytes.fromhex(case["block"])) for case in cases if len(case["block"]) <= 2 * LARGEST]


@pytest.fixture(scope="module")
def chain(tip: dict[str, Any], datadir: Callable[[str], Path]) -> list[bytes]:
    blocks = datadir("corpus/regtest_datadir.tar.gz") / "regtest" / "blocks"
    return active_chain(blocks, bytes.fromhex(tip["hash"]))


@pytest.fixture(scope="module")
def judge(tip: dict[str, Any], chain: list[bytes]) -> Judge:
    judge = Judge(get_params("regtest").genesis_block, chain, tip["now"])
    assert judge.height == tip["height"] + 1
    assert judge.median_time(tip["height"]) == tip["mtp"]
    assert sum(coin.tx_out.value for coin in judge.coins.values()) == tip["total_amount_sat"]
    return judge


@pytest.fixture(scope="module")
def ours(
    tip: dict[str, Any], datadir: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Node]:
    node = Node(datadir("corpus/regtest_datadir.tar.gz"), tmp_path_factory.mktemp("judged"), {}, tip["now"])
    yield node
    node.close()


@pytest.fixture(scope="module")
def mutants(
    tip: dict[str, Any], judge: Judge, proposals: list[tuple[dict[str, Any], bytes]]
) -> list[tuple[str, bytes]]:
    valid = [raw for case, raw in proposals if case["par1"] is None and len(raw) <= MUTATED]
    assert len(valid) > 100
    times = [tip["mtp"], tip["time"], tip["now"], tip["now"] + 7200]
    mutator = Mutator(SEED, valid, sorted(judge.coins, key=bytes_of), judge.height, times)
    return [mutator.mutant() for _ in range(MUTANTS)]


def bytes_of(outpoint: Any) -> bytes:
    return outpoint.tx_id + outpoint.vout.to_bytes(4, "big")


def test_the_judge_agrees_with_bitcoind(judge: Judge, proposals: list[tuple[dict[str, Any], bytes]]) -> None:
    wrong = []
    for case, raw in proposals:
        for mode in ("par1", "par2"):
            answer = judge.judge(raw, inline=mode == "par1")
            if answer != recorded(case[mode]) and case["name"] not in REMEMBERED:
                wrong.append((case["name"], mode, answer, case[mode]))
    assert wrong == []
    assert len(proposals) == 471


def facts_of_ours(raw: bytes) -> list[tuple[bytes, ...] | int] | None:
    try:
        block = decode_block(raw)
    except DecodeError:
        return None
    txs = block.transactions
    sizes = [(tx.txid, tx.wtxid, tx.base_size, tx.total_size, tx.weight) for tx in txs]
    root = merkle_root([tx.txid for tx in txs]) if txs else None
    return [block.header.hash, len(block.raw), *sizes, root]  # type: ignore[list-item]


def facts_of_btclib(raw: bytes) -> list[tuple[bytes, ...] | int] | None:
    try:
        block = Block.parse(BytesIO(raw), check_validity=False)
    except BTClibException:
        return None
    txs = block.transactions
    sizes = [(tx.id[::-1], tx.hash[::-1], tx._serialized_size(False), tx.size, tx.weight) for tx in txs]
    root, mutated = merkle_root_and_mutated_from_transactions(txs) if txs else (b"", False)
    return [block.header.hash[::-1], block.size, *sizes, (root[::-1], mutated) if txs else None]  # type: ignore[list-item]


def test_mutants_are_read_as_btclib_reads_them(mutants: list[tuple[str, bytes]]) -> None:
    assert [what for what, raw in mutants if facts_of_ours(raw) != facts_of_btclib(raw)] == []


def test_mutants_get_the_judges_reason(ours: Node, judge: Judge, mutants: list[tuple[str, bytes]]) -> None:
    wrong, reasons = [], Counter[Answer]()
    for number, (what, raw) in enumerate(mutants):
        inline = number % 2 == 0
        answer, _ = ours.propose(raw.hex(), inline)
        reasons[answer] += 1
        expected = judge.judge(raw, inline)
        if answer != expected:
            wrong.append((what, "inline" if inline else "deferred", answer, expected, raw.hex()))
    print(f"{len(mutants)} mutants, {len(wrong)} mismatches: {dict(reasons.most_common())}")
    assert wrong == []
    assert len(reasons) > 20 and reasons[None] > MUTANTS // 20


@pytest.mark.skipif("BITCOIND" not in os.environ, reason="no Bitcoin Core here: BITCOIND=PATH names its bitcoind")
def test_mutants_get_the_reason_of_a_node(
    ours: Node, tip: dict[str, Any], chain: list[bytes], mutants: list[tuple[str, bytes]], tmp_path: Path
) -> None:
    wrong = []
    with core_node(Path(os.environ["BITCOIND"]), tmp_path / "node", tip["now"]) as node:
        for raw in chain:
            assert node.call("submitblock", raw.hex()) is None
        for what, raw in mutants:
            expected: Answer
            try:
                text = node.call("getblocktemplate", {"mode": "proposal", "rules": ["segwit"], "data": raw.hex()})
                expected = without_script_error(text) if text else None
            except BenchError as error:
                expected = UNDECODABLE if str(UNDECODABLE) in str(error) else str(error)
            answer, _ = ours.propose(raw.hex(), inline=False)
            if answer != expected:
                wrong.append((what, answer, expected, raw.hex()))
    assert wrong == []
