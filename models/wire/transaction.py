"""A transaction and its deserialisation (Core: primitives/transaction.h `UnserializeTransaction`).

Parsing runs once for every transaction that enters the process (5,900 for a full block), so the loop is kept flat and
scripts are slices of the one buffer. Nothing here judges a transaction beyond what deserialisation refuses.
"""

from struct import Struct

from models.errors import DecodeError
from models.wire.compactsize import read_compact_size
from models.wire.hashes import sha256d

__all__ = ["NULL_PREVOUT", "Transaction", "decode_transaction", "parse_transaction"]

NULL_PREVOUT = bytes(32) + b"\xff\xff\xff\xff"

MIN_INPUT_SIZE = 41  # outpoint 36, empty script 1, sequence 4
MIN_OUTPUT_SIZE = 9  # value 8, empty script 1

_U32 = Struct("<I")
_I32 = Struct("<i")
_I64 = Struct("<q")


class Transaction:
    """One parsed transaction. Lists are in wire order; hashes are in internal order; values are signed satoshis.

    `raw` is the exact serialisation with witness; `base_size` and `total_size` are bytes without and with witness.
    """

    __slots__ = (
        "base_size",
        "has_witness",
        "locktime",
        "prevouts",
        "raw",
        "script_pubkeys",
        "script_sigs",
        "sequences",
        "total_size",
        "txid",
        "values",
        "version",
        "witnesses",
        "wtxid",
    )

    raw: bytes
    version: int  # signed 32 bit
    locktime: int
    prevouts: list[bytes]  # 36 bytes each: txid in internal order, index little-endian
    sequences: list[int]
    script_sigs: list[bytes]
    values: list[int]  # satoshis, signed 64 bit as on the wire
    script_pubkeys: list[bytes]
    witnesses: list[tuple[bytes, ...]]  # one stack per input, () where there is none
    has_witness: bool
    base_size: int
    total_size: int
    txid: bytes
    wtxid: bytes

    @property
    def weight(self) -> int:
        """Weight units (BIP141)."""
        return 3 * self.base_size + self.total_size

    @property
    def is_coinbase(self) -> bool:
        """One input with a null prevout (Core: `CTransaction::IsCoinBase`)."""
        return len(self.prevouts) == 1 and self.prevouts[0] == NULL_PREVOUT

    def __repr__(self) -> str:
        return f"<Transaction {self.txid[::-1].hex()} {len(self.prevouts)} in {len(self.values)} out>"


def _end_of_data(pos: int) -> DecodeError:
    return DecodeError(f"end of data at byte {pos} while reading a transaction")


def _read_inputs(buf: bytes, pos: int, tx: Transaction) -> int:
    size = len(buf)
    count, pos = read_compact_size(buf, pos)
    if count * MIN_INPUT_SIZE > size - pos:
        raise _end_of_data(pos)
    prevouts, scripts, sequences = [], [], []
    for _ in range(count):
        script_at = pos + 37
        if script_at > size:
            raise _end_of_data(pos)
        length = buf[pos + 36]
        if length >= 253:
            length, script_at = read_compact_size(buf, pos + 36)
        end = script_at + length
        if end + 4 > size:
            raise _end_of_data(pos)
        prevouts.append(buf[pos : pos + 36])
        scripts.append(buf[script_at:end])
        sequences.append(_U32.unpack_from(buf, end)[0])
        pos = end + 4
    tx.prevouts, tx.script_sigs, tx.sequences = prevouts, scripts, sequences
    return pos


def _read_outputs(buf: bytes, pos: int, tx: Transaction) -> int:
    size = len(buf)
    count, pos = read_compact_size(buf, pos)
    if count * MIN_OUTPUT_SIZE > size - pos:
        raise _end_of_data(pos)
    values, scripts = [], []
    for _ in range(count):
        script_at = pos + 9
        if script_at > size:
            raise _end_of_data(pos)
        length = buf[pos + 8]
        if length >= 253:
            length, script_at = read_compact_size(buf, pos + 8)
        end = script_at + length
        if end > size:
            raise _end_of_data(pos)
        values.append(_I64.unpack_from(buf, pos)[0])
        scripts.append(buf[script_at:end])
        pos = end
    tx.values, tx.script_pubkeys = values, scripts
    return pos


def _read_witnesses(buf: bytes, pos: int, tx: Transaction) -> int:
    size = len(buf)
    stacks: list[tuple[bytes, ...]] = []
    some = False
    for _ in tx.prevouts:
        count, pos = read_compact_size(buf, pos)
        if count > size - pos:
            raise _end_of_data(pos)
        stack = []
        for _ in range(count):
            if pos >= size:
                raise _end_of_data(pos)
            length = buf[pos]
            pos += 1
            if length >= 253:
                length, pos = read_compact_size(buf, pos - 1)
            end = pos + length
            stack.append(buf[pos:end])
            pos = end
        if pos > size:
            raise _end_of_data(size)
        some = some or count > 0
        stacks.append(tuple(stack))
    if not some:
        raise DecodeError(f"superfluous witness record at byte {pos}: every witness stack is empty")
    tx.witnesses = stacks
    return pos


def parse_transaction(buf: bytes, pos: int = 0) -> tuple[Transaction, int]:
    """Reads one transaction at `pos` of `buf` (bytes, not a view); returns it and the position after it.

    Raises DecodeError for truncation, non-canonical or oversized lengths, unknown flag bits and superfluous witnesses.
    A transaction without inputs and outputs parses, as in Core: judging it is a matter of consensus.
    """
    start = pos
    size = len(buf)
    if pos + 10 > size:  # version, two counts, lock time: nothing shorter can be one
        raise _end_of_data(pos)
    tx = Transaction()
    tx.version = _I32.unpack_from(buf, pos)[0]
    pos += 4
    flags = 0
    body = pos
    if buf[pos] == 0:
        flags = buf[pos + 1]
        pos += 2
        if flags:
            body = pos
            pos = _read_inputs(buf, pos, tx)
            pos = _read_outputs(buf, pos, tx)
        else:
            tx.prevouts, tx.script_sigs, tx.sequences, tx.values, tx.script_pubkeys = [], [], [], [], []
    else:
        pos = _read_inputs(buf, pos, tx)
        pos = _read_outputs(buf, pos, tx)
    body_end = pos
    if flags & 1:
        pos = _read_witnesses(buf, pos, tx)
    else:
        tx.witnesses = [()] * len(tx.prevouts)
    if flags & ~1:
        raise DecodeError(f"unknown transaction optional data at byte {start + 5}: flags 0x{flags:02x}")
    end = pos + 4
    if end > size:
        raise _end_of_data(pos)
    tx.locktime = _U32.unpack_from(buf, pos)[0]
    raw = buf if start == 0 and end == size else buf[start:end]
    tx.raw = raw
    tx.total_size = len(raw)
    tx.wtxid = sha256d(raw)
    tx.has_witness = flags == 1
    if flags:
        base = raw[:4] + raw[body - start : body_end - start] + raw[-4:]
        tx.base_size = len(base)
        tx.txid = sha256d(base)
    else:
        tx.base_size = tx.total_size
        tx.txid = tx.wtxid
    return tx, end


def decode_transaction(raw: bytes) -> Transaction:
    """Parses exactly one transaction. Raises DecodeError, also for trailing bytes."""
    tx, end = parse_transaction(bytes(raw))
    if end != len(raw):
        raise DecodeError(f"{len(raw) - end} trailing bytes after the transaction at byte {end}")
    return tx
