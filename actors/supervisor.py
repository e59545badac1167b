"""Supervisor: makes all other actors, tells each whom to talk to, and puts a spare in for one that died.

Nothing is restarted by Ray, since a restarted call would run a write twice; a replacement starts empty and the others
are told about it. The supervisor itself may be restarted: it finds its actors again by their names.
"""

import asyncio
import logging
import os
import time
from typing import Any, ClassVar

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from actors.answers import answers
from actors.chainstate import ChainstateActor
from actors.collection import CollectionActor
from actors.fetch import FetchWorker
from actors.hosts import FAR, OtherHosts
from actors.mempool import MempoolActor
from actors.pool import id_of, let_go
from actors.replica import ReplicaActor
from actors.script import ScriptWorker
from actors.template import TemplateActor
from models.errors import NotReady, StoreError, TxCollectionError
from models.messages import unwrap

__all__ = ["SUPERVISOR", "Supervisor"]

SUPERVISOR = "supervisor"
KINDS: dict[str, Any] = {
    "chainstate": ChainstateActor,
    "mempool": MempoolActor,
    "fetch": FetchWorker,
    "script": ScriptWorker,
    "template": TemplateActor,
    "collection": CollectionActor,
    "replica": ReplicaActor,
    "farfetch": FetchWorker,
    "farscript": ScriptWorker,
}
SINGLE = ("chainstate", "mempool")
SPARED = ("fetch", "script")
LOOK_EVERY = 1.0  # seconds between pings
PING_PATIENCE = 30.0  # seconds without an answer after which an actor is looked upon as hung
FOUND_PATIENCE = 10.0  # the same for one that a restarted supervisor found: it may have been left half made
WIRE_PATIENCE = 5.0  # seconds to wait until everyone knows of a change
LONGEST_PAUSE = 5.0  # seconds between tries to make an actor that dies before it ever answers

log = logging.getLogger("txcollection")


