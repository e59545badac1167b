"""Every error type of the project. Each takes one message, so that it survives pickling between processes; none is ever
turned into a consensus verdict: a failed read is an error of its own and never an absent coin.
"""

__all__ = [
    "Busy",
    "ClientError",
    "CoinsReadError",
    "CollectionLost",
    "DecodeError",
    "InternalError",
    "NetworkMismatch",
    "NodeDisagrees",
    "NodeError",
    "NodePruned",
    "NodeRefused",
    "NodeUnreachable",
    "NotReady",
    "SettingsError",
    "StaleView",
    "StoreCorrupt",
    "StoreError",
    "StoreInUse",
    "StoreUnwritable",
    "TxCollectionError",
    "WorkerLost",
]


class TxCollectionError(Exception):
    """Base of all errors raised on purpose by this project."""


class ClientError(TxCollectionError):
    """The caller's mistake, with Core's text (SPEC 1). Nothing was changed by the call."""


class DecodeError(ClientError):
    """Bytes that are no transaction, block, header or record: what was read, and where it failed."""


class SettingsError(TxCollectionError):
    """A setting that does not validate; the message names its key, its value and where it came from."""


class StoreError(TxCollectionError):
    """A store or data directory that cannot be used as asked; the message says what is wrong and what to do."""


class StoreCorrupt(StoreError):
    """A file of the store failed a checksum or a length check; the message names the file."""


class StoreInUse(StoreError):
    """The store is owned by another process."""


class StoreUnwritable(StoreError):
    """The disk is full, mounted read-only, or not ours to write to; the message names the path and says what to do."""


class NetworkMismatch(StoreError):
    """Data of another network than the one asked for."""


class NotReady(StoreError):
    """The header of the coins' block is not known yet, as after an import from a snapshot: nothing can be judged."""


class NodeError(TxCollectionError):
    """The Bitcoin node that is followed does not answer as it must; the message says what to do."""


class NodeUnreachable(NodeError):
    """No connection, or a node that is starting up: worth trying again."""


class NodeRefused(NodeError):
    """The node does not accept user, password or cookie."""


class NodePruned(NodeError):
    """The node has deleted blocks that are needed, or never had them."""


class NodeDisagrees(NodeError):
    """The node's best chain holds a block that is invalid here, or cannot be reached from this store."""


class CoinsReadError(TxCollectionError):
    """A coin could not be read (I/O, checksum, closed handle). Never the same as an absent coin."""


class StaleView(TxCollectionError):
    """Coins were asked for at a tip version that the reader does not serve, or no longer."""


class WorkerLost(TxCollectionError):
    """A worker process died under a request, and so did the one that took it over."""


class CollectionLost(TxCollectionError):
    """The actor that held this collection died, or the collection was closed: declare it again."""


class Busy(TxCollectionError):
    """A quota, a queue bound or a deadline was reached; ask again later."""


class InternalError(TxCollectionError):
    """A broken invariant of ours. Never a verdict."""
