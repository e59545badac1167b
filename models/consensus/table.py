"""Transactions as columns: what every later rule needs of them, worked out once when they are parsed.

A `TxRecord` is one transaction as packed rows that can be kept for long and joined fast (the mempool's form); a
`TxTable` is many of them side by side as numpy arrays. Both carry the raw bytes too. Rows never hold anything that
depends on the chain: the coins that inputs spend are in `models.coins.columns`.
"""

from collections.abc import Iterable, Sequence
from struct import Struct
from typing import NamedTuple

import numpy as np

from models.consensus.params import MAX_MONEY
from models.consensus.tx_check import check_transaction
from models.script.classes import is_unspendable, script_class
from models.script.sigops import count_sigops, input_sigops
from models.wire.transaction import Transaction

__all__ = [
    "ALL_FINAL",
    "COINBASE",
    "HAS_WITNESS",
    "IN_ROW",
    "OUT_ROW",
    "TX_ROW",
    "TxRecord",
    "TxTable",
    "starts_of",
]

HAS_WITNESS = 1
COINBASE = 2
ALL_FINAL = 4  # every sequence is 0xffffffff, so the lock time does not count

#: One transaction. Sizes in bytes, `value_out` in satoshis (0 if out of range: `check` tells).
TX_ROW = np.dtype(
    [
        ("txid", "V32"),
        ("wtxid", "V32"),
        ("value_out", "<i8"),
        ("total_size", "<u4"),
        ("base_size", "<u4"),
        ("n_in", "<u4"),
        ("n_out", "<u4"),
        ("legacy_sigops", "<u4"),  # inaccurate count over all scriptSigs and scriptPubKeys, not scaled
        ("locktime", "<u4"),
        ("version", "<u4"),  # BIP68 compares it unsigned
        ("check", "u1"),  # index into reasons.TX_CHECK_REASONS
        ("flags", "u1"),
        ("pad", "<u2"),
    ]
)
#: One input. `p2sh_sigops`, `witness_sigops`, `nested`: see models.script.sigops.input_sigops.
IN_ROW = np.dtype(
    [
        ("prevout", "V36"),
        ("sequence", "<u4"),
        ("p2sh_sigops", "<u4"),
        ("witness_sigops", "<u4"),
        ("nested", "u1"),
        ("pad", "V3"),
    ]
)
#: One output. `unspendable` outputs never become coins (Core: CScript::IsUnspendable).
OUT_ROW = np.dtype(
    [("value", "<i8"), ("script_size", "<u4"), ("script_class", "u1"), ("unspendable", "u1"), ("pad", "<u2")]
)

_PACK_TX = Struct("<32s32sqIIIIIIIBBH")
_PACK_IN = Struct("<36sIIIB3x")
_PACK_OUT = Struct("<qIBBH")
assert _PACK_TX.size == TX_ROW.itemsize and _PACK_IN.size == IN_ROW.itemsize and _PACK_OUT.size == OUT_ROW.itemsize

_SPREAD = 0x9E3779B97F4A7C15  # odd, so that multiplying by it loses nothing
_FINAL_SEQUENCE = 0xFFFFFFFF
_SIGOPS_CAP = 0xFFFFFFFF


