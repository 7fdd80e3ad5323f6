from dataclasses import replace

import pytest

from reconcile.fleet_twin import Twin, model, node, orphan, profile
from roost.domain.node import NodeName
from roost.domain.profile import ProfileName
from roost.domain.replica import ReplicaState
from roost.placement import plan
from roost.placement.decision import Outcome
from roost.reconcile.actions import Adopt, Drain, Lose, Place, Release, Return
from roost.reconcile.replicas import Wish
from roost.reconcile.schedule import decided

A, B = NodeName("a"), NodeName("b")
OTHER = profile(args=("--seed", "7"))


def test_a_wanted_replica_is_placed_once_and_says_why() -> None:
    twin = Twin.of([node("a")], [model()])
    (action,) = twin.step().actions
    assert isinstance(action, Place)
    assert action.because
    assert not twin.step().actions


def test_what_fits_nowhere_waits_and_is_reported_with_its_decision() -> None:
    twin = Twin.of([node("a", gpus=0)], [model()])
    done = twin.step()
    assert not done.actions
    assert [(one.decision.model, one.index) for one in done.waiting] == [("m", 0)]


def test_nothing_is_placed_before_the_nodes_have_reported() -> None:
    twin = Twin.of([node("a")], [model()])
    twin.settled = False
    assert not twin.step().actions


def test_a_lost_node_gets_its_replica_replaced_and_its_gpus_stay_held() -> None:
    twin = Twin.of([node("a", 1), node("b", 1)], [model()])
    twin.settle()
    (first,) = twin.running()
    twin.lost.add(first.nodes[0])
    done = twin.step()
    assert [type(action) for action in done.actions] == [Lose, Place]
    assert "silent for 61 s" in done.actions[0].because
    assert twin.replicas[first.placement].wish is Wish.LOST
    assert twin.running()[0].nodes != first.nodes


def test_with_nowhere_to_go_a_lost_replica_is_back_with_its_node() -> None:
    twin = Twin.of([node("a", 1)], [model()])
    twin.settle()
    twin.lost.add(A)
    twin.settle()
    assert not twin.running()
    twin.lost.clear()
    assert [type(a) for a in twin.step().actions] == [Return]
    assert len(twin.running()) == 1


def lose_and_replace() -> tuple[Twin, str]:
    twin = Twin.of([node("a", 1), node("b", 1)], [model()])
    twin.settle()
    (old,) = twin.running()
    twin.lost.add(old.nodes[0])
    twin.step()
    return twin, old.placement


@pytest.mark.parametrize(
    ("old_state", "new_state", "stays"),
    [
        (ReplicaState.READY, ReplicaState.READY, "new"),
        (ReplicaState.READY, ReplicaState.LOADING, "old"),
        (ReplicaState.STARTING, ReplicaState.READY, "new"),
        (ReplicaState.FAILED, ReplicaState.LOADING, "new"),
    ],
)
def test_when_a_node_returns_the_ready_copy_stays_and_of_two_the_newer(
    old_state: ReplicaState, new_state: ReplicaState, stays: str
) -> None:
    twin, old = lose_and_replace()
    ids = {r.placement: "old" if r.placement == old else "new" for r in twin.replicas.values()}
    for placement, which in ids.items():
        twin.become(placement, old_state if which == "old" else new_state)
    twin.lost.clear()
    ready_before = {p for p, r in twin.replicas.items() if r.state is ReplicaState.READY}
    twin.step()
    assert [ids[r.placement] for r in twin.running()] == [stays]
    # At no moment between return and end is there nobody to route to.
    assert not ready_before or twin.running()[0].placement in ready_before
    twin.settle()
    assert len(twin.replicas) == 1


def test_three_placings_of_one_replica_end_as_one() -> None:
    twin = Twin.of([node("a", 1), node("b", 1), node("c", 1)], [model()])
    twin.settle()
    for _ in range(2):
        twin.lost.add(twin.running()[0].nodes[0])
        twin.step()
        twin.serve()
    assert len(twin.replicas) == 3
    twin.lost.clear()
    twin.settle()
    assert len(twin.replicas) == len(twin.running()) == 1


def test_scaling_down_takes_what_is_not_ready_first_then_the_cordoned_then_the_newest() -> None:
    twin = Twin.of([node("a"), node("b")], [model(replicas=4)])
    twin.settle()
    by_index = {r.index: r for r in twin.running()}
    twin.become(by_index[1].placement, ReplicaState.LOADING)
    victims = []
    for wanted in (3, 2):
        twin.want(model(replicas=wanted))
        (action,) = twin.step().actions
        assert isinstance(action, Drain)
        victims.append(twin.replicas[action.placement].index)
        if wanted == 3:
            where = by_index[0].nodes[0]
            twin.nodes[where] = replace(twin.nodes[where], cordoned=True)
    assert victims[0] == 1
    assert twin.replicas[by_index[victims[1]].placement].nodes[0] == by_index[0].nodes[0]


