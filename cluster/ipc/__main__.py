"""`python -m cluster.ipc --store DIR --socket PATH`: serves clients of a node that runs on this host.

One line on standard output says that it listens; everything else goes to standard error. Exit codes: 0 after a signal,
2 after an error or when the node has ended.
"""

import argparse
import asyncio
import logging
import sys
from pathlib import Path

import capnp
import ray

from cluster.ipc.node import join
from cluster.ipc.server import Server
from cluster.ipc.session import Limits
from cluster.settings import load_settings
from models.errors import TxCollectionError

DONE, ERROR = 0, 2


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m cluster.ipc", description="Bitcoin Core's IPC for a running node.")
    parser.add_argument("--store", type=Path, help="the store of the node; by default ~/.txcollection/regtest")
    parser.add_argument("--socket", type=Path, required=True, help="where to listen")
    parser.add_argument("--config", type=Path, help="a settings file")
    parser.add_argument("--now", type=int, help="check against this Unix time instead of the clock's")
    parser.add_argument("--with-parent", action="store_true", help="end when the process that started this one ends")
    return parser.parse_args()


def main() -> int:
    """Runs the server; the exit code."""
    given = _arguments()
    path = given.socket.expanduser().absolute()
    logging.basicConfig(stream=sys.stderr, format="ipc: %(message)s", level=logging.WARNING)
    try:
        settings = load_settings(store=given.store, config=given.config, now=given.now)
        logging.getLogger("txcollection").setLevel(settings.log_level.upper())
        limits = Limits(
            settings.pending_calls_per_client,
            settings.max_collections_per_client,
            settings.supplied_bytes_per_client,
        )
        node = join(settings.store, settings.now, settings.heartbeat_ms / 1000)
        server = Server(node, settings.store, limits)

        def ready() -> None:
            print(f"listening at {path} for clients of the node on {settings.store}", flush=True)

        why = asyncio.run(capnp.run(server.run(path, ready, given.with_parent)))
    except TxCollectionError as error:
        print(f"error: {error}", file=sys.stdout if given.with_parent else sys.stderr)  # the parent tells the user
        return ERROR
    except KeyboardInterrupt:
        return DONE
    finally:
        ray.shutdown()
    if why:
        print(f"error: {why}", file=sys.stderr)
    return ERROR if why else DONE


if __name__ == "__main__":
    sys.exit(main())
