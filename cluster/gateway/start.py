"""Starts the JSON-RPC gateway of a node, and what the process that started it sees of it."""

import secrets
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TextIO

import ray

from cluster.declaration_log import OFF, STDERR
from cluster.gateway.actor import GATEWAY, GatewayActor
from cluster.gateway.auth import COOKIE_FILE, COOKIE_USER, Credentials
from cluster.gateway.options import GatewayOptions
from models.errors import TxCollectionError
from models.messages import unwrap

if TYPE_CHECKING:
    from cluster.client import Cluster

__all__ = ["Gateway", "start_gateway"]

START_TIMEOUT = 60.0  # seconds
PRINT_EVERY = 0.5  # seconds between looks for lines of the declaration log


class Gateway:
    """A running gateway. It ends with its node; `close` ends it before."""

    def __init__(self, node: "Cluster", options: GatewayOptions, printing: TextIO | None):
        self._node = node
        self._options = options
        self._closed = threading.Event()
        if printing is not None:
            threading.Thread(target=self._print, args=(printing,), daemon=True, name="declaration-log").start()

    @property
    def url(self) -> str:
        """Where it answers, such as `http://127.0.0.1:8332`."""
        return self._options.url

    @property
    def host(self) -> str:
        """The address that it listens on."""
        return self._options.host

    @property
    def port(self) -> int:
        """The port that it listens on, also if any was asked for."""
        return self._options.port

    @property
    def cookie_file(self) -> Path | None:
        """Where the cookie is; None if there is none."""
        return self._node.store / COOKIE_FILE if self._options.cookie is not None else None

    @property
    def auth(self) -> tuple[str, str] | None:
        """User and password of the cookie, for a client in this process."""
        return (COOKIE_USER, self._options.cookie) if self._options.cookie is not None else None

    def _print(self, stream: TextIO) -> None:
        while not self._closed.wait(PRINT_EVERY):
            try:
                for line in ray.get(self._actor().take_log.remote(), timeout=START_TIMEOUT):
                    print(line, file=stream, flush=True)
            except (TxCollectionError, ray.exceptions.RayError, IndexError, KeyError):
                time.sleep(PRINT_EVERY)  # it is being replaced, or the node ends
            except (OSError, ValueError):
                return  # nobody reads any more

    def _actor(self) -> Any:
        return unwrap(ray.get(self._node.supervisor.directory.remote(), timeout=START_TIMEOUT))[GATEWAY][0]

    def close(self) -> None:
        """Ends it, and with it what its clients hold. Harmless to repeat, and after the node has ended."""
        if self._closed.is_set():
            return
        self._closed.set()
        try:
            ray.get(self._node.supervisor.unregister.remote(GATEWAY), timeout=START_TIMEOUT)
        except ray.exceptions.RayError:
            pass

    def __enter__(self) -> "Gateway":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Gateway {self.url}>"


def start_gateway(
    node: "Cluster",
    host: str = "127.0.0.1",
    port: int = 0,
    *,
    users: Sequence[str] = (),
    cookie: bool = True,
    allow_remote: bool = False,
    log: str | Path = OFF,
) -> Gateway:
    """Serves `node` over JSON-RPC on HTTP. Port 0 is any free one.

    `users` are `user:salt$hash` entries as Bitcoin Core's `rpcauth.py` writes them; with `cookie` the store gets a
    `.cookie` file, readable by its owner, as a second way in. Hosts that are not loopback need `allow_remote`. `log` is
    where each verdict is written as a line of JSON: `off`, `stderr` (of this process), or a file.

    Raises SettingsError for what does not fit or a port in use, StoreError if the node has a gateway already.
    """
    target = str(log) if str(log) in (OFF, STDERR) else str(Path(log).expanduser().resolve())
    password = secrets.token_hex(32) if cookie else None
    options = GatewayOptions(host, port, tuple(users), allow_remote, password, target)
    options.check()
    Credentials(options.users, options.cookie)
    made = ray.get(node.supervisor.register.remote(GATEWAY, GatewayActor, (options,)), timeout=START_TIMEOUT)
    (listening,) = unwrap(made)
    return Gateway(node, listening, sys.stderr if target == STDERR else None)
