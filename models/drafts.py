"""The drafts of many declarations as the validating side keeps them: each is told about in numbered messages, which may
arrive out of order, and is judged only when all that were sent have been taken in.
"""

from typing import Any

import msgpack
import numpy as np

from models.consensus.context import BlockContext, TipVersion
from models.consensus.draft import BlockDraft
from models.consensus.layout import Rewire, Segment
from models.consensus.table import TxTable
from models.messages import unpack_batch
from models.wire.hashes import split_hashes
from models.wire.merkle import MerkleTree, witness_merkle_root

__all__ = ["DraftSlot", "Op", "pack_ops", "unpack_ops"]

#: ("open", joined wtxids) | ("add", positions, columns, source, rewires) | ("tip", version, flags)
#: | ("coins", segment, inputs, batch, version) | ("probes", positions, states, version) | ("scripts", positions, flags)
#: Columns of "add" may be None: they are then the message's attachment. Within one process they may be a TxTable.
Op = tuple[Any, ...]


ARRAY = 1  # msgpack extension: a flat array, its type's name and a zero byte first


def pack_ops(ops: list[Op]) -> bytes:
    """The ops of a short message as bytes, which cross to another process in half the time of arrays."""
    packed: bytes = msgpack.packb(ops, default=_array)
    return packed


def _array(value: Any) -> msgpack.ExtType | int:
    if isinstance(value, np.integer):
        return int(value)
    return msgpack.ExtType(ARRAY, value.dtype.str.encode() + b"\0" + value.tobytes())


def unpack_ops(packed: bytes) -> list[Op]:
    """The ops of `pack_ops`; arrays are read-only."""
    return list(msgpack.unpackb(packed, ext_hook=_read_array, use_list=False, strict_map_key=False))


def _read_array(_kind: int, data: bytes) -> np.ndarray:
    name, _, content = data.partition(b"\0")
    return np.frombuffer(content, name.decode())


FEW_MISSING = 64  # transactions whose late leaves are cheaper to set than the whole tree to build


class DraftSlot:
    """One declaration's draft, its transaction-id tree, and the messages that came too early."""

    def __init__(self) -> None:
        self.draft = BlockDraft(0)
        self._wtxids: list[bytes] = []
        self._witness_root: bytes | None = None
        self.applied = 0  # messages taken in
        self.tree: MerkleTree | None = None
        self._early: dict[int, tuple[list[Op], Any]] = {}

    def take(self, seq: int, ops: list[Op], attachment: Any = None) -> None:
        """Takes in message number `seq` (from 0), and those that waited for it. A message taken twice counts once."""
        if seq < self.applied:
            return
        self._early[seq] = (ops, attachment)
        while self.applied in self._early:
            ops, attachment = self._early.pop(self.applied)
            for op in ops:
                self._apply(op, attachment)
            self.applied += 1

    def _apply(self, op: Op, attachment: Any) -> None:
        kind = op[0]
        draft = self.draft
        if kind == "open":
            self._wtxids = split_hashes(op[1])
            self._witness_root = None
            self.draft = BlockDraft(len(self._wtxids))
            self.tree = None
        elif kind == "add":
            _, positions, columns, source, rewires = op
            table = columns if isinstance(columns, TxTable) else TxTable.from_columns(columns or attachment)
            segment = Segment(np.asarray(positions), table, np.array(source))
            draft.add(segment, [Rewire(*rewire) for rewire in rewires])
            if self.tree is not None:
                self.tree.set_leaves(dict(zip(positions.tolist(), table.txids(), strict=True)))
        elif kind == "tip":
            draft.begin(TipVersion(*op[1]), op[2])
        elif kind == "coins":
            _, number, inputs, flat, version = op
            draft.observe(number, inputs, unpack_batch(flat), TipVersion(*version))
        elif kind == "probes":
            draft.probed(op[1], op[2], TipVersion(*op[3]))
        elif kind == "scripts":
            draft.scripts_good(op[1], op[2])

    @property
    def witness_root(self) -> bytes:
        """Root over the declared wtxids with a zero hash for the coinbase (BIP141), worked out once."""
        if self._witness_root is None:
            self._witness_root = witness_merkle_root(self._wtxids)
        return self._witness_root

    @property
    def ready(self) -> bool:
        """Whether the longest work that takes nothing but the list is done."""
        return self._witness_root is not None

    def get_ready(self, context: BlockContext | None) -> None:
        """Works out what is known already, so that less is left when a verdict is asked for."""
        if not self.applied:
            return
        _ = self.witness_root
        if context is not None and self.draft.version == context.tip.version:
            self.draft.work_out(context)
        if 0 < len(self.draft.missing()) <= FEW_MISSING:  # with nothing missing nobody is away: a verdict comes next
            self.grow_tree()

    def drop_before(self, version: TipVersion) -> None:
        """Forgets what was observed of coins at tips before this one."""
        if self.draft.version is not None and self.draft.version < version:
            self.draft.forget_coins()

    def grow_tree(self) -> MerkleTree:
        """The tree over transaction ids, built once most of them are here; the coinbase's leaf is never set."""
        if self.tree is None:
            txids: list[bytes | None] = np.ascontiguousarray(self.draft.rows["txid"]).tolist()
            self.tree = MerkleTree(txids)
        return self.tree

    def coinbase_path(self) -> list[bytes]:
        """Siblings of the coinbase in the tree, lowest first, 32 bytes each."""
        return self.grow_tree().path_of_first()
