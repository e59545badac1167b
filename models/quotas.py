"""What one client may have at a time, wherever it is counted: in a collection process, at the JSON-RPC gateway, at the
socket. Each rule is here once, with the words in which a client is told; numbers come from the settings of these names.
"""

from models.errors import Busy

__all__ = ["check_collections", "check_pending", "check_supplied"]


def check_pending(pending: int, most: int) -> None:
    """`pending_calls_per_client`: raises Busy if no call may be added to those that wait."""
    if pending >= most:
        raise Busy(f"{pending} calls of this client wait for an answer, the most that are allowed")


def check_collections(count: int, most: int) -> None:
    """`max_collections_per_client`: raises Busy if no collection may be added to those that are open."""
    if count >= most:
        raise Busy(f"{count} collections of this client are open, the most that are allowed: close one first")


def check_supplied(supplied: int, size: int, most: int) -> None:
    """`supplied_bytes_per_client`: raises Busy if `size` bytes more than were `supplied` are too many."""
    if supplied + size > most:
        raise Busy(
            f"this client has supplied {supplied} bytes to its open collections; with {size} more that is above the "
            f"{most} that are allowed: close a collection first"
        )
