"""The five networks: facts that any node shows (getblockhash 0, getdeploymentinfo, chainparams of Core)."""

import hashlib

import pytest

from models.consensus.params import DEFAULT_SIGNET_CHALLENGE, NETWORKS, get_params
from models.errors import SettingsError
from models.wire.block import decode_block
from models.wire.hashes import to_display
from models.wire.merkle import merkle_root

GENESIS = {
    "main": "000000000019d6689c085ae165831e934ff763ae46a2a6c172b3f1b60a8ce26f",
    "testnet3": "000000000933ea01ad0ee984209779baaec3ced90fa3f408719526f8d77f4943",
    "testnet4": "00000000da84f2bafbbc53dee25a72ae507ff4914b867c565be350b0da8bf043",
    "signet": "00000008819873e925422c1ff0f99f7cc9bbb232af63a077a480a3633bee1ef6",
    "regtest": "0f9188f13cb7b2c71f2a335e3a4fc328bf5beb436012afca590b1a11466e2206",
}
SATOSHIS_ROOT = "4a5e1e4baab89f3a32518a88c31bc87f618f76673e2cc77ab2127b7afdeda33b"
TESTNET4_ROOT = "7aa0a7ae1e223414cb807e40cd57e667b718e42aaf9306db9102fe28912b7b4e"

# SPEC 2.4: BIP34, BIP66, BIP65, CSV, segwit; magic; sub-directory; compact limit; blocks between retargets
TABLE = {
    "main": ((227931, 363725, 388381, 419328, 481824), "f9beb4d9", "", 0x1D00FFFF, 2016),
    "testnet3": ((21111, 330776, 581885, 770112, 834624), "0b110907", "testnet3", 0x1D00FFFF, 2016),
    "testnet4": ((1, 1, 1, 1, 1), "1c163f28", "testnet4", 0x1D00FFFF, 2016),
    "signet": ((1, 1, 1, 1, 1), "0a03cf40", "signet", 0x1E0377AE, 2016),
    "regtest": ((1, 1, 1, 1, 0), "fabfb5da", "regtest", 0x207FFFFF, 144),
}


def test_there_are_five_networks() -> None:
    assert set(NETWORKS) == set(GENESIS)


@pytest.mark.parametrize("network", GENESIS)
def test_genesis_blocks(network: str) -> None:
    params = get_params(network)
    assert to_display(params.genesis_hash) == GENESIS[network]
    block = decode_block(params.genesis_block, allow_trailing=False)
    (coinbase,) = block.transactions
    assert to_display(coinbase.txid) == (TESTNET4_ROOT if network == "testnet4" else SATOSHIS_ROOT)
    assert merkle_root([coinbase.txid])[0] == block.header.merkle_root
    assert coinbase.values == [50 * 10**8]


@pytest.mark.parametrize("network", TABLE)
def test_heights_magic_and_limits(network: str) -> None:
    heights, magic, subdir, limit, interval = TABLE[network]
    params = get_params(network)
    names = ("bip34", "dersig", "cltv", "csv", "segwit")
    assert tuple(params.activation[name] for name in names) == heights
    assert (params.magic.hex(), params.datadir_subdir) == (magic, subdir)
    assert (params.pow_limit_bits, params.retarget_interval) == (limit, interval)
    for name, height in zip(names, heights, strict=True):
        assert params.active(name, height)
        assert height == 0 or not params.active(name, height - 1)


def test_which_networks_bend_the_difficulty_rules() -> None:
    bent = {name: (p.allow_min_difficulty, p.no_retargeting, p.enforce_bip94) for name, p in NETWORKS.items()}
    assert bent == {
        "main": (False, False, False),
        "testnet3": (True, False, False),
        "testnet4": (True, False, True),
        "signet": (False, False, False),
        "regtest": (True, True, False),
    }
    assert get_params("regtest", bip94=True).enforce_bip94


@pytest.mark.parametrize(
    ("network", "height", "satoshis"),
    [
        ("main", 0, 5_000_000_000),
        ("main", 209_999, 5_000_000_000),
        ("main", 210_000, 2_500_000_000),
        ("main", 840_000, 312_500_000),
        ("main", 210_000 * 32, 1),
        ("main", 210_000 * 33, 0),
        ("main", 210_000 * 63, 0),
        ("main", 210_000 * 64, 0),
        ("main", 210_000 * 1000, 0),
        ("regtest", 149, 5_000_000_000),
        ("regtest", 150, 2_500_000_000),
    ],
)
def test_subsidies_halve(network: str, height: int, satoshis: int) -> None:
    assert get_params(network).subsidy(height) == satoshis


def test_all_of_mainnets_subsidies() -> None:
    """Core: validation_tests.cpp `subsidy_limit_test`, which steps over the chain by 1,000 blocks."""
    params = get_params("main")
    assert sum(params.subsidy(height) * 1000 for height in range(0, 14_000_000, 1000)) == 2_099_999_997_690_000


def test_a_signet_is_told_by_its_challenge() -> None:
    """BIP325: the first four bytes of the double hash of the challenge with its length."""
    custom = get_params("signet", signet_challenge=b"\x51")
    assert custom.magic == hashlib.sha256(hashlib.sha256(b"\x01\x51").digest()).digest()[:4]
    assert custom.genesis_hash == get_params("signet").genesis_hash
    assert get_params("signet").signet_challenge == DEFAULT_SIGNET_CHALLENGE
    assert all(p.signet_challenge is None for name, p in NETWORKS.items() if name != "signet")


def test_regtests_switches() -> None:
    params = get_params("regtest", {"csv": 132, "segwit": 0})
    assert (params.activation["csv"], params.activation["segwit"], params.activation["cltv"]) == (132, 0, 1)
    assert get_params("regtest").activation["csv"] == 1


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"network": "mainnet"}, "unknown network 'mainnet': choose one of main, testnet3"),
        ({"network": "main", "activation_heights": {"csv": 5}}, "for regtest only, not for main"),
        ({"network": "signet", "bip94": True}, "for regtest only, not for signet"),
        ({"network": "regtest", "activation_heights": {"taproot": 5}}, "unknown deployment 'taproot'"),
        ({"network": "regtest", "activation_heights": {"csv": -1}}, "csv is out of range: -1"),
        ({"network": "regtest", "activation_heights": {"csv": 2**31}}, "csv is out of range: 2147483648"),
        ({"network": "main", "signet_challenge": b"\x51"}, "a signet challenge was given for main"),
    ],
)
def test_wrong_settings_are_named(arguments: dict, text: str) -> None:
    with pytest.raises(SettingsError, match=text):
        get_params(**arguments)
