"""A replica on two nodes, from its place to its end, by the server's services."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest

from roost.domain.model import ModelName
from roost.domain.node import NodeName
from roost.domain.replica import Desired, ReplicaState, ShardSpec
from services.small_fleet import FakeAgent, SmallFleet

pytestmark = pytest.mark.anyio

CATALOG = """
models:
- name: wide
  profiles:
  - name: two
    engine: vllm
    source: model
    gpu_class: h100
    nodes: 2
    tensor_parallel: 2
    pipeline_parallel: 1
"""
ALONE = """
models:
- name: alone
  profiles:
  - {name: one, engine: vllm, source: model, gpu_class: h100}
"""
PAUSES = ((0, 2), (1, 3), (3, 5), (6, 9))


@dataclass(kw_only=True)
class Group:
    """The replica, and the agents of its ranks."""

    fleet: SmallFleet
    ranks: tuple[FakeAgent, ...]

    @property
    def row(self) -> dict[str, Any]:
        """The only one of it in `ctl replicas`."""
        (row,) = (row for row in self.fleet.server.views.replicas() if row["model"] == "wide")
        return row

    def desired(self, rank: int) -> Desired:
        return self.fleet.server.desired.of(NodeName(self.ranks[rank].name))

    def specs(self) -> list[ShardSpec]:
        """What both ranks' agents are told to run."""
        found = [spec for rank in (0, 1) for spec in self.desired(rank).run]
        assert [spec.rank for spec in found] == [0, 1]
        return found

    def told_to_stop(self) -> list[bool]:
        return [bool(self.desired(rank).stop) for rank in range(len(self.ranks))]

    def held(self) -> list[str]:
        """The nodes on which it holds something."""
        allocations = self.fleet.server.views.nodes()["allocations"]
        return sorted(one["node"] for one in allocations if one["replica"] == "wide-0")

    async def fail(self, rank: int, cause: str) -> None:
        """A rank reports that it ended."""
        self.ranks[rank].become(ReplicaState.FAILED, cause=cause, pid=None)
        self.ranks[rank].becomes = ReplicaState.READY
        self.ranks[rank].report()
        await self.fleet.steps()

    async def obeys(self, rank: int) -> None:
        """An agent does what it is told, and says so; the server knows that it was told before."""
        agent = self.ranks[rank]
        await agent.turn()
        await agent.turn()
        await self.fleet.steps()


async def started(fleet: SmallFleet, *more: str) -> Group:
    """Ready on two nodes, with these others beside them."""
    for name in ("a", "b", *more):
        await fleet.join(name)
    await fleet.apply(CATALOG)
    await fleet.rest(turns=2)
    (row,) = fleet.server.views.replicas()
    assert row["state"] == "ready"
    names = [shard["node"] for shard in row["shards"]]
    return Group(fleet=fleet, ranks=tuple(fleet.agents[name] for name in names))


async def delete(fleet: SmallFleet) -> None:
    await fleet.server.operations.delete_model(ModelName("wide"), who="test")
    await fleet.steps()


def moment(text: str) -> float:
    return datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC).timestamp()


# Its start.


async def test_every_rank_is_told_who_the_others_are_and_where_they_meet(fleet: SmallFleet) -> None:
    group = await started(fleet)
    first, second = group.specs()
    assert first.peers == second.peers == ("127.0.0.1", "127.0.0.1")
    assert first.group_port == second.group_port
    assert len({first.port, second.port, first.group_port}) == 3
    assert (first.generation, first.hold) == (second.generation, second.hold) == (0, False)


async def test_it_is_ready_and_routed_to_its_first_rank_once_both_are_ready(
    fleet: SmallFleet,
) -> None:
    agents = [await fleet.join("a"), await fleet.join("b")]
    for agent in agents:
        agent.becomes = ReplicaState.LOADING
    await fleet.apply(CATALOG)
    await fleet.rest(turns=2)
    agents[0].become(ReplicaState.READY)
    agents[0].report()
    await fleet.steps()
    assert [row["state"] for row in fleet.server.views.replicas()] == ["loading"]
    assert fleet.routes() == []
    agents[1].become(ReplicaState.READY)
    agents[1].report()
    await fleet.steps()
    (row,) = fleet.server.views.replicas()
    assert row["state"] == "ready"
    assert fleet.routes() == [row["placement"]]
    (route,) = fleet.server.routing.snapshot().models[0].routes
    assert route.port == row["shards"][0]["port"]


