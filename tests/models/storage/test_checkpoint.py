"""Checkpoints: the source stays as it is, a torn attempt is thrown away, and a busy writer is never in the way."""

import errno
import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from models.coins.coin import Coin
from models.errors import StoreError
from models.storage.checkpoint import checkpoint
from models.storage.coinsdb import CoinsOwner, open_leveldb
from models.storage.levelfiles import table_names
from tests.models.storage.busy_writer import check_consistent

OUTPOINT = bytes(36)
COIN = Coin(1, 1, False, b"\x51")
BEST = bytes(range(32))


def digest_of(directory: Path) -> dict[str, str]:
    """Every file below a directory with the hash of its bytes."""
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


@pytest.fixture
def source(datadir: Callable[[str], Path]) -> Path:
    return datadir("corpus/regtest_datadir.tar.gz") / "regtest" / "chainstate"


def test_the_source_stays_byte_for_byte(source: Path, tmp_path: Path) -> None:
    before = digest_of(source)
    result = checkpoint(source, tmp_path / "copy")
    assert (result.linked, result.copied, result.attempts, result.copied_because) == (3, 0, 1, None)
    with CoinsOwner(tmp_path / "copy") as owner:  # recovers, writes, and compacts its own files only
        owner.apply([], [(OUTPOINT, COIN)], BEST)
        owner._db.compact_range()
    assert digest_of(source) == before


def test_nothing_but_the_database_is_in_the_copy(source: Path, tmp_path: Path) -> None:
    checkpoint(source, tmp_path / "copy")
    assert digest_of(tmp_path / "copy") == {k: v for k, v in digest_of(source).items() if k not in ("LOCK", "LOG")}


def quiet_digest_of(directory: Path) -> dict[str, str]:
    """Once the holder's background thread has written down, in LOG, what its compaction removed."""
    before: dict[str, str] = {}
    while (now := digest_of(directory)) != before:
        before = now
        time.sleep(0.3)
    return before


def test_a_source_held_open_by_another_process(source: Path, tmp_path: Path) -> None:
    copy = tmp_path / "held"
    checkpoint(source, copy)
    program = f"""
import plyvel, sys
db = plyvel.DB({str(copy)!r}, compression=None)
db.compact_range()  # so that nothing is left to do in the background
print("open", flush=True)
sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "open\n"
        before = quiet_digest_of(copy)
        checkpoint(copy, tmp_path / "copy")
        assert digest_of(copy) == before
        holder.communicate()
    with CoinsOwner(copy) as held, CoinsOwner(tmp_path / "copy") as copied:
        assert copied.utxo_stats() == held.utxo_stats()


@pytest.mark.parametrize("stage", ["noted", "copied", "linked"])
def test_an_attempt_during_which_the_log_changed_is_refused(tmp_path: Path, stage: str) -> None:
    with CoinsOwner(tmp_path / "db", create=True) as owner:
        owner.apply([], [(OUTPOINT, COIN)], BEST)
    changed = []

    def change_log(now: str) -> None:
        if now == stage and not changed:
            changed.append(now)
            db = open_leveldb(tmp_path / "db")
            db.compact_range()
            db.close()

    result = checkpoint(tmp_path / "db", tmp_path / "copy", gate=change_log)
    assert result.attempts == 2
    with CoinsOwner(tmp_path / "copy") as copied:
        assert dict(copied.iterate()) == {OUTPOINT: COIN}


def test_a_table_that_the_manifest_does_not_name_is_no_link_in_the_copy(source: Path, tmp_path: Path) -> None:
    unfinished = b"a table that the node is still writing"
    held = tmp_path / "held"
    checkpoint(source, held)
    (held / "000013.ldb").write_bytes(unfinished)  # the number that recovery of the copy would take next
    result = checkpoint(held, tmp_path / "copy")
    assert result.linked == 3
    assert "000013.ldb" not in table_names(tmp_path / "copy")
    with CoinsOwner(tmp_path / "copy") as owner:
        owner.apply([], [(OUTPOINT, COIN)], BEST)
        owner._db.compact_range()
    assert (held / "000013.ldb").read_bytes() == unfinished


@pytest.mark.parametrize("number", [errno.EXDEV, errno.EPERM])
def test_where_links_are_impossible_tables_are_copied(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", refuse)
    result = checkpoint(source, tmp_path / "copy")
    assert (result.linked, result.copied) == (0, 3)
    assert result.copied_because is not None
    assert os.strerror(number) in result.copied_because
    assert result.bytes == sum(path.stat().st_size for path in (tmp_path / "copy").iterdir())


def test_an_error_leaves_no_target(source: Path, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="exists already"):
        checkpoint(source, tmp_path)
    with pytest.raises(StoreError, match="CURRENT"):
        checkpoint(tmp_path, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_a_source_that_lost_a_table_is_refused(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("models.storage.checkpoint.MAX_ATTEMPTS", 2)
    checkpoint(source, tmp_path / "held")
    (tmp_path / "held" / "000008.ldb").unlink()
    with pytest.raises(StoreError, match="000008"):
        checkpoint(tmp_path / "held", tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


CHECKPOINTS = int(os.environ.get("TXC_CHECKPOINTS", "15"))


def test_checkpoints_of_a_busy_writer_are_consistent(busy_writer, tmp_path: Path) -> None:
    generations, attempts = [], []
    for i in range(CHECKPOINTS):
        result = checkpoint(busy_writer.path, tmp_path / f"copy{i}")
        attempts.append(result.attempts)
        with CoinsOwner(tmp_path / f"copy{i}") as owner:
            generations.append(check_consistent(owner.best_block, owner.has))
            owner._db.compact_range()  # writes what recovery would write, through no link of ours
    last = busy_writer.stop()
    assert generations == sorted(generations)
    with CoinsOwner(busy_writer.path) as owner:
        assert check_consistent(owner.best_block, owner.has) == last
        owner.utxo_stats()  # every block of every table, with its checksum
    print(f"{CHECKPOINTS} checkpoints, attempts {min(attempts)}-{max(attempts)}, generations {generations[0]}-{last}")
