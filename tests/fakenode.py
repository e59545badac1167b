"""A small Bitcoin node for tests of the follower: JSON-RPC and ZMQ as Core has them, as far as they are used, around
the chain and mempool of `tests.fakechain`.

`FakeNode` runs in the event loop of the test. With BITCOIND=path in the environment `start_node` runs a real one
instead, with the same methods; what only the fake can do (forgetting blocks, claiming another network) says so.
"""

import asyncio
import base64
import itertools
import json
import os
import random
import secrets
import shutil
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from struct import pack
from typing import Any

import zmq
import zmq.asyncio
from aiohttp import web

from models.wire.transaction import Transaction
from tests.actors.blocks import sha256d
from tests.fakechain import BranchTip, Entry, FakeChain

__all__ = [
    "FakeNode",
    "RealNode",
    "free_port",
    "start_node",
]

TOPICS = ("rawblock", "rawtx", "sequence")

RPC_MISC, RPC_NOT_FOUND, RPC_OUT_OF_RANGE, RPC_WARMUP, RPC_NO_METHOD = -1, -5, -8, -28, -32601


def free_port() -> int:
    """A TCP port of loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class RpcFault(Exception):
    """An error answer of the node."""

    def __init__(self, code: int, message: str):
        super().__init__(message)
        self.code = code
        self.message = message


# The fake's network side ----------------------------------------------------------------------------------------------


class FakeNode:
    """JSON-RPC and ZMQ around a FakeChain. `await node.start()` first; addresses stay the same over restarts."""

    is_fake = True

    def __init__(self, directory: Path, publishes: Sequence[str] = TOPICS, with_zmq: bool = True):
        self.chain = FakeChain(self._publish)
        self.network = "regtest"
        self.password = ("user", "secret")
        self.initial_download = False
        self.headers_ahead = 0  # how far the best header is above the best block
        self.pruned_below: int | None = None  # height
        self.warming_up = False
        self.hidden: set[bytes] = set()  # blocks that it does not give
        self.calls: dict[str, int] = {}
        self.drop: Callable[[str], bool] = lambda _: False  # whether a message of a topic gets lost
        self.dropped = 0
        self._publishes = tuple(publishes)
        self._cookie = directory / ".cookie"
        self._port = free_port()
        self._zmq_port = free_port() if with_zmq else None
        self._numbers: dict[str, int] = {}
        self._context: zmq.Context | None = None
        self._socket: Any = None
        self._runner: web.AppRunner | None = None

    # starting and stopping

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @property
    def cookie(self) -> Path:
        return self._cookie

    @property
    def zmq(self) -> str:
        assert self._zmq_port is not None
        return f"tcp://127.0.0.1:{self._zmq_port}"

    async def start(self) -> "FakeNode":
        """Listens, with a fresh cookie and fresh message numbers."""
        self._cookie_text = f"__cookie__:{secrets.token_hex(16)}"
        self._cookie.write_text(self._cookie_text)
        self._numbers = {}
        self.chain.sequence = 1 + len(self.chain.mempool)
        if self._zmq_port is not None:
            self._context = zmq.Context()
            self._socket = self._context.socket(zmq.PUB)
            self._socket.set(zmq.SNDHWM, 0)
            self._socket.set(zmq.LINGER, 0)
            self._socket.bind(self.zmq)
        app = web.Application(client_max_size=64 << 20)
        app.router.add_post("/", self._handle)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self._port, reuse_address=True).start()
        return self

    async def stop(self) -> None:
        """Closes everything; chain and mempool stay."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None
        if self._socket is not None and self._context is not None:
            self._socket.close(0)
            self._context.term()
            self._socket = None
        self._cookie.unlink(missing_ok=True)

    async def restart(self, away: float = 0.3) -> None:
        """Stops, is away for some seconds, and starts."""
        await self.stop()
        await asyncio.sleep(away)
        await self.start()

    def _publish(self, topic: str, body: bytes) -> None:
        if topic not in self._publishes:
            return
        number = self._numbers.get(topic, 0)
        self._numbers[topic] = number + 1
        if self.drop(topic):
            self.dropped += 1
        elif self._socket is not None:
            self._socket.send_multipart([topic.encode(), body, pack("<I", number)])

    # what a test does with it, as with a real one

    async def tip(self, below: int = 0) -> BranchTip:
        """The best block, or the one `below` it."""
        height = len(self.chain.active) - 1 - below
        entry = self.chain.entries[self.chain.active[height]]
        return BranchTip(self.chain.active[height], height, entry.block.header.time)

    async def submit_block(self, raw: bytes) -> bytes:
        """Takes in a block; its hash."""
        return self.chain.add_block(raw)

    async def send(self, tx: Transaction) -> bool:
        """Takes in a transaction."""
        return self.chain.add_transaction(tx.raw)

    async def mempool(self) -> dict[bytes, bytes]:
        """txid -> wtxid."""
        return {txid: tx.wtxid for txid, tx in self.chain.mempool.items()}

    async def utxo_hash(self) -> str:
        """hash_serialized_3 of its coins, display hex."""
        return self.chain.utxo_hash()

    # JSON-RPC

    async def _handle(self, request: web.Request) -> web.Response:
        given = request.headers.get("Authorization", "")
        accepted = (self._cookie_text, ":".join(self.password))
        if given not in ["Basic " + base64.b64encode(text.encode()).decode() for text in accepted]:
            return web.Response(status=401)
        asked = json.loads(await request.read())
        if isinstance(asked, list):
            return web.json_response([self._answer(one) for one in asked])
        return web.json_response(self._answer(asked))

    def _answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        method = asked["method"]
        self.calls[method] = self.calls.get(method, 0) + 1
        try:
            if self.warming_up:
                raise RpcFault(RPC_WARMUP, "Loading block index…")
            handler = getattr(self, f"_rpc_{method}", None)
            if handler is None:
                raise RpcFault(RPC_NO_METHOD, "Method not found")
            return {"jsonrpc": "2.0", "id": asked["id"], "result": handler(*asked["params"])}
        except RpcFault as fault:
            return {"jsonrpc": "2.0", "id": asked["id"], "error": {"code": fault.code, "message": fault.message}}

    def _entry(self, name: str) -> Entry:
        entry = self.chain.entries.get(bytes.fromhex(name)[::-1])
        if entry is None:
            raise RpcFault(RPC_NOT_FOUND, "Block not found")
        return entry

    def _rpc_getblockchaininfo(self) -> dict[str, Any]:
        blocks = len(self.chain.active) - 1
        info = {
            "chain": self.network,
            "blocks": blocks,
            "headers": blocks + self.headers_ahead,
            "bestblockhash": self.chain.best[::-1].hex(),
            "initialblockdownload": self.initial_download,
            "pruned": self.pruned_below is not None,
        }
        return info | ({"pruneheight": self.pruned_below} if self.pruned_below is not None else {})

    def _rpc_getbestblockhash(self) -> str:
        return self.chain.best[::-1].hex()

    def _rpc_getblockhash(self, height: int) -> str:
        if not 0 <= height < len(self.chain.active):
            raise RpcFault(RPC_OUT_OF_RANGE, "Block height out of range")
        return self.chain.active[height][::-1].hex()

    def _rpc_getblockheader(self, name: str, verbose: bool = True) -> Any:
        entry = self._entry(name)
        if not verbose:
            return entry.block.raw[:80].hex()
        on_chain = entry.height < len(self.chain.active) and self.chain.active[entry.height][::-1].hex() == name
        return {"height": entry.height, "confirmations": len(self.chain.active) - entry.height if on_chain else -1}

    def _rpc_getblock(self, name: str, verbosity: int) -> str:
        entry = self._entry(name)
        if self.pruned_below is not None and entry.height < self.pruned_below or entry.block.header.hash in self.hidden:
            raise RpcFault(RPC_MISC, "Block not available (pruned data)")
        assert verbosity == 0
        return entry.block.raw.hex()

    def _rpc_getrawmempool(self, verbose: bool = False, mempool_sequence: bool = False) -> Any:
        pool = self.chain.mempool
        if verbose:
            return {txid[::-1].hex(): {"wtxid": tx.wtxid[::-1].hex()} for txid, tx in pool.items()}
        txids = [txid[::-1].hex() for txid in pool]
        return {"txids": txids, "mempool_sequence": self.chain.sequence} if mempool_sequence else txids

    def _rpc_getrawtransaction(self, name: str, verbose: bool = False) -> str:
        tx = self.chain.mempool.get(bytes.fromhex(name)[::-1])
        if tx is None:
            raise RpcFault(RPC_NOT_FOUND, "No such mempool transaction.")
        return tx.raw.hex()

    def _rpc_getzmqnotifications(self) -> list[dict[str, Any]]:
        return [{"type": f"pub{topic}", "address": self.zmq, "hwm": 1000} for topic in self._publishes]


