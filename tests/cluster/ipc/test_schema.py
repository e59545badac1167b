"""The schema files have the ids, names, ordinals and types of Core's (IPC.md), which is all that counts on the wire."""

import hashlib
from typing import Any

import pytest

from cluster.ipc import schemas

FILES = {
    "proxy": 0xCC316E3F71A040FB,
    "init": 0xF2C5CFA319406AA6,
    "mining": 0xC77D03DF6A41B505,
    "echo": 0x888B4F7F51E691F7,
    "rpc": 0x9C3505DC45E146AC,
    "common": 0xCD2C6232CB484A28,
}

#: (file, interface) -> methods by ordinal: name, parameters and results in order of their numbers
METHODS: dict[tuple[str, str], list[tuple[str, str, str]]] = {
    ("proxy", "ThreadMap"): [("makeThread", "name:text", "result:interface"), ("makePool", "count:uint32", "")],
    ("proxy", "Thread"): [("getName", "", "result:text"), ("getId", "", "result:uint64")],
    ("init", "Init"): [
        ("construct", "threadMap:interface", "threadMap:interface"),
        ("makeEcho", "context:struct", "result:interface"),
        ("makeMiningOld2", "", ""),
        ("makeMining", "context:struct", "result:interface"),
        ("makeRpc", "context:struct", "result:interface"),
    ],
    ("echo", "Echo"): [("destroy", "context:struct", ""), ("echo", "context:struct echo:text", "result:text")],
    ("rpc", "Rpc"): [("executeRpc", "context:struct request:text uri:text user:text", "result:text")],
    ("mining", "Mining"): [
        ("isTestChain", "context:struct", "result:bool"),
        ("isInitialBlockDownload", "context:struct", "result:bool"),
        ("getTip", "context:struct", "result:struct hasResult:bool"),
        ("waitTipChanged", "context:struct currentTip:data timeout:float64", "result:struct"),
        ("createNewBlock", "context:struct options:struct cooldown:bool", "result:interface"),
        ("checkBlock", "context:struct block:data options:struct", "reason:text debug:text result:bool"),
        ("interrupt", "", ""),
        ("submitBlock", "context:struct block:data", "reason:text debug:text result:bool"),
        ("getTransactionsByTxID", "context:struct txids:list", "result:list"),
        ("getTransactionsByWitnessID", "context:struct wtxids:list", "result:list"),
        ("collectTxs", "context:struct wtxids:list", "result:interface"),
    ],
    ("mining", "TxCollection"): [
        ("destroy", "context:struct", ""),
        ("makeTemplate", "context:struct prevhash:data coinbase:data", "reason:text debug:text result:interface"),
        ("unknownTxPos", "context:struct", "result:list"),
        ("addMissingTxs", "context:struct txs:list", ""),
    ],
    ("mining", "BlockTemplate"): [
        ("destroy", "context:struct", ""),
        ("getBlockHeader", "context:struct", "result:data"),
        ("getBlock", "context:struct", "result:data"),
        ("getTxFees", "context:struct", "result:list"),
        ("getTxSigops", "context:struct", "result:list"),
        ("getCoinbaseTx", "context:struct", "result:struct"),
        ("getCoinbaseMerklePath", "context:struct", "result:list"),
        (
            "submitSolution",
            "context:struct version:uint32 timestamp:uint32 nonce:uint32 coinbase:data",
            "result:bool",
        ),
        ("waitNext", "context:struct options:struct", "result:interface"),
        ("interruptWait", "", ""),
    ],
}

FIELDS = {
    ("proxy", "Context"): "thread:interface callbackThread:interface",
    ("common", "BlockRef"): "hash:data height:int32",
    ("mining", "BlockCreateOptions"): (
        "useMempool:bool blockReservedWeight:uint64 coinbaseOutputMaxAdditionalSigops:uint64"
    ),
    ("mining", "BlockWaitOptions"): "timeout:float64 feeThreshold:int64",
    ("mining", "BlockCheckOptions"): "checkMerkleRoot:bool checkPow:bool",
    ("mining", "CoinbaseTx"): (
        "version:uint32 sequence:uint32 scriptSigPrefix:data witness:data blockRewardRemaining:int64 "
        "requiredOutputs:list lockTime:uint32"
    ),
}


def fields_of(node: Any) -> str:
    """`name:type` of a struct's fields in order of their ordinals."""
    fields = sorted(node.struct.fields, key=lambda field: field.ordinal.explicit)
    return " ".join(f"{field.name}:{field.slot.type.which()}" for field in fields)


def id_of(file: int, name: str) -> int:
    """The id that the schema language gives a type without one of its own: from its file's id and its name."""
    digest = hashlib.md5(file.to_bytes(8, "little") + name.encode()).digest()
    return int.from_bytes(digest[:8], "big") | 1 << 63


@pytest.mark.parametrize(("file", "name"), METHODS, ids=[name for _, name in METHODS])
def test_methods_have_cores_ordinals_and_types(file: str, name: str) -> None:
    schema = getattr(getattr(schemas, file), name).schema
    found = []
    for method in schema.node.interface.methods:
        wire = schema.methods[method.name]
        found.append((method.name, fields_of(wire.param_type.node), fields_of(wire.result_type.node)))
    assert found == METHODS[file, name]
    assert schema.node.id == id_of(FILES[file], name)


@pytest.mark.parametrize(("file", "name"), FIELDS, ids=[name for _, name in FIELDS])
def test_structs_have_cores_ordinals_and_types(file: str, name: str) -> None:
    schema = getattr(getattr(schemas, file), name).schema
    assert fields_of(schema.node) == FIELDS[file, name]
    assert schema.node.id == id_of(FILES[file], name)


def test_what_a_client_leaves_out_is_what_core_takes_for_it() -> None:
    mining = schemas.mining
    create = mining.BlockCreateOptions.new_message()
    assert create.useMempool
    assert (create.blockReservedWeight, create.coinbaseOutputMaxAdditionalSigops) == (8000, 400)
    wait = mining.BlockWaitOptions.new_message()
    assert (wait.timeout, wait.feeThreshold) == (1.7976931348623157e308, 2_100_000_000_000_000)
    check = mining.BlockCheckOptions.new_message()
    assert (check.checkMerkleRoot, check.checkPow) == (True, True)
