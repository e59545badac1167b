"""The interfaces as Python modules, read from the files in `schema/`. On the wire only ids, numbers and types count."""

from pathlib import Path
from typing import Any

import capnp

__all__ = ["common", "echo", "init", "mining", "proxy", "rpc"]

_FOLDER = Path(__file__).parent / "schema"
_parser = capnp.SchemaParser()  # one of our own: a program that loads Core's files too has no two of the same id


def _load(name: str) -> Any:
    return _parser.load(str(_FOLDER / f"{name}.capnp"))


init = _load("init")
proxy = _load("proxy")
common = _load("common")
echo = _load("echo")
mining = _load("mining")
rpc = _load("rpc")