def test_a_plan_of_fewer_replicas_keeps_those_that_the_next_step_keeps() -> None:
    twin = Twin.of([node("a", 4)], [model(replicas=3)])
    twin.settle()
    twin.become(twin.running()[0].placement, ReplicaState.FAILED)
    twin.want(model(replicas=2))
    planned = decided(twin.world(), plan)
    assert [(one.index, one.decision.outcome) for one in planned] == [
        (1, Outcome.KEPT),
        (2, Outcome.KEPT),
    ]
    twin.settle()
    assert [r.index for r in twin.running()] == [one.index for one in planned]


def test_a_plan_replaces_what_the_next_step_loses() -> None:
    twin = Twin.of([node("a", 1), node("b", 1)], [model()])
    twin.settle()
    (first,) = twin.running()
    twin.lost.add(first.nodes[0])
    (planned,) = decided(twin.world(), plan)
    assert planned.decision.outcome is Outcome.PLACED
    twin.step()
    assert twin.running()[0].nodes == tuple(s.node for s in planned.decision.shards)


def test_indices_are_names_that_stay_and_the_lowest_free_one_is_given_next() -> None:
    twin = Twin.of([node("a", 4)], [model(replicas=3)])
    twin.settle()
    twin.become(twin.running()[0].placement, ReplicaState.FAILED)
    twin.want(model(replicas=2))
    twin.settle()
    assert [r.index for r in twin.running()] == [1, 2]
    assert not twin.step().actions
    twin.want(model(replicas=3))
    twin.settle()
    assert [r.index for r in twin.running()] == [0, 1, 2]


def test_a_deleted_model_drains_and_its_place_is_free_only_when_it_is_gone() -> None:
    twin = Twin.of([node("a", 1)], [model()])
    twin.settle()
    twin.models.clear()
    twin.want(model("next"))
    assert [type(a) for a in twin.step().actions] == [Drain]
    assert not twin.running("next")
    twin.serve()
    assert [type(a) for a in twin.step().actions] == [Release, Place]


def test_a_deleted_model_is_stopped_on_a_lost_node_too_once_it_returns() -> None:
    twin = Twin.of([node("a", 1)], [model()])
    twin.settle()
    twin.lost.add(A)
    twin.step()
    twin.models.clear()
    twin.settle()
    (left,) = twin.replicas.values()
    assert left.wish is Wish.STOP
    twin.lost.clear()
    twin.settle()
    assert not twin.replicas


def test_scaling_down_also_gives_up_the_copy_that_is_lost() -> None:
    twin = Twin.of([node("a", 1), node("b", 1)], [model(replicas=2)])
    twin.settle()
    lost = twin.running()[0]
    twin.lost.add(lost.nodes[0])
    twin.settle()
    assert twin.replicas[lost.placement].wish is Wish.LOST
    twin.want(model(replicas=1))
    twin.settle()
    assert twin.replicas[lost.placement].wish is Wish.STOP


def test_a_changed_profile_is_replaced_beside_the_old_one_where_there_is_room() -> None:
    twin = Twin.of([node("a", 2)], [model()])
    twin.settle()
    (old,) = twin.running()
    twin.want(model("m", 1, OTHER))
    assert [type(a) for a in twin.step().actions] == [Place]
    assert twin.replicas[old.placement].is_ready
    assert not twin.step().actions, "the old one serves until the new one is ready"
    twin.settle()
    (new,) = twin.running()
    assert new.profile == OTHER
    assert len(twin.replicas) == 1


def test_without_room_for_both_the_old_one_goes_first() -> None:
    twin = Twin.of([node("a", 1)], [model()])
    twin.settle()
    twin.want(model("m", 1, OTHER))
    assert [type(a) for a in twin.step().actions] == [Drain]
    twin.settle()
    assert [r.profile for r in twin.running()] == [OTHER]


def test_what_serves_is_not_stopped_for_a_profile_that_fits_nowhere() -> None:
    twin = Twin.of([node("a", 1)], [model()])
    twin.settle()
    twin.want(model("m", 1, profile(gpus=8)))
    assert not twin.step().actions
    assert twin.running()[0].is_ready


