"""How much the JSON-RPC gateway adds to a verdict: the full job of `tests/data/load`, one transaction missing, asked in
turn through `Cluster` and over HTTP, in one run.

`python -m bench.gateway [SAMPLES]` prints quartiles; it needs a checkout, since the job lies with the tests.
"""

import base64
import gzip
import http.client
import json
import os
import socket
import statistics
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.errors import BenchError
from cluster import Cluster
from cluster.gateway.start import Gateway, start_gateway
from models.storage.store import Store

__all__ = ["HttpClient", "Job", "main", "quartiles", "through_cluster", "wait_idle"]

DATA = Path(__file__).resolve().parents[1] / "tests" / "data" / "load"
SILENCE = 0.05  # seconds of the client's round trip
WARM_UP = 3  # samples that are not counted
SAMPLES = 30


class Job:
    """The recorded declaration: wtxids in block order, coinbase, prevhash; one transaction is not in the mempool."""

    def __init__(self, node: Cluster):
        facts = json.loads((DATA / "load.json").read_text())
        self.wtxids = gzip.decompress((DATA / "wtxids.txt.gz").read_bytes()).decode().split()
        self.prevhash: str = facts["prevhash"]
        self.coinbase: str = facts["coinbase"]
        self.missing = node.mempool_remove(self.wtxids[len(self.wtxids) // 2])


class HttpClient:
    """One kept connection, as a declaration server has it."""

    def __init__(self, gateway: Gateway):
        assert gateway.auth is not None
        token = base64.b64encode(":".join(gateway.auth).encode()).decode()
        self._headers = {"Authorization": f"Basic {token}"}
        self._http = http.client.HTTPConnection(gateway.host, gateway.port)
        self._http.connect()
        self._http.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def call(self, method: str, *params: Any) -> Any:
        """The result. Raises BenchError for an error."""
        self._http.request("POST", "/", json.dumps({"method": method, "params": params, "id": 1}), self._headers)
        answer = json.loads(self._http.getresponse().read())
        if answer["error"] is not None:
            raise BenchError(f"{method}: {answer['error']['message']}")
        return answer["result"]


def through_cluster(node: Cluster, job: Job) -> float:
    """Milliseconds from the last transaction to the verdict, in Python."""
    with node.collect_txs(job.wtxids) as collection:
        collection.wait_prefetched()
        time.sleep(SILENCE)
        begun = time.perf_counter()
        verdict = collection.make_template(job.prevhash, bytes.fromhex(job.coinbase), missing=[job.missing])
        spent = time.perf_counter() - begun
    if not verdict.ok:
        raise BenchError(f"the job is not valid: {verdict.reason}")
    return spent * 1000


def over_http(node: Cluster, client: HttpClient, job: Job) -> float:
    """The same over HTTP, encoding and decoding of the JSON included."""
    collection = client.call("collecttxs", job.wtxids)["collection"]
    wait_idle(node)
    time.sleep(SILENCE)
    begun = time.perf_counter()
    verdict = client.call("maketemplate", collection, job.prevhash, job.coinbase, [job.missing.hex()])
    spent = time.perf_counter() - begun
    client.call("closecollection", collection)
    if not verdict["ok"]:
        raise BenchError(f"the job is not valid: {verdict['reason']}")
    return spent * 1000


def wait_idle(node: Cluster) -> None:
    """Returns when nothing is on its way for any collection."""
    while not all(c["idle"] for c in _open_collections(node)):
        time.sleep(0.01)


def _open_collections(node: Cluster) -> list[dict[str, Any]]:
    actors = [stats for name, stats in node.stats().items() if name.startswith("collection-")]
    return [collection for stats in actors for collection in stats["collections"]]


def quartiles(samples: list[float]) -> str:
    """Median and quartiles of milliseconds, for people."""
    low, middle, high = statistics.quantiles(samples, n=4)
    return f"{middle:6.2f} ms   (quartiles {low:.2f} .. {high:.2f})"


def show_added(samples: dict[str, list[float]], way: str, what: str) -> None:
    """Prints what `what` adds: the samples of a `way` (milliseconds) against those through the facade."""
    for name, values in samples.items():
        print(f"{name:10}{quartiles(values)}")
    added = statistics.median(samples[way]) - statistics.median(samples["Cluster"])
    count, load = len(samples[way]), os.getloadavg()[0]
    print(f"the {what} adds {added:.2f} ms at the median; {count} samples each, load {load:.1f}")


def main(arguments: list[str]) -> int:
    """Measures and prints; the exit code."""
    count = int(arguments[0]) if arguments else SAMPLES
    if not DATA.is_dir():
        raise BenchError(f"{DATA} is missing: run this from a checkout")
    with tempfile.TemporaryDirectory(prefix="txcollection-bench-") as directory:
        work = Path(directory)
        with tarfile.open(DATA / "regtest_datadir.tar.gz") as tar:
            tar.extractall(work / "datadir", filter="data")
        Store.create_from_datadir(work / "datadir", work / "store")
        now = json.loads((DATA / "load.json").read_text())["now"]
        with Cluster.start(store=work / "store", now=now) as node, start_gateway(node) as gateway:
            node.wait_mempool()
            job, client = Job(node), HttpClient(gateway)
            ways: dict[str, Callable[[], float]] = {
                "Cluster": lambda: through_cluster(node, job),
                "JSON-RPC": lambda: over_http(node, client, job),
            }
            samples: dict[str, list[float]] = {name: [] for name in ways}
            for number in range(WARM_UP + count):
                for name, way in ways.items():
                    spent = way()
                    if number >= WARM_UP:
                        samples[name].append(spent)
    show_added(samples, "JSON-RPC", "gateway")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
