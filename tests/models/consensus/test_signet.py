"""Signet's block solution (BIP325): the first blocks of the public signet, and blocks signed here by its recipe."""

import hashlib
from collections.abc import Callable
from dataclasses import replace

import pytest
from coincurve import PrivateKey

from models.consensus.params import DEFAULT_SIGNET_CHALLENGE, get_params
from models.consensus.signet import check_signet_solution
from models.consensus.whole_block import check_before_context
from models.wire.block import Block, decode_block
from tests.models.consensus.building import TRUE, block_on, dsha256, empty_chain, plain_merkle_root
from tests.models.consensus.replay import ReplayChain
from tests.models.script.building import NULL_OUTPOINT, Input, Output, compact_size, serialize, with_length

# Blocks 1 to 3 of the public signet, as any of its nodes gives them.
PUBLIC = [
    "00000020f61eee3b63a380a477a063af32b2bbc97c9ff9f01f2c4225e973988108000000f575c83235984e7dc4afc1f30944c170462e8443"
    "7ab6f2d52e16878a79e4678bd1914d5fae77031eccf407000101000000000101000000000000000000000000000000000000000000000000"
    "0000000000000000ffffffff025151feffffff0200f2052a010000001600149243f727dd5343293eb83174324019ec16c2630f0000000000"
    "000000776a24aa21a9ede2f61c3f71d1defd3fa999dfa36953755c690689799962b48bebd836974e8cf94c4fecc7daa24900473044022"
    "05e423a8754336ca99dbe16509b877ef1bf98d008836c725005b3c787c41ebe46022047246e4467ad7cc7f1ad98662afcaf14c115e0095a"
    "227c7b05c5182591c23e7e01000120000000000000000000000000000000000000000000000000000000000000000000000000",
    "00000020533b53ded9bff4adc94101d32400a144c54edc5ed492a3b26c63b2d686000000b38fef50592017cfafbcab88eb3d9cf50b2c8017"
    "11cad8299495d26df5e54812e7914d5fae77031ecfdd0b000101000000000101000000000000000000000000000000000000000000000000"
    "0000000000000000ffffffff025251feffffff0200f2052a01000000160014fd09839740f0e0b4fc6d5e2527e4022aa9b89dfa0000000000"
    "000000776a24aa21a9ede2f61c3f71d1defd3fa999dfa36953755c690689799962b48bebd836974e8cf94c4fecc7daa24900473044022"
    "031d64a1692cdad1fc0ced69838169fe19ae01be524d831b95fcf5ea4e6541c3c02204f9dea0801df8b4d0cd0857c62ab35c6c25cc47c93"
    "0630dc7fe723531daa3e9b01000120000000000000000000000000000000000000000000000000000000000000000000000000",
    "000000202960f3752f0bfa8858a3e333294aedc7808025e868c9dc03e71d88bb320000007765fcd3d5b4966beb338bba2675dc2cf2ad28d4"
    "ad1d83bdb6f286e7e27ac1f807924d5fae77031e81d60b000101000000000101000000000000000000000000000000000000000000000000"
    "0000000000000000ffffffff025351feffffff0200f2052a010000001600141e5fb426042692ae0e87c070e78c39307a5661c20000000000"
    "000000776a24aa21a9ede2f61c3f71d1defd3fa999dfa36953755c690689799962b48bebd836974e8cf94c4fecc7daa24900473044022"
    "05de93694763a42954865bcf1540cb82958bc62d0ec4eee02070fb7937cd037f4022067f333753bce47b10bc25eb6e1f311482e994c862a"
    "7e0b2d41ab1c8679fd1b1101000120000000000000000000000000000000000000000000000000000000000000000000000000",
]
TAG = bytes.fromhex("ecc7daa2")
COMMITMENT = bytes.fromhex("6a24aa21a9ed")
KEY = PrivateKey(b"\x05" * 32)
PUBKEY = KEY.public_key.format()
PAY_TO_KEY = with_length(PUBKEY) + b"\xac"
REFUSED = "bad-signet-blksig, signet block signature validation failure"


def test_blocks_of_the_public_signet() -> None:
    chain = ReplayChain(get_params("signet"))
    assert chain.follow(map(bytes.fromhex, PUBLIC), check_pow=True) == []
    assert chain.tip.height == 3


def test_a_public_block_does_not_satisfy_another_challenge() -> None:
    """The same two keys, both of which must sign."""
    both = b"\x52" + DEFAULT_SIGNET_CHALLENGE[1:]
    chain = ReplayChain(get_params("signet", signet_challenge=both))
    block = decode_block(bytes.fromhex(PUBLIC[0]))
    failure = chain.judge(block, check_pow=True).failure
    assert failure and failure.debug_line == REFUSED
    assert chain.judge(block, check_pow=False).failure is None  # the solution goes with the proof of work


