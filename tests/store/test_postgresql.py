"""What a PostgreSQL server does to Roost, and what becomes of a change in the middle of it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from postgresql import Cluster
from roost.errors import Lost, Undecided, Unusable
from roost.store.migrate import migrate
from roost.store.postgresql import PostgreSql
from roost.store.records import Event, FleetRecord, Put
from roost.store.store import Store

pytestmark = pytest.mark.anyio

FLEET = FleetRecord(fleet="f", incarnation=1, adopting=True)
EVENT = Event(at=1.0, who="w", what="x", object="o")


class Proxy:
    """Passes bytes on; cuts a connection when its client commits, before or after it is done."""

    def __init__(self, to: str) -> None:
        self._to = to
        self.serving: set[asyncio.Task[None]] = set()
        self.cut: str | None = None
        """`before`: COMMIT never arrives; `after`: its answer never does. Once, then `None`."""
        self.cuts = 0
        self.was_cut = asyncio.Event()
        self.refuse = False

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A connection; it is passed on until one side ends it."""
        self.serving.add(asyncio.ensure_future(self._serve(reader, writer)))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.refuse:
            writer.close()
            return
        inner, outer = await asyncio.open_unix_connection(self._to)
        ending, swallow = asyncio.Event(), asyncio.Event()

        async def up() -> None:
            while said := await reader.read(65536):
                if self.cut is not None and b"COMMIT\0" in said:
                    when, self.cut = self.cut, None
                    self.cuts += 1
                    self.was_cut.set()
                    if when == "before":
                        break
                    swallow.set()
                outer.write(said)
            ending.set()

        async def down() -> None:
            while (said := await inner.read(65536)) and not swallow.is_set():
                writer.write(said)
            ending.set()

        tasks = [asyncio.ensure_future(up()), asyncio.ensure_future(down())]
        await ending.wait()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for end in (outer, writer):
            end.close()
            with suppress(OSError):
                await end.wait_closed()


@asynccontextmanager
async def proxied(cluster: Cluster, url: str) -> AsyncIterator[tuple[Proxy, PostgreSql]]:
    proxy = Proxy(str(cluster.socket))
    server = await asyncio.start_server(proxy.accept, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    name = url.partition("@/")[2].partition("?")[0]
    database = PostgreSql(f"postgresql://roost@127.0.0.1:{port}/{name}?sslmode=disable")
    try:
        yield proxy, database
    finally:
        await database.close()
        server.close()
        await asyncio.gather(*proxy.serving)


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_commit_that_is_cut_is_made_exactly_once(cluster: Cluster, when: str) -> None:
    async with proxied(cluster, cluster.create()) as (proxy, database):
        await migrate(database)
        store = Store(database)
        epoch = await store.lead("me")
        await store.commit([Put(record=FLEET)], epoch=epoch)
        proxy.cut = when
        await store.commit([], epoch=epoch, events=[EVENT])
        assert proxy.cuts == 1
        assert len(await store.events(limit=5)) == 1


async def test_a_commit_that_is_cut_from_a_server_that_stays_away_is_undecided_then_settled(
    cluster: Cluster,
) -> None:
    async with proxied(cluster, cluster.create()) as (proxy, database):
        await migrate(database)
        store = Store(database, patience_s=0.5)
        epoch = await store.lead("me")
        proxy.cut = "after"
        committing = asyncio.ensure_future(store.commit([Put(record=FLEET)], epoch=epoch))
        await proxy.was_cut.wait()
        proxy.refuse = True
        with pytest.raises(Undecided):
            await committing
        proxy.refuse = False
        kept = await store.settled(epoch)
        assert kept is not None
        assert kept.fleet == FLEET


async def test_a_restart_of_postgresql_is_got_over(own_cluster: Cluster) -> None:
    database = PostgreSql(own_cluster.create())
    await migrate(database)
    store = Store(database, patience_s=60)
    epoch = await store.lead("me")
    await store.commit([Put(record=FLEET)], epoch=epoch)
    await asyncio.to_thread(own_cluster.stop)
    committing = asyncio.ensure_future(store.commit([], epoch=epoch, events=[EVENT]))
    reading = asyncio.ensure_future(store.load())
    await asyncio.to_thread(own_cluster.start)
    await committing
    assert await reading is not None
    assert len(await store.events(limit=5)) == 1
    await database.close()


async def test_a_transaction_that_waits_for_ever_is_cut(cluster: Cluster) -> None:
    database = PostgreSql(cluster.create(), limit_s=0.3)
    with pytest.raises(Lost):
        async with database.read() as connection:
            await connection.exec_driver_sql("SELECT pg_sleep(600)")
    await database.close()


async def test_a_password_is_in_no_name_and_no_message() -> None:
    database = PostgreSql("postgresql://roost:hush%2Fhush@127.0.0.1:1/x")
    with pytest.raises(Lost) as caught:
        async with database.read():
            pass
    assert "hush" not in caught.value.message + database.name
    await database.close()
    with pytest.raises(Unusable) as refused:
        PostgreSql("postgresql://roost:hush@[broken/x")
    assert "hush" not in str(refused.value) + str(refused.value.hint)
