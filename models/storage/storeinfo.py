"""What store.json says: which network the store is of, with its switches, where it came from, and its epoch.

Switches decide over verdicts, so the file has a checksum over its fields; one without it (written by hand) is taken.
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from models.consensus.params import ChainParams, get_params
from models.errors import StoreCorrupt, StoreError
from models.storage.durable import disk_error, write_atomic

__all__ = ["SCHEMA_VERSION", "StoreInfo"]

SCHEMA_VERSION = 1
INFO_FILE = "store.json"


@dataclass(slots=True)
class StoreInfo:
    """What store.json holds."""

    network: str
    activation_heights: dict[str, int]  # regtest only (Core: -testactivationheight)
    bip94: bool  # regtest only (Core: -test=bip94)
    signet_challenge: str | None  # hex, for a signet of one's own
    source: dict[str, Any]  # where it came from, for people; for a snapshot also base hash, counts and hash
    epoch: int = 0
    schema: int = SCHEMA_VERSION

    def params(self) -> ChainParams:
        """The chain parameters with these switches. Raises `SettingsError` for switches the network does not have."""
        challenge = None if self.signet_challenge is None else bytes.fromhex(self.signet_challenge)
        return get_params(self.network, self.activation_heights or None, self.bip94, challenge)

    def serialize(self) -> bytes:
        """The bytes of store.json."""
        fields = {name: getattr(self, name) for name in self.__slots__}
        return json.dumps({**fields, "checksum": _checksum(fields)}, indent=2).encode() + b"\n"

    def save(self, store: Path) -> None:
        """Replaces store.json; on disk when it returns."""
        write_atomic(store / INFO_FILE, self.serialize(), place="store.info")

    @classmethod
    def load(cls, store: Path) -> "StoreInfo":
        """Reads store.json. Raises `StoreError` if there is none or it is of another schema, `StoreCorrupt` for a
        file that is no such thing."""
        file = store / INFO_FILE
        try:
            fields = json.loads(file.read_bytes())
            schema = fields["schema"]
            checksum = fields.pop("checksum", None)
        except FileNotFoundError:
            if (store / "chainstate").is_dir():
                raise StoreCorrupt(f"{file} is missing: put back a copy of it, or make the store again") from None
            raise StoreError(f"no store in {store}: make one with `txcollection init`") from None
        except OSError as error:
            raise disk_error(file, "read", error) from error
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise StoreCorrupt(f"{file} cannot be read: {error}") from error
        if checksum is not None and checksum != _checksum(fields):
            raise StoreCorrupt(f"{file} is damaged: its checksum is wrong")
        if schema != SCHEMA_VERSION:
            raise StoreError(f"{store} has schema version {schema}, this program has {SCHEMA_VERSION}: make it again")
        try:
            info = cls(**fields)
            info._check_types()
        except (TypeError, ValueError) as error:
            raise StoreCorrupt(f"{file} cannot be read: {error}") from error
        return info

    def _check_types(self) -> None:
        """Raises TypeError or ValueError naming the field that is not what it must be."""
        heights, challenge = self.activation_heights, self.signet_challenge
        good = {
            "network": isinstance(self.network, str),
            "activation_heights": isinstance(heights, dict) and all(type(height) is int for height in heights.values()),
            "bip94": isinstance(self.bip94, bool),
            "signet_challenge": challenge is None or isinstance(challenge, str),
            "source": isinstance(self.source, dict),
            "epoch": type(self.epoch) is int and 0 <= self.epoch < 1 << 63,
            "schema": type(self.schema) is int,
        }
        wrong = [name for name, is_good in good.items() if not is_good]
        if wrong:
            raise TypeError(f"{wrong[0]} is {str(getattr(self, wrong[0]))[:40]!r}, which it cannot be")
        bytes.fromhex(challenge or "")


def _checksum(fields: dict[str, Any]) -> str:
    """SHA-256 of the fields in one form, whatever the file's layout."""
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()
