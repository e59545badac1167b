"""Reasons with their categories, and what a verdict shows to people, programs and notebooks."""

import json

import numpy as np
import pytest

from models.consensus import reasons as r
from models.consensus.failure import Failure
from models.consensus.reasons import Category, Reason
from models.consensus.table import TX_ROW
from models.consensus.verdict import Kind, Offender, Verdict

# SPEC 2.1, column "category"; all other rows are CONSENSUS.
MUTATED = {
    "bad-txnmrklroot",
    "bad-txns-duplicate",
    "bad-witness-nonce-size",
    "bad-witness-merkle-match",
    "unexpected-witness",
}
HEADER = {"high-hash", "bad-diffbits", "time-too-old", "time-timewarp-attack"}


def test_categories_of_the_table() -> None:
    table = [reason for reason in vars(r).values() if isinstance(reason, Reason)]
    table += [reason for reason in r.TX_CHECK_REASONS if reason]
    consensus = {reason.text for reason in table if reason.category is Category.CONSENSUS}
    assert {reason.text for reason in table if reason.category is Category.MUTATED} == MUTATED
    assert {reason.text for reason in table if reason.category is Category.INVALID_HEADER} == HEADER
    assert r.TIME_TOO_NEW.category is Category.TIME_FUTURE
    assert consensus >= {
        "bad-blk-length",
        "bad-cb-missing",
        "bad-txns-vin-empty",
        "bad-blk-sigops",
        "bad-txns-nonfinal",
        "bad-blk-weight",
        "bad-txns-BIP30",
        "bad-txns-inputs-missingorspent",
        "bad-cb-amount",
        "block-script-verify-flag-failed",
    }


def test_a_version_that_is_too_low_is_part_of_the_reason() -> None:
    assert r.bad_version(-1).text == "bad-version(0xffffffff)"
    assert r.bad_version(3).debug == "rejected nVersion=0x00000003 block"
    assert r.bad_version(3).category is Category.INVALID_HEADER


def rows() -> np.ndarray:
    made = np.zeros(3, TX_ROW)
    made["txid"][2] = np.void(b"\x01" + bytes(31))
    made["wtxid"][2] = np.void(b"\x02" + bytes(31))
    return made


OFFENDER = Offender(2, "00" * 31 + "01", "00" * 31 + "02", 5)


def test_a_failure_names_its_offender_in_display_hex() -> None:
    verdict = Verdict.of_failure(Failure(r.INPUTS_MISSINGORSPENT, "why", 2, 5), rows())
    assert (verdict.ok, verdict.kind, verdict.reason) == (False, Kind.INVALID, "bad-txns-inputs-missingorspent")
    assert (verdict.debug, verdict.category, verdict.offender) == ("why", "consensus", OFFENDER)


def test_a_failure_of_the_whole_block_has_no_offender() -> None:
    assert Verdict.of_failure(Failure.of(r.BAD_DIFFBITS), rows()).offender is None
    assert Verdict.of_failure(Failure.of(r.BAD_CB_MULTIPLE, 2)).offender is None


def test_missing_transactions() -> None:
    verdict = Verdict.missing_txs()
    assert (verdict.kind, verdict.reason) == (Kind.MISSING, "missing-txs")
    assert verdict.debug == "collected transaction(s) still missing"


def test_a_verdict_as_json() -> None:
    verdict = Verdict.of_failure(Failure(r.INPUTS_MISSINGORSPENT, "why", 2, 5), rows())
    assert json.loads(json.dumps(verdict.to_dict())) == {
        "ok": False,
        "kind": "invalid",
        "reason": "bad-txns-inputs-missingorspent",
        "debug": "why",
        "offender": {"position": 2, "txid": "00" * 31 + "01", "wtxid": "00" * 31 + "02", "input": 5},
    }
    assert json.loads(json.dumps(Verdict(Kind.VALID).to_dict()))["offender"] is None


@pytest.mark.parametrize(
    ("verdict", "shown"),
    [
        (Verdict(Kind.VALID), "<Verdict valid>"),
        (Verdict(Kind.STALE, "inconclusive-not-best-prevblk"), "<Verdict stale: inconclusive-not-best-prevblk>"),
        (Verdict(Kind.INVALID, "bad-cb-amount", offender=OFFENDER), "<Verdict invalid: bad-cb-amount at position 2>"),
    ],
)
def test_a_verdict_in_a_console(verdict: Verdict, shown: str) -> None:
    assert repr(verdict) == shown


def test_a_verdict_in_a_notebook() -> None:
    html = Verdict(Kind.INVALID, "bad-cb-amount", "too much", OFFENDER)._repr_html_()
    assert "invalid" in html and "bad-cb-amount" in html and "input 5" in html and OFFENDER.txid in html
    assert "valid" in Verdict(Kind.VALID)._repr_html_()


def test_a_failure_as_the_node_logs_it() -> None:
    assert Failure.of(r.NOT_BEST_PREVBLK).debug_line == "inconclusive-not-best-prevblk"
    assert Failure.of(r.BAD_DIFFBITS).debug_line == "bad-diffbits, incorrect proof of work"
    in_transaction = Failure.of_transaction(r.INPUTVALUES_OUTOFRANGE, "", b"\x01" + bytes(31), 2, 5)
    assert in_transaction.debug_line == f"bad-txns-inputvalues-outofrange,  in transaction {'00' * 31}01"
