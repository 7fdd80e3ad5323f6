"""What a server says of a PostgreSQL database that it cannot use, before it writes anything."""

import psycopg
import pytest

from postgresql import Cluster
from roost.errors import Unusable
from roost.store.migrate import migrate
from roost.store.postgresql import PostgreSql
from roost.store.postgresql_checks import check
from roost.store.store import Store

pytestmark = pytest.mark.anyio


async def refused(url: str) -> Unusable:
    database = PostgreSql(url)
    try:
        with pytest.raises(Unusable) as caught:
            await check(database)
    finally:
        await database.close()
    assert caught.value.hint
    assert database.name in caught.value.message
    return caught.value


async def test_an_empty_database_and_one_of_roosts_are_good(cluster: Cluster) -> None:
    database = PostgreSql(cluster.create())
    await check(database)
    await migrate(database)
    await check(database)
    # What somebody else adds later is theirs.
    async with database.write() as connection:
        await connection.exec_driver_sql("CREATE TABLE theirs (x int)")
    await check(database)
    await database.close()


async def test_tables_of_another_program_are_named_and_left_alone(cluster: Cluster) -> None:
    url = cluster.create()
    for name in ("users", "nodes", "a b", "z"):
        cluster.do(f'CREATE TABLE "{name}" (x int)', database=cluster.named(url))
    said = await refused(url)
    assert "tables of another program: a b, nodes, users and 1 more" in said.message
    # Another program that uses Alembic too.
    url = cluster.create()
    cluster.do("CREATE TABLE alembic_version (version_num text)", database=cluster.named(url))
    assert "tables of another program: alembic_version" in (await refused(url)).message


async def test_what_an_extension_brings_is_nobodys(cluster: Cluster) -> None:
    url = cluster.create()
    try:
        cluster.do("CREATE EXTENSION pg_stat_statements", database=cluster.named(url))
    except psycopg.errors.FeatureNotSupported:
        pytest.skip("no extension that makes a table is installed")
    database = PostgreSql(url)
    await check(database)
    await database.close()


async def test_a_schema_of_its_own_is_all_it_looks_at(cluster: Cluster) -> None:
    url = cluster.create()
    name = cluster.named(url)
    cluster.do("CREATE TABLE users (x int)", database=name)
    cluster.do("CREATE SCHEMA roost", database=name)  # the user's own comes first in the path
    database = PostgreSql(url)
    await check(database)
    await migrate(database)
    assert await Store(database).load() is None
    await check(database)
    await database.close()


async def test_a_user_who_may_not_make_tables_is_told_who_may_let_it(cluster: Cluster) -> None:
    url = cluster.create()
    name = cluster.named(url)
    cluster.do(f"CREATE ROLE guest_{name} LOGIN")
    cluster.do("REVOKE CREATE ON SCHEMA public FROM PUBLIC", database=name)
    said = await refused(cluster.url(name, user=f"guest_{name}"))
    assert f"user guest_{name} may not make tables in schema public" in said.message
    cluster.do(str(said.hint).partition(": ")[2], database=name)
    guest = PostgreSql(cluster.url(name, user=f"guest_{name}"))
    await check(guest)
    await guest.close()


async def test_tables_that_belong_to_another_user_are_said(cluster: Cluster) -> None:
    url = cluster.create()
    name = cluster.named(url)
    database = PostgreSql(url)
    await migrate(database)
    await database.close()
    cluster.do(f"CREATE ROLE other_{name} LOGIN")
    cluster.do("GRANT CREATE ON SCHEMA public TO PUBLIC", database=name)
    said = await refused(cluster.url(name, user=f"other_{name}"))
    assert "may not read and write all tables" in said.message
    assert "alembic_version, catalogs, events and " in said.message


async def test_no_schema_to_make_tables_in_is_said(cluster: Cluster) -> None:
    url = cluster.create()
    cluster.do("DROP SCHEMA public", database=cluster.named(url))
    assert "no schema in which user roost could make tables" in (await refused(url)).message


async def test_another_encoding_is_said(cluster: Cluster) -> None:
    cluster.do("CREATE DATABASE latin ENCODING 'LATIN1' TEMPLATE template0")
    assert (
        "encoded in LATIN1, and Roost needs UTF8" in (await refused(cluster.url("latin"))).message
    )


async def test_a_database_that_takes_no_writes_is_said(cluster: Cluster) -> None:
    url = cluster.create()
    name = cluster.named(url)
    cluster.do(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    assert "is read-only: nothing can be written" in (await refused(url)).message


async def test_an_older_postgresql_is_said(cluster: Cluster) -> None:
    database = PostgreSql(cluster.create())
    with pytest.raises(Unusable, match=r"is PostgreSQL [0-9.]+.*, and Roost needs 99 or newer"):
        await check(database, oldest=99)  # than any that there is
    await database.close()


async def test_a_standby_is_said(own_cluster: Cluster) -> None:
    url = own_cluster.create()
    own_cluster.stop()
    own_cluster.make_standby()
    own_cluster.start()
    said = await refused(url)
    assert "is a standby: nothing can be written" in said.message
    assert "target_session_attrs=read-write" in str(said.hint)
