"""Double SHA-256, and the two forms of a hash: 32 bytes in internal order inside, reversed hex at the edges."""

import hashlib
import re

from models.errors import ClientError

__all__ = ["ZERO_HASH", "from_display", "sha256d", "split_hashes", "to_display"]

ZERO_HASH = bytes(32)

_HEX64 = re.compile(r"[0-9a-fA-F]{64}\Z")


def sha256d(data: bytes) -> bytes:
    """SHA-256 of SHA-256, 32 bytes in internal order (Core: `Hash`)."""
    return hashlib.sha256(hashlib.sha256(data).digest()).digest()


def split_hashes(joined: bytes) -> list[bytes]:
    """Joined hashes of 32 bytes one by one."""
    return [joined[at : at + 32] for at in range(0, len(joined), 32)]


def to_display(internal: bytes) -> str:
    """The hex form that people and RPC use: bytes reversed."""
    return internal[::-1].hex()


def from_display(text: str, what: str = "hash") -> bytes:
    """32 bytes in internal order from display hex. Raises ClientError naming `what` and the value."""
    if not isinstance(text, str) or not _HEX64.match(text):
        shown = text if isinstance(text, str) and text.isprintable() else repr(text)
        shown = shown if len(shown) <= 80 else shown[:77] + "..."
        if not isinstance(text, str):
            raise ClientError(f"{what} must be hexadecimal, not {shown}")
        if len(text) == 64:
            raise ClientError(f"{what} must be hexadecimal string (not '{shown}')")
        raise ClientError(f"{what} must be hexadecimal of length 64 (not {len(text)}, for '{shown}')")
    return bytes.fromhex(text)[::-1]
