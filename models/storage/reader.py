"""Read-only access to a coins database through RocksDB, beside the process that owns it.

The only module that may call `rocksdict.Rdict`: its default access is read-write, and one such open ruins a LevelDB
database. It opens read-only, takes no lock, and writes one file of its own (rocksdict-config.json) at every open, so it
is never pointed at a node's directory. A bare open beside a writer can pair the newest best block with old coins; the
files are therefore noted before and after, and an open during which they changed is thrown away (`FilesNote`).
"""

import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import rocksdict

from models.coins.codec import KEY_SIZE, coin_key, decode_coin, obfuscate
from models.coins.coin import Coin
from models.errors import CoinsReadError, StaleView, StoreCorrupt, StoreError
from models.storage.levelfiles import CURRENT, note_files, table_number
from models.wire.hashes import to_display

__all__ = [
    "BEST_BLOCK_KEY",
    "CONFIG_FILE",
    "HEAD_BLOCKS_KEY",
    "OBFUSCATION_KEY",
    "RUN_PATIENCE",
    "CoinsReader",
    "live_tables",
    "parse_obfuscation_key",
]

BEST_BLOCK_KEY = b"B"  # Core: DB_BEST_BLOCK, txdb.cpp
HEAD_BLOCKS_KEY = b"H"  # Core: DB_HEAD_BLOCKS, txdb.cpp; there only while Core writes a new tip
OBFUSCATION_KEY = b"\x0e\x00obfuscate_key"  # Core: CDBWrapper::OBFUSCATION_KEY, dbwrapper.cpp
CONFIG_FILE = "rocksdict-config.json"

BLOCK_CACHE = 1 << 20  # in bytes: scattered coins are read once, so a larger one holds nothing of use
TXID_END = 33  # of a coin's key: what the outputs of one transaction share
SHORTEST_RUN = 16  # keys
RUN_PATIENCE = 4  # records passed over for each key that was asked for
MAX_OPENS = 200  # beside a writer without pause, never more than 8 opens in a row were seen refused
RETRY_PAUSE = 0.005  # in seconds

# What RocksDB says at open when the owner removed a file under it: a matter of time, not of corruption.
TRANSIENT = ("Can't access", "No such file")

Gate = Callable[[str], None]

log = logging.getLogger(__name__)


def parse_obfuscation_key(record: bytes | None, path: Path) -> bytes:
    """The XOR key of 8 bytes from its database record; zeros where there is none. Other sizes: `StoreError`."""
    if record is None:
        return bytes(KEY_SIZE)
    if len(record) != KEY_SIZE + 1 or record[0] != KEY_SIZE:
        raise StoreError(
            f"{path}: the obfuscation key record is {record.hex()}, not a key of {KEY_SIZE} bytes; "
            "it was written by software this program does not know"
        )
    return record[1:]


def _refuse_node_directory(path: Path) -> None:
    if (path.parent / "blocks").is_dir() or path.parent.name == "blocks":
        raise StoreError(f"{path} looks like a node's own directory; make a checkpoint and read that")


def _open_read_only(path: Path, block_cache: int = BLOCK_CACHE) -> Any:
    """The one call of `Rdict`. Lets RocksDB's bare exceptions through."""
    _refuse_node_directory(path)
    if not (path / CURRENT).is_file():  # RocksDB would leave files in a directory that is no database
        raise StoreError(f"{path} is no coins database: it has no file CURRENT")
    options = rocksdict.Options(raw_mode=True)
    options.create_if_missing(False)
    options.set_paranoid_checks(True)
    options.set_max_open_files(-1)
    options.set_advise_random_on_open(True)
    options.set_skip_stats_update_on_db_open(True)
    table = rocksdict.BlockBasedOptions()
    table.set_block_cache(rocksdict.Cache(block_cache))
    options.set_block_based_table_factory(table)
    database = rocksdict.Rdict(str(path), options, access_type=rocksdict.AccessType.read_only(False))
    reads = rocksdict.ReadOptions()
    reads.set_verify_checksums(True)
    database.set_read_options(reads)
    return database


def live_tables(path: Path) -> set[int]:
    """The numbers of the table files that the manifest names, all of them seen to be there and readable.

    For a copy that no other process writes. Raises FileNotFoundError if a table is missing, `StoreCorrupt` otherwise.
    """
    try:
        database = _open_read_only(path)
        tables = {table_number(entry["name"]) for entry in database.live_files()}
    except StoreError:
        raise
    except Exception as error:  # rocksdict has no exception type of its own
        if any(text in str(error) for text in TRANSIENT):
            raise FileNotFoundError(f"{path}: {error}") from error
        raise StoreCorrupt(f"{path}: {error}") from error
    del database
    (path / CONFIG_FILE).unlink(missing_ok=True)
    return tables