class TxRecord(NamedTuple):  # made 5,900 times for a block, and a frozen dataclass takes a microsecond longer to make
    """One transaction, packed: `row`, `ins`, `outs` are rows of the dtypes above; `scripts` its scriptPubKeys."""

    raw: bytes
    row: bytes
    ins: bytes
    outs: bytes
    scripts: bytes

    @classmethod
    def of(cls, tx: Transaction) -> "TxRecord":
        """Works out every fact that needs nothing but the transaction. Costs about 20 us for two inputs."""
        legacy = 0
        ins = []
        all_final = True
        for prevout, script_sig, sequence, witness in zip(
            tx.prevouts, tx.script_sigs, tx.sequences, tx.witnesses, strict=True
        ):
            if script_sig:
                legacy += count_sigops(script_sig, False)
            p2sh, witness_sigops, nested = input_sigops(script_sig, witness)
            ins.append(_PACK_IN.pack(prevout, sequence, p2sh, witness_sigops, nested))
            all_final = all_final and sequence == _FINAL_SEQUENCE
        outs = []
        for value, script in zip(tx.values, tx.script_pubkeys, strict=True):
            legacy += count_sigops(script, False)
            outs.append(_PACK_OUT.pack(value, len(script), script_class(script), is_unspendable(script), 0))
        check = check_transaction(tx)
        value_out = sum(tx.values)
        flags = tx.has_witness * HAS_WITNESS | tx.is_coinbase * COINBASE | all_final * ALL_FINAL
        row = _PACK_TX.pack(
            tx.txid,
            tx.wtxid,
            value_out if 0 <= value_out <= MAX_MONEY else 0,
            tx.total_size,
            tx.base_size,
            len(tx.prevouts),
            len(tx.values),
            min(legacy, _SIGOPS_CAP),
            tx.locktime,
            tx.version & 0xFFFFFFFF,
            check,
            flags,
            0,
        )
        return cls(tx.raw, row, b"".join(ins), b"".join(outs), b"".join(tx.script_pubkeys))

    @property
    def txid(self) -> bytes:
        """32 bytes, internal order."""
        return self.row[:32]

    @property
    def wtxid(self) -> bytes:
        """32 bytes, internal order."""
        return self.row[32:64]

    @property
    def prevouts(self) -> list[bytes]:
        """The outpoints spent, 36 bytes each."""
        width = IN_ROW.itemsize
        return [self.ins[at : at + 36] for at in range(0, len(self.ins), width)]

    def output(self, vout: int) -> tuple[int, bytes]:
        """Value in satoshis and scriptPubKey of output `vout`; IndexError if there is none."""
        if not 0 <= vout < self.n_out:
            raise IndexError(f"output {vout} of {self.n_out}")
        rows = np.frombuffer(self.outs, OUT_ROW)
        at = int(rows["script_size"][:vout].sum(dtype=np.int64))
        return int(rows["value"][vout]), self.scripts[at : at + int(rows["script_size"][vout])]

    @property
    def n_out(self) -> int:
        """Number of outputs."""
        return len(self.outs) // OUT_ROW.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of packed data, as budgets count them."""
        return len(self.raw) + len(self.row) + len(self.ins) + len(self.outs) + len(self.scripts)


def starts_of(counts: np.ndarray) -> np.ndarray:
    """Offsets of consecutive groups with these sizes: n + 1 numbers, the first 0, the last their sum."""
    starts = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=starts[1:])
    return starts


