"""The command line without a node: arguments, input that cannot be read, and what a user is told about them."""

import io
import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from cluster.cli_app import run
from cluster.cli_common import age_in_words

COMMANDS = ["init", "up", "down", "status", "propose", "collect", "demo"]


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A home of its own, so that no store of the machine's user is met; wide, so that no message is wrapped."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("TXC_STORE", raising=False)
    monkeypatch.setenv("COLUMNS", "400")
    return tmp_path


def error_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Runs a command that must fail with exit code 2, nothing on standard output and one line on standard error."""
    assert run([str(argument) for argument in arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = captured.err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("error: ")
    return lines[0]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([command, "--help"]) == 0
    assert f"txcollection {command}" in capsys.readouterr().out.split("Example", 1)[1]


@pytest.mark.parametrize("arguments", [[], ["--help"]])
def test_help_lists_the_commands(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == 0
    shown = capsys.readouterr().out
    assert [command for command in COMMANDS if command not in shown] == []


def test_no_command_imports_ray_to_show_its_help() -> None:
    code = "import sys, cluster.cli_app; cluster.cli_app.run(['propose', '--help']); sys.exit('ray' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["bogus"], "No such command 'bogus'"),
        (["propose"], "Missing argument 'FILE|-'. (`txcollection propose --help` shows how)"),
        (["propose", "x", "--script-mode", "eager"], "'--script-mode': 'eager' is not one of 'deferred', 'inline'"),
        (["propose", "x", "--now", "noon"], "Invalid value for '--now'"),
        (["propose", "x", "--now", "-1"], "now is -1 (argument), but must be a whole number from 0 to 4294967295"),
        (["propose", "x", "--config", "/none.yaml"], "the settings file /none.yaml cannot be read"),
        (["init"], "give one of --from-datadir DIR, --from-snapshot FILE, --genesis and --demo"),
        (["init", "--genesis", "--demo"], "give one of --from-datadir DIR"),
        (["init", "--genesis", "--network", "litecoin"], "'litecoin' is not one of 'main', 'testnet3'"),
        (["init", "--genesis", "--expect-hash", "00"], "--expect-hash goes with --from-snapshot"),
        (["init", "--genesis", "--network", "main"], "is for regtest: name one for main with --store"),
        (["init", "--genesis", "--testactivationheight", "segwit"], "must be NAME@HEIGHT, such as segwit@200"),
        (["init", "--genesis", "--testactivationheight", "segwit@-1"], "must be NAME@HEIGHT"),
        (["init", "--genesis", "--testactivationheight", "soup@1"], "unknown deployment 'soup'"),
        (["init", "--genesis", "--test", "bip95"], "'bip95' is not one of 'bip94'"),
        (
            ["init", "--genesis", "--network", "signet", "--signet-challenge", "5"],
            "must be the challenge script as hex",
        ),
        (["init", "--from-datadir", "/none"], "no such directory: /none"),
        (["init", "--from-snapshot", "/none"], "/none"),
    ],
)
def test_bad_arguments(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert message in error_of(capsys, *arguments)


def test_repeated_activation_height(capsys: pytest.CaptureFixture[str]) -> None:
    twice = ["--testactivationheight", "csv@1", "--testactivationheight", "csv@2"]
    assert "names csv twice" in error_of(capsys, "init", "--genesis", *twice)


@pytest.mark.parametrize("command", ["propose", "collect"])
def test_no_such_file(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing = tmp_path / "none.hex"
    assert f"cannot read {missing}: No such file or directory" in error_of(capsys, command, str(missing))


@pytest.mark.parametrize("command", ["propose", "collect"])
def test_directory_for_a_file(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert f"cannot read {tmp_path}: Is a directory" in error_of(capsys, command, str(tmp_path))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "Block decode failed: the block is empty"),
        (b" \n", "Block decode failed: the block is empty"),
        (b"abc", "Block decode failed: the block has an odd number of hex digits (3)"),
        (b"0x00", "Block decode failed: the block is not hexadecimal: 'x' at position 1"),
        (b"00 00", "Block decode failed: the block is not hexadecimal: ' ' at position 2"),
        (b"\xff\xfe", "Block decode failed: the block is not hexadecimal"),
    ],
)
def test_block_that_is_no_hex(text: bytes, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "block.hex"
    file.write_bytes(text)
    assert message in error_of(capsys, "propose", str(file))


def test_block_that_is_too_long(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cluster.cli_check.MAX_LINE", 10)
    file = tmp_path / "block.hex"
    file.write_bytes(b"0" * 12)
    assert "the block is longer than 10 hex digits" in error_of(capsys, "propose", str(file))


@pytest.mark.parametrize("arguments", [["propose", "--jsonl", "-"], ["collect", "-"], ["status"], ["up"]])
def test_no_store(
    arguments: list[str], home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
    message = error_of(capsys, *arguments)
    assert f"no store in {home / '.txcollection' / 'regtest'}: make one with `txcollection init`" in message


def test_down_without_a_node(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["init", "--genesis"]) == 0
    capsys.readouterr()
    assert "no node" in error_of(capsys, "down")


def test_up_at_an_address_where_nothing_listens(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["init", "--genesis"]) == 0
    capsys.readouterr()
    with socket.socket() as unused:  # bound and not listening: whoever connects is refused
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        assert f"no Ray answers at {address}" in error_of(capsys, "up", "--address", address)


def test_unexpected_error_is_one_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(**_: object) -> None:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr("cluster.cli_store.settings_of", broken)
    assert "unexpected ZeroDivisionError: division by zero" in error_of(capsys, "init", "--genesis")


def test_interrupt_is_quiet(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(**_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("cluster.cli_store.settings_of", interrupted)
    assert run(["init", "--genesis"]) == 130
    assert capsys.readouterr() == ("", "")


# init ---------------------------------------------------------------------------------------------------------------

# What the node that wrote the packaged data directory said of it (tests/data/regtest_datadir.info.json).
DEMO_TIP = "60501b7e9c67e5c091b250ed25c9028966b85010c90c1ca509e1a161a25d09fa"


def test_init_demo(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["init", "--demo", "--store", str(tmp_path / "s"), "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert (made["network"], made["tip"]["hash"], made["tip"]["height"]) == ("regtest", DEMO_TIP, 140)
    assert [path.name for path in tmp_path.iterdir()] == ["s"]


def test_init_for_people(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["init", "--demo", "--store", str(tmp_path / "s")]) == 0
    shown = dict(line.split("  ", 1) for line in capsys.readouterr().out.splitlines())
    assert {key.strip(): value.strip() for key, value in shown.items()}["tip"] == DEMO_TIP


def test_init_twice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["init", "--demo", "--store", str(tmp_path / "s")]) == 0
    capsys.readouterr()
    assert f"{tmp_path / 's'} exists already" in error_of(capsys, "init", "--demo", "--store", str(tmp_path / "s"))


def test_init_from_snapshot(tmp_path: Path, datadir, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    snapshot = datadir("regtest_datadir.tar.gz") / "regtest" / "utxo.dat"
    digest = json.loads((data / "regtest_datadir.info.json").read_text())["hash_serialized_3"]
    arguments = ["init", "--from-snapshot", str(snapshot), "--expect-hash", digest, "--store", str(tmp_path / "s")]
    assert run([*arguments, "--json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["tip"] == {"hash": DEMO_TIP, "height": None, "time": None, "age": None}
    assert "`txcollection follow` fetches the headers" in captured.err


def test_init_from_snapshot_with_other_coins(tmp_path: Path, datadir, capsys: pytest.CaptureFixture[str]) -> None:
    snapshot = datadir("regtest_datadir.tar.gz") / "regtest" / "utxo.dat"
    arguments = ["--from-snapshot", str(snapshot), "--expect-hash", "00" * 32, "--store", str(tmp_path / "s")]
    assert "do not use this file" in error_of(capsys, "init", *arguments)


def test_init_says_what_to_do_about_an_old_tip(tmp_path: Path, datadir, capsys: pytest.CaptureFixture[str]) -> None:
    source = datadir("regtest_datadir.tar.gz")
    assert run(["init", "--from-datadir", str(source), "--store", str(tmp_path / "s")]) == 0
    advice = capsys.readouterr().err
    assert "bitcoin-cli gettxoutsetinfo none" in advice
    assert "bitcoin-cli savemempool" in advice


def test_init_of_a_young_tip_gives_no_advice(
    tmp_path: Path, datadir, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TXC_NOW", "1296772603")  # one second after the tip's block
    source = datadir("regtest_datadir.tar.gz")
    assert run(["init", "--from-datadir", str(source), "--store", str(tmp_path / "s")]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert "1 second old" in captured.out


def test_init_refuses_another_network(tmp_path: Path, datadir, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--from-datadir", str(datadir("regtest_datadir.tar.gz")), "--store", str(tmp_path / "s")]
    assert "it holds regtest" in error_of(capsys, "init", *arguments, "--network", "signet")
    assert list(tmp_path.iterdir()) == []


def test_init_keeps_the_switches(tmp_path: Path) -> None:
    heights = ["--testactivationheight", "segwit@5", "--testactivationheight", "csv@7"]
    assert run(["init", "--genesis", *heights, "--test", "bip94", "--store", str(tmp_path / "s")]) == 0
    kept = json.loads((tmp_path / "s" / "store.json").read_text())
    assert (kept["activation_heights"], kept["bip94"]) == ({"segwit": 5, "csv": 7}, True)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0 seconds"),
        (1, "1 second"),
        (60, "1 minute"),
        (3661, "1 hour 1 minute"),
        (90_000, "1 day 1 hour"),
        (2 * 86_400 + 5, "2 days 5 seconds"),
        (-30, "30 seconds ahead of this machine's clock"),
    ],
)
def test_age_in_words(seconds: int, words: str) -> None:
    assert age_in_words(seconds) == words
