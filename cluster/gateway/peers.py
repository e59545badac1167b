"""The node's other actors as an async gateway sees them: asks the right one, and asks again where one was replaced.

The same questions as `cluster.client.Cluster` asks for notebooks, without blocking; a call that writes is never asked
twice.
"""

import asyncio
import secrets
from typing import Any

import ray

from actors.pool import id_of
from models.errors import Busy, CollectionLost, WorkerLost
from models.messages import in_pieces, unwrap

__all__ = ["LOOK_TIMEOUT", "RETRIES", "Peers"]

CALL_TIMEOUT = 120.0  # seconds; a hang guard above every deadline inside
LOOK_TIMEOUT = 5.0  # seconds that a look at everybody's counters may take
RETRY_PAUSE = 0.3  # seconds until a dead actor's replacement is asked for
RETRIES = 30


class Peers:
    """Handles by kind, kept fresh by the supervisor's `wire` messages."""

    def __init__(self) -> None:
        self._directory: dict[str, Any] = {}
        self.wired = asyncio.Event()

    def set_directory(self, directory: dict[str, Any]) -> None:
        """Whom to ask from now on."""
        self._directory = directory
        self.wired.set()

    @property
    def supervisor(self) -> Any:
        """The one that made all the others."""
        return self._directory["supervisor"]

    def _pick(self, kind: str) -> Any:
        """An actor of a kind; of the template actors the last, which takes whole blocks."""
        chosen = self._directory.get(kind)
        if isinstance(chosen, list):
            return chosen[-1] if chosen else None
        return chosen

    async def _refresh(self) -> None:
        try:
            async with asyncio.timeout(LOOK_TIMEOUT):
                self._directory = unwrap(await self.supervisor.directory.remote())
        except (TimeoutError, ray.exceptions.RayError):
            pass  # it is being restarted; the next try will tell

    async def ask(self, kind: str, method: str, *args: Any, again: bool = True, tries: int = RETRIES) -> Any:
        """One question; if its actor died, the replacement is asked (unless the call writes), `tries` times in all.

        Raises what the actor answers with, Busy past the hang guard, WorkerLost when nobody answers.
        """
        return unwrap(await self.ask_plain(kind, method, *args, again=again, tries=tries))

    async def ask_plain(self, kind: str, method: str, *args: Any, again: bool = True, tries: int = RETRIES) -> Any:
        """The same for methods that answer with a bare value."""
        await self.wired.wait()
        for attempt in range(tries):
            actor = self._pick(kind)
            try:
                if actor is not None:
                    async with asyncio.timeout(CALL_TIMEOUT):
                        return await getattr(actor, method).remote(*args)
            except ray.exceptions.RayActorError:
                if not again:
                    raise WorkerLost(
                        f"the {kind} actor died under {method}; whether it was done is not known, ask again"
                    ) from None
                if attempt == 0:
                    self._report(actor)
            except TimeoutError:
                raise Busy(f"{method}: no answer within {CALL_TIMEOUT:g} s") from None
            await asyncio.sleep(RETRY_PAUSE)
            await self._refresh()
        raise WorkerLost(f"no {kind} actor answers")

    def _report(self, actor: Any) -> None:
        self.supervisor.lost.remote(id_of(actor), "died under a call")

    # Collections ------------------------------------------------------------------------------------------------

    async def open_collection(self, client: str, blob: bytes) -> tuple[Any, str, list[int]]:
        """A collection of joined wtxids on an actor with a free slot; one more is started if there is none; after
        eight, on any. Returns the actor, the collection's key and its unknown positions."""
        await self.wired.wait()
        key = secrets.token_hex(16)
        for _ in range(RETRIES):
            refusal: Busy | None = None
            for must_prefetch in (True, False):
                for actor in list(self._directory["collection"]):
                    try:
                        unknown = await self._try_open(actor, key, client, blob, must_prefetch)
                    except Busy as busy:
                        refusal = busy  # that process is full; another may not be
                        continue
                    if unknown is not None:
                        return actor, key, unknown
                if must_prefetch and await self._grow():
                    refusal = None
                    break
            if refusal is not None:
                raise refusal
            await self._refresh()
            if not self._directory["collection"]:
                await asyncio.sleep(RETRY_PAUSE)
        raise WorkerLost("no collection actor answers")

    async def _try_open(self, actor: Any, key: str, client: str, blob: bytes, must_prefetch: bool) -> list[int] | None:
        try:
            async with asyncio.timeout(CALL_TIMEOUT):
                return unwrap(await actor.open.remote(key, client, must_prefetch, *in_pieces(blob)))
        except ray.exceptions.RayActorError:
            self._report(actor)
            return None
        except TimeoutError:
            raise Busy(f"no answer within {CALL_TIMEOUT:g} s") from None

    async def _grow(self) -> bool:
        try:
            async with asyncio.timeout(CALL_TIMEOUT):
                return unwrap(await self.supervisor.add_collection_actor.remote())
        except (TimeoutError, ray.exceptions.RayError):
            return False

    async def ask_collection(self, actor: Any, method: str, key: str, *args: Any) -> Any:
        """One question to the actor that holds a collection. Raises CollectionLost when that died."""
        try:
            async with asyncio.timeout(CALL_TIMEOUT):
                return unwrap(await getattr(actor, method).remote(key, *args))
        except ray.exceptions.RayActorError:
            self._report(actor)
            raise CollectionLost("the actor that held this collection died; declare it again") from None
        except TimeoutError:
            raise Busy(f"no answer within {CALL_TIMEOUT:g} s") from None

    def drop_collection(self, actor: Any, key: str) -> None:
        """Frees one; not waited for."""
        actor.close.remote(key)

    def drop_client(self, client: str) -> None:
        """Frees everything that was opened under a name; not waited for."""
        for actor in self._directory.get("collection", []):
            actor.close_client.remote(client)

    # Looking inside ---------------------------------------------------------------------------------------------

    async def stats(self) -> dict[str, Any]:
        """Every actor's counters by name. Raises Busy if one of them takes too long."""
        await self.wired.wait()
        try:
            async with asyncio.timeout(LOOK_TIMEOUT):
                return unwrap(await self.supervisor.stats.remote())
        except (TimeoutError, ray.exceptions.RayError) as error:
            raise Busy(f"the node's actors did not answer within {LOOK_TIMEOUT:g} s ({type(error).__name__})") from None
