"""A client of Core's IPC for tests: it does what Stratum V2 servers do, with pycapnp, over a real socket."""

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import capnp

SCHEMA = Path(__file__).parents[3] / "cluster" / "ipc" / "schema"
_parser = capnp.SchemaParser()
init_schema = _parser.load(str(SCHEMA / "init.capnp"))
proxy_schema = _parser.load(str(SCHEMA / "proxy.capnp"))
mining_schema = _parser.load(str(SCHEMA / "mining.capnp"))


def drive(work: Coroutine[Any, Any, Any]) -> Any:
    """Runs a test's coroutine with Cap'n Proto's event loop."""
    return asyncio.run(capnp.run(work))


class Client:
    """A connection with one thread; `context` is what calls on that thread are given."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        self.rpc = capnp.TwoPartyClient(stream)
        self.init = self.rpc.bootstrap().cast_as(init_schema.Init)
        self.threads = self.init.construct().threadMap
        self.context = self.thread("first")
        self.mining = self.init.makeMining(self.context).result

    @classmethod
    async def connect(cls, path: Path) -> "Client":
        return cls(await capnp.AsyncIoStream.create_unix_connection(str(path)))

    def thread(self, name: str = "another") -> Any:
        context = proxy_schema.Context.new_message()
        context.thread = self.threads.makeThread(name).result
        return context

    async def collect(self, wtxids: list[bytes]) -> Any:
        return (await self.mining.collectTxs(self.context, wtxids)).result

    def close(self) -> None:
        """Ends the connection without a word."""
        self.rpc.close()
        self.stream.close()


def check_options(pow: bool = True, merkle_root: bool = True) -> Any:
    return mining_schema.BlockCheckOptions.new_message(checkPow=pow, checkMerkleRoot=merkle_root)


def wait_options(milliseconds: float, threshold: int | None = None) -> Any:
    options = mining_schema.BlockWaitOptions.new_message(timeout=milliseconds)
    if threshold is not None:
        options.feeThreshold = threshold
    return options


async def description(call: Any) -> str:
    """The text of the exception that a call ends with."""
    try:
        await call
    except capnp.KjException as error:
        assert error.type == "FAILED"
        return error.description
    raise AssertionError("the call was answered")


def internal(display: str) -> bytes:
    """A hash as it crosses the wire."""
    return bytes.fromhex(display)[::-1]
