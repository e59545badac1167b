"""Every recorded block proposal, judged in one process, gets the first reason that bitcoind gave, with script threads
(`par2`, our `deferred`) and without (`par1`, `inline`), and the same debug text where the node logged one.

The text in brackets behind `block-script-verify-flag-failed` is left out: the kernel does not tell it.
"""

import gzip
import json
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models.chain import Chain
from models.coins.coin import Coin
from models.coins.columns import CoinBatch
from models.collection import Arrival, TxCollection, parse_wtxids
from models.consensus.check import BlockJudgement, check_block_draft, drive
from models.consensus.context import BlockContext
from models.consensus.draft import PROBE_ABSENT, PROBE_PRESENT, BlockDraft
from models.consensus.params import get_params
from models.consensus.table import TxRecord, TxTable
from models.consensus.whole_block import check_whole_block
from models.errors import ClientError, DecodeError
from models.script.verify import verify_batch
from models.storage.mempooldat import read_mempool
from models.storage.store import Store
from models.wire.block import BlockHeader, decode_block
from models.wire.hashes import from_display, split_hashes
from models.wire.merkle import witness_merkle_root
from models.wire.transaction import decode_transaction
from tests.models.consensus.pieces import judge_in_pieces
from tests.models.consensus.replay import ReplayChain

Answer = str | int | None  # a reason, the code of an RPC error, or valid
SCRIPT_FAILED = "block-script-verify-flag-failed"


def without_script_error(text: str) -> str:
    """`block-script-verify-flag-failed (why), input ..` without the bracket."""
    return re.sub(rf"{SCRIPT_FAILED} \(.*?\)(?=, input|$)", SCRIPT_FAILED, text)


def recorded(answer: Any) -> Answer:
    if isinstance(answer, dict):
        return answer.get("rpc_error", answer.get("code"))
    return without_script_error(answer) if answer else None


def lines(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path, "rt") as file:
        return [json.loads(line) for line in file]


@dataclass
class Recording:
    """Blocks proposed on top of one data directory's tip."""

    folder: str
    proposals: str = "proposals"
    archive: str = "regtest_datadir"
    switches: dict[str, Any] = field(default_factory=dict)
    cases: int = 0
    valid: int = 0  # answers without a reason, the same number in both modes
    debug_texts: tuple[int, int] = (0, 0)  # recorded, inline and deferred

    def __str__(self) -> str:
        return f"{self.folder}-{self.archive}-{self.proposals}"


EDGE = {"activation_heights": {"csv": 132, "dersig": 132, "segwit": 132, "cltv": 133, "bip34": 133}}
RECORDINGS = [
    Recording("corpus", cases=495, valid=182, debug_texts=(276, 194)),
    Recording("corpus", archive="regtest_datadir_logonly", cases=495, valid=182, debug_texts=(276, 194)),
    Recording("corpus", "mutants", cases=2500, valid=594),
    Recording("corpus_activation_edge", switches=EDGE, cases=571, valid=211, debug_texts=(225, 223)),
    Recording("corpus_bip94", switches={"bip94": True}, cases=37, valid=7),
]


class Node:
    """What bitcoind's proposal mode does, on a store made of a data directory, without any actor."""

    def __init__(self, datadir: Path, work: Path, switches: dict[str, Any], now: int) -> None:
        Store.create_from_datadir(datadir, work / "store", **switches)
        self.store = Store.open(work / "store")
        self.params = self.store.params
        self.chain = Chain(self.store, self.params)
        self.now = now
        self.close = self.store.close

    def read(self, outpoints: list[bytes]) -> list[Coin | None]:
        return [self.store.coins.get(outpoint) for outpoint in outpoints]

    def context(self) -> BlockContext:
        return self.chain.context()

    def propose(self, block_hex: str | None, inline: bool) -> tuple[Answer, str | None]:
        """The answer, and the text that would be in the log of a block that failed a check."""
        if block_hex is None:
            return -3, None
        try:
            raw = bytes.fromhex(block_hex)
            block = decode_block(raw)
        except (ValueError, DecodeError):
            return -22, None
        if 2 * len(raw) != len(block_hex):  # Python skips white space
            return -22, None
        preface = self.chain.proposal_preface(block.header.hash)
        if preface:
            return preface.text, None
        steps = check_whole_block(block, self.chain.context(), self.params, self.now, inline_scripts=inline)
        return answer_of(drive(steps, self.read, verify_batch))


def answer_of(judgement: BlockJudgement) -> tuple[Answer, str | None]:
    failure = judgement.failure
    return (failure.reason.text, failure.debug_line) if failure else (None, None)


