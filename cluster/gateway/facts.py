"""What pages for operators and answers about the chain need to know of the node, gathered for all who ask at once."""

import asyncio
import time
from pathlib import Path
from typing import Any

from cluster.follow_status import read_status
from cluster.gateway.peers import LOOK_TIMEOUT, RETRIES, Peers
from cluster.health import NodeLook, TipFacts
from models.consensus.context import Tip
from models.errors import NotReady, StoreError, TxCollectionError
from models.messages import unpack_tip
from models.storage.tipfile import TipReader
from models.wire.block import BlockHeader
from models.wire.hashes import to_display

__all__ = ["Facts", "TipHeaders"]

FRESH = 0.5  # seconds for which one look serves everybody
MEDIAN_TIME_SPAN = 11  # headers, BIP113


class TipHeaders:
    """The tip's header and the median time past of its block, in Unix seconds."""

    def __init__(self, tip: Tip, headers: list[BlockHeader]):
        self.tip = tip
        self.header = headers[-1]
        times = sorted(header.time for header in headers)
        self.median_time_past = times[len(times) // 2]


class Facts:
    """Looks at a node. Every method may be called by many tasks together."""

    def __init__(self, store: Path, peers: Peers):
        self._store = store
        self._peers = peers
        self._tips: TipReader | None = None
        self._headers: TipHeaders | None = None
        self._look: NodeLook | None = None
        self._looking = asyncio.Lock()

    def tip(self) -> Tip:
        """The published tip, from the store's file. Raises NotReady, StoreError."""
        if self._tips is None:
            self._tips = TipReader(self._store)
        return self._tips.read()

    async def tip_headers(self, tries: int = RETRIES) -> TipHeaders:
        """The published tip with its header. Raises NotReady, StoreError, WorkerLost."""
        for _ in range(10):
            tip = self.tip()
            known = self._headers
            if known is not None and known.tip.version == tip.version:
                return known
            start = max(0, tip.height - MEDIAN_TIME_SPAN + 1)
            raws = await self._peers.ask("chainstate", "headers", start, MEDIAN_TIME_SPAN, tries=tries)
            headers = [BlockHeader.parse(raw) for raw in raws]
            if headers and headers[-1].hash == tip.hash:
                self._headers = TipHeaders(tip, headers)
                return self._headers
        raise NotReady("the tip moves faster than it can be described; ask again")

    async def tip_by_owner(self) -> Tip:
        """The tip as its owner says."""
        return unpack_tip(await self._peers.ask("chainstate", "tip"))

    async def look(self) -> NodeLook:
        """Everything at one moment, at most half a second old. Never raises: what does not answer is left out."""
        async with self._looking:
            if self._look is None or time.time() - self._look.taken > FRESH:
                self._look = await self._gather()
            return self._look

    async def _gather(self) -> NodeLook:
        stats, tip = await asyncio.gather(self._stats(), self._tip())
        facts, why = tip
        return NodeLook(stats, facts, why, read_status(self._store))

    async def _stats(self) -> dict[str, Any] | None:
        try:
            return await self._peers.stats()
        except TxCollectionError:
            return None

    async def _tip(self) -> tuple[TipFacts | None, str]:
        try:
            tip = self.tip()
        except (NotReady, StoreError) as error:
            return None, str(error)
        try:
            async with asyncio.timeout(LOOK_TIMEOUT):
                found = await self.tip_headers(tries=1)
            return TipFacts(to_display(found.tip.hash), found.tip.height, found.header.time), ""
        except (TimeoutError, TxCollectionError):
            return TipFacts(to_display(tip.hash), tip.height, None), ""
