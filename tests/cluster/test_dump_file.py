"""Dump files: what is written is read again, and whatever else the bytes are, they are refused with a named error."""

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cluster.cli_app import run
from models.coins.coin import Coin
from models.consensus.coinbase import dummy_coinbase
from models.consensus.context import BlockContext, Tip, TipVersion
from models.consensus.verdict import Kind, Verdict
from models.dump import Dump, replay
from models.dumpfile import DumpDirectory, decode_dump, encode_dump, read_dump
from models.errors import DecodeError, TxCollectionError
from models.script.verify import ALL_FLAGS
from models.wire.hashes import ZERO_HASH
from models.wire.merkle import merkle_root
from models.wire.transaction import decode_transaction
from tests.fakechain import spend_coin

OUTPOINT = bytes(range(36))
TIP = b"\x07" * 32
HEIGHT = 500
NOW = 1_700_000_000


def _context() -> BlockContext:
    times = np.arange(HEIGHT, dtype=np.uint32) * 600 + 1_600_000_000
    return BlockContext(
        tip=Tip(TIP, HEIGHT - 1, TipVersion(3, 9)),
        network="regtest",
        height=HEIGHT,
        median_time_past=int(times[-6]),
        prev_time=int(times[-1]),
        bits=0x207FFFFF,
        min_difficulty_after=None,
        pow_limit_bits=0x207FFFFF,
        timewarp_minimum=None,
        min_version=4,
        bip34=True,
        csv=True,
        segwit=True,
        bip30=True,
        subsidy=625_000_000,
        script_flags=ALL_FLAGS,
        script_flag_exceptions={b"\x01" * 32: 0},
        bip30_exception=None,
        template_version=0x20000000,
        interval=144,
        signet_challenge=None,
        times=times,
    )


def _dump(value: int = 5000, height: int = 100, coinbase: bytes | None = None) -> Dump:
    """A block with one transaction; valid, unless the coin or the coinbase is made to be wrong."""
    tx = spend_coin(OUTPOINT, 5000, fee=1000)
    context = _context()
    root, _ = merkle_root([ZERO_HASH, tx.wtxid])
    return Dump(
        created=NOW,
        wtxids=[tx.wtxid],
        transactions=[tx.raw],
        coinbase=dummy_coinbase(context, root) if coinbase is None else coinbase,
        prevhash=TIP,
        context=context,
        coins={OUTPOINT: Coin(value, height, False, b"\x51")},
        probes=b"\x01",
        coinbase_exists=False,
        mode="deferred",
        now=NOW,
        verdict=Verdict(Kind.VALID),
    )


def _same(one: Dump, other: Dump) -> bool:
    def plain(dump: Dump) -> dict[str, Any]:
        fields = {f.name: getattr(dump, f.name) for f in dataclasses.fields(dump)}
        context = fields.pop("context")
        return fields | {f.name: getattr(context, f.name) for f in dataclasses.fields(context) if f.name != "times"}

    return plain(one) == plain(other)


def _payload(dump: Dump) -> dict[str, Any]:
    return msgpack.unpackb(encode_dump(dump)[40:])


def _file_of(payload: Any) -> bytes:
    packed = msgpack.packb(payload)
    return b"TXCDUMP1" + hashlib.sha256(packed).digest() + packed


def test_what_is_written_is_read_again() -> None:
    dump = dataclasses.replace(_dump(), coins={OUTPOINT: Coin(5000, 100, True, b"\x51"), b"\xff" * 36: None})
    assert _same(decode_dump(encode_dump(dump)), dump)


def test_times_that_locks_look_at_are_kept() -> None:
    dump = _dump(height=100)
    times = decode_dump(encode_dump(dump)).context.times
    expected = dump.context.times
    kept = [*range(89, 100), *range(HEIGHT - 11, HEIGHT)]  # eleven before the coin's block, eleven before ours
    assert (times[kept] == expected[kept]).all()
    assert np.count_nonzero(times) == 22


def test_a_valid_block() -> None:
    assert replay(_dump()).ok


def test_a_coin_that_is_absent() -> None:
    verdict = replay(dataclasses.replace(_dump(), coins={OUTPOINT: None}))
    assert (verdict.reason, verdict.offender and verdict.offender.input) == ("bad-txns-inputs-missingorspent", 0)


def test_a_coin_with_too_little() -> None:
    assert replay(_dump(value=3999)).reason == "bad-txns-in-belowout"


