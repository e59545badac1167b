"""Clients of a soak run, each a thread: they declare, supply, ask for verdicts and compare them; one of them floods."""

import asyncio
import http.client
import json
import random
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import ray

from cluster import Cluster
from models.errors import Busy, ClientError, CollectionLost, StaleView, TxCollectionError, WorkerLost
from models.messages import unwrap
from tests.cluster.gateway.conftest import Connection
from tests.soak.plan import Declaration, Planner
from tests.soak.tally import Tally

__all__ = ["CollectionClient", "Flooder", "RpcClient", "SoakClient"]

PASSING = (Busy, WorkerLost, CollectionLost, StaleView)  # what a careful client asks again after
PASSING_CODES = (-32005, -32001, -28)
OTHER_TIP = ("stale", "fork", "ahead")
PLAN_TIMEOUT = 60.0  # seconds
JUNK = 400_000  # bytes
FLOOD_CALLS = 48  # under way at a time


class SoakClient(threading.Thread, ABC):
    """One client that goes on until `stop` is set."""

    def __init__(self, name: str, planner: Planner, loop: asyncio.AbstractEventLoop, tally: Tally, seed: int):
        super().__init__(name=name, daemon=True)
        self.planner = planner
        self.loop = loop
        self.tally = tally
        self.dice = random.Random(seed)
        self.stop = threading.Event()
        self.flood = threading.Event()  # set while somebody floods

    def run(self) -> None:
        while not self.stop.is_set():
            try:
                self.turn()
            except PASSING as error:
                self.tally.count(self.tally.errors, type(error).__name__)
                self.stop.wait(0.05)
            except Exception as error:  # whatever else comes to a client is a fault of the node's, or of this run
                self.tally.fault(f"{self.name}: {type(error).__name__}: {error}")
                self.stop.wait(0.5)
        self.leave()

    @abstractmethod
    def turn(self) -> None:
        """One declaration."""

    def leave(self) -> None:
        """The run is over."""

    def plan(self, kind: str) -> Declaration:
        """A declaration on the followed node's tip, made where its chain stands still."""
        made = self.on_loop(lambda: self.planner.make(kind))
        self.tally.count(self.tally.declarations, kind)
        return made

    def on_loop(self, question: Callable[[], Any]) -> Any:
        """An answer from the thread that the chain lives in."""

        async def ask() -> Any:
            return question()

        return asyncio.run_coroutine_threadsafe(ask(), self.loop).result(PLAN_TIMEOUT)

    def judge(self, plan: Declaration, kind: str, reason: str | None) -> None:
        """Compares a verdict, unless it says that the tip is another."""
        self.tally.count(self.tally.verdicts, f"{kind} {reason}" if kind == "invalid" else kind)
        if kind in OTHER_TIP:
            return
        self.tally.compare()
        if plan.unknown:
            right = kind == "missing"
        else:
            right = (kind, reason) == (("valid", None) if plan.expected is None else ("invalid", plan.expected))
        if not right:
            self.tally.mismatch(f"{plan.kind} on {plan.prevhash}: {kind} {reason}, not {plan.expected}")


class CollectionClient(SoakClient):
    """Uses the facade."""

    def __init__(self, store: Any, *args: Any):
        super().__init__(*args)
        self._store = store
        self._node: Cluster | None = None

    def _joined(self) -> Cluster:
        if self._node is None:
            self._node = Cluster.connect(store=self._store)
        return self._node

    def leave(self) -> None:
        if self._node is not None:
            self._node.close()

    def turn(self) -> None:
        plan = self.plan(self.planner.kind())
        collection = self._joined().collect_txs(plan.wtxids)
        try:
            self._use(collection, plan)
        finally:
            if plan.kind == "vanished":
                self.leave()  # with its collection open
                self._node = None
            else:
                collection.close()

    def _use(self, collection: Any, plan: Declaration) -> None:
        if plan.kind in ("abandoned", "vanished"):
            return
        if plan.kind == "wrong":
            self._refused(collection, [self.on_loop(self.planner.wrong)], "unexpected wtxid")
        if plan.kind == "junk":
            self._refused(collection, self.on_loop(lambda: self.planner.junk(JUNK)), "does not decode")
        time.sleep(self.dice.random() * 0.06)  # the way to the miner and back
        flooded = self.flood.is_set()
        begun = time.perf_counter()
        unknown = collection._call("unknown_tx_pos")
        asked = time.perf_counter()
        raws = plan.raws(unknown)
        if self.dice.random() < 0.3:
            collection.add_missing_txs(raws)
            raws = []
        called = time.perf_counter()
        verdict = collection.make_template(plan.prevhash, missing=raws)
        done = time.perf_counter()
        if flooded == self.flood.is_set():
            (self.tally.flood_ms if flooded else self.tally.quiet_ms).append((done - called) * 1000)
            (self.tally.ask_flood_ms if flooded else self.tally.ask_quiet_ms).append((asked - begun) * 1000)
        self.judge(plan, verdict.kind.value, verdict.reason)

    def _refused(self, collection: Any, raws: list[bytes], words: str) -> None:
        before = collection._call("unknown_tx_pos")
        try:
            collection.add_missing_txs(raws)
            if before:
                self.tally.fault(f"{self.name}: a wrong supply was taken in")
        except ClientError as error:
            self.tally.count(self.tally.errors, "ClientError")
            if words not in str(error) and "too many transactions" not in str(error):
                self.tally.fault(f"{self.name}: a wrong supply was refused with: {error}")
        if collection._call("unknown_tx_pos") != before:
            self.tally.fault(f"{self.name}: a refused supply changed the collection")


