"""What becomes of a change whose connection to PostgreSQL is cut while it is committed."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from postgresql import Cluster, Proxy
from roost.domain.model import ModelName
from roost.domain.node import NodeName
from roost.domain.replica import ReplicaState
from roost.errors import Conflict, Deposed, NotFound, Unavailable, Undecided
from roost.formats.agent_wire import Join
from roost.store.records import Event
from services.small_fleet import FakeClock, SmallFleet, catalog

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def fleet_behind(
    cluster: Cluster, directory: Path, *, patience_s: float = 60
) -> AsyncIterator[tuple[Proxy, SmallFleet]]:
    async with Proxy.before(cluster, cluster.create()) as proxy:
        fleet = SmallFleet(directory, FakeClock(), database=proxy.url, patience_s=patience_s)
        await fleet.open()
        yield proxy, fleet
        proxy.refuse = False
        await fleet.close()


async def assert_memory_is_the_store(fleet: SmallFleet) -> None:
    ledger = fleet.server.ledger
    async with ledger.turn():
        assert ledger.is_settled
        assert ledger.stored == await ledger.store.load()


async def counted(fleet: SmallFleet) -> Counter[tuple[str, str]]:
    events = await fleet.server.ledger.store.events(limit=1000)
    return Counter((event.what, event.object) for event in events)


@dataclass(frozen=True)
class Writer:
    """Something that is stored, the event that says so, and what a second try may answer."""

    act: Callable[[SmallFleet], Awaitable[object]]
    event: tuple[str, str]
    again: type[Exception] | None = None


WRITERS = {
    "apply": Writer(
        lambda fleet: fleet.server.operations.apply(
            catalog().replace("coder", "second"), filename="c", who="test"
        ),
        ("model.added", "second"),
    ),
    "delete model": Writer(
        lambda fleet: fleet.server.operations.delete_model(ModelName("coder"), who="test"),
        ("model.deleted", "coder"),
        NotFound,
    ),
    "cordon": Writer(
        lambda fleet: fleet.server.operations.cordon(
            NodeName("n1"), reason="fan", drain=True, who="test"
        ),
        ("node.draining", "n1"),
    ),
    "uncordon": Writer(
        lambda fleet: fleet.server.operations.uncordon(NodeName("n1"), who="test"),
        ("node.uncordoned", "n1"),
    ),
    "delete node": Writer(
        lambda fleet: fleet.server.operations.delete_node(NodeName("n2"), who="test"),
        ("node.deleted", "n2"),
        NotFound,
    ),
    "create key": Writer(
        lambda fleet: fleet.server.operations.create_key("k", who="test"),
        ("key.created", "k"),
        Conflict,
    ),
    "delete key": Writer(
        lambda fleet: fleet.server.operations.delete_key("old", who="test"),
        ("key.deleted", "old"),
        NotFound,
    ),
    "scale": Writer(lambda fleet: fleet.apply(catalog(replicas=2)), ("model.changed", "coder")),
}


async def prepared(fleet: SmallFleet) -> None:
    """A replica runs on n1; n2 is lost."""
    await fleet.join("n1", gpus=2)
    await fleet.join("n2")
    await fleet.server.operations.cordon(NodeName("n2"), reason=None, drain=False, who="test")
    await fleet.apply(catalog())
    await fleet.rest("n2", turns=16)
    await fleet.server.operations.create_key("old", who="test")
    assert ("coder-0", "ready", "n1") in fleet.rows()


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("name", WRITERS)
async def test_what_is_cut_while_postgresql_stays_is_done_once_and_acknowledged(
    cluster: Cluster, tmp_path: Path, name: str, when: str
) -> None:
    async with fleet_behind(cluster, tmp_path / "s") as (proxy, fleet):
        await prepared(fleet)
        before = await counted(fleet)
        proxy.cut = when
        await WRITERS[name].act(fleet)
        assert proxy.cuts == 1
        await assert_memory_is_the_store(fleet)
        event = WRITERS[name].event
        assert (await counted(fleet))[event] == before[event] + 1


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("name", WRITERS)
async def test_what_is_cut_as_postgresql_goes_away_is_found_out_and_can_be_asked_for_again(
    cluster: Cluster, tmp_path: Path, name: str, when: str
) -> None:
    writer = WRITERS[name]
    async with fleet_behind(cluster, tmp_path / "s", patience_s=0.2) as (proxy, fleet):
        await prepared(fleet)
        before = await counted(fleet)
        fleet.server.ledger.note(Event(at=1, who="test", what="noted", object="once"))
        proxy.cut, proxy.refuse_after_cut = when, True
        with pytest.raises(Undecided):
            await writer.act(fleet)
        with pytest.raises(Unavailable):
            await writer.act(fleet)
        # Agents and gateways are answered all the while.
        fleet.agents["n1"].report()
        assert len(fleet.routes()) == 1
        proxy.refuse = False
        await assert_memory_is_the_store(fleet)
        made = (await counted(fleet))[writer.event] - before[writer.event]
        assert made == (1 if when == "after" else 0)
        if made and writer.again is not None:
            with pytest.raises(writer.again):
                await writer.act(fleet)
        else:
            await writer.act(fleet)
        await assert_memory_is_the_store(fleet)
        counts = await counted(fleet)
        assert counts[writer.event] - before[writer.event] == (
            2 if name in {"cordon", "uncordon"} and made else 1
        )
        await fleet.rest("n2", turns=2)
        assert (await counted(fleet))["noted", "once"] == 1
        assert set(fleet.server.inventory._live) == set(fleet.server.ledger.nodes)


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_placement_that_is_cut_is_made_once_and_its_cards_are_held_once(
    cluster: Cluster, tmp_path: Path, when: str
) -> None:
    async with fleet_behind(cluster, tmp_path / "s", patience_s=0.2) as (proxy, fleet):
        await fleet.join("n1", gpus=2)
        await fleet.apply(catalog(replicas=2))
        proxy.cut, proxy.refuse_after_cut = when, True
        with pytest.raises(Undecided):
            await fleet.server.scheduler.step()
        # Nothing is handed out that may not be kept, and nothing is decided on what is not known.
        assert fleet.server.desired.of(NodeName("n1")).run == ()
        with pytest.raises(Unavailable):
            await fleet.server.scheduler.step()
        proxy.refuse = False
        await fleet.rest(turns=3)
        await assert_memory_is_the_store(fleet)
        assert fleet.rows() == [("coder-0", "ready", "n1"), ("coder-1", "ready", "n1")]
        counts = await counted(fleet)
        assert counts["replica.placed", "coder-0"] == counts["replica.placed", "coder-1"] == 1
        held = [spec.gpu_uuids for spec in fleet.agents["n1"].specs.values()]
        assert sorted(held) == [("n1-0",), ("n1-1",)]


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_machine_whose_joining_is_cut_can_join_again(
    cluster: Cluster, tmp_path: Path, when: str
) -> None:
    async with fleet_behind(cluster, tmp_path / "s", patience_s=0.2) as (proxy, fleet):
        await fleet.join("n0")
        _, token = await fleet.server.joining.create_token(ttl_s=60, uses=1, who="test")
        proxy.cut, proxy.refuse_after_cut = when, True
        asked = Join(token=token, name="n1", identity="identity-n1")
        with pytest.raises(Undecided):
            await fleet.server.joining.join(asked)
        proxy.refuse = False
        await assert_memory_is_the_store(fleet)
        agent = await fleet.join("n1")
        await assert_memory_is_the_store(fleet)
        assert set(fleet.server.ledger.nodes) == {"n0", "n1"}
        assert fleet.server.joining.node(agent.credential) == "n1"


async def test_reports_made_while_nobody_knows_are_stored_afterwards(
    cluster: Cluster, tmp_path: Path
) -> None:
    async with fleet_behind(cluster, tmp_path / "s", patience_s=0.2) as (proxy, fleet):
        agent = await fleet.join("n1")
        agent.becomes = ReplicaState.LOADING
        await fleet.apply(catalog())
        await fleet.turn()
        proxy.cut, proxy.refuse_after_cut = "after", True
        agent.become(ReplicaState.READY)
        agent.report()
        with pytest.raises(Undecided):
            await fleet.server.scheduler.step()
        agent.become(ReplicaState.FAILED, cause="no memory")
        agent.report()
        proxy.refuse = False
        await fleet.steps()
        await assert_memory_is_the_store(fleet)
        (replica,) = fleet.server.ledger.stored.replicas.values()
        assert (replica.state, replica.ever_ready) == (ReplicaState.FAILED, True)


async def test_a_change_that_is_not_known_is_not_made_once_another_server_leads(
    cluster: Cluster, tmp_path: Path
) -> None:
    async with fleet_behind(cluster, tmp_path / "s", patience_s=0.2) as (proxy, fleet):
        proxy.cut, proxy.refuse_after_cut = "before", True
        with pytest.raises(Undecided):
            await fleet.server.operations.create_key("k", who="test")
        proxy.refuse = False
        store = fleet.server.ledger.store
        await store.renew(fleet.server.ledger.epoch, for_s=0)
        await store.lead("another", for_s=60)
        with pytest.raises(Deposed, match="another server leads this fleet in epoch 2: another"):
            await fleet.server.operations.create_key("k", who="test")
        assert fleet.server.ledger.deposed.done()
        stored = await store.load()
        assert stored is not None
        assert stored.keys == {}


async def test_nobody_reads_before_the_commit_of_one_who_left_has_ended(
    fleet: SmallFleet,
) -> None:
    ledger = fleet.server.ledger
    store, go_on, begun = ledger.store, asyncio.Event(), asyncio.Event()
    commit = store.commit

    async def slow(*words: object, **more: object) -> None:
        begun.set()
        await go_on.wait()
        await commit(*words, **more)  # type: ignore[arg-type]  # passed through

    store.commit = slow  # type: ignore[method-assign]
    leaving = asyncio.ensure_future(fleet.server.operations.create_key("k", who="test"))
    await begun.wait()
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    second = asyncio.ensure_future(fleet.server.operations.create_key("k", who="test"))
    await asyncio.sleep(0)
    go_on.set()
    with pytest.raises(Conflict, match="there is a key k already"):
        await second


async def torture(fleet: SmallFleet, proxy: Proxy, seed: int, rounds: int) -> None:
    """Keys come and go, and PostgreSQL is cut: what was acknowledged is there."""
    luck = random.Random(seed)
    ledger = fleet.server.ledger
    acknowledged: dict[str, bool] = {}
    for _ in range(rounds):
        proxy.cut = luck.choice([None, "before", "after"])
        proxy.refuse_after_cut = luck.random() < 0.5
        key = luck.choice("abc")
        wanted = luck.random() < 0.6
        operations = fleet.server.operations
        try:
            if wanted:
                await operations.create_key(key, who="test")
            else:
                await operations.delete_key(key, who="test")
        except (Conflict, NotFound):
            assert acknowledged.get(key, wanted) == wanted
            acknowledged[key] = wanted
        except Unavailable:
            acknowledged.pop(key, None)
        else:
            assert acknowledged.get(key, not wanted) != wanted, "it was acknowledged before"
            acknowledged[key] = wanted
        proxy.refuse = False
        proxy.cut = None
        await assert_memory_is_the_store(fleet)
        for name, there in acknowledged.items():
            assert (name in ledger.stored.keys) == there
    counts = await counted(fleet)
    for key in "abc":
        made, gone = counts["key.created", key], counts["key.deleted", key]
        assert made - gone == (key in ledger.stored.keys)


@pytest.mark.parametrize("seed", [1, 2])
async def test_whatever_is_cut_what_was_acknowledged_is_there(
    cluster: Cluster, tmp_path: Path, seed: int
) -> None:
    async with fleet_behind(cluster, tmp_path / "s", patience_s=0.2) as (proxy, fleet):
        await torture(fleet, proxy, seed, 20)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10, 20))
async def test_whatever_is_cut_200_times_what_was_acknowledged_is_there(
    cluster: Cluster, tmp_path: Path, seed: int
) -> None:
    async with fleet_behind(cluster, tmp_path / "s", patience_s=0.2) as (proxy, fleet):
        await torture(fleet, proxy, seed, 200)
