"""Replicas on several nodes: who waits for whom, by example."""

from dataclasses import replace

import pytest

from reconcile.group_twin import Group, group, observed
from roost.domain.node import NodeName
from roost.domain.replica import ReplicaState
from roost.reconcile.actions import Begin, Drain, Restart, applied
from roost.reconcile.engine_life import Health, Phase, next_look
from roost.reconcile.groups import regroup, restart_due
from roost.reconcile.replicas import Replica, Wish, carried, observe

READY, FAILED, PLACED = ReplicaState.READY, ReplicaState.FAILED, ReplicaState.PLACED
STARTING, LOADING = ReplicaState.STARTING, ReplicaState.LOADING
BOTH = frozenset({NodeName("a"), NodeName("b")})


def seen(
    replica: Replica,
    *states: ReplicaState,
    generation: int | None = None,
    causes: tuple[str | None, ...] = (None, None, None),
    now: float = 50.0,
) -> Replica:
    """After a report of every rank."""
    of = replica.generation if generation is None else generation
    return observe(
        replica,
        {
            rank: observed(rank, state, of, pid=7 if state is READY else None, cause=causes[rank])
            for rank, state in enumerate(states)
        },
        now=now,
    )


def after(replica: Replica, *, now: float = 100.0, luck: float = 0.0) -> Replica:
    """After what the server decides about it, which must be something."""
    action = regroup(replica, back=BOTH, now=now, luck=luck)
    assert action is not None
    return applied(action, replica, now=now)


# What a group as a whole is.


@pytest.mark.parametrize(
    ("states", "state"),
    [
        ((READY, READY), READY),
        ((READY, LOADING), LOADING),
        ((STARTING, LOADING), STARTING),
        ((READY, PLACED), PLACED),
        ((READY, FAILED), FAILED),
        ((FAILED, STARTING), FAILED),
    ],
)
def test_a_group_is_as_far_as_its_slowest_rank(
    states: tuple[ReplicaState, ...], state: ReplicaState
) -> None:
    assert seen(group(), *states).state is state


def test_a_rank_of_an_earlier_start_is_not_ready_whatever_it_says() -> None:
    replica = seen(group(generation=3), READY, READY, generation=2)
    assert replica.state is PLACED
    assert not replica.is_ready


def test_a_rank_that_nothing_is_known_of_keeps_a_group_from_being_ready() -> None:
    replica = observe(group(), {0: observed(0, READY), 1: None}, now=50)
    assert replica.state is PLACED


def test_the_cause_names_the_rank_and_node_that_failed_first() -> None:
    replica = seen(group(), READY, READY)
    replica = observe(replica, {1: observed(1, FAILED, cause="CUDA out of memory")}, now=60)
    assert replica.cause == "rank 1 on b: CUDA out of memory"
    replica = observe(replica, {0: observed(0, FAILED, cause="peer closed connection")}, now=61)
    assert replica.cause == "rank 1 on b: CUDA out of memory"


def test_why_it_was_restarted_stays_readable_until_it_is_ready() -> None:
    replica = seen(group(), READY, FAILED, causes=(None, "exit status 1", None))
    held = after(replica)
    begun = after(seen(held, PLACED, PLACED), now=102)
    loading = seen(begun, LOADING, LOADING)
    assert loading.cause == "rank 1 on b: exit status 1"
    assert seen(loading, READY, READY).cause is None


# Failure: of one is everyone's.


def test_a_group_of_which_one_rank_failed_starts_anew_together() -> None:
    replica = seen(group(generation=4), READY, FAILED, causes=(None, "exit status 1", None))
    action = regroup(replica, back=BOTH, now=100, luck=0)
    assert action == Restart(
        placement=replica.placement,
        generation=5,
        failures=1,
        at=101.0,
        because="rank 1 on b: exit status 1",
    )


def test_while_it_waits_it_is_failed_with_the_cause_and_nothing_more_is_decided() -> None:
    held = after(seen(group(), READY, FAILED, causes=(None, "exit status 1", None)))
    assert (held.state, held.cause, held.hold) == (FAILED, "rank 1 on b: exit status 1", True)
    assert restart_due(held, now=100.5) == 0.5
    assert regroup(seen(held, READY, FAILED, generation=0), back=BOTH, now=200, luck=0) is None


@pytest.mark.parametrize(
    ("states", "generation", "now", "begins"),
    [
        ((PLACED, PLACED), 1, 100.5, False),  # the pause is not over
        ((PLACED, PLACED), 1, 101.0, True),
        ((PLACED, PLACED), 0, 101.0, False),  # of the start before: not known to be clear
        ((ReplicaState.DRAINING, PLACED), 0, 101.0, False),
    ],
)
def test_it_begins_when_every_rank_is_clear_and_the_pause_is_over(
    states: tuple[ReplicaState, ...], generation: int, now: float, begins: bool
) -> None:
    held = after(seen(group(), READY, FAILED))
    action = regroup(seen(held, *states, generation=generation), back=BOTH, now=now, luck=0)
    assert isinstance(action, Begin) is begins
    if begins:
        assert not applied(
            Begin(placement=held.placement, generation=1, because=""), held, now=now
        ).hold


