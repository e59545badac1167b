"""Makes the kept seeds of `tests/fuzz/corpus` from recorded data: `python -m tests.fuzz.make_corpus`.

A few small valid inputs for each target, named `seed-N`. Inputs that once broke something lie beside them under names
of their own and are left alone.
"""

import gzip
import hashlib
import json
import struct
import tarfile
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import plyvel

from models.coins.codec import COIN_PREFIX, coin_key, encode_coin, obfuscate
from models.coins.coin import Coin
from models.consensus.params import get_params
from models.dumpfile import encode_dump
from models.storage.archive import BlockArchive
from models.storage.blockfiles import parse_undo
from models.storage.coinsdb import open_leveldb
from models.storage.headers import HeaderIndex
from models.storage.mempooldat import MempoolEntry, write_mempool
from models.storage.reader import OBFUSCATION_KEY, parse_obfuscation_key
from models.storage.snapshot import write_snapshot
from models.storage.storeinfo import StoreInfo
from models.wire.block import BlockHeader, decode_block
from tests.cluster.test_dump_file import _dump
from tests.fuzz.targets import CORPUS

DATA = Path(__file__).parents[1] / "data"
KEY = bytes.fromhex(  # of the coinbase of block 1 of main
    "0496b538e853519c726a2c91e61ec11600ae1390813a627c66fb8be7947be63c52"
    "da7589379515d4e0a604f8141781e62294721166bf621e73a82cbf2342c858ee"
)
SMALL = 1500  # bytes of a block or transaction that is kept


def lines(name: str) -> list[Any]:
    with gzip.open(DATA / name, "rt") as file:
        return [json.loads(line) for line in file]


def keep(name: str, *inputs: bytes) -> None:
    """Replaces the seeds of a target."""
    folder = CORPUS / name
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("seed-*"):
        old.unlink()
    for number, data in enumerate(inputs):
        (folder / f"seed-{number}").write_bytes(data)


def wire() -> None:
    blocks = [decode_block(bytes.fromhex(line["block"])) for line in lines("chain_shared1.jsonl.gz")[1:]]
    small = [block for block in blocks if len(block.raw) < SMALL]
    busy = max(small, key=lambda block: len(block.transactions))
    keep("block", small[0].raw, busy.raw)
    keep("header", busy.raw[:80])
    coinbases = [busy.transactions[0].raw, small[0].transactions[0].raw]
    others = {  # one of each make
        (tx.has_witness, len(tx.prevouts), len(tx.values)): tx.raw
        for block in blocks
        for tx in block.transactions[1:]
        if len(tx.raw) < 600
    }
    transactions = list(others.values())[:6]
    keep("transaction", *coinbases, *transactions)
    keep("coinbase", *coinbases, *transactions[:2])
    keep("ipc_bytes", busy.raw, transactions[0], bytes(32))
    keep("compact_size", b"\x00", b"\xfd\xfd\x00", b"\xfe\x00\x00\x01\x00", b"\xff" + bytes(4) + b"\x01" + bytes(3))
    keep("signet_solution", b"", b"\x06\xec\xc7\xda\xa2\x00\x00", b"\x0a\xec\xc7\xda\xa2\x01\x51\x01\x01\x51\x00")
    scripts = [script for block in blocks for tx in block.transactions for script in tx.script_pubkeys]
    keep("script", *sorted({script[:2]: script for script in scripts if len(script) < 200}.values())[:8])
    keep("zmq_sequence", bytes(range(32)) + b"A" + struct.pack("<Q", 7), bytes(range(32)) + b"C")
    keep("hex_text", bytes(range(32)).hex().encode(), b"00" * 31 + b"zz", b"abc")

    entries = [MempoolEntry(raw, 1_700_000_000, 0) for raw in transactions[:2]]
    with tempfile.TemporaryDirectory() as folder:
        write_mempool(Path(folder) / "mempool.dat", entries)
        version_2 = (Path(folder) / "mempool.dat").read_bytes()
    packed = b"".join(entry.raw + struct.pack("<qq", entry.time, entry.fee_delta) for entry in entries)
    deltas = b"\x01" + bytes(32) + struct.pack("<q", 5) + b"\x01" + bytes(32)
    keep("mempool_dat", version_2, struct.pack("<QQ", 1, len(entries)) + packed + deltas)

    params = get_params("regtest")
    with tempfile.TemporaryDirectory() as folder:
        index = HeaderIndex.create(folder, BlockHeader.parse(params.genesis_block))
        index.append_many([block.header for block in blocks[:3]], 5)
        index.set_tip(3)
        index.close()
        stored = (Path(folder) / "headers.bin").read_bytes()[: 128 * 5]
        keep("header_index", stored)
        keep("active_chain", (Path(folder) / "active.bin").read_bytes())
    body = struct.pack("<32sIQQ", blocks[-1].header.hash, 130, 3, 1)
    keep("tip_file", body + struct.pack("<I", zlib.crc32(body)))


