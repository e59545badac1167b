"""Blocks and coins put together by hand on a chain of headers that hold nothing. Serialised by the helpers of the
script tests, not by the code under test.
"""

import hashlib
from collections.abc import Sequence

from models.coins.coin import Coin
from models.consensus.params import get_params
from models.wire.block import Block, BlockHeader, decode_block
from tests.models.consensus.replay import ReplayChain
from tests.models.script.building import NULL_OUTPOINT, Input, Output, compact_size, serialize

START = 1_700_000_000  # Unix time of the first header above genesis
SPACING = 600
TRUE = b"\x51"
FALSE = b"\x00"


def dsha256(data: bytes) -> bytes:
    return hashlib.sha256(hashlib.sha256(data).digest()).digest()


def txid_of(raw: bytes) -> bytes:
    """Id of a transaction without witness."""
    return dsha256(raw)


def made_up(number: int, vout: int = 0) -> bytes:
    """An outpoint of no transaction."""
    return hashlib.sha256(b"made up %d" % number).digest() + vout.to_bytes(4, "little")


def empty_chain(height: int, network: str = "regtest", **switches: object) -> ReplayChain:
    """A chain of headers up to `height`, ten minutes apart, without any coin. Not mined: bits are the parent's."""
    chain = ReplayChain(get_params(network, **switches))  # type: ignore[arg-type]
    while len(chain.headers) <= height:
        parent = chain.headers[-1]
        time = START + SPACING * len(chain.headers)
        chain.headers.append(BlockHeader(0x20000000, parent.hash, bytes(32), time, parent.bits, 0))
    return chain


def put_coin(
    chain: ReplayChain,
    number: int,
    value: int = 1000,
    height: int = 1,
    coinbase: bool = False,
    script: bytes = TRUE,
    vout: int = 0,
) -> bytes:
    """Adds a coin to a chain; its outpoint."""
    outpoint = made_up(number, vout)
    chain.coins[outpoint] = Coin(value, height, coinbase, script)
    return outpoint


def height_push(height: int) -> bytes:
    """BIP34, for the heights that tests use (17 to 32,767)."""
    assert 17 <= height < 32_768
    return bytes((1, height)) if height < 128 else b"\x02" + height.to_bytes(2, "little")


def plain_merkle_root(hashes: Sequence[bytes]) -> bytes:
    level = list(hashes)
    while len(level) > 1:
        level += level[-1:] * (len(level) % 2)
        level = [dsha256(level[i] + level[i + 1]) for i in range(0, len(level), 2)]
    return level[0]


def without_witness(raw: bytes) -> bytes:
    """A segwit coinbase of `coinbase_tx` without marker and stack."""
    return raw[:4] + raw[6 : -4 - 34] + raw[-4:]


def coinbase_tx(
    height: int,
    value: int,
    wtxids: Sequence[bytes] | None = None,
    outputs: Sequence[Output] = (),
    extra: bytes = b"",
) -> bytes:
    """A coinbase that pays `value` to anyone; with `wtxids` (of the other transactions) it commits to them."""
    outs = [Output(value, TRUE), *outputs]
    witness: tuple[bytes, ...] = ()
    if wtxids is not None:
        root = plain_merkle_root([bytes(32), *wtxids])
        outs.append(Output(0, bytes.fromhex("6a24aa21a9ed") + dsha256(root + bytes(32))))
        witness = (bytes(32),)
    return serialize([Input(NULL_OUTPOINT, height_push(height) + extra, witness)], outs, version=2)


def block_on(
    chain: ReplayChain,
    raws: Sequence[bytes] = (),
    reward: int | None = None,
    coinbase: bytes | None = None,
    segwit: bool = False,
) -> Block:
    """A block on the tip: a coinbase that claims `reward` (the subsidy unless given), then `raws`."""
    context = chain.context()
    if coinbase is None:
        wtxids = [dsha256(raw) for raw in raws] if segwit else None
        coinbase = coinbase_tx(context.height, context.subsidy if reward is None else reward, wtxids)
    header = BlockHeader(0x20000000, chain.tip.hash, bytes(32), chain.headers[-1].time + SPACING, context.bits, 0)
    all_raws = [coinbase, *raws]
    draft = decode_block(header.serialize() + compact_size(len(all_raws)) + b"".join(all_raws))
    root = plain_merkle_root([tx.txid for tx in draft.transactions])
    raw = header.serialize()[:36] + root + draft.raw[68:]
    return decode_block(raw)


def refusal(chain: ReplayChain, block: Block, **switches: bool) -> str | None:
    """Reason and debug text as Core logs them; None for a valid block."""
    failure = chain.judge(block, **switches).failure
    return failure.debug_line if failure else None