def test_a_coinbase_that_exists_already() -> None:
    verdict = replay(dataclasses.replace(_dump(), coinbase_exists=True))
    assert (verdict.reason, verdict.offender and verdict.offender.position) == ("bad-txns-BIP30", 0)


def test_a_transaction_that_exists_already() -> None:
    verdict = replay(dataclasses.replace(_dump(), probes=b"\x02"))
    assert (verdict.reason, verdict.offender and verdict.offender.position) == ("bad-txns-BIP30", 1)


def test_a_script_that_fails() -> None:
    dump = dataclasses.replace(_dump(), coins={OUTPOINT: Coin(5000, 100, False, b"\x00")})
    assert replay(dump).reason == "block-script-verify-flag-failed"


def test_a_coin_that_the_dump_does_not_hold() -> None:
    with pytest.raises(DecodeError, match="does not hold coin 1f1e1d1c.*:.* which is asked for"):
        replay(dataclasses.replace(_dump(), coins={}))


# Files ----------------------------------------------------------------------------------------------------------------


def test_only_the_last_files_are_kept(tmp_path: Path) -> None:
    directory = DumpDirectory(tmp_path / "dumps", keep=3)
    written = [directory.write(_dump(value=5000 + number)) for number in range(5)]
    assert sorted((tmp_path / "dumps").iterdir()) == sorted(written)[-3:]


def test_files_are_for_their_owner_only(tmp_path: Path) -> None:
    path = DumpDirectory(tmp_path / "dumps", keep=3).write(_dump())
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)


def test_names_say_the_reason(tmp_path: Path) -> None:
    verdict = Verdict(Kind.INVALID, "bad-version(0x00000001)", "x")
    path = DumpDirectory(tmp_path, keep=3).write(dataclasses.replace(_dump(), verdict=verdict))
    assert "-bad-version-0x00000001-" in path.name


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DecodeError, match="cannot read .*none: No such file"):
        read_dump(tmp_path / "none")


def test_every_cut_is_refused() -> None:
    whole = encode_dump(_dump())
    for length in range(len(whole)):
        with pytest.raises(DecodeError):
            decode_dump(whole[:length])


def test_every_flipped_byte_is_refused() -> None:
    whole = encode_dump(_dump())
    for at in range(len(whole)):
        with pytest.raises(DecodeError):
            decode_dump(whole[:at] + bytes((whole[at] ^ 0x20,)) + whole[at + 1 :])


def test_another_version() -> None:
    whole = encode_dump(_dump())
    with pytest.raises(DecodeError, match="version '2'; version 1 is known"):
        decode_dump(whole.replace(b"TXCDUMP1", b"TXCDUMP2", 1))


WRONG: list[tuple[str, Any, str]] = [
    ("wtxids", b"\0" * 33, "not 32 for each"),
    ("wtxids", b"\0" * 32, "another one than its wtxid"),
    ("transactions", [], "0 transactions for 1 wtxids"),
    ("transactions", [b"\x01"], "transaction 0: end of data"),
    ("coinbase", b"", "coinbase: end of data"),
    ("coinbase", None, "coinbase is not bytes"),
    ("prevhash", b"\0" * 32, "prevhash is not the tip"),
    ("probes", b"\x03", "probes hold another state"),
    ("probes", b"", "probes is not 1 bytes"),
    ("coinbase_exists", 1, "neither true nor false"),
    ("mode", "fast", "neither deferred nor inline"),
    ("now", -1, "now is '-1', not a whole number"),
    ("now", True, "now is 'True'"),
    ("now", 1.5, "now is '1.5'"),
    ("coins", [[OUTPOINT], [OUTPOINT]], "coin 1 stands twice"),
    ("coins", [[OUTPOINT, 1, HEIGHT, False, b""]], "coin 0's height is '500'"),
    ("coins", [[OUTPOINT, 1, 2]], "coin 0 has 3 fields"),
    ("coins", [[OUTPOINT[:35]]], "outpoint is not 36 bytes"),
    ("verdict", {}, "verdict lacks"),
    ("created", "now", "created is 'now'"),
]


@pytest.mark.parametrize(("field", "value", "says"), WRONG, ids=[f"{f}-{i}" for i, (f, _, _) in enumerate(WRONG)])
def test_a_field_that_is_wrong(field: str, value: Any, says: str) -> None:
    with pytest.raises(DecodeError, match=says):
        decode_dump(_file_of(_payload(_dump()) | {field: value}))


