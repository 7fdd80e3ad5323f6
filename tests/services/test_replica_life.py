from dataclasses import replace

import pytest

from roost.domain.replica import Load, ReplicaState
from roost.reconcile.replicas import Wish
from services.small_fleet import FakeAgent, SmallFleet, catalog

pytestmark = pytest.mark.anyio


def placements(fleet: SmallFleet) -> set[str]:
    return set(fleet.server.ledger.replicas)


async def test_a_replica_is_placed_started_routed_drained_and_released(fleet: SmallFleet) -> None:
    agent = await fleet.join("a")
    agent.becomes = ReplicaState.LOADING
    await fleet.apply(catalog())
    await fleet.rest(turns=2)
    assert fleet.rows() == [("coder-0", "loading", "a")]
    assert fleet.routes() == []
    assert fleet.server.routing.snapshot().models[0].state == "loading"
    agent.become(ReplicaState.READY)
    await fleet.turn()
    assert fleet.rows() == [("coder-0", "ready", "a")]
    (placement,) = fleet.routes()
    await fleet.server.operations.delete_model("coder", who="test")  # type: ignore[arg-type]
    await fleet.steps()
    assert fleet.rows() == [("coder-0", "draining", "a")]
    assert fleet.server.desired.of("a").stop == (placement,)  # type: ignore[arg-type]
    await fleet.rest()
    assert fleet.rows() == []
    assert fleet.server.desired.of("a").stop == ()  # type: ignore[arg-type]


async def test_its_gpu_is_offered_to_nobody_until_the_agent_has_reported_it_gone(
    fleet: SmallFleet,
) -> None:
    agent = await fleet.join("a")
    await fleet.apply(catalog())
    await fleet.rest(turns=2)
    await fleet.server.operations.delete_model("coder", who="test")  # type: ignore[arg-type]
    await fleet.apply(catalog().replace("coder", "next"))
    await fleet.steps()
    # It has the order and its engine takes long to end.
    await agent.fetch()
    agent.become(ReplicaState.DRAINING)
    for _ in range(4):
        agent.report()
        await fleet.steps()
        await agent.fetch()
    assert fleet.rows() == [("coder-0", "draining", "a"), ("next-0", "pending", None)]
    agent.engines.clear()
    agent.report()
    await fleet.steps()
    assert fleet.rows() == [("next-0", "placed", "a")]


async def test_a_restarted_server_finds_everything_and_moves_nothing(fleet: SmallFleet) -> None:
    await fleet.join("a")
    await fleet.join("b")
    await fleet.apply(catalog(replicas=2))
    await fleet.rest(turns=2)
    before, routes = fleet.rows(), fleet.routes()
    port = {r.shards[0].port for r in fleet.server.ledger.replicas.values()}
    await fleet.restart()
    assert fleet.rows() == before
    assert fleet.routes() == routes, "routed from the first moment"
    await fleet.rest()
    assert fleet.rows() == before
    assert {r.shards[0].port for r in fleet.server.ledger.replicas.values()} == port


async def test_a_replica_that_has_measured_nothing_is_routed_and_shown_with_what_it_lacks(
    fleet: SmallFleet,
) -> None:
    """B036, B035: not measured is no number, in a route and in a row."""
    agent = await fleet.join("a")
    await fleet.apply(catalog())
    await fleet.rest(turns=2)
    agent.become(ReplicaState.READY, load=None, unmeasured=("vllm:kv_cache_usage_perc",))
    await fleet.turn()
    assert len(fleet.routes()) == 1
    (route,) = fleet.server.routing.snapshot().models[0].routes
    assert (route.running, route.waiting, route.kv_usage) == (None, None, None)
    (row,) = fleet.server.views.replicas()
    assert (row["state"], row["running"], row["kv_usage"]) == ("ready", None, None)
    assert row["unmeasured"] == ["vllm:kv_cache_usage_perc"]
    agent.become(ReplicaState.READY, load=Load(running=2, waiting=0), unmeasured=())
    await fleet.turn()
    (row,) = fleet.server.views.replicas()
    assert (row["running"], row["unmeasured"]) == (2, [])


