"""The HTTP side of a gateway: who may call, how much at a time, and how envelopes and answers travel.

Calls are POSTs to `/`, as to Bitcoin Core; pages for operators are GETs. A request is refused before its body is read
if its sender is not known or there is no room for it.
"""

import asyncio
import logging
from typing import Any

from aiohttp import web

from cluster.gateway.admission import Admission, TooLarge
from cluster.gateway.auth import Credentials
from cluster.gateway.calls import Call, House, off_loop
from cluster.gateway.jsonrpc import (
    BUSY,
    INTERNAL_ERROR,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    Envelope,
    RpcError,
    describe,
    dump,
    http_status,
    load,
)
from cluster.gateway.methods import METHODS
from cluster.gateway.options import GatewayOptions, is_loopback
from cluster.gateway.pages import PAGES, Pages
from models.errors import Busy, TxCollectionError

__all__ = ["Service"]

WRONG_PASSWORD_PAUSE = 0.25  # seconds, to deter guessing (Core: httprpc.cpp)
MAX_CONNECTIONS = 1000
MAX_BATCH = 10_000  # calls in one request
MAX_ANSWER = 256 * 1024 * 1024  # bytes of one request's answers; what is asked beyond is answered busy
BACKLOG = 128
SHUTDOWN = 1.0  # seconds that calls under way have when the gateway closes
WHO_ARE_YOU = {"WWW-Authenticate": 'Basic realm="jsonrpc"'}
SOFTWARE = {"Server": "txcollection"}

log = logging.getLogger("txcollection")


