"""Input that is wrong in every way that a client can think of, through the facade and real actors: each gets Core's
reason or a typed error of one clear line, and the next request is served as if nothing had been.
"""

from collections.abc import Callable, Iterator
from struct import pack
from typing import Any

import psutil
import pytest

from models.errors import ClientError, DecodeError
from tests.actors.blocks import TestBlock, coinbase, mine, on_top, sha256d, spend
from tests.actors.small_chain import HEIGHT, SmallChain
from tests.actors.watching import stats_of

MAX_SIZE = 0x02000000  # Core: serialize.h
NO_INPUTS = bytes.fromhex("02000000000000000000")  # Core reads this as a transaction without inputs and outputs
TOO_MANY = 16_667


@pytest.fixture(scope="module")
def node(module_node: Callable[..., Any]) -> Any:
    return module_node()


@pytest.fixture(autouse=True)
def served_as_before(node: Any, small_chain: SmallChain) -> Iterator[None]:
    """After every test: nothing is left open, and a declaration and a block get their verdicts."""
    yield
    known, late = spend(small_chain.coins[:2]), spend(small_chain.coins[2:3])
    assert sum(stats["open"] for stats in stats_of(node, "collection")) == 0
    with node.collect_txs([known.id, late.id]) as collection:
        assert collection.unknown_tx_pos() == [0, 1]
        assert collection.make_template(small_chain.tip.id, missing=[known.raw, late.raw]).ok
    assert node.check_block(on_top(small_chain.tip, [known]).raw).ok
    assert node.tip_hash() == small_chain.tip.id


def one_line(error: BaseException) -> str:
    text = str(error)
    assert text and "\n" not in text and "Traceback" not in text
    return text


# Blocks -----------------------------------------------------------------------------------------------------------


def hostile_blocks(chain: SmallChain) -> dict[str, bytes]:
    good = on_top(chain.tip, [spend(chain.coins[:1])])
    head, first = good.raw[:80], good.transactions[0].raw
    second = good.transactions[1].raw
    marked = second[:4] + b"\x00\x01" + second[4:-4] + b"\x00" + second[-4:]  # a witness flag, and only empty stacks
    unknown_flag = second[:4] + b"\x00\x02" + second[4:]
    return {
        "nothing": b"",
        "half a header": head[:40],
        "a header alone": head,
        "cut in a transaction": good.raw[:-1],
        "one transaction too few": head + b"\x03" + first + second,
        "more transactions than there can be": head + b"\xfe" + pack("<I", MAX_SIZE) + first,
        "a count above all sizes": head + b"\xfe" + pack("<I", MAX_SIZE + 1) + first,
        "a count of 64 bits": head + b"\xff" + b"\xff" * 8 + first,
        "a count written too long": head + b"\xfd\x02\x00" + first + second,
        "huge count of inputs": head + b"\x01" + first[:4] + b"\xfe" + pack("<I", MAX_SIZE) + first[5:],
        "huge script": head + b"\x01" + first[:41] + b"\xfe" + pack("<I", MAX_SIZE) + first[42:],
        "superfluous witness": head + b"\x02" + first + marked,
        "unknown witness flag": head + b"\x02" + first + unknown_flag,
        "noise": bytes(range(256)) * 4,
    }


def test_what_is_no_block_is_a_decode_error_in_bounded_memory(node: Any, small_chain: SmallChain) -> None:
    pids = [pid for name, pid in node.pids().items() if name.startswith("template")]
    blocks = hostile_blocks(small_chain)
    for ask in (node.check_block, node.submit_block):
        for name, raw in blocks.items():
            with pytest.raises(DecodeError) as refused:
                ask(raw)
            assert one_line(refused.value), name
    before = [psutil.Process(pid).memory_info().rss for pid in pids]
    for _ in range(20):
        for raw in blocks.values():
            with pytest.raises(DecodeError):
                node.check_block(raw)
    after = [psutil.Process(pid).memory_info().rss for pid in pids]
    assert max(now - then for now, then in zip(after, before, strict=True)) < 16 * 2**20


def without_transactions(tip: TestBlock, root: bytes) -> bytes:
    return pack("<i", 0x20000000) + tip.hash + root + pack("<III", tip.time + 600, 0x207FFFFF, 0) + b"\x00"


def test_a_block_without_transactions(node: Any, small_chain: SmallChain) -> None:
    """It decodes; its merkle root is zero, and it is too short for a block."""
    tip = small_chain.tip
    assert node.check_block(without_transactions(tip, b"\x01" * 32)).reason == "bad-txnmrklroot"
    assert node.check_block(without_transactions(tip, bytes(32))).reason == "bad-blk-length"
    assert node.check_block(without_transactions(tip, b"\x01" * 32), check_merkle_root=False).reason == "bad-blk-length"


