"""What every database must do; a further backend is one more parameter of `database`."""

from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext

from roost.domain.allocation import replica_name
from roost.domain.gpu import Gpu, GpuClass, GpuUuid
from roost.domain.model import Model, ModelName
from roost.domain.node import Facts, Filesystem, NodeName
from roost.domain.profile import Engine, Profile, ProfileName
from roost.domain.replica import PlacementId, ReplicaState
from roost.errors import Conflict, Deposed, Undecided
from roost.reconcile.replicas import Replica, Shard, Wish
from roost.store.database import Database
from roost.store.migrate import migrate
from roost.store.postgresql import PostgreSql
from roost.store.records import (
    CatalogText,
    Change,
    Drop,
    Event,
    FleetRecord,
    KeyRecord,
    ModelRecord,
    NodeRecord,
    Put,
    Stored,
    TokenRecord,
    changed,
)
from roost.store.schema import metadata
from roost.store.sqlite import Sqlite, create_private
from roost.store.store import Store

pytestmark = pytest.mark.anyio

FLEET = FleetRecord(fleet="f", incarnation=1_796_073_607_987, adopting=True)
PROFILE = Profile(
    name=ProfileName("p"), engine=Engine.VLLM, source="m", args=("--a", 'q"'), env={"A": "ü"}
)


Open = Callable[[], Database]


