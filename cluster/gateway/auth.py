"""Who may call: the cookie of this node's store, and users given as salted hashes, as Bitcoin Core has both.

A password is never kept, logged or compared in a way whose time depends on it.
"""

import base64
import binascii
import hashlib
import hmac
import os
import re
import secrets
from collections.abc import Iterable, Sequence
from pathlib import Path

from models.errors import SettingsError

__all__ = ["COOKIE_FILE", "COOKIE_USER", "Credentials", "remove_cookie", "write_cookie"]

COOKIE_FILE = ".cookie"  # in the store (Core: in the data directory)
COOKIE_USER = "__cookie__"
_ENTRY = re.compile(r"([^:$]+):([^:$]+)\$([0-9a-fA-F]{64})")


def write_cookie(store: Path, password: str) -> Path:
    """Leaves `__cookie__:password` in the store, readable by its owner only. Raises SettingsError if it cannot."""
    path = store / COOKIE_FILE
    half = path.with_name(COOKIE_FILE + ".tmp")
    try:
        half.unlink(missing_ok=True)
        handle = os.open(half, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w") as file:
            file.write(f"{COOKIE_USER}:{password}")
        os.replace(half, path)
    except OSError as error:
        raise SettingsError(f"the cookie file {path} cannot be written: {error.strerror}") from error
    return path


def remove_cookie(store: Path, password: str) -> None:
    """Takes the file away if it is still this one."""
    path = store / COOKIE_FILE
    try:
        if hmac.compare_digest(path.read_bytes(), f"{COOKIE_USER}:{password}".encode()):
            path.unlink()
    except OSError:
        pass


class Credentials:
    """The cookie's password and users as Core's `rpcauth.py` writes them: `user:salt$hash`, where the hash is the
    HMAC-SHA256 of the password with the salt's text as key, in hex."""

    def __init__(self, users: Iterable[str] = (), cookie: str | None = None):
        self.cookie = cookie
        self.users: Sequence[str] = tuple(users)
        self._entries = [self._parse(entry) for entry in self.users]
        if cookie is not None:
            salt = secrets.token_hex(16)
            self._entries.append((COOKIE_USER.encode(), salt.encode(), _hash(salt.encode(), cookie.encode())))
        if not self._entries:
            raise SettingsError("without a cookie and without a user nobody could call: give one of them")

    @staticmethod
    def _parse(entry: str) -> tuple[bytes, bytes, bytes]:
        parts = _ENTRY.fullmatch(entry)
        if parts is None:
            shown = entry.split(":")[0]
            raise SettingsError(f"rpcauth for '{shown}' must look like user:salt$hash (64 hex digits), see rpcauth.py")
        return parts[1].encode(), parts[2].encode(), bytes.fromhex(parts[3])

    def user_of(self, header: str) -> str | None:
        """The user of an `Authorization` header; None if it is malformed, or user or password are wrong.

        Every entry is compared, whether or not an earlier one fits.
        """
        if not header.startswith("Basic "):
            return None
        try:
            pair = base64.b64decode(header[6:].strip(), validate=True)
        except (binascii.Error, ValueError):
            return None
        user, colon, password = pair.partition(b":")
        if not colon:
            return None
        found: bytes | None = None
        for name, salt, expected in self._entries:
            same_user = hmac.compare_digest(name, user)
            same_password = hmac.compare_digest(_hash(salt, password), expected)
            if same_user and same_password:
                found = name
        return None if found is None else found.decode()


def _hash(salt: bytes, password: bytes) -> bytes:
    return hmac.new(salt, password, hashlib.sha256).digest()
