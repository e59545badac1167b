"""How a header stands in `headers.bin`: 128 bytes with a checksum of their own, alone or as columns of many.

Integers are little-endian, hashes in internal order, the chain work big-endian. What is done with such a file is in
`models.storage.headers`.
"""

import struct
from operator import mul

import numpy as np

from models.consensus.pow import block_work
from models.storage.blockindex import parent_positions, prev_hashes
from models.wire.block import BlockHeader

__all__ = [
    "RECORD",
    "checked",
    "checksums",
    "counts",
    "pack_header",
    "prefix_of",
    "records_of_entries",
    "stored_checksums",
    "with_checksums",
]

MAGIC = b"TXCHDRS2"
OLD_MAGIC = b"TXCHDRS1"  # without checksums
COUNT_END = 24  # in bytes: magic, count, complement
PREFIX_SIZE = 128  # in bytes, before the first record
RECORD_SIZE = 128  # in bytes
NO_PARENT = -1

#: One header. `status` has Core's bits (models.storage.blockindex), `chain_work` is big-endian and includes the block.
RECORD = np.dtype(
    [
        ("hash", "V32"),
        ("merkle_root", "V32"),
        ("chain_work", "V32"),
        ("parent", "<i4"),
        ("height", "<i4"),
        ("status", "<u2"),
        ("check_low", "<u2"),
        ("n_tx", "<u2"),  # a block of 4 MWU has 16,666 transactions at most
        ("check_high", "<u2"),
        ("version", "<i4"),
        ("time", "<u4"),
        ("bits", "<u4"),
        ("nonce", "<u4"),
    ]
)
RECORD_STRUCT = struct.Struct("<32s32s32siiHHHHiIII")
WORDS = struct.Struct("<32I")
STATUS_OFFSET = 104
_STATUS_WORD = STATUS_OFFSET // 4
STATE = struct.Struct("<HHHH")
# Odd, so that no change of one word of a record leaves the checksum as it was; not zero for a record of zeros.
_FACTORS = [(2 * i + 1) * 0x9E3779B1 % (1 << 32) for i in range(RECORD_SIZE // 4)]
_FACTOR_ARRAY = np.array(_FACTORS, dtype="<u4")
_CHECK_START = 0x54584348


def checksums(records: np.ndarray) -> np.ndarray:
    """The checksum that each record must have (u4): words times odd factors, summed modulo 2**32; its own two halves
    count as zeros. It finds what disks do to bytes; it keeps nobody from writing what he likes."""
    words = records.view("<u4").reshape(-1, RECORD_SIZE // 4)
    total = words @ _FACTOR_ARRAY
    for at in (_STATUS_WORD, _STATUS_WORD + 1):
        total -= (words[:, at] & np.uint32(0xFFFF0000)) * _FACTOR_ARRAY[at]
    return total + np.uint32(_CHECK_START)


def with_checksums(records: np.ndarray) -> np.ndarray:
    """A copy of records, their checksums made right."""
    records = records.copy()
    right = checksums(records)
    records["check_low"], records["check_high"] = right & np.uint32(0xFFFF), right >> np.uint32(16)
    return records


def stored_checksums(records: np.ndarray) -> np.ndarray:
    """The checksum that each record has (u4)."""
    return records["check_low"].astype("<u4") | records["check_high"].astype("<u4") << np.uint32(16)


def checked(record: bytes) -> bytes:
    """One record with its checksum made right."""
    words = list(WORDS.unpack(record))
    words[_STATUS_WORD] &= 0xFFFF
    words[_STATUS_WORD + 1] &= 0xFFFF
    check = sum(map(mul, words, _FACTORS)) + _CHECK_START
    words[_STATUS_WORD] |= (check & 0xFFFF) << 16
    words[_STATUS_WORD + 1] |= (check >> 16 & 0xFFFF) << 16
    return WORDS.pack(*words)


def pack_header(header: BlockHeader, work: int, parent: int, height: int, status: int, n_tx: int) -> bytes:
    """The record of a header."""
    return checked(
        RECORD_STRUCT.pack(
            header.hash,
            header.merkle_root,
            work.to_bytes(32, "big"),
            parent,
            height,
            status,
            0,
            n_tx,
            0,
            header.version,
            header.time,
            header.bits,
            header.nonce,
        )  # fmt: skip
    )


def prefix_of(count: int) -> bytes:
    return MAGIC + counts(count)


def counts(count: int) -> bytes:
    """The file's count of records and its complement, 16 bytes at byte 8."""
    return count.to_bytes(8, "little") + (~count & (1 << 64) - 1).to_bytes(8, "little")


def records_of_entries(entries: np.ndarray) -> np.ndarray:
    """Records from block index entries that are sorted by height."""
    records = np.zeros(len(entries), dtype=RECORD)
    fields = np.ascontiguousarray(entries["header"]).view(np.uint8).reshape(-1, 80)
    for name, start, kind in (("version", 0, "<i4"), ("time", 68, "<u4"), ("bits", 72, "<u4"), ("nonce", 76, "<u4")):
        records[name] = np.ascontiguousarray(fields[:, start : start + 4]).view(kind)[:, 0]
    records["merkle_root"] = np.ascontiguousarray(fields[:, 36:68]).view("V32")[:, 0]
    for name in ("hash", "height", "status", "n_tx"):
        records[name] = entries[name]
    parents = parent_positions(records["hash"], prev_hashes(entries["header"]))
    records["parent"] = parents
    work_of = {bits: block_work(bits) for bits in np.unique(records["bits"]).tolist()}
    total: list[int] = []
    for bits, parent in zip(records["bits"].tolist(), parents.tolist(), strict=True):
        total.append(work_of[bits] + (total[parent] if parent >= 0 else 0))
    packed = b"".join(work.to_bytes(32, "big") for work in total)
    records["chain_work"] = np.frombuffer(packed, dtype="V32")
    return with_checksums(records)