class CoinsReader:
    """A consistent, unchanging view of a coins database; many threads may use one.

    Reads see the database as it was when it was opened. `best_block` is the block whose coins they are.
    """

    def __init__(self, path: Path, database: Any, best_block: bytes, xor_key: bytes, opens: int) -> None:
        self.path = path
        self.best_block = best_block  # 32 bytes, internal order
        self.xor_key = xor_key  # 8 bytes; zeros where values are stored plain
        self.opens = opens  # how many opens it took
        self.torn_opens = opens - 1  # how many of them were refused
        self._database = database

    @classmethod
    def open(
        cls,
        path: Path | str,
        expect_best: bytes | None = None,
        gate: Gate | None = None,
        block_cache: int = BLOCK_CACHE,
    ) -> "CoinsReader":
        """Opens the database at `path`, which another process of ours may be writing; `block_cache` in bytes.

        Raises `StaleView` if its best block is not `expect_best`, `StoreError` if it is no database or lies between two
        tips (`H`), `CoinsReadError` if it cannot be read. `gate` is for tests: it is called with "noted" before and
        with "opened" after the database was opened.
        """
        path = Path(path)
        problem = ""
        for attempt in range(1, MAX_OPENS + 1):
            if attempt > 1:
                time.sleep(RETRY_PAUSE)
            try:
                before = note_files(path)
                if gate:
                    gate("noted")
                database = _open_read_only(path, block_cache)
                if gate:
                    gate("opened")
                if note_files(path) == before:
                    return cls._checked(path, database, expect_best, attempt)
                problem = "its files changed during every open"
            except (StoreError, StaleView, CoinsReadError):
                raise
            except FileNotFoundError as error:
                problem = str(error)
            except Exception as error:  # rocksdict has no exception type of its own
                if not any(text in str(error) for text in TRANSIENT):
                    raise CoinsReadError(f"cannot open {path}: {error}") from error
                problem = str(error)
            log.debug("open %d of %s refused: %s", attempt, path, problem)
        raise CoinsReadError(f"cannot open {path}: {MAX_OPENS} attempts refused, the last because {problem}")

    @classmethod
    def _checked(cls, path: Path, database: Any, expect_best: bytes | None, opens: int) -> "CoinsReader":
        best, heads, key = database.get([BEST_BLOCK_KEY, HEAD_BLOCKS_KEY, OBFUSCATION_KEY])
        if heads is not None:
            raise StoreError(f"{path} lies between two tips (record H): it is not served; import the store again")
        if best is None:
            raise StoreError(f"{path} holds no best block (record B): it is empty or was never completed")
        xor_key = parse_obfuscation_key(key, path)
        best_block = obfuscate(best, xor_key)
        if len(best_block) != 32:
            raise StoreCorrupt(f"{path}: the best block record has {len(best_block)} bytes instead of 32")
        if expect_best is not None and best_block != expect_best:
            raise StaleView(f"{path} is at block {to_display(best_block)}, not at {to_display(expect_best)}")
        return cls(path, database, best_block, xor_key, opens)

    def multi_get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Values (still obfuscated) of the keys, None for each that is absent. Gives up the GIL while it reads.

        Raises `CoinsReadError` if any of them could not be read, so None always means absence.
        """
        database = self._database
        if database is None:
            raise CoinsReadError(f"the reader of {self.path} is closed")
        if not keys:
            return []
        try:
            values = database.get(list(keys))
        except Exception as error:  # rocksdict has no exception type of its own
            raise CoinsReadError(f"cannot read coins from {self.path}: {error}") from error
        if len(values) != len(keys):
            raise CoinsReadError(f"asked {self.path} for {len(keys)} keys and got {len(values)} values")
        return values

    def get_run(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The same for keys that may lie side by side, as the outputs of one transaction do: read in one pass over them
        while that pays, since a pass takes a quarter of the time of as many single looks.

        `keys` are best given in the database's order; any order is answered right.
        """
        database = self._database
        if database is None:
            raise CoinsReadError(f"the reader of {self.path} is closed")
        if len(keys) < SHORTEST_RUN:
            return self.multi_get(keys)
        first, last = min(keys), max(keys)
        if first[:TXID_END] != last[:TXID_END]:
            return self.multi_get(keys)
        wanted: dict[bytes, bytes | None] = dict.fromkeys(keys)
        left = RUN_PATIENCE * len(wanted)
        passed = False
        try:
            for key, value in database.items(from_key=first):
                if key > last:
                    passed = True
                    break
                if key in wanted:
                    wanted[key] = value
                left -= 1
                if not left:  # too much lies between them
                    break
        except Exception as error:  # rocksdict has no exception type of its own
            raise CoinsReadError(f"cannot read coins from {self.path}: {error}") from error
        if not passed:  # nor is the end of an iteration proof of absence: an error ends it as well
            rest = [key for key, value in wanted.items() if value is None]
            wanted.update(zip(rest, self.multi_get(rest), strict=True))
        return [wanted[key] for key in keys]

    def read_coins(self, outpoints: Sequence[bytes]) -> list[Coin | None]:
        """The coins of outpoints (36 bytes each), None for each that is absent. Raises `CoinsReadError`."""
        values = self.multi_get([coin_key(outpoint) for outpoint in outpoints])
        try:
            return [None if value is None else decode_coin(obfuscate(value, self.xor_key)) for value in values]
        except StoreCorrupt as error:
            raise CoinsReadError(f"cannot read coins from {self.path}: {error}") from error

    def close(self) -> None:
        """Ends the use of this reader. A read still under way in another thread keeps the files open until it ends."""
        self._database = None
