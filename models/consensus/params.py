"""What differs between the five networks (Core: kernel/chainparams.cpp), and the limits that do not (consensus/*.h)."""

from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType

from models.errors import SettingsError
from models.wire.block import BlockHeader, serialize_block
from models.wire.compactsize import write_compact_size
from models.wire.hashes import from_display, sha256d

__all__ = [
    "COIN",
    "COINBASE_MATURITY",
    "DEPLOYMENTS",
    "MAX_BLOCK_SIGOPS_COST",
    "MAX_BLOCK_WEIGHT",
    "MAX_COLLECTION_TXS",
    "MAX_FUTURE_BLOCK_TIME",
    "MAX_INPUTS_PER_BLOCK",
    "MAX_MONEY",
    "NETWORKS",
    "WITNESS_SCALE_FACTOR",
    "ChainParams",
    "get_params",
]

COIN = 100_000_000  # satoshis
MAX_MONEY = 21_000_000 * COIN  # consensus/amount.h
MAX_BLOCK_WEIGHT = 4_000_000  # consensus/consensus.h, weight units
MAX_BLOCK_SIGOPS_COST = 80_000
COINBASE_MATURITY = 100  # blocks
WITNESS_SCALE_FACTOR = 4
MIN_TRANSACTION_WEIGHT = WITNESS_SCALE_FACTOR * 60  # smallest valid serialised transaction, 60 bytes
MAX_COLLECTION_TXS = MAX_BLOCK_WEIGHT // MIN_TRANSACTION_WEIGHT  # 16,666
MAX_INPUTS_PER_BLOCK = MAX_BLOCK_WEIGHT // (WITNESS_SCALE_FACTOR * 41)  # 24,390
MAX_FUTURE_BLOCK_TIME = 2 * 60 * 60  # seconds, chain.h
MAX_TIMEWARP = 600  # seconds, BIP94
BIP34_IMPLIES_BIP30_LIMIT = 1_983_702  # height from which BIP30 is enforced again, validation.cpp
WITNESS_COMMITMENT_PREFIX = bytes.fromhex("6a24aa21a9ed")  # OP_RETURN, push 36, BIP141 tag
MIN_WITNESS_COMMITMENT = 38  # bytes of a script that can hold one
TWO_WEEKS = 14 * 24 * 60 * 60

#: Buried deployments by the names that Core's -testactivationheight takes.
DEPLOYMENTS = ("bip34", "dersig", "cltv", "csv", "segwit")

_GENESIS_TEXT = b"The Times 03/Jan/2009 Chancellor on brink of second bailout for banks"
_GENESIS_KEY = bytes.fromhex(
    "04678afdb0fe5548271967f1a67130b7105cd6a828e03909a67962e0ea1f61deb649f6bc3f4cef38c4f35504e51ec112de5c384df7ba0b8d578a4c702b6bf11d5f"
)
_TESTNET4_TEXT = b"03/May/2024 000000000000000000001ebd58c244970b3aa9d783bb001011fbe8ea8e98e00e"

#: BIP325 challenge of the default signet: a 1-of-2 multisig.
DEFAULT_SIGNET_CHALLENGE = bytes.fromhex(
    "512103ad5e0edad18cb1f0fc0d28a3d4f1f3e445640337489abb10404f2d1e086be430210359ef5021964fe22d6f8e05b2463c9540ce96883fe3b278760f048f5189f2e6c452ae"
)


