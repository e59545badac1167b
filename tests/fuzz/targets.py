"""Every parser that meets bytes from outside, as a function of bytes: a value, or an error of `models.errors`.

A target returns True where the bytes were taken and False where they were refused with the error that the parser
promises; anything else it raises is a finding. Where a format is canonical, what was taken is written again and must
be the same bytes. The writers here are written out anew, so that reader and writer cannot share a mistake.
"""

import base64
import hashlib
import json
import struct
import tempfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from cluster.follow_status import STATUS_FILE, read_status
from cluster.follow_zmq import parse_sequence
from cluster.followed import FILE, Followed
from cluster.gateway.arguments import Method, Parameter, hash_of, hex_bytes
from cluster.gateway.auth import Credentials
from cluster.gateway.jsonrpc import Envelope, RpcError, dump, load
from cluster.ipc.reading import block_of, hashes_of, transaction_of
from cluster.ipc.refusals import Refused
from models.coins.codec import (
    decode_coin,
    decompress_script,
    encode_coin,
    obfuscate,
    outpoint_of_key,
    read_varint,
    write_varint,
)
from models.coins.coin import Coin
from models.coins.columns import CoinColumns, decode_batch
from models.collection import parse_wtxids
from models.consensus.block_checks import commitment_index
from models.consensus.pow import target_from_compact
from models.consensus.signet import check_signet_solution
from models.consensus.table import TxRecord, TxTable
from models.consensus.tx_check import check_transaction
from models.dumpfile import decode_dump, encode_dump
from models.errors import (
    ClientError,
    DecodeError,
    NotReady,
    SettingsError,
    StoreCorrupt,
    StoreError,
)
from models.script.classes import is_push_only, is_unspendable, last_push, script_class, witness_program
from models.script.sigops import count_sigops, input_sigops
from models.storage.archive import UNDO_MAGIC, BlockArchive
from models.storage.blockfiles import BlockFiles, parse_undo
from models.storage.blockindex import parse_record
from models.storage.headers import HeaderIndex
from models.storage.levelcheck import (
    FOOTER,
    LOG_BLOCK,
    LOG_HEADER,
    TABLE_MAGIC,
    check_log,
    check_table,
    crc32c_many,
    read_state,
)
from models.storage.mempooldat import read_mempool, write_mempool
from models.storage.reader import parse_obfuscation_key
from models.storage.snapshot import SnapshotReader, write_snapshot
from models.storage.storeinfo import StoreInfo
from models.storage.tipfile import parse_tip
from models.wire.block import Block, BlockHeader, decode_block
from models.wire.compactsize import read_compact_size, write_compact_size
from models.wire.hashes import from_display, sha256d, to_display
from models.wire.transaction import Transaction, decode_transaction

__all__ = ["CORPUS", "TARGETS", "Target", "seeds"]

CORPUS = Path(__file__).parent / "corpus"

Run = Callable[[bytes], bool]


@dataclass(frozen=True)
class Target:
    """One parser. `allowance` and `factor` bound its memory: bytes, plus so many for each byte of the input."""

    name: str
    run: Run
    allowance: int
    factor: int

    def __str__(self) -> str:
        return self.name


TARGETS: dict[str, Target] = {}


def target(
    *errors: type[Exception], allowance: int = 1 << 20, factor: int = 400
) -> Callable[[Callable[[bytes], None]], Run]:
    """Registers a function that takes bytes and raises nothing but `errors`.

    An object per byte of the input costs Python some 100 to 400 bytes: lists of coins and scripts, numbers, errors.
    """

    def register(function: Callable[[bytes], None]) -> Run:
        def run(data: bytes) -> bool:
            try:
                function(data)
            except errors:
                return False
            return True

        name = function.__name__
        TARGETS[name] = Target(name, run, allowance, factor)
        return run

    return register


def seeds(name: str) -> list[bytes]:
    """The kept inputs of a target: valid ones, and those that once broke something."""
    return [file.read_bytes() for file in sorted((CORPUS / name).iterdir())]


@cache
def _scratch() -> Path:
    """A directory for parsers that read files; it goes with the process."""
    keeper = tempfile.TemporaryDirectory(prefix="fuzz-")
    _KEEPERS.append(keeper)
    return Path(keeper.name)


