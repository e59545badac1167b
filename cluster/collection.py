"""What a client holds of a node: a declaration, the template of a valid one, and a block of our own. Actors do the
work; these objects translate, and show themselves in a notebook.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import ray

from models.consensus.verdict import Kind, Verdict
from models.errors import Busy, ClientError, CollectionLost
from models.messages import unpack_verdict, unwrap
from models.wire.block import BlockHeader, serialize_block
from models.wire.hashes import from_display, to_display
from models.wire.merkle import path_root
from models.wire.transaction import decode_transaction

__all__ = [
    "AssembledTemplate",
    "CALL_TIMEOUT",
    "Collection",
    "Template",
    "check_options",
    "html_table",
    "raw_bytes",
    "raw_list",
]

CALL_TIMEOUT = 120.0  # seconds; a hang guard above every deadline inside
JUST_NOW = 0.01  # seconds


class Template:
    """A valid block that a miner may solve. Its transactions stay with the collection's actor until they are needed."""

    def __init__(self, owner: "Collection", packed: tuple[Any, ...]):
        self._owner = owner
        self._number, self.header, self.coinbase, path, self.min_time, self.max_time, self.fees = packed
        owner._learn_path(path)

    @property
    def coinbase_merkle_path(self) -> list[bytes]:
        """Siblings of the coinbase in the merkle tree, lowest first, 32 bytes each: worked out when it is asked for,
        where it was not yet."""
        return self._owner._coinbase_path()

    @property
    def block(self) -> bytes:
        """Full bytes of the block as it was checked, its merkle root still zero."""
        return self._owner._call("template_block", self._number)

    def submit_solution(self, version: int, time: int, nonce: int, coinbase: bytes) -> bytes:
        """Full bytes of the solved block: this template with another version, time, nonce and coinbase.

        Raises ClientError for a coinbase that does not decode. It is not submitted: `node.submit_block` does that.
        """
        return self._owner._call("template_block", self._number, _solution(version, time, nonce, coinbase))

    def __repr__(self) -> str:
        return f"<Template on {to_display(self.header[4:36])} fees={self.fees} sat>"

    def _repr_html_(self) -> str:
        rows = [
            ("on block", f"<code>{to_display(self.header[4:36])}</code>"),
            ("fees", f"{self.fees:,} sat"),
            ("coinbase merkle path", f"{len(self.coinbase_merkle_path)} hashes"),
            ("block time, Unix seconds", f"{self.min_time} to {self.max_time}"),
        ]
        return html_table(rows)


@dataclass(frozen=True)
class AssembledTemplate:
    """A block of our own, held here as a whole. Fees in satoshis, sizes in bytes; hashes in internal order."""

    header: bytes
    coinbase: bytes
    coinbase_merkle_path: list[bytes]
    min_time: int
    max_time: int
    fees: int  # of all transactions
    transactions: list[bytes]
    tx_fees: list[int]
    tx_sigops: list[int]  # sigop cost of each

    @classmethod
    def of(cls, packed: tuple[Any, ...]) -> "AssembledTemplate":
        """From the template actor's flat answer."""
        header, coinbase, path, earliest, latest, fees, blob, sizes, tx_fees, tx_sigops = packed
        ends = list(accumulate(sizes, initial=0))
        raws = [blob[start:end] for start, end in pairwise(ends)]
        return cls(header, coinbase, list(path), earliest, latest, fees, raws, tx_fees, tx_sigops)

    @property
    def block(self) -> bytes:
        """Full bytes of the block as it was checked, its merkle root still zero."""
        return serialize_block(BlockHeader.parse(self.header), [self.coinbase, *self.transactions])

    def submit_solution(self, version: int, time: int, nonce: int, coinbase: bytes) -> bytes:
        """Full bytes of the solved block. Raises ClientError for a coinbase that does not decode."""
        version, time, nonce, coinbase = _solution(version, time, nonce, coinbase)
        made = BlockHeader.parse(self.header)
        root = path_root(decode_transaction(coinbase).txid, self.coinbase_merkle_path)
        header = BlockHeader(version, made.prev_hash, root, time, made.bits, nonce)
        return serialize_block(header, [coinbase, *self.transactions])

    def __repr__(self) -> str:
        tip = to_display(self.header[4:36])
        return f"<AssembledTemplate on {tip} of {len(self.transactions)} transactions, fees={self.fees} sat>"


