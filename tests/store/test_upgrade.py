"""A database of an earlier version of Roost keeps what it has."""

from pathlib import Path

import msgspec
import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import Connection

import roost.store.migrate as migrating
from roost.domain.node import NodeName
from roost.domain.profile import Engine, Profile, ProfileName
from roost.domain.replica import PlacementId, ReplicaState
from roost.reconcile.replicas import Shard
from roost.store.migrate import migrate
from roost.store.sqlite import Sqlite, create_private
from roost.store.store import Store

pytestmark = pytest.mark.anyio

PROFILE = Profile(name=ProfileName("p"), engine=Engine.VLLM, source="m")


def upgrade(connection: Connection, revision: str) -> None:
    config = Config()
    folder = Path(migrating.__file__).parent / "migrations"
    config.set_main_option("script_location", str(folder))
    config.attributes["connection"] = connection
    command.upgrade(config, revision)


async def test_a_replica_of_the_first_schema_is_none_of_several_nodes(tmp_path: Path) -> None:
    path = tmp_path / "roost.db"
    create_private(path)
    database = Sqlite(path)
    async with database.write() as connection:
        await connection.run_sync(upgrade, "0001")
        for sql, values in (
            ("INSERT INTO fleet VALUES (1, 'f', 7, 0)", ()),
            (
                (
                    "INSERT INTO nodes (name, identity, credential_sha256, joined_at, cordoned,"
                    " draining, agent_version) VALUES ('a', 'i', 'c', 1, 0, 0, '1')"
                ),
                (),
            ),
            (
                (
                    "INSERT INTO replicas VALUES"
                    " ('p1', 'm-0', 'm', 0, ?, 1.5, 2.5, 'run', NULL, 'ready', NULL, 1)"
                ),
                (msgspec.json.encode(PROFILE).decode(),),
            ),
            (
                (
                    "INSERT INTO shards VALUES ('p1', 0, 'a', '127.0.0.1', 20000, 'k', '[0]',"
                    " '[\"GPU-1\"]', '[]', NULL, NULL, 'ready', 7, 2, 1)"
                ),
                (),
            ),
        ):
            await connection.exec_driver_sql(sql, values)
    await migrate(database)
    stored = await Store(database).load()
    await database.close()
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
