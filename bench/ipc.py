"""What the Cap'n Proto socket adds to a verdict: the full job of `tests/data/load`, one transaction missing, asked in
turn through `Cluster` and over the socket, in one run.

`python -m bench.ipc [SAMPLES]` prints show_added; it needs a checkout, since the job lies with the tests.
"""

import asyncio
import json
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

import capnp

from bench.errors import BenchError
from bench.gateway import DATA, SAMPLES, SILENCE, WARM_UP, Job, show_added, through_cluster, wait_idle
from cluster import Cluster
from cluster.ipc.schemas import init, proxy
from models.storage.store import Store
from models.wire.hashes import from_display

__all__ = ["main"]


async def over_socket(node: Cluster, mining: Any, context: Any, job: Job) -> float:
    """Milliseconds from the last transaction to the verdict, in two calls as the interface has it."""
    wtxids = [from_display(wtxid) for wtxid in job.wtxids]
    collection = (await mining.collectTxs(context, wtxids)).result
    await asyncio.to_thread(wait_idle, node)
    await asyncio.sleep(SILENCE)
    begun = time.perf_counter()
    await collection.addMissingTxs(context, [job.missing])
    answer = await collection.makeTemplate(context, from_display(job.prevhash), bytes.fromhex(job.coinbase))
    spent = time.perf_counter() - begun
    if answer.reason:
        raise BenchError(f"the job is not valid: {answer.reason}")
    await collection.destroy(context)
    return spent * 1000


async def _measure(node: Cluster, path: Path, count: int) -> dict[str, list[float]]:
    stream = await capnp.AsyncIoStream.create_unix_connection(str(path))
    bootstrap = capnp.TwoPartyClient(stream).bootstrap().cast_as(init.Init)
    context = proxy.Context.new_message()
    context.thread = bootstrap.construct().threadMap.makeThread("bench").result
    mining = bootstrap.makeMining(context).result
    job = Job(node)
    samples: dict[str, list[float]] = {"Cluster": [], "socket": []}
    for number in range(WARM_UP + count):
        spent = {"Cluster": await asyncio.to_thread(through_cluster, node, job)}
        spent["socket"] = await over_socket(node, mining, context, job)
        if number >= WARM_UP:
            for name, value in spent.items():
                samples[name].append(value)
    return samples


def main(arguments: list[str]) -> int:
    """Measures and prints; the exit code."""
    count = int(arguments[0]) if arguments else SAMPLES
    with tempfile.TemporaryDirectory(prefix="txcollection-bench-") as directory:
        work = Path(directory)
        with tarfile.open(DATA / "regtest_datadir.tar.gz") as tar:
            tar.extractall(work / "datadir", filter="data")
        store, socket = work / "store", work / "node.sock"
        Store.create_from_datadir(work / "datadir", store)
        now = json.loads((DATA / "load.json").read_text())["now"]
        with Cluster.start(store=store, now=now) as node:
            node.wait_mempool()
            command = [sys.executable, "-m", "cluster.ipc", "--store", str(store), "--socket", str(socket)]
            server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            try:
                assert server.stdout is not None
                server.stdout.readline()  # it says that it listens
                samples = asyncio.run(capnp.run(_measure(node, socket, count)))
            finally:
                server.terminate()
                server.wait(10)
    show_added(samples, "socket", "socket")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