# A real node ----------------------------------------------------------------------------------------------------------


class RealNode:
    """bitcoind on regtest, with the same methods."""

    is_fake = False

    def __init__(self, program: str, directory: Path):
        self._program = program
        self._directory = directory / "bitcoind"
        self._directory.mkdir()
        self._port, self._zmq_port = free_port(), free_port()
        self._process: asyncio.subprocess.Process | None = None
        self._ids = itertools.count()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @property
    def cookie(self) -> Path:
        return self._directory / "regtest" / ".cookie"

    @property
    def zmq(self) -> str:
        return f"tcp://127.0.0.1:{self._zmq_port}"

    async def start(self) -> "RealNode":
        """Starts it and waits until it answers."""
        self._process = await asyncio.create_subprocess_exec(
            self._program,
            "-regtest",
            f"-datadir={self._directory}",
            "-server",
            "-listen=0",
            "-dnsseed=0",
            "-acceptnonstdtxn=1",
            "-maxtipage=1000000000",
            "-persistmempool=1",
            f"-rpcport={self._port}",
            *(f"-zmqpub{topic}={self.zmq}" for topic in TOPICS),
            *(f"-zmqpub{topic}hwm=100000" for topic in TOPICS),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        for _ in range(300):
            try:
                await self.call("getblockcount")
                return self
            except OSError:
                await asyncio.sleep(0.2)
        raise AssertionError("bitcoind did not start")

    async def stop(self) -> None:
        """Asks it to stop and waits until it has."""
        if self._process is not None and self._process.returncode is None:
            self._process.terminate()
            await self._process.wait()
        self._process = None

    async def restart(self, away: float = 0.3) -> None:
        """Stops, is away for some seconds, and starts."""
        await self.stop()
        await asyncio.sleep(away)
        await self.start()

    async def call(self, method: str, *params: Any) -> Any:
        """One RPC, by a client of the test's own. Raises OSError while it does not answer, RpcFault for an error."""
        return await asyncio.to_thread(self._call, method, params)

    def _call(self, method: str, params: Sequence[Any]) -> Any:
        from http.client import HTTPConnection, HTTPException

        body = json.dumps({"jsonrpc": "1.0", "id": next(self._ids), "method": method, "params": list(params)})
        login = base64.b64encode(self.cookie.read_bytes()).decode()
        connection = HTTPConnection("127.0.0.1", self._port, timeout=60)
        try:
            connection.request("POST", "/", body, {"Authorization": f"Basic {login}"})
            answer = json.loads(connection.getresponse().read() or b"{}")
        except (HTTPException, ValueError) as error:
            raise OSError(str(error)) from None
        finally:
            connection.close()
        error = answer.get("error")
        if error:
            if error["code"] == RPC_WARMUP:
                raise OSError(error["message"])
            raise RpcFault(error["code"], error["message"])
        return answer["result"]

    async def tip(self, below: int = 0) -> BranchTip:
        """The best block, or the one `below` it."""
        height = await self.call("getblockcount") - below
        name = await self.call("getblockhash", height)
        head = await self.call("getblockheader", name)
        return BranchTip(bytes.fromhex(name)[::-1], height, head["time"])

    async def submit_block(self, raw: bytes) -> bytes:
        """Submits a block, which must not be refused; its hash."""
        answer = await self.call("submitblock", raw.hex())
        assert answer in (None, "inconclusive", "duplicate"), answer
        return sha256d(raw[:80])

    async def send(self, tx: Transaction) -> bool:
        """Submits a transaction; whether it was accepted."""
        try:
            await self.call("sendrawtransaction", tx.raw.hex(), 0, 21_000_000)
        except RpcFault:
            return False
        return True

    async def mempool(self) -> dict[bytes, bytes]:
        """txid -> wtxid."""
        answer = await self.call("getrawmempool", True)
        return {bytes.fromhex(t)[::-1]: bytes.fromhex(entry["wtxid"])[::-1] for t, entry in answer.items()}

    async def utxo_hash(self) -> str:
        """hash_serialized_3 of its coins, display hex."""
        return (await self.call("gettxoutsetinfo", "hash_serialized_3"))["hash_serialized_3"]


def start_node(directory: Path) -> FakeNode | RealNode:
    """The node to test against, not started: the one that BITCOIND names, else the fake."""
    program = os.environ.get("BITCOIND")
    if not program:
        return FakeNode(directory)
    found = shutil.which(program)
    assert found, f"BITCOIND={program} is no program"
    return RealNode(found, directory)


def drop_some(node: FakeNode, share: float, seed: int) -> None:
    """Lets a share of the fake's messages get lost, the same ones in every run."""
    dice = random.Random(seed)
    node.drop = lambda _: dice.random() < share
