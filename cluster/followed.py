"""Which node a store follows and how to log in there, for other processes of the same user that have something for it.

The follower leaves `followed.json` in the store while it runs. It holds paths to secrets, never a secret. One that was
killed leaves the file behind: the node that it followed is still the one to ask.
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path

from cluster.jsonfile import read_fields
from cluster.node_rpc import Login, NodeRpc
from models.errors import StoreError

__all__ = ["Followed"]

FILE = "followed.json"


@dataclass(frozen=True)
class Followed:
    """A node's RPC: either a cookie's path, or a user and the path of a password file."""

    url: str
    cookie: str | None = None
    user: str | None = None
    password_file: str | None = None

    @classmethod
    def of_options(cls, url: str, cookie: Path | None, user: str | None, password_file: Path | None) -> "Followed":
        """From a command line's options."""

        def absolute(path: Path | None) -> str | None:
            return None if path is None else str(path.expanduser().absolute())

        return cls(url, absolute(cookie), user, absolute(password_file))

    def save(self, store: Path) -> None:
        """Leaves it in a store, readable by its owner only."""
        fd = os.open(store / f"{FILE}.tmp", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(fd, "w") as file:
            json.dump(self.__dict__, file)
        os.replace(store / f"{FILE}.tmp", store / FILE)

    @classmethod
    def load(cls, store: Path) -> "Followed | None":
        """None if the store follows no node. Raises StoreError for a file that makes no sense."""
        try:
            return read_fields(store / FILE, cls)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise StoreError(f"{store / FILE} cannot be read ({error}): start the follower again") from None

    @staticmethod
    def forget(store: Path) -> None:
        """The store does not follow a node any more."""
        (store / FILE).unlink(missing_ok=True)

    def rpc(self) -> NodeRpc:
        """A connection to be opened. Raises SettingsError if the password cannot be read."""
        cookie = None if self.cookie is None else Path(self.cookie)
        password_file = None if self.password_file is None else Path(self.password_file)
        return NodeRpc(self.url, Login.of_options(cookie, self.user, password_file))
