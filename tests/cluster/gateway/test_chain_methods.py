"""Methods about the chain: the tip, coins, the mempool, templates to mine, submission and solutions."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cluster.gateway.chain_methods import difficulty
from models.wire.block import decode_block
from models.wire.hashes import from_display, to_display
from models.wire.transaction import decode_transaction
from tests.cluster.gateway.conftest import Connection, Served


def test_tip(connection: Connection, corpus_tip: dict[str, Any]) -> None:
    assert connection.call("getbestblockhash") == corpus_tip["hash"]
    assert connection.call("getblockcount") == corpus_tip["height"]


def test_chain_info(connection: Connection, corpus_tip: dict[str, Any]) -> None:
    info = connection.call("getblockchaininfo")
    assert (info["chain"], info["blocks"], info["bestblockhash"]) == (
        "regtest",
        corpus_tip["height"],
        corpus_tip["hash"],
    )
    assert (info["mediantime"], info["bits"]) == (corpus_tip["mtp"], corpus_tip["bits"])
    assert info["difficulty"] == pytest.approx(4.656542373906925e-10)  # as Core says of regtest
    assert info["initialblockdownload"] is False


@pytest.mark.parametrize(
    ("bits", "expected"), [(0x1D00FFFF, 1.0), (0x1B0404CB, 16307.420938523983), (0x207FFFFF, 4.656542373906925e-10)]
)
def test_difficulty(bits: int, expected: float) -> None:
    # Bitcoin wiki, "Difficulty"; Core: test/blockchain_tests.cpp
    assert difficulty(bits) == pytest.approx(expected, rel=1e-12)


def test_txout_of_the_chain_and_of_the_mempool(connection: Connection, served: Served) -> None:
    mempool = {wtxid: served.node.transactions([wtxid])[0] for wtxid in served.node.mempool_wtxids()}
    transactions = {to_display(decode_transaction(raw).txid): decode_transaction(raw) for raw in mempool.values()}
    spent = {prevout for tx in transactions.values() for prevout in tx.prevouts}
    confirmed = next(p for p in spent if to_display(p[:32]) not in transactions)
    txid, n = to_display(confirmed[:32]), int.from_bytes(confirmed[32:], "little")
    coin = served.node.coins([(txid, n)])[0]

    assert connection.call("gettxout", txid, n) is None, "the mempool spends it"
    shown = connection.call("gettxout", txid, n, False)
    assert round(shown["value"] * 1e8) == coin.value
    assert shown["scriptPubKey"]["hex"] == coin.script.hex()
    assert (shown["confirmations"], shown["coinbase"]) == (125 - coin.height + 1, coin.coinbase)

    unspent = next(
        (txid, n)
        for txid, tx in transactions.items()
        for n in range(len(tx.values))
        if tx.txid + n.to_bytes(4, "little") not in spent
    )
    shown = connection.call("gettxout", *unspent)
    assert (shown["confirmations"], round(shown["value"] * 1e8)) == (0, transactions[unspent[0]].values[unspent[1]])
    assert connection.call("gettxout", *unspent, False) is None
    assert connection.call("gettxout", unspent[0], 9999) is None


@pytest.mark.parametrize(
    ("params", "code"),
    [(["00" * 32, -1], -1), (["00" * 32, 2**32], -1), (["00" * 32, 1.5], -1), (["zz", 0], -8), (["00" * 32, "0"], -3)],
)
def test_txout_mistakes(connection: Connection, params: list[Any], code: int) -> None:
    assert connection.refusal("gettxout", *params)[0] == code


def test_mempool_info(connection: Connection, served: Served) -> None:
    info = connection.call("getmempoolinfo")
    assert (info["size"], info["maxmempool"]) == (len(served.node.mempool_wtxids()), 300_000_000)


def test_help(connection: Connection) -> None:
    names = [line.split()[0] for line in connection.call("help").splitlines()]
    assert names == sorted(names)
    wanted = (
        "getblocktemplate collecttxs unknowntxpos addmissingtxs maketemplate submitsolution closecollection uptime "
        "stop getbestblockhash getblockcount getmempoolinfo gettxout getblockchaininfo submitblock help"
    )
    assert set(wanted.split()) == set(names)
    for name in names:
        assert connection.call("help", name).startswith(name)
    assert connection.call("help", "nosuch") == "help: unknown command: nosuch\n"


def test_uptime(connection: Connection) -> None:
    assert 0 <= connection.call("uptime") < 3600


def test_template_to_mine(connection: Connection, served: Served, corpus_tip: dict[str, Any]) -> None:
    template = connection.call("getblocktemplate", {"rules": ["segwit"]})
    assert (template["previousblockhash"], template["height"]) == (corpus_tip["hash"], 126)
    assert (template["mintime"], template["bits"]) == (corpus_tip["mtp"] + 1, corpus_tip["bits"])
    assert template["target"] == "7fffff" + "00" * 29
    assert template["coinbasevalue"] == 50 * 10**8 + sum(tx["fee"] for tx in template["transactions"])
    seen: list[str] = []
    for entry in template["transactions"]:
        tx = decode_transaction(bytes.fromhex(entry["data"]))
        assert (to_display(tx.txid), to_display(tx.wtxid), tx.weight) == (entry["txid"], entry["hash"], entry["weight"])
        parents = {to_display(prevout[:32]) for prevout in tx.prevouts} & set(seen)
        assert {seen[number - 1] for number in entry["depends"]} == parents
        seen.append(entry["txid"])


def test_template_as_a_node_made_it(own_node: Callable[..., Any], data: Path) -> None:
    """On the recorded directory of which Core's own template is known, ours has the same transactions with the same
    fees, sigop costs and weights, and the same value for the coinbase."""
    from cluster.gateway.start import start_gateway

    recorded = json.loads((data / "regtest_datadir.info.json").read_text())
    node = own_node("regtest_datadir.tar.gz")
    with start_gateway(node) as gateway:
        client = Served(node, gateway).connect()
        template = client.call("getblocktemplate", {"rules": ["segwit"]})
        client.close()
    assert template["height"] == recorded["height"] + 1
    assert template["coinbasevalue"] == recorded["template"]["coinbasevalue"]
    shown = [{key: tx[key] for key in ("txid", "hash", "fee", "sigops", "weight")} for tx in template["transactions"]]
    expected = [{key: tx[key] for key in shown[0]} for tx in recorded["template"]["txs"]]
    assert sorted(shown, key=lambda tx: tx["txid"]) == sorted(expected, key=lambda tx: tx["txid"])


def test_block_from_declaration_to_solution(serve_own: Callable[..., Served]) -> None:
    """A declared block is made a template, solved, submitted by `submitsolution`; the same one by `submitblock` is a
    duplicate, and the tip is the solved block."""
    served = serve_own()
    client = served.connect()
    made = client.call("getblocktemplate", {"rules": ["segwit"]})
    wtxids = [entry["hash"] for entry in made["transactions"]]
    collection = client.call("collecttxs", wtxids)["collection"]
    verdict = client.call("maketemplate", collection, made["previousblockhash"])
    template = verdict["template"]
    assert template["mintime"] == made["mintime"]
    coinbase = decode_transaction(bytes.fromhex(template["coinbase"]))
    for nonce in range(100):
        solved = client.call(
            "submitsolution",
            collection,
            template["id"],
            0x20000000,
            made["curtime"],
            nonce,
            template["coinbase"],
            False,
        )
        assert (solved["accepted"], solved["reason"]) == (False, None)
        if int(solved["hash"], 16) <= int(made["target"], 16):
            break
    block = decode_block(bytes.fromhex(solved["block"]))
    assert to_display(block.header.hash) == solved["hash"]
    assert block.transactions[0].raw == coinbase.raw
    assert [to_display(tx.wtxid) for tx in block.transactions[1:]] == wtxids
    assert client.call("getblockcount") == 125

    done = client.call(
        "submitsolution", collection, template["id"], 0x20000000, made["curtime"], nonce, template["coinbase"]
    )
    assert (done["accepted"], done["reason"], done["hash"]) == (True, None, solved["hash"])
    assert client.call("getbestblockhash") == solved["hash"]
    assert client.call("submitblock", solved["block"]) == "duplicate"
    stale = client.call("maketemplate", collection, made["previousblockhash"])
    assert (stale["ok"], stale["kind"], stale["template"]) == (False, "stale", None)
    assert from_display(solved["hash"]) == served.node.tip().hash


def test_submitted_blocks_that_are_none_or_bad(connection: Connection, data: Path) -> None:
    assert connection.refusal("submitblock", "00") == (-22, "Block decode failed")
    assert connection.refusal("submitblock", "") == (-22, "Block decode failed")
    assert connection.refusal("submitblock", "zz", "dummy") == (-22, "Block decode failed")
    with gzip.open(data / "corpus" / "proposals.jsonl.gz", "rt") as file:
        cases = [json.loads(line) for line in file]
    bad = next(case["block"] for case in cases if case["par2"] == "bad-txnmrklroot")
    assert connection.call("submitblock", bad) in ("high-hash", "bad-txnmrklroot")
    assert connection.call("getblockcount") == 125