class _Server(web.Server):
    """Tells when a connection is lost, and takes no more than so many."""

    def __init__(self, service: "Service", **options: Any):
        super().__init__(service.handle, **options)
        self._service = service

    def connection_made(self, handler: Any, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        if len(self.connections) > MAX_CONNECTIONS:
            self._service.house.metrics.refused.labels("connections").inc()
            transport.abort()

    def connection_lost(self, handler: Any, exc: BaseException | None = None) -> None:
        super().connection_lost(handler, exc)
        self._service.house.sessions.connection_lost(handler)


class Service:
    """Listens, lets in, answers."""

    def __init__(self, house: House, credentials: Credentials, options: GatewayOptions):
        self.house = house
        self._credentials = credentials
        self._options = options
        settings = house.settings
        self.admission = Admission(
            settings["rpc_concurrency"], settings["rpc_body_bytes"], settings["rpc_bodies_bytes"]
        )
        self._pages = Pages(house, self.admission)
        self._runner: web.ServerRunner | None = None
        self._own_origins: set[str] = set()

    async def listen(self) -> int:
        """Starts to; the port. Raises OSError."""
        idle = self.house.settings["collection_idle_s"]
        server = _Server(self, keepalive_timeout=idle + 60, access_log=None, auto_decompress=False)
        runner = web.ServerRunner(server, shutdown_timeout=SHUTDOWN)
        await runner.setup()
        try:
            site = web.TCPSite(runner, self._options.host, self._options.port, backlog=BACKLOG)
            await site.start()
        except BaseException:
            await runner.cleanup()
            raise
        self._runner = runner
        port = int(runner.addresses[0][1])
        hosts = {self._options.host, "localhost", "127.0.0.1", "[::1]"}
        self._own_origins = {f"http://{host}:{port}" for host in hosts}
        return port

    async def close(self) -> None:
        """Ends all connections."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    # HTTP -------------------------------------------------------------------------------------------------------

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """One HTTP request."""
        if request.method == "POST":
            if request.path != "/":
                return _text(404, "calls go to /")
            return await self._calls(request)
        if request.method not in ("GET", "HEAD"):
            return _text(405, "JSON-RPC calls are POST requests, pages are GET requests", {"Allow": "GET, HEAD, POST"})
        if request.path not in PAGES:
            return _text(404, f"there is no such page; there are {', '.join(PAGES)}")
        refusal = await self._refuse_page(request)
        return refusal or await self._pages.answer(request)

    async def _refuse_page(self, request: web.BaseRequest) -> web.Response | None:
        """On loopback pages are open to this machine alone, but not to a web site that calls itself by this address;
        elsewhere they want a password, except for the one that load balancers ask."""
        if self._options.allow_remote and not is_loopback(self._options.host):
            if request.path == "/health":
                return None
            _, refusal = await self._user(request)
            return refusal
        if is_loopback(_host_name(request.headers.get("Host", ""))):
            return None
        self.house.metrics.refused.labels("host").inc()
        return _text(403, "pages are shown to this machine only, under its own name")

    async def _user(self, request: web.BaseRequest) -> tuple[str, web.Response | None]:
        header = request.headers.get("Authorization")
        if header is None:
            return "", _text(401, "", WHO_ARE_YOU)
        user = self._credentials.user_of(header)
        if user is None:
            self.house.metrics.refused.labels("password").inc()
            log.warning("incorrect password attempt from %s", request.remote)
            await asyncio.sleep(WRONG_PASSWORD_PAUSE)
            return "", _text(401, "", WHO_ARE_YOU)
        return user, None

    async def _calls(self, request: web.BaseRequest) -> web.Response:
        user, refusal = await self._user(request)
        if refusal is not None:
            return refusal
        origin = request.headers.get("Origin")
        if origin is not None and origin not in self._own_origins:
            self.house.metrics.refused.labels("origin").inc()
            return _text(403, "a page of another web site may not call")
        metrics = self.house.metrics
        try:
            with self.admission.slot(), self.admission.room(self.admission.expected(request)):
                if request.headers.get("Expect", "").lower() == "100-continue":
                    await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                body = await self.admission.read(request)
                metrics.received.inc(len(body))
                if request.transport is None:
                    raise Busy("the client has gone")
                call = Call(self.house, user, request.protocol, request.headers.get("X-Session"))
                return await self._answer(call, body)
        except TooLarge as error:
            metrics.refused.labels("size").inc()
            return _failure(RpcError(INVALID_REQUEST, str(error)), 413)
        except Busy as error:
            metrics.refused.labels("busy").inc()
            return _failure(describe(error), 503)

    # Calls ------------------------------------------------------------------------------------------------------

    async def _answer(self, call: Call, body: bytes) -> web.Response:
        try:
            with self.house.sessions.calling(call.session()):
                value = await off_loop(len(body), load, body)
                if isinstance(value, dict):
                    return await self._single(call, value)
                if isinstance(value, list):
                    return await self._batch(call, value)
            raise RpcError(PARSE_ERROR, "Top-level object parse error")
        except RpcError as error:
            self._count_error(error)
            return _failure(error, http_status(error.code))

    async def _single(self, call: Call, value: dict[str, Any]) -> web.Response:
        envelope = Envelope()
        try:
            envelope.parse(value)
        except RpcError as error:
            self._count_error(error)
            return self._json(await self._encode(envelope, None, error), http_status(error.code))
        result, problem = await self._execute(call, envelope)
        if envelope.is_notification:
            return web.Response(status=204, headers=SOFTWARE)
        status = 200 if problem is None or envelope.v2 else http_status(problem.code)
        return self._json(await self._encode(envelope, result, problem), status)

    async def _batch(self, call: Call, values: list[Any]) -> web.Response:
        """Calls are answered one after the other; errors never show in the HTTP status."""
        if len(values) > MAX_BATCH:
            raise RpcError(INVALID_REQUEST, f"{len(values)} calls in one request are more than {MAX_BATCH}")
        answers: list[bytes] = []
        size = 0
        for value in values:
            envelope = Envelope()
            result: Any = None
            problem: RpcError | None = None
            try:
                envelope.parse(value)
                if size > MAX_ANSWER:
                    raise RpcError(BUSY, f"the answers to this request are longer than {MAX_ANSWER} bytes")
            except RpcError as error:
                problem = error
                self._count_error(error)
            else:
                result, problem = await self._execute(call, envelope)
            if not envelope.is_notification:
                answers.append((await self._encode(envelope, result, problem)).rstrip())
                size += len(answers[-1])
        if not answers and values:
            return web.Response(status=204, headers=SOFTWARE)
        return self._json(b"[" + b",".join(answers) + b"]\n", 200)

    async def _encode(self, envelope: Envelope, result: Any, problem: RpcError | None) -> bytes:
        reply = envelope.reply(result, problem)
        method = METHODS.get(envelope.method)
        try:
            if method is not None and method.long_answer and problem is None:
                return await asyncio.to_thread(dump, reply)
            return dump(reply)
        except RecursionError:  # an id that is nested just deeply enough to be read
            raise RpcError(PARSE_ERROR, "Parse error") from None

    async def _execute(self, call: Call, envelope: Envelope) -> tuple[Any, RpcError | None]:
        method = METHODS.get(envelope.method)
        result: Any = None
        problem: RpcError | None = None
        try:
            if method is None:
                raise RpcError(METHOD_NOT_FOUND, "Method not found")
            result = await method.handler(call, *method.bind(envelope.params))
        except (RpcError, TxCollectionError) as error:
            problem = error if isinstance(error, RpcError) else describe(error)
            self._count_error(error)
        except Exception as error:
            log.exception("unexpected error in %s", envelope.method)
            problem = RpcError(INTERNAL_ERROR, f"{envelope.method}: unexpected {type(error).__name__}")
            self._count_error(error)
        name = method.name if method is not None else "unknown"
        self.house.metrics.calls.labels(name, "error" if problem else "ok").inc()
        return result, problem

    def _count_error(self, error: Exception) -> None:
        name = f"code {error.code}" if isinstance(error, RpcError) else type(error).__name__
        self.house.metrics.errors.labels(name).inc()

    def _json(self, body: bytes, status: int) -> web.Response:
        self.house.metrics.sent.inc(len(body))
        return web.Response(body=body, status=status, content_type="application/json", headers=SOFTWARE)


def _text(status: int, text: str, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(text=text, status=status, headers={**SOFTWARE, **(headers or {})})


def _host_name(header: str) -> str:
    """The host of a `Host` header without its port."""
    return header[1:].partition("]")[0] if header.startswith("[") else header.partition(":")[0]


def _failure(error: RpcError, status: int) -> web.Response:
    """The answer to a request as a whole. The connection is kept, since its client may have collections on it; what was
    not read of the body is passed over."""
    headers = {**SOFTWARE, **({"Retry-After": "1"} if status == 503 else {})}
    body = dump(Envelope().reply(None, error))
    return web.Response(body=body, status=status, content_type="application/json", headers=headers)
