"""Answer lines of `propose --jsonl` and `collect`, over a fake node: shapes, error codes, and the order of lines."""

import io
import json
from typing import Any

import pytest

from cluster import cli_check
from cluster.cli_answers import HowToCheck, answer_collection, answer_proposal, parse_line
from models.consensus.verdict import Kind, Offender, Verdict
from models.errors import Busy, ClientError, CollectionLost, DecodeError, InternalError, TxCollectionError

VALID = Verdict(Kind.VALID)
DOUBLE_SPEND = Verdict(
    Kind.INVALID, "bad-txns-inputs-missingorspent", "CheckTxInputs: ...", Offender(2, "aa" * 32, "bb" * 32, 1)
)


class FakeCollection:
    """Knows nothing: every position is unknown, and supplies are kept as they come."""

    def __init__(self, wtxids: list[str], verdict: Verdict | TxCollectionError):
        self.wtxids, self.verdict = wtxids, verdict
        self.supplied: list[list[bytes]] = []
        self.asked: list[Any] = []
        self.closed = False

    def unknown_tx_pos(self) -> list[int]:
        return list(range(len(self.wtxids)))

    def add_missing_txs(self, raws: list[bytes]) -> None:
        if b"" in raws:
            raise ClientError("unexpected null transaction")
        self.supplied.append(raws)

    def make_template(self, prevhash: str, coinbase: bytes | None, now: int | None, script_mode: str | None) -> Verdict:
        self.asked.append((prevhash, coinbase, now, script_mode))
        if isinstance(self.verdict, TxCollectionError):
            raise self.verdict
        return self.verdict

    def close(self) -> None:
        self.closed = True


class FakeNode:
    """Gives one answer to everything."""

    def __init__(self, answer: Verdict | TxCollectionError = VALID):
        self.answer = answer
        self.collection: FakeCollection | None = None

    def check_block(self, raw: bytes, proposal: bool, now: int | None, script_mode: str | None) -> Verdict:
        assert proposal
        if isinstance(self.answer, TxCollectionError):
            raise self.answer
        return self.answer

    def tip_hash(self) -> str:
        return "77" * 32

    def collect_txs(self, wtxids: list[str]) -> FakeCollection:
        self.collection = FakeCollection(wtxids, self.answer)
        return self.collection


def proposal(answer: Verdict | TxCollectionError, request: dict[str, Any]) -> dict[str, Any]:
    return answer_proposal(FakeNode(answer), request)  # type: ignore[arg-type]


def collection(node: FakeNode, request: dict[str, Any]) -> dict[str, Any]:
    return answer_collection(node, request)  # type: ignore[arg-type]


def test_valid_proposal() -> None:
    answer = {"name": "a", "ok": True, "reason": None, "debug": "", "offender": None}
    assert proposal(VALID, {"name": "a", "block": "00"}) == answer


def test_invalid_proposal_names_the_offender() -> None:
    answer = proposal(DOUBLE_SPEND, {"name": "a", "block": "00"})
    assert (answer["ok"], answer["reason"]) == (False, "bad-txns-inputs-missingorspent")
    assert answer["offender"] == {"position": 2, "txid": "aa" * 32, "wtxid": "bb" * 32, "input": 1}


@pytest.mark.parametrize("request_", [{}, {"block": None}, {"block": 7}, {"block": ["00"]}])
def test_block_that_is_no_string(request_: dict[str, Any]) -> None:
    # Core, rpc/mining.cpp: getblocktemplate in proposal mode with data that is absent or no string
    error = {"code": -3, "message": "Missing data String key for proposal"}
    assert proposal(VALID, request_ | {"name": 1}) == {"name": 1, "error": error}


@pytest.mark.parametrize("block", ["", "0", "zz", "00 00", "0x00"])
def test_block_that_is_no_hex(block: str) -> None:
    error = {"code": -22, "message": "Block decode failed"}
    assert proposal(VALID, {"name": "a", "block": block}) == {"name": "a", "error": error}


def test_block_that_does_not_decode() -> None:
    error = {"code": -22, "message": "Block decode failed"}
    assert proposal(DecodeError("ended in a header"), {"block": "00"}) == {"name": None, "error": error}


@pytest.mark.parametrize(
    ("raised", "code"),
    [(ClientError("no"), -8), (Busy("no"), -25), (CollectionLost("no"), -25), (InternalError("no"), -32603)],
)
def test_codes_of_other_errors(raised: TxCollectionError, code: int) -> None:
    assert proposal(raised, {"block": "00"})["error"] == {"code": code, "message": "no"}