@pytest.mark.parametrize("change", [lambda raw: raw[:4] + b"\x11" + raw[5:], lambda raw: raw[:68] + b"\xd2" + raw[69:]])
def test_the_signature_covers_the_header(change: Callable[[bytes], bytes]) -> None:
    raw = bytes.fromhex(PUBLIC[0])
    assert check_signet_solution(decode_block(raw), DEFAULT_SIGNET_CHALLENGE)
    assert not check_signet_solution(decode_block(change(raw)), DEFAULT_SIGNET_CHALLENGE)


def test_the_signature_does_not_cover_the_nonce() -> None:
    raw = bytes.fromhex(PUBLIC[0])
    assert check_signet_solution(decode_block(raw[:76] + bytes(4) + raw[80:]), DEFAULT_SIGNET_CHALLENGE)


# Blocks of our own -----------------------------------------------------------------------------------------------


def coinbase_of(script: bytes | None) -> bytes:
    outputs = [Output(50, TRUE)] + ([Output(0, script)] if script is not None else [])
    return serialize([Input(NULL_OUTPOINT, b"\x51\x51", (bytes(32),))], outputs, version=2)


def plain_txid(raw: bytes) -> bytes:
    """Of `coinbase_of`: without marker, flag and the stack of one item of 32 bytes."""
    return dsha256(raw[:4] + raw[6 : -4 - 34] + raw[-4:])


HEAD = b"\x00\x00\x00\x20" + b"\x77" * 32
TIME = (1_600_000_000).to_bytes(4, "little")
OTHER = serialize([Input(b"\x03" * 36)], [Output(7, TRUE)])


def block_with(script: bytes | None, others: tuple[bytes, ...] = (OTHER,)) -> Block:
    coinbase = coinbase_of(script)
    header = HEAD + bytes(32) + TIME + bytes(8)
    return decode_block(header + compact_size(1 + len(others)) + coinbase + b"".join(others))


COMMIT = COMMITMENT + b"\x66" * 32


def to_sign(challenge: bytes, cut_script: bytes) -> bytes:
    """Id of BIP325's first transaction, whose output the second spends; the merkle root is over the cut coinbase."""
    root = plain_merkle_root([plain_txid(coinbase_of(cut_script)), dsha256(OTHER)])
    data = HEAD + root + TIME
    assert len(data) == 72
    spent = Input(NULL_OUTPOINT, b"\x00" + with_length(data), sequence=0)
    return dsha256(serialize([spent], [Output(0, challenge)], version=0))


def legacy_solution(challenge: bytes, cut_script: bytes) -> bytes:
    """scriptSig with a signature of `KEY`, and an empty witness."""
    spend = Input(to_sign(challenge, cut_script) + bytes(4), challenge, sequence=0)
    digest = dsha256(serialize([spend], [Output(0, b"\x6a")], version=0) + b"\x01\0\0\0")
    signature = KEY.sign(digest, hasher=None) + b"\x01"
    return with_length(with_length(signature)) + b"\x00"


def witness_solution(challenge: bytes, cut_script: bytes) -> bytes:
    """A P2WPKH witness of `KEY` (BIP143), and an empty scriptSig."""
    prevout = to_sign(challenge, cut_script) + bytes(4)
    script_code = b"\x76\xa9" + with_length(challenge[2:]) + b"\x88\xac"
    digest = dsha256(
        bytes(4) + dsha256(prevout) + dsha256(bytes(4)) + prevout + with_length(script_code) + bytes(8) + bytes(4)
        + dsha256(bytes(8) + b"\x01\x6a") + bytes(4) + b"\x01\0\0\0"
    )  # fmt: skip
    signature = KEY.sign(digest, hasher=None) + b"\x01"
    return b"\x00" + b"\x02" + with_length(signature) + with_length(PUBKEY)


def keyhash() -> bytes:
    return b"\x00\x14" + hashlib.new("ripemd160", hashlib.sha256(PUBKEY).digest()).digest()


CUT = COMMIT + with_length(TAG)


def test_a_block_signed_by_one_key() -> None:
    solution = legacy_solution(PAY_TO_KEY, CUT)
    assert check_signet_solution(block_with(COMMIT + b"\x4c" + with_length(TAG + solution)), PAY_TO_KEY)
    broken = bytearray(solution)
    broken[20] ^= 1
    assert not check_signet_solution(block_with(COMMIT + b"\x4c" + with_length(TAG + bytes(broken))), PAY_TO_KEY)


def test_a_block_signed_in_the_witness() -> None:
    challenge = keyhash()
    solution = witness_solution(challenge, CUT)
    assert check_signet_solution(block_with(COMMIT + b"\x4c" + with_length(TAG + solution)), challenge)


def test_the_signature_covers_the_transactions() -> None:
    script = COMMIT + b"\x4c" + with_length(TAG + legacy_solution(PAY_TO_KEY, CUT))
    assert not check_signet_solution(block_with(script, others=()), PAY_TO_KEY)
    assert not check_signet_solution(block_with(script, others=(OTHER[:-4] + b"\x01\0\0\0",)), PAY_TO_KEY)


