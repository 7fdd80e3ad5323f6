"""The server's services, put together on one directory."""

import asyncio
import contextlib
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import structlog

from roost.domain.profile import Engine, MetricNames
from roost.errors import Unavailable, Unusable
from roost.files import Lock
from roost.reconcile.board import Plan
from roost.reconcile.nodes import LeaseRules
from roost.services.clock import Clock, SystemClock
from roost.services.desired import DesiredState
from roost.services.inventory import LEASES, Inventory
from roost.services.joining import Joining
from roost.services.logs import LogRelay
from roost.services.opening import Opened, open_database
from roost.services.operations import Operations
from roost.services.orphans import Orphans
from roost.services.reports import Network, Reports
from roost.services.routing import Routing
from roost.services.scheduler import Scheduler
from roost.services.secrets import same, secret_file
from roost.services.views import Views
from roost.services.watch import Watch
from roost.store.guard import lock, refuse_network_filesystem
from roost.store.records import Event, FleetRecord, Put
from roost.store.store import PATIENCE_S

_TICK_S: Final = 1.0
_LOAD_EVERY_S: Final = 2.0
_LAST_WORDS_S: Final = 3.0
_REVISIONS: Final = 2**31

log = structlog.get_logger("roost.server")


class Server:
    """Everything of one fleet but its HTTP."""

    def __init__(
        self,
        *,
        opened: Opened,
        held: Lock,
        admin_credential: str,
        gateway_credential: str,
        clock: Clock,
        plan: Plan,
        rules: LeaseRules,
        allowed: tuple[Network, ...],
        metrics: Mapping[Engine, MetricNames],
    ) -> None:
        self._opened = opened
        self._lock = held
        self._admin = admin_credential
        self._gateway = gateway_credential
        self._tasks: list[asyncio.Task[None]] = []
        self._load_due: asyncio.TimerHandle | None = None
        self.clock = clock
        self.ledger = ledger = opened.ledger
        self.watch = Watch(first=1 + secrets.randbelow(_REVISIONS))
        self.inventory = Inventory(ledger, clock, rules=rules)
        self.reports = Reports(ledger, self.inventory, clock, allowed=allowed)
        self.scheduler = Scheduler(ledger, self.inventory, clock, plan=plan)
        self.desired = DesiredState(ledger, self.inventory, self.watch, metrics=metrics)
        self.routing = Routing(ledger, self.inventory, self.scheduler, self.watch, clock)
        self.joining = Joining(ledger, self.inventory, clock)
        self.operations = Operations(ledger, self.inventory, clock)
        self.orphans = Orphans(ledger, self.inventory, self.scheduler, clock)
        self.logs = LogRelay(self.watch)
        self.views = Views(ledger, self.inventory, self.scheduler, self.operations)
        ledger.listen(lambda _before, _after: self._changed())
        self.inventory.on_change.append(self._changed)
        self.inventory.on_load.append(self._load_changed)

    def _changed(self) -> None:
        self.routing.refresh()
        self.scheduler.nudge()

    def _load_changed(self) -> None:
        # Measurements alone reach the gateways a few at a time.
        if self._load_due is None:
            self._load_due = asyncio.get_running_loop().call_later(_LOAD_EVERY_S, self._load_now)

    def _load_now(self) -> None:
        self._load_due = None
        self.routing.refresh()

    def is_admin(self, credential: str) -> bool:
        """Whether it opens the management API."""
        return same(self._admin, credential)

    def is_gateway(self, credential: str) -> bool:
        """Whether it is a gateway's."""
        return same(self._gateway, credential)

    @property
    def database(self) -> str:
        """What the database is called to people."""
        return self._opened.database.name

    @property
    def trouble(self) -> str | None:
        """Why it cannot do all that it should."""
        lease = self._opened.lease
        return (lease.trouble if lease is not None else None) or self.scheduler.last_error

    def start(self, *, own_port: int | None = None) -> None:
        """Begin to schedule, to watch the nodes' silence, and to keep the lease.

        `own_port`: where it listens, which no engine beside it can have.
        """
        self.scheduler.own_port = own_port
        self.scheduler.nudge()
        self._tasks = [
            asyncio.ensure_future(self.scheduler.run()),
            asyncio.ensure_future(self._tick()),
        ]
        if self._opened.lease is not None:
            self._tasks.append(asyncio.ensure_future(self._opened.lease.keep()))

    async def _tick(self) -> None:
        settled = False
        while True:
            await asyncio.sleep(_TICK_S)
            self.inventory.tick()
            if not settled and self.inventory.settled:
                settled = True
                self.scheduler.nudge()
            if self.desired.newer_seen is not None:
                seen, self.desired.newer_seen = self.desired.newer_seen, None
                try:
                    await self.renew(seen)
                except Unavailable as error:  # agents say it again
                    log.warning("fleet.not_renewed", error=error.message)

    async def renew(self, seen: tuple[int, int]) -> None:
        """Agents have obeyed a later state than this database: an old copy was put back."""
        now = self.clock.time()
        fleet = self.ledger.fleet
        if seen[0] > now * 1000 + 86_400_000:
            return  # no server of this fleet can have said so
        async with self.ledger.turn():
            renewed = FleetRecord(
                fleet=fleet.fleet,
                incarnation=max(int(now * 1000), seen[0] + 1),
                adopting=True,
            )
            why = "agents know a later state than this database: a restored copy"
            event = Event(at=now, who="server", what="fleet.restored", object=fleet.fleet, why=why)
            await self.ledger.commit([Put(record=renewed)], events=[event])
            log.warning("fleet.restored", why=why)

    def end_waits(self) -> None:
        """Long-polls and log streams end, so that the listener can close."""
        self.watch.close()
        self.logs.close_all()

    async def stop(self) -> None:
        """Store what was seen, let another server lead, and let go of the directory."""
        self.end_waits()
        if self._load_due is not None:
            self._load_due.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if not self.ledger.deposed.done():
            # Neither a full disk nor a database that is away keeps a server from ending.
            with contextlib.suppress(Exception):
                async with asyncio.timeout(_LAST_WORDS_S), self.ledger.turn():
                    await self.ledger.commit()
        await self._opened.close()
        self._lock.release()


async def open_server(
    directory: Path,
    *,
    plan: Plan,
    database: Path | str | None = None,
    clock: Clock | None = None,
    rules: LeaseRules = LEASES,
    allowed: Sequence[Network] = (),
    metrics: Mapping[Engine, MetricNames] | None = None,
    patience_s: float = PATIENCE_S,
) -> Server:
    """Open or make a server's directory, lead its fleet, and load what is kept.

    `database`: a file, in `directory` unless absolute, or a PostgreSQL's URL; there it waits until
    no other server leads. `patience_s`: see `Store`.
    """
    clock = clock or SystemClock()
    held = _locked(directory)
    try:
        opened = await open_database(directory, database, clock=clock, patience_s=patience_s)
        try:
            return Server(
                opened=opened,
                held=held,
                admin_credential=secret_file(directory / "admin_credential"),
                gateway_credential=secret_file(directory / "gateway_credential"),
                clock=clock,
                plan=plan,
                rules=rules,
                allowed=tuple(allowed),
                metrics=metrics or {},
            )
        except BaseException:
            await opened.close()
            raise
    except BaseException:
        held.release()
        raise


def _locked(directory: Path) -> Lock:
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        refuse_network_filesystem(directory)
        return lock(directory)
    except OSError as error:
        raise Unusable(
            f"cannot use {directory}: {error.strerror}", hint="give another with --dir"
        ) from None