async def silence(fleet: SmallFleet, name: str, seconds: int) -> None:
    await fleet.rest(name, turns=seconds // 5)


async def test_a_lost_node_is_replaced_and_one_copy_stays_when_it_returns(
    fleet: SmallFleet,
) -> None:
    await fleet.join("a")
    await fleet.join("b")
    await fleet.apply(catalog())
    await fleet.rest(turns=2)
    ((_, _, old),) = fleet.rows()
    other = "b" if old == "a" else "a"
    assert old is not None
    await silence(fleet, old, 55)
    assert fleet.rows() == [("coder-0", "ready", old)], "late is not lost"
    assert len(fleet.routes()) == 1, "and still routed"
    await silence(fleet, old, 20)
    assert sorted(fleet.rows()) == [("coder-0", "lost", old), ("coder-0", "ready", other)]
    assert len(fleet.routes()) == 1
    await fleet.rest()
    assert fleet.rows() == [("coder-0", "ready", other)]
    assert not fleet.agents[old].engines, "the old copy was stopped"


async def test_a_node_that_returns_while_its_replacement_loads_keeps_its_replica(
    fleet: SmallFleet,
) -> None:
    await fleet.join("a")
    await fleet.join("b")
    await fleet.apply(catalog())
    await fleet.rest(turns=2)
    ((_, _, old),) = fleet.rows()
    assert old is not None
    (first,) = fleet.routes()
    other = fleet.agents["b" if old == "a" else "a"]
    other.becomes = ReplicaState.LOADING
    await silence(fleet, old, 75)
    assert len(fleet.rows()) == 2
    await fleet.turn()
    assert fleet.routes() == [first]
    await fleet.rest()
    assert fleet.rows() == [("coder-0", "ready", old)]
    assert not other.engines


async def test_a_taken_port_gets_another_and_the_placement_stays(fleet: SmallFleet) -> None:
    agent = await fleet.join("a")
    await fleet.apply(catalog())
    agent.becomes = ReplicaState.STARTING
    await fleet.rest(turns=2)
    (shard,) = fleet.server.desired.of("a").run  # type: ignore[arg-type]
    agent.become(ReplicaState.FAILED, port_taken=True)
    agent.becomes = ReplicaState.READY
    agent.report()
    await fleet.steps()
    (moved,) = fleet.server.desired.of("a").run  # type: ignore[arg-type]
    assert (moved.placement, moved.key) == (shard.placement, shard.key)
    assert moved.port != shard.port
    await fleet.rest(turns=2)
    (again,) = fleet.server.desired.of("a").run  # type: ignore[arg-type]
    assert again == moved
    assert fleet.rows() == [("coder-0", "ready", "a")]


async def test_twenty_replicas_at_once_on_one_node_have_ports_of_their_own(
    fleet: SmallFleet,
) -> None:
    """B030: none that somebody has there, and a route to the one that is used."""
    agent = await fleet.join("a", gpus=20)
    agent.ports_taken = (21000, 21003, 21004)
    agent.report()
    await fleet.apply(catalog(replicas=20))
    await fleet.rest()
    ports = [shard.port for shard in fleet.server.desired.of("a").run]  # type: ignore[arg-type]
    free = [port for port in range(21000, 21023) if port not in agent.ports_taken]
    assert sorted(ports) == free
    assert fleet.rows() == [(f"coder-{index}", "ready", "a") for index in range(20)]
    (model,) = fleet.server.routing.snapshot().models
    assert sorted(route.port for route in model.routes) == free


async def test_a_crash_is_restarted_in_place_and_the_cause_is_shown(fleet: SmallFleet) -> None:
    agent = await fleet.join("a")
    await fleet.apply(catalog())
    await fleet.rest(turns=2)
    (placement,) = fleet.routes()
    agent.become(ReplicaState.FAILED, cause="exited with status 1: out of memory", restarts=1)
    agent.report()
    await fleet.steps()
    assert fleet.routes() == []
    (row,) = fleet.server.views.replicas()
    assert (row["state"], row["restarts"]) == ("failed", 1)
    assert row["cause"] == "exited with status 1: out of memory"
    agent.become(ReplicaState.READY)
    agent.report()
    assert fleet.routes() == [placement]


async def test_a_failed_replica_says_when_its_agent_tries_again_until_it_does(
    fleet: SmallFleet,
) -> None:
    agent = await fleet.join("a")
    await fleet.apply(catalog())
    await fleet.rest(turns=2)
    assert fleet.server.views.replicas()[0]["next_try_at"] is None
    cause = "crash-looping, 6 failures in a row, exit status 1: no such key"
    agent.become(ReplicaState.FAILED, cause=cause, due=1_000_032.0)
    agent.report()
    await fleet.steps()
    (row,) = fleet.server.views.replicas()
    assert (row["state"], row["cause"]) == ("failed", cause)
    assert row["next_try_at"] == "1970-01-12T13:47:12Z"
    agent.become(ReplicaState.STARTING, due=None)
    agent.report()
    await fleet.steps()
    assert fleet.server.views.replicas()[0]["next_try_at"] is None


async def test_a_replica_that_was_never_given_is_not_routed(fleet: SmallFleet) -> None:
    good, bad = await fleet.join("a"), await fleet.join("b")
    await fleet.apply(catalog())
    await fleet.rest(turns=2)
    runs = good if good.engines else bad
    liar = bad if runs is good else good
    # It claims the other's placement, and one that nobody gave.
    (engine,) = runs.engines.values()
    liar.specs = {**runs.specs, "x": next(iter(runs.specs.values()))}
    liar.engines = {
        engine.placement: replace(engine, port=22),
        "x": replace(engine, placement="x", port=7400),  # type: ignore[arg-type]
    }
    routes = fleet.routes()
    liar.report()
    await fleet.steps()
    assert fleet.routes() == routes
    assert [row["shards"][0]["node"] for row in fleet.server.views.replicas()] == [runs.name]


async def test_an_unplaceable_replica_waits_and_is_placed_when_a_node_that_fits_joins(
    fleet: SmallFleet,
) -> None:
    await fleet.join("small", gpus=0)
    await fleet.apply(catalog())
    await fleet.rest(turns=3)
    (row,) = fleet.server.views.replicas()
    assert row["state"] == "pending"
    assert row["cause"]
    explained = await fleet.server.views.explain("coder", brief=False)  # type: ignore[arg-type]
    assert explained["decisions"][0]["outcome"] == "unplaceable"
    await fleet.join("large")
    await fleet.rest(turns=2)
    assert fleet.rows() == [("coder-0", "ready", "large")]


async def test_explain_and_plan_call_a_replica_as_everything_else_does(fleet: SmallFleet) -> None:
    for name in "abc":
        await fleet.join(name)
    await fleet.apply(catalog(replicas=3))
    await fleet.rest(turns=2)
    nodes = {row["index"]: row["shards"][0]["node"] for row in fleet.server.views.replicas()}
    fleet.agents[nodes[0]].become(ReplicaState.LOADING)
    fleet.agents[nodes[0]].report()
    await fleet.steps()
    await fleet.apply(catalog(replicas=2))
    await fleet.rest(turns=2)
    assert [row[0] for row in fleet.rows()] == ["coder-1", "coder-2"], "the one not ready went"
    explained = await fleet.server.views.explain("coder", brief=False)  # type: ignore[arg-type]
    planned = await fleet.server.views.plan(catalog(replicas=2), "c.yaml", brief=True)
    for answer in (explained, planned):
        told = {d["replica"]: d["shards"][0]["node"] for d in answer["decisions"]}
        assert list(told.items()) == [(1, nodes[1]), (2, nodes[2])]


async def test_a_cordon_survives_reports_restarts_and_joining_again(fleet: SmallFleet) -> None:
    agent = await fleet.join("a")
    await fleet.server.operations.cordon("a", reason="fan", drain=False, who="x")  # type: ignore[arg-type]
    agent.report()
    await fleet.restart()
    agent.started_at += 1
    await agent.join()
    agent.report()
    await fleet.steps()
    node = fleet.server.views.node("a")  # type: ignore[arg-type]
    assert (node["cordoned"], node["cordon_reason"]) == (True, "fan")


async def test_a_drained_node_ends_empty(fleet: SmallFleet) -> None:
    await fleet.join("a")
    await fleet.join("b")
    await fleet.apply(catalog())
    await fleet.rest(turns=2)
    ((_, _, where),) = fleet.rows()
    await fleet.server.operations.cordon(where, reason=None, drain=True, who="x")  # type: ignore[arg-type]
    await fleet.rest()
    ((_, state, now),) = fleet.rows()
    assert (state, now) == ("ready", "b" if where == "a" else "a")


async def emptied(fleet: SmallFleet) -> None:
    """The directory is lost; agents and engines go on."""
    await fleet.close()
    fleet.directory = fleet.directory.parent / "emptied"
    await fleet.open()


async def rejoin(agent: FakeAgent) -> None:
    await agent.join()
    agent.desired = None
    agent.report()


async def test_an_emptied_directory_adopts_what_runs_without_a_restart(fleet: SmallFleet) -> None:
    for name in "ab":
        await fleet.join(name)
    await fleet.apply(catalog(replicas=2))
    await fleet.rest(turns=2)
    before = placements(fleet)
    shards = {p: r.shards[0] for p, r in fleet.server.ledger.replicas.items()}
    engines = {name: dict(agent.engines) for name, agent in fleet.agents.items()}
    await emptied(fleet)
    assert fleet.server.routing.snapshot().adopting
    for agent in fleet.agents.values():
        await rejoin(agent)
    await fleet.rest(turns=2)
    assert not placements(fleet)
    assert len(fleet.server.views.orphans()["orphans"]) == 2
    assert {name: agent.engines for name, agent in fleet.agents.items()} == engines
    await fleet.apply(catalog(replicas=2))
    await fleet.steps()
    assert len(fleet.routes()) == 2, "routed at once, without another report"
    await fleet.rest()
    assert placements(fleet) == before
    assert not fleet.server.routing.snapshot().adopting
    assert {name: agent.engines for name, agent in fleet.agents.items()} == engines
    now = {p: r.shards[0] for p, r in fleet.server.ledger.replicas.items()}
    assert {p: (s.port, s.key) for p, s in now.items()} == {
        p: (s.port, s.key) for p, s in shards.items()
    }
    assert len(fleet.routes()) == 2


@pytest.mark.parametrize("gpus", [1, 2])
async def test_nothing_is_placed_over_engines_whose_agent_has_not_heard_that_they_are_unknown(
    fleet: SmallFleet, gpus: int
) -> None:
    agent = await fleet.join("a", gpus=gpus)
    await fleet.apply(catalog())
    await fleet.rest(turns=2)
    engines = dict(agent.engines)
    await emptied(fleet)
    await fleet.apply(catalog())
    await agent.join()
    agent.report()  # by what it was told before the server knew nothing
    await fleet.steps()
    assert not fleet.server.ledger.replicas
    nudged: list[str] = []
    fleet.server.inventory.on_change.append(lambda: nudged.append("now"))
    await agent.fetch()
    agent.report()
    assert nudged, "it has said what they hold"
    await fleet.rest()
    assert agent.engines.keys() == engines.keys() == fleet.server.ledger.replicas.keys()


async def test_what_nobody_asks_for_after_an_emptied_directory_is_left_alone(
    fleet: SmallFleet,
) -> None:
    agent = await fleet.join("a")
    await fleet.apply(catalog())
    await fleet.rest(turns=2)
    await emptied(fleet)
    await rejoin(agent)
    await fleet.apply(catalog(args="['--other']"))
    await fleet.rest()
    assert len(agent.engines) == 1
    assert fleet.rows() == [("coder-0", "pending", None)], "nothing is placed over it"
    assert [o["replica"] for o in fleet.server.views.orphans()["orphans"]] == ["coder-0"]


async def test_an_orphan_at_an_address_that_is_not_its_nodes_is_not_adopted(
    fleet: SmallFleet,
) -> None:
    agent = await fleet.join("a")
    await fleet.apply(catalog())
    await fleet.rest(turns=2)
    await emptied(fleet)
    agent.specs = {p: replace(s, host="169.254.169.254") for p, s in agent.specs.items()}
    await rejoin(agent)
    await fleet.apply(catalog())
    await fleet.rest()
    assert not fleet.routes()


async def test_a_database_put_back_from_an_old_copy_is_a_new_incarnation(
    fleet: SmallFleet,
) -> None:
    agent = await fleet.join("a")
    await fleet.apply(catalog())
    await fleet.rest(turns=2)
    assert agent.desired is not None
    incarnation = agent.desired.incarnation
    # The agent has obeyed a later epoch than the copy knows.
    agent.desired = replace(agent.desired, epoch=agent.desired.epoch + 7)
    fleet.server.start()
    await agent.fetch()
    seen = fleet.server.desired.newer_seen
    assert seen is not None
    await fleet.server.renew(seen)
    await agent.fetch()
    assert agent.desired.incarnation > incarnation
    assert fleet.server.routing.snapshot().adopting
    assert len(agent.engines) == 1
    assert {r.wish for r in fleet.server.ledger.replicas.values()} == {Wish.RUN}


async def test_an_old_copy_that_leads_in_an_epoch_that_was_another_before_is_noticed(
    fleet: SmallFleet,
) -> None:
    agent = await fleet.join("a", gpus=2)
    await fleet.apply(catalog())
    await fleet.rest(turns=2)
    await fleet.close()
    database = fleet.directory / "roost.db"
    copy = database.read_bytes()
    await fleet.open()
    await agent.turn()
    before = agent.desired
    assert before is not None
    await fleet.close()
    database.write_bytes(copy)
    await fleet.open()
    assert fleet.server.ledger.epoch == before.epoch
    # As far as numbers go an agent may even know less than the copy's first revision.
    for revision in (before.revision, 1, 2**40):
        fleet.server.desired.newer_seen = None
        agent.desired = replace(before, revision=revision)
        await agent.fetch()
        assert fleet.server.desired.newer_seen == (before.incarnation, before.epoch)
    agent.desired = None
    fleet.server.desired.newer_seen = None
    await agent.fetch()
    await agent.fetch()
    assert fleet.server.desired.newer_seen is None