# Its end.


async def test_rank_0_is_told_to_stop_first_and_each_rank_releases_its_own_node(
    fleet: SmallFleet,
) -> None:
    group = await started(fleet)
    first, second = (agent.name for agent in group.ranks)
    await delete(fleet)
    assert group.row["state"] == "draining"
    assert group.told_to_stop() == [True, False]
    assert [spec.rank for spec in group.desired(1).run] == [1], "it goes on meanwhile"

    await group.obeys(1)
    assert group.held() == sorted([first, second]), "nothing of it is gone"
    await group.obeys(0)
    assert group.held() == [second]
    assert [shard["rank"] for shard in group.row["shards"]] == [1]
    assert group.told_to_stop() == [False, True]

    # What rank 0 held is free while rank 1 still has its card.
    await fleet.apply(ALONE)
    await fleet.steps()
    assert ("alone-0", "placed", first) in fleet.rows()
    await group.obeys(1)
    assert [row[0] for row in fleet.rows()] == ["alone-0"]


async def test_a_rank_that_its_agent_does_not_list_is_not_gone_until_it_was_told_to_stop(
    fleet: SmallFleet,
) -> None:
    group = await started(fleet)
    await delete(fleet)
    group.ranks[1].engines.clear()
    group.ranks[1].report()
    await fleet.steps()
    assert len(group.held()) == 2
    await group.obeys(0)
    await group.obeys(1)
    assert fleet.rows() == []


@pytest.mark.parametrize("rank", [0, 1])
async def test_with_a_lost_node_the_other_rank_is_told_at_once_and_its_node_is_free(
    fleet: SmallFleet, rank: int
) -> None:
    group = await started(fleet, "c")
    lost, left = group.ranks[rank], group.ranks[1 - rank]
    placement = group.row["placement"]
    await fleet.rest(lost.name, turns=11)
    assert [(row[0], row[1]) for row in fleet.rows()] == [("wide-0", "ready")], "not lost yet"
    assert fleet.routes() == [placement]
    fleet.clock.advance(5)
    fleet.server.inventory.tick()
    await fleet.steps()
    assert group.told_to_stop() == [True, True]
    assert fleet.routes() == []
    await fleet.rest(lost.name, turns=3)

    old, new = sorted(
        fleet.server.views.replicas(), key=lambda row: bool(row["placement"] != placement)
    )
    assert old["state"] == "draining"
    assert "is silent for" in old["because"]
    assert [shard["node"] for shard in old["shards"]] == [lost.name]
    assert new["state"] == "ready"
    assert {shard["node"] for shard in new["shards"]} == {left.name, "c"}

    # It comes back with its engine, hears that it is to go, and says that it is gone.
    assert placement in lost.engines
    await fleet.rest()
    assert placement not in lost.engines
    assert [row["placement"] for row in fleet.server.views.replicas()] == [new["placement"]]


async def test_a_node_that_is_lost_while_the_replica_stops_keeps_nobody_waiting(
    fleet: SmallFleet,
) -> None:
    group = await started(fleet)
    first, second = (agent.name for agent in group.ranks)
    await delete(fleet)
    assert group.told_to_stop() == [True, False]
    await fleet.rest(first, turns=15)
    assert group.held() == [first]
    assert [shard["node"] for shard in group.row["shards"]] == [first]
    assert second not in {row[2] for row in fleet.rows()}


# Another start.


