"""Signet's block signature (BIP325, Core: signet.cpp `CheckSignetBlockSolution`; SPEC 2.1 row 3)."""

from models.consensus.block_checks import commitment_index
from models.errors import DecodeError
from models.script.verify import DERSIG, NULLDUMMY, P2SH, WITNESS, verify_inputs
from models.wire.block import Block
from models.wire.compactsize import read_compact_size, write_compact_size
from models.wire.hashes import sha256d
from models.wire.merkle import merkle_root
from models.wire.transaction import Transaction

__all__ = ["check_signet_solution"]

SIGNET_HEADER = bytes.fromhex("ecc7daa2")
SIGNET_FLAGS = P2SH | WITNESS | DERSIG | NULLDUMMY

_OP_PUSHDATA1, _OP_PUSHDATA4 = 0x4C, 0x4E
_NULL_OUTPOINT = bytes(32) + b"\xff\xff\xff\xff"


def check_signet_solution(block: Block, challenge: bytes) -> bool:
    """Whether the coinbase carries a solution of `challenge` (a scriptPubKey) for this block.

    A block without a witness commitment has none. A commitment without a solution is tried with an empty one, so that
    a challenge that anybody can meet works.
    """
    if not block.transactions:
        return False
    coinbase = block.transactions[0]
    index = commitment_index(coinbase)
    if index is None:
        return False
    script, solution = _take_solution(coinbase.script_pubkeys[index])
    script_sig, witness = b"", b""
    if solution is not None:
        try:
            script_sig, witness = _split_solution(solution)
        except DecodeError:
            return False
    leaves = [_txid_with_output(coinbase, index, script), *(tx.txid for tx in block.transactions[1:])]
    root, _ = merkle_root(leaves)
    header = block.header
    block_data = (
        header.version.to_bytes(4, "little", signed=True) + header.prev_hash + root + header.time.to_bytes(4, "little")
    )
    to_spend = _transaction(_NULL_OUTPOINT, b"\x00" + bytes((len(block_data),)) + block_data, challenge, b"")
    spending = _transaction(sha256d(to_spend) + bytes(4), script_sig, b"\x6a", witness)
    return verify_inputs(spending, [(0, challenge)], SIGNET_FLAGS) == [True]


def _take_solution(script: bytes) -> tuple[bytes, bytes | None]:
    """The commitment script with the solution cut out, and the solution (Core: `FetchAndClearCommitmentSection`)."""
    out = bytearray()
    solution = None
    pos, end = 0, len(script)
    while pos < end:
        start = pos
        opcode = script[pos]
        pos += 1
        if opcode > _OP_PUSHDATA4:
            out += script[start:pos]
            continue
        size = opcode
        if opcode >= _OP_PUSHDATA1:
            width = 1 << (opcode - _OP_PUSHDATA1)
            size = int.from_bytes(script[pos : pos + width], "little")
            pos += width
        if pos + size > end:
            break  # does not parse any further; Core's loop ends here too
        data = script[pos : pos + size]
        pos += size
        if not size:
            out += script[start : start + 1]
            continue
        if solution is None and len(data) > len(SIGNET_HEADER) and data.startswith(SIGNET_HEADER):
            solution = data[len(SIGNET_HEADER) :]
            data = SIGNET_HEADER
        out += _push(data)
    return (bytes(out), solution) if solution is not None else (script, None)


def _push(data: bytes) -> bytes:
    size = len(data)
    if size < _OP_PUSHDATA1:
        return bytes((size,)) + data
    if size <= 0xFF:
        return b"\x4c" + bytes((size,)) + data
    if size <= 0xFFFF:
        return b"\x4d" + size.to_bytes(2, "little") + data
    return b"\x4e" + size.to_bytes(4, "little") + data


def _split_solution(solution: bytes) -> tuple[bytes, bytes]:
    """scriptSig, and the serialised witness stack (empty for no items). Raises DecodeError for anything left over."""
    size, pos = read_compact_size(solution, 0)
    script_sig, pos = solution[pos : pos + size], pos + size
    start = pos
    count, pos = read_compact_size(solution, pos)
    for _ in range(count):
        size, pos = read_compact_size(solution, pos)
        pos += size
    if pos != len(solution):
        raise DecodeError("a signet solution does not end where its witness ends")
    return script_sig, solution[start:] if count else b""


def _txid_with_output(coinbase: Transaction, index: int, script: bytes) -> bytes:
    """Id of the coinbase with another script in output `index`."""
    scripts = [*coinbase.script_pubkeys]
    scripts[index] = script
    parts = [coinbase.version.to_bytes(4, "little", signed=True), write_compact_size(len(coinbase.prevouts))]
    for prevout, script_sig, sequence in zip(coinbase.prevouts, coinbase.script_sigs, coinbase.sequences, strict=True):
        parts += [prevout, write_compact_size(len(script_sig)), script_sig, sequence.to_bytes(4, "little")]
    parts.append(write_compact_size(len(scripts)))
    for value, output in zip(coinbase.values, scripts, strict=True):
        parts += [value.to_bytes(8, "little", signed=True), write_compact_size(len(output)), output]
    parts.append(coinbase.locktime.to_bytes(4, "little"))
    return sha256d(b"".join(parts))


def _transaction(prevout: bytes, script_sig: bytes, script: bytes, witness: bytes) -> bytes:
    """A transaction of version 0, one input (sequence 0), one output of value 0; `witness` is the whole stack."""
    body = b"".join(
        (
            b"\x01" + prevout + write_compact_size(len(script_sig)) + script_sig + bytes(4),
            b"\x01" + bytes(8) + write_compact_size(len(script)) + script,
        )
    )
    return bytes(4) + (b"\x00\x01" + body + witness if witness else body) + bytes(4)
