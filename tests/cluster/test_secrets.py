"""Secrets stay where they belong: passwords are compared in constant time, the cookie is its owner's from its first
byte, nothing shows them; and nothing that comes from outside can name code to run."""

import ast
import hmac
import logging
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.gateway import auth
from cluster.gateway.auth import COOKIE_FILE, Credentials, remove_cookie, write_cookie
from cluster.gateway.options import GatewayOptions
from cluster.gateway.start import Gateway, start_gateway
from cluster.node_rpc import Login
from models.errors import SettingsError
from tests.cluster.gateway.conftest import Connection

REPOSITORY = Path(__file__).resolve().parents[2]
SECRET = "a-secret-that-must-not-be-shown"
ENTRY = f"alice:{'5a' * 16}${'0f' * 32}"
HOSTILE = {"pickle", "cloudpickle", "marshal", "shelve", "dill", "jsonpickle"}


# Comparing and keeping ------------------------------------------------------------------------------------------------


def test_every_entry_is_compared_and_only_by_compare_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []
    real = hmac.compare_digest

    def compare(a: Any, b: Any) -> bool:
        compared.append((a, b))
        return real(a, b)

    monkeypatch.setattr(auth.hmac, "compare_digest", compare)
    who = Credentials([ENTRY, ENTRY.replace("alice", "bob")], cookie=SECRET)
    for user, password in (("__cookie__", SECRET), ("__cookie__", "wrong"), ("nobody", SECRET), ("alice", "")):
        compared.clear()
        who.user_of("Basic " + auth.base64.b64encode(f"{user}:{password}".encode()).decode())
        assert len(compared) == 6  # name and hash of all three, whoever asks


def test_no_password_is_compared_by_equality() -> None:
    source = (REPOSITORY / "cluster/gateway/auth.py").read_text()
    compares = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Compare)]
    assert [ast.unparse(node) for node in compares if any(isinstance(o, ast.Eq | ast.NotEq) for o in node.ops)] == []


@pytest.mark.parametrize("umask", [0, 0o077])
def test_the_cookie_is_its_owners_from_its_first_byte(
    umask: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / f"{COOKIE_FILE}.tmp").write_text("left by a crash")
    (tmp_path / f"{COOKIE_FILE}.tmp").chmod(0o666)
    modes = []
    real = os.fdopen

    def look(handle: int, *more: Any) -> Any:
        modes.append((stat.S_IMODE(os.fstat(handle).st_mode), os.fstat(handle).st_size))
        return real(handle, *more)

    monkeypatch.setattr(auth.os, "fdopen", look)
    before = os.umask(umask)
    try:
        path = write_cookie(tmp_path, SECRET)
    finally:
        os.umask(before)
    assert modes == [(0o600, 0)]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.read_text() == f"__cookie__:{SECRET}"
    assert [file.name for file in tmp_path.iterdir()] == [COOKIE_FILE]
    remove_cookie(tmp_path, "another")
    assert path.is_file()
    remove_cookie(tmp_path, SECRET)
    assert not path.exists()


def test_no_repr_and_no_error_shows_a_secret() -> None:
    options = GatewayOptions("127.0.0.1", 0, (ENTRY,), cookie=SECRET)
    shown = [repr(options), str(options), repr(Credentials([ENTRY], SECRET)), repr(Login(user="u", password=SECRET))]
    for entry in (f"alice:{SECRET}", f"alice:salt${SECRET}"):
        with pytest.raises(SettingsError) as error:
            Credentials([entry])
        shown.append(str(error.value))
    assert not [text for text in shown if SECRET in text or "0f0f" in text]


# A running gateway ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def gateway(
    make_store: Callable[..., Path], start_node: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Gateway]:
    node = start_node(make_store("corpus/regtest_datadir.tar.gz"))
    with start_gateway(node, log=tmp_path_factory.mktemp("log") / "declarations.jsonl") as gateway:
        yield gateway
    node.close()


def test_what_a_gateway_shows_and_writes_has_no_secret(gateway: Gateway, caplog: pytest.LogCaptureFixture) -> None:
    import ray

    caplog.set_level(logging.DEBUG)
    assert gateway.auth is not None
    assert gateway.cookie_file is not None
    secret = gateway.auth[1]
    given = Connection(gateway)
    assert stat.S_IMODE(gateway.cookie_file.stat().st_mode) == 0o600
    shown = [repr(gateway), repr(gateway._options), caplog.text]
    shown += [str(given.get(path).body) for path in ("/metrics", "/health", "/")]
    wrong = Connection(gateway, ("__cookie__", secret[:-1] + "z"))
    answer = wrong.ask("getblockcount")
    assert answer.status == 401
    shown += [str(answer.body), str(answer.headers), str(given.ask("getblockcount").body)]
    assert not [text for text in shown if secret in text or secret[:-1] in text]
    store = gateway.cookie_file.parent
    logs = (
        Path(ray.get_runtime_context().worker.node.get_logs_dir_path())
        if hasattr(ray.get_runtime_context(), "worker")
        else store
    )
    written = [*store.glob("*"), *store.glob("index/*"), *logs.glob("*")]
    for file in written:
        if file.is_file() and file != gateway.cookie_file:
            assert secret.encode() not in file.read_bytes(), file


# Nothing from outside names code --------------------------------------------------------------------------------------


def dangers(file: Path) -> Iterator[str]:
    """What in a module would turn bytes into code."""
    for node in ast.walk(ast.parse(file.read_text())):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called in ("eval", "exec", "compile", "__import__", "yaml.load", "yaml.unsafe_load", "yaml.full_load"):
                yield f"{file.name}:{node.lineno} {called}"
            if called in ("np.load", "numpy.load") and "allow_pickle=True" in ast.unparse(node):
                yield f"{file.name}:{node.lineno} {called}"
            if called.startswith("subprocess.") and "shell=True" in ast.unparse(node):
                yield f"{file.name}:{node.lineno} {called} through a shell"
        for name in names:
            if HOSTILE & set(name.split(".")):
                yield f"{file.name}:{getattr(node, 'lineno', 0)} imports {name}"


def test_nothing_that_turns_bytes_into_code_is_used() -> None:
    files = [file for layer in ("models", "actors", "cluster") for file in (REPOSITORY / layer).rglob("*.py")]
    assert len(files) > 100
    assert [found for file in files for found in dangers(file)] == []


@pytest.mark.parametrize(
    "line",
    ["import pickle", "from ray import cloudpickle", "import ray.cloudpickle as p", "eval('1')", "yaml.load(text)"],
)
def test_it_would_be_found(line: str, tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text(line)
    assert len(list(dangers(tmp_path / "module.py"))) >= 1