@pytest.fixture(scope="module", params=RECORDINGS, ids=str)
def recording(request: pytest.FixtureRequest) -> Recording:
    return request.param


@pytest.fixture(scope="module")
def node(
    recording: Recording, data: Path, datadir: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Node]:
    tip = json.loads((data / recording.folder / "tip.json").read_text())
    unpacked = datadir(f"{recording.folder}/{recording.archive}.tar.gz")
    node = Node(unpacked, tmp_path_factory.mktemp("node"), recording.switches, tip["now"])
    assert node.chain.tip.height == tip["height"]
    assert node.chain.context().median_time_past == tip["mtp"]
    yield node
    node.close()


@pytest.fixture(scope="module")
def cases(recording: Recording, data: Path) -> list[dict[str, Any]]:
    return lines(data / recording.folder / f"{recording.proposals}.jsonl.gz")


@pytest.mark.parametrize("mode", ["par1", "par2"])
def test_first_reason_is_that_of_the_node(
    mode: str, recording: Recording, node: Node, cases: list[dict[str, Any]]
) -> None:
    wrong, valid = [], 0
    for case in cases:
        answer, _ = node.propose(case["block"], inline=mode == "par1")
        valid += answer is None
        if answer != recorded(case[mode]):
            wrong.append((case["name"], answer, case[mode]))
    assert wrong == []
    assert (len(cases), valid) == (recording.cases, recording.valid)


@pytest.mark.parametrize(("text", "mode"), [("debug", "par1"), ("debug_par2", "par2")])
def test_debug_text_is_that_of_the_node(
    text: str, mode: str, recording: Recording, node: Node, cases: list[dict[str, Any]]
) -> None:
    inline = mode == "par1"
    wrong, compared = [], 0
    for case in cases:
        if not case.get(text) or (not inline and case.get("unordered_par2")):
            continue
        compared += 1
        _, debug = node.propose(case["block"], inline)
        if debug != without_script_error(case[text]):
            wrong.append((case["name"], debug, case[text]))
    assert wrong == []
    assert compared == recording.debug_texts[0 if inline else 1]


def test_proposals_on_a_chain_of_130_blocks(data: Path) -> None:
    """Recorded with script threads. The chain is replayed first, so each of its blocks is found valid on the way."""
    head, *blocks = lines(data / "chain_shared1.jsonl.gz")
    chain = ReplayChain(get_params("regtest"))
    assert chain.follow(bytes.fromhex(block["block"]) for block in blocks) == []
    assert chain.tip.hash[::-1].hex() == head["tip"]

    known = {header.hash for header in chain.headers}
    proposals = lines(data / "proposals_shared1.jsonl.gz")
    wrong = []
    for case in proposals:
        answer: Answer
        try:
            block = decode_block(bytes.fromhex(case["block"]))
        except DecodeError:
            answer = "rpc:-22:Block decode failed"
        else:
            if block.header.hash in known:
                answer = "duplicate"
            else:
                answer, _ = answer_of(chain.judge(block, now=chain.headers[-1].time))
        if answer != recorded(case["verdict"]):
            wrong.append((case["name"], answer, case["verdict"]))
    assert wrong == []
    assert (len(proposals), sum(case["verdict"] is None for case in proposals)) == (81, 27)


@pytest.mark.parametrize("inline", [False, True], ids=["deferred", "inline"])
def test_a_recorded_block_in_pieces_is_judged_as_a_whole(
    inline: bool, corpus: tuple[Node, dict[bytes, TxRecord]], data: Path
) -> None:
    """Transactions in random groups and order, coins in random batches, another tip and another coinbase in between.

    Every block of the corpus that has transactions to split, valid or not.
    """
    node, _ = corpus
    rng = random.Random(inline)
    split = valid = 0
    for case in lines(data / "corpus" / "proposals.jsonl.gz"):
        try:
            block = decode_block(bytes.fromhex(case["block"] or ""))
        except (ValueError, DecodeError):
            continue
        if len(block.transactions) < 2:
            continue
        steps = check_whole_block(
            block, node.context(), node.params, node.now, check_merkle=False, inline_scripts=inline
        )
        whole = drive(steps, node.read, verify_batch).failure
        for _ in range(2):
            assert judge_in_pieces(node, block, rng, inline, node.now) == whole, case["name"]
        split += 1
        valid += whole is None
    assert split == 413
    assert 150 < valid < 300


# Recorded collection flows ---------------------------------------------------------------------------------------