@dataclass(frozen=True)
class ChainParams:
    """Consensus parameters of one network. Heights are the first block at which a rule holds."""

    name: str
    magic: bytes  # four bytes before each block on disk and on the wire
    datadir_subdir: str  # below Core's data directory; "" for main
    pow_limit_bits: int
    allow_min_difficulty: bool
    no_retargeting: bool
    enforce_bip94: bool
    target_timespan: int  # seconds
    target_spacing: int  # seconds
    subsidy_halving_interval: int
    activation: MappingProxyType  # deployment name -> height
    bip34_hash: bytes  # internal order; zero where BIP30 can never be skipped
    genesis_time: int
    genesis_nonce: int
    genesis_bits: int
    genesis_message: bytes = _GENESIS_TEXT
    genesis_key: bytes = _GENESIS_KEY
    signet_challenge: bytes | None = None
    #: block hash (internal order) -> base script flags that replace P2SH|WITNESS|TAPROOT for that block
    script_flag_exceptions: MappingProxyType = field(default_factory=lambda: MappingProxyType({}))
    #: heights of the two blocks that repeated an older coinbase (BIP30)
    bip30_exceptions: MappingProxyType = field(default_factory=lambda: MappingProxyType({}))
    #: (start time, period, threshold) of the TESTDUMMY deployment, bit 28; None: never active
    testdummy: tuple[int, int, int] | None = None

    @property
    def retarget_interval(self) -> int:
        """Blocks between difficulty adjustments."""
        return self.target_timespan // self.target_spacing

    def active(self, deployment: str, height: int) -> bool:
        """Whether a buried deployment holds in the block at `height` (Core: `DeploymentActiveAt`)."""
        return height >= self.activation[deployment]

    def subsidy(self, height: int) -> int:
        """New coins of the block at `height`, in satoshis (Core: `GetBlockSubsidy`)."""
        halvings = height // self.subsidy_halving_interval
        return 0 if halvings >= 64 else (50 * COIN) >> halvings

    @cached_property
    def genesis_block(self) -> bytes:
        """Network serialisation of block 0."""
        message = self.genesis_message
        push_message = bytes((len(message),)) if len(message) < 76 else b"\x4c" + bytes((len(message),))
        script_sig = bytes.fromhex("04ffff001d0104") + push_message + message
        script = bytes((len(self.genesis_key),)) + self.genesis_key + b"\xac"
        coinbase = b"".join(
            (
                (1).to_bytes(4, "little"),
                b"\x01" + bytes(32) + b"\xff\xff\xff\xff",
                write_compact_size(len(script_sig)) + script_sig + b"\xff\xff\xff\xff",
                b"\x01" + (50 * COIN).to_bytes(8, "little"),
                write_compact_size(len(script)) + script,
                bytes(4),
            )
        )
        header = BlockHeader(1, bytes(32), sha256d(coinbase), self.genesis_time, self.genesis_bits, self.genesis_nonce)
        return serialize_block(header, [coinbase])

    @cached_property
    def genesis_hash(self) -> bytes:
        """Hash of block 0, internal order."""
        return sha256d(self.genesis_block[:80])


def _activation(bip34: int, dersig: int, cltv: int, csv: int, segwit: int) -> MappingProxyType:
    return MappingProxyType({"bip34": bip34, "dersig": dersig, "cltv": cltv, "csv": csv, "segwit": segwit})


_P2SH, _WITNESS = 1 << 0, 1 << 11  # script/interpreter.h bits, as the kernel numbers them

_MAIN = ChainParams(
    name="main",
    magic=bytes.fromhex("f9beb4d9"),
    datadir_subdir="",
    pow_limit_bits=0x1D00FFFF,
    allow_min_difficulty=False,
    no_retargeting=False,
    enforce_bip94=False,
    target_timespan=TWO_WEEKS,
    target_spacing=600,
    subsidy_halving_interval=210_000,
    activation=_activation(227_931, 363_725, 388_381, 419_328, 481_824),
    bip34_hash=from_display("000000000000024b89b42a942fe0d9fea3bb44ab7bd1b19115dd6a759c0808b8"),
    genesis_time=1231006505,
    genesis_nonce=2083236893,
    genesis_bits=0x1D00FFFF,
    script_flag_exceptions=MappingProxyType(
        {
            from_display("00000000000002dc756eebf4f49723ed8d30cc28a5f108eb94b1ba88ac4f9c22"): 0,
            from_display("0000000000000000000f14c35b2d841e986ab5441de8c585d5ffe55ea1e395ad"): _P2SH | _WITNESS,
        }
    ),
    bip30_exceptions=MappingProxyType(
        {
            91842: from_display("00000000000a4d0a398161ffc163c503763b1f4360639393e0e4c8e300e0caec"),
            91880: from_display("00000000000743f190a18c5577a3c2d2a1f610ae9601ac046a38084ccb7cd721"),
        }
    ),
)

