"""A database of an earlier version of Roost keeps what it has."""

from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, column, insert, table
from sqlalchemy.ext.asyncio import AsyncConnection

import roost.store.migrate as migrating
from roost.domain.node import NodeName
from roost.domain.profile import Engine, Profile, ProfileName
from roost.domain.replica import PlacementId, ReplicaState
from roost.reconcile.replicas import Shard
from roost.store.database import Database
from roost.store.migrate import migrate
from roost.store.postgresql import PostgreSql
from roost.store.records import Put, changed
from roost.store.sqlite import Sqlite, create_private
from roost.store.store import Store

pytestmark = pytest.mark.anyio

VERSIONS = Path(migrating.__file__).parent / "migrations" / "versions"
REVISIONS = sorted(file.name[1:5] for file in VERSIONS.glob("r*.py"))
PROFILE = Profile(name=ProfileName("p"), engine=Engine.VLLM, source="m")


def upgrade(connection: Connection, revision: str) -> None:
    config = Config()
    folder = Path(migrating.__file__).parent / "migrations"
    config.set_main_option("script_location", str(folder))
    config.attributes["connection"] = connection
    command.upgrade(config, revision)


@pytest.fixture(params=["sqlite", "postgresql"])
async def database(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Database]:
    """Empty, without a table."""
    database: Database
    if request.param == "postgresql":
        database = PostgreSql(request.getfixturevalue("cluster").create())
    else:
        create_private(tmp_path / "roost.db")
        database = Sqlite(tmp_path / "roost.db")
    yield database
    await database.close()


async def fill(connection: AsyncConnection, rows: Mapping[str, Mapping[str, object]]) -> None:
    """One row a table, as the version of that schema wrote it."""
    for name, values in rows.items():
        written = table(name, *map(column, values))
        await connection.execute(insert(written).values(**values))


FIRST: Mapping[str, Mapping[str, object]] = {
    "fleet": {"one": 1, "fleet": "f", "incarnation": 7, "adopting": False},
    "lease": {"name": "leader", "holder": "server-1", "expires_at": None, "epoch": 5},
    "nodes": {
        "name": "a",
        "identity": "i",
        "credential_sha256": "c",
        "joined_at": 1.0,
        "cordoned": False,
        "draining": False,
        "agent_version": "1",
    },
    "replicas": {
        "placement": "p1",
        "name": "m-0",
        "model": "m",
        "index": 0,
        "profile": msgspec.json.encode(PROFILE).decode(),
        "created_at": 1.5,
        "since": 2.5,
        "wish": "run",
        "because": None,
        "state": "ready",
        "cause": None,
        "ever_ready": True,
    },
    "shards": {
        "placement": "p1",
        "rank": 0,
        "node": "a",
        "host": "127.0.0.1",
        "port": 20000,
        "key": "k",
        "gpus": "[0]",
        "gpu_uuids": '["GPU-1"]',
        "hcas": "[]",
        "memory_bytes": None,
        "disk_bytes": None,
        "state": "ready",
        "pid": 7,
        "restarts": 2,
        "seen": True,
    },
}


async def test_a_replica_of_the_first_schema_is_none_of_several_nodes(database: Database) -> None:
    async with database.write() as connection:
        await connection.run_sync(upgrade, "0001")
        await fill(connection, FIRST)
    await migrate(database)
    stored = await Store(database).load()
    assert stored is not None
    replica = stored.replicas[PlacementId("p1")]
    assert replica.state is ReplicaState.READY
    assert (replica.generation, replica.failures, replica.restart_at) == (0, 0, None)
    assert not replica.hold
    assert not replica.at_once
    assert replica.shards == (
        Shard(
            rank=0,
            node=NodeName("a"),
            host="127.0.0.1",
            port=20000,
            key="k",
            gpus=(0,),
            gpu_uuids=replica.shards[0].gpu_uuids,
            state=ReplicaState.READY,
            pid=7,
            restarts=2,
            seen=True,
        ),
    )
    assert replica.shards[0].gpu_uuids == ("GPU-1",)


@pytest.mark.parametrize("revision", REVISIONS)
async def test_whatever_version_a_database_is_of_it_is_led_upgraded_and_written_to(
    database: Database, revision: str
) -> None:
    async with database.write() as connection:
        await connection.run_sync(upgrade, revision)
        await fill(connection, FIRST)
    store = Store(database)
    # A server leads before it changes the tables, which another one may still use.
    epoch = await store.lead("server-2", for_s=60)
    assert epoch == 6
    await migrate(database)
    stored = await store.load()
    assert stored is not None
    (replica,) = stored.replicas.values()
    moved = replace(replica, state=ReplicaState.FAILED, generation=2)
    await store.commit([Put(record=moved)], epoch=epoch)
    assert await store.load() == changed(stored, [Put(record=moved)])
