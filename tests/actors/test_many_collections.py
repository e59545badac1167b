"""After hundreds of collections made, used and closed nothing of them is left: no draft, no slot, no file handle, and
the memory of every actor is what it was.
"""

import gc
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tests.actors.blocks import TestCoin, spend
from tests.actors.small_chain import SmallChain
from tests.actors.watching import stats_of, until

WARM_UP = 100  # collections until every allocator and pool has what it needs
ROUNDS = 200
NEW_PEERS = 3  # connections that Ray may open late between two processes, however many collections there are
GROWTH = 1.05  # of resident memory; a collection's observations alone are 16 kB here


def use(node: Any, chain: SmallChain, number: int) -> None:
    """Declares 30 transactions of ten inputs, two of which are supplied; one in four is closed unfinished."""
    transactions = [spend(chain.coins[at : at + 20], fee=1000 + number % 7) for at in range(0, 600, 20)]
    late = transactions[-2:]
    collection = node.collect_txs([tx.id for tx in transactions])
    if number % 4 == 0:
        collection.close()
        return
    collection.add_missing_txs([tx.raw for tx in transactions[:-2]])
    collection.wait_prefetched()
    assert collection.make_template(chain.tip.id, missing=[tx.raw for tx in late]).ok
    if number % 3 == 0:
        missing = spend([TestCoin(bytes((number % 256,)) * 32, 0, 9000)])
        with node.collect_txs([missing.id]) as other:
            assert other.make_template(chain.tip.id, missing=[missing.raw]).kind == "invalid"
    collection.close()


@dataclass(frozen=True)
class Held:
    """What a process holds: resident bytes, handles of files and the like, and connections to other processes."""

    memory: int
    files: int
    sockets: int

    @classmethod
    def by(cls, pid: int) -> "Held":
        handles = []
        for handle in Path(f"/proc/{pid}/fd").iterdir():
            try:
                handles.append(os.readlink(handle))
            except FileNotFoundError:
                continue  # closed meanwhile
        sockets = sum(name.startswith("socket:") for name in handles)
        return cls(psutil.Process(pid).memory_info().rss, len(handles) - sockets, sockets)


def test_two_hundred_collections_leave_nothing_behind(chain_node: Callable[..., Any], small_chain: SmallChain) -> None:
    node = chain_node(collection_actors=2)
    for number in range(WARM_UP):
        use(node, small_chain, number)
    gc.collect()
    pids = node.pids()
    before = {name: Held.by(pid) for name, pid in pids.items()}
    for number in range(ROUNDS):
        use(node, small_chain, number)
    until(lambda: sum(stats["drafts"] for stats in stats_of(node, "template")) == 0, "every draft was dropped")
    assert node.pids() == pids
    after = {name: Held.by(pid) for name, pid in pids.items()}
    for name in pids:
        assert after[name].memory <= before[name].memory * GROWTH, name
        assert after[name].files <= before[name].files, name
        assert after[name].sockets <= before[name].sockets + NEW_PEERS, name
    for stats in stats_of(node, "collection"):
        assert (stats["open"], stats["slot_used"], stats["bytes"], stats["collections"]) == (0, False, 0, [])
    assert sum(stats["draft_bytes"] for stats in stats_of(node, "template")) == 0