_TESTNET3 = replace(
    _MAIN,
    name="testnet3",
    magic=bytes.fromhex("0b110907"),
    datadir_subdir="testnet3",
    allow_min_difficulty=True,
    activation=_activation(21_111, 330_776, 581_885, 770_112, 834_624),
    bip34_hash=from_display("0000000023b3a96d3484e5abb3755c413e7d41500f8e2a5c3f0dd01299cd8ef8"),
    genesis_time=1296688602,
    genesis_nonce=414098458,
    script_flag_exceptions=MappingProxyType(
        {from_display("00000000dd30457c001f4095d208cc1296b0eed002427aa599874af7a432b105"): 0}
    ),
    bip30_exceptions=MappingProxyType({}),
)

_TESTNET4 = replace(
    _TESTNET3,
    name="testnet4",
    magic=bytes.fromhex("1c163f28"),
    datadir_subdir="testnet4",
    enforce_bip94=True,
    activation=_activation(1, 1, 1, 1, 1),
    bip34_hash=bytes(32),
    genesis_time=1714777860,
    genesis_nonce=393743547,
    genesis_message=_TESTNET4_TEXT,
    genesis_key=bytes(33),
    script_flag_exceptions=MappingProxyType({}),
)


def _signet_magic(challenge: bytes) -> bytes:
    """BIP325: the first four bytes of the hash of the serialised challenge."""
    return sha256d(write_compact_size(len(challenge)) + challenge)[:4]


_SIGNET = replace(
    _TESTNET4,
    name="signet",
    magic=_signet_magic(DEFAULT_SIGNET_CHALLENGE),
    datadir_subdir="signet",
    pow_limit_bits=0x1E0377AE,
    allow_min_difficulty=False,
    enforce_bip94=False,
    genesis_time=1598918400,
    genesis_nonce=52613770,
    genesis_bits=0x1E0377AE,
    genesis_message=_GENESIS_TEXT,
    genesis_key=_GENESIS_KEY,
    signet_challenge=DEFAULT_SIGNET_CHALLENGE,
)

_REGTEST = replace(
    _TESTNET4,
    name="regtest",
    magic=bytes.fromhex("fabfb5da"),
    datadir_subdir="regtest",
    pow_limit_bits=0x207FFFFF,
    no_retargeting=True,
    enforce_bip94=False,
    target_timespan=24 * 60 * 60,
    subsidy_halving_interval=150,
    activation=_activation(1, 1, 1, 1, 0),
    genesis_time=1296688602,
    genesis_nonce=2,
    genesis_bits=0x207FFFFF,
    genesis_message=_GENESIS_TEXT,
    genesis_key=_GENESIS_KEY,
    testdummy=(0, 144, 108),
)

NETWORKS = MappingProxyType({p.name: p for p in (_MAIN, _TESTNET3, _TESTNET4, _SIGNET, _REGTEST)})


def get_params(
    network: str,
    activation_heights: dict[str, int] | None = None,
    bip94: bool = False,
    signet_challenge: bytes | None = None,
) -> ChainParams:
    """Parameters of a network by name, with regtest's switches and a signet's own challenge.

    `activation_heights` (Core: -testactivationheight) and `bip94` (Core: -test=bip94) are for regtest only.
    Raises SettingsError naming the value.
    """
    if network not in NETWORKS:
        raise SettingsError(f"unknown network '{network}': choose one of {', '.join(NETWORKS)}")
    params = NETWORKS[network]
    if (activation_heights or bip94) and network != "regtest":
        raise SettingsError(f"activation heights and bip94 can be set for regtest only, not for {network}")
    if activation_heights:
        for name, height in activation_heights.items():
            if name not in DEPLOYMENTS:
                raise SettingsError(f"unknown deployment '{name}': choose one of {', '.join(DEPLOYMENTS)}")
            if not 0 <= height < 2**31:
                raise SettingsError(f"activation height of {name} is out of range: {height}")
        params = replace(params, activation=MappingProxyType({**params.activation, **activation_heights}))
    if bip94:
        params = replace(params, enforce_bip94=True)
    if signet_challenge is not None:
        if network != "signet":
            raise SettingsError(f"a signet challenge was given for {network}")
        params = replace(params, signet_challenge=signet_challenge, magic=_signet_magic(signet_challenge))
    return params