class Declaration:
    """A collection and the draft that is told of everything that happens to it, as by the actors."""

    def __init__(self, wtxids: list[str], mempool: dict[bytes, TxRecord], context: BlockContext) -> None:
        self.collection = TxCollection(split_hashes(parse_wtxids(wtxids)))
        self.draft = BlockDraft(len(wtxids))
        self.draft.begin(context.tip.version, context.script_flags)
        known = [i for i, wtxid in enumerate(self.collection.wtxids) if wtxid in mempool]
        records = [mempool[self.collection.wtxids[i]] for i in known]
        self.tell(self.collection.take_known(np.array(known, np.int64), TxTable.from_records(records)))

    def tell(self, arrival: Arrival) -> None:
        if arrival.segment is not None:
            self.draft.add(self.collection.segments[arrival.segment], arrival.rewires)

    def supply(self, raws: list[bytes]) -> str | None:
        try:
            self.tell(self.collection.take_supplied(self.collection.check_supply(raws)))
        except ClientError as error:
            return str(error)
        return None

    def prefetch(self, context: BlockContext, read: Callable[[list[bytes]], list[Coin | None]]) -> None:
        """Reads all that is queued, two outpoints at a time, and works out what can be worked out."""
        collection, version = self.collection, context.tip.version
        if collection.version is None:
            collection.start(version, context.bip30)
        while (batch := collection.next_batch(2)) is not None:
            answer = CoinBatch.of_coins(read(batch.outpoints))
            assert collection.take_batch(batch, answer, version)
            if batch.counts is None:
                self.draft.observe(batch.segment, batch.inputs, answer, version)
            else:
                states = np.where(collection.probe_hits[batch.inputs], PROBE_PRESENT, PROBE_ABSENT)
                self.draft.probed(batch.inputs, states, version)
        self.draft.work_out(context)


@pytest.fixture(scope="module")
def corpus(
    data: Path, datadir: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Node, dict[bytes, TxRecord]]]:
    """The corpus' node, and the transactions of its mempool by wtxid."""
    tip = json.loads((data / "corpus" / "tip.json").read_text())
    unpacked = datadir("corpus/regtest_datadir.tar.gz")
    node = Node(unpacked, tmp_path_factory.mktemp("corpus"), {}, tip["now"])
    dump = read_mempool(unpacked / "regtest" / "mempool.dat")
    records = [TxRecord.of(decode_transaction(entry.raw)) for entry in dump.entries]
    assert len(records) == tip["mempool_size"]
    yield node, {record.wtxid: record for record in records}
    node.close()


@pytest.mark.parametrize("prefetch", [False, True], ids=["cold", "prefetched"])
@pytest.mark.parametrize("mode", ["verdict", "verdict_inline"])
def test_recorded_collections(
    mode: str, prefetch: bool, corpus: tuple[Node, dict[bytes, TxRecord]], data: Path
) -> None:
    """Construction errors, unknown positions, supply errors and verdicts, of which 46 came from the node."""
    node, mempool = corpus
    context = node.chain.context()
    flows = lines(data / "corpus" / "collections.jsonl.gz")
    judged = 0
    for flow in flows:
        if flow.get("construct_error"):
            with pytest.raises(ClientError) as caught:
                Declaration(flow["wtxids"], mempool, context)
            assert str(caught.value) == flow["construct_error"], flow["name"]
            continue
        declaration = Declaration(flow["wtxids"], mempool, context)
        collection = declaration.collection
        assert collection.unknown_tx_pos() == flow["unknown"], flow["name"]
        if prefetch:
            declaration.prefetch(context, node.read)
        errors = []
        for supply in flow["supply"]:
            errors.append(declaration.supply([bytes.fromhex(raw) for raw in supply]))
            if prefetch:
                declaration.prefetch(context, node.read)
        assert errors == flow["errors"], flow["name"]
        if not collection.complete:
            assert flow[mode] == "missing-txs", flow["name"]
            continue
        time = context.template_time(node.now)
        prevhash = from_display(flow["prevhash"])
        header = BlockHeader(context.template_version, prevhash, bytes(32), time, context.required_bits(time), 0)
        steps = check_block_draft(
            declaration.draft,
            header,
            decode_transaction(bytes.fromhex(flow["coinbase"])),
            context,
            node.now,
            witness_merkle_root(collection.wtxids),
            inline_scripts=mode == "verdict_inline",
        )
        answer, debug = answer_of(drive(steps, node.read, verify_batch))
        assert answer == recorded(flow[mode]), flow["name"]
        if mode == "verdict_inline" and flow.get("debug"):
            assert debug == without_script_error(flow["debug"]), flow["name"]
        judged += flow["verdict_source"] == "bitcoind"
    assert (len(flows), judged) == (59, 46)
