"""What all requests of one gateway share: its limits, routes and books, and what is held now."""

import asyncio

from roost.gateway.accounts import Accounts
from roost.gateway.cors import Cors
from roost.gateway.engine import EngineConnection
from roost.gateway.limits import Limits
from roost.gateway.table import RoutingTable
from roost.gateway.writes import Writes


class Context:
    """One for a gateway."""

    def __init__(
        self,
        *,
        limits: Limits,
        table: RoutingTable,
        accounts: Accounts,
        loop: asyncio.AbstractEventLoop,
        cors: Cors | None = None,
    ) -> None:
        self.limits = limits
        self.table = table
        self.accounts = accounts
        self.loop = loop
        self.cors = cors
        """`None`: no web page is let in."""
        self.engines: set[EngineConnection] = set()
        """Connections with a request on them."""
        self.writes = Writes(loop)
        self.body_bytes = 0
        """Of request bodies, held now."""
        self.draining = False
        """Answers close their connections."""
        self.patient = False
        """While draining, a connection whose last answer did not say so may ask once more."""
