"""A Bitcoin node's JSON-RPC as the follower needs it: chain, headers, blocks and mempool, single calls or batches.

Everything asked here only reads, so a call may be made again. Hashes are display hex on the wire, and bytes in internal
order in and out of the typed methods. What goes wrong has a name: unreachable (try again), refused (password), pruned.
"""

import asyncio
import base64
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from models.errors import ClientError, DecodeError, NodeError, NodePruned, NodeRefused, NodeUnreachable, SettingsError
from models.wire.block import HEADER_SIZE, BlockHeader
from models.wire.hashes import from_display, sha256d, to_display

__all__ = ["ChainInfo", "Login", "NodeRpc", "NodeRpcError"]

TIMEOUT = 120.0  # seconds for one answer; a node that flushes its coins may keep its lock for that long
BATCH = 100  # calls in one HTTP request; a batch of transactions stays below some tens of megabytes
COOKIE_PATIENCE = 5  # looks at a cookie file, a second apart, before it is believed to be wrong

# Core: rpc/protocol.h
RPC_MISC_ERROR = -1
RPC_INVALID_ADDRESS_OR_KEY = -5
RPC_INVALID_PARAMETER = -8
RPC_IN_WARMUP = -28


class NodeRpcError(NodeError):
    """The node answered a call with an error; `code` is Core's number for it (rpc/protocol.h)."""

    def __init__(self, message: str, code: int = 0):
        super().__init__(message)
        self.code = code

    def __reduce__(self) -> tuple[type, tuple[str, int]]:
        return type(self), (str(self), self.code)


@dataclass(frozen=True)
class Login:
    """How to prove who we are: a cookie file, which the node writes anew at each start, or a user and a password."""

    cookie: Path | None = None
    user: str | None = None
    password: str | None = field(default=None, repr=False)

    @classmethod
    def of_options(cls, cookie: Path | None, user: str | None, password_file: Path | None) -> "Login":
        """From a command line's options. Raises SettingsError for a half of it, or a file that cannot be read."""
        if cookie is not None:
            if user is not None or password_file is not None:
                raise SettingsError("give either --cookie FILE or --user U with --password-file F, not both")
            return cls(cookie=cookie.expanduser())
        if user is None or password_file is None:
            raise SettingsError(
                "the node wants to know who asks: give --cookie FILE (the node's data directory has it as .cookie), "
                "or --user U with --password-file F"
            )
        try:
            lines = password_file.expanduser().read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
            raise SettingsError(f"cannot read the password file {password_file}: {why}") from None
        if not lines or not lines[0]:
            raise SettingsError(f"the password file {password_file} is empty: its first line must be the password")
        return cls(user=user, password=lines[0])

    def header(self) -> str:
        """The value of the Authorization header. Raises NodeUnreachable while there is no cookie file: a node that runs
        has one."""
        if self.cookie is None:
            text = f"{self.user}:{self.password}"
        else:
            try:
                text = self.cookie.read_text(encoding="utf-8").strip()
            except (OSError, UnicodeDecodeError) as error:
                why = error.strerror if isinstance(error, OSError) else "it is not text"
                raise NodeUnreachable(
                    f"the cookie file {self.cookie} cannot be read ({why}): is the node running, and is this its file?"
                ) from None
        return "Basic " + base64.b64encode(text.encode()).decode("ascii")

    @property
    def what(self) -> str:
        """For messages; never the secret."""
        return f"the cookie in {self.cookie}" if self.cookie is not None else f"user {self.user} with this password"


@dataclass(frozen=True)
class ChainInfo:
    """What `getblockchaininfo` says, as far as it is used."""

    chain: str  # main, test, testnet4, signet or regtest
    blocks: int  # height of the best block
    headers: int  # height of the best header
    best: bytes  # hash of the best block, internal order
    initial_download: bool
    prune_height: int | None  # the first block that is still there; None on a node that keeps all
    signet_challenge: bytes | None  # None where the node does not say

    @classmethod
    def of(cls, fields: dict[str, Any]) -> "ChainInfo":
        """From the answer. Raises NodeError where it is not what Core answers."""
        try:
            challenge = fields.get("signet_challenge")
            return cls(
                str(fields["chain"]),
                int(fields["blocks"]),
                int(fields["headers"]),
                from_display(fields["bestblockhash"], "bestblockhash"),
                bool(fields.get("initialblockdownload", False)),
                int(fields.get("pruneheight", 0)) if fields.get("pruned") else None,
                bytes.fromhex(challenge) if challenge else None,
            )
        except (KeyError, TypeError, ValueError, ClientError) as error:
            raise NodeError(f"the node's answer to getblockchaininfo makes no sense: {error}") from None


