"""`txcollection up --rpc`: options that do not fit, and a whole life in processes of its own."""

import json
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from cluster.cli_app import run
from cluster.cli_gateway import RpcChoice
from models.errors import SettingsError
from tests.cluster.gateway.conftest import Connection
from tests.cluster.gateway.test_auth import CORE_ENTRY, CORE_PASSWORD


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--rpc", "8332"], "the address to listen on is '8332', but must be HOST:PORT"),
        (["--rpc", "0.0.0.0:8332"], "0.0.0.0 is reachable from other machines"),
        (["--rpc", "127.0.0.1:8332", "--rpcauth", "x:y"], "rpcauth for 'x' must look like user:salt$hash"),
        (["--rpcauth", CORE_ENTRY], "go with --rpc HOST:PORT"),
        (["--rpc-log", "stderr"], "go with --rpc HOST:PORT"),
    ],
)
def test_options_that_do_not_fit(
    options: list[str], message: str, make_store: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["up", "--store", str(make_store()), *options]) == 2
    assert message in capsys.readouterr().err


def test_choice_goes_on_to_the_process_in_the_background(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    choice = RpcChoice.of("0.0.0.0:1", [CORE_ENTRY, CORE_ENTRY], True, "log.jsonl")
    assert choice.arguments() == [
        *("--rpc", "0.0.0.0:1", "--rpc-log", str(tmp_path / "log.jsonl")),
        *("--rpcauth", CORE_ENTRY, "--rpcauth", CORE_ENTRY, "--rpc-allow-remote"),
    ]
    assert RpcChoice.of(None, None, False, "off").arguments() == []
    with pytest.raises(SettingsError):
        RpcChoice.of(None, [], True, "off")


@pytest.mark.cluster
def test_up_until_stop(make_store: Callable[..., Path]) -> None:
    """A user of its own is let in, a verdict is a line on standard error, and `stop` ends the process well."""
    store = make_store()
    command = [sys.executable, "-m", "cluster.cli", "up", "--json", "--address", "local", "--store", str(store)]
    command += ["--rpc", "127.0.0.1:0", "--rpc-log", "stderr", "--rpcauth", CORE_ENTRY]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None and process.stderr is not None
        url = json.loads(process.stdout.readline())["rpc"]
        host, port = url.removeprefix("http://").split(":")
        client = Connection(SimpleNamespace(host=host, port=int(port)), ("rt", CORE_PASSWORD))
        assert client.call("getblockcount") == 125
        assert b"txcollection_tip_height 125.0" in urllib.request.urlopen(f"{url}/metrics").read()
        collection = client.call("collecttxs", [])["collection"]
        client.call("maketemplate", collection, client.call("getbestblockhash"))
        line = next(line for line in process.stderr if line.startswith("{"))
        assert json.loads(line)["collection"] == collection[:8]
        assert client.call("stop") == "txcollection stopping"
        process.communicate(timeout=60)
        assert process.returncode == 0
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=60)
    assert not (store / ".cookie").exists()
