"""Finds what is needed in a Bitcoin Core data directory, and says plainly what is wrong where it cannot be used.

Looks at names and at the first bytes of files only. It never opens a database and never writes anything: databases are
copied by `models.storage.checkpoint` before anyone looks into them.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from models.consensus.params import NETWORKS, get_params
from models.errors import NetworkMismatch, StoreError
from models.storage.blockfiles import BlockFiles
from models.storage.levelfiles import CURRENT
from models.storage.mempooldat import check_version

__all__ = ["NodeFiles", "find_node_files"]


@dataclass(frozen=True, slots=True)
class NodeFiles:
    """The parts of one network's directory of a node."""

    network: str  # as in `get_params`
    root: Path  # the network's directory
    chainstate: Path  # the one in use: chainstate_snapshot/ where the node has one
    blocks: Path
    block_index: Path
    mempool: Path | None  # mempool.dat where there is one


def _chainstate_of(root: Path) -> Path | None:
    """The chainstate in use in a network's directory, None if there is none."""
    for name in ("chainstate_snapshot", "chainstate"):
        if (root / name / CURRENT).is_file():
            return root / name
    return None


def _subdirectories(path: Path) -> Iterator[tuple[str, Path]]:
    """(network, directory) for every network whose directory below `path` has a chainstate."""
    for network in NETWORKS:
        subdir = get_params(network).datadir_subdir
        if subdir and _chainstate_of(path / subdir):
            yield network, path / subdir


def _network_of_blocks(root: Path, signet_challenge: bytes | None) -> str | None:
    """The network by the magic before the first block of any block file; None if there is no block to look at.

    Raises `NetworkMismatch` for a magic that belongs to no network.
    """
    magic = BlockFiles(root / "blocks").first_magic()
    if magic is None:
        return None
    for network in NETWORKS:
        challenge = signet_challenge if network == "signet" else None
        if get_params(network, signet_challenge=challenge).magic == magic:
            return network
    raise NetworkMismatch(
        f"the blocks in {root / 'blocks'} begin with the network magic {magic.hex()}, which is none of "
        f"{', '.join(NETWORKS)}; a signet of your own needs its challenge"
    )


def _choose_root(path: Path, network: str | None) -> Path:
    """The network's directory in `path`, which may be a whole data directory or that directory itself."""
    here = _chainstate_of(path)
    below = dict(_subdirectories(path))
    if network is not None:
        if network in below:
            return below[network]
        if here:
            return path
        found = f"it holds {', '.join(below)}" if below else "it holds no chainstate at all"
        raise StoreError(f"no chainstate of {network} in {path}: {found}")
    roots = ([path] if here else []) + list(below.values())
    if len(roots) > 1:
        names = ", ".join((["the one in the directory itself (main)"] if here else []) + list(below))
        raise StoreError(f"{path} holds several networks: {names}; say which one is meant (--network)")
    if roots:
        return roots[0]
    if (path / CURRENT).is_file():
        raise StoreError(f"{path} is a database itself; give the data directory that it lies in")
    raise StoreError(
        f"no chainstate in {path}: give Bitcoin Core's data directory (its -datadir) "
        "or the directory of one network in it"
    )


def find_node_files(path: Path | str, network: str | None = None, signet_challenge: bytes | None = None) -> NodeFiles:
    """Finds one network's files below `path` (a data directory, or the directory of one network).

    Raises `StoreError` (`NetworkMismatch` for data of another network) that says what is wrong and what to do; unknown
    network names raise `SettingsError`. Only a network that the block files name is taken without being told.
    """
    path = Path(path).expanduser()
    if network is not None:
        get_params(network)
    if not path.is_dir():
        raise StoreError(f"no such directory: {path}")
    root = _choose_root(path, network)
    chainstate = _chainstate_of(root)
    assert chainstate is not None
    block_index = root / "blocks" / "index"
    if not (block_index / CURRENT).is_file():
        raise StoreError(
            f"no block index in {block_index}: headers are needed beside the coins; "
            "give a whole data directory, or use a snapshot made by dumptxoutset"
        )
    seen = _network_of_blocks(root, signet_challenge)
    by_name = next((name for name in NETWORKS if get_params(name).datadir_subdir == root.name), None)
    if network is not None and seen is not None and seen != network:
        raise NetworkMismatch(f"{root} holds data of {seen}, not of {network}")
    chosen = network or seen or by_name
    if chosen is None:
        raise StoreError(f"cannot tell the network of {root}: it has no block file; name it (--network)")
    mempool = root / "mempool.dat"
    if mempool.is_file():
        check_version(mempool)
    return NodeFiles(chosen, root, chainstate, root / "blocks", block_index, mempool if mempool.is_file() else None)
