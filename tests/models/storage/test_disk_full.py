"""A disk that fills up in the middle of a write, and one that cannot be written: typed errors that name the path and
say what to do; what was published stays, and the store goes on when there is room. The limit on file sizes makes a real
write(2) fail part way through, without root and without a file system of its own.
"""

import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cluster.cli_app import run
from models.chain import Chain
from models.coins.coin import Coin
from models.errors import StoreError, StoreUnwritable
from models.storage.creation import create_genesis
from models.storage.store import Store
from models.wire.block import decode_block
from tests.actors.blocks import TestBlock, on_top
from tests.models.storage.test_verify import _genesis

BLOCKS = 12
REPOSITORY = Path(__file__).resolve().parents[3]

#: Connects blocks with a limit on file sizes that begins `room` bytes above the largest file, then without it.
PROGRAM = """
import json, resource, signal, sys
from pathlib import Path
from models.chain import Chain
from models.coins.coin import Coin
from models.errors import StoreError
from models.storage.store import Store
from models.wire.block import decode_block

path, room, places = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
blocks = [bytes.fromhex(line) for line in sys.stdin.read().split()]
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
said, served, after = [], [], []

with Store.open(path) as store:
    chain = Chain(store, store.params)
    # So that the log is longer than what else is written to, and the limit is met there.
    store.coins.apply([], [(bytes(36), Coin(1, 0, False, bytes(9000)))], store.coins.best_block)
    if places == "coins":
        largest = max(file.stat().st_size for file in (path / "chainstate").glob("*.log"))
    else:
        largest = 0
    for raw in blocks:  # bodies are kept by then, so that the limit meets the coins' log
        if places == "coins":
            chain.store_block(decode_block(raw))
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest + room, hard))
    for raw in blocks:
        block = decode_block(raw)
        try:
            chain.recover()
            chain.store_block(block)
            chain.connect(block.header.hash, chain.tip.version)
            served.append(block.header.hash.hex())
        except StoreError as error:
            said.append([type(error).__name__, str(error)])
            break
    at_failure = chain.tip.hash.hex(), store.coins.best_block.hex()
    if sys.argv[4] == "on":
        for _ in range(2):  # asked again while there is still no room
            try:
                chain.recover()
                chain.store_block(block)
                chain.connect(block.header.hash, chain.tip.version)
            except StoreError as error:
                said.append([type(error).__name__, str(error)])
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        chain.recover()
        for raw in blocks:
            block = decode_block(raw)
            if chain.headers.find(block.header.hash) is not None and chain.headers.is_active(
                chain.headers.find(block.header.hash)
            ):
                continue
            chain.store_block(block)
            chain.connect(block.header.hash, chain.tip.version)
            after.append(block.header.hash.hex())
print(json.dumps({"said": said, "served": served, "tip": at_failure[0], "coins": at_failure[1], "after": after}))
"""


@pytest.fixture(scope="module")
def blocks() -> list[TestBlock]:
    made = [_genesis()]
    for _ in range(BLOCKS):
        made.append(on_top(made[-1]))
    return made[1:]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    create_genesis("regtest", tmp_path / "store")
    Store.open(tmp_path / "store").close()
    return tmp_path / "store"


@pytest.fixture(scope="module")
def expected(blocks: list[TestBlock], tmp_path_factory: pytest.TempPathFactory) -> dict[bytes, dict]:
    """The coins at each tip, of a store that always had room."""
    path = tmp_path_factory.mktemp("room") / "store"
    create_genesis("regtest", path)
    at: dict[bytes, dict] = {}
    with Store.open(path) as opened:
        opened.coins.apply([], [(bytes(36), Coin(1, 0, False, bytes(9000)))], opened.coins.best_block)
        at[opened.coins.best_block] = dict(opened.coins.iterate())
        chain = Chain(opened, opened.params)
        for block in blocks:
            chain.store_block(decode_block(block.raw))
            chain.connect(block.hash, chain.tip.version)
            at[block.hash] = dict(opened.coins.iterate())
    return at


