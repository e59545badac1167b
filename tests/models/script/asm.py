"""The notation of scripts in Core's test vectors, turned into bytes: numbers, 'text', raw 0x.. bytes and opcode names
(Core: `ParseScript`, core_io.cpp). Only the tests read it.
"""

FIRST_NAMED = 0x61  # OP_NOP
_NAMES = """
    NOP VER IF NOTIF VERIF VERNOTIF ELSE ENDIF VERIFY RETURN
    TOALTSTACK FROMALTSTACK 2DROP 2DUP 3DUP 2OVER 2ROT 2SWAP IFDUP DEPTH DROP DUP NIP OVER PICK ROLL ROT SWAP TUCK
    CAT SUBSTR LEFT RIGHT SIZE INVERT AND OR XOR EQUAL EQUALVERIFY RESERVED1 RESERVED2
    1ADD 1SUB 2MUL 2DIV NEGATE ABS NOT 0NOTEQUAL ADD SUB MUL DIV MOD LSHIFT RSHIFT BOOLAND BOOLOR NUMEQUAL
    NUMEQUALVERIFY NUMNOTEQUAL LESSTHAN GREATERTHAN LESSTHANOREQUAL GREATERTHANOREQUAL MIN MAX WITHIN
    RIPEMD160 SHA1 SHA256 HASH160 HASH256 CODESEPARATOR CHECKSIG CHECKSIGVERIFY CHECKMULTISIG CHECKMULTISIGVERIFY
    NOP1 CHECKLOCKTIMEVERIFY CHECKSEQUENCEVERIFY NOP4 NOP5 NOP6 NOP7 NOP8 NOP9 NOP10 CHECKSIGADD
"""
OPCODES = {name: FIRST_NAMED + offset for offset, name in enumerate(_NAMES.split())} | {"RESERVED": 0x50}


def push(data: bytes) -> bytes:
    """The shortest push by length of data; never turned into OP_1..OP_16 (Core: `CScript << vector`)."""
    size = len(data)
    if size < 0x4C:
        return bytes([size]) + data
    if size <= 0xFF:
        return b"\x4c" + bytes([size]) + data
    if size <= 0xFFFF:
        return b"\x4d" + size.to_bytes(2, "little") + data
    return b"\x4e" + size.to_bytes(4, "little") + data


def number(value: int) -> bytes:
    """The push of a number (Core: `CScript << int64_t`): one opcode for -1..16, else little-endian with a sign bit."""
    if value == 0:
        return b"\x00"
    if value == -1 or 1 <= value <= 16:
        return bytes([0x50 + value])
    magnitude = abs(value)
    data = bytearray(magnitude.to_bytes((magnitude.bit_length() + 8) // 8, "little"))  # room for the sign bit
    if value < 0:
        data[-1] |= 0x80
    return push(bytes(data))


def parse_asm(text: str) -> bytes:
    """Script bytes of one line of a vector file. Raises ValueError for a word that is no part of the notation."""
    return b"".join(_word(word) for word in text.split())


def _word(word: str) -> bytes:
    if word.lstrip("-").isdecimal():
        return number(int(word))
    if word.startswith("0x"):
        return bytes.fromhex(word[2:])
    if len(word) >= 2 and word[0] == word[-1] == "'":
        return push(word[1:-1].encode())
    opcode = OPCODES.get(word.removeprefix("OP_"))
    if opcode is None:
        raise ValueError(f"not a word of the script notation: {word!r}")
    return bytes([opcode])
