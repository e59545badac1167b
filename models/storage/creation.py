"""Makes a store: from a node's data directory, from a UTXO snapshot, or of a genesis block alone.

A store is made in a temporary directory beside its place and renamed when it is complete and on disk: an attempt that
fails leaves nothing, and one that is killed leaves only what the next attempt removes. The source is only read.
"""

import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from models.consensus.params import NETWORKS, ChainParams, get_params
from models.errors import NetworkMismatch, StoreCorrupt, StoreError
from models.storage.archive import BlockArchive
from models.storage.blockfiles import BlockFiles
from models.storage.blockindex import FAILED_MASK, HAVE_DATA, HAVE_UNDO, read_block_index
from models.storage.checkpoint import CheckpointResult, Gate, checkpoint
from models.storage.coinsdb import CoinsOwner
from models.storage.datadir import NodeFiles, find_node_files
from models.storage.durable import disk_error, disk_errors, fsync_path
from models.storage.faults import fault_point
from models.storage.headers import HeaderIndex
from models.storage.processes import is_running
from models.storage.snapshot import Progress, SnapshotReader
from models.storage.storeinfo import StoreInfo
from models.wire.block import BlockHeader
from models.wire.hashes import to_display

__all__ = ["CreationReport", "create_from_datadir", "create_from_snapshot", "create_genesis"]

RECENT_BLOCKS = 100  # bodies taken over from the node, so that a reorganisation can go back that far
BRANCH_DEPTH = 288  # blocks below the tip from which branches are taken over as well

log = logging.getLogger(__name__)


@dataclass(slots=True)
class CreationReport:
    """What was made, for the user."""

    path: Path
    network: str
    best_block: bytes  # whose coins the store has, internal order
    height: int | None  # of that block; None while its header is not known
    time: int | None  # of that block, Unix seconds
    blocks: int = 0  # bodies taken over
    checkpoint: CheckpointResult | None = None  # of the coins
    warnings: list[str] = field(default_factory=list)


@contextmanager
def _new_directory(store: Path) -> Iterator[Path]:
    """A temporary directory that becomes `store` at the end, or vanishes."""
    if store.exists() and (not store.is_dir() or any(store.iterdir())):
        raise StoreError(f"{store} exists already: choose another place, or remove it first")
    with disk_errors(store.parent, "make the directory"):
        store.parent.mkdir(parents=True, exist_ok=True)
    prefix = f".{store.name}.init-"
    for left in store.parent.glob(f"{prefix}*"):
        if not is_running(left.name.removeprefix(prefix)):
            shutil.rmtree(left, ignore_errors=True)
    made = store.parent / f"{prefix}{os.getpid()}"
    try:
        made.mkdir()
    except FileExistsError:
        raise StoreError(f"{store} is being made by this process already") from None
    except OSError as error:
        raise disk_error(store.parent, "write to", error) from error
    try:
        with disk_errors(store, "make"):
            yield made
        fsync_path(made)
        fault_point("store.before_rename")
        try:
            made.rename(store)
        except OSError as error:
            raise disk_error(store, "put the store in its place", error) from error
        fsync_path(store.parent)
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise


def _info(
    network: str, activation_heights: dict[str, int] | None, bip94: bool, signet_challenge: bytes | None, source: dict
) -> StoreInfo:
    challenge = None if signet_challenge is None else signet_challenge.hex()
    return StoreInfo(network, dict(activation_heights or {}), bip94, challenge, source)


def _genesis_header(params: ChainParams) -> BlockHeader:
    return BlockHeader.parse(params.genesis_block)


