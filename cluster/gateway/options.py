"""Where a gateway listens and whom it lets in: what `txcollection up --rpc` and `start_gateway` take."""

import ipaddress
import re
from dataclasses import dataclass, field

from models.errors import SettingsError

__all__ = ["GatewayOptions", "is_loopback", "parse_address"]

_ADDRESS = re.compile(r"(?:\[(?P<six>[0-9a-fA-F:]+)\]|(?P<host>[A-Za-z0-9._-]+)):(?P<port>\d{1,5})")


def parse_address(text: str) -> tuple[str, int]:
    """Host and port of `HOST:PORT`; `[::1]:8332` for IPv6, port 0 for any free one. Raises SettingsError."""
    matched = _ADDRESS.fullmatch(text)
    port = int(matched["port"]) if matched else -1
    if matched is None or port > 65535:
        raise SettingsError(f"the address to listen on is '{text}', but must be HOST:PORT, such as 127.0.0.1:8332")
    return matched["six"] or matched["host"], port


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach what listens on `host`. Names other than localhost are not looked up."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True, slots=True)
class GatewayOptions:
    """`users` are rpcauth entries; `cookie` is the cookie's password, None for no cookie; `log` is `off`, `stderr` or a
    file; `again` is set for a replacement, whose port is about to become free. No secret is in its repr."""

    host: str
    port: int
    users: tuple[str, ...] = field(default=(), repr=False)
    allow_remote: bool = False
    cookie: str | None = field(default=None, repr=False)
    log: str = "off"
    again: bool = False

    def check(self) -> None:
        """Raises SettingsError for a host that others can reach, unless that was asked for."""
        if not self.allow_remote and not is_loopback(self.host):
            raise SettingsError(
                f"{self.host} is reachable from other machines, and JSON-RPC sends passwords in the clear: listen on "
                "127.0.0.1 (and put a TLS proxy before it), or say --rpc-allow-remote"
            )

    @property
    def url(self) -> str:
        """Where clients find it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"