def test_what_stands_beside_the_solution_is_signed_and_kept() -> None:
    """Opcodes and pushes around it are part of the cut script; pushes in their shortest form."""
    around = COMMIT + b"\x51" + b"\x4c\x02ab"  # a long form of a push of two bytes
    cut = COMMIT + b"\x51" + b"\x02ab" + with_length(TAG) + b"\x00\x60"
    solution = legacy_solution(PAY_TO_KEY, cut)
    script = around + b"\x4c" + with_length(TAG + solution) + b"\x00\x60"
    assert check_signet_solution(block_with(script), PAY_TO_KEY)


@pytest.mark.parametrize("size", [1, 75, 76, 255, 256, 65_535, 65_536])
def test_pushes_of_every_width_are_kept_in_their_shortest_form(size: int) -> None:
    data = b"\x01" * size
    if size < 76:
        shortest = bytes((size,)) + data
    elif size < 256:
        shortest = b"\x4c" + bytes((size,)) + data
    elif size < 65_536:
        shortest = b"\x4d" + size.to_bytes(2, "little") + data
    else:
        shortest = b"\x4e" + size.to_bytes(4, "little") + data
    solution = legacy_solution(PAY_TO_KEY, CUT + shortest)
    script = COMMIT + b"\x4c" + with_length(TAG + solution) + b"\x4e" + size.to_bytes(4, "little") + data
    assert check_signet_solution(block_with(script), PAY_TO_KEY)


def test_the_first_section_is_the_solution_and_the_second_is_signed() -> None:
    second = b"\x05" + TAG + b"\x09"
    solution = legacy_solution(PAY_TO_KEY, CUT + second)
    script = COMMIT + b"\x4c" + with_length(TAG + solution) + second
    assert check_signet_solution(block_with(script), PAY_TO_KEY)


@pytest.mark.parametrize(
    "solution",
    [
        b"\x00",  # no witness count
        b"\x00\x00\x00",  # a byte too many
        b"\x05\x00\x00",  # scriptSig cut off
        b"\x00\x01",  # a witness item cut off
        b"\x00\x01\x05aa",
        b"\xfd\x00\x00\x00",  # a length in a longer form than needed
        b"\x00\xfe\xff\xff\xff\x01",  # very many items
    ],
)
def test_a_solution_that_does_not_decode_is_none(solution: bytes) -> None:
    assert not check_signet_solution(block_with(COMMIT + with_length(TAG + solution)), TRUE)


@pytest.mark.parametrize(
    "script",
    [
        COMMIT,  # no section: tried with an empty solution
        CUT,  # the tag alone is no section
        COMMIT + with_length(TAG + b"\x00\x00"),
        COMMIT + with_length(TAG + b"\x01\x51\x00"),  # the signature script may push what the challenge does not use
    ],
)
def test_a_challenge_that_anybody_can_meet(script: bytes) -> None:
    assert check_signet_solution(block_with(script), TRUE)
    assert not check_signet_solution(block_with(script), PAY_TO_KEY)


def test_a_block_without_commitment_has_no_solution() -> None:
    assert not check_signet_solution(block_with(None), TRUE)
    assert not check_signet_solution(decode_block(HEAD + bytes(44) + b"\x00"), TRUE)


def test_a_script_that_ends_early_is_read_up_to_there() -> None:
    cut = COMMIT + with_length(TAG)
    solution = legacy_solution(PAY_TO_KEY, cut)
    script = COMMIT + b"\x4c" + with_length(TAG + solution) + b"\x4d\xff"  # what does not parse is dropped
    assert check_signet_solution(block_with(script), PAY_TO_KEY)


# In the order of checks ------------------------------------------------------------------------------------------


def mined(block: Block) -> Block:
    """With a nonce that meets regtest's target: a try or two."""
    for nonce in range(1000):
        raw = block.raw[:76] + nonce.to_bytes(4, "little") + block.raw[80:]
        if decode_block(raw).header.hash[31] < 0x7F:
            return decode_block(raw)
    raise AssertionError


def easy_signet(challenge: bytes) -> ReplayChain:
    """A signet whose proof of work is as light as regtest's."""
    chain = empty_chain(20, "signet", signet_challenge=challenge)
    chain.params = replace(chain.params, pow_limit_bits=0x207FFFFF)
    chain.headers[-1] = replace(chain.headers[-1], bits=0x207FFFFF)
    return chain


def test_the_solution_is_looked_at_after_the_work_and_before_the_merkle_root() -> None:
    wtxids_commitment = block_on(easy_signet(TRUE), segwit=True)
    good = easy_signet(TRUE)
    assert good.judge(mined(wtxids_commitment), check_pow=True).failure is None
    bad = easy_signet(b"\x00")
    wrong_root = wtxids_commitment.raw[:36] + bytes(32) + wtxids_commitment.raw[68:]
    block = mined(decode_block(wrong_root))
    failure = bad.judge(block, check_pow=True).failure
    assert failure and failure.debug_line == REFUSED
    failure = good.judge(block, check_pow=True).failure
    assert failure and failure.reason.text == "bad-txnmrklroot"


def test_the_genesis_block_needs_no_solution() -> None:
    chain = ReplayChain(get_params("signet"))
    genesis = decode_block(chain.params.genesis_block)
    assert check_before_context(genesis, chain.params)[0] is None
