"""`verify_store`: of a good store there is nothing to say; a flipped byte, a cut or a missing file is named, whichever
file it is in. Stores are small and of our own, with tables, a log, a branch, bodies and undo data."""

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from cluster.cli_app import run
from models.chain import Chain
from models.errors import StoreError
from models.storage.levelcheck import check_log, check_table, crc32c, crc32c_many, read_state, table_path
from models.storage.mempooldat import MempoolEntry, write_mempool
from models.storage.store import Store
from models.storage.verify import Finding, Severity, Verified, verify_store
from models.wire.block import decode_block
from tests.actors.blocks import TestBlock as Block
from tests.actors.blocks import on_top, spend
from tests.fakechain import GENESIS

SEED = 20261202
USED_HEADERS = 128 + 111 * 128  # bytes; behind the last record there is room, and nothing else


def _genesis() -> Block:
    block = decode_block(GENESIS)
    return Block(GENESIS, 0, block.header.time, ())


@pytest.fixture(scope="session")
def made_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """105 blocks, the last with a spend; opened several times, so that there are tables and a log; a branch of one."""
    path = tmp_path_factory.mktemp("verify") / "store"
    Store.create_genesis("regtest", path)
    parent, first = _genesis(), None
    for part in range(5):
        with Store.open(path) as store:
            chain = Chain(store, store.params)
            for number in range(21):
                spends = []
                if part == 4 and number == 20 and first is not None:
                    spends = [spend([first], fee=500)]
                block = on_top(parent, spends)
                first = first or block.transactions[0].coin()
                chain.store_block(decode_block(block.raw))
                chain.connect(block.hash, chain.tip.version)
                if number == 20:
                    chain.store_block(decode_block(on_top(parent, tag=b"branch").raw))
                parent = block
    write_mempool(path / "mempool.dat", [MempoolEntry(spend([first]).raw, 1, 0)])
    return path


@pytest.fixture
def store(made_store: Path, tmp_path: Path) -> Path:
    """A copy to be damaged."""
    shutil.copytree(made_store, tmp_path / "store")
    return tmp_path / "store"


def check(path: Path) -> tuple[list[Finding], Verified]:
    reports = list(verify_store(path))
    assert isinstance(reports[-1], Verified)
    return [report for report in reports if isinstance(report, Finding)], reports[-1]


def flip(file: Path, at: int, mask: int = 0x10) -> None:
    data = bytearray(file.read_bytes())
    data[at] ^= mask
    file.write_bytes(data)


def the_only(directory: Path, pattern: str) -> Path:
    return sorted(directory.glob(pattern))[-1]


FILES: dict[str, Callable[[Path], Path]] = {
    "table": lambda store: the_only(store / "chainstate", "*.ldb"),
    "manifest": lambda store: the_only(store / "chainstate", "MANIFEST-*"),
    "current": lambda store: store / "chainstate" / "CURRENT",
    "log": lambda store: the_only(store / "chainstate", "*.log"),
    "headers": lambda store: store / "index" / "headers.bin",
    "active": lambda store: store / "index" / "active.bin",
    "body": lambda store: the_only(store / "index" / "blocks", "*.blk"),
    "undo": lambda store: the_only(store / "index" / "undo", "*.undo"),
    "info": lambda store: store / "store.json",
}


# A good store ---------------------------------------------------------------------------------------------------------


def test_a_good_store(store: Path) -> None:
    findings, verified = check(store)
    with Store.open(store) as opened:
        stats = opened.coins.utxo_stats()
    assert findings == []
    assert (verified.network, verified.height, verified.headers) == ("regtest", 105, 111)
    assert verified.utxo == stats
    assert verified.blocks == 111  # genesis, 105 and five branches
    assert not verified.running


def test_it_has_what_is_to_be_damaged(store: Path) -> None:
    assert all(find(store).is_file() and find(store).stat().st_size for find in FILES.values())
    assert len(read_state(store / "chainstate").tables) >= 1


def test_a_store_of_cores_data(tmp_path: Path, datadir: Callable[[str], Path]) -> None:
    Store.create_from_datadir(datadir("corpus/regtest_datadir.tar.gz"), tmp_path / "store")
    findings, verified = check(tmp_path / "store")
    assert findings == []
    assert verified.blocks >= 100


