"""A gateway on a node of the corpus's chain, shared by all tests that leave the chain as it is; and plain HTTP."""

import asyncio
import base64
import http.client
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from bitcoinrpc.authproxy import AuthServiceProxy

from cluster.declaration_log import DeclarationLog
from cluster.gateway.auth import Credentials
from cluster.gateway.calls import House
from cluster.gateway.facts import Facts
from cluster.gateway.options import GatewayOptions
from cluster.gateway.peers import Peers
from cluster.gateway.service import Service
from cluster.gateway.sessions import Sessions
from cluster.metrics import Metrics
from cluster.settings import load_settings
from models.consensus.context import Tip, TipVersion
from models.errors import Busy
from models.messages import pack_tip


@dataclass
class Answer:
    """What came over HTTP."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> tuple[int, str]:
        error = self.json["error"]
        return error["code"], error["message"]


class Connection:
    """One connection that is kept; what is made on it goes when it is closed."""

    def __init__(self, gateway: Any, auth: tuple[str, str] | None = None):
        self._http = http.client.HTTPConnection(gateway.host, gateway.port, timeout=60)
        user, password = auth or gateway.auth
        token = base64.b64encode(f"{user}:{password}".encode()).decode()
        self.headers = {"Authorization": f"Basic {token}"}

    def send(
        self, body: bytes | str, headers: dict[str, str] | None = None, method: str = "POST", path: str = "/"
    ) -> Answer:
        """Any bytes, with the right password unless `headers` are given."""
        self._http.request(method, path, body or None, self.headers if headers is None else headers)
        answer = self._http.getresponse()
        return Answer(answer.status, answer.headers, answer.read())

    def get(self, path: str, headers: dict[str, str] | None = None) -> Answer:
        """A page, without a password."""
        return self.send(b"", headers or {}, "GET", path)

    def ask(self, method: str, *params: Any, session: str | None = None, **fields: Any) -> Answer:
        """One call as JSON-RPC 1.0 unless `fields` say otherwise."""
        headers = dict(self.headers) | ({"X-Session": session} if session is not None else {})
        return self.send(json.dumps({"method": method, "params": params, "id": 1} | fields), headers)

    def call(self, method: str, *params: Any, session: str | None = None) -> Any:
        """The result of a call that must succeed."""
        answer = self.ask(method, *params, session=session)
        assert answer.json["error"] is None, answer.json["error"]
        return answer.json["result"]

    def refusal(self, method: str, *params: Any, session: str | None = None) -> tuple[int, str]:
        """Code and text of the error of a call that must fail."""
        return self.ask(method, *params, session=session).error

    def close(self) -> None:
        self._http.close()


@dataclass
class Served:
    """A node and its gateway."""

    node: Any
    gateway: Any

    def connect(self, auth: tuple[str, str] | None = None) -> Connection:
        return Connection(self.gateway, auth)

    def proxy(self) -> AuthServiceProxy:
        """A client that was not written here."""
        user, password = self.gateway.auth
        return AuthServiceProxy(f"http://{user}:{password}@{self.gateway.host}:{self.gateway.port}", timeout=120)


class FakePeers(Peers):
    """A node that knows its tip and nothing else."""

    async def ask(self, kind: str, method: str, *args: Any, **_: Any) -> Any:
        assert (kind, method) == ("chainstate", "tip")
        return pack_tip(Tip(bytes(32), 125, TipVersion(1, 1)))

    async def stats(self) -> dict[str, Any]:
        raise Busy("nobody is here")


def lonely_house(store: Path, **settings: Any) -> House:
    """What a gateway needs, without actors; call it where an event loop runs."""
    merged = load_settings(**settings).model_dump(mode="json")
    peers = FakePeers()
    sessions = Sessions(merged, lambda *_: None)
    facts = Facts(store, peers)
    return House(store, merged, peers, facts, sessions, Metrics(), DeclarationLog("off"), "test", 0.0, lambda: None)


@dataclass
class InProcess:
    """Where a gateway without a node listens."""

    host: str
    port: int
    auth: tuple[str, str]

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"


@contextmanager
def lonely_gateway(store: Path, **settings: Any) -> Iterator[Served]:
    """A gateway without actors, in a thread of this process."""
    options = GatewayOptions("127.0.0.1", 0, cookie="secret")
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    async def start() -> tuple[Service, int]:
        service = Service(lonely_house(store, **settings), Credentials(cookie="secret"), options)
        return service, await service.listen()

    service, port = asyncio.run_coroutine_threadsafe(start(), loop).result(30)
    try:
        yield Served(None, InProcess("127.0.0.1", port, ("__cookie__", "secret")))
    finally:
        asyncio.run_coroutine_threadsafe(service.close(), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(30)
        loop.close()


@pytest.fixture
def nobody(tmp_path: Path) -> Iterator[Served]:
    """A gateway whose node is gone."""
    with lonely_gateway(tmp_path) as gateway:
        yield gateway


@pytest.fixture(scope="session")
def corpus_tip(data: Path) -> dict[str, Any]:
    """Facts of the corpus's tip, the time of its recording among them."""
    return json.loads((data / "corpus" / "tip.json").read_text())


@pytest.fixture(scope="session")
def served(
    make_store: Callable[..., Path],
    start_node: Callable[..., Any],
    corpus_tip: dict[str, Any],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Served]:
    """The shared one; its declaration log is `declarations.jsonl` beside its store."""
    from cluster.gateway.start import start_gateway

    store = make_store("corpus/regtest_datadir.tar.gz")
    node = start_node(store, now=corpus_tip["now"], tip_old_s=10**8)
    with start_gateway(node, log=store.parent / "declarations.jsonl") as gateway:
        yield Served(node, gateway)


@pytest.fixture
def connection(served: Served) -> Iterator[Connection]:
    """One to the shared gateway."""
    made = served.connect()
    yield made
    made.close()


@pytest.fixture
def serve_own(own_node: Callable[..., Any], corpus_tip: dict[str, Any]) -> Iterator[Callable[..., Served]]:
    """Makes nodes with gateways that end with the test; `gateway` are keywords of `start_gateway`, others settings."""
    from cluster.gateway.start import start_gateway

    made: list[Served] = []

    def make(gateway: dict[str, Any] | None = None, **settings: Any) -> Served:
        node = own_node(now=corpus_tip["now"], tip_old_s=10**8, **settings)
        served = Served(node, start_gateway(node, **(gateway or {})))
        made.append(served)
        return served

    yield make
    for served in made:
        served.gateway.close()