def test_bytes_after_a_block_are_ignored(node: Any, small_chain: SmallChain) -> None:
    assert node.check_block(on_top(small_chain.tip).raw + b"\xff" * 1000, proposal=True).ok


@pytest.mark.parametrize("block", ["00", 7, None, [1, 2]])
def test_what_is_not_bytes_is_refused(node: Any, block: Any) -> None:
    for ask in (node.check_block, node.submit_block):
        with pytest.raises(ClientError, match="block must be bytes, not "):
            ask(block)


def test_a_proposal_on_an_unknown_block(node: Any) -> None:
    verdict = node.check_block(mine(b"\x31" * 32, HEIGHT + 1, 1_700_000_000).raw, proposal=True)
    assert (verdict.reason, verdict.kind) == ("inconclusive-not-best-prevblk", "ahead")


# Declarations -----------------------------------------------------------------------------------------------------

BAD_IDS = ["", "00", "0" * 63, "0" * 65, "0" * 128, "g" * 64, " " * 64, "0x" + "0" * 62, "0" * 62 + "\n0", "é" * 64]


@pytest.mark.parametrize("bad", BAD_IDS)
def test_a_wtxid_that_is_no_hash(node: Any, small_chain: SmallChain, bad: str) -> None:
    good = spend(small_chain.coins[:1]).id
    for wtxids in ([bad], [good, bad], [bad, good]):
        with pytest.raises(ClientError) as refused:
            node.collect_txs(wtxids)
        assert "wtxid" in one_line(refused.value)


@pytest.mark.parametrize("bad", [None, 5, b"\x00" * 32, ["0" * 64]])
def test_a_wtxid_that_is_no_text(node: Any, bad: Any) -> None:
    with pytest.raises(ClientError) as refused:
        node.collect_txs([bad])
    one_line(refused.value)


def test_too_many_wtxids_are_counted_before_anything_else(node: Any) -> None:
    with pytest.raises(ClientError, match=r"^too many wtxids \(16667 > 16666\)$"):
        node.collect_txs(["no hash"] * TOO_MANY)
    most = [f"{n:064x}" for n in range(1, TOO_MANY)]
    with node.collect_txs(most) as collection:
        assert len(collection.unknown_tx_pos()) == 16_666


def test_a_wtxid_that_is_listed_twice(node: Any, small_chain: SmallChain) -> None:
    first, second = spend(small_chain.coins[:1]).id, spend(small_chain.coins[1:2]).id
    with pytest.raises(ClientError, match=f"^duplicate wtxid {first}$"):
        node.collect_txs([second, first, first, second])
    with pytest.raises(ClientError, match=f"^duplicate wtxid {first}$"):
        node.collect_txs([first, first.upper()])


def test_supplies_that_are_refused_change_nothing(node: Any, small_chain: SmallChain) -> None:
    first, second = spend(small_chain.coins[:1]), spend(small_chain.coins[1:2])
    other = spend(small_chain.coins[2:3])
    cut = "does not decode"
    supplies: list[tuple[list[Any], str]] = [
        ([first.raw, b""], "unexpected null transaction"),
        ([first.raw, other.raw], f"unexpected wtxid {other.id}"),
        ([first.raw, first.raw], f"duplicate wtxid {first.id}"),
        ([first.raw, second.raw, first.raw], "too many transactions (3 > 2)"),
        ([first.raw, second.raw[:-1]], cut),
        ([first.raw, second.raw + b"\x00"], cut),
        ([first.raw, b"\x00"], cut),
        ([first.raw, second.raw[:4] + b"\xff" * 9], cut),
        ([first.raw, second.raw[:4] + b"\xfe" + pack("<I", MAX_SIZE)], cut),
        ([first.raw, NO_INPUTS], f"unexpected wtxid {sha256d(NO_INPUTS)[::-1].hex()}"),
        ([first.raw.hex()], "must be bytes"),
        ([first.raw, None], "must be bytes"),
    ]
    with node.collect_txs([first.id, second.id]) as collection:
        for supply, text in supplies:
            for way in (
                lambda raws: collection.add_missing_txs(raws),
                lambda raws: collection.make_template(small_chain.tip.id, missing=raws),
            ):
                with pytest.raises(ClientError) as refused:
                    way(supply)
                assert text in one_line(refused.value)
                assert collection.unknown_tx_pos() == [0, 1]
        assert collection.wait_prefetched()["observations"] == 0
        assert collection.make_template(small_chain.tip.id, missing=[first.raw, second.raw]).ok


