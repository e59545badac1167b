"""Ray itself: an embedded one on loopback, or one that runs already; and the file by which a node is found again."""

import json
import logging
import os
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import ray

from cluster.jsonfile import read_fields
from cluster.leftovers import end_leftovers
from cluster.reach import listens, process_is_gone
from models.errors import StoreError
from models.storage.durable import disk_errors

__all__ = ["NoNode", "NodeFile", "ensure_ray", "namespace_of"]

NODE_FILE = "node.json"

log = logging.getLogger("txcollection")


class NoNode(StoreError):
    """No node runs on this store."""


@dataclass(frozen=True)
class NodeFile:
    """Where a node that serves a store is to be found: written when it runs, removed when it ends."""

    address: str  # of Ray's control service, host:port
    namespace: str
    pid: int  # of the process that started it
    started: int  # Unix time
    session: str = ""  # Ray's session directory, which tells one Ray from another at the same address

    def write(self, store: Path) -> None:
        """Leaves the file in the store, readable by its owner only. Raises StoreError if it cannot."""
        path = store / NODE_FILE
        with disk_errors(path, "write"):
            fd = os.open(path.with_suffix(".tmp"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(fd, "w") as file:
                json.dump(asdict(self), file)
            os.replace(path.with_suffix(".tmp"), path)

    @classmethod
    def read(cls, store: Path) -> "NodeFile":
        """Raises NoNode if there is none, or none that makes sense."""
        path = store / NODE_FILE
        try:
            return read_fields(path, cls)
        except FileNotFoundError:
            raise NoNode(f"no node runs on {store}: start one with `txcollection up --store {store}`") from None
        except (OSError, ValueError) as error:
            raise NoNode(f"{path} cannot be read ({error}): start the node again") from None

    @property
    def killed(self) -> bool:
        """Whether this was left by a process that is gone and had an embedded Ray, which ends with it: the id of the
        process closes the session's name."""
        return self.session.endswith(f"_{self.pid}") and process_is_gone(self.pid)

    @property
    def ended(self) -> bool:
        """Whether this was left by a node that was killed; nothing serves where nothing listens."""
        return self.killed or not listens(self.address)

    @classmethod
    def end_killed(cls, store: Path) -> None:
        """Ends what is left of a node that was killed, if there was one: Ray's agents would stay for a minute."""
        with suppress(NoNode):
            node = cls.read(store)
            if node.killed:
                end_leftovers(node.session)

    @staticmethod
    def remove(store: Path) -> None:
        """Harmless when it is not there."""
        (store / NODE_FILE).unlink(missing_ok=True)


def namespace_of(store: Path) -> str:
    """Ray's namespace for the actors of one store."""
    return "txcollection-" + sha256(str(store.resolve()).encode()).hexdigest()[:16]


def ensure_ray(address: str, object_store_memory: int | None = None) -> bool:
    """Initialises Ray in this process; False if it was initialised before.

    `local` starts one of our own, with every socket on loopback; anything else joins a running one. Raises NoNode when
    there is none to join.
    """
    if ray.is_initialized():
        return False
    quiet: dict[str, Any] = {"logging_level": "ERROR", "log_to_driver": False}
    if address == "local":
        ray.init(address="local", include_dashboard=False, object_store_memory=object_store_memory, **quiet)
        return True
    try:
        ray.init(address=address, **quiet)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise NoNode(f"no Ray answers at '{address}': {str(error).splitlines()[0] if str(error) else error}") from None
    return True


def here(namespace: str) -> NodeFile:
    """The file for a node in this process's Ray."""
    context = ray.get_runtime_context()
    return NodeFile(context.gcs_address, namespace, os.getpid(), int(time.time()), context.get_session_name())
