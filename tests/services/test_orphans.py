"""Orphans stopped on order (B020), and nodes that were away for a while (B019)."""

from dataclasses import replace

import pytest

from roost.domain.node import NodeName
from roost.domain.replica import ObservedShard, PlacementId, ReplicaState
from roost.errors import Conflict, NotFound
from roost.reconcile.replicas import Wish
from services.small_fleet import FakeAgent, SmallFleet, catalog

pytestmark = pytest.mark.anyio

A = NodeName("a")


async def orphaned(fleet: SmallFleet) -> tuple[FakeAgent, PlacementId]:
    """An engine on `a` that a server with a new database knows nothing of."""
    agent = await fleet.join("a")
    await fleet.apply(catalog())
    await fleet.rest(turns=2)
    (placement,) = fleet.server.ledger.replicas
    await fleet.close()
    fleet.directory = fleet.directory.parent / "emptied"
    await fleet.open()
    await agent.join()
    agent.desired = None
    agent.report()
    await fleet.rest(turns=2)
    assert listed(fleet) == [placement]
    return agent, placement


def listed(fleet: SmallFleet) -> list[str]:
    return [orphan["placement"] for orphan in fleet.server.views.orphans()["orphans"]]


def stopping(fleet: SmallFleet) -> list[tuple[str, str]]:
    return [(held.node, held.state.value) for held in fleet.server.views.allocations()]


async def events(fleet: SmallFleet, what: str) -> list[tuple[str, str, str]]:
    found = await fleet.server.ledger.store.events(limit=100, before=None)
    return [(event.who, event.object, event.why) for event in found if event.what == what]


async def test_a_reaped_orphan_holds_its_gpu_until_its_agent_saw_it_end(fleet: SmallFleet) -> None:
    agent, placement = await orphaned(fleet)
    (reaped,) = await fleet.server.orphans.reap([placement], who="ada")
    assert (reaped.replica, reaped.nodes, reaped.outcome) == ("coder-0", ("a",), "ordered")
    assert listed(fleet) == []
    assert fleet.server.desired.of(A).stop == (placement,)
    assert stopping(fleet) == [("a", "stopping")]
    assert await events(fleet, "orphan.reaped") == [
        ("ada", "coder-0", f"{placement} on a was wanted by nobody")
    ]
    # The engine takes long to end: its card is nobody else's meanwhile.
    await fleet.apply(catalog().replace("coder", "next"))
    await agent.fetch()
    agent.become(ReplicaState.DRAINING)
    for _ in range(3):
        agent.report()
        await fleet.steps()
        await agent.fetch()
    assert fleet.rows() == [("coder-0", "draining", "a"), ("next-0", "pending", None)]
    assert fleet.routes() == []
    agent.becomes = ReplicaState.READY
    await fleet.rest()
    assert fleet.rows() == [("next-0", "ready", "a")]
    assert placement not in agent.engines


async def test_an_order_that_was_answered_outlives_the_server(fleet: SmallFleet) -> None:
    agent, placement = await orphaned(fleet)
    await fleet.server.orphans.reap([placement], who="ada")
    kept = await fleet.server.ledger.store.load()
    assert kept is not None
    assert kept.replicas[placement].wish is Wish.STOP, "on disk before it was answered"
    await fleet.restart()
    assert stopping(fleet) == [("a", "stopping")]
    await fleet.rest()
    assert agent.engines == {}
    assert (fleet.rows(), listed(fleet), stopping(fleet)) == ([], [], [])


async def test_reaping_twice_is_one_order_and_what_is_gone_is_not_found(fleet: SmallFleet) -> None:
    _, placement = await orphaned(fleet)
    await fleet.server.orphans.reap([placement, placement], who="ada")
    (again,) = await fleet.server.orphans.reap([placement], who="bob")
    assert (again.outcome, again.nodes) == ("stopping", ("a",))
    assert len(await events(fleet, "orphan.reaped")) == 1
    await fleet.rest()
    with pytest.raises(NotFound, match=f"there is no orphan {placement}"):
        await fleet.server.orphans.reap([placement], who="bob")
    assert await fleet.server.orphans.reap_all(who="bob") == ()


async def test_of_those_named_all_are_reaped_or_none(fleet: SmallFleet) -> None:
    _, placement = await orphaned(fleet)
    with pytest.raises(NotFound, match="there is no orphan p-nope"):
        await fleet.server.orphans.reap([placement, "p-nope"], who="ada")
    assert listed(fleet) == [placement]
    assert fleet.server.desired.of(A).stop == ()