def test_of_several_replicas_one_at_a_time_is_replaced() -> None:
    twin = Twin.of([node("a", 4)], [model(replicas=4)])
    twin.settle()
    least = []
    twin.check = lambda t: least.append(sum(r.is_ready for r in t.running()))
    twin.want(model("m", 4, OTHER))
    twin.settle()
    assert min(least) == 3
    assert [r.profile for r in twin.running()] == [OTHER] * 4


def test_while_one_makes_room_for_its_successor_no_other_is_touched() -> None:
    twin = Twin.of([node("a", 3)], [model(replicas=3)])
    twin.settle()
    twin.want(model("m", 3, OTHER))
    assert [type(a) for a in twin.step().actions] == [Drain]
    assert not twin.step().actions, "the first has not ended yet"
    twin.serve()
    assert [type(a) for a in twin.step().actions] == [Release, Place]
    assert not twin.step().actions, "its successor is not ready yet"


@pytest.mark.parametrize("change", [{"priority": 5}, {"slots": 3}, {"drain_timeout_s": 5.0}])
def test_what_the_engine_does_not_see_restarts_nothing(change: dict[str, float]) -> None:
    twin = Twin.of([node("a", 2)], [model()])
    twin.settle()
    twin.want(model("m", 1, replace(profile(), **change)))  # type: ignore[arg-type]  # one key each
    assert not twin.step().actions


def test_a_replica_is_not_moved_because_a_better_profile_has_room_now() -> None:
    cpu = profile("cpu", gpus=0)
    best = replace(profile("gpu"), priority=100)
    twin = Twin.of([node("a", 0)], [model("m", 1, best, cpu)])
    twin.settle()
    twin.nodes[B] = node("b", 2)
    assert not twin.step().actions


def test_a_draining_node_is_left_one_replica_at_a_time_and_elsewhere_first() -> None:
    twin = Twin.of([node("a", 2), node("b", 2)], [model(replicas=2)])
    twin.settle()
    where = twin.running()[0].nodes[0]
    twin.nodes[where] = replace(twin.nodes[where], cordoned=True, draining=True)
    least = []
    twin.check = lambda t: least.append(sum(r.is_ready for r in t.running()))
    twin.settle()
    assert min(least) == 2
    assert all(where not in r.nodes for r in twin.running())


def test_a_draining_node_is_left_even_when_there_is_no_other_place() -> None:
    twin = Twin.of([node("a", 1)], [model()])
    twin.settle()
    twin.nodes[A] = replace(twin.nodes[A], cordoned=True, draining=True)
    twin.settle()
    assert not twin.replicas


def test_going_back_to_the_old_profile_keeps_what_serves() -> None:
    twin = Twin.of([node("a", 2)], [model()])
    twin.settle()
    (old,) = twin.running()
    twin.want(model("m", 1, OTHER))
    twin.step()
    twin.want(model())
    twin.settle()
    assert [r.placement for r in twin.running()] == [old.placement]


def test_a_running_engine_of_the_same_replica_and_profile_is_adopted_not_placed() -> None:
    twin = Twin.of([node("a", 2)], [model()])
    twin.orphans["old-m-0"] = orphan("m", "a")  # type: ignore[index]  # a NewType of str
    (action,) = twin.step().actions
    assert isinstance(action, Adopt)
    assert [r.placement for r in twin.running()] == ["old-m-0"]
    assert not twin.step().actions


def test_an_engine_on_a_node_that_is_lost_is_not_adopted() -> None:
    twin = Twin.of([node("a", 1), node("b", 1)], [model()])
    twin.orphans["old-m-0"] = orphan("m", "a")  # type: ignore[index]  # a NewType of str
    twin.lost.add(A)
    (action,) = twin.step().actions
    assert isinstance(action, Place)


@pytest.mark.parametrize(
    "stranger",
    [
        orphan("m", "a", of=OTHER),
        orphan("other", "a"),
        orphan("m", "a", index=4),
        replace(orphan("m", "a"), usable=False),
        orphan("m", "a", of=replace(profile(), name=ProfileName("renamed"))),
    ],
)
def test_any_other_engine_is_left_alone_and_nothing_is_placed_over_it(stranger: object) -> None:
    twin = Twin.of([node("a", 1)], [model()])
    twin.orphans["x"] = stranger  # type: ignore[index,assignment]  # parametrised
    done = twin.step()
    assert not done.actions
    assert len(done.waiting) == 1


def test_half_of_a_group_is_no_whole_to_adopt() -> None:
    whole = orphan("m", "a")
    node_name, spec = whole.shards[0]
    group = replace(spec, profile=replace(spec.profile, nodes=2))
    assert not replace(whole, shards={0: (node_name, group)}).is_whole
    other = replace(group, rank=1)
    assert replace(whole, shards={0: (node_name, group), 1: (B, other)}).is_whole
