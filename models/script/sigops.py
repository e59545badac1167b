"""Counting signature operations as Core's block limit counts them. An input's facts are counted before its coin is
known, so that the cost follows from the class of the coin's script alone, without another look at the bytes.
"""

import re

from models.script.classes import OTHER, P2SH, last_push, script_class

__all__ = ["MAX_PUBKEYS_PER_MULTISIG", "WITNESS_SCALE_FACTOR", "count_sigops", "input_sigops"]

MAX_PUBKEYS_PER_MULTISIG = 20  # script/script.h
WITNESS_SCALE_FACTOR = 4  # consensus/consensus.h: what one sigop outside of a v0 witness costs

_OP_PUSHDATA1 = 0x4C
_OP_PUSHDATA4 = 0x4E
_OP_1 = 0x51
_OP_16 = 0x60
_OP_CHECKSIG = 0xAC
_OP_CHECKSIGVERIFY = 0xAD
_OP_CHECKMULTISIGVERIFY = 0xAF

# Most scripts of a block hold no byte that could be a sigop, or are of a form in which such a byte is data.
_NO_SIGOP = re.compile(
    rb"[^\xac-\xaf]*+|\x00\x14.{20}|[\x00\x51]\x20.{32}|\xa9\x14.{20}\x87",
    re.DOTALL,
).fullmatch


def count_sigops(script: bytes, accurate: bool) -> int:
    """Signature operations in a script, not yet scaled to cost.

    CHECKSIG and CHECKSIGVERIFY count one. CHECKMULTISIG and CHECKMULTISIGVERIFY count 20, or, if `accurate` and the
    opcode before is OP_1..OP_16, that number. Counting stops at the first opcode that does not parse; what came
    before it counts. Source: `CScript::GetSigOpCount(bool)`. Runs twice per input and once per output of a block, so
    a regular expression sorts out the scripts that cannot hold one; the loop is linear in the script's length.
    """
    if _NO_SIGOP(script):
        return 0
    count = 0
    previous = -1
    position, end = 0, len(script)
    while position < end:
        opcode = script[position]
        position += 1
        if opcode > _OP_PUSHDATA4:
            if _OP_CHECKSIG <= opcode <= _OP_CHECKMULTISIGVERIFY:
                if opcode <= _OP_CHECKSIGVERIFY:
                    count += 1
                elif accurate and _OP_1 <= previous <= _OP_16:
                    count += previous - _OP_1 + 1
                else:
                    count += MAX_PUBKEYS_PER_MULTISIG
        elif opcode < _OP_PUSHDATA1:
            position += opcode
        else:
            # A length cut off by the end reads as a short number; the position is past the end all the same.
            width = 1 << (opcode - _OP_PUSHDATA1)
            position += width + int.from_bytes(script[position : position + width], "little")
        previous = opcode
    return count


def input_sigops(script_sig: bytes, witness: tuple[bytes, ...]) -> tuple[int, int, int]:
    """What an input contributes to the sigop cost of its transaction, for every class of coin it may turn out to spend.

    Returns `(p2sh_accurate, witness_script_accurate, nested)`:

    - `p2sh_accurate`: sigops in the last push of a push-only scriptSig; 0 if the scriptSig is not push-only;
    - `witness_script_accurate`: sigops in the last witness item, as if it were a witness script; 0 without a witness;
    - `nested`: class of the last push of a push-only scriptSig if that is a witness program, else `OTHER`.

    The cost beyond the legacy count follows from the class of the coin's script:

    ====================== ==================== ===================================================================
    class                  flag                 cost
    ====================== ==================== ===================================================================
    P2SH                   P2SH                 4 * p2sh_accurate
    WITNESS_V0_KEYHASH     WITNESS              1
    WITNESS_V0_SCRIPTHASH  WITNESS              witness_script_accurate
    P2SH                   WITNESS              1 if nested is WITNESS_V0_KEYHASH, witness_script_accurate if nested is
                                                WITNESS_V0_SCRIPTHASH, else 0
    anything else                               0
    ====================== ==================== ===================================================================

    Source: `CScript::GetSigOpCount(const CScript&)`, `CountWitnessSigOps`, `GetTransactionSigOpCost`. Not for the input
    of a coinbase, which Core leaves out.
    """
    witness_script_accurate = count_sigops(witness[-1], True) if witness else 0
    if not script_sig:
        return 0, witness_script_accurate, OTHER
    redeem_script = last_push(script_sig)
    if redeem_script is None:
        return 0, witness_script_accurate, OTHER
    nested = script_class(redeem_script)
    if nested == P2SH:
        nested = OTHER
    return count_sigops(redeem_script, True), witness_script_accurate, nested
