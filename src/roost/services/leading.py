"""Who leads the fleet: waiting for one's turn, keeping it, and seeing that it is over."""

import asyncio
from typing import Final

import structlog

from roost.errors import Deposed, Led, Lost, RoostError, Unavailable
from roost.services.ledger import Ledger
from roost.store.store import Store

LEASE_S: Final = 15.0
"""A leader that is gone without a word is followed after so long."""
_ASK_EVERY_S: Final = 1.0
_OTHER_CREDENTIALS: Final = (
    "ctl and gateways that the leading server knows will be refused by this one: copy "
    "admin_credential and gateway_credential from its directory to this one's, and restart this one"
)

log = structlog.get_logger("roost.server")


async def lead(store: Store, holder: str, *, for_s: float | None) -> int:
    """The epoch, once nobody else leads; whoever does is named once."""
    said: str | None = None
    while True:
        try:
            return await store.lead(holder, for_s=for_s)
        except Led as error:
            who, why = error.holder, error.message
        except Lost as error:
            who, why = None, error.message
        if (who or why) != said:
            log.warning("server.waits", why=why)
            if who is not None and _credentials(who) != _credentials(holder):
                log.warning("server.other_credentials", why=_OTHER_CREDENTIALS)
            said = who or why
        await asyncio.sleep(_ASK_EVERY_S)


def holder_named(own: str, *, at: str, credentials: str) -> str:
    """What a server is called to others, with a mark of what opens it."""
    return f"{own} (in {at}, credentials {credentials})"


def _credentials(holder: str) -> str:
    return holder.rpartition(", credentials ")[2]


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
