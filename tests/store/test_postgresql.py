"""What a PostgreSQL server does to Roost, and what becomes of a change in the middle of it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from postgresql import Cluster, Proxy
from roost.errors import Led, Lost, Undecided, Unusable
from roost.store.migrate import migrate
from roost.store.postgresql import PostgreSql
from roost.store.records import Event, FleetRecord, Put
from roost.store.store import Store

pytestmark = pytest.mark.anyio

FLEET = FleetRecord(fleet="f", incarnation=1, adopting=True)
EVENT = Event(at=1.0, who="w", what="x", object="o")


@asynccontextmanager
async def proxied(cluster: Cluster, url: str) -> AsyncIterator[tuple[Proxy, PostgreSql]]:
    async with Proxy.before(cluster, url) as proxy:
        database = PostgreSql(proxy.url)
        yield proxy, database
        await database.close()


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
        with pytest.raises(Undecided) as undecided:
            await committing
        proxy.refuse = False
        made, kept = await store.settled(undecided.value, epoch=epoch)
        assert made
        assert kept is not None
        assert kept.fleet == FLEET


async def test_nobody_is_patient_with_a_database_that_has_been_away_for_long(
    cluster: Cluster,
) -> None:
    async with proxied(cluster, cluster.create()) as (proxy, database):
        await migrate(database)
        store = Store(database, patience_s=0.5)
        epoch = await store.lead("me")

        async def tries() -> int:
            before = proxy.refused
            with pytest.raises(Lost):
                await store.commit([Put(record=FLEET)], epoch=epoch)
            return proxy.refused - before

        proxy.refuse = True
        proxy.drop()
        assert await tries() > 1
        while await tries() > 1:
            pass
        proxy.refuse = False
        await store.commit([Put(record=FLEET)], epoch=epoch)
        # It is back: the next time it goes away, it is waited for again.
        proxy.refuse = True
        proxy.drop()
        assert await tries() > 1


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


async def test_servers_that_start_at_once_on_an_empty_database_make_its_tables_once(
    cluster: Cluster,
) -> None:
    url = cluster.create()
    databases = [PostgreSql(url) for _ in range(3)]
    await asyncio.gather(*(migrate(database) for database in databases))
    epoch = await Store(databases[0]).lead("me")
    await Store(databases[0]).commit([Put(record=FLEET)], epoch=epoch)
    for database in databases:
        kept = await Store(database).load()
        assert kept is not None
        assert kept.fleet == FLEET
        await database.close()


async def test_servers_that_are_first_at_once_lead_one_after_the_other(cluster: Cluster) -> None:
    databases = [PostgreSql(cluster.create())]
    await migrate(databases[0])
    databases += [PostgreSql(cluster.url(f"test{cluster.databases}")) for _ in range(4)]
    asked = [Store(one).lead(f"s{i}", for_s=60) for i, one in enumerate(databases)]
    answers = await asyncio.gather(*asked, return_exceptions=True)
    assert [answer for answer in answers if not isinstance(answer, Led)] == [1]
    assert all("leads the fleet" in str(a) for a in answers if isinstance(a, Led))
    for database in databases:
        await database.close()


async def test_a_database_that_became_newer_while_its_tables_were_waited_for_is_refused(
    cluster: Cluster,
) -> None:
    url = cluster.create()
    first, second = PostgreSql(url), PostgreSql(url)
    async with first.migration() as connection:
        migrating = asyncio.ensure_future(migrate(second))
        waits = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
        while not (await connection.exec_driver_sql(waits)).scalar():
            assert not migrating.done()
        await connection.exec_driver_sql("CREATE TABLE alembic_version (version_num text)")
        await connection.exec_driver_sql("INSERT INTO alembic_version VALUES ('9999')")
    with pytest.raises(Unusable, match="from a newer roost: its schema is 9999"):
        await migrating
    for database in (first, second):
        await database.close()


@pytest.mark.parametrize(("set_to", "is_then"), [("off", "on"), ("remote_apply", "remote_apply")])
async def test_a_commit_is_on_disk_before_it_is_answered(
    cluster: Cluster, set_to: str, is_then: str
) -> None:
    url = cluster.create()
    cluster.do(f"ALTER DATABASE {cluster.named(url)} SET synchronous_commit = {set_to}")
    database = PostgreSql(url)
    async with database.write() as connection:
        said = await connection.exec_driver_sql("SHOW synchronous_commit")
        assert said.scalar() == is_then
    await database.close()
