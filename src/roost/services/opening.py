"""Which database a server has, and how it comes to lead the fleet that is kept there."""

import asyncio
import socket
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from roost.errors import RoostError, Unusable
from roost.services.clock import Clock
from roost.services.leading import LEASE_S, Lease, holder_named, lead
from roost.services.ledger import Ledger
from roost.services.secrets import new_id, secret_file, sha256
from roost.store.database import Database, is_url
from roost.store.migrate import migrate, version
from roost.store.records import Event, FleetRecord, Put
from roost.store.sqlite import Sqlite, create_private
from roost.store.store import Store

_LET_GO_S: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A database whose fleet this server leads."""

    database: Database
    ledger: Ledger
    lease: Lease | None
    """`None`: nobody else opens this database."""

    async def close(self) -> None:
        """Let another server lead, and close every connection."""
        if self.lease is not None and not self.ledger.deposed.done():
            with suppress(RoostError, TimeoutError):
                async with asyncio.timeout(_LET_GO_S):
                    await self.lease.let_go()
        await self.database.close()


async def open_database(
    directory: Path, named: Path | str | None, *, clock: Clock, patience_s: float
) -> Opened:
    """Lead the fleet of a PostgreSQL's URL, once nobody else does, or of an SQLite file."""
    if isinstance(named, str) and is_url(named):
        return await _lead(
            await _postgresql(named),
            _holder(directory),
            clock=clock,
            patience_s=patience_s,
            lease_s=LEASE_S,
        )
    path = directory / (named or "roost.db")
    try:
        create_private(path)
    except OSError as error:
        raise Unusable(f"cannot write {path}: {error.strerror}") from None
    return await _lead(
        Sqlite(path), new_id("server-"), clock=clock, patience_s=patience_s, lease_s=None
    )


async def _postgresql(url: str) -> Database:
    # Its driver is an extra.
    from roost.store.postgresql import PostgreSql
    from roost.store.postgresql_checks import check

    database = PostgreSql(url)
    try:
        await check(database)
    except BaseException:
        await database.close()
        raise
    return database


def _holder(directory: Path) -> str:
    """What this server is called to others; the same after a restart on this directory."""
    opens = [secret_file(directory / f"{who}_credential") for who in ("admin", "gateway")]
    return holder_named(
        secret_file(directory / "server_id", make=lambda: new_id("server-")),
        at=f"{directory.resolve()} on {socket.gethostname()}",
        credentials=sha256(" ".join(opens))[:8],
    )


async def _lead(
    database: Database, holder: str, *, clock: Clock, patience_s: float, lease_s: float | None
) -> Opened:
    try:
        if await version(database) is None:
            await migrate(database)
        store = Store(database, patience_s=patience_s)
        epoch = await lead(store, holder, for_s=lease_s)
        try:
            # Only a leader changes the tables that another one may have.
            await migrate(database)
            ledger = await _load(store, epoch, database.name, clock)
        except BaseException:
            with suppress(RoostError):
                await store.renew(epoch, for_s=0)
            raise
    except BaseException:
        await database.close()
        raise
    lease = None if lease_s is None else Lease(ledger, for_s=lease_s)
    return Opened(database=database, ledger=ledger, lease=lease)


async def _load(store: Store, epoch: int, name: str, clock: Clock) -> Ledger:
    stored = await store.load()
    if stored is None:
        fleet = FleetRecord(
            fleet=new_id("fleet-"), incarnation=int(clock.time() * 1000), adopting=True
        )
        event = Event(at=clock.time(), who="server", what="fleet.created", object=fleet.fleet)
        await store.commit([Put(record=fleet)], epoch=epoch, events=[event])
        stored = await store.load()
    if stored is None:
        raise Unusable(f"{name} does not keep what is written to it")
    return Ledger(store, stored, epoch)
