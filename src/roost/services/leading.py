"""Who leads the fleet: waiting for one's turn, keeping it, and seeing that it is over."""

import asyncio
from typing import Final

import structlog

from roost.errors import Conflict, Deposed, Lost, RoostError, Unavailable
from roost.services.ledger import Ledger
from roost.store.store import Store

LEASE_S: Final = 15.0
"""A leader that is gone without a word is followed after so long."""
_ASK_EVERY_S: Final = 1.0

log = structlog.get_logger("roost.server")


async def lead(store: Store, holder: str, *, for_s: float | None) -> int:
    """The epoch, once nobody else leads; whoever does is named once."""
    said: str | None = None
    while True:
        try:
            return await store.lead(holder, for_s=for_s)
        except Conflict as error:
            who, why = error.message.partition(" leads ")[0], error.message
        except Lost as error:
            who = why = error.message
        if who != said:
            log.warning("server.waits", why=why)
            said = who
        await asyncio.sleep(_ASK_EVERY_S)


class Lease:
    """A server's right to lead, which it renews; where that is refused, another one leads."""

    def __init__(self, ledger: Ledger, *, for_s: float) -> None:
        self._ledger = ledger
        self._for_s = for_s
        self.trouble: str | None = None
        """Why the database cannot be asked, while it can't."""

    async def keep(self) -> None:
        """Renew it until another server leads; what became of a cut commit is found out too."""
        while True:
            await asyncio.sleep(_ASK_EVERY_S if self.trouble is not None else self._for_s / 3)
            try:
                await self._ledger.store.renew(self._ledger.epoch, for_s=self._for_s)
            except Deposed as error:
                self._ledger.depose(error)
                return
            except RoostError as error:
                if self.trouble is None:
                    log.warning("database.away", why=error.message)
                self.trouble = error.message
                continue
            if self.trouble is not None:
                log.info("database.back")
                self.trouble = None
            if not self._ledger.is_settled:
                await self._settle()

    async def _settle(self) -> None:
        try:
            async with asyncio.timeout(self._for_s / 3), self._ledger.turn():
                pass
        except (Unavailable, TimeoutError):
            pass  # the next turn begins with it too

    async def let_go(self) -> None:
        """Another server need not wait."""
        await self._ledger.store.renew(self._ledger.epoch, for_s=0)
