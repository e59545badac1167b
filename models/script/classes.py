"""What consensus needs to know of a scriptPubKey, as a small integer: how the signature operations of the input that
spends it are counted, and whether the output can be spent at all. Standardness and address types play no part here.
"""

__all__ = [
    "MAX_SCRIPT_SIZE",
    "OTHER",
    "P2SH",
    "WITNESS_OTHER",
    "WITNESS_V0_KEYHASH",
    "WITNESS_V0_SCRIPTHASH",
    "is_push_only",
    "is_unspendable",
    "last_push",
    "script_class",
    "witness_program",
]

OTHER = 0
P2SH = 1
WITNESS_V0_KEYHASH = 2
WITNESS_V0_SCRIPTHASH = 3
WITNESS_OTHER = 4  # any other witness program, taproot among them: spending it costs no sigops

MAX_SCRIPT_SIZE = 10_000  # bytes (Core: script/script.h)

_OP_PUSHDATA1 = 0x4C
_OP_PUSHDATA2 = 0x4D
_OP_PUSHDATA4 = 0x4E
_OP_1 = 0x51
_OP_16 = 0x60
_OP_RETURN = 0x6A

_MIN_WITNESS_SCRIPT = 4  # bytes: version, length, a program of two
_MAX_WITNESS_SCRIPT = 42


def script_class(script: bytes) -> int:
    """One of `OTHER`, `P2SH`, `WITNESS_V0_KEYHASH`, `WITNESS_V0_SCRIPTHASH`, `WITNESS_OTHER`.

    Source: `CScript::IsPayToScriptHash`, `CScript::IsWitnessProgram`. Runs once per coin of a block.
    """
    size = len(script)
    if size == 22 and script.startswith(b"\x00\x14"):
        return WITNESS_V0_KEYHASH
    if size == 34 and script.startswith(b"\x00\x20"):
        return WITNESS_V0_SCRIPTHASH
    if size == 23 and script.startswith(b"\xa9\x14") and script[22] == 0x87:
        return P2SH
    if _MIN_WITNESS_SCRIPT <= size <= _MAX_WITNESS_SCRIPT and script[1] + 2 == size:
        version = script[0]
        if version == 0 or _OP_1 <= version <= _OP_16:
            return WITNESS_OTHER
    return OTHER


def witness_program(script: bytes) -> tuple[int, bytes] | None:
    """Version (0..16) and program (2..40 bytes) of a witness scriptPubKey, or None.

    Source: `CScript::IsWitnessProgram`, BIP141.
    """
    size = len(script)
    if not _MIN_WITNESS_SCRIPT <= size <= _MAX_WITNESS_SCRIPT or script[1] + 2 != size:
        return None
    opcode = script[0]
    if opcode == 0:
        return 0, script[2:]
    if _OP_1 <= opcode <= _OP_16:
        return opcode - _OP_1 + 1, script[2:]
    return None


def is_unspendable(script: bytes) -> bool:
    """True if no input can ever spend this output, so that it never becomes a coin.

    Source: `CScript::IsUnspendable`: starts with OP_RETURN, or is longer than `MAX_SCRIPT_SIZE`.
    """
    return len(script) > MAX_SCRIPT_SIZE or (len(script) > 0 and script[0] == _OP_RETURN)


def last_push(script: bytes) -> bytes | None:
    """Data of the last push of a push-only script; empty for an empty script; None if it is not push-only.

    Push-only is every opcode up to OP_16, OP_RESERVED among them. Opcodes that carry no bytes of their own (OP_0,
    OP_1NEGATE, OP_1..OP_16) give empty data here, as `CScript::GetOp` clears what it returned before; so this is not
    always what the interpreter would find on its stack. Source: `CScript::IsPushOnly`, and the loop both of
    `CScript::GetSigOpCount(scriptSig)` and of `CountWitnessSigOps`.
    """
    position, end = 0, len(script)
    data = b""
    while position < end:
        opcode = script[position]
        position += 1
        if opcode > _OP_16:
            return None
        if opcode > _OP_PUSHDATA4:
            data = b""
            continue
        if opcode < _OP_PUSHDATA1:
            size = opcode
        else:
            width = 1 << (opcode - _OP_PUSHDATA1)
            if end - position < width:
                return None
            size = int.from_bytes(script[position : position + width], "little")
            position += width
        if end - position < size:
            return None
        data = script[position : position + size]
        position += size
    return data


def is_push_only(script: bytes) -> bool:
    """True if the script parses to its end and holds no opcode above OP_16. Source: `CScript::IsPushOnly`."""
    return last_push(script) is not None
