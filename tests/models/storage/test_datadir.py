"""Which directory is used, and what is said of the ones that cannot be."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from models.consensus.params import get_params
from models.errors import NetworkMismatch, SettingsError, StoreError
from models.storage.datadir import find_node_files

ARCHIVE = "corpus/regtest_datadir.tar.gz"


@pytest.fixture
def node(datadir: Callable[[str], Path], tmp_path: Path) -> Path:
    """A data directory with regtest in it, to be changed at will."""
    shutil.copytree(datadir(ARCHIVE), tmp_path / "node")
    return tmp_path / "node"


def other_network(node: Path, network: str) -> Path:
    """Puts a network's directory beside regtest; only the magic of its blocks makes it that network's."""
    root = node / get_params(network).datadir_subdir
    shutil.copytree(node / "regtest", root, dirs_exist_ok=True)
    with (root / "blocks/blk00000.dat").open("r+b") as handle:
        handle.write(get_params(network).magic)
    return root


@pytest.mark.parametrize("network", [None, "regtest"])
@pytest.mark.parametrize("below", [".", "regtest"])
def test_the_data_directory_or_the_networks_own(node: Path, below: str, network: str | None) -> None:
    files = find_node_files(node / below, network)
    assert files.network == "regtest"
    assert files.root.resolve() == (node / "regtest").resolve()
    assert files.chainstate == files.root / "chainstate"
    assert files.block_index == files.root / "blocks" / "index"
    assert files.mempool == files.root / "mempool.dat"


@pytest.mark.parametrize("network", ["main", "testnet3", "testnet4", "signet"])
def test_each_network_is_told_by_its_magic(node: Path, network: str) -> None:
    root = other_network(node, network)
    assert find_node_files(root if network != "main" else node, network).network == network
    moved = node.parent / "renamed"
    shutil.copytree(root, moved, ignore=shutil.ignore_patterns("regtest"))
    assert find_node_files(moved).network == network


def test_the_key_in_xor_dat_is_applied(datadir: Callable[[str], Path]) -> None:
    node = datadir("regtest_datadir.tar.gz")
    assert any((node / "regtest/blocks/xor.dat").read_bytes())
    assert find_node_files(node / "regtest").network == "regtest"


def test_the_snapshot_chainstate_is_preferred(node: Path) -> None:
    shutil.copytree(node / "regtest/chainstate", node / "regtest/chainstate_snapshot")
    assert find_node_files(node).chainstate.name == "chainstate_snapshot"


def test_a_missing_mempool_is_no_error(node: Path) -> None:
    (node / "regtest/mempool.dat").unlink()
    assert find_node_files(node).mempool is None


def test_an_unknown_mempool_version_is_refused(node: Path) -> None:
    (node / "regtest/mempool.dat").write_bytes((9).to_bytes(8, "little"))
    with pytest.raises(StoreError, match="version 9"):
        find_node_files(node)


def test_no_such_directory(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"no such directory: .*nowhere"):
        find_node_files(tmp_path / "nowhere")


def test_no_chainstate(tmp_path: Path, node: Path) -> None:
    with pytest.raises(StoreError, match="no chainstate in"):
        find_node_files(tmp_path)
    with pytest.raises(StoreError, match="database itself"):
        find_node_files(node / "regtest/chainstate")


def test_no_block_index(node: Path) -> None:
    shutil.rmtree(node / "regtest/blocks")
    with pytest.raises(StoreError, match="no block index"):
        find_node_files(node)


def test_several_networks_and_none_named(node: Path) -> None:
    other_network(node, "signet")
    with pytest.raises(StoreError, match=r"signet.*regtest"):
        find_node_files(node)
    assert find_node_files(node, "signet").network == "signet"
    other_network(node, "main")
    with pytest.raises(StoreError, match="directory itself"):
        find_node_files(node)


def test_another_networks_data(node: Path) -> None:
    with pytest.raises(StoreError, match="it holds regtest"):
        find_node_files(node, "signet")
    with pytest.raises(NetworkMismatch, match="regtest, not of testnet4"):
        find_node_files(node / "regtest", "testnet4")


def test_an_unknown_magic(node: Path) -> None:
    with (node / "regtest/blocks/blk00000.dat").open("r+b") as handle:
        handle.write(b"\x01\x02\x03\x04")
    with pytest.raises(NetworkMismatch, match="01020304"):
        find_node_files(node)


def test_a_signet_with_its_own_challenge(node: Path) -> None:
    challenge = b"\x51"
    root = other_network(node, "signet")
    with (root / "blocks/blk00000.dat").open("r+b") as handle:
        handle.write(get_params("signet", signet_challenge=challenge).magic)
    with pytest.raises(NetworkMismatch, match="challenge"):
        find_node_files(node, "signet")
    assert find_node_files(node, "signet", challenge).network == "signet"


def test_an_unknown_network_name(node: Path) -> None:
    with pytest.raises(SettingsError, match="mainnet"):
        find_node_files(node, "mainnet")


def test_a_directory_without_block_files_goes_by_its_name(node: Path) -> None:
    for file in (node / "regtest/blocks").glob("blk*.dat"):
        file.unlink()
    assert find_node_files(node).network == "regtest"
    (node / "regtest").rename(node / "other")
    with pytest.raises(StoreError, match="cannot tell the network"):
        find_node_files(node / "other")
    assert find_node_files(node / "other", "regtest").network == "regtest"