_KEEPERS: list[tempfile.TemporaryDirectory[str]] = []


def _file(name: str, data: bytes) -> Path:
    path = _scratch() / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


# The wire -------------------------------------------------------------------------------------------------------------


def _size(number: int) -> bytes:
    for limit, mark, width in ((253, b"", 1), (1 << 16, b"\xfd", 2), (1 << 32, b"\xfe", 4)):
        if number < limit:
            return mark + number.to_bytes(width, "little")
    return b"\xff" + number.to_bytes(8, "little")


def _written(tx: Transaction, witness: bool) -> bytes:
    """The network serialisation of a transaction's fields (BIP144)."""
    parts = [struct.pack("<i", tx.version), b"\x00\x01" if witness else b"", _size(len(tx.prevouts))]
    for prevout, script, sequence in zip(tx.prevouts, tx.script_sigs, tx.sequences, strict=True):
        parts += [prevout, _size(len(script)), script, struct.pack("<I", sequence)]
    parts.append(_size(len(tx.values)))
    for value, script in zip(tx.values, tx.script_pubkeys, strict=True):
        parts += [struct.pack("<q", value), _size(len(script)), script]
    for stack in tx.witnesses if witness else ():
        parts.append(_size(len(stack)))
        for item in stack:
            parts += [_size(len(item)), item]
    return b"".join([*parts, struct.pack("<I", tx.locktime)])


def _same(tx: Transaction) -> None:
    assert len(tx.witnesses) == len(tx.prevouts)
    base = _written(tx, witness=False)
    # Core reads a marker and a zero flag as two empty lists; there is one way to write that, too.
    assert tx.raw == (_written(tx, witness=True) if tx.has_witness else base)
    assert (tx.txid, tx.base_size) == (sha256d(base), len(base))
    assert (tx.wtxid, tx.total_size) == (sha256d(tx.raw), len(tx.raw))


@target(DecodeError)
def compact_size(data: bytes) -> None:
    number, end = read_compact_size(data, 0, range_check=False)
    assert data[:end] == write_compact_size(number) == _size(number)
    read_compact_size(data, 0)


@target(DecodeError)
def transaction(data: bytes) -> None:
    tx = decode_transaction(data)
    assert tx.raw == data
    _same(tx)


@target(DecodeError)
def block(data: bytes) -> None:
    parsed = decode_block(data, allow_trailing=False)
    written = parsed.header.serialize() + _size(len(parsed.transactions))
    assert parsed.raw == data == written + b"".join(tx.raw for tx in parsed.transactions)
    for tx in parsed.transactions:
        _same(tx)


@target(DecodeError)
def header(data: bytes) -> None:
    parsed = BlockHeader.parse(data)
    assert parsed.serialize() == data[:80]
    assert parsed.hash == sha256d(data[:80])
    target_from_compact(parsed.bits)


@target(DecodeError, factor=1000)
def coinbase(data: bytes) -> None:
    """What is worked out of a transaction before anything judges it, be it a coinbase or not."""
    tx = decode_transaction(data)
    check_transaction(tx)
    commitment_index(tx)
    table = TxTable.from_records([TxRecord.of(tx)])
    assert (table.raw(0), table.txids(), table.wtxids()) == (tx.raw, [tx.txid], [tx.wtxid])
    assert table.prevouts() == tx.prevouts
    assert [table.output(0, n) for n in range(len(tx.values))] == list(zip(tx.values, tx.script_pubkeys, strict=True))


@target()
def signet_solution(data: bytes) -> None:
    """The bytes are a witness commitment's script; anybody can meet the challenge."""
    commitment = b"\x6a\x24\xaa\x21\xa9\xed" + bytes(32) + data
    raw = b"".join(
        (
            struct.pack("<i", 1) + b"\x01" + bytes(32) + b"\xff" * 4 + b"\x02\x51\x51" + b"\xff" * 4,
            b"\x01" + bytes(8) + _size(len(commitment)) + commitment,
            bytes(4),
        )
    )
    parsed = Block(BlockHeader(1, bytes(32), bytes(32), 0, 0x1E0377AE, 0), [decode_transaction(raw)], raw)
    assert isinstance(check_signet_solution(parsed, b"\x51"), bool)


