"""Block templates: those of declarations, and those made from the node's own mempool, which can be waited upon.

A template outlives what it was made from. `getBlock` shows the block as it was last submitted, as in Core, where a
solution is written into the template whether it is accepted or not.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from typing import Any

from cluster.ipc.assembly import CreateOptions
from cluster.ipc.declaration import Declaration
from cluster.ipc.reading import transaction_of
from cluster.ipc.refusals import refused
from cluster.ipc.schemas import mining
from cluster.ipc.session import Session
from cluster.ipc.tips import Interrupt, seconds_of
from models.consensus import reasons as r
from models.consensus.block_checks import coinbase_height_script, commitment_index
from models.consensus.params import MAX_MONEY
from models.errors import Busy, ClientError
from models.messages import unpack_verdict
from models.wire.block import BlockHeader
from models.wire.compactsize import write_compact_size
from models.wire.merkle import path_root
from models.wire.transaction import Transaction, decode_transaction

__all__ = ["BlockTemplate", "DeclaredTemplate", "OwnTemplate", "assemble"]

TICK = 1.0  # seconds between looks at whether fees have risen (Core: WaitAndCreateNewBlock)


class BlockTemplate(mining.BlockTemplate.Server, ABC):
    """What both kinds share. Subclasses know the transactions, and what is beyond a block's bytes."""

    _destroyed = True  # until it is made

    def __init__(self, session: Session, header: bytes, coinbase: bytes, path: list[bytes], count: int):
        self._session = session
        self._header = BlockHeader.parse(header)
        self._coinbase = coinbase
        self._path = path
        self._count = count  # transactions, the coinbase included
        self._destroyed = False

    @abstractmethod
    async def _transactions(self) -> bytes:
        """Joined bytes of all but the coinbase."""

    @abstractmethod
    def _free(self) -> None:
        """Lets go of what it holds."""

    def __del__(self) -> None:
        self._destroy()

    def _destroy(self) -> None:
        if not self._destroyed:
            self._destroyed = True
            self._free()

    def _alive(self) -> None:
        self._session.check_open(self._destroyed)

    def destroy_context(self, context: Any) -> Coroutine[Any, Any, None]:
        """Frees it."""

        async def work() -> None:
            self._destroy()

        return self._session.carry_out(context, work)

    def getBlockHeader_context(self, context: Any) -> Coroutine[Any, Any, None]:
        """80 bytes."""

        async def work() -> None:
            self._alive()
            context.results.result = self._header.serialize()

        return self._session.carry_out(context, work)

    def getBlock_context(self, context: Any) -> Coroutine[Any, Any, None]:
        """The whole block."""

        async def work() -> None:
            self._alive()
            context.results.result = await self._block()

        return self._session.carry_out(context, work)

    async def _block(self) -> bytes:
        rest = await self._transactions()
        return b"".join((self._header.serialize(), write_compact_size(self._count), self._coinbase, rest))

    def getCoinbaseMerklePath_context(self, context: Any) -> Coroutine[Any, Any, None]:
        """Siblings of the coinbase, lowest first."""

        async def work() -> None:
            self._alive()
            context.results.result = self._path

        return self._session.carry_out(context, work)

    def submitSolution_context(self, context: Any) -> Coroutine[Any, Any, None]:
        """Whether the solved block was accepted, or is here already."""
        params = context.params
        version, time, nonce, raw = params.version, params.timestamp, params.nonce, bytes(params.coinbase)
        coinbase = transaction_of(raw) if raw else None

        async def work() -> None:
            self._alive()
            context.results.result = coinbase is not None and await self._submit(version, time, nonce, coinbase)

        return self._session.carry_out(context, work, heavy=True)

    async def _submit(self, version: int, time: int, nonce: int, coinbase: Transaction) -> bool:
        signed = version - (1 << 32) if version >= 1 << 31 else version
        root = path_root(coinbase.txid, self._path)
        self._header = BlockHeader(signed, self._header.prev_hash, root, time, self._header.bits, nonce)
        self._coinbase = coinbase.raw
        reason, _ = await self._session.node.submit(await self._block())
        return reason in (None, r.DUPLICATE.text, r.INCONCLUSIVE.text)


class DeclaredTemplate(BlockTemplate):
    """The template of a declaration, which it keeps alive."""

    def __init__(self, session: Session, declaration: Declaration, packed: tuple[Any, ...]):
        """`packed` as a verdict of the declaration holds it."""
        _, header, coinbase, path, *_ = packed
        self._declaration = declaration
        declaration.acquire()
        super().__init__(session, header, coinbase, list(path), len(declaration) + 1)

    async def _transactions(self) -> bytes:
        return await self._declaration.transactions()

    def _free(self) -> None:
        self._declaration.release()

    async def interruptWait_context(self, context: Any) -> None:
        """Nobody can be waiting."""