class TxTable:
    """Transactions side by side, in the order given: `rows`, and their inputs and outputs one after the other.

    `in_start[i]:in_start[i + 1]` are the inputs of transaction i, `out_start` likewise; `raw_start` and `script_start`
    cut `raws` (whole transactions) and `scripts` (scriptPubKeys). Arrays may be read-only views of shared memory.
    """

    __slots__ = (
        "_outpoint_words",
        "_prev_words",
        "in_start",
        "ins",
        "out_start",
        "outs",
        "raw_start",
        "raws",
        "rows",
        "script_start",
        "scripts",
    )

    def __init__(self, rows: np.ndarray, ins: np.ndarray, outs: np.ndarray, scripts: np.ndarray, raws: np.ndarray):
        self.rows = rows
        self.ins = ins
        self.outs = outs
        self.scripts = scripts
        self.raws = raws
        self.in_start = starts_of(rows["n_in"])
        self.out_start = starts_of(rows["n_out"])
        self.raw_start = starts_of(rows["total_size"])
        self.script_start = starts_of(outs["script_size"])
        self._prev_words: np.ndarray | None = None
        self._outpoint_words: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.rows)

    @classmethod
    def from_records(cls, records: Sequence[TxRecord]) -> "TxTable":
        """Joins packed transactions; no work per input."""
        columns = zip(*records, strict=True) if records else ((),) * 5
        raws, rows, ins, outs, scripts = (b"".join(column) for column in columns)
        return cls(
            np.frombuffer(rows, TX_ROW),
            np.frombuffer(ins, IN_ROW),
            np.frombuffer(outs, OUT_ROW),
            np.frombuffer(scripts, np.uint8),
            np.frombuffer(raws, np.uint8),
        )

    @classmethod
    def from_transactions(cls, transactions: Iterable[Transaction]) -> "TxTable":
        """Works out the facts of parsed transactions."""
        return cls.from_records([TxRecord.of(tx) for tx in transactions])

    def to_columns(self) -> dict[str, np.ndarray]:
        """Flat arrays for one message between processes; `from_columns` undoes it without a copy."""
        return {
            "rows": self.rows.view(np.uint8),
            "ins": self.ins.view(np.uint8),
            "outs": self.outs.view(np.uint8),
            "scripts": self.scripts,
            "raws": self.raws,
        }

    @classmethod
    def from_columns(cls, columns: dict[str, np.ndarray]) -> "TxTable":
        """The table of a message; its arrays keep the message's memory alive and may be read-only."""
        return cls(
            columns["rows"].view(TX_ROW),
            columns["ins"].view(IN_ROW),
            columns["outs"].view(OUT_ROW),
            columns["scripts"],
            columns["raws"],
        )

    def prevouts(self) -> list[bytes]:
        """All outpoints spent, 36 bytes each, in order."""
        return np.ascontiguousarray(self.ins["prevout"]).tolist()

    def vouts(self, inputs: np.ndarray) -> np.ndarray:
        """Output numbers that inputs spend, as int64."""
        prevouts = np.ascontiguousarray(self.ins["prevout"][inputs]).view(np.uint8).reshape(-1, 36)
        return np.ascontiguousarray(prevouts[:, 32:]).view("<u4")[:, 0].astype(np.int64)

    @property
    def txid_words(self) -> np.ndarray:
        """First eight bytes of each transaction's id as a number, comparable with `prev_words`."""
        heads = self.rows.view(np.uint8).reshape(len(self.rows), TX_ROW.itemsize)[:, :8]
        return np.ascontiguousarray(heads).view("<u8").reshape(-1)

    @property
    def prev_words(self) -> np.ndarray:
        """First eight bytes of each input's prevout as a number: equal where the txids are, and hardly ever else."""
        if self._prev_words is None:
            heads = self.ins.view(np.uint8).reshape(len(self.ins), IN_ROW.itemsize)[:, :8]
            self._prev_words = np.ascontiguousarray(heads).view("<u8").reshape(-1)
        return self._prev_words

    @property
    def outpoint_words(self) -> np.ndarray:
        """A number for each input's prevout: equal where the outpoints are, and hardly ever else."""
        if self._outpoint_words is None:
            tails = self.ins.view(np.uint8).reshape(len(self.ins), IN_ROW.itemsize)[:, 32:36]
            vouts = np.ascontiguousarray(tails).view("<u4").reshape(-1)
            self._outpoint_words = self.prev_words * np.uint64(_SPREAD) + vouts
        return self._outpoint_words

    def txids(self) -> list[bytes]:
        """Transaction ids, internal order."""
        return np.ascontiguousarray(self.rows["txid"]).tolist()

    def wtxids(self) -> list[bytes]:
        """Witness transaction ids, internal order."""
        return np.ascontiguousarray(self.rows["wtxid"]).tolist()

    def raw(self, i: int) -> bytes:
        """Serialisation with witness of transaction i."""
        return self.raws[self.raw_start[i] : self.raw_start[i + 1]].tobytes()

    def output(self, i: int, vout: int) -> tuple[int, bytes]:
        """Value in satoshis and scriptPubKey of output `vout` of transaction i."""
        at = int(self.out_start[i]) + vout
        script = self.scripts[self.script_start[at] : self.script_start[at + 1]].tobytes()
        return int(self.outs["value"][at]), script

    @property
    def nbytes(self) -> int:
        """Bytes of the columns."""
        return sum(a.nbytes for a in (self.rows, self.ins, self.outs, self.scripts, self.raws))