@target()
def script(data: bytes) -> None:
    count_sigops(data, False)
    count_sigops(data, True)
    input_sigops(data, (data, data))
    script_class(data)
    witness_program(data)
    is_unspendable(data)
    assert (last_push(data) is not None) >= is_push_only(data)


# The node's files ---------------------------------------------------------------------------------------------------


@target(StoreError)
def mempool_dat(data: bytes) -> None:
    path = _file("mempool.dat", data)
    found = read_mempool(path)
    assert (found.truncated is None) == (not found.warnings)
    again = path.with_name("again.dat")
    write_mempool(again, found.entries)
    assert read_mempool(again).entries == found.entries
    for entry in found.entries:
        _same(decode_transaction(entry.raw))


@target(StoreError, allowance=10 << 20)  # it is read in pieces of 4 MiB
def snapshot(data: bytes) -> None:
    path = _file("snapshot.dat", data)
    with SnapshotReader(path) as reader:
        coins = list(reader.coins())
        head = reader.header
    assert len(coins) == head.coins
    again = path.with_name("again.snapshot")
    write_snapshot(again, head.magic, head.base_hash, coins)
    with SnapshotReader(again) as reader:
        assert list(reader.coins()) == coins


@target(StoreCorrupt)
def varint(data: bytes) -> None:
    number, end = read_varint(data, 0)
    assert write_varint(number) == data[:end]


@target(StoreCorrupt)
def coin(data: bytes) -> None:
    found = decode_coin(data)
    assert 0 <= found.value < 1 << 64
    assert decode_coin(encode_coin(found)) == found


@target(StoreCorrupt, factor=2000)
def coin_batch(data: bytes) -> None:
    """The same record in the middle of others, decoded in columns: the same coin, or refused like it."""
    key = bytes(range(1, 9))
    plain = encode_coin(Coin(5, 6, False, b"\x51"))
    refusal = None
    try:
        expected = decode_coin(data)
    except StoreCorrupt as error:
        refusal = error
    try:
        batch = decode_batch([obfuscate(plain, key), None, obfuscate(data, key), obfuscate(plain, key)], key)
    except StoreCorrupt:
        assert refusal is not None
        raise
    assert refusal is None
    columns = CoinColumns(4)
    columns.put(np.arange(4), batch)
    signed = struct.unpack("<q", struct.pack("<Q", expected.value))[0]
    wanted = Coin(signed, expected.height, expected.coinbase, expected.script)
    assert batch.coin(2) == columns.coin(2) == wanted
    assert columns.spent_outputs()[2] == (signed, expected.script)


@target(StoreCorrupt)
def coin_key(data: bytes) -> None:
    outpoint = outpoint_of_key(data)
    assert data == b"C" + outpoint[:32] + write_varint(int.from_bytes(outpoint[32:], "little"))


@target(StoreCorrupt)
def compressed_script(data: bytes) -> None:
    _, end = decompress_script(data)
    assert 0 < end <= len(data)


@target(StoreError)
def obfuscation_key(data: bytes) -> None:
    key = parse_obfuscation_key(data, Path("chainstate"))
    assert data == bytes((len(key),)) + key


@target(StoreCorrupt)
def undo(data: bytes) -> None:
    for spent in parse_undo(data):
        for found in spent:
            assert decode_coin(encode_coin(found)) == found


@target(StoreError)
def block_file(data: bytes) -> None:
    """A blk file in which one record is looked for; the key is its first eight bytes."""
    folder = _file("blocks/blk00000.dat", data[8:]).parent
    (folder / "xor.dat").write_bytes(data[:8])
    files = BlockFiles(folder)
    files.first_magic()
    files.read_block(0, 8, sha256d(obfuscate(data[16:96], data[:8])))


@target(StoreError)
def undo_file(data: bytes) -> None:
    """A rev file whose checksum is right, around any record."""
    folder = _file("blocks/rev00000.dat", b"").parent
    (folder / "xor.dat").write_bytes(bytes(8))
    prev_hash = bytes(32)
    record = b"\xfa\xbf\xb5\xda" + len(data).to_bytes(4, "little") + data + sha256d(prev_hash + data)
    (folder / "rev00000.dat").write_bytes(record)
    assert BlockFiles(folder).read_undo(0, 8, prev_hash) == parse_undo(data)