class Collection:
    """One declaration, held by an actor. Positions start at 0; the coinbase is not counted."""

    def __init__(self, actor: Any, key: str, unknown: list[int], size: int):
        self._actor = actor
        self._key = key
        self._size = size
        self._unknown = unknown
        self._asked = time.monotonic()  # when an answer last brought `unknown`, which only this client changes
        self._closed = False
        self._path: list[bytes] | None = None  # of the coinbase in the merkle tree, the same for every template
        self._path_wanted = False  # by a template that may outlive this

    def _learn_path(self, path: Sequence[bytes] | None) -> None:
        if path is not None:
            self._path = list(path)
        self._path_wanted = True

    def _coinbase_path(self) -> list[bytes]:
        if self._path is None:
            self._path = list(self._call("coinbase_path"))
        return list(self._path)

    def _call(self, method: str, *args: Any) -> Any:
        if self._closed:
            raise CollectionLost("this collection was closed; declare it again")
        try:
            return unwrap(ray.get(getattr(self._actor, method).remote(self._key, *args), timeout=CALL_TIMEOUT))
        except ray.exceptions.RayActorError:
            raise CollectionLost("the actor that held this collection died; declare it again") from None
        except ray.exceptions.GetTimeoutError:
            raise Busy(f"no answer within {CALL_TIMEOUT:g} s") from None

    def unknown_tx_pos(self) -> list[int]:
        """Positions of transactions that must still be supplied, ascending.

        Where they came with an answer of just now, that is believed, and costs no message.
        """
        if self._closed or not 0 <= time.monotonic() - self._asked < JUST_NOW:
            self._unknown = self._call("unknown_tx_pos")
        return list(self._unknown)

    def add_missing_txs(self, transactions: Sequence[bytes]) -> None:
        """Supplies raw transactions. Raises ClientError with Core's text; the collection is then as it was."""
        self._unknown = self._call("add_missing_txs", raw_list(transactions))
        self._asked = time.monotonic()

    def make_template(
        self,
        prevhash: str | bytes,
        coinbase: bytes | None = None,
        missing: Sequence[bytes] = (),
        now: int | None = None,
        script_mode: str | None = None,
    ) -> Verdict:
        """The verdict on this declaration. May be called any number of times.

        `prevhash` in display hex, or 32 bytes as in `Tip.hash`; a raw coinbase, or None for a dummy that claims the
        subsidy only; `missing` is what is still to be supplied, in the same message.

        Raises ClientError for a client's mistake, CollectionLost when the actor that held it died.
        """
        first = None if coinbase is None else raw_bytes(coinbase, "coinbase")
        options = check_options(now, script_mode)
        if missing:
            self._asked = -1.0  # some of them may be known now
        flat = self._call("make_template", _hash(prevhash, "prevhash"), first, raw_list(missing), *options, False)
        verdict = unpack_verdict(flat)
        if verdict.kind is not Kind.VALID:
            return verdict
        template = Template(self, verdict.template)
        return Verdict(verdict.kind, verdict.reason, verdict.debug, None, "", template, verdict.timings)

    def wait_prefetched(self) -> dict[str, Any]:
        """For experiments: returns the counters once nothing more is on its way for this collection."""
        return self._call("wait_prefetched")

    def stats(self) -> dict[str, Any]:
        """Bytes, counts and hits of this collection."""
        return self._call("collection_stats")

    def close(self) -> None:
        """Frees it. Harmless to repeat."""
        if not self._closed:
            try:
                if self._path_wanted:
                    self._coinbase_path()
                self._call("close")
            except CollectionLost:
                pass
            self._closed = True

    def __enter__(self) -> "Collection":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{len(self._unknown)} unknown"
        return f"<Collection of {self._size} transactions, {state}>"

    def _repr_html_(self) -> str:
        if self._closed:
            return "<b>Collection</b> (closed)"
        stats = self.stats()
        share = 100 * stats["bytes"] / stats["budget"]
        rows = [
            ("transactions", f"{self._size}, {stats['unknown']} unknown"),
            ("prefetch", "on its way" if not stats["idle"] else ("done" if stats["prefetching"] else "none")),
            ("observations", f"{stats['observations']:,} coins and absences, {stats['probes']:,} BIP30 absences"),
            ("scripts", f"{stats['scripts_verified']:,} transactions verified"),
            ("memory", f"{stats['bytes']:,} of {stats['budget']:,} bytes ({share:.1f} %)"),
        ]
        return html_table(rows)


def html_table(rows: Sequence[tuple[str, str]]) -> str:
    """Names and values, for a notebook. The values are HTML."""
    cells = "".join(f"<tr><td><b>{name}</b></td><td>{value}</td></tr>" for name, value in rows)
    return f"<table>{cells}</table>"


def _hash(value: str | bytes, what: str) -> bytes:
    """32 bytes in internal order, from those or from display hex."""
    if isinstance(value, bytes) and len(value) == 32:
        return value
    return from_display(value, what)  # type: ignore[arg-type]  # it says what is wrong with anything else


def raw_list(transactions: Sequence[bytes]) -> list[bytes]:
    """Raises ClientError for anything that is not bytes (hex strings are a common slip)."""
    return [raw_bytes(raw, f"transaction {number}") for number, raw in enumerate(transactions)]


def raw_bytes(value: bytes, what: str) -> bytes:
    if not isinstance(value, (bytes, bytearray, memoryview)):
        raise ClientError(f"{what} must be bytes, not {type(value).__name__}")
    return bytes(value)


def _solution(version: int, time: int, nonce: int, coinbase: bytes) -> tuple[int, int, int, bytes]:
    """Raises ClientError for what does not fit into a header. The version may be given without its sign."""
    for name, value, lowest in (("version", version, -(2**31)), ("time", time, 0), ("nonce", nonce, 0)):
        if not isinstance(value, int) or not lowest <= value < 2**32:
            raise ClientError(f"{name} must be a whole number from {lowest} to {2**32 - 1}, not {value!r}")
    return version - 2**32 if version >= 2**31 else version, time, nonce, raw_bytes(coinbase, "coinbase")


def check_options(now: int | None, script_mode: str | None) -> tuple[int | None, str | None]:
    """Raises ClientError for what is no time or no mode."""
    if now is not None and (not isinstance(now, int) or not 0 <= now < 2**32):
        raise ClientError(f"now must be a Unix time, not {now!r}")
    if script_mode not in (None, "deferred", "inline"):
        raise ClientError(f"script_mode must be deferred or inline, not {script_mode!r}")
    return now, script_mode
