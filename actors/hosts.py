"""Other hosts of the same Ray: how many workers each has room for, and which of them can serve.

A host is joined with `ray start --address`. Every core there gets a script worker. Coins are read there only where a
replica of the store is, which the host says by the resource `txcollection_replica`.
"""

import asyncio
from typing import Any

import ray

from actors.replica import REPLICA_RESOURCE

__all__ = ["FAR", "OtherHosts"]

FAR = ("replica", "farfetch", "farscript")  # kinds of actors on other hosts
REPLICA_PATIENCE = 5.0  # seconds that a fetch worker waits for its replica to arrive at a new tip


class OtherHosts:
    """What the supervisor knows of them."""

    def __init__(self, settings: dict[str, Any]):
        self._settings = settings
        self._places: dict[Any, str] = {}  # handle -> Ray's id of the host
        self._ready: set[Any] = set()  # fetch workers

    def arguments(self, kind: str) -> tuple[Any, ...]:
        """What an actor of a kind there is made of."""
        settings = self._settings
        if kind == "replica":
            return (settings["replica_dir"],)
        threads, cache = settings["fetch_threads"], settings["fetch_block_cache"]
        return (settings["replica_dir"], threads, cache, None, REPLICA_PATIENCE)

    def placed(self, handle: Any, host: str) -> None:
        """An actor was made on a host."""
        self._places[handle] = host

    async def look(self, actors: dict[str, list[Any]]) -> list[tuple[str, str]]:
        """(kind, host) of every actor that is missing."""
        here = ray.get_runtime_context().get_node_id()
        nodes = [node for node in await asyncio.to_thread(ray.nodes) if node["Alive"] and node["NodeID"] != here]
        living = {handle for kind in FAR for handle in actors[kind]}
        self._places = {handle: host for handle, host in self._places.items() if handle in living}
        self._ready &= living
        missing: list[tuple[str, str]] = []
        for node in nodes:
            host, resources = node["NodeID"], node["Resources"]
            replica = int(resources.get(REPLICA_RESOURCE, 0) >= 1)
            wanted = {"replica": replica, "farfetch": replica, "farscript": int(resources.get("CPU", 0))}
            for kind in FAR:
                there = sum(self._places.get(handle) == host for handle in actors[kind])
                missing += [(kind, host)] * (wanted[kind] - there)
        return missing

    def take_part(self, worker: Any) -> None:
        """A fetch worker was seen to read at the tip. Nobody is sent to the others."""
        self._ready.add(worker)

    def ready(self, workers: list[Any]) -> list[Any]:
        """Those that can serve."""
        return [worker for worker in workers if worker in self._ready]