async def test_what_the_catalog_wants_is_not_reaped_before_and_after_it_is_adopted(
    fleet: SmallFleet,
) -> None:
    _, placement = await orphaned(fleet)
    await fleet.apply(catalog())
    with pytest.raises(Conflict, match="about to be adopted as coder-0: the catalog has coder"):
        await fleet.server.orphans.reap([placement], who="ada")
    (kept,) = await fleet.server.orphans.reap_all(who="ada")
    assert kept.outcome == "kept"
    await fleet.rest()
    with pytest.raises(Conflict, match=f"{placement} is no orphan: it is coder-0") as refused:
        await fleet.server.orphans.reap([placement], who="ada")
    assert refused.value.hint == "to stop the model: roost ctl delete coder"
    assert fleet.rows() == [("coder-0", "ready", "a")]
    assert len(fleet.routes()) == 1


async def test_an_orphan_that_waits_for_its_silent_node_is_still_the_catalogs(
    fleet: SmallFleet,
) -> None:
    agent, placement = await orphaned(fleet)
    await fleet.rest("a", turns=14)  # lost
    await fleet.apply(catalog())
    with pytest.raises(Conflict, match="about to be adopted"):
        await fleet.server.orphans.reap([placement], who="ada")
    await fleet.rest()
    assert (fleet.rows(), list(agent.engines)) == ([("coder-0", "ready", "a")], [placement])


async def test_an_order_waits_for_a_node_that_is_silent(fleet: SmallFleet) -> None:
    agent, placement = await orphaned(fleet)
    await fleet.rest("a", turns=14)
    await fleet.server.orphans.reap_all(who="ada")
    await fleet.rest("a", turns=3)
    assert stopping(fleet) == [("a", "stopping")]
    assert list(agent.engines) == [placement]
    await fleet.rest()
    assert (agent.engines, fleet.rows()) == ({}, [])


async def test_a_node_that_names_anothers_placement_gets_no_order_and_takes_nothing(
    fleet: SmallFleet,
) -> None:
    mine, other = await fleet.join("a"), await fleet.join("b")
    await fleet.apply(catalog())
    await fleet.rest(turns=2)
    ((_, _, where),) = fleet.rows()
    owner, liar = (mine, other) if where == "a" else (other, mine)
    (placement,) = owner.engines
    liar.engines[placement] = replace(owner.engines[placement], pid=1)
    liar.specs[placement] = owner.specs[placement]
    liar.report()
    await fleet.steps()
    with pytest.raises(Conflict, match="is no orphan"):
        await fleet.server.orphans.reap([placement], who="ada")
    await fleet.rest(turns=2)
    assert fleet.rows() == [("coder-0", "ready", where)]
    assert fleet.server.desired.of(NodeName(liar.name)).stop == ()


async def test_a_part_that_is_reported_after_the_order_is_an_orphan_and_holds_its_gpu(
    fleet: SmallFleet,
) -> None:
    agent, placement = await orphaned(fleet)
    spec = agent.specs[placement]
    await fleet.server.orphans.reap([placement], who="ada")
    late = await fleet.join("b")
    part = replace(spec, rank=1, gpu_uuids=("b-0",))
    late.specs[placement] = part
    late.engines[placement] = ObservedShard(
        placement=placement,
        rank=1,
        replica=spec.replica,
        state=ReplicaState.READY,
        since=fleet.clock.time(),
        pid=7,
        port=spec.port,
    )
    late.report()
    assert listed(fleet) == [placement]
    assert sorted(stopping(fleet)) == [("a", "stopping"), ("b", "held")]
    (reaped,) = await fleet.server.orphans.reap([placement], who="ada")
    assert (reaped.outcome, reaped.nodes) == ("ordered", ("b",))
    assert fleet.server.ledger.replicas[placement].nodes == ("a", "b")
    assert sorted(stopping(fleet)) == [("a", "stopping"), ("b", "stopping")]
    await fleet.rest()
    assert (agent.engines, late.engines, fleet.rows()) == ({}, {}, [])


