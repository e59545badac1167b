"""The facade that notebooks and commands use: a node; its collections and templates are in `cluster.collection`. Every
method is one message, or a few; pydantic, display hex and friendly objects exist here and not further in.
"""

import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from types import TracebackType
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from actors.pool import id_of
from actors.supervisor import SUPERVISOR, Supervisor
from cluster.collection import (
    CALL_TIMEOUT,
    AssembledTemplate,
    Collection,
    Template,
    check_options,
    html_table,
    raw_bytes,
    raw_list,
)
from cluster.head import while_ray_lives
from cluster.runtime import NodeFile, NoNode, ensure_ray, here, namespace_of
from cluster.settings import Settings, load_settings
from models.coins.coin import Coin
from models.collection import parse_wtxids
from models.consensus.context import Tip
from models.consensus.reasons import DUPLICATE
from models.consensus.verdict import Kind, Verdict
from models.dumpfile import DumpDirectory
from models.errors import Busy, ClientError, StoreError, WorkerLost
from models.messages import in_pieces, unpack_tip, unpack_verdict, unwrap
from models.storage.storeinfo import StoreInfo
from models.wire.hashes import from_display, sha256d, to_display

__all__ = ["AssembledTemplate", "Cluster", "Collection", "Template", "UtxoStats"]

STOP_TIMEOUT = 20.0
RETRY_PAUSE = 0.3  # seconds until a dead actor's replacement is asked for
RETRIES = 30
HEADER_SIZE = 80  # bytes


@dataclass(frozen=True)
class UtxoStats:
    """The whole set of coins at one moment. `hash_serialized_3` in display hex, `total_amount` in satoshis."""

    height: int
    txouts: int
    total_amount: int
    hash_serialized_3: str