def test_one_rank_that_is_clear_is_not_enough() -> None:
    held = after(seen(group(), READY, FAILED))
    one = observe(held, {0: observed(0, PLACED, 1)}, now=150)
    assert regroup(one, back=BOTH, now=150, luck=0) is None
    assert (
        regroup(
            observe(one, {1: observed(1, PLACED, 1, pid=9)}, now=150), back=BOTH, now=150, luck=0
        )
        is None
    )
    assert isinstance(
        regroup(observe(one, {1: observed(1, PLACED, 1)}, now=150), back=BOTH, now=150, luck=0),
        Begin,
    )


def test_pauses_grow_and_the_third_failure_in_a_row_is_a_crash_loop() -> None:
    replica, pauses = group(), []
    for _ in range(4):
        replica = after(seen(replica, READY, FAILED, causes=(None, "exit status 1", None)))
        assert replica.restart_at is not None
        pauses.append(replica.restart_at - 100)
        cause = replica.cause
        replica = after(seen(replica, PLACED, PLACED), now=200)
    assert pauses == [1.0, 2.0, 4.0, 8.0]
    assert cause == "crash-looping, 4 failures in a row, rank 1 on b: exit status 1"


def test_a_cause_is_not_prefixed_twice() -> None:
    replica = group(failures=4)
    replica = after(seen(replica, READY, FAILED, causes=(None, "exit status 1", None)))
    replica = after(seen(replica, PLACED, PLACED), now=400)
    again = after(seen(replica, READY, FAILED, causes=(None, "exit status 2", None)), now=500)
    assert again.cause == "crash-looping, 6 failures in a row, rank 1 on b: exit status 2"


@pytest.mark.parametrize(("ready_for", "failures"), [(599.0, 6), (600.0, 1)])
def test_ten_minutes_of_readiness_forgive_earlier_failures(ready_for: float, failures: int) -> None:
    replica = seen(group(failures=5), READY, READY, now=1000)
    broken = seen(replica, READY, FAILED, now=1000 + ready_for)
    action = regroup(broken, back=BOTH, now=1000 + ready_for, luck=0)
    assert isinstance(action, Restart)
    assert action.failures == failures


def test_luck_shortens_the_pause_by_up_to_a_quarter() -> None:
    replica = seen(group(failures=3), READY, FAILED)
    action = regroup(replica, back=BOTH, now=100, luck=0.5)
    assert isinstance(action, Restart)
    assert action.at == 100 + 8 * (1 - 0.5 / 4)


def test_a_clock_that_was_set_back_does_not_hold_a_group_for_ever() -> None:
    held = seen(after(seen(group(), READY, FAILED), now=10_000_000), PLACED, PLACED)
    assert isinstance(regroup(held, back=BOTH, now=100, luck=0), Begin)


@pytest.mark.parametrize("wish", [Wish.STOP, Wish.LOST])
def test_one_that_is_not_to_run_is_left_alone(wish: Wish) -> None:
    replica = replace(seen(group(), READY, FAILED), wish=wish)
    assert regroup(replica, back=BOTH, now=100, luck=0) is None


# A database that is behind its agents.


def test_an_older_database_waits_for_every_agent_before_it_decides() -> None:
    replica = observe(group(), {0: observed(0, READY, 3)}, now=50)
    assert regroup(replica, back=frozenset({NodeName("a")}), now=100, luck=0) is None


def test_an_older_database_takes_over_a_group_that_is_in_one_start() -> None:
    replica = seen(group(), READY, READY, generation=3)
    going = after(replica)
    assert (going.generation, going.hold, going.state) == (3, False, READY)


def test_an_older_database_starts_a_group_anew_that_is_in_several_starts() -> None:
    replica = observe(group(), {0: observed(0, READY, 3), 1: observed(1, PLACED, 4)}, now=50)
    action = regroup(replica, back=BOTH, now=100, luck=0)
    assert isinstance(action, Restart)
    assert action.generation == 5


def test_a_start_that_began_and_that_the_database_forgot_goes_on() -> None:
    held = group(generation=1, hold=True, restart_at=500.0)
    action = regroup(seen(held, READY, LOADING), back=BOTH, now=100, luck=0)
    assert isinstance(action, Begin)
    assert action.generation == 1


def test_a_start_that_began_and_failed_and_that_the_database_forgot_is_followed_by_another() -> (
    None
):
    held = group(generation=1, hold=True, restart_at=500.0)
    action = regroup(seen(held, READY, FAILED), back=BOTH, now=100, luck=0)
    assert isinstance(action, Restart)
    assert action.generation == 2