def test_coinbases(node: Any, small_chain: SmallChain) -> None:
    good = coinbase(HEIGHT + 1)
    undecodable = [b"", b"\x00", good.raw[:-1], good.raw + b"\x00", b"\xff" * 100, "00", 7]
    with node.collect_txs([]) as collection:
        for bad in undecodable:
            with pytest.raises(ClientError) as refused:
                collection.make_template(small_chain.tip.id, bad)
            one_line(refused.value)
        assert collection.make_template(small_chain.tip.id, NO_INPUTS).reason == "bad-cb-missing"
        not_one = spend(small_chain.coins[:1])
        assert collection.make_template(small_chain.tip.id, not_one.raw).reason == "bad-cb-missing"
        assert collection.make_template(small_chain.tip.id, coinbase(HEIGHT).raw).reason == "bad-cb-height"
        assert collection.make_template(small_chain.tip.id, good.raw).ok
        assert collection.make_template(small_chain.tip.id, None).ok


def test_a_coinbase_among_the_declared_transactions(node: Any, small_chain: SmallChain) -> None:
    second = coinbase(HEIGHT + 1, tag=b"second")
    with node.collect_txs([second.id]) as collection:
        verdict = collection.make_template(small_chain.tip.id, missing=[second.raw])
        assert (verdict.reason, verdict.offender.position) == ("bad-cb-multiple", 1)


@pytest.mark.parametrize("bad", ["", "00", "0" * 65, "z" * 64, 5, None, b"\x00" * 31])
def test_a_prevhash_that_is_no_hash(node: Any, bad: Any) -> None:
    with node.collect_txs([]) as collection:
        with pytest.raises(ClientError) as refused:
            collection.make_template(bad)
        assert "prevhash" in one_line(refused.value)


def test_a_prevhash_that_nobody_knows(node: Any) -> None:
    with node.collect_txs([]) as collection:
        verdict = collection.make_template("ab" * 32)
        assert (verdict.reason, verdict.kind) == ("inconclusive-not-best-prevblk", "ahead")


@pytest.mark.parametrize("options", [{"script_mode": "Inline"}, {"script_mode": 1}, {"now": "today"}, {"now": -1}])
def test_options_that_mean_nothing(node: Any, small_chain: SmallChain, options: dict[str, Any]) -> None:
    with node.collect_txs([]) as collection:
        for ask in (
            lambda: collection.make_template(small_chain.tip.id, **options),
            lambda: node.check_block(on_top(small_chain.tip).raw, **options),
        ):
            with pytest.raises(ClientError, match=f"^{next(iter(options))} must be"):
                ask()


# Solutions, mempool, coins ------------------------------------------------------------------------------------------


def test_solutions(node: Any, small_chain: SmallChain) -> None:
    with node.collect_txs([]) as collection:
        template = collection.make_template(small_chain.tip.id).template
        for bad in (b"", b"\x01", coinbase(HEIGHT + 1).raw + b"\x00"):
            with pytest.raises(ClientError) as refused:
                template.submit_solution(0x20000000, small_chain.tip.time + 600, 0, bad)
            one_line(refused.value)
        for version, time, nonce in ((2**40, 1, 1), (1, 2**32, 1), (1, 1, -1), (1, 1, 2**32)):
            with pytest.raises(ClientError) as refused:
                template.submit_solution(version, time, nonce, coinbase(HEIGHT + 1).raw)
            one_line(refused.value)
        solved = template.submit_solution(0x20000000, small_chain.tip.time + 600, 0, coinbase(HEIGHT + 1).raw)
        assert node.check_block(solved).ok


def test_mempool_and_coins(node: Any, small_chain: SmallChain) -> None:
    calls: list[Callable[[], Any]] = [
        lambda: node.mempool_add([b"\x00"]),
        lambda: node.mempool_add([coinbase(5).raw]),
        lambda: node.mempool_add([NO_INPUTS]),
        lambda: node.mempool_add(["00"]),
        lambda: node.mempool_remove("ab" * 32),
        lambda: node.mempool_remove("ab"),
        lambda: node.transactions(["ab"]),
        lambda: node.coins([("ab", 0)]),
        lambda: node.coins([("ab" * 32, -1)]),
        lambda: node.coins([("ab" * 32, 2**32)]),
    ]
    for call in calls:
        with pytest.raises(ClientError) as refused:
            call()
        one_line(refused.value)
    assert node.mempool_wtxids() == []
    assert node.coins([("ab" * 32, 2**32 - 1), (small_chain.coins[0].txid[::-1].hex(), 0)])[0] is None