def connect(store: Path, blocks: list[TestBlock], room: int, places: str, then: str) -> dict[str, Any]:
    program = [sys.executable, "-c", PROGRAM, str(store), str(room), places, then]
    given = "\n".join(block.raw.hex() for block in blocks)
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(program, input=given, capture_output=True, text=True, env=environment, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("then", ["on", "closed"])
@pytest.mark.parametrize(("places", "room"), [("coins", 3), ("coins", 50), ("coins", 300), ("any", 100)])
def test_a_disk_that_fills_up(
    places: str, room: int, then: str, store: Path, blocks: list[TestBlock], expected: dict[bytes, dict]
) -> None:
    came = connect(store, blocks, room, places, then)
    kind, text = came["said"][0]
    assert kind == "StoreUnwritable"
    assert str(store / "chainstate" if places == "coins" else store) in text
    assert "cannot write" in text
    assert "ulimit -f" in text  # of a full disk: make room
    assert came["tip"] == came["coins"], "nothing is served that is not on disk"
    assert came["tip"] == (came["served"][-1] if came["served"] else _genesis().hash.hex())
    assert all(kind in ("StoreError", "StoreUnwritable") for kind, _ in came["said"])
    assert len(came["said"]) == (3 if then == "on" else 1)
    # The whole of it is there at the next open, at a tip that was served, or the one whose write was under way.
    with Store.open(store) as opened:
        tips = [_genesis().hash, *(block.hash for block in blocks)]
        served = len(came["served"])
        best = opened.coins.best_block
        assert best == tips[-1] if then == "on" else best in tips[served : served + 2]
        assert dict(opened.coins.iterate()) == expected[best]
        chain = Chain(opened, opened.params)
        for block in blocks[tips.index(best) :]:
            chain.store_block(decode_block(block.raw))
            chain.connect(block.hash, chain.tip.version)
        assert dict(opened.coins.iterate()) == expected[tips[-1]]


# A disk that cannot be written ----------------------------------------------------------------------------------------


def read_only(number: int, below: Path) -> Callable[..., Any]:
    """os.open as it is on a file system that is mounted read-only (or, by its number, not ours to write to)."""
    real = os.open

    def refuse(path: Any, flags: int, *more: Any, **named: Any) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) and str(path).startswith(str(below)):
            raise OSError(number, os.strerror(number), str(path))
        return real(path, flags, *more, **named)

    return refuse


@pytest.mark.parametrize(
    ("number", "advice"), [(errno.EROFS, "mount its file system"), (errno.EACCES, "right to"), (errno.ENOSPC, "room")]
)
def test_a_store_that_cannot_be_written(number: int, advice: str, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {file: file.read_bytes() for file in store.rglob("*") if file.is_file()}
    with monkeypatch.context() as patched:
        patched.setattr(os, "open", read_only(number, store))
        with pytest.raises(StoreUnwritable, match=advice) as raised:
            Store.open(store)
    assert str(store) in str(raised.value)
    assert {file: file.read_bytes() for file in store.rglob("*") if file.is_file()} == before
    Store.open(store).close()


@pytest.fixture
def mounted_read_only(store: Path) -> Any:
    """A command that runs in a mount namespace of its own, in which the store is mounted read-only."""
    unshare = shutil.which("unshare")
    script = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && exec "$@"'
    begin = [unshare or "unshare", "--mount", "--map-root-user", "sh", "-c", script, str(store)]
    if unshare is None or subprocess.run([*begin, "true"], capture_output=True).returncode:
        pytest.skip("unshare --mount is missing or not allowed here; the same with refused calls is above")

    def run_there(*command: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
        return subprocess.run([*begin, *command], capture_output=True, text=True, env=environment, timeout=120)

    return run_there


def test_a_store_on_a_read_only_mount(mounted_read_only: Any, store: Path) -> None:
    before = {file: file.read_bytes() for file in store.rglob("*") if file.is_file()}
    program = f"""
from models.errors import StoreUnwritable
from models.storage.store import Store
from models.storage.coinsdb import CoinsOwner
from models.storage.tipfile import TipWriter
from pathlib import Path
for attempt in (Store.open, lambda path: CoinsOwner(Path(path) / "chainstate"), lambda path: TipWriter(Path(path))):
    try:
        attempt({str(store)!r})
    except StoreUnwritable as error:
        print(error)
"""
    done = mounted_read_only(sys.executable, "-c", program)
    lines = done.stdout.splitlines()
    assert len(lines) == 3, done.stderr
    assert all(str(store) in line and "mount its file system for writing" in line for line in lines)
    assert {file: file.read_bytes() for file in store.rglob("*") if file.is_file()} == before
    Store.open(store).close()


def test_up_on_a_read_only_mount(mounted_read_only: Any, store: Path) -> None:
    done = mounted_read_only(sys.executable, "-m", "cluster.cli", "up", "--store", str(store))
    assert done.returncode != 0
    said = done.stdout + done.stderr
    assert "Traceback" not in said
    assert "unexpected" not in said
    assert str(store) in said
    assert "mount its file system for writing" in said


def test_making_a_store_where_nothing_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(path: Path, *_: Any, **__: Any) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    with monkeypatch.context() as patched:
        patched.setattr(Path, "mkdir", refuse)
        assert run(["init", "--genesis", "--store", str(tmp_path / "there" / "store")]) != 0
    shown = capsys.readouterr()
    said = " ".join((shown.err + shown.out).split())
    assert "Traceback" not in said
    assert "mount its file system for writing" in said
    assert str(tmp_path) in said.replace(" ", "") or "there" in said
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_fills_up_while_a_store_is_made(tmp_path: Path) -> None:
    program = f"""
import resource, signal
from models.errors import StoreUnwritable
from models.storage.creation import create_genesis
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
for room in (10, 50, 200):
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    try:
        create_genesis("regtest", {str(tmp_path / "store")!r})
    except StoreUnwritable as error:
        assert {str(tmp_path)!r} in str(error)
        print("refused")
"""
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, timeout=60)
    assert done.stdout.split() == ["refused"] * 3, done.stderr
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(StoreError, match="no store"):
        Store.open(tmp_path / "store")