def test_what_was_seen_of_an_earlier_start_does_not_undo_a_decision() -> None:
    ready = seen(group(), READY, READY)
    held = after(seen(ready, READY, FAILED, causes=(None, "exit status 1", None)))
    merged = carried(seen(ready, READY, READY), onto=held)
    assert (merged.generation, merged.hold, merged.state) == (1, True, FAILED)
    assert merged.cause == "rank 1 on b: exit status 1"


# Stop: rank 0 first.


def told(replica: Replica) -> list[int]:
    return [shard.rank for shard in replica.shards if replica.is_told_to_stop(shard)]


def test_rank_0_is_told_to_stop_first_and_the_others_once_it_is_gone() -> None:
    drain = Drain(placement=group().placement, because="deleted")
    replica = applied(drain, group(3), now=100)
    assert told(replica) == [0]
    assert told(replace(replica, shards=replica.shards[1:])) == [1, 2]


def test_of_one_that_is_drained_at_once_all_are_told() -> None:
    drain = Drain(placement=group().placement, because="b is silent", at_once=True)
    assert told(applied(drain, group(3), now=100)) == [0, 1, 2]


# Whole: engines and server together.


def test_every_rank_waits_until_the_slowest_is_gone() -> None:
    twin = Group()
    twin.settle(5)
    assert twin.is_whole
    a, b = twin.agents
    a.deaf = True  # it outlives SIGTERM, and is killed ten seconds later
    b.crash("exit status 1")
    for _ in range(8):
        twin.turn()
        twin.now += 1
    assert a.running
    assert b.begun == [0]
    a.deaf = False
    twin.settle(60)
    assert twin.is_whole
    assert a.begun == b.begun == [0, 1]


def test_an_agent_that_restarts_leaves_the_group_alone() -> None:
    twin = Group()
    twin.settle(5)
    twin.agents[1].reboot(machine=False)
    twin.settle(60)
    assert twin.agents[0].begun == twin.agents[1].begun == [0]
    assert twin.is_whole


def test_a_machine_that_restarts_takes_the_group_with_it() -> None:
    twin = Group()
    twin.settle(5)
    twin.agents[1].reboot(machine=True)
    twin.settle(60)
    assert twin.agents[0].begun == twin.agents[1].begun == [0, 1]
    assert "the machine was restarted" in twin.story[0]


def test_ranks_get_no_drain_when_their_group_starts_anew() -> None:
    twin = Group()
    twin.settle(5)
    a, b = twin.agents
    a.in_flight = 4
    b.crash()
    twin.turn()
    twin.tell(0)
    twin.look(0)
    assert a.life.phase in {Phase.REPLACING, Phase.WAITING}
    assert a.story[-1] == "Terminate"


def test_a_rank_that_hangs_is_everyones_failure() -> None:
    twin = Group()
    twin.settle(5)
    b = twin.agents[1]
    for _ in range(100):
        b.health = Health.SILENT
        for rank in range(2):
            twin.tell(rank)
            twin.look(rank)
            twin.report(rank)
        if twin.decide() is not None:
            break
        twin.now += 5
    assert "health checks" in twin.story[0]
    twin.settle(60)
    assert twin.is_whole


def test_one_that_made_way_looks_at_once_for_the_start_that_it_made_way_for() -> None:
    twin = Group()
    twin.settle(5)
    a, b = twin.agents
    b.crash()
    twin.look(1)
    twin.report(1)
    twin.decide()
    twin.tell(0)
    twin.look(0)  # SIGTERM
    twin.look(0)  # gone
    assert a.life.generation == 0
    assert next_look(a.life, now=twin.now) <= 0.2
    twin.look(0)
    assert (a.life.generation, a.life.cause) == (1, None)
    assert next_look(a.life, now=twin.now) == 60


def test_one_that_made_way_for_a_start_that_is_forgotten_looks_calmly() -> None:
    twin = Group()
    twin.settle(5)
    (a, _), before = twin.agents, twin.replica
    twin.replica = replace(before, generation=1, hold=True)
    twin.tell(0)
    twin.look(0)
    twin.look(0)
    twin.replica = before
    twin.tell(0)
    twin.look(0)
    assert a.begun == [0]
    assert next_look(a.life, now=twin.now) == 60


def test_a_group_that_is_ready_again_has_no_cause_whoever_was_heard_last() -> None:
    replica = after(seen(group(), READY, FAILED, causes=(None, "exit status 1", None)))
    begun = after(seen(replica, PLACED, PLACED), now=102)
    one = observe(begun, {0: observed(0, READY, 1)}, now=103)
    assert one.cause == "rank 1 on b: exit status 1"
    assert observe(one, {1: observed(1, READY, 1)}, now=104).cause is None
