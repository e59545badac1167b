"""The process that owns the store dies at every fault point of a block that is connected or taken back. The store opens
at the tip before or after it, the coins of exactly that tip are in it, and what was published is never lost.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from models.chain import Chain
from models.errors import WorkerLost
from models.storage.faults import FAULT_EXIT_CODE, FAULT_VARIABLE
from models.storage.store import Store
from models.storage.tipfile import TipReader
from tests.actors.blocks import TestBlock, on_top, spend
from tests.actors.small_chain import SmallChain
from tests.actors.watching import drill, until

#: Every step of connecting a block that is new, in the order in which they are passed.
CONNECTING = (
    "headers.before_append",
    "headers.before_count",
    "headers.after_append",
    "archive.block.before_rename",
    "archive.block.after_rename",
    "archive.undo.before_rename",
    "archive.undo.after_rename",
    "coins.before_batch",
    "coins.after_batch",
    "headers.before_active",
    "headers.after_active",
)
DISCONNECTING = ("coins.before_batch", "coins.after_batch", "headers.before_active", "headers.after_active")

#: Does with a store what the chainstate's actor does, the publishing of the tip included; dies where it is told to.
OWNER = """
import sys
from pathlib import Path
from models.chain import Chain
from models.storage.store import Store
from models.storage.tipfile import TipWriter
from models.wire.block import decode_block

store, connect = Store.open(sys.argv[1]), sys.argv[2] == "connect"
chain, tips = Chain(store, store.params), TipWriter(Path(sys.argv[1]))
tips.publish(chain.tip)
if connect:
    block = decode_block(Path(sys.argv[3]).read_bytes())
    chain.store_block(block)
    chain.connect(block.header.hash, chain.tip.version)
else:
    chain.disconnect(chain.tip.version)
tips.publish(chain.tip)
store.close()
"""


def run_owner(store: Path, *args: str, fault: str | None = None) -> int:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    if fault is not None:
        environment[FAULT_VARIABLE] = fault
    return subprocess.run([sys.executable, "-c", OWNER, str(store), *args], env=environment, check=False).returncode


def state(path: Path) -> tuple[bytes, str]:
    """Tip and hash of all coins, and that the parts of the store agree."""
    with Store.open(path) as store:
        stats = store.coins.utxo_stats()
        assert store.headers.hash(store.headers.tip) == stats.best_block
        return stats.best_block, stats.hash_serialized_3


@pytest.fixture(scope="module")
def block(small_chain: SmallChain) -> TestBlock:
    parent = spend(small_chain.coins[:3])
    return on_top(small_chain.tip, [parent, spend([parent.coin()])], fees=2000)


@pytest.fixture(scope="module")
def states(small_chain: SmallChain, block: TestBlock, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Tip and coins hash before the block and after it, from runs that nothing disturbs."""
    path = small_chain.store()
    before = state(path)
    file = tmp_path_factory.mktemp("block") / "block"
    file.write_bytes(block.raw)
    assert run_owner(path, "connect", str(file)) == 0
    after = state(path)
    assert before[0] == small_chain.tip.hash
    assert after[0] == block.hash
    assert before[1] != after[1]
    return {"before": before, "after": after, "file": str(file)}


@pytest.mark.parametrize("place", CONNECTING)
def test_death_while_a_block_is_connected(small_chain: SmallChain, states: dict[str, Any], place: str) -> None:
    path = small_chain.store()
    assert run_owner(path, "connect", states["file"], fault=place) == FAULT_EXIT_CODE
    published = TipReader(path).read()
    assert published.hash == small_chain.tip.hash
    passed = CONNECTING.index(place) >= CONNECTING.index("coins.after_batch")
    assert state(path) == states["after" if passed else "before"]
    if not passed:
        assert run_owner(path, "connect", states["file"]) == 0
    assert state(path) == states["after"]


@pytest.mark.parametrize("place", DISCONNECTING)
def test_death_while_a_block_is_taken_back(small_chain: SmallChain, states: dict[str, Any], place: str) -> None:
    path = small_chain.store()
    assert run_owner(path, "connect", states["file"]) == 0
    assert run_owner(path, "disconnect", fault=place) == FAULT_EXIT_CODE
    passed = place != "coins.before_batch"
    assert state(path) == states["before" if passed else "after"]
    if not passed:
        assert run_owner(path, "disconnect") == 0
    with Store.open(path) as store:  # and there again, by the body that was kept
        chain = Chain(store, store.params)
        assert [delta.connected for delta in chain.activate(lambda raw, context: None)] == [True]
    assert state(path) == states["after"]


def test_two_deaths_in_a_row(small_chain: SmallChain, states: dict[str, Any]) -> None:
    """What the first one left half done is no hindrance to the second try, nor is what that leaves."""
    path = small_chain.store()
    for place in ("archive.block.before_rename", "archive.undo.before_rename", "coins.before_batch"):
        assert run_owner(path, "connect", states["file"], fault=place) == FAULT_EXIT_CODE
        assert state(path) == states["before"]
    assert run_owner(path, "connect", states["file"]) == 0
    assert state(path) == states["after"]


@pytest.mark.cluster
@pytest.mark.parametrize("place", ["archive.block.before_rename", "coins.before_batch", "coins.after_batch"])
def test_a_node_whose_owner_dies_over_a_block_connects_it_all_the_same(
    small_chain: SmallChain,
    chain_node: Callable[..., Any],
    block: TestBlock,
    states: dict[str, Any],
    place: str,
) -> None:
    """The call that brought the block is answered by the replacement; then the block is taken back under the same."""
    node = chain_node()
    mine = node.collect_txs([block.transactions[2].id])
    epoch = node.tip().version.epoch
    drill(node, "chainstate", fault=place)
    assert node.submit_block(block.raw) is None
    assert node.tip().version.epoch == epoch + 1  # it did die
    assert (node.tip().hash, node.utxo_stats().hash_serialized_3) == states["after"]
    verdict = mine.make_template(node.tip_hash(), missing=[block.transactions[2].raw])
    assert verdict.reason == "bad-txns-BIP30"  # its outputs are there, on regtest
    if place.startswith("coins"):
        drill(node, "chainstate", fault=place)
        with pytest.raises(WorkerLost, match="whether it was done is not known"):
            node.disconnect_tip()
        until(lambda: node.tip().version.epoch == epoch + 2, "another owner opened the store")
        passed = place == "coins.after_batch"
        assert (node.tip().hash, node.utxo_stats().hash_serialized_3) == states["before" if passed else "after"]


def test_all_fault_points_are_covered() -> None:
    """A new one in the code of these steps must be listed here."""
    sources = Path(__file__).parents[2] / "models" / "storage"
    found = set()
    for file in ("coinsdb.py", "headers.py"):
        for line in (sources / file).read_text().splitlines():
            if "fault_point(" in line and "bulk" not in line:
                found.add(line.split('"')[1])
    assert found == {place for place in CONNECTING if not place.startswith("archive")}