@pytest.fixture(params=["sqlite", "postgresql"])
def open_again(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    """Opens one and the same database, as often as it is called."""
    if request.param == "postgresql":
        url = request.getfixturevalue("cluster").create()
        return lambda: PostgreSql(url)
    path = tmp_path / "roost.db"
    create_private(path)
    return lambda: Sqlite(path)


@pytest.fixture
async def database(open_again: Open) -> AsyncIterator[Database]:
    database = open_again()
    await migrate(database)
    yield database
    await database.close()


@pytest.fixture
async def store(database: Database) -> Store:
    return Store(database)


def node(name: str = "a", **more: object) -> NodeRecord:
    record = NodeRecord(
        name=NodeName(name), identity=f"id-{name}", credential_sha256=f"c-{name}", joined_at=1.5
    )
    return replace(record, **more)  # type: ignore[arg-type]  # by name


def shard(node: str = "a", rank: int = 0, **more: object) -> Shard:
    one = Shard(rank=rank, node=NodeName(node), host="127.0.0.1", port=20000 + rank, key="k")
    return replace(one, **more)  # type: ignore[arg-type]  # by name


def replica(placement: str = "p1", *shards: Shard, **more: object) -> Replica:
    one = Replica(
        placement=PlacementId(placement),
        name=replica_name(ModelName("m"), 0),
        model=ModelName("m"),
        index=0,
        profile=PROFILE,
        created_at=1.25,
        since=2.5,
        shards=shards or (shard(),),
    )
    return replace(one, **more)  # type: ignore[arg-type]  # by name


FULL = node(
    "b",
    cordoned=True,
    cordon_reason="fan: \x1b[31m 🪭",
    draining=True,
    address="10.0.0.7",
    port_range=(20000, 20999),
    agent_version="1",
    boot_id="boot",
    hostname="host",
    facts=Facts(
        labels={"pool": "x"},
        memory_bytes=2**40,
        engines=frozenset({"vllm", "llama.cpp"}),
        gpus=(Gpu(index=0, gpu_class=GpuClass("h100"), uuid=GpuUuid("G"), healthy=False),),
        fabrics=(),
        storage=(Filesystem(filesystem="/dev/a", mounts=("/",), free_bytes=None),),
    ),
)

STEPS: list[list[Change]] = [
    [Put(record=FLEET)],
    [Put(record=node()), Put(record=FULL)],
    [Put(record=ModelRecord(model=Model(name=ModelName("m/x"), profiles=(PROFILE,)), position=0))],
    [Put(record=TokenRecord(id="t", sha256="s", expires_at=1e9, uses_left=2, created_at=1))],
    [Put(record=KeyRecord(name="k", sha256="s", ending="abcd", created_at=1))],
    [Put(record=replica("p1", shard(gpus=(0, 1), gpu_uuids=(GpuUuid("A"), GpuUuid("B")))))],
    [
        Put(
            record=replica(
                "p2",
                shard("b", 0, generation=6, group_port=20_007, port=20_009),
                shard("b", 1, memory_bytes=2**41, hcas=("mlx5_0",)),
                shard("a", 2, state=ReplicaState.LOADING, pid=7, restarts=3, seen=True),
                wish=Wish.LOST,
                because="why",
                cause="x",
                ever_ready=True,
                generation=7,
                hold=True,
                failures=3,
                restart_at=9.5,
                ready_since=4.5,
                at_once=True,
            )
        )
    ],
    [Put(record=replace(FLEET, adopting=False)), Put(record=node(cordoned=True))],
    [Put(record=TokenRecord(id="t", sha256="s", expires_at=1e9, uses_left=0, created_at=1))],
    [Put(record=replica("p1", shard(port=30000), state=ReplicaState.READY))],
    [Drop(record=replica("p2"))],
    [Drop(record=replica("p1")), Drop(record=node())],
    [Drop(record=KeyRecord(name="k", sha256="s", ending="abcd", created_at=1))],
]


async def test_what_is_loaded_is_what_memory_says_after_every_commit(
    store: Store, open_again: Open
) -> None:
    epoch = await store.lead("me")
    expected = Stored(fleet=FLEET)
    for changes in STEPS:
        await store.commit(changes, epoch=epoch)
        expected = changed(expected, changes)
        assert await store.load() == expected
    # Another connection sees the same.
    again = open_again()
    assert await Store(again).load() == expected
    await again.close()


async def test_an_empty_database_loads_nothing(store: Store) -> None:
    assert await store.load() is None


async def test_each_leader_has_a_higher_epoch_and_an_earlier_one_changes_nothing(
    store: Store,
) -> None:
    first = await store.lead("one")
    await store.commit([Put(record=FLEET), Put(record=node())], epoch=first)
    second = await store.lead("two")
    assert second > first
    before = await store.load()
    with pytest.raises(Deposed, match="another server leads"):
        await store.commit([Put(record=node(cordoned=True))], epoch=first, events=[event(0)])
    assert await store.load() == before
    assert await store.events(limit=5) == ()
    await store.commit([Put(record=node(cordoned=True))], epoch=second)


async def test_a_commit_that_fails_half_way_changes_nothing(store: Store) -> None:
    epoch = await store.lead("me")
    await store.commit([Put(record=FLEET), Put(record=node())], epoch=epoch)
    before = await store.load()
    changes: list[Change] = [
        Put(record=node("z")),
        Put(record=replica("p9", shard("nowhere"))),
    ]
    with pytest.raises(Conflict):
        await store.commit(changes, epoch=epoch, events=[event(0)])
    assert await store.load() == before
    assert await store.events(limit=5) == ()


@pytest.mark.parametrize(
    "second",
    [
        shard(gpus=(3,), gpu_uuids=(GpuUuid("A"),), port=20001),
        shard(port=20000),
    ],
)
async def test_two_placements_never_share_a_card_or_a_port(store: Store, second: Shard) -> None:
    epoch = await store.lead("me")
    first = replica("p1", shard(gpus=(0,), gpu_uuids=(GpuUuid("A"),)))
    await store.commit([Put(record=FLEET), Put(record=node()), Put(record=first)], epoch=epoch)
    with pytest.raises(Conflict):
        await store.commit([Put(record=replica("p2", second))], epoch=epoch)
    # In one transaction the one may follow the other.
    await store.commit([Drop(record=first), Put(record=replica("p2", second))], epoch=epoch)


async def test_cards_without_a_uuid_are_held_by_index(store: Store) -> None:
    epoch = await store.lead("me")
    await store.commit(
        [Put(record=FLEET), Put(record=node()), Put(record=replica("p1", shard(gpus=(0,))))],
        epoch=epoch,
    )
    other = replica("p2", shard(gpus=(0,), port=20009))
    with pytest.raises(Conflict):
        await store.commit([Put(record=other)], epoch=epoch)


async def test_a_node_that_still_holds_something_cannot_vanish(store: Store) -> None:
    epoch = await store.lead("me")
    await store.commit([Put(record=FLEET), Put(record=node()), Put(record=replica())], epoch=epoch)
    with pytest.raises(Conflict):
        await store.commit([Drop(record=node())], epoch=epoch)


def event(number: int) -> Event:
    return Event(at=float(number), who="w", what="x", object=str(number), why="y")


async def test_events_come_newest_first_in_pages_without_gap_or_repeat(store: Store) -> None:
    epoch = await store.lead("me")
    await store.commit([Put(record=FLEET)], epoch=epoch, events=[event(i) for i in range(25)])
    seen: list[str] = []
    before = None
    while page := await store.events(limit=10, before=before):
        seen += [e.object for e in page]
        before = page[-1].id
    assert seen == [str(i) for i in reversed(range(25))]


async def test_the_catalogs_applied_are_kept_with_who_and_when(store: Store) -> None:
    epoch = await store.lead("me")
    text = CatalogText(at=5, who="admin", filename="c.yaml", text="models: []\n")
    await store.commit([Put(record=FLEET)], epoch=epoch, catalog=text)
    assert await store.catalogs() == (text,)


async def test_who_leads_for_a_time_is_waited_for_and_its_own_restart_is_not(store: Store) -> None:
    first = await store.lead("one", for_s=1000)
    with pytest.raises(Conflict, match=r"one leads the fleet of .* in epoch 1, and for [0-9]+ s"):
        await store.lead("two", for_s=1000)
    again = await store.lead("one", for_s=1000)
    assert again > first
    with pytest.raises(Deposed):
        await store.renew(first, for_s=1000)
    await store.renew(again, for_s=0)
    assert await store.lead("two", for_s=1000) > again


async def test_what_is_settled_is_what_is_kept_and_only_for_the_leader(store: Store) -> None:
    epoch = await store.lead("me")
    await store.commit([Put(record=FLEET), Put(record=node())], epoch=epoch)
    never_made = Undecided("?", commit="another")
    assert await store.settled(never_made, epoch=epoch) == (False, await store.load())
    await store.lead("other")
    with pytest.raises(Deposed):
        await store.settled(never_made, epoch=epoch)


async def test_the_migrations_build_exactly_the_schema_of_the_code(database: Database) -> None:
    async with database.read() as connection:
        differences = await connection.run_sync(
            lambda c: compare_metadata(MigrationContext.configure(c), metadata)
        )
    assert differences == []


async def test_migrating_twice_changes_nothing(database: Database) -> None:
    await migrate(database)


async def test_what_engines_print_can_be_kept_whatever_it_is(store: Store) -> None:
    epoch = await store.lead("me")
    await store.commit([Put(record=FLEET)], epoch=epoch, events=[replace(event(1), why="a\0b")])
    (kept,) = await store.events(limit=1)
    assert kept.why in {"a\0b", "a\ufffdb"}