def test_a_store_from_a_snapshot_without_headers(tmp_path: Path, datadir: Callable[[str], Path]) -> None:
    Store.create_from_snapshot(datadir("regtest_datadir.tar.gz") / "regtest" / "utxo.dat", tmp_path / "store")
    findings, verified = check(tmp_path / "store")
    assert [finding.severity for finding in findings] == [Severity.WARNING]
    assert verified.utxo is not None
    # Core's gettxoutsetinfo, in regtest_datadir.info.json
    assert verified.utxo.hash_serialized_3 == "2ef3f7fe56f0f61604a3f4b23a5bb4986d3930cf5cc7fafff794745d007feaa1"


def test_beside_a_process_that_has_it_open(store: Path) -> None:
    with Store.open(store) as opened:
        findings, verified = check(store)
        assert findings == []
        assert verified.running
        assert verified.utxo == opened.coins.utxo_stats()


def test_nothing_is_left_or_changed(store: Path) -> None:
    before = {file: file.read_bytes() for file in store.rglob("*") if file.is_file()}
    check(store)
    assert {file: file.read_bytes() for file in store.rglob("*") if file.is_file()} == before


def test_no_store(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no store in"):
        list(verify_store(tmp_path / "none"))


# Damage ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", FILES)
def test_flipped_bytes(store: Path, kind: str) -> None:
    dice = random.Random(SEED)
    file = FILES[kind](store)
    whole = file.read_bytes()
    size = min(len(whole), USED_HEADERS) if kind == "headers" else len(whole)
    for _ in range(6):
        at = dice.randrange(size)
        if kind == "headers" and at >= 128 and 104 <= (at - 128) % 128 < 112:
            continue  # status and count: see below
        flip(file, at, 1 << dice.randrange(8))
        findings, _ = check(store)
        assert file in [finding.file for finding in findings], at
        file.write_bytes(whole)


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize("share", [0.0, 0.5, 0.999])
def test_truncated(store: Path, kind: str, share: float) -> None:
    file = FILES[kind](store)
    size = USED_HEADERS if kind == "headers" else file.stat().st_size
    file.write_bytes(file.read_bytes()[: int(size * share)])
    findings, _ = check(store)
    assert file in [finding.file for finding in findings]


@pytest.mark.parametrize("kind", FILES)
def test_missing(store: Path, kind: str) -> None:
    file = FILES[kind](store)
    if kind in ("body", "undo"):  # that of the tip's parent: the last by name may be of a branch
        with Store.open(store, write=False) as opened:
            name = opened.headers.hash(opened.headers.active(104))[::-1].hex()
        file = file.with_name(f"{name}{file.suffix}")
    file.unlink()
    findings, verified = check(store)
    assert file in [finding.file for finding in findings]
    assert all(finding.advice for finding in findings)
    assert (verified.utxo is None) == (kind in ("table", "manifest", "current", "log"))


def test_every_byte_of_a_header(store: Path) -> None:
    """Of the last connected header everything counts."""
    file = FILES["headers"](store)
    whole = file.read_bytes()
    with Store.open(store, write=False) as opened:
        tip = opened.headers.tip
    unnoticed = []
    for at in (*range(0, 104, 5), *range(104, 112), *range(112, 128, 3)):
        flip(file, 128 + 128 * tip + at, 0x01)
        findings, _ = check(store)
        if not findings:
            unnoticed.append(at)
        file.write_bytes(whole)
    assert unnoticed == []


def test_a_chain_of_valid_files_that_do_not_belong_together(store: Path) -> None:
    shutil.rmtree(store / "chainstate")
    Store.create_genesis("regtest", store.parent / "other")
    shutil.move(store.parent / "other" / "chainstate", store / "chainstate")
    findings, _ = check(store)
    assert [finding.file for finding in findings] == [FILES["log"](store)]
    assert "the coins are those of block 0f9188f1" in findings[0].what


def test_an_active_chain_that_a_crash_left_behind(store: Path) -> None:
    file = FILES["active"](store)
    file.write_bytes(file.read_bytes()[:-4])
    findings, _ = check(store)
    assert [finding.file for finding in findings] == [file]
    with Store.open(store) as opened:
        assert opened.headers.tip_height == 105
    assert check(store)[0] == []


def test_a_body_under_another_name(store: Path) -> None:
    one, other = sorted((store / "index" / "blocks").glob("*.blk"))[:2]
    shutil.copyfile(one, other)
    findings, _ = check(store)
    assert (findings[0].file, findings[0].what) == (other, "it holds another block than its name says")


def test_undo_data_of_another_block(store: Path) -> None:
    with Store.open(store, write=False) as opened:
        tip, below = (opened.headers.hash(opened.headers.active(height))[::-1].hex() for height in (105, 104))
    undo = store / "index" / "undo"
    shutil.copyfile(undo / f"{below}.undo", undo / f"{tip}.undo")  # with a good checksum
    findings, _ = check(store)
    assert [finding.file for finding in findings] == [undo / f"{tip}.undo"]


def test_a_mempool_that_ends_early_is_a_warning(store: Path) -> None:
    file = store / "mempool.dat"
    file.write_bytes(file.read_bytes()[:-30])
    findings, _ = check(store)
    assert [(finding.file, finding.severity) for finding in findings] == [(file, Severity.WARNING)]


# LevelDB's files ------------------------------------------------------------------------------------------------------


def test_crc32c_of_published_vectors() -> None:
    # RFC 3720, B.4, and the check value of the CRC catalogue
    assert crc32c(bytes(32)) == 0x8A9136AA
    assert crc32c(b"\xff" * 32) == 0x62A8AB43
    assert crc32c(bytes(range(32))) == 0x46DD794E
    assert crc32c(bytes(range(31, -1, -1))) == 0x113FDB5C
    assert crc32c(b"123456789") == 0xE3069283


def test_crc32c_of_many_pieces_at_once() -> None:
    data = random.Random(SEED).randbytes(5000)
    lengths = [4, 5, 255, 256, 257, 511, 512, 513, 1000, 2000]
    starts = [7 * number for number in range(len(lengths))]
    singly = [crc32c(data[start : start + length]) for start, length in zip(starts, lengths, strict=True)]
    assert crc32c_many(data, starts, lengths).tolist() == singly


def test_every_byte_of_a_table_counts(store: Path) -> None:
    directory = store / "chainstate"
    number, size = min(read_state(directory).tables.items(), key=lambda item: item[1])
    file = table_path(directory, number)
    whole = file.read_bytes()
    check_table(file, size)
    for at in range(0, size, 3):
        file.write_bytes(whole[:at] + bytes((whole[at] ^ 0x40,)) + whole[at + 1 :])
        with pytest.raises(StoreError, match=file.name):
            check_table(file, size)


def test_every_byte_of_a_log_counts(store: Path) -> None:
    file = FILES["log"](store)
    whole = file.read_bytes()
    assert check_log(file)
    for at in range(0, len(whole), 11):
        file.write_bytes(whole[:at] + bytes((whole[at] ^ 0x40,)) + whole[at + 1 :])
        with pytest.raises(StoreError, match=file.name):
            check_log(file)


def test_a_log_that_is_being_written_may_end_early(store: Path) -> None:
    file = FILES["log"](store)
    file.write_bytes(file.read_bytes()[:-5])
    records = check_log(file, may_end_early=True)
    with pytest.raises(StoreError, match="ends within a record"):
        check_log(file)
    assert records


# The command ----------------------------------------------------------------------------------------------------------


def test_the_command_says_that_all_is_well(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, verified = check(store)
    assert verified.utxo is not None
    assert run(["verify", "--store", str(store), "--expect", verified.utxo.hash_serialized_3.upper()]) == 0
    shown = capsys.readouterr().out
    assert "all is well" in shown
    assert verified.utxo.hash_serialized_3 in shown


def test_the_command_compares_the_hash(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["verify", "--store", str(store), "--expect", "00" * 32, "--json"]) == 2
    answer = json.loads(capsys.readouterr().out)
    assert not answer["ok"]
    assert answer["findings"][0]["file"] == str(store / "chainstate")


def test_the_command_names_the_file(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flip(FILES["table"](store), 100)
    assert run(["verify", "--store", str(store)]) == 2
    shown = capsys.readouterr().out
    assert shown.startswith(f"error: {FILES['table'](store)}: is damaged at byte 0: the checksum of a block is wrong\n")
    assert "txcollection init" in shown


def test_the_command_wants_a_hash(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["verify", "--store", str(store), "--expect", "beef"]) == 2
    assert "must be a hash of 64 hex digits" in capsys.readouterr().err