def create_genesis(
    network: str,
    store: Path | str,
    activation_heights: dict[str, int] | None = None,
    bip94: bool = False,
    signet_challenge: bytes | None = None,
) -> CreationReport:
    """Makes a store that holds a network's genesis block and no coins (its coinbase cannot be spent).

    Raises `StoreError` if there is something at `store`, `SettingsError` for switches the network does not have.
    """
    store = Path(store).expanduser()
    info = _info(network, activation_heights, bip94, signet_challenge, {"kind": "genesis"})
    params = info.params()
    genesis = _genesis_header(params)
    with _new_directory(store) as made:
        with CoinsOwner(made / "chainstate", create=True) as coins:
            coins.apply([], [], genesis.hash)
        HeaderIndex.create(made / "index", genesis).close()
        BlockArchive(made / "index").put_block(params.genesis_block)
        info.save(made)
    return CreationReport(store, network, genesis.hash, 0, genesis.time, blocks=1)


def create_from_snapshot(
    snapshot: Path | str,
    store: Path | str,
    network: str | None = None,
    activation_heights: dict[str, int] | None = None,
    bip94: bool = False,
    signet_challenge: bytes | None = None,
    expect_hash: str | None = None,
    progress: Progress | None = None,
) -> CreationReport:
    """Makes a store from a file that Core's `dumptxoutset` wrote. It knows no header but genesis (`Store.add_headers`).

    The network is told by the file's magic where it is not named. `expect_hash` is the `hash_serialized_3` that the
    coins must have, display hex; without it the file is trusted as it is. `progress` gets (coins done, coins in all).
    Raises `StoreError`, `NetworkMismatch` or `StoreCorrupt` that says what is wrong with the file.
    """
    store = Path(store).expanduser()
    magic = None if network is None else get_params(network, signet_challenge=signet_challenge).magic
    with SnapshotReader(Path(snapshot).expanduser(), magic) as reader:
        if network is None:
            network = next((name for name in NETWORKS if get_params(name).magic == reader.header.magic), None)
        if network is None:
            raise NetworkMismatch(f"{snapshot} is of no known network (magic {reader.header.magic.hex()}): name it")
        base = reader.header.base_hash
        source: dict[str, Any] = {"kind": "snapshot", "path": str(snapshot), "base_hash": to_display(base)}
        info = _info(network, activation_heights, bip94, signet_challenge, source)
        genesis = _genesis_header(info.params())
        with _new_directory(store) as made:
            with CoinsOwner(made / "chainstate", create=True) as coins:
                coins.bulk_load(reader.coins(progress=progress), base)
            digest = reader.hash_serialized_3
            if expect_hash is not None and digest != expect_hash.lower():
                raise StoreError(
                    f"the coins of {snapshot} hash to {digest}, not to {expect_hash}: do not use this file"
                )
            source |= {
                "coins": reader.header.coins,
                "total_amount": reader.total_amount,
                "hash_serialized_3": digest,
                "max_coin_height": reader.max_height,
            }
            HeaderIndex.create(made / "index", genesis).close()
            if base != genesis.hash:
                (made / "index" / "active.bin").unlink()  # which chain is active is known with the base's header
            BlockArchive(made / "index").put_block(info.params().genesis_block)
            info.save(made)
    at_genesis = base == genesis.hash
    return CreationReport(
        store, network, base, 0 if at_genesis else None, genesis.time if at_genesis else None, blocks=1
    )


