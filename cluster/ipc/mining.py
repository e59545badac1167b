"""`Mining`: the chain's tip, blocks offered for checking or to be connected, transactions, declarations, templates."""

from collections.abc import Coroutine
from typing import Any

from cluster.ipc.assembly import CreateOptions
from cluster.ipc.declaration import Declaration
from cluster.ipc.reading import block_of, hash_of, hashes_of
from cluster.ipc.refusals import refused
from cluster.ipc.schemas import mining
from cluster.ipc.session import Session
from cluster.ipc.templates import assemble
from cluster.ipc.tips import Interrupt, seconds_of
from cluster.ipc.tx_collection import TxCollection
from models.collection import check_wtxids
from models.consensus.context import Tip
from models.consensus.params import MAX_BLOCK_SIGOPS_COST, MAX_BLOCK_WEIGHT, MAX_COLLECTION_TXS
from models.errors import ClientError
from models.messages import unpack_verdict
from models.quotas import check_collections

__all__ = ["Mining"]

MIN_RESERVED_WEIGHT = 2000  # weight units (Core: MINIMUM_BLOCK_RESERVED_WEIGHT)


class Mining(mining.Mining.Server):
    """One per call of `makeMining`; `interrupt` ends the waits of this one."""

    def __init__(self, session: Session):
        self._session = session
        self._node = session.node
        self._interrupt = Interrupt()

    # The chain --------------------------------------------------------------------------------------------------

    def isTestChain_context(self, context: Any) -> Coroutine[Any, Any, None]:
        """Every network but main."""

        async def work() -> None:
            context.results.result = self._node.params.name != "main"

        return self._session.carry_out(context, work)

    def isInitialBlockDownload_context(self, context: Any) -> Coroutine[Any, Any, None]:
        """Whether the tip is so old that the chain must be behind."""

        async def work() -> None:
            context.results.result = await self._node.is_initial_block_download()

        return self._session.carry_out(context, work)

    def getTip_context(self, context: Any) -> Coroutine[Any, Any, None]:
        """Hash and height."""

        async def work() -> None:
            _set_block_ref(context.results.init("result"), self._node.tips.tip())
            context.results.hasResult = True

        return self._session.carry_out(context, work)

    def waitTipChanged_context(self, context: Any) -> Coroutine[Any, Any, None]:
        """The tip once it is another one, or when the time is up; no result if the wait was interrupted."""
        known, seconds = hash_of(context.params.currentTip, "currentTip"), seconds_of(context.params.timeout)

        async def work() -> None:
            tip = await self._node.tips.wait(known, seconds, self._interrupt)
            if tip is not None:
                _set_block_ref(context.results.init("result"), tip)

        return self._session.carry_out(context, work)

    async def interrupt_context(self, context: Any) -> None:
        """Ends the waits that are under way, or the next one."""
        self._interrupt.set()

    # Blocks -----------------------------------------------------------------------------------------------------

    def checkBlock_context(self, context: Any) -> Coroutine[Any, Any, None]:
        """Core's verdict on a block on top of the tip."""
        block = block_of(context.params.block)
        options = context.params.options
        check_pow, check_merkle_root = options.checkPow, options.checkMerkleRoot

        async def work() -> None:
            flat = await self._node.speculations.judge(self._session, block, check_pow, check_merkle_root)
            if flat is None:
                flat = await self._node.check_block(block, check_pow, check_merkle_root)
            verdict = unpack_verdict(flat)
            _set_outcome(context.results, verdict.reason, verdict.debug, verdict.ok)

        return self._session.carry_out(context, work, heavy=True)

    def submitBlock_context(self, context: Any) -> Coroutine[Any, Any, None]:
        """Connects a block; the result is true only if it was accepted and is new."""
        block = block_of(context.params.block)

        async def work() -> None:
            reason, debug = await self._node.submit(block)
            _set_outcome(context.results, reason, debug, reason is None)

        return self._session.carry_out(context, work, heavy=True)

    def createNewBlock_context(self, context: Any) -> Coroutine[Any, Any, None]:
        """A template from the mempool. There is nothing to cool down from: the tip is never ahead of its block."""
        options = _create_options(context.params.options)

        async def work() -> None:
            if not self._interrupt.take():
                context.results.result = await assemble(self._session, options)

        return self._session.carry_out(context, work, heavy=True)

    # Transactions -----------------------------------------------------------------------------------------------

    def getTransactionsByTxID_context(self, context: Any) -> Coroutine[Any, Any, None]:
        """Mempool transactions in order, empty where there is none."""
        return self._transactions(context, hashes_of(context.params.txids, "txid"), by_wtxid=False)

    def getTransactionsByWitnessID_context(self, context: Any) -> Coroutine[Any, Any, None]:
        """The same by wtxid; the list is likely to be that of a block which is going to be offered."""
        return self._transactions(context, hashes_of(context.params.wtxids, "wtxid"), by_wtxid=True)

    def _transactions(self, context: Any, ids: list[bytes], by_wtxid: bool) -> Coroutine[Any, Any, None]:
        async def work() -> None:
            found = await self._node.peers.ask("mempool", "transactions", ids, by_wtxid) if ids else []
            context.results.result = [raw or b"" for raw in found]
            if by_wtxid:
                self._node.speculations.begin(self._session, ids)

        return self._session.carry_out(context, work)

    def collectTxs_context(self, context: Any) -> Coroutine[Any, Any, None]:
        """A collection for a declared list."""
        count = len(context.params.wtxids)
        if count > MAX_COLLECTION_TXS:
            raise refused(f"too many wtxids ({count} > {MAX_COLLECTION_TXS})")
        wtxids = hashes_of(context.params.wtxids, "wtxid")
        try:
            check_wtxids(wtxids)
        except ClientError as error:
            raise refused(error) from None

        async def work() -> None:
            session = self._session
            check_collections(session.collections, session.limits.collections)
            context.results.result = TxCollection(session, await Declaration.open(session, wtxids))

        return self._session.carry_out(context, work)


def _set_block_ref(result: Any, tip: Tip) -> None:
    result.hash = tip.hash
    result.height = tip.height


def _set_outcome(results: Any, reason: str | None, debug: str, good: bool) -> None:
    results.reason = reason or ""
    results.debug = debug
    results.result = good


def _create_options(options: Any) -> CreateOptions:
    """Raises Refused for what Core's `CreateNewBlock` refuses. Without the mempool, no room is left for others."""
    weight, sigops = options.blockReservedWeight, options.coinbaseOutputMaxAdditionalSigops
    if weight < MIN_RESERVED_WEIGHT:
        raise refused(f"block_reserved_weight ({weight}) is lower than minimum safety value of ({MIN_RESERVED_WEIGHT})")
    if weight > MAX_BLOCK_WEIGHT:
        raise refused(f"block_reserved_weight ({weight}) exceeds consensus maximum block weight ({MAX_BLOCK_WEIGHT})")
    if sigops > MAX_BLOCK_SIGOPS_COST:
        raise refused(
            f"coinbase_output_max_additional_sigops ({sigops}) exceeds consensus maximum block sigops cost "
            f"({MAX_BLOCK_SIGOPS_COST})"
        )
    return CreateOptions(weight if options.useMempool else MAX_BLOCK_WEIGHT, sigops)