def _address_of(url: str) -> str:
    """The URL to post to. Raises SettingsError for what is none, or one with a password in it."""
    parts = urlsplit(url if "://" in url else f"http://{url}")
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if parts.scheme not in ("http", "https") or not host:
        raise SettingsError(f"--node {url!r} must be like http://127.0.0.1:8332")
    if parts.username is not None or parts.password is not None:
        raise SettingsError("--node must not hold a password, which any user of this machine could see: use --cookie")
    place = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{place}{f':{port}' if port else ''}{parts.path or '/'}"


class NodeRpc:
    """One node. Open it with `async with`; calls may be made side by side."""

    def __init__(self, url: str, login: Login, timeout: float = TIMEOUT):
        self.url = _address_of(url)
        self._login = login
        self._timeout = aiohttp.ClientTimeout(total=timeout, connect=10.0)
        self._session: aiohttp.ClientSession | None = None
        self._next_id = 0
        self._accepted = False  # the login was accepted before
        self.requests = 0  # HTTP requests made

    async def __aenter__(self) -> "NodeRpc":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the connections. A later call opens them again."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    # Calls ------------------------------------------------------------------------------------------------------

    async def call(self, method: str, *params: Any) -> Any:
        """The result of one call. Raises NodeRpcError with the node's own text, NodeUnreachable, NodeRefused."""
        answer = await self._post(self._request(method, params))
        if not isinstance(answer, dict):
            raise NodeError(f"{self.url} does not speak JSON-RPC: it answered {method} with {str(answer)[:80]!r}")
        return self._result(answer, method)

    async def batch(self, calls: Sequence[tuple[str, Sequence[Any]]]) -> list[Any]:
        """Results of many calls, in their order, a NodeRpcError in place of each that failed. Any number of them."""
        results: list[Any] = []
        for at in range(0, len(calls), BATCH):
            requests = [self._request(method, params) for method, params in calls[at : at + BATCH]]
            answers = await self._post(requests)
            if not isinstance(answers, list):
                if isinstance(answers, dict):
                    self._result(answers, requests[0]["method"])
                raise NodeError(f"{self.url} does not answer batches of JSON-RPC calls")
            by_id = {answer.get("id"): answer for answer in answers if isinstance(answer, dict)}
            for request in requests:
                try:
                    results.append(self._result(by_id.get(request["id"], {}), request["method"]))
                except NodeRpcError as error:
                    results.append(error)
        return results

    def _request(self, method: str, params: Sequence[Any]) -> dict[str, Any]:
        self._next_id += 1
        return {"jsonrpc": "2.0", "id": self._next_id, "method": method, "params": list(params)}

    @staticmethod
    def _result(answer: dict[str, Any], method: str) -> Any:
        error = answer.get("error")
        if error is not None:
            code = error.get("code", 0) if isinstance(error, dict) else 0
            text = error.get("message", "") if isinstance(error, dict) else str(error)
            if code == RPC_IN_WARMUP:
                raise NodeUnreachable(f"the node is starting: {text}")
            raise NodeRpcError(f"{method}: {text} (code {code})", code)
        if "result" not in answer:
            raise NodeError(f"the node gave no answer to {method}")
        return answer["result"]

    async def _post(self, body: Any) -> Any:
        data = json.dumps(body).encode()
        looks = 0
        again = True
        while True:
            try:
                status, content = await self._send(data)
            except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError) as error:
                # The node closes connections that were idle; the first call after that finds out.
                if again and not isinstance(error, aiohttp.ClientConnectorError):
                    again = False
                    continue
                raise self._unreachable(error) from None
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                raise self._unreachable(error) from None
            if status == 401:
                looks += 1
                if self._login.cookie is not None and looks < COOKIE_PATIENCE:
                    await asyncio.sleep(1 if self._accepted else 0.2)  # a node that starts writes a new one
                    continue
                raise NodeRefused(f"the node at {self.url} does not accept {self._login.what}")
            return self._content(status, content)

    async def _send(self, data: bytes) -> tuple[int, bytes]:
        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=self._timeout)
        headers = {"Authorization": self._login.header(), "Content-Type": "application/json"}
        self.requests += 1
        async with self._session.post(self.url, data=data, headers=headers, allow_redirects=False) as response:
            return response.status, await response.read()

    def _unreachable(self, error: Exception) -> NodeUnreachable:
        if isinstance(error, aiohttp.ClientConnectorError):
            cause = error.os_error.errno
            why = os.strerror(cause) if cause and cause > 0 else str(error.os_error)
        elif isinstance(error, TimeoutError):
            why = f"no answer in {self._timeout.total:g} s"
        else:
            why = str(error) or type(error).__name__
        return NodeUnreachable(f"no connection to the node at {self.url}: {why}")

    def _content(self, status: int, content: bytes) -> Any:
        if status == 403:
            raise NodeRefused(f"the node at {self.url} forbids this host to ask (its setting rpcallowip)")
        try:
            answer = json.loads(content)
        except ValueError:
            text = content[:80].decode("latin-1").strip()
            if status in (500, 502, 503, 504):  # Core: 503 when its queue of calls is full
                raise NodeUnreachable(f"the node at {self.url} is busy or stopping: HTTP {status} {text}") from None
            raise NodeError(f"{self.url} does not speak JSON-RPC: HTTP {status} {text!r}") from None
        self._accepted = True
        return answer

    # What the follower asks -------------------------------------------------------------------------------------

    async def chain_info(self) -> ChainInfo:
        """The node's chain at this moment."""
        return ChainInfo.of(await self.call("getblockchaininfo"))

    async def best(self) -> bytes:
        """The hash of the best block."""
        return from_display(await self.call("getbestblockhash"), "getbestblockhash")

    async def block_hashes(self, heights: Sequence[int]) -> list[bytes | None]:
        """Hashes of the best chain at some heights; None where it does not reach that high (any more)."""
        hashes: list[bytes | None] = []
        for answer in await self.batch([("getblockhash", [height]) for height in heights]):
            if isinstance(answer, NodeRpcError):
                if answer.code != RPC_INVALID_PARAMETER:
                    raise answer
                hashes.append(None)
            else:
                hashes.append(from_display(answer, "getblockhash"))
        return hashes

    async def headers(self, hashes: Sequence[bytes]) -> list[BlockHeader]:
        """Headers by hash; each is seen to have that hash. Raises NodeError for one that the node does not know."""
        calls = [("getblockheader", [to_display(block_hash), False]) for block_hash in hashes]
        headers = []
        for block_hash, answer in zip(hashes, await self.batch(calls), strict=True):
            if isinstance(answer, NodeRpcError):
                raise answer
            header = BlockHeader.parse(_bytes_of(answer, "getblockheader"))
            if header.hash != block_hash:
                raise NodeError(f"the node answers getblockheader {to_display(block_hash)} with another header")
            headers.append(header)
        return headers

    async def height_of(self, block_hash: bytes) -> tuple[int, bool] | None:
        """Height of a block and whether it is on the best chain; None if the node does not know it."""
        try:
            fields = await self.call("getblockheader", to_display(block_hash), True)
        except NodeRpcError as error:
            if error.code == RPC_INVALID_ADDRESS_OR_KEY:
                return None
            raise
        return int(fields["height"]), int(fields.get("confirmations", -1)) >= 0

    async def block(self, block_hash: bytes) -> bytes | None:
        """A whole block, seen to have that hash; None if the node does not know it. Raises NodePruned if the node
        knows it and does not have it (any more)."""
        name = to_display(block_hash)
        try:
            raw = _bytes_of(await self.call("getblock", name, 0), "getblock")
        except NodeRpcError as error:
            if error.code == RPC_INVALID_ADDRESS_OR_KEY:
                return None
            if error.code == RPC_MISC_ERROR:
                raise NodePruned(f"the node does not have block {name}: {error}") from None
            raise
        if sha256d(raw[:HEADER_SIZE]) != block_hash:
            raise NodeError(f"the node answers getblock {name} with another block")
        return raw

    async def mempool(self) -> tuple[list[bytes], int]:
        """Ids of all mempool transactions, and the number that the next change of the mempool will have."""
        answer = await self.call("getrawmempool", False, True)
        try:
            return [bytes.fromhex(txid)[::-1] for txid in answer["txids"]], int(answer["mempool_sequence"])
        except (KeyError, TypeError, ValueError) as error:
            raise NodeError(
                f"the node's answer to getrawmempool makes no sense: {error}; is it Core 0.21 or later?"
            ) from None

    async def mempool_wtxids(self) -> dict[bytes, bytes]:
        """txid -> wtxid of all mempool transactions. A long answer on a full mempool."""
        answer = await self.call("getrawmempool", True)
        try:
            return {bytes.fromhex(txid)[::-1]: bytes.fromhex(entry["wtxid"])[::-1] for txid, entry in answer.items()}
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise NodeError(f"the node's answer to getrawmempool makes no sense: {error}") from None

    async def transactions(self, txids: Sequence[bytes]) -> list[bytes | None]:
        """Mempool transactions, serialised with witness; None for what has left the mempool meanwhile."""
        answers = await self.batch([("getrawtransaction", [to_display(txid), False]) for txid in txids])
        found: list[bytes | None] = []
        for answer in answers:
            if isinstance(answer, NodeRpcError):
                if answer.code != RPC_INVALID_ADDRESS_OR_KEY:
                    raise answer
                found.append(None)
            else:
                found.append(_bytes_of(answer, "getrawtransaction"))
        return found

    async def published_topics(self) -> set[str] | None:
        """What the node publishes by ZMQ (`rawblock` and so on); None if it was built without."""
        try:
            return {entry["type"].removeprefix("pub") for entry in await self.call("getzmqnotifications")}
        except (NodeRpcError, KeyError, TypeError):
            return None


def _bytes_of(answer: Any, method: str) -> bytes:
    try:
        return bytes.fromhex(answer)
    except (TypeError, ValueError):
        raise DecodeError(f"the node's answer to {method} is no hex") from None