async def test_a_failed_rank_holds_both_until_both_wait_and_the_pause_is_over(
    fleet: SmallFleet,
) -> None:
    group = await started(fleet)
    placement, second = group.row["placement"], group.ranks[1].name
    await group.fail(1, "exit status 1: CUDA out of memory")
    row = group.row
    assert (row["state"], row["placement"]) == ("failed", placement)
    assert row["cause"] == f"rank 1 on {second}: exit status 1: CUDA out of memory"
    assert row["next_try_at"] is not None
    assert 0 <= fleet.clock.now + 1 - moment(row["next_try_at"]) < 1.25
    assert [(spec.generation, spec.hold) for spec in group.specs()] == [(1, True)] * 2
    assert fleet.routes() == []

    fleet.clock.advance(1)
    await group.obeys(1)
    assert all(spec.hold for spec in group.specs()), "rank 0 is in the start before"
    await group.obeys(0)
    assert [(spec.generation, spec.hold) for spec in group.specs()] == [(1, False)] * 2
    assert group.row["next_try_at"] is None
    await group.obeys(0)
    await group.obeys(1)
    assert (group.row["state"], group.row["cause"]) == ("ready", None)
    assert fleet.routes() == [placement]


async def test_pauses_double_and_the_third_failure_in_a_row_is_told_as_a_crash_loop(
    fleet: SmallFleet,
) -> None:
    group = await started(fleet)
    failure = "exit status 1: no such key"
    pauses = []
    for _ in range(4):
        await group.fail(0, failure)
        tried = moment(group.row["next_try_at"])
        pauses.append(tried - int(fleet.clock.now))
        cause = group.row["cause"]
        await fleet.rest(turns=4)
        assert group.row["state"] == "ready"
    looping = f"crash-looping, 4 failures in a row, rank 0 on {group.ranks[0].name}: "
    assert cause == looping + failure
    # 1, 2, 4 and 8 s, less up to a quarter; told in whole seconds.
    assert [one in range(*pair) for one, pair in zip(pauses, PAUSES, strict=True)] == [True] * 4


async def test_a_server_that_starts_again_goes_on_with_the_pause_of_a_failed_group(
    fleet: SmallFleet,
) -> None:
    group = await started(fleet)
    await group.fail(1, "exit status 1")
    told = ("placement", "state", "cause", "next_try_at")
    before = [group.row[word] for word in told]
    await fleet.restart()
    assert [group.row[word] for word in told] == before
    assert [(spec.generation, spec.hold) for spec in group.specs()] == [(1, True)] * 2
    await fleet.rest(turns=5)
    assert group.row["state"] == "ready"
    assert [spec.generation for spec in group.specs()] == [1, 1]


async def test_where_the_ranks_meet_is_moved_when_it_is_taken_and_nobody_has_failed(
    fleet: SmallFleet,
) -> None:
    agents = [await fleet.join("a"), await fleet.join("b")]
    await fleet.apply(CATALOG)
    await fleet.steps()
    group = Group(fleet=fleet, ranks=tuple(agents))
    placement = group.row["placement"]
    before = group.specs()
    for agent in agents:
        await agent.turn()
    # Its agent found one of rank 0's two ports taken, and doesn't say which.
    agents[0].become(ReplicaState.PLACED, port_taken=True, pid=None, cause="port 21001 is taken")
    agents[0].becomes = ReplicaState.READY
    agents[0].report()
    await fleet.steps()
    moved = group.specs()
    assert {moved[0].port, moved[0].group_port}.isdisjoint({before[0].port, before[0].group_port})
    assert moved[1].group_port == moved[0].group_port
    assert moved[1].port == before[1].port
    assert [(spec.generation, spec.hold) for spec in moved] == [(1, True)] * 2
    assert (group.row["state"], group.row["next_try_at"]) == ("placed", None)
    agents[0].report()
    await fleet.steps()
    assert group.specs() == moved, "told once more, it is moved once all the same"

    await fleet.rest(turns=3)
    assert (group.row["state"], group.row["placement"]) == ("ready", placement)
    assert [(spec.generation, spec.port) for spec in group.specs()] == [
        (1, spec.port) for spec in moved
    ]
    (replica,) = fleet.server.ledger.replicas.values()
    assert replica.failures == 0