@target(StoreCorrupt)
def block_index_record(data: bytes) -> None:
    """Any record, under the hash that its last 80 bytes have."""
    entry = parse_record(b"b" + sha256d(data[-80:]), data)
    assert entry[-80:] in data


# Our own files ------------------------------------------------------------------------------------------------------


@target(StoreError, SettingsError)
def store_info(data: bytes) -> None:
    store = _file("store.json", data).parent
    info = StoreInfo.load(store)
    info.params()
    assert json.loads(info.serialize())["network"] == info.network
    assert isinstance(info.epoch, int)


@target(StoreError)
def tip_file(data: bytes) -> None:
    """Any bytes, and the same with the right checksum."""
    try:
        parse_tip(data)
    except NotReady:
        pass
    body = data[:52].ljust(52, b"\0")
    tip = parse_tip(body + struct.pack("<I", zlib.crc32(body)))
    assert tip is not None
    assert struct.pack("<32sIQQ", tip.hash, tip.height, tip.version.epoch, tip.version.n) == body


@target(StoreError, allowance=8 << 20, factor=2000)  # room for the records that come next
def header_index(data: bytes) -> None:
    """headers.bin, opened for reading: every header is found, and every one can become the tip."""
    folder = _file("index/headers.bin", data).parent
    (folder / "active.bin").unlink(missing_ok=True)
    index = HeaderIndex(folder, write=False)
    try:
        for number in range(min(len(index), 20)):
            index.find(index.hash(number))
            index.set_tip(number)
            assert index.tip == number
            index.median_time_past(number)
            index.ancestor(number, 0)
    finally:
        index.close()


@target(StoreError, allowance=8 << 20, factor=2000)
def active_chain(data: bytes) -> None:
    """active.bin beside a good headers.bin: whatever it says, the chain ends where it must."""
    folder = _file("index/headers.bin", (CORPUS / "header_index" / "seed-0").read_bytes()).parent
    (folder / "active.bin").write_bytes(data)
    best = HeaderIndex(folder, write=False)
    best_hash = best.hash(len(best) - 1)
    best.close()
    index = HeaderIndex(folder, best_hash, write=False)
    assert index.hash(index.tip) == best_hash
    index.close()


@target(StoreError)
def archived_undo(data: bytes) -> None:
    """Any payload with its checksum."""
    file = _file(f"archive/undo/{to_display(bytes(32))}.undo", UNDO_MAGIC + hashlib.sha256(data).digest() + data)
    found = BlockArchive(file.parents[1], write=False).get_undo(bytes(32))
    assert found is not None
    for spent in found:
        for one in spent:
            encode_coin(one)


@target(StoreError)
def followed_file(data: bytes) -> None:
    found = Followed.load(_file(FILE, data).parent)
    assert found is not None and isinstance(found.url, str)


@target(StoreError)
def follow_status(data: bytes) -> None:
    found = read_status(_file(STATUS_FILE, data).parent)
    if found is None:
        raise StoreError("there is none")
    assert isinstance(found["alive"], bool)


# LevelDB --------------------------------------------------------------------------------------------------------------


def _checked(data: bytes) -> bytes:
    """Bytes with the masked crc32c of LevelDB behind them."""
    crc = int(crc32c_many(data, [0], [len(data)])[0])
    masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
    return data + masked.to_bytes(4, "little")


@target(StoreError)
def level_log(data: bytes) -> None:
    path = _file("000003.log", data)
    check_log(path, may_end_early=True)
    check_log(path)


@target(StoreError)
def level_manifest(data: bytes) -> None:
    """The bytes are one record of a manifest, with the right checksum."""
    payload = data[: LOG_BLOCK - LOG_HEADER].ljust(3, b"\0")
    checked = _checked(b"\x01" + payload)
    record = checked[-4:] + len(payload).to_bytes(2, "little") + checked[:-4]
    folder = _file("level/MANIFEST-000002", record).parent
    (folder / "CURRENT").write_bytes(b"MANIFEST-000002\n")
    read_state(folder)


@target(StoreError)
def level_current(data: bytes) -> None:
    folder = _file("level2/CURRENT", data).parent
    (folder / "MANIFEST-000002").write_bytes(b"")
    read_state(folder)


