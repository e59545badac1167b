"""Run as a program by test_two_hosts: a node of ours in a Ray of two nodes on this machine, the second of which joins,
is given a replica, and serves coins and scripts. Prints one JSON object with what was seen."""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cluster as txcollection  # sets Ray's environment before ray is imported

import ray  # isort: skip
from ray.cluster_utils import Cluster as RayCluster  # isort: skip

from cluster.cli_app import run
from models.chain import Chain
from models.messages import unpack_batch, unwrap
from models.storage.store import Store
from models.wire.block import decode_block
from tests.actors.blocks import TestBlock as Block
from tests.actors.blocks import on_top, spend
from tests.fakechain import GENESIS

PATIENCE = 120.0  # seconds


def until(condition: Callable[[], Any], what: str) -> Any:
    limit = time.monotonic() + PATIENCE
    while not (answer := condition()):
        assert time.monotonic() < limit, f"did not happen: {what}"
        time.sleep(0.1)
    return answer


def make_store(path: Path) -> list[Block]:
    """105 blocks."""
    Store.create_genesis("regtest", path)
    parent = Block(GENESIS, 0, decode_block(GENESIS).header.time, ())
    blocks = []
    with Store.open(path) as store:
        chain = Chain(store, store.params)
        for _ in range(105):
            blocks.append(parent := on_top(parent))
            chain.store_block(decode_block(parent.raw))
            chain.connect(parent.hash, chain.tip.version)
    return blocks


def main(directory: Path) -> dict[str, Any]:
    seen: dict[str, Any] = {}
    store, replica = directory / "store", directory / "replica"
    blocks = make_store(store)
    rays = RayCluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    node = txcollection.Cluster.start(
        store=store,
        address=rays.address,
        replica_dir=str(replica),
        script_workers=1,
        spare_workers=0,
        template_actors=1,
        fetch_threads=2,
        mempool_verify="off",
        local_reads=0,
    )
    try:
        _play(node, rays, blocks, replica, seen)
    finally:
        node.close()
        ray.shutdown()
        rays.shutdown()
    return seen


def _directory(node: Any) -> dict[str, Any]:
    return unwrap(ray.get(node.supervisor.directory.remote()))


def _play(node: Any, rays: RayCluster, blocks: list[Block], replica: Path, seen: dict[str, Any]) -> None:
    here = ray.get_runtime_context().get_node_id()
    second = rays.add_node(num_cpus=2, resources={"txcollection_replica": 1})
    until(lambda: len(_directory(node)["script"]) == 3, "script workers on the second host")
    seen["fetch_before"] = len(_directory(node)["fetch"])

    node.submit_block(on_top(blocks[-1]).raw)  # the replica will be made of this tip
    assert run(["replicate", "--to", str(replica), "--store", str(node.store), "--json"]) == 0
    assert run(["replicate", "--to", str(replica), "--store", str(node.store)]) == 2  # it is there already
    assert not list(node.store.glob(".handout-*"))
    fetchers = until(lambda: f if len(f := _directory(node)["fetch"]) == 2 else None, "a fetch worker beside it")
    far = fetchers[1]
    seen["far_is_elsewhere"] = ray.get(far.__ray_call__.remote(_node_id)) == second.node_id != here
    local = [handle for kind in ("chainstate", "mempool") for handle in [_directory(node)[kind]]]
    local += _directory(node)["template"] + _directory(node)["collection"] + fetchers[:1]
    seen["the_rest_is_here"] = all(ray.get(handle.__ray_call__.remote(_node_id)) == here for handle in local)

    # Blocks, and a reorganisation: each change reaches the replica.
    parent = decode_block(unwrap(ray.get(_directory(node)["chainstate"].block.remote(node.tip().hash))))
    tip = Block(parent.raw, 106, parent.header.time, ())
    coin = blocks[0].transactions[0].coin()
    first = on_top(tip, [spend([coin])])
    assert node.submit_block(first.raw) is None
    seen["after_a_block"] = _compare(node, far, coin.outpoint)
    other = on_top(on_top(tip, tag=b"b"), tag=b"b")
    node.submit_block(on_top(tip, tag=b"b").raw)
    assert node.submit_block(other.raw) is None
    seen["after_a_reorganisation"] = _compare(node, far, coin.outpoint)

    # A worker that opens anew finds its replica at the tip.
    ray.get(far.reopen.remote())
    seen["after_opening_anew"] = _compare(node, far, coin.outpoint)

    # Its owner dies, misses blocks, and catches up.
    (owner,) = _directory(node)["replica"]
    ray.kill(owner)
    parent_block = other
    for _ in range(3):
        parent_block = on_top(parent_block)
        assert node.submit_block(parent_block.raw) is None
    until(lambda: [r for r in _directory(node)["replica"] if r != owner], "another owner")
    (again,) = _directory(node)["replica"]
    wanted = (node.tip().hash, node.utxo_stats().hash_serialized_3)
    until(lambda: tuple(unwrap(ray.get(again.utxo_hash.remote()))) == wanted, "the replica at the tip")
    seen["caught_up"] = ray.get(again.stats.remote())["caught_up"]
    seen["same_coins"] = True

    # The host goes, and nobody notices.
    rays.remove_node(second)
    assert node.check_block(on_top(parent_block, [spend([coin])]).raw).ok
    until(lambda: len(_directory(node)["fetch"]) == 1 and len(_directory(node)["script"]) == 1, "the host is gone")
    assert node.check_block(on_top(parent_block, [spend([coin])]).raw).ok
    seen["without_it"] = True


def _node_id(_: Any) -> str:
    return ray.get_runtime_context().get_node_id()


def _compare(node: Any, far: Any, outpoint: bytes) -> bool:
    """Whether the worker on the other host sees at the tip what the owner sees."""
    tip = node.tip()
    flat = (tip.hash, tip.height, *tip.version)
    batch = unpack_batch(unwrap(ray.get(far.read.remote(flat, outpoint))))
    (theirs,) = unwrap(ray.get(_directory(node)["chainstate"].coins.remote([outpoint])))
    ours = batch.coin(0)
    return (ours is None) == (theirs is None) and (ours is None or ours.value == theirs[0])


if __name__ == "__main__":
    print("SEEN " + json.dumps(main(Path(sys.argv[1]))))
