"""Credentials: an entry that Bitcoin Core's own tests publish with its password, the cookie file, and headers that are
wrong in every way.
"""

import base64
import stat
from pathlib import Path

import pytest

from cluster.gateway.auth import COOKIE_USER, Credentials, remove_cookie, write_cookie
from models.errors import SettingsError

# Bitcoin Core, test/functional/rpc_users.py: a user, its entry, its password
CORE_ENTRY = "rt:93648e835a54c573682c2eb19f882535$7681e9c5b74bdd85e78166031d2058e1069b3ed7ed967c93fc63abba06f31144"
CORE_PASSWORD = "cA773lm788buwYe4g4WT+05pKyNruVKjQ25x3n0DQcM="


def header(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def test_entry_of_core() -> None:
    assert Credentials([CORE_ENTRY]).user_of(header("rt", CORE_PASSWORD)) == "rt"


@pytest.mark.parametrize(
    ("user", "password"),
    [("rt", CORE_PASSWORD[:-1]), ("rt", ""), ("tr", CORE_PASSWORD), ("", CORE_PASSWORD), ("RT", CORE_PASSWORD)],
)
def test_wrong_user_or_password(user: str, password: str) -> None:
    assert Credentials([CORE_ENTRY]).user_of(header(user, password)) is None


def test_password_with_colons_and_other_alphabets() -> None:
    credentials = Credentials(cookie="a:b:ü")
    assert credentials.user_of(header(COOKIE_USER, "a:b:ü")) == COOKIE_USER


@pytest.mark.parametrize(
    "value",
    [
        "",
        "Basic",
        "Basic ",
        "basic " + base64.b64encode(b"__cookie__:right").decode(),
        "Bearer " + base64.b64encode(b"__cookie__:right").decode(),
        "Basic " + base64.b64encode(b"__cookie__right").decode(),
        "Basic __cookie__:right",
        "Basic \xff\xfe",
        "Basic X19jb29raWVfXzpyaWdod",
    ],
)
def test_malformed_header(value: str) -> None:
    assert Credentials(cookie="right").user_of(value) is None


def test_cookie_and_users_together() -> None:
    credentials = Credentials([CORE_ENTRY], cookie="right")
    assert credentials.user_of(header("rt", CORE_PASSWORD)) == "rt"
    assert credentials.user_of(header(COOKIE_USER, "right")) == COOKIE_USER
    assert credentials.user_of(header("rt", "right")) is None


@pytest.mark.parametrize("entry", ["", "rt", "rt:salt", "rt:salt$", "rt:salt$12", ":s$" + 64 * "0", "rt:s$" + 64 * "g"])
def test_entry_that_is_none_is_named_without_its_hash(entry: str) -> None:
    with pytest.raises(SettingsError, match="must look like user:salt") as caught:
        Credentials([entry])
    assert "salt$12" not in str(caught.value)


def test_nobody_could_call() -> None:
    with pytest.raises(SettingsError, match="nobody could call"):
        Credentials()


def test_cookie_file(tmp_path: Path) -> None:
    path = write_cookie(tmp_path, "secret")
    assert path == tmp_path / ".cookie"
    assert path.read_text() == "__cookie__:secret"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_cookie_of_an_earlier_node_is_replaced(tmp_path: Path) -> None:
    (tmp_path / ".cookie").write_text("__cookie__:old")
    (tmp_path / ".cookie").chmod(0o644)
    path = write_cookie(tmp_path, "new")
    assert (path.read_text(), stat.S_IMODE(path.stat().st_mode)) == ("__cookie__:new", 0o600)


def test_cookie_is_removed_only_by_its_owner(tmp_path: Path) -> None:
    path = write_cookie(tmp_path, "mine")
    remove_cookie(tmp_path, "another")
    assert path.exists()
    remove_cookie(tmp_path, "mine")
    remove_cookie(tmp_path, "mine")
    assert not path.exists()


def test_cookie_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot be written: No such file"):
        write_cookie(tmp_path / "none", "x")
