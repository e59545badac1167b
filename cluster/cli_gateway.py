"""`up --rpc`: the options of the JSON-RPC gateway, and the gateway beside the node that `up` holds."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from models.errors import SettingsError

if TYPE_CHECKING:
    from cluster.client import Cluster
    from cluster.gateway.start import Gateway

__all__ = [
    "RpcAllowRemoteOption",
    "RpcAuthOption",
    "RpcChoice",
    "RpcLogOption",
    "RpcOption",
    "rpc_gateway",
]

RpcOption = Annotated[
    str | None,
    typer.Option(
        "--rpc",
        metavar="HOST:PORT",
        help="Serve JSON-RPC over HTTP here, with the password in the store's .cookie file; / shows the node's status.",
    ),
]
RpcAuthOption = Annotated[
    list[str] | None,
    typer.Option(
        "--rpcauth",
        metavar="USER:SALT$HASH",
        help="A further user of JSON-RPC, as Bitcoin Core's rpcauth.py prints it. May be given more than once.",
    ),
]
RpcAllowRemoteOption = Annotated[
    bool, typer.Option("--rpc-allow-remote", help="Let --rpc listen where other machines can reach it.")
]
RpcLogOption = Annotated[
    str,
    typer.Option(
        "--rpc-log", metavar="off|stderr|FILE", help="Where each verdict given over JSON-RPC is written as a JSON line."
    ),
]


@dataclass(frozen=True)
class RpcChoice:
    """What the command line says of the gateway; `address` None for no gateway."""

    address: str | None
    users: tuple[str, ...]
    allow_remote: bool
    log: str

    @classmethod
    def of(cls, address: str | None, users: list[str] | None, allow_remote: bool, log: str) -> "RpcChoice":
        """Checks it before anything is started. Raises SettingsError."""
        from cluster.gateway.auth import Credentials
        from cluster.gateway.options import GatewayOptions, parse_address

        choice = cls(address, tuple(users or ()), allow_remote, _absolute(log))
        if address is None:
            if users or allow_remote or log != "off":
                raise SettingsError("--rpcauth, --rpc-allow-remote and --rpc-log go with --rpc HOST:PORT")
            return choice
        GatewayOptions(*parse_address(address), choice.users, allow_remote).check()
        if choice.users:
            Credentials(choice.users)
        return choice

    def arguments(self) -> list[str]:
        """The same as arguments of another `up`."""
        if self.address is None:
            return []
        words = ["--rpc", self.address, "--rpc-log", self.log]
        words += [word for user in self.users for word in ("--rpcauth", user)]
        return [*words, "--rpc-allow-remote"] if self.allow_remote else words


def _absolute(log: str) -> str:
    return log if log in ("off", "stderr") else str(Path(log).expanduser().absolute())


@contextmanager
def rpc_gateway(node: "Cluster", choice: RpcChoice) -> Iterator["Gateway | None"]:
    """The gateway, or None if there is to be none. Closed before the node is."""
    if choice.address is None:
        yield None
        return
    from cluster.gateway.options import parse_address
    from cluster.gateway.start import start_gateway

    host, port = parse_address(choice.address)
    options: dict[str, Any] = {"users": choice.users, "allow_remote": choice.allow_remote, "log": choice.log}
    with start_gateway(node, host, port, **options) as gateway:
        yield gateway