def create_from_datadir(
    datadir: Path | str,
    store: Path | str,
    network: str | None = None,
    activation_heights: dict[str, int] | None = None,
    bip94: bool = False,
    signet_challenge: bytes | None = None,
    gate: Gate | None = None,
) -> CreationReport:
    """Makes a store from Bitcoin Core's data directory (or the directory of one network in it), also of a running node.

    Neither opens, locks nor writes anything of the node's: its coins are taken over by hard links, its last 100 block
    bodies and undo records, recent branches and its mempool by copies. What a running node has not yet flushed is not
    in it: the report says which block was taken. `gate` is for tests (see `checkpoint`).

    Raises `StoreError` and its kinds for a directory that cannot be used, `SettingsError` for wrong switches.
    """
    store = Path(store).expanduser()
    files = find_node_files(datadir, network, signet_challenge)
    source = {"kind": "datadir", "path": str(files.root.resolve()), "chainstate": files.chainstate.name}
    info = _info(files.network, activation_heights, bip94, signet_challenge, source)
    params = info.params()
    with _new_directory(store) as made:
        report = CreationReport(store, files.network, bytes(32), None, None)
        # The node writes its index before its coins: in this order the index knows the coins' block.
        report.checkpoint = checkpoint(files.chainstate, made / "chainstate", gate)
        checkpoint(files.block_index, made / "blockindex", gate)
        if report.checkpoint.copied_because:
            report.warnings.append(report.checkpoint.copied_because)
        with CoinsOwner(made / "chainstate") as coins:
            report.best_block = coins.best_block
        entries = read_block_index(made / "blockindex")
        shutil.rmtree(made / "blockindex")
        genesis_hash = entries["hash"][0].tobytes()
        if genesis_hash != params.genesis_hash:
            raise NetworkMismatch(
                f"{files.root} holds a chain that begins with {to_display(genesis_hash)}: it is not of {files.network}"
            )
        headers = HeaderIndex.create_from_entries(made / "index", entries, report.best_block)
        report.height, report.time = headers.tip_height, headers.header(headers.tip).time
        if headers.failed(headers.tip):
            report.warnings.append(f"the node's index calls block {to_display(report.best_block)} invalid")
        _take_blocks(files, headers, entries, BlockArchive(made / "index"), report)
        headers.close()
        if files.mempool is not None:
            _copy_mempool(files.mempool, made / "mempool.dat", report)
        info.save(made)
    return report


def _copy_mempool(source: Path, target: Path, report: CreationReport) -> None:
    try:
        shutil.copyfile(source, target)
        fsync_path(target)
    except FileNotFoundError:
        report.warnings.append(f"{source} went away while it was being read: the store starts without a mempool")


def _take_blocks(
    files: NodeFiles, headers: HeaderIndex, entries: np.ndarray, archive: BlockArchive, report: CreationReport
) -> None:
    """Copies the last bodies and undo records of the active chain, and the bodies of recent branches.

    Blocks above the coins' tip, which a running node has connected but not flushed, are such a branch. What is missing
    (pruned, or in another blocks directory) is a warning: without it a reorganisation cannot go back that far.
    """
    tip = headers.tip_height
    block_files = BlockFiles(files.blocks)
    # Records and entries have the same numbers: the index was made of the entries.
    active = [headers.active(height) for height in range(max(0, tip - RECENT_BLOCKS + 1), tip + 1)]
    near = np.abs(entries["height"] - tip) < BRANCH_DEPTH
    there = near & ((entries["status"] & HAVE_DATA) != 0) & ((entries["status"] & FAILED_MASK) == 0)
    branches = [i for i in np.flatnonzero(there).tolist() if not headers.is_active(i)]
    missing = 0
    for i in active + branches:
        entry = entries[i]
        status, height, block_hash = int(entry["status"]), int(entry["height"]), entry["hash"].tobytes()
        try:
            if not status & HAVE_DATA:
                raise StoreError(f"the node has no body of block {to_display(block_hash)} (pruned)")
            raw = block_files.read_block(int(entry["file"]), int(entry["data_pos"]), block_hash)
            undo = None
            if status & HAVE_UNDO and height and headers.is_active(i):
                undo = block_files.read_undo(int(entry["file"]), int(entry["undo_pos"]), raw[4:36])
        except (StoreError, StoreCorrupt) as error:
            missing += 1
            if missing == 1:
                report.warnings.append(f"block at height {height} was not taken over: {error}")
            continue
        archive.put_block(raw)
        if undo is not None:
            archive.put_undo(block_hash, undo)
        report.blocks += 1
    if missing > 1:
        report.warnings.append(f"{missing} blocks were not taken over in all")
    for warning in report.warnings:
        log.warning("%s", warning)
