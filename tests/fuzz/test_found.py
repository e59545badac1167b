"""What fuzzing found, one test for each: a damaged or hostile input that met no typed error, or took what it claimed.

The inputs are those of `tests/fuzz/corpus`; here is what they are answered with.
"""

import tracemalloc
from pathlib import Path

import pytest

from cluster.follow_status import read_status
from cluster.followed import Followed
from cluster.gateway.jsonrpc import RpcError, load
from cluster.runtime import NodeFile, NoNode
from models.errors import StoreCorrupt, StoreError
from models.storage.archive import BlockArchive
from models.storage.blockfiles import BlockFiles
from models.storage.blockindex import parse_record
from models.storage.headers import HeaderIndex
from models.storage.storeinfo import StoreInfo
from models.wire.hashes import sha256d, to_display
from tests.fuzz.targets import CORPUS


def found(target: str, name: str) -> bytes:
    return (CORPUS / target / name).read_bytes()


def test_a_header_index_whose_parents_go_in_a_circle(tmp_path: Path) -> None:
    """It was opened, and the first walk to an ancestor never ended."""
    (tmp_path / "headers.bin").write_bytes(found("header_index", "parents-in-a-circle"))
    with pytest.raises(StoreCorrupt, match=r"headers\.bin is damaged: record \d+ does not follow its parent"):
        HeaderIndex(tmp_path, write=False)


@pytest.mark.parametrize("field", ["parent", "height"])
def test_every_flip_in_a_parent_or_height_is_seen(field: str, tmp_path: Path) -> None:
    stored = found("header_index", "seed-0")
    for record in range(1, 3):  # the last one is looked at as a whole, and left out if it is damaged
        for bit in range(32):
            at = 128 + record * 128 + (96 if field == "parent" else 100) + bit // 8
            damaged = bytearray(stored)
            damaged[at] ^= 1 << bit % 8
            (tmp_path / "headers.bin").write_bytes(damaged)
            with pytest.raises(StoreCorrupt, match="does not follow its parent"):
                HeaderIndex(tmp_path, write=False)


def test_a_block_index_record_with_a_number_that_no_field_holds() -> None:
    """It raised struct.error."""
    data = found("block_index_record", "number-too-large")
    with pytest.raises(StoreCorrupt, match="larger than"):
        parse_record(b"b" + sha256d(data[-80:]), data)


@pytest.mark.parametrize("name", ["nothing", "rows-that-are-no-coins"])
def test_undo_data_that_are_none(name: str, tmp_path: Path) -> None:
    """Bare errors of msgpack and Python; a checksum says that a file is whole, not that it is what it should be."""
    archive = BlockArchive(tmp_path)
    archive.put_undo(bytes(32), [])
    BlockArchive._put(tmp_path / f"undo/{to_display(bytes(32))}.undo", b"TXCUNDO1", found("archived_undo", name), "")
    with pytest.raises(StoreCorrupt, match=r"\.undo is damaged: it holds no undo data"):
        archive.get_undo(bytes(32))


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("height-is-a-text", "activation_heights is"),
        ("challenge-is-no-hex", "non-hexadecimal"),
        ("network-is-a-list", "network is"),
        ("too-deep", "recursion"),
    ],
)
def test_a_store_json_of_other_types(name: str, what: str, tmp_path: Path) -> None:
    """A file written by hand has no checksum; TypeError and ValueError came later, or RecursionError at once."""
    (tmp_path / "store.json").write_bytes(found("store_info", name))
    with pytest.raises(StoreCorrupt, match=what):
        StoreInfo.load(tmp_path)


def test_a_blk_file_whose_record_claims_32_mib(tmp_path: Path) -> None:
    """Room for what it claimed was made before the file's size was looked at."""
    (tmp_path / "blk00000.dat").write_bytes(found("block_file", "claims-32-mib")[8:])
    tracemalloc.start()
    try:
        with pytest.raises(StoreCorrupt, match="the record at byte 8 is cut off"):
            BlockFiles(tmp_path).read_block(0, 8, bytes(32))
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", ["number-too-large-to-send-back", "id-too-deep-to-send-back"])
def test_an_id_that_could_not_be_sent_back(name: str) -> None:
    """1e999 came back as `Infinity`, which is no JSON; a deep id was an internal error on the socket."""
    with pytest.raises(RpcError, match="Parse error"):
        load(found("json_rpc", name))


def test_lists_as_deep_as_core_reads() -> None:
    assert load(b"[" * 512 + b"]" * 512)
    with pytest.raises(RpcError, match="Parse error"):
        load(b"[" * 513 + b"]" * 513)


@pytest.mark.parametrize(
    "content", ["[]", "5", "[" * 3000, '{"address": 5}', '{"address": "a", "namespace": "n", "pid": "1", "started": 1}']
)
def test_a_node_json_that_makes_no_sense(content: str, tmp_path: Path) -> None:
    """Fields of other types were taken, and AttributeError came later."""
    (tmp_path / "node.json").write_text(content)
    with pytest.raises(NoNode, match=r"node\.json cannot be read"):
        NodeFile.read(tmp_path)


def test_a_followed_json_of_other_types(tmp_path: Path) -> None:
    (tmp_path / "followed.json").write_bytes(found("followed_file", "url-is-a-number"))
    with pytest.raises(StoreError, match=r"followed\.json cannot be read \(url is '5'\)"):
        Followed.load(tmp_path)


@pytest.mark.parametrize("name", ["pid-is-infinite", "pid-is-too-large"])
def test_a_status_with_a_pid_that_is_none(name: str, tmp_path: Path) -> None:
    """It raised OverflowError in whoever asked for the follower's status."""
    (tmp_path / "follow.json").write_bytes(found("follow_status", name))
    assert read_status(tmp_path) is None
