"""The socket as a file: its mode, a stale one, one that is in use, and paths that cannot be one."""

import os
import socket
import stat
import time
from pathlib import Path

import pytest

from cluster.ipc.socketfile import SocketError, bind, identity, unlink


def test_only_the_owner_may_connect(tmp_path: Path) -> None:
    path = tmp_path / "node.sock"
    with bind(path):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_process_keeps_its_umask(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        bind(tmp_path / "node.sock").close()
        assert os.umask(0o022) == 0o022
    finally:
        os.umask(before)


def test_a_socket_that_nobody_listens_on_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "node.sock"
    bind(path).close()
    stale = identity(path)
    with bind(path), socket.socket(socket.AF_UNIX) as trying:
        trying.connect(str(path))
        assert stale is not None


def test_a_socket_in_use_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "node.sock"
    with bind(path):
        before = identity(path)
        with pytest.raises(SocketError, match="another process listens at"):
            bind(path)
        assert identity(path) == before


def test_a_file_that_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "node.sock"
    path.write_text("precious")
    with pytest.raises(SocketError, match="is no socket"):
        bind(path)
    assert path.read_text() == "precious"


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SocketError, match=r"cannot listen at .*node\.sock: No such file or directory"):
        bind(tmp_path / "missing" / "node.sock")


def test_a_path_too_long_for_a_socket_is_named(tmp_path: Path) -> None:
    with pytest.raises(SocketError, match="107"):
        bind(tmp_path / ("x" * 120))


def test_the_file_goes_with_its_server_but_not_a_later_ones(tmp_path: Path) -> None:
    path = tmp_path / "node.sock"
    bind(path).close()
    first = identity(path)
    time.sleep(0.02)  # file times have the resolution of the kernel's ticks
    with bind(path):
        unlink(path, first)
        assert path.exists()
        unlink(path, identity(path))
        assert not path.exists()
