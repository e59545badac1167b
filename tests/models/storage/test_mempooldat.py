"""mempool.dat: what Core dumped, both versions, and a file cut at every place."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from models.errors import StoreError
from models.storage.blockfiles import xor_at
from models.storage.mempooldat import MempoolEntry, check_version, read_mempool, write_mempool
from models.wire.hashes import to_display
from models.wire.transaction import decode_transaction

HEAD = 17  # bytes of a version 2 file before the payload: version, key length, key


def as_version_1(path: Path) -> bytes:
    """A version 2 file rewritten by the layout of SPEC 3.3."""
    stored = path.read_bytes()
    return (1).to_bytes(8, "little") + xor_at(stored[HEAD:], stored[9:HEAD], HEAD)


def wtxids(path: Path) -> list[str]:
    return [to_display(decode_transaction(entry.raw).wtxid) for entry in read_mempool(path).entries]


def test_a_recorded_dump(data: Path, datadir: Callable[[str], Path]) -> None:
    tip = json.loads((data / "corpus/tip.json").read_text())
    path = datadir("corpus/regtest_datadir.tar.gz") / "regtest/mempool.dat"
    assert sorted(wtxids(path)) == sorted(tip["mempool_wtxids"])
    dump = read_mempool(path)
    assert (dump.version, dump.truncated, dump.warnings) == (2, None, [])
    assert all(1_700_000_000 < entry.time < 1_800_000_000 for entry in dump.entries)


def test_another_recorded_dump(data: Path, datadir: Callable[[str], Path]) -> None:
    info = json.loads((data / "regtest_datadir.info.json").read_text())
    path = datadir("regtest_datadir.tar.gz") / "regtest/mempool.dat"
    assert sorted(wtxids(path)) == sorted(entry["wtxid"] for entry in info["mempool"].values())


def test_version_1_holds_the_same(datadir: Callable[[str], Path], tmp_path: Path) -> None:
    path = datadir("corpus/regtest_datadir.tar.gz") / "regtest/mempool.dat"
    (tmp_path / "mempool.dat").write_bytes(as_version_1(path))
    old, new = read_mempool(tmp_path / "mempool.dat"), read_mempool(path)
    assert old.version == 1
    assert (old.entries, old.fee_deltas, old.unbroadcast) == (new.entries, new.fee_deltas, new.unbroadcast)
    assert old.truncated is None


@pytest.mark.parametrize("version", [1, 2])
def test_a_file_cut_anywhere_keeps_what_was_whole(datadir: Callable[[str], Path], tmp_path: Path, version: int) -> None:
    whole = read_mempool(datadir("corpus/regtest_datadir.tar.gz") / "regtest/mempool.dat").entries
    small = [entry for entry in whole if len(entry.raw) < 400][:3]
    path = tmp_path / "mempool.dat"
    write_mempool(path, small)
    if version == 1:
        path.write_bytes(as_version_1(path))
    stored = path.read_bytes()
    ends = []
    position = (8 if version == 1 else HEAD) + 8
    for entry in small:
        position += len(entry.raw) + 16
        ends.append(position)
    for size in range(len(stored)):
        path.write_bytes(stored[:size])
        dump = read_mempool(path)
        assert dump.entries == small[: sum(end <= size for end in ends)]
        assert dump.truncated is not None
        assert dump.truncated <= size
        assert "ends early" in dump.warnings[0]


def test_written_is_read_back(tmp_path: Path, datadir: Callable[[str], Path]) -> None:
    entries = read_mempool(datadir("regtest_datadir.tar.gz") / "regtest/mempool.dat").entries
    changed = [MempoolEntry(entry.raw, entry.time, -5) for entry in entries]
    write_mempool(tmp_path / "mempool.dat", changed)
    dump = read_mempool(tmp_path / "mempool.dat")
    assert (dump.entries, dump.truncated) == (changed, None)
    assert [path.name for path in tmp_path.iterdir()] == ["mempool.dat"]


def test_an_unknown_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mempool.dat"
    path.write_bytes((3).to_bytes(8, "little") + bytes(20))
    for act in (read_mempool, check_version):
        with pytest.raises(StoreError, match="version 3"):
            act(path)


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"cannot read .*mempool\.dat"):
        read_mempool(tmp_path / "mempool.dat")


def test_garbage_keeps_what_was_whole(datadir: Callable[[str], Path], tmp_path: Path) -> None:
    path = tmp_path / "mempool.dat"
    entries = read_mempool(datadir("regtest_datadir.tar.gz") / "regtest/mempool.dat").entries[:3]
    write_mempool(path, entries)
    plain = bytearray(as_version_1(path))
    at = 16 + len(entries[0].raw) + 16
    plain[at : at + 60] = b"\xff" * 60
    path.write_bytes(plain)
    dump = read_mempool(path)
    assert dump.entries == entries[:1]
    assert dump.truncated is not None
    assert at <= dump.truncated
