"""Scripts to verify as they cross to another process: a job is a raw transaction with what its inputs spend."""

from collections.abc import Sequence

import msgpack

from models.messages import in_pieces

__all__ = ["ScriptJob", "pack_jobs", "unpack_jobs"]

ScriptJob = tuple[bytes, list[tuple[int, bytes]]]  # raw transaction, (satoshis, scriptPubKey) of each input


def pack_jobs(jobs: Sequence[ScriptJob]) -> list[bytes]:
    """Jobs as arguments of one call, which cross in less time than lists of tuples do."""
    return in_pieces(msgpack.packb(jobs))


def unpack_jobs(pieces: Sequence[bytes]) -> list[ScriptJob]:
    """The jobs of `pack_jobs`."""
    return list(msgpack.unpackb(b"".join(pieces), use_list=False))
