"""The published tip as a small memory-mapped file, so that every process on the host can compare tips in microseconds
instead of asking the chainstate's owner.

Layout, little-endian: hash 32 (internal order) | height u32 | epoch u64 | n u64 | crc32 of these 52 bytes u32. A height
of 0xffffffff means that the block's header is not known yet. The owner writes it after the database batch is on disk; a
reader that meets half a write sees a wrong checksum and looks again.
"""

import mmap
import os
import time
import zlib
from pathlib import Path
from struct import Struct

from models.consensus.context import Tip, TipVersion
from models.errors import NotReady, StoreError
from models.storage.durable import disk_errors, write_at
from models.wire.hashes import to_display

__all__ = ["TipReader", "TipWriter", "parse_tip"]

TIP_FILE = "tip"

_BODY = Struct("<32sIQQ")
_CHECK = Struct("<I")
_SIZE = _BODY.size + _CHECK.size
_UNKNOWN = 0xFFFFFFFF
_PATIENCE = 1.0  # seconds; a write takes microseconds


def parse_tip(data: bytes) -> Tip | None:
    """The tip that the file's bytes stand for; None where they do not match their checksum. Raises NotReady while the
    tip's header is not known."""
    body = data[: _BODY.size]
    if len(data) != _SIZE or _CHECK.unpack_from(data, _BODY.size)[0] != zlib.crc32(body):
        return None
    block_hash, height, epoch, n = _BODY.unpack(body)
    if height == _UNKNOWN:
        raise NotReady(
            f"the header of block {to_display(block_hash)}, whose coins are here, is not known yet: "
            "`txcollection follow` fetches it from a node"
        )
    return Tip(block_hash, height, TipVersion(epoch, n))


class TipWriter:
    """The owner's side."""

    def __init__(self, store: Path):
        self._path = store / TIP_FILE
        with disk_errors(self._path, "write"):
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                there = os.fstat(fd).st_size
                if there < _SIZE:  # a hole that the disk has no room for would end the process at the first write
                    write_at(fd, bytes(_SIZE - there), there, self._path)
                os.ftruncate(fd, _SIZE)
                self._map = mmap.mmap(fd, _SIZE)
            finally:
                os.close(fd)

    def publish(self, tip: Tip) -> None:
        """Makes `tip` what readers see."""
        self._put(tip.hash, tip.height, tip.version)

    def publish_unknown(self, best_block: bytes, version: TipVersion) -> None:
        """Lets readers see that the header of the coins' block is not known yet."""
        self._put(best_block, _UNKNOWN, version)

    def _put(self, block_hash: bytes, height: int, version: TipVersion) -> None:
        body = _BODY.pack(block_hash, height, version.epoch, version.n)
        self._map[:] = body + _CHECK.pack(zlib.crc32(body))

    def close(self) -> None:
        """Lets go of the file; it keeps the last tip."""
        self._map.close()


class TipReader:
    """A reader's side; `read` costs a few microseconds."""

    def __init__(self, store: Path):
        self._path = store / TIP_FILE
        try:
            with open(self._path, "rb") as file:
                self._map = mmap.mmap(file.fileno(), _SIZE, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise StoreError(f"no published tip in {self._path} ({error}): start the store's owner first") from None

    def read(self) -> Tip:
        """The tip as published last. Raises NotReady while its header is not known, StoreError if the file stays
        unreadable."""
        deadline = None
        while True:
            tip = parse_tip(self._map[:])
            if tip is not None:
                return tip
            now = time.monotonic()
            deadline = deadline or now + _PATIENCE
            if now > deadline:
                raise StoreError(f"the published tip in {self._path} does not match its checksum")

    def close(self) -> None:
        """Lets go of the file."""
        self._map.close()