def coins() -> None:
    rows = lines("chain_shared1.utxo.jsonl.gz")
    some = [
        (
            bytes.fromhex(txid)[::-1] + n.to_bytes(4, "little"),
            Coin(value, height, bool(coinbase), bytes.fromhex(script)),
        )
        for txid, n, height, coinbase, value, script, _ in rows
    ]
    kinds = {(len(coin.script), coin.coinbase): coin for _, coin in some if len(coin.script) < 100}
    pay_to_key = Coin(5_000_000_000, 9, True, b"\x41" + KEY + b"\xac")
    records = [encode_coin(coin) for coin in [*kinds.values(), pay_to_key]][-8:]
    keep("coin", *records)
    keep("coin_batch", *records[:4])
    keep("coin_key", coin_key(bytes(32) + b"\x01\0\0\0"), coin_key(bytes(32) + b"\x00\x01\0\0"))
    keep("varint", b"\x7f", b"\x80\x00", b"\x8e\xfe\xfe\xff\x00")
    keep("compressed_script", b"\x00" + bytes(20), b"\x04" + KEY[1:33], b"\x07\x51")
    keep("obfuscation_key", b"\x08" + bytes(range(8)))
    few = sorted(some, key=lambda row: (row[0][:32], int.from_bytes(row[0][32:], "little")))[:4]
    params = get_params("regtest")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "snapshot"
        write_snapshot(path, params.magic, bytes(range(32)), few)
        keep("snapshot", path.read_bytes())
        archive = BlockArchive(folder)
        archive.put_undo(bytes(32), [[coin for _, coin in few], []])
        keep("archived_undo", next(Path(folder).glob("undo/*")).read_bytes()[40:])


def node_files() -> None:
    """What a node's own data directory holds."""
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(DATA / "regtest_datadir.tar.gz") as tar:
            tar.extractall(folder, filter="data")
        regtest = next(Path(folder).rglob("regtest"))
        blocks = regtest / "blocks"
        key = (blocks / "xor.dat").read_bytes() if (blocks / "xor.dat").is_file() else bytes(8)
        keep("block_file", key + (blocks / "blk00000.dat").read_bytes()[:1200])
        undo = [raw for raw in undo_records(obfuscate((blocks / "rev00000.dat").read_bytes(), key)) if len(raw) > 2]
        undo = sorted({len(raw): raw for raw in undo}.values(), key=len)[:3]
        assert all(parse_undo(raw) for raw in undo)
        keep("undo", *undo)
        keep("undo_file", *undo[:2])
        db = open_leveldb(blocks / "index")
        mask = parse_obfuscation_key(db.get(OBFUSCATION_KEY), blocks)
        found = {len(value): obfuscate(value, mask) for value in db.iterator(prefix=b"b", include_key=False)}
        keep("block_index_record", *list(found.values())[:3])
        db.close()
        level = Path(folder) / "level"
        db = plyvel.DB(str(level), create_if_missing=True, compression=None)
        for number in range(3):
            db.put(COIN_PREFIX + bytes((number,)) * 8, bytes(20))
        db.compact_range()
        db.put(b"k", b"v")
        db.close()
        table = next(level.glob("*.ldb")).read_bytes()
        manifest = max(level.glob("MANIFEST-*")).read_bytes()
        keep("level_table", table)
        keep("level_log", manifest, next(level.glob("*.log")).read_bytes())
        size = int.from_bytes(manifest[4:6], "little")
        keep("level_manifest", manifest[7 : 7 + size])
        keep("level_table_index", b"\x00\x09\x02" + b"C" * 9 + b"\x00\x10" + bytes(4) + b"\x01\0\0\0")
        keep("level_current", b"MANIFEST-000002\n")


def undo_records(stored: bytes) -> Iterator[bytes]:
    """The records of a rev file: magic, size, record, checksum."""
    at = 0
    while any(stored[at : at + 4]):
        size = int.from_bytes(stored[at + 4 : at + 8], "little")
        yield stored[at + 8 : at + 8 + size]
        at += 8 + size + 32


def ours() -> None:
    plain = StoreInfo("regtest", {"csv": 5}, True, None, {"kind": "genesis"}, epoch=3)
    signet = StoreInfo("signet", {}, False, "51", {}, epoch=1)
    keep("store_info", *(info.serialize() for info in (plain, signet)), without_checksum(plain))
    payload = encode_dump(_dump())[40:]
    keep("dump_payload", payload)
    keep("dump_file", b"TXCDUMP1" + hashlib.sha256(payload).digest() + payload)
    keep(
        "json_rpc",
        b'{"jsonrpc":"2.0","id":1,"method":"any","params":[["aa"],{"x":1}]}',
        b'[{"id":"a","method":"any","params":{"args":[[]],"options":{}}},{"jsonrpc":"1.0"}]',
    )
    keep("followed_file", b'{"url": "http://127.0.0.1:8332", "cookie": "/a", "user": null, "password_file": null}')
    keep("follow_status", b'{"pid": 1, "written": 1700000000.5}')
    keep("authorization", b"Basic X19jb29raWVfXzpzZWNyZXQ=", b"secret")


def without_checksum(info: StoreInfo) -> bytes:
    fields = json.loads(info.serialize())
    del fields["checksum"]
    return json.dumps(fields).encode()


if __name__ == "__main__":
    wire()
    coins()
    node_files()
    ours()