async def test_an_orphan_that_claims_the_port_of_a_replica_is_reaped_all_the_same(
    fleet: SmallFleet,
) -> None:
    await fleet.join("a")
    await fleet.apply(catalog())
    await fleet.rest(turns=2)
    ((running, mine),) = fleet.server.ledger.replicas.items()
    (route,) = fleet.routes()
    other = await fleet.join("b")
    fake = PlacementId("p-claims")
    other.specs[fake] = replace(
        fleet.agents["a"].specs[running], placement=fake, gpu_uuids=("b-0",), index=5
    )
    other.engines[fake] = replace(fleet.agents["a"].engines[running], placement=fake)
    other.report()
    (reaped,) = await fleet.server.orphans.reap_all(who="ada")
    assert (reaped.placement, reaped.nodes, reaped.outcome) == (fake, ("b",), "ordered")
    await fleet.rest()
    assert other.engines == {}
    assert fleet.routes() == [route]
    assert fleet.server.ledger.replicas[running].shards == mine.shards


@pytest.mark.parametrize("silent_turns", [6, 14])
async def test_an_engine_whose_model_was_deleted_while_its_node_was_cut_off_is_stopped(
    fleet: SmallFleet, silent_turns: int
) -> None:
    """B020: GPU held and never offered until the exit is confirmed, never routed, then free.

    Also after the server was restarted meanwhile; late (6 turns) or lost (14 turns).
    """
    agent = await fleet.join("a")
    await fleet.apply(catalog())
    await fleet.rest(turns=2)
    (placement,) = agent.engines
    await fleet.rest("a", turns=silent_turns)
    await fleet.server.operations.delete_model("coder", who="ada")  # type: ignore[arg-type]
    await fleet.steps()
    assert fleet.routes() == []
    await fleet.restart()
    await fleet.apply(catalog().replace("coder", "next"))
    await fleet.rest("a", turns=2)
    assert stopping(fleet) == [("a", "stopping")]
    assert fleet.rows() == [("coder-0", "draining", "a"), ("next-0", "pending", None)]
    # Traffic is back: its report lists the engine, which is ordered to stop and takes its time.
    stranger = replace(agent.engines[placement], placement=PlacementId("p-strange"), pid=1)
    agent.report()
    await fleet.steps()
    await agent.fetch()
    assert agent.desired is not None
    assert agent.desired.stop == (placement,)
    agent.become(ReplicaState.DRAINING)
    agent.report()
    await fleet.steps()
    assert fleet.rows() == [("coder-0", "draining", "a"), ("next-0", "pending", None)]
    assert fleet.routes() == []
    # What nobody here started is in no order, though it is on the same node.
    agent.engines[stranger.placement] = stranger
    agent.specs[stranger.placement] = replace(
        agent.specs[placement], placement=stranger.placement, gpus=(), gpu_uuids=()
    )
    agent.becomes = ReplicaState.READY
    await fleet.rest()
    assert fleet.rows() == [("next-0", "ready", "a")]
    assert len(fleet.routes()) == 1
    assert placement not in agent.engines
    assert stranger.placement in agent.engines


async def test_a_replica_is_routed_again_within_two_cycles_of_its_nodes_return(
    fleet: SmallFleet,
) -> None:
    """B019: 40 s of silence, an engine that never stopped; no restart, nothing to be done."""
    agent = await fleet.join("a")
    await fleet.apply(catalog())
    await fleet.rest(turns=2)
    (placement,) = map(PlacementId, fleet.routes())
    engine = agent.engines[placement]
    await fleet.rest("a", turns=8)
    assert fleet.server.inventory.status(A).value == "not_ready"
    await fleet.rest(turns=2)
    assert fleet.routes() == [placement]
    assert fleet.rows() == [("coder-0", "ready", "a")]
    assert agent.engines == {placement: engine}
    assert fleet.server.ledger.replicas[placement].restarts == 0


async def test_a_replica_whose_node_was_lost_is_routed_again_when_that_returns(
    fleet: SmallFleet,
) -> None:
    """B019, longer: past the limit at which it is given up, with no other place to go."""
    agent = await fleet.join("a")
    await fleet.apply(catalog())
    await fleet.rest(turns=2)
    (placement,) = map(PlacementId, fleet.routes())
    engine = agent.engines[placement]
    await fleet.rest("a", turns=14)
    assert fleet.server.inventory.status(A).value == "lost"
    assert fleet.routes() == []
    await fleet.rest(turns=2)
    assert fleet.routes() == [placement]
    assert agent.engines == {placement: engine}
