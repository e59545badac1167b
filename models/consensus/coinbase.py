"""A coinbase of our own: what Core's block template would have if its caller gave none (Core: node/miner.cpp)."""

from models.consensus.block_checks import coinbase_height_script, witness_commitment
from models.consensus.context import BlockContext
from models.consensus.params import WITNESS_COMMITMENT_PREFIX
from models.wire.compactsize import write_compact_size
from models.wire.hashes import ZERO_HASH
from models.wire.transaction import NULL_PREVOUT

__all__ = ["dummy_coinbase"]

_OP_0, _OP_TRUE = b"\x00", b"\x51"
_SEQUENCE = 0xFFFFFFFE  # so that the lock time counts


def dummy_coinbase(context: BlockContext, witness_root: bytes, fees: int = 0) -> bytes:
    """Serialised coinbase that claims subsidy and `fees` (satoshis) for an anyone-can-spend output.

    It carries the witness commitment over `witness_root` (the coinbase's own leaf being zero), and the reserved value
    where segwit is active.
    """
    height = context.height
    script_sig = coinbase_height_script(height) + (_OP_0 if height <= 16 else b"")
    commitment = WITNESS_COMMITMENT_PREFIX + witness_commitment(witness_root, ZERO_HASH)
    outputs = [(context.subsidy + fees, _OP_TRUE), (0, commitment)]
    parts = [
        (2).to_bytes(4, "little"),
        b"\x00\x01" if context.segwit else b"",
        b"\x01" + NULL_PREVOUT + write_compact_size(len(script_sig)) + script_sig,
        _SEQUENCE.to_bytes(4, "little"),
        write_compact_size(len(outputs)),
    ]
    for value, script in outputs:
        parts.append(value.to_bytes(8, "little") + write_compact_size(len(script)) + script)
    if context.segwit:
        parts.append(b"\x01\x20" + ZERO_HASH)
    parts.append((height - 1).to_bytes(4, "little"))
    return b"".join(parts)