WRONG_CONTEXT: list[tuple[str, Any, str]] = [
    ("height", 2**31, "height is '2147483648'"),
    ("tip", [TIP, 3, 1, 1], "the tip's height is '3'"),
    ("tip", [TIP], "tip has not four fields"),
    ("network", "mainnet", "none that is known"),
    ("script_flags", 2, "hold a bit that is not known"),
    ("script_flag_exceptions", [[b"", 0]], "hash is not 32 bytes"),
    ("times", [b"\0\0\0\0", b""], "not of the same number"),
    ("times", [b"\xff\0\0\0\xff\xff\xff\0", bytes(8)], "a time is of height 16777215"),
    ("interval", 0, "interval is '0'"),
    ("bip34", None, "bip34 is neither"),
]


@pytest.mark.parametrize(
    ("field", "value", "says"), WRONG_CONTEXT, ids=[f"{f}-{i}" for i, (f, _, _) in enumerate(WRONG_CONTEXT)]
)
def test_a_context_that_is_wrong(field: str, value: Any, says: str) -> None:
    payload = _payload(_dump())
    payload["context"][field] = value
    with pytest.raises(DecodeError, match=says):
        decode_dump(_file_of(payload))


def test_a_key_too_many() -> None:
    with pytest.raises(DecodeError, match="lacks, or should not have, surprise"):
        decode_dump(_file_of(_payload(_dump()) | {"surprise": 1}))


def test_a_key_that_stands_twice() -> None:
    packed = b"\x82\xa1a\x01\xa1a\x02"
    with pytest.raises(DecodeError, match="a key twice"):
        decode_dump(b"TXCDUMP1" + hashlib.sha256(packed).digest() + packed)


# Any bytes ------------------------------------------------------------------------------------------------------------


def _read(data: bytes) -> None:
    """A value or a named error, and the same for judging it."""
    try:
        dump = decode_dump(data)
    except DecodeError:
        return
    try:
        replay(dump)
    except TxCollectionError:
        return


@given(st.binary(max_size=400))
def test_any_bytes(data: bytes) -> None:
    _read(data)


@given(st.binary(max_size=400))
def test_any_payload_with_its_checksum(payload: bytes) -> None:
    _read(b"TXCDUMP1" + hashlib.sha256(payload).digest() + payload)


VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.binary(max_size=80)
    | st.text(max_size=20)
    | st.sampled_from([OUTPOINT, TIP, bytes(4), 0, 1, 499, 500, 2**31, 2**32 - 1]),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@settings(suppress_health_check=[HealthCheck.too_slow], max_examples=300)
@given(st.data())
def test_any_value_in_any_field(data: st.DataObject) -> None:
    payload = _payload(_dump())
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.sampled_from([payload, payload["context"], payload["verdict"]]))
        if isinstance(place, dict) and place:
            place[data.draw(st.sampled_from(sorted(place)))] = data.draw(VALUES)
    _read(_file_of(payload))


@settings(max_examples=300)
@given(st.integers(0, 10_000), st.binary(min_size=1, max_size=4))
def test_any_change_inside_with_its_checksum(at: int, change: bytes) -> None:
    payload = encode_dump(_dump())[40:]
    at %= len(payload)
    payload = payload[:at] + change + payload[at + len(change) :]
    _read(b"TXCDUMP1" + hashlib.sha256(payload).digest() + payload)


# The command ----------------------------------------------------------------------------------------------------------


def _written(tmp_path: Path, dump: Dump) -> str:
    return str(DumpDirectory(tmp_path / "dumps", keep=9).write(dump))


def _with_its_verdict(dump: Dump) -> Dump:
    return dataclasses.replace(dump, verdict=replay(dump))


def test_replay_of_a_valid_block(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["replay", _written(tmp_path, _dump())]) == 0
    assert capsys.readouterr().out.startswith("valid\n")


def test_replay_of_an_invalid_block(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = _written(tmp_path, _with_its_verdict(_dump(value=3999)))
    assert run(["replay", path, "--json"]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert (answer["reason"], answer["same"]) == ("bad-txns-in-belowout", True)
    assert answer["offender"]["txid"] == decode_transaction(_dump().transactions[0]).txid[::-1].hex()


def test_replay_that_gives_another_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorded = Verdict(Kind.INVALID, "bad-cb-amount", "coinbase pays too much")
    assert run(["replay", _written(tmp_path, dataclasses.replace(_dump(), verdict=recorded))]) == 2
    assert "the recorded verdict is another: invalid bad-cb-amount coinbase pays too much" in capsys.readouterr().err


def test_replay_of_something_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("hello")
    assert run(["replay", str(tmp_path / "file")]) == 2
    assert "this is no dump of a declaration" in capsys.readouterr().err
