"""The unix socket as a file: only its owner may connect, one that nobody listens on any more is replaced, and it is
gone when its server ends.
"""

import errno
import os
import socket
import stat
from pathlib import Path

from models.errors import TxCollectionError

__all__ = ["SocketError", "bind", "identity", "unlink"]

LONGEST_PATH = 107  # bytes: sockaddr_un without its final zero
BACKLOG = 128


class SocketError(TxCollectionError):
    """The socket cannot be had; the message says why and what to do."""


def bind(path: Path) -> socket.socket:
    """A listening socket with mode 0600. Raises SocketError, also if another process listens there."""
    name = os.fsencode(path)
    if len(name) > LONGEST_PATH:
        raise SocketError(
            f"the path {path} is {len(name)} bytes long, a socket's may have {LONGEST_PATH}: choose another"
        )
    _make_room(path)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    before = os.umask(0o177)  # it is never open to others, not even for a moment
    try:
        listening.bind(name)
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        raise SocketError(f"cannot listen at {path}: {error.strerror}") from None
    finally:
        os.umask(before)
    return listening


def _make_room(path: Path) -> None:
    """Removes a socket that nobody listens on."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return
    except OSError as error:
        raise SocketError(f"cannot look at {path}: {error.strerror}") from None
    if not stat.S_ISSOCK(found.st_mode):
        raise SocketError(f"{path} is there and is no socket: remove it, or choose another path")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as trying:
        trying.settimeout(1.0)
        try:
            trying.connect(os.fsencode(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.ETIMEDOUT):
                raise SocketError(f"cannot connect to {path}, which is there already: {error.strerror}") from None
    raise SocketError(f"another process listens at {path}: end it, or choose another path")


def identity(path: Path) -> tuple[int, int, int] | None:
    """What tells this file from another one of the same name (inodes are used again); None if there is none."""
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns


def unlink(path: Path, ours: tuple[int, int, int] | None) -> None:
    """Removes the file, unless another server has put its own there meanwhile."""
    if ours is not None and identity(path) == ours:
        path.unlink(missing_ok=True)