class Supervisor:
    """One per store; named, in the store's namespace."""

    RAY_OPTIONS: ClassVar[dict[str, Any]] = {"num_cpus": 0, "max_restarts": -1, "max_concurrency": 1000}

    def __init__(self, store: str, settings: dict[str, Any], namespace: str):
        self._store = store
        self._settings = settings
        self._namespace = namespace
        self._actors: dict[str, list[Any]] = {kind: [] for kind in KINDS}  # None: a place to be filled
        self._spares: dict[str, list[Any]] = {kind: [] for kind in SPARED}
        self._guests: dict[str, tuple[Any, tuple[Any, ...]]] = {}  # kinds that others registered: class, arguments
        self._names: dict[Any, str] = {}
        self._next = 0
        self._running = False
        self._stopping = False
        self._changing = asyncio.Lock()
        self._watcher: asyncio.Task[None] | None = None
        self._replaced: dict[str, int] = dict.fromkeys(KINDS, 0)
        self._answered: set[Any] = set()  # actors that were seen alive
        self._found: set[Any] = set()  # by a restarted supervisor
        self._pauses: dict[str, tuple[float, float]] = {}  # kinds that do not start: pause, time of the next try
        self._trouble: dict[str, str] = {}  # why a kind does not start, in its own words
        self._hosts = OtherHosts(settings)
        self._coming: set[asyncio.Task[None]] = set()  # workers on other hosts that are not ready yet
        self._me: Any = None
        if ray.get_runtime_context().was_current_actor_reconstructed:
            self._myself().directory.remote()  # look for the others at once, and not only when somebody asks

    # Making actors ----------------------------------------------------------------------------------------------

    def _wanted(self, kind: str) -> int:
        settings = self._settings
        if kind == "fetch":
            return settings["fetch_workers"] or 1
        if kind == "script":
            return settings["script_workers"] or (os.cpu_count() or 1) + 1
        if kind == "template":
            return settings["template_actors"]
        if kind == "collection":
            return settings["collection_warm"]
        return 0 if kind in FAR else 1

    async def _make(self, kind: str, host: str | None = None) -> Any:
        self._next += 1
        name = f"{kind}-{self._next}"
        cls = self._guests[kind][0] if kind in self._guests else KINDS[kind]
        maker = ray.remote(**cls.RAY_OPTIONS)(cls)
        # The store is here, and what listens on a port does so here: only workers go to other hosts.
        host = host or ray.get_runtime_context().get_node_id()
        where = NodeAffinitySchedulingStrategy(host, soft=False)
        options = maker.options(name=name, namespace=self._namespace, lifetime="detached", scheduling_strategy=where)
        handle = options.remote(*await self._arguments(kind))
        self._names[handle] = name
        return handle

    async def _arguments(self, kind: str) -> tuple[Any, ...]:
        settings = self._settings
        if kind in self._guests:
            return (self._store, settings, *self._guests[kind][1])
        if kind == "chainstate":
            return (self._store, settings["coins_cache_bytes"])
        if kind == "mempool":
            return (settings,)
        if kind == "fetch":
            try:
                owner = self._actors["chainstate"][0]
                tip = None if owner is None else unwrap(await asyncio.wait_for(owner.tip.remote(), WIRE_PATIENCE))
            except (NotReady, TimeoutError, ray.exceptions.RayError):
                tip = None  # the first request says which tip it wants
            return (self._store, settings["fetch_threads"], settings["fetch_block_cache"], tip)
        if kind in ("script", "farscript"):
            return (settings["script_threads"],)
        if kind in FAR:
            return self._hosts.arguments(kind)
        return (self._store, settings)

    @answers
    async def start(self) -> None:
        """Makes every actor and returns when all of them answer. Raises StoreError if the store cannot be opened."""
        async with self._changing:
            if self._running:
                return
            chainstate = await self._make("chainstate")
            self._actors["chainstate"] = [chainstate]
            try:
                unwrap(await chainstate.tip.remote())
            except NotReady:
                pass  # a store from a snapshot; it is ready when it has been given headers
            except ray.exceptions.RayActorError as error:
                raise self._startup_error(error) from None
            for kind in ("fetch", "script", "mempool", "template", "collection"):
                self._actors[kind] = [await self._make(kind) for _ in range(self._wanted(kind))]
            for kind in SPARED:
                self._spares[kind] = [await self._make(kind) for _ in range(self._settings["spare_workers"])]
            await self._wire(None)
            unwrap(await self._actors["mempool"][0].load.remote(os.path.join(self._store, "mempool.dat")))
            self._running = True
            self._watcher = asyncio.create_task(self._watch())

    def _startup_error(self, error: Exception) -> TxCollectionError:
        """The chainstate's own words about why the store does not open."""
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, TxCollectionError):
            cause = getattr(cause, "cause", None) or cause.__cause__
        if isinstance(cause, TxCollectionError):
            return cause
        return StoreError(f"the store {self._store} could not be opened: {_last_line(error)}")

    def _myself(self) -> Any:
        self._me = self._me or ray.get_actor(SUPERVISOR, namespace=self._namespace)
        return self._me

    def _members(self, kind: str) -> list[Any]:
        return [handle for handle in self._actors[kind] if handle is not None]

    def _directory(self) -> dict[str, Any]:
        directory: dict[str, Any] = {kind: self._members(kind) for kind in self._actors}
        directory["fetch"] += self._hosts.ready(directory["farfetch"])
        directory["script"] += directory["farscript"]
        for kind in SINGLE:
            directory[kind] = directory[kind][0] if directory[kind] else None
        directory["supervisor"] = self._myself()
        directory["trouble"] = dict(self._trouble)
        return directory

    async def _wire(self, patience: float | None = WIRE_PATIENCE) -> None:
        """Tells everyone about everyone; whoever is slow to hear it is not waited for longer than that."""
        directory = self._directory()
        told = [h for kind in ("mempool", "template", "collection", "replica") for h in self._members(kind)]
        told += self._members("chainstate")
        told += [h for kind in self._guests for h in self._members(kind)]
        telling = [asyncio.ensure_future(h.wire.remote(directory)) for h in told]
        for task in telling:
            task.add_done_callback(let_go)
        if telling:
            await asyncio.wait(telling, timeout=patience)

    @answers
    async def directory(self) -> dict[str, Any]:
        """Handles by kind, for clients; a supervisor that was restarted first finds its actors again."""
        await self._adopt()
        return self._directory()

    @answers
    async def add_collection_actor(self) -> bool:
        """One more, up to the bound on collections that prefetch at once; False if that is reached."""
        async with self._changing:
            if self._stopping or len(self._actors["collection"]) >= self._settings["collection_actors"]:
                return False
            made = await self._new("collection")
            if made is None:
                return False
            self._actors["collection"].append(made)
            await self._wire()
            return True

    async def _adopt(self) -> None:
        if self._running or self._stopping:
            return
        async with self._changing:
            if self._running:
                return
            found = ray.util.list_named_actors(all_namespaces=True)
            mine = [entry["name"].rpartition("-") for entry in found if entry["namespace"] == self._namespace]
            for kind, _, number in sorted(mine, key=lambda parts: (parts[0], parts[2].zfill(12))):
                if number.isdecimal():
                    await self._adopt_one(kind, f"{kind}-{number}")
                    self._next = max(self._next, int(number))
            for kind in SPARED:
                self._spares[kind] = self._actors[kind][self._wanted(kind) :]
                self._actors[kind] = self._actors[kind][: self._wanted(kind)]
            self._running = True
            log.warning("the supervisor was restarted and found %d actors", len(self._names))
            self._watcher = asyncio.create_task(self._watch())  # before anything can go wrong: it tries again
            await self._fill(changed=True)

    async def _adopt_one(self, kind: str, name: str) -> None:
        try:
            handle = ray.get_actor(name, namespace=self._namespace)
        except ValueError:
            return  # it died in between
        if kind in FAR:
            ray.kill(handle)  # on which host it is, is not known any more: the next look makes another
        elif kind in KINDS or await self._is_guest(kind, handle):
            self._names[handle] = name
            self._found.add(handle)
            self._actors[kind].append(handle)

    # Guests -----------------------------------------------------------------------------------------------------

    @answers
    async def register(self, kind: str, cls: Any, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """One actor of another kind, such as a gateway: made, told the directory, watched and replaced like all others,
        and asked to close before the store is closed. It is made of store, settings and `arguments`; returns the
        arguments that a replacement will be made with.

        Its class has `wire`, `ping`, `stats`, `close`, and `recipe`, which answers with the class and those arguments
        once it serves. Raises what `recipe` raises, and StoreError if there is one of this kind already.
        """
        await self._adopt()
        async with self._changing:
            if kind in self._guests:
                raise StoreError(f"this node has a {kind} already; close it first")
            self._guests[kind] = (cls, arguments)
            self._actors[kind] = []
            self._replaced.setdefault(kind, 0)
            handle = await self._make(kind)
            try:
                await handle.wire.remote(self._directory())
                self._guests[kind] = unwrap(await handle.recipe.remote())
            except BaseException:
                self._dismiss(kind, [handle])
                raise
            self._actors[kind] = [handle]
            return self._guests[kind][1]

    @answers
    async def unregister(self, kind: str) -> None:
        """Closes a guest. Harmless if there is none."""
        async with self._changing:
            handles = self._actors.get(kind, []) if kind in self._guests else []
            await self._close(handles)
            self._dismiss(kind, handles)

    def _dismiss(self, kind: str, handles: list[Any]) -> None:
        if self._guests.pop(kind, None) is not None:
            self._actors.pop(kind, None)
        for handle in handles:
            self._names.pop(handle, None)
            ray.kill(handle)

    async def _is_guest(self, kind: str, handle: Any) -> bool:
        """Whether an actor that a restarted supervisor finds is one of these; it knows how to make another one."""
        try:
            self._guests[kind] = unwrap(await asyncio.wait_for(handle.recipe.remote(), FOUND_PATIENCE))
        except (AttributeError, TimeoutError, TxCollectionError, ray.exceptions.RayError):
            return False
        self._actors.setdefault(kind, [])
        self._replaced.setdefault(kind, 0)
        return True

    async def _close(self, handles: list[Any]) -> None:
        for handle in handles:
            try:
                await asyncio.wait_for(handle.close.remote(), 10)
            except (TimeoutError, ray.exceptions.RayError):
                pass

    # Replacing them ---------------------------------------------------------------------------------------------

    async def lost(self, actor_id: str, why: str) -> None:
        """Somebody saw an actor die; `actor_id` as of `id_of`."""
        await self._adopt()
        for handle in [handle for handle in self._names if id_of(handle) == actor_id]:
            await self._replace(handle, why)

    async def _watch(self) -> None:
        while not self._stopping:
            await asyncio.sleep(LOOK_EVERY)
            try:
                await self._look()
            except Exception:  # whatever it was, the next look must come
                log.exception("a look at the actors failed")

    async def _look(self) -> None:
        await asyncio.gather(*(self._look_at(handle) for handle in list(self._names)))
        async with self._changing:
            await self._fill(changed=await self._fill_hosts())

    async def _fill_hosts(self) -> bool:
        """Workers on other hosts of this Ray, as many as there is room for; whether any was made."""
        made = False
        for kind, host in await self._hosts.look(self._actors):
            if self._stopping or time.monotonic() < self._pauses.get(kind, (0.0, 0.0))[1]:
                continue
            handle = await self._make(kind, host)
            self._hosts.placed(handle, host)
            self._actors[kind].append(handle)
            if kind == "farfetch":
                self._coming.add(task := asyncio.create_task(self._bring_in(handle)))
                task.add_done_callback(self._coming.discard)
            made = True
        return made

    async def _bring_in(self, handle: Any) -> None:
        """Lets a fetch worker on another host take part once it can read at the tip."""
        while handle in self._names and not self._stopping:
            owner = self._actors["chainstate"][0]
            try:
                tip = None if owner is None else unwrap(await asyncio.wait_for(owner.tip.remote(), WIRE_PATIENCE))
                if tip is not None and await asyncio.wait_for(handle.ready.remote(tip), PING_PATIENCE):
                    self._hosts.take_part(handle)
                    async with self._changing:
                        await self._wire()
                    return
            except (TxCollectionError, TimeoutError, ray.exceptions.RayError):
                pass
            await asyncio.sleep(LOOK_EVERY)

    async def _look_at(self, handle: Any) -> None:
        why = await self._alive(handle)
        if why:
            await self._replace(handle, why)

    async def _alive(self, handle: Any) -> str:
        """Why an actor is to be replaced; nothing if it lives."""
        patience = FOUND_PATIENCE if handle in self._found else PING_PATIENCE
        try:
            await asyncio.wait_for(handle.ping.remote(), patience)
        except ray.exceptions.RayActorError as error:
            if handle not in self._answered and not isinstance(error, ray.exceptions.ActorUnavailableError):
                self._note_trouble(self._kind_of(handle), error)
            return type(error).__name__
        except TimeoutError:
            return f"no answer in {patience:g} s"
        except ray.exceptions.RayError:
            return ""
        self._answered.add(handle)
        self._found.discard(handle)
        kind = self._kind_of(handle)
        self._trouble.pop(kind, None)
        self._pauses.pop(kind, None)
        return ""

    def _kind_of(self, handle: Any) -> str:
        return self._names.get(handle, "").rpartition("-")[0]

    def _note_trouble(self, kind: str, error: Exception) -> None:
        """One that died before it ever answered, as where the disk is full, is made again after a pause."""
        pause = min(2 * self._pauses.get(kind, (LOOK_EVERY / 4, 0.0))[0], LONGEST_PAUSE)
        self._pauses[kind] = (pause, time.monotonic() + pause)
        self._trouble[kind] = str(self._startup_error(error))

    async def _replace(self, handle: Any, why: str) -> None:
        async with self._changing:
            kind = self._kind_of(handle)
            if self._stopping or not kind:
                return
            del self._names[handle]
            self._answered.discard(handle)
            self._found.discard(handle)
            try:
                ray.kill(handle)
            except (ValueError, ray.exceptions.RayError):
                pass
            if kind in SPARED and handle in self._spares[kind]:
                self._spares[kind].remove(handle)
                await self._fill()
                return
            members = self._actors[kind]
            position = members.index(handle)
            if kind in ("collection", *FAR) and len(members) > self._wanted(kind):
                members.pop(position)
            else:
                members[position] = None
            log.warning("a %s actor is gone (%s); it is replaced", kind, self._trouble.get(kind, why))
            self._replaced[kind] += 1
            if kind == "template" and self._members(kind):
                await self._wire()  # the others serve all meanwhile
            await self._fill(changed=True)

    async def _fill(self, changed: bool = False) -> None:
        """Puts actors into places that are empty, the owner of the store first, and tells everyone. What cannot be made
        now is tried again by the next look."""
        for kind in (*KINDS, *self._guests):
            members = self._actors[kind]
            missing = self._wanted(kind) - len(members)
            members += [None] * missing
            for position in [position for position, handle in enumerate(members) if handle is None]:
                made = await self._spare_or_new(kind)
                members[position] = made
                changed = changed or made is not None
                if made is not None and kind == "mempool":
                    made.load.remote(os.path.join(self._store, "mempool.dat"))
        if changed:
            await self._wire()
        for kind, spares in self._spares.items():
            while len(spares) < self._settings["spare_workers"]:
                made = await self._new(kind)
                if made is None:
                    break
                spares.append(made)

    async def _spare_or_new(self, kind: str) -> Any:
        spares = self._spares.get(kind)
        return spares.pop(0) if spares else await self._new(kind)

    async def _new(self, kind: str) -> Any:
        """One more of a kind; None if it cannot be made now."""
        if self._stopping or time.monotonic() < self._pauses.get(kind, (0.0, 0.0))[1]:
            return None
        try:
            return await self._make(kind)
        except (ValueError, TxCollectionError, ray.exceptions.RayError) as error:
            log.warning("no %s actor can be made now: %s", kind, _last_line(error))
            return None

    # For clients ------------------------------------------------------------------------------------------------

    @answers
    async def stats(self) -> dict[str, Any]:
        """Every actor's counters by name."""
        await self._adopt()
        everyone = [(self._names[h], h) for kind in self._actors for h in self._members(kind) if h in self._names]
        answers_ = await asyncio.gather(
            *(asyncio.wait_for(h.stats.remote(), PING_PATIENCE) for _, h in everyone), return_exceptions=True
        )
        stats = {
            name: answer if isinstance(answer, dict) else {"error": type(answer).__name__}
            for (name, _), answer in zip(everyone, answers_, strict=True)
        }
        spares = {kind: len(handles) for kind, handles in self._spares.items()}
        stats[SUPERVISOR] = {"replaced": dict(self._replaced), "spares": spares}
        return stats

    @answers
    async def pids(self) -> dict[str, int]:
        """Process ids by actor name, spares included."""
        await self._adopt()
        everyone = [(name, handle) for handle, name in self._names.items()]
        found = {}
        for name, handle in everyone:
            try:
                found[name] = await handle.__ray_call__.remote(_pid)
            except ray.exceptions.RayError:
                continue
        found[SUPERVISOR] = os.getpid()
        return found

    @answers
    async def stop(self) -> None:
        """Closes the store and ends every actor but this one."""
        self._stopping = True
        if self._watcher is not None:
            self._watcher.cancel()
        for kind in self._guests:
            await self._close(self._members(kind))
        await self._close(self._members("chainstate"))
        for handle in list(self._names):
            try:
                ray.kill(handle)
            except (ValueError, ray.exceptions.RayError):
                pass

    async def end(self) -> None:
        """`stop`, and then this actor too: for a caller that ends with the others."""
        await self.stop()
        ray.kill(ray.get_actor(SUPERVISOR, namespace=self._namespace), no_restart=True)

    async def ping(self) -> str:
        """Answers as long as the process lives."""
        return SUPERVISOR


def _pid(_: Any) -> int:
    return os.getpid()


def _last_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