@pytest.mark.parametrize("line", [b"", b"{", b"[]", b"7", b"\xff", b'"x"', b"[" * 100_000])
def test_line_that_is_no_object(line: bytes) -> None:
    with pytest.raises(ClientError, match="^Parse error"):
        parse_line(line)


def test_collection_in_full() -> None:
    node = FakeNode()
    request = {
        "name": "job",
        "wtxids": ["11" * 32, "22" * 32],
        "prevhash": "33" * 32,
        "coinbase": "abcd",
        "supply": [["00"], ["", "01"], [None], ["xy"], []],
    }
    answer = collection(node, request)
    assert answer["unknown"] == [0, 1]
    assert answer["errors"] == [
        None,
        "unexpected null transaction",
        "unexpected null transaction",
        "transaction 0 is not hexadecimal: 'x' at position 0",
        None,
    ]
    assert (answer["ok"], answer["kind"], answer["reason"]) == (True, "valid", None)
    assert node.collection is not None
    assert node.collection.supplied == [[b"\x00"], []]
    assert node.collection.asked == [("33" * 32, b"\xab\xcd", None, None)]
    assert node.collection.closed


def test_collection_without_coinbase_gets_the_dummy() -> None:
    node = FakeNode()
    collection(node, {"wtxids": [], "prevhash": "33" * 32, "coinbase": ""})
    assert node.collection is not None
    assert node.collection.asked == [("33" * 32, None, None, None)]


def test_collection_without_prevhash_builds_on_the_tip() -> None:
    node = FakeNode()
    collection(node, {"wtxids": []})
    assert node.collection is not None
    assert node.collection.asked == [("77" * 32, None, None, None)]


def test_clock_and_script_mode_are_handed_on() -> None:
    node = FakeNode()
    answer_collection(node, {"wtxids": []}, HowToCheck(5, "inline"))  # type: ignore[arg-type]
    assert node.collection is not None
    assert node.collection.asked == [("77" * 32, None, 5, "inline")]


def test_collection_is_closed_after_an_error() -> None:
    node = FakeNode(CollectionLost("gone"))
    answer = collection(node, {"name": "a", "wtxids": ["11" * 32], "prevhash": "33" * 32})
    assert answer == {"name": "a", "unknown": [0], "errors": [], "error": {"code": -25, "message": "gone"}}
    assert node.collection is not None
    assert node.collection.closed


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("wtxids", "11"),
        ("wtxids", [7]),
        ("supply", "00"),
        ("supply", ["00"]),
        ("supply", [[7]]),
        ("coinbase", 7),
        ("prevhash", 7),
    ],
)
def test_collection_request_of_wrong_type(key: str, value: Any) -> None:
    answer = collection(FakeNode(), {"name": "a", "wtxids": []} | {key: value})
    assert answer["error"]["code"] == -3
    assert set(answer) == {"name", "error"}


def test_coinbase_that_is_no_hex() -> None:
    answer = collection(FakeNode(), {"wtxids": [], "coinbase": "0"})
    assert answer["error"] == {"code": -22, "message": "the coinbase has an odd number of hex digits (1)"}


def lines_of(data: bytes, capsys: pytest.CaptureFixture[str], answer: Verdict = VALID) -> tuple[int, list[Any]]:
    node = FakeNode(answer)
    code = cli_check._answer_lines(io.BytesIO(data), lambda request: answer_proposal(node, request))  # type: ignore[arg-type]
    return code, [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_lines_are_answered_in_order_and_go_on_after_a_bad_one(capsys: pytest.CaptureFixture[str]) -> None:
    data = b'{"name": 1, "block": "00"}\nrubbish\n\n{"name": 2, "block": "0"}\n{"name": 3, "block": "00"}'
    code, answers = lines_of(data, capsys)
    assert [answer["name"] for answer in answers] == [1, None, 2, 3]
    assert ["error" in answer for answer in answers] == [False, True, True, False]
    assert code == 2


def test_line_that_is_too_long(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli_check, "MAX_LINE", 40)
    data = b'{"name": 1, "block": "' + b"0" * 200 + b'"}\n{"name": 2, "block": "00"}\n'
    code, answers = lines_of(data, capsys)
    assert answers[0]["error"]["message"] == "the line is longer than 40 bytes"
    assert (len(answers), answers[1]["ok"], code) == (2, True, 2)


def test_exit_code_of_lines(capsys: pytest.CaptureFixture[str]) -> None:
    line = b'{"name": 1, "block": "00"}\n'
    assert lines_of(b"", capsys)[0] == 0
    assert lines_of(line, capsys)[0] == 0
    assert lines_of(line, capsys, DOUBLE_SPEND)[0] == 1