@target(StoreError)
def level_table(data: bytes) -> None:
    """The bytes are a whole table file."""
    path = _file("000004.ldb", data)
    check_table(path, len(data))


@target(StoreError)
def level_table_index(data: bytes) -> None:
    """The bytes are the index block of a table without data, with the right checksum."""
    content = data.ljust(4, b"\0")
    meta, index = _checked(bytes(4) + b"\0"), _checked(content + b"\0")
    handles = b"\x00\x04" + _leb(len(meta)) + _leb(len(content))
    table = meta + index + handles.ljust(FOOTER - 8, b"\0") + TABLE_MAGIC
    check_table(_file("000005.ldb", table), len(table))


def _leb(number: int) -> bytes:
    """LevelDB's own varint."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


# Clients --------------------------------------------------------------------------------------------------------------

_METHOD = Method(
    "any",
    None,  # type: ignore[arg-type]  # it is never called
    "",
    (Parameter("wtxids", "array", ""), Parameter("options", "object", "", required=False)),
)


@target(RpcError, factor=3000)
def json_rpc(data: bytes) -> None:
    """A body as the gateway and the socket take it: every reply is JSON again, and bears the id it was asked with."""
    value = load(data)
    for one in value if isinstance(value, list) else [value]:
        envelope = Envelope()
        try:
            envelope.parse(one)
            _METHOD.bind(envelope.params)
            reply = envelope.reply(True)
        except RpcError as error:
            reply = envelope.reply(error=error)
        sent = json.loads(dump(reply), parse_constant=_no_constant)
        if envelope.has_id:
            assert sent["id"] == envelope.id


def _no_constant(name: str) -> Any:
    raise AssertionError(f"{name} in a reply")


_COOKIE = hashlib.sha256(b"not to be guessed").hexdigest()
_CREDENTIALS = Credentials(["user:aa$" + "00" * 32], _COOKIE)


@target(factor=1000)
def authorization(data: bytes) -> None:
    """A header's text as aiohttp gives it (surrogates for bytes that are no UTF-8), and a name with any password."""
    assert _CREDENTIALS.user_of(data.decode("utf-8", "surrogateescape")) is None
    pair = base64.b64encode(b"__cookie__:" + data).decode()
    assert (_CREDENTIALS.user_of(f"Basic {pair}") == "__cookie__") == (data == _COOKIE.encode())


@target(RpcError, ClientError, factor=1000)
def hex_text(data: bytes) -> None:
    """Text where hex is expected."""
    text = data.decode("utf-8", "surrogateescape")
    for read in (lambda: hash_of(text, "hash"), lambda: hex_bytes(text, "block"), lambda: from_display(text, "hash")):
        try:
            read()
        except (RpcError, ClientError) as error:
            str(error)
    parse_wtxids([text])
    parse_wtxids(text.split(","))


@target(Refused, factor=1000)
def ipc_bytes(data: bytes) -> None:
    """Parameters of calls over the socket, once the frame was taken apart by Cap'n Proto itself."""
    for read in (lambda: transaction_of(data), lambda: hashes_of([data, data[:32]], "wtxid")):
        try:
            read()
        except Refused as error:
            str(error)
    assert block_of(data) == data


@target()
def zmq_sequence(data: bytes) -> None:
    change = parse_sequence(data)
    if change is not None:
        assert data == change.txid[::-1] + (b"A" if change.added else b"R") + struct.pack("<Q", change.number)


# Dumps ----------------------------------------------------------------------------------------------------------------

_TIMES = 48 << 20  # a block time for each height up to the largest that is taken, ten million
_NESTED = 4200  # msgpack makes a list's room at once, 8 bytes for each of at most as many items as the file has bytes,
# to a depth of 512; what is not filled is never touched


@target(DecodeError, allowance=_TIMES, factor=_NESTED)
def dump_file(data: bytes) -> None:
    assert encode_dump(decode_dump(data)).startswith(b"TXCDUMP1")


@target(DecodeError, allowance=_TIMES, factor=_NESTED)
def dump_payload(data: bytes) -> None:
    """Any payload with its checksum."""
    assert encode_dump(decode_dump(b"TXCDUMP1" + hashlib.sha256(data).digest() + data)).startswith(b"TXCDUMP1")