class Cluster:
    """A node: started here, or joined."""

    def __init__(self, settings: Settings, supervisor: Any, store: Path, started: bool, owns_ray: bool, namespace: str):
        """Use `start` or `connect`."""
        self.settings = settings
        self.store = store
        self._supervisor = supervisor
        self._started = started
        self._owns_ray = owns_ray
        self._namespace = namespace
        self._client = secrets.token_hex(8)
        self._directory: dict[str, Any] = {}
        self._turn = 0
        self._closed = False
        self._refresh()

    # Starting and joining ---------------------------------------------------------------------------------------

    @classmethod
    def start(cls, settings: Settings | None = None, **overrides: Any) -> "Cluster":
        """Starts a node on a store, with an embedded Ray unless the settings name another; keywords are settings.

        Raises SettingsError, StoreError (StoreInUse for one that another process owns). A store that a node of this
        Ray serves already is joined.
        """
        settings = settings or load_settings(**overrides)
        store = Path(settings.store).expanduser().resolve()
        StoreInfo.load(store)
        if settings.dump_dir is not None:
            DumpDirectory(
                settings.dump_dir, settings.dump_files
            )  # one that cannot be used is known before anything runs
        NodeFile.end_killed(store)
        owns_ray = ensure_ray(settings.address, settings.object_store_memory)
        namespace = namespace_of(store)
        try:
            running = _find_supervisor(namespace)
            return cls(settings, running, store, False, owns_ray, namespace)
        except (ValueError, ray.exceptions.RayActorError):
            pass
        maker: Any = ray.remote(**Supervisor.RAY_OPTIONS)(Supervisor)
        this_host = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        supervisor = maker.options(
            name=SUPERVISOR, namespace=namespace, lifetime="detached", scheduling_strategy=this_host
        ).remote(str(store), settings.model_dump(mode="json"), namespace)
        try:
            unwrap(ray.get(supervisor.start.remote(), timeout=CALL_TIMEOUT))
        except BaseException:
            _stop(supervisor, namespace)
            if owns_ray:
                ray.shutdown()
            raise
        here(namespace).write(store)
        return cls(settings, supervisor, store, True, owns_ray, namespace)

    @classmethod
    def connect(cls, store: str | Path | None = None, address: str | None = None) -> "Cluster":
        """Joins the node that serves `store` (by default that of the settings). Raises StoreError if none runs."""
        settings = load_settings(**({"store": store} if store is not None else {}))
        path = Path(settings.store).expanduser().resolve()
        node = NodeFile.read(path)
        if address is None and node.ended:
            raise NoNode(f"no node runs on {path} any more: start one with `txcollection up --store {path}`")
        owns_ray = ensure_ray(address or node.address)
        try:
            supervisor = _find_supervisor(node.namespace)
        except (ValueError, ray.exceptions.RayError):
            if owns_ray:
                ray.shutdown()
            raise NoNode(f"no node runs on {path} any more: start one with `txcollection up --store {path}`") from None
        return cls(settings, supervisor, path, False, owns_ray, node.namespace)

    def close(self) -> None:
        """Ends the node if this object started it, leaves it alone if it was joined. Harmless to repeat."""
        if self._closed:
            return
        self._closed = True
        while_ray_lives(self._leave)  # if Ray died first, nothing is left to be ended in order
        if self._started:
            NodeFile.remove(self.store)

    def _leave(self) -> None:
        if self._started:
            self.stop_node()
        else:
            for actor in self._directory.get("collection", []):
                actor.close_client.remote(self._client)
        if self._owns_ray:
            ray.shutdown()

    def stop_node(self) -> None:
        """Closes the store and ends every actor of the node, whoever started it."""
        _stop(self._supervisor, self._namespace)
        NodeFile.remove(self.store)

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def supervisor(self) -> Any:
        """The actor that made all others, for gateways that want to be among them."""
        return self._supervisor

    # Talking to actors ------------------------------------------------------------------------------------------

    def _refresh(self) -> None:
        self._directory = self._ask_supervisor("directory")

    def _ask_supervisor(self, method: str) -> Any:
        """One question to the supervisor; one that is being restarted is asked again. Raises NoNode if it ended."""
        for _ in range(RETRIES):
            try:
                return unwrap(ray.get(getattr(self._supervisor, method).remote(), timeout=CALL_TIMEOUT))
            except ray.exceptions.ActorUnavailableError:
                time.sleep(RETRY_PAUSE)
            except ray.exceptions.RayActorError:
                break
            except ray.exceptions.GetTimeoutError:
                raise Busy(f"{method}: no answer within {CALL_TIMEOUT:g} s") from None
        raise NoNode(f"no node runs on {self.store} any more")

    def _pick(self, kind: str) -> Any:
        chosen = self._directory[kind]
        if isinstance(chosen, list):
            return chosen[-1] if chosen else None
        return chosen

    def _ask(self, kind: str, method: str, *args: Any, again: bool = True, timeout: float = CALL_TIMEOUT) -> Any:
        """One question to an actor of a kind; if that died, its replacement is asked (unless the call writes)."""
        if self._closed:
            raise StoreError("this node was closed")
        for attempt in range(RETRIES):
            actor = self._pick(kind)
            try:
                if actor is not None:
                    return unwrap(ray.get(getattr(actor, method).remote(*args), timeout=timeout))
            except ray.exceptions.RayActorError:
                if not again:
                    raise WorkerLost(
                        f"the {kind} actor died under {method}; whether it was done is not known, ask again"
                    ) from None
                if attempt == 0:
                    self._supervisor.lost.remote(id_of(actor), "died under a call")
            except ray.exceptions.GetTimeoutError:
                raise Busy(f"{method}: no answer within {timeout:g} s") from None
            time.sleep(RETRY_PAUSE)
            self._refresh()
        why = self._directory.get("trouble", {}).get(kind) or self._directory.get("trouble", {}).get("chainstate")
        raise WorkerLost(f"no {kind} actor answers" + (f": {why}" if why else ""))

    # The chain --------------------------------------------------------------------------------------------------

    def tip(self) -> Tip:
        """The block that templates must build on; `hash` in internal order, see `tip_hash`."""
        return unpack_tip(self._ask("chainstate", "tip"))

    def tip_hash(self) -> str:
        """The tip's hash in display hex, as `make_template` takes it."""
        return to_display(self.tip().hash)

    def coins(self, outpoints: Sequence[tuple[str, int]]) -> list[Coin | None]:
        """Coins by (display txid, output number) at the tip; None for what is absent. Nothing is cached by it."""
        packed = [from_display(txid, "txid") + _vout(n) for txid, n in outpoints]
        found = self._ask("chainstate", "coins", packed)
        return [None if coin is None else Coin(*coin) for coin in found]

    def utxo_stats(self) -> UtxoStats:
        """Counts and hashes all coins. Reads the whole database: minutes on a large one."""
        return UtxoStats(*self._ask("chainstate", "utxo_stats", timeout=3600))

    def check_block(
        self,
        block: bytes,
        check_pow: bool = False,
        check_merkle_root: bool = True,
        proposal: bool = False,
        now: int | None = None,
        script_mode: str | None = None,
    ) -> Verdict:
        """The verdict on a whole block. With `proposal`, blocks in the index are answered as Core's proposals are.

        Raises DecodeError for bytes that are no block; bytes after it are ignored.
        """
        args = (raw_bytes(block, "block"), check_pow, check_merkle_root, proposal, *check_options(now, script_mode))
        return unpack_verdict(self._ask("template", "check_block", *args, self._client))

    def assemble_template(self, coinbase: bytes | None = None, now: int | None = None) -> Verdict:
        """A block of our own: the best transactions of the mempool, checked by the same rules as anybody's.

        `coinbase` None: one that claims subsidy and fees for an anyone-can-spend output. The verdict's template is a
        `AssembledTemplate`.
        """
        first = None if coinbase is None else raw_bytes(coinbase, "coinbase")
        verdict = unpack_verdict(self._ask("template", "assemble", first, check_options(now, None)[0]))
        if verdict.kind is not Kind.VALID:
            return verdict
        template = AssembledTemplate.of(verdict.template)
        return Verdict(verdict.kind, None, "", None, "", template, verdict.timings)

    def submit_block(self, block: bytes) -> str | None:
        """Validates in full, stores, and follows the branch with most work; answers as Core's submitblock.

        None: it is the new tip, published and on disk. Raises DecodeError; WorkerLost if the outcome is not known, in
        which case submitting again is harmless. Where the actor died that was to do it, that is done here.
        """
        raw = raw_bytes(block, "block")
        try:
            return self._ask("template", "submit_block", raw, again=False)
        except WorkerLost:
            answer = self._ask("template", "submit_block", raw)
        if answer != DUPLICATE.text:
            return answer
        info = self._ask("chainstate", "block_info", sha256d(raw[:HEADER_SIZE]))
        return None if info and info["active"] else answer  # it was taken in the first time

    def disconnect_tip(self) -> Tip:
        """Takes the tip back. Raises StoreError where the undo data is not kept."""
        return unpack_tip(self._ask("template", "disconnect_tip", again=False))

    # The mempool ------------------------------------------------------------------------------------------------

    def mempool_add(self, transactions: Sequence[bytes]) -> list[str | None]:
        """Admits raw transactions; the display wtxid of each that is new, None for those already here."""
        return self._ask("mempool", "add", raw_list(transactions))

    def mempool_remove(self, wtxid: str) -> bytes:
        """Takes one out and returns its bytes. Raises ClientError if it is not here."""
        return self._ask("mempool", "remove", from_display(wtxid, "wtxid"), again=False)

    def mempool_wtxids(self) -> list[str]:
        """Display wtxids of all transactions, oldest first."""
        return [to_display(wtxid) for wtxid in self._ask("mempool", "wtxids")]

    def transactions(self, ids: Sequence[str], by_wtxid: bool = True) -> list[bytes | None]:
        """Raw mempool transactions by display wtxid (or txid); None for what is not here."""
        return self._ask("mempool", "transactions", [from_display(i) for i in ids], by_wtxid)

    def wait_mempool(self) -> None:
        """For experiments: returns when everything in the mempool has been looked at and its scripts verified."""
        self._ask("mempool", "settled")

    # Collections ------------------------------------------------------------------------------------------------

    def collect_txs(self, wtxids: Sequence[str]) -> Collection:
        """Declares a block as a list of display-hex wtxids in block order, without the coinbase.

        Raises ClientError with Core's text for more than 16,666 of them, a duplicate, or what is no hash.
        """
        blob = parse_wtxids(list(wtxids))
        key = secrets.token_hex(16)
        actor, unknown = self._open(key, blob)
        return Collection(actor, key, unknown, len(blob) // 32)

    def _open(self, key: str, blob: bytes) -> tuple[Any, list[int]]:
        """A collection actor with a free slot; one more is started if there is none; after eight, any."""
        for _ in range(RETRIES):
            actors = self._directory["collection"]
            refusal: Busy | None = None
            for must_prefetch in (True, False):
                for actor in actors:
                    try:
                        answer = self._try_open(actor, key, blob, must_prefetch)
                    except Busy as busy:
                        refusal = busy  # that process is full; another may not be
                        continue
                    if answer is not None:
                        return actor, answer
                if must_prefetch and self._grow():
                    refusal = None
                    break
            if refusal is not None:
                raise refusal
            self._refresh()
            if not self._directory["collection"]:
                time.sleep(RETRY_PAUSE)
        raise WorkerLost("no collection actor answers")

    def _try_open(self, actor: Any, key: str, blob: bytes, must_prefetch: bool) -> list[int] | None:
        try:
            opening = actor.open.remote(key, self._client, must_prefetch, *in_pieces(blob))
            return unwrap(ray.get(opening, timeout=CALL_TIMEOUT))
        except ray.exceptions.RayActorError:
            self._supervisor.lost.remote(id_of(actor), "died under a call")
            return None
        except ray.exceptions.GetTimeoutError:
            raise Busy(f"no answer within {CALL_TIMEOUT:g} s") from None

    def _grow(self) -> bool:
        return self._ask_supervisor("add_collection_actor")

    # Looking inside ---------------------------------------------------------------------------------------------

    def stats(self) -> dict[str, Any]:
        """Every actor's counters by name."""
        return self._ask_supervisor("stats")

    def pids(self) -> dict[str, int]:
        """Process ids by actor name."""
        return self._ask_supervisor("pids")

    def __repr__(self) -> str:
        if self._closed:
            return f"<Cluster on {self.store}, closed>"
        tip = self.tip()
        return f"<Cluster on {self.store}, height {tip.height}, tip {to_display(tip.hash)}>"

    def _repr_html_(self) -> str:
        if self._closed:
            return f"<b>Node</b> on <code>{escape(str(self.store))}</code> (closed)"
        tip = self.tip()
        counts = {kind: len(found) for kind, found in self._directory.items() if isinstance(found, list) and found}
        rows = [
            ("store", f"<code>{escape(str(self.store))}</code>"),
            ("height", f"{tip.height:,}"),
            ("tip", f"<code>{to_display(tip.hash)}</code>"),
            ("actors", ", ".join(f"{count} {kind}" for kind, count in counts.items())),
        ]
        return html_table(rows)


def _vout(n: int) -> bytes:
    if not 0 <= n < 2**32:
        raise ClientError(f"output number {n} is out of range")
    return n.to_bytes(4, "little")


def _find_supervisor(namespace: str) -> Any:
    """One that answers; one that is being restarted is waited for. Raises ValueError or RayError if there is none."""
    supervisor = ray.get_actor(SUPERVISOR, namespace=namespace)
    for attempt in range(RETRIES):
        try:
            ray.get(supervisor.ping.remote(), timeout=CALL_TIMEOUT)
            break
        except ray.exceptions.ActorUnavailableError:
            if attempt == RETRIES - 1:
                raise
            time.sleep(RETRY_PAUSE)
    return supervisor


def _stop(supervisor: Any, namespace: str) -> None:
    try:
        ray.get(supervisor.stop.remote(), timeout=STOP_TIMEOUT)
    except ray.exceptions.RayError:
        _kill_all(namespace)
    try:
        ray.kill(supervisor, no_restart=True)
    except (ValueError, ray.exceptions.RayError):
        pass


def _kill_all(namespace: str) -> None:
    for entry in ray.util.list_named_actors(all_namespaces=True):
        if entry["namespace"] == namespace:
            try:
                ray.kill(ray.get_actor(entry["name"], namespace=namespace), no_restart=True)
            except (ValueError, ray.exceptions.RayError):
                pass