def _unavailable(method: str) -> Any:
    def refuse(self: DeclaredTemplate, context: Any) -> Coroutine[Any, Any, None]:
        raise refused(f"{method} is unavailable for externally generated templates")

    return refuse


for _method in ("getTxFees", "getTxSigops", "getCoinbaseTx", "waitNext"):
    setattr(DeclaredTemplate, f"{_method}_context", _unavailable(_method))


async def assemble(session: Session, options: CreateOptions, age: float = 0.0) -> "OwnTemplate":
    """A template of our own on the tip, begun at most `age` seconds ago. Raises ClientError if the node finds its own
    block invalid, Busy if the client holds too many."""
    if session.templates >= session.limits.collections:
        raise Busy(f"this client holds {session.templates} templates, the most that are allowed: destroy some")
    verdict = unpack_verdict(await session.node.assembly.get(options, age))
    if not verdict.ok:
        raise ClientError(f"TestBlockValidity failed: {verdict.reason}, {verdict.debug}")
    return OwnTemplate(session, options, verdict.template)


class OwnTemplate(BlockTemplate):
    """A template made from the mempool."""

    def __init__(self, session: Session, options: CreateOptions, packed: tuple[Any, ...]):
        """`packed` as `TemplateActor.assemble` answers it."""
        header, coinbase, path, _, _, _, raws, sizes, fees, sigops = packed
        self._options = options
        self._raws: bytes = raws
        self._fees: list[int] = fees
        self._sigops: list[int] = sigops
        self._made = decode_transaction(coinbase)
        self._interrupt = Interrupt()
        session.templates += 1
        super().__init__(session, header, coinbase, list(path), len(sizes) + 1)

    async def _transactions(self) -> bytes:
        return self._raws

    def _free(self) -> None:
        self._session.templates -= 1
        self._raws = b""

    def getTxFees_context(self, context: Any) -> Coroutine[Any, Any, None]:
        """Satoshis of each transaction after the coinbase."""

        async def work() -> None:
            self._alive()
            context.results.result = self._fees

        return self._session.carry_out(context, work)

    def getTxSigops_context(self, context: Any) -> Coroutine[Any, Any, None]:
        """Sigop cost of each transaction after the coinbase."""

        async def work() -> None:
            self._alive()
            context.results.result = self._sigops

        return self._session.carry_out(context, work)

    def getCoinbaseTx_context(self, context: Any) -> Coroutine[Any, Any, None]:
        """What the client's own coinbase has to be like."""

        async def work() -> None:
            self._alive()
            made = self._made
            answer = context.results.init("result")
            answer.version = made.version & 0xFFFFFFFF
            answer.sequence = made.sequences[0]
            answer.scriptSigPrefix = coinbase_height_script(made.locktime + 1)
            if made.has_witness:
                answer.witness = made.witnesses[0][0]
            answer.blockRewardRemaining = made.values[0]
            index = commitment_index(made)
            required = [] if index is None else [_output(made, index)]
            answer.requiredOutputs = required
            answer.lockTime = made.locktime

        return self._session.carry_out(context, work)

    def waitNext_context(self, context: Any) -> Coroutine[Any, Any, None]:
        """A template on a new tip, or one whose fees have risen enough; none when the time is up or on an interrupt."""
        options = context.params.options
        seconds, threshold = seconds_of(options.timeout), options.feeThreshold

        async def work() -> None:
            self._alive()
            found = await self._next(seconds, threshold)
            if found is not None:
                context.results.result = found

        return self._session.carry_out(context, work)

    async def _next(self, seconds: float, threshold: int) -> "OwnTemplate | None":
        node = self._session.node
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while True:
            tip = await node.tips.wait(self._header.prev_hash, min(TICK, deadline - loop.time()), self._interrupt)
            if tip is None:
                return None
            moved = tip.hash != self._header.prev_hash or await self._is_easier_now()
            if moved or threshold < MAX_MONEY:
                async with node.turns.turn(self._session.name):
                    made = await assemble(self._session, self._options, TICK / 2)
                if moved or made.fees >= self.fees + threshold:
                    return made
            if loop.time() >= deadline:
                return None

    @property
    def fees(self) -> int:
        """Satoshis of all transactions together."""
        return sum(self._fees)

    async def _is_easier_now(self) -> bool:
        """Whether a test network takes a block of the lowest difficulty by now, which this one is not."""
        node = self._session.node
        if not node.params.allow_min_difficulty:
            return False
        context = await node.context()
        return context.required_bits(context.template_time(node.now())) != self._header.bits

    async def interruptWait_context(self, context: Any) -> None:
        """Ends a wait."""
        self._interrupt.set()


def _output(tx: Transaction, index: int) -> bytes:
    script = tx.script_pubkeys[index]
    return tx.values[index].to_bytes(8, "little") + write_compact_size(len(script)) + script