class RpcClient(SoakClient):
    """Uses JSON-RPC."""

    def __init__(self, gateway: Any, *args: Any):
        super().__init__(*args)
        self._gateway = gateway
        self._connection: Connection | None = None

    def leave(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def turn(self) -> None:
        plan = self.plan("missing" if self.dice.random() < 0.5 else self.planner.kind())
        if plan.kind in ("abandoned", "vanished", "junk", "wrong"):
            return
        try:
            made = self._ask("collecttxs", plan.wtxids)
            raws = [raw.hex() for raw in plan.raws(made["unknown"])]
            answer = self._ask("maketemplate", made["collection"], plan.prevhash, None, raws)
            self._ask("closecollection", made["collection"])
        except (OSError, http.client.HTTPException, json.JSONDecodeError) as error:
            self.leave()  # the gateway died, or is being replaced
            raise WorkerLost(f"no gateway: {error}") from None
        self.judge(plan, answer["kind"], answer["reason"])

    def _ask(self, method: str, *params: Any) -> Any:
        if self._connection is None:
            self._connection = Connection(self._gateway)
        answer = self._connection.ask(method, *params)
        if answer.status == 503 and not answer.body.startswith(b"{"):
            raise Busy("503")
        body = answer.json
        error = body.get("error")
        if error is None:
            return body["result"]
        if error["code"] in PASSING_CODES:
            self.leave()
            raise Busy(f"{error['code']}: {error['message']}")
        raise TxCollectionError(f"{method}: {error}")


class Flooder(SoakClient):
    """While its flood is on: as many calls at a time as it may make, and more."""

    def __init__(self, store: Any, *args: Any):
        super().__init__(*args)
        self._store = store

    def turn(self) -> None:
        if not self.flood.wait(0.2):
            return
        with Cluster.connect(store=self._store) as node:
            plan = self.plan("missing")
            collections = []
            try:
                for _ in range(8):
                    collections.append(node.collect_txs(plan.wtxids))
                self._flood(collections, plan)
            finally:
                for collection in collections:
                    collection.close()

    def _flood(self, collections: list[Any], plan: Declaration) -> None:
        raws = [tx.raw for tx in plan.transactions]
        prevhash = bytes.fromhex(plan.prevhash)[::-1]
        for collection in collections:
            collection.add_missing_txs(raws)
        asked: list[Any] = []
        while self.flood.is_set() and not self.stop.is_set():
            while len(asked) < FLOOD_CALLS * len(collections) // 4:
                collection = self.dice.choice(collections)
                actor, key = collection._actor, collection._key
                if self.dice.random() < 0.5:
                    asked.append(actor.make_template.remote(key, prevhash, None, [], None, None))
                else:
                    asked.append(actor.unknown_tx_pos.remote(key))
            done, asked = ray.wait(asked, num_returns=min(len(asked), 16), timeout=5)
            for reference in done:
                self._look_at(reference)
        for reference in asked:
            self._look_at(reference)

    def _look_at(self, reference: Any) -> None:
        try:
            unwrap(ray.get(reference, timeout=PLAN_TIMEOUT))
            self.tally.count(self.tally.flood_answers, "answered")
        except (*PASSING, ray.exceptions.RayActorError) as error:
            self.tally.count(self.tally.flood_answers, type(error).__name__)
        except TxCollectionError as error:
            self.tally.fault(f"{self.name}: {type(error).__name__}: {error}")
