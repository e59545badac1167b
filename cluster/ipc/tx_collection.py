"""`TxCollection`: a block declared as a list of wtxids, completed and judged."""

from collections.abc import Coroutine
from typing import Any

from cluster.ipc.declaration import Declaration
from cluster.ipc.reading import hash_of, transaction_of
from cluster.ipc.refusals import refused
from cluster.ipc.schemas import mining
from cluster.ipc.session import Session
from cluster.ipc.templates import DeclaredTemplate
from models.errors import ClientError

__all__ = ["TxCollection"]


class TxCollection(mining.TxCollection.Server):
    """Freed when its client destroys it or lets go of it; templates made from it live on."""

    def __init__(self, session: Session, declaration: Declaration):
        self._session = session
        self._declaration = declaration
        self._destroyed = False
        session.collections += 1

    def __del__(self) -> None:
        self._destroy()

    def _destroy(self) -> None:
        if not self._destroyed:
            self._destroyed = True
            self._session.collections -= 1
            self._declaration.release()

    def destroy_context(self, context: Any) -> Coroutine[Any, Any, None]:
        """Frees it."""

        async def work() -> None:
            self._destroy()

        return self._session.carry_out(context, work)

    def unknownTxPos_context(self, context: Any) -> Coroutine[Any, Any, None]:
        """Positions still missing, ascending."""

        async def work() -> None:
            self._session.check_open(self._destroyed)
            context.results.result = self._declaration.unknown_positions()

        return self._session.carry_out(context, work)

    def addMissingTxs_context(self, context: Any) -> Coroutine[Any, Any, None]:
        """Supplies transactions; an empty one stands for none at all."""
        given = context.params.txs
        if len(given) > len(self._declaration):  # refused whatever they are, so they need not be looked at
            given = [b""] * len(given)
        raws = [bytes(raw) for raw in given]
        try:
            checked = self._declaration.check_supply(raws)
        except ClientError as error:
            raise refused(error) from None

        async def work() -> None:
            self._session.check_open(self._destroyed)
            await self._declaration.supply(raws, checked)

        return self._session.carry_out(context, work)

    def makeTemplate_context(self, context: Any) -> Coroutine[Any, Any, None]:
        """The verdict, with a template if it is good; without a coinbase, on one that claims the subsidy only."""
        prevhash, raw = hash_of(context.params.prevhash, "prevhash"), bytes(context.params.coinbase)
        coinbase = transaction_of(raw).raw if raw else None

        async def work() -> None:
            self._session.check_open(self._destroyed)
            verdict = await self._declaration.make_template(prevhash, coinbase)
            context.results.reason = verdict.reason or ""
            context.results.debug = verdict.debug
            if verdict.ok:
                context.results.result = DeclaredTemplate(self._session, self._declaration, verdict.template)

        return self._session.carry_out(context, work, heavy=True)
