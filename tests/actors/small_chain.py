"""A small regtest chain of our own: its store is made once and copied for each node; its coins are easy to spend."""

import itertools
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from models.chain import Chain
from models.storage.store import Store
from models.wire.block import decode_block
from tests.actors.blocks import SPACING, TestBlock, TestCoin, coinbase, mine, subsidy

HEIGHT = 110
RICH = 11  # blocks whose coinbases are mature at the tip
COINS_EACH = 60
GENESIS_HASH = bytes.fromhex("0f9188f13cb7b2c71f2a335e3a4fc328bf5beb436012afca590b1a11466e2206")[::-1]
GENESIS_TIME = 1296688602

#: Settings of nodes whose counters a test looks at: nothing runs that the test did not ask for, and workers read all.
QUIET: dict[str, Any] = {"mempool_verify": "off", "heartbeat_ms": 0, "local_reads": 0}


class SmallChain:
    """110 blocks; the coinbases of the first eleven have many outputs. `coins` are mature at the tip."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._copies = itertools.count()
        self.blocks: list[TestBlock] = []
        prev, time = GENESIS_HASH, GENESIS_TIME
        for height in range(1, HEIGHT + 1):
            time += SPACING
            parts = COINS_EACH if height <= RICH else 1
            first = coinbase(height, [subsidy(height) // parts] * parts)
            self.blocks.append(mine(prev, height, time, first=first))
            prev = self.blocks[-1].hash
        self.coins: list[TestCoin] = [
            block.transactions[0].coin(n) for block in self.blocks[:RICH] for n in range(COINS_EACH)
        ]
        self.immature: TestCoin = self.blocks[-1].transactions[0].coin()
        self._made = directory / "small-chain"
        Store.create_genesis("regtest", self._made)
        with Store.open(self._made) as store:
            chain = Chain(store, store.params)
            for block in self.blocks:  # valid by construction: tests of the verdicts are elsewhere
                chain.store_block(decode_block(block.raw))
                chain.connect(block.hash, chain.tip.version)

    @property
    def tip(self) -> TestBlock:
        return self.blocks[-1]

    def store(self) -> Path:
        """A store of its own on this chain."""
        path = self._directory / f"copy-{next(self._copies)}"
        shutil.copytree(self._made, path)
        return path


@pytest.fixture(scope="session")
def small_chain(tmp_path_factory: pytest.TempPathFactory) -> SmallChain:
    return SmallChain(tmp_path_factory.mktemp("small"))


@pytest.fixture(scope="module")
def module_node(small_chain: SmallChain, start_node: Callable[..., Any]) -> Iterator[Callable[..., Any]]:
    """Makes nodes on the small chain that end with the module: `module_node(**settings)`."""
    made = []

    def make(**settings: Any) -> Any:
        made.append(start_node(small_chain.store(), **{**QUIET, **settings}))
        return made[-1]

    yield make
    for node in made:
        node.close()


@pytest.fixture
def chain_node(small_chain: SmallChain, start_node: Callable[..., Any]) -> Iterator[Callable[..., Any]]:
    """Makes nodes on the small chain that end with the test: `chain_node(**settings)`."""
    made = []

    def make(store: Path | None = None, **settings: Any) -> Any:
        made.append(start_node(store or small_chain.store(), **{**QUIET, **settings}))
        return made[-1]

    yield make
    for node in made:
        node.close()
