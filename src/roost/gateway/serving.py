"""The data path of one process: its connections, routes and deadlines, and how it ends in order."""

import asyncio
import random
import socket
from typing import Final

from roost.gateway.accounts import Accounts, Log
from roost.gateway.certificate import Certificate
from roost.gateway.client import ClientConnection
from roost.gateway.context import Context
from roost.gateway.cors import Cors
from roost.gateway.counts import Counts, count
from roost.gateway.limits import Limits
from roost.gateway.shared_loads import Share
from roost.gateway.table import RoutingTable

BACKLOG: Final = 2048


class Serving:
    """What is the same in a gateway of one process and in a worker of several."""

    def __init__(
        self,
        *,
        limits: Limits,
        log: Log,
        rng: random.Random,
        tls: Certificate | None = None,
        cors_origins: tuple[str, ...] = (),
        share: Share | None = None,
    ) -> None:
        """`share`: what other workers have in flight; `None`: there are none."""
        self._loop = asyncio.get_running_loop()
        self._limits = limits
        self._log = log
        self._ssl = None if tls is None else tls.context
        self._share = share
        self._hurry = False
        self.table = RoutingTable(limits, self._loop.time, rng, share)
        self.context = Context(
            limits=limits,
            table=self.table,
            accounts=Accounts(log),
            loop=self._loop,
            cors=Cors(cors_origins) if cors_origins else None,
        )
        self.clients: set[ClientConnection] = set()

    async def listen(self, host: str, port: int) -> asyncio.Server:
        """Take connections at an address."""
        return await self._loop.create_server(
            self._client, host, port, backlog=BACKLOG, ssl=self._ssl
        )

    async def listen_on(self, sock: socket.socket) -> asyncio.Server:
        """Take connections from a socket that listens already."""
        return await self._loop.create_server(
            self._client, sock=sock, backlog=BACKLOG, ssl=self._ssl
        )

    def _client(self) -> ClientConnection:
        return ClientConnection(self.context, self.clients)

    def counts(self) -> Counts:
        """What has been counted, and what is held now."""
        return count(self.context, connections=len(self.clients))

    async def run_sweeps(self) -> None:
        """Look at every deadline a few times a second; no request needs a timer of its own."""
        while True:
            await asyncio.sleep(self._limits.sweep_s)
            try:
                self.sweep()
            except Exception as error:  # noqa: BLE001 - without deadlines all would hang in time
                self._log.say("gateway.sweep_failed", cause=repr(error))

    def sweep(self) -> None:
        """Act on the deadlines that have passed."""
        if self._share is not None:
            self._share.beat()
        now = self._loop.time()
        for connection in list(self.context.engines):
            if connection.deadline is not None and now >= connection.deadline:
                connection.give_up()
        for client in list(self.clients):
            client.check_time(now)
        self.table.sweep()

    async def finish(self, drain_s: float | None, *, patient: bool = False) -> None:
        """
        Let what is in flight finish in its time, then cut it off; the caller has stopped listening.

        `None`: nothing is cut off. `patient`: who was told that its connection stays may use it
        once more, so that a client of a gateway that goes on sees nothing of it.
        """
        self.context.draining = True
        self.context.patient = patient
        if not patient:
            for client in list(self.clients):
                client.stop()
        self._log.say("gateway.stopping", connections=len(self.clients))
        deadline = float("inf") if drain_s is None else self._loop.time() + drain_s
        while self.clients and not self._hurry and self._loop.time() < deadline:  # noqa: ASYNC110 - for once, at the end
            await asyncio.sleep(0.02)

    async def close(self) -> None:
        """Cut off what is left."""
        for client in list(self.clients):
            client.cut_off()
        for model in self.table.models.values():
            for endpoint in model.endpoints:
                endpoint.retire()
        # Transports close in the loop's next turns.
        await asyncio.sleep(0.01)

    def hurry(self) -> None:
        """What is in flight need not finish."""
        self._hurry = True
