from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reconcile.engine_twin import World
from roost.domain.replica import ReplicaState
from roost.reconcile.ending import CLEAR_WITHIN_S
from roost.reconcile.engine_life import (
    GRACE_S,
    NOTHING_LEFT,
    SILENT_AFTER_S,
    Ended,
    Forget,
    Health,
    Left,
    Life,
    Limits,
    Phase,
    Terminate,
    cause_of,
    due_of,
    next_look,
    state_of,
)
from roost.reconcile.supervise import (
    BUSY_AFTER_S,
    HUNG_AFTER_S,
    HUNG_ANSWERS,
    LONGEST_DELAY_S,
    STABLE_AFTER_S,
    delay,
    failed,
    hurried,
    started,
)


def test_an_engine_is_placed_then_starting_then_loading_then_ready() -> None:
    world = World()
    assert world.state() is ReplicaState.PLACED
    world.look()
    assert world.state() is ReplicaState.STARTING
    world.health = Health.LOADING
    world.look()
    assert world.state() is ReplicaState.LOADING
    world.health = Health.READY
    world.look()
    assert world.state() is ReplicaState.READY
    assert world.life.restarts == 0
    assert world.life.cause is None


def test_a_load_of_many_minutes_is_no_failure_while_it_shows_life() -> None:
    world = World(limits=Limits(load_timeout_s=15))
    world.look()
    world.health = Health.LOADING
    for _ in range(40):
        world.log_bytes += 10
        world.run_for(10)
    world.health = Health.READY
    world.look()
    assert world.state() is ReplicaState.READY
    assert len(world.starts) == 1


def test_a_silent_load_is_given_up_with_its_last_state_and_tried_again() -> None:
    world = World(limits=Limits(load_timeout_s=15))
    world.run_for(14)
    assert len(world.starts) == 1
    world.run_for(10)
    assert world.life.cause == "not ready within 15 s of silence, last state: starting"
    assert len(world.starts) == 2
    assert world.story[:3] == ["Start", "Kill", "Start"]


def test_the_bare_answer_loading_is_believed_for_three_limits() -> None:
    world = World(limits=Limits(load_timeout_s=15))
    world.look()
    world.health = Health.LOADING
    world.run_for(40)
    assert len(world.starts) == 1
    world.run_for(6)
    assert world.life.cause == "not ready within 45 s of silence, last state: loading"


def test_a_crash_is_followed_by_a_start_after_growing_delays() -> None:
    world = World()
    for _ in range(12):
        world.look()
        assert world.running
        world.crash()
        world.look()
        assert world.state() is ReplicaState.FAILED
        world.wait()
    gaps = [b - a for a, b in zip(world.starts, world.starts[1:], strict=False)]
    assert gaps == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]
    assert world.life.restarts == 11


def test_a_crash_loop_of_ten_minutes_is_a_handful_of_starts() -> None:
    world = World()
    end = world.now + 600
    while world.now < end:
        world.look()
        if world.running:
            world.now += 2
            world.crash()
        else:
            world.now += next_look(world.life, now=world.now)
    assert 7 <= len(world.starts) <= 10


def test_a_crash_loop_says_that_it_is_one_how_often_it_failed_and_when_it_tries_again() -> None:
    """B032: a state with a cause, and growing delays."""
    world = World()
    for failures in (1, 2, 3, 4, 5, 6):
        world.look()
        assert due_of(world.life) is None
        world.crash("exit status 1: no such config key")
        world.look()
        assert world.state() is ReplicaState.FAILED
        assert due_of(world.life) == world.now + 2.0 ** (failures - 1)
        said = "exit status 1: no such config key"
        looping = f"crash-looping, {failures} failures in a row, {said}"
        assert cause_of(world.life) == (said if failures < 3 else looping)
        world.wait()
    # What went wrong stays readable while it is tried again, and once it is ready it loops no more.
    world.until_ready()
    assert cause_of(world.life) == "exit status 1: no such config key"


def test_a_taken_port_in_a_crash_loop_is_said_by_itself() -> None:
    world = World()
    for _ in range(5):
        world.look()
        world.crash()
        world.look()
        world.wait()
    world.look()
    world.crash("port 1 is taken", port_taken=True)
    world.look()
    assert cause_of(world.life) == "port 1 is taken"
    assert world.life.failures == 5


def test_what_the_agent_has_never_failed_to_start_is_due_at_no_time() -> None:
    assert due_of(Life()) is None
    assert due_of(World().until_ready().life) is None


def test_a_long_stable_run_makes_the_next_delay_the_shortest_again() -> None:
    world = World()
    for _ in range(6):
        world.look()
        world.crash()
        world.look()
        world.wait()
    world.until_ready()
    world.now += STABLE_AFTER_S
    world.crash()
    world.look()
    assert world.life.due == world.now + 1
    assert world.life.failures == 1


def test_a_short_ready_spell_does_not_shorten_the_delay() -> None:
    world = World()
    for _ in range(4):
        world.until_ready()
        world.now += STABLE_AFTER_S - 1
        world.crash()
        world.look()
        world.wait()
    assert world.life.failures == 4


def test_exit_status_0_of_an_engine_that_should_run_is_a_failure() -> None:
    world = World().until_ready()
    world.crash("ended by itself with exit status 0")
    world.look()
    assert world.state() is ReplicaState.FAILED
    assert world.life.cause == "ended by itself with exit status 0"


def test_a_taken_port_is_told_and_is_neither_a_failure_nor_a_restart() -> None:
    world = World()
    world.look()
    world.crash("port 1 is taken", port_taken=True)
    world.look()
    assert world.life.port_taken
    assert world.life.failures == 0
    world.life = hurried(world.life, now=world.now)
    world.look()
    assert world.running
    assert world.life.restarts == 0
    assert not world.life.port_taken


def test_a_survivor_of_the_last_run_is_killed_before_the_next_start() -> None:
    world = World(children=2).until_ready()
    world.crash()
    world.run_for(5)
    assert world.story == ["Start", "Kill", "Start"]


def test_a_survivor_that_cannot_be_killed_keeps_the_engine_from_starting_and_is_named() -> None:
    world = World().until_ready()
    world.crash()
    world.look()
    for _ in range(100):
        world.others = 1
        world.now += next_look(world.life, now=world.now)
        world.look()
    assert len(world.starts) == 1
    assert world.life.cause is not None
    assert "cannot be ended by SIGKILL" in world.life.cause
    assert "100" in world.life.cause
    assert world.story.count("Kill") < 50
    assert due_of(world.life) is None
    world.others = 0
    world.run_for(2)
    assert len(world.starts) == 2


def test_a_ready_engine_that_falls_silent_leaves_routing_and_then_is_started_again() -> None:
    world = World().until_ready()
    world.health = Health.SILENT
    world.run_for(SILENT_AFTER_S - 1)
    assert world.state() is ReplicaState.READY
    world.run_for(3)
    assert world.state() is ReplicaState.STARTING
    assert world.running
    world.run_for(HUNG_AFTER_S)
    assert world.story[:2] == ["Start", "Kill"]
    assert world.life.restarts == 1


def test_a_few_bad_answers_are_not_enough_to_end_an_engine_however_much_time_passes() -> None:
    """Time alone is no evidence: so many answers must have been asked for, and been bad."""
    world = World().until_ready()
    world.health = Health.SILENT
    for _ in range(HUNG_ANSWERS):
        assert world.story == ["Start"]
        world.look()
        world.now += 29
    assert world.story == ["Start", "Kill"]
    assert world.life.cause == "gave no good answer to 5 health checks in 116 s, last: silent"


def test_many_bad_answers_at_one_moment_are_one() -> None:
    world = World().until_ready()
    world.health = Health.REFUSED
    for _ in range(50):
        world.look()
    assert world.life.bad_answers == 1


@pytest.mark.parametrize("health", [Health.SILENT, Health.REFUSED, Health.BROKEN])
def test_an_agent_that_was_stopped_does_not_take_its_own_gap_for_the_engines_failure(
    health: Health,
) -> None:
    """An agent under SIGSTOP, or a machine that stood still, wakes up hours later."""
    world = World().until_ready()
    world.health = health
    world.run_for(SILENT_AFTER_S - 5)
    world.now += 7200
    assert state_of(world.life) is ReplicaState.READY
    world.look()
    assert world.life.bad_answers == 0
    assert state_of(world.life) is ReplicaState.READY
    # And from here on it has all of its time once more.
    world.run_for(HUNG_AFTER_S - 5)
    assert world.story == ["Start"]
    world.run_for(10)
    assert "Kill" in world.story


def test_an_agent_that_was_stopped_while_an_engine_loads_does_not_give_the_load_up() -> None:
    world = World(limits=Limits(load_timeout_s=100))
    world.run_for(50)
    world.now += 7200
    world.run_for(45)
    assert world.story == ["Start"]
    world.run_for(10)
    assert world.story[:2] == ["Start", "Kill"]


@pytest.mark.parametrize("sign", ["metrics", "log"])
def test_a_busy_engine_that_shows_life_is_out_of_routing_and_is_not_ended(sign: str) -> None:
    world = World().until_ready()
    world.health = Health.SILENT
    world.scraped = sign == "metrics"
    for _ in range(20):
        world.log_bytes += 10 if sign == "log" else 0
        world.run_for(BUSY_AFTER_S / 25)
        assert world.story == ["Start"]
    assert world.state() is ReplicaState.STARTING
    world.health = Health.READY
    world.look()
    assert world.state() is ReplicaState.READY


def test_life_elsewhere_is_believed_for_ten_minutes_and_only_of_one_that_is_silent() -> None:
    world = World(scraped=True).until_ready()
    world.health = Health.SILENT
    world.run_for(BUSY_AFTER_S - 5)
    assert world.story == ["Start"]
    world.run_for(10)
    assert "Kill" in world.story
    # One that answers that it is broken knows better than its metrics page.
    world = World(scraped=True).until_ready()
    world.health = Health.BROKEN
    world.run_for(HUNG_AFTER_S + 10)
    assert "Kill" in world.story


def test_one_bad_answer_between_good_ones_changes_nothing() -> None:
    world = World().until_ready()
    for _ in range(20):
        world.health = Health.BROKEN
        world.run_for(10)
        world.health = Health.READY
        world.look()
    assert world.story == ["Start"]
    assert world.state() is ReplicaState.READY


def test_a_stop_waits_for_what_is_in_flight_then_terminates() -> None:
    world = World(in_flight=2).until_ready()
    world.wanted = False
    world.run_for(30)
    assert world.state() is ReplicaState.DRAINING
    assert world.running
    world.in_flight = 0
    world.run_for(3)
    assert world.story == ["Start", "Terminate", "Forget"]
    assert world.state() is ReplicaState.STOPPED


def test_a_stop_does_not_wait_longer_than_the_drain_timeout() -> None:
    world = World(in_flight=1, limits=Limits(drain_timeout_s=60)).until_ready()
    world.wanted = False
    world.run_for(59)
    assert world.running
    world.run_for(2)
    assert world.story == ["Start", "Terminate", "Forget"]


def test_what_is_in_flight_and_not_measured_is_waited_for_as_if_it_were_something() -> None:
    world = World(in_flight=None, limits=Limits(drain_timeout_s=20)).until_ready()
    world.wanted = False
    world.run_for(19)
    assert world.running
    world.run_for(2)
    assert not world.running


def test_an_engine_that_ignores_sigterm_is_killed_after_the_grace() -> None:
    world = World(deaf=True, children=1).until_ready()
    world.wanted = False
    world.run_for(2)
    assert world.story == ["Start", "Terminate"]
    world.run_for(GRACE_S - 1.5)
    assert world.running
    world.run_for(2)
    assert world.story == ["Start", "Terminate", "Kill", "Forget"]


def test_a_stop_is_over_only_when_port_and_cards_are_seen_free() -> None:
    """B027: what was stopped gives its place away; nobody gets it before it is free."""
    world = World(left=Left(port=21003, on_cards=(4711,))).until_ready()
    world.wanted = False
    world.run_for(5)
    assert world.story == ["Start", "Terminate"]
    assert world.state() is ReplicaState.DRAINING
    assert cause_of(world.life) == (
        "no process lives; port 21003 is in use, the GPU driver still lists process 4711"
    )
    world.left = Left(on_cards=(4711,))
    world.run_for(1)
    assert world.state() is ReplicaState.DRAINING
    world.left = NOTHING_LEFT
    world.run_for(1)
    assert world.story == ["Start", "Terminate", "Forget"]
    assert world.state() is ReplicaState.STOPPED
    assert world.life.cause is None


def test_a_port_that_never_comes_free_is_said_and_not_waited_for_longer() -> None:
    world = World(left=Left(port=21003)).until_ready()
    world.wanted = False
    world.run_for(CLEAR_WITHIN_S)
    assert world.state() is ReplicaState.DRAINING
    world.run_for(3)
    assert world.state() is ReplicaState.STOPPED
    assert world.life.cause == "stopped; port 21003 is in use 10 s after its last process ended"


def test_a_process_that_turns_up_on_its_cards_keeps_them_for_ever() -> None:
    """B027: no time makes a card free on which a process of the engine is seen."""
    world = World(left=Left(on_cards=(4711,))).until_ready()
    world.wanted = False
    world.run_for(3)
    for _ in range(1000):
        world.others = 1
        world.now += next_look(world.life, now=world.now)
        world.look()
    assert world.state() is ReplicaState.DRAINING
    assert cause_of(world.life) == ("cannot be ended by SIGKILL, tried for over 10 s: process 100")
    assert "Forget" not in world.story
    world.others, world.left = 0, NOTHING_LEFT
    world.run_for(1)
    assert world.state() is ReplicaState.STOPPED


def test_what_a_driver_still_lists_is_waited_for_before_the_next_start_and_no_longer() -> None:
    """B027: started at once, the engine would be out of memory by its own last run."""
    world = World(left=Left(on_cards=(4711,))).until_ready()
    world.crash()
    world.run_for(5)
    assert len(world.starts) == 1
    world.left = NOTHING_LEFT
    world.run_for(1)
    assert len(world.starts) == 2
    world.left = Left(on_cards=(4712,))
    world.crash()
    world.run_for(CLEAR_WITHIN_S + LONGEST_DELAY_S)
    assert len(world.starts) == 3


def test_a_stop_of_one_whose_port_another_has_does_not_wait_for_that_port() -> None:
    world = World(left=Left(port=21003))
    world.look()
    world.crash("port 21003 is taken", port_taken=True)
    world.look()
    world.wanted = False
    world.look()
    assert world.state() is ReplicaState.STOPPED


def test_a_stop_of_an_engine_that_is_not_ready_does_not_drain() -> None:
    world = World()
    world.look()
    world.wanted = False
    world.look()
    assert world.story == ["Start", "Terminate"]


def test_a_stop_while_waiting_for_the_next_start_forgets_at_once() -> None:
    world = World()
    world.look()
    world.crash()
    world.look()
    world.wanted = False
    world.look()
    assert world.story == ["Start", "Forget"]


@settings(deadline=None)
@given(failures=st.integers(1, 10_000), luck=st.floats(0, 1, exclude_max=True))
def test_a_delay_is_within_a_quarter_of_its_doubling_and_never_over_five_minutes(
    failures: int, luck: float
) -> None:
    whole = min(LONGEST_DELAY_S, 2.0 ** min(failures - 1, 20))
    assert 0.75 * whole <= delay(failures, luck=luck) <= whole


class Happening:
    """What may happen to an engine between two looks."""

    all = st.sampled_from(
        [
            "ready",
            "loading",
            "refused",
            "silent",
            "broken",
            "crash",
            "taken",
            "log",
            "busy",
            "idle",
            "unwanted",
            "second",
            "minute",
            "long",
            "escape",
            "left",
            "clear",
        ]
    )


def happen(world: World, what: str) -> None:
    match what:
        case "ready" | "loading" | "refused" | "silent" | "broken":
            world.health = Health(what)
        case "crash" | "taken":
            if world.running:
                world.crash(what, port_taken=what == "taken")
        case "log":
            world.log_bytes += 1
        case "busy" | "idle":
            world.in_flight = 1 if what == "busy" else 0
        case "unwanted":
            world.wanted = False
        case "second" | "minute" | "long":
            world.now += {"second": 1, "minute": 61, "long": 3600}[what]
        case "left" | "clear":
            world.left = Left(port=1, on_cards=(2,)) if what == "left" else NOTHING_LEFT
        case "escape":
            # A process that nobody saw before turns up.
            if not world.running and world.life.phase is not Phase.GONE:
                world.others = 1


@settings(max_examples=400, deadline=None)
@given(
    happenings=st.lists(Happening.all, max_size=60), children=st.integers(0, 2), deaf=st.booleans()
)
def test_whatever_happens_no_two_engines_run_and_a_stop_ends_everything(
    happenings: list[str], children: int, deaf: bool
) -> None:
    world = World(children=children, deaf=deaf)
    for what in happenings:
        happen(world, what)
        before = world.wanted
        actions = world.look(luck=0.5)
        for action in actions:
            assert action.because
            if isinstance(action, Terminate | Forget):
                assert not before, "an engine that is wanted was stopped"
        # `World._do` asserts that nothing lives at a start, and at the end.
    world.wanted = False
    world.in_flight = 1
    world.run_for(200)
    assert world.state() is ReplicaState.STOPPED
    assert not world.running
    assert world.others == 0


@settings(max_examples=300, deadline=None)
@given(happenings=st.lists(Happening.all, max_size=40), children=st.integers(0, 2))
def test_looking_again_at_the_same_moment_soon_asks_for_nothing_more(
    happenings: list[str], children: int
) -> None:
    world = World(children=children)
    for what in happenings:
        happen(world, what)
        # Terminate, Kill, Start or Forget may follow each other at once, each time something
        # changed.
        asked = [bool(world.look()) for _ in range(5)]
        assert not asked[-1]
        settled = replace(world.life)
        world.look()
        assert world.life == settled


@settings(deadline=None)
@given(happenings=st.lists(Happening.all, max_size=60))
def test_an_engine_that_recovers_is_ready_in_the_end(happenings: list[str]) -> None:
    world = World()
    for what in happenings:
        if what != "unwanted":
            happen(world, what)
        world.look()
    for _ in range(20):
        world.run_for(LONGEST_DELAY_S)
        if world.running:
            world.health = Health.READY
            world.look()
    assert world.state() is ReplicaState.READY


@pytest.mark.parametrize("phase", list(Phase))
def test_every_phase_is_looked_at_again_and_has_a_word(phase: Phase) -> None:
    life = replace(Life(), phase=phase, since=5, due=5)
    assert next_look(life, now=6) > 0
    assert state_of(life) in ReplicaState


def test_a_failure_is_remembered_with_its_cause_through_the_next_start() -> None:
    life = failed(Life(starts=1), Ended(cause="boom"), now=1, luck=0)
    assert started(life, now=2).cause == "boom"


def test_a_taken_port_is_the_cause_only_until_another_one_is_had() -> None:
    life = failed(Life(starts=1), Ended(cause="killed by SIGKILL"), now=1, luck=0)
    taken = Ended(cause="port 1 is taken", port_taken=True)
    for _ in range(2):
        life = failed(started(life, now=2), taken, now=3, luck=0)
        assert life.cause == "port 1 is taken"
    life = started(life, now=4)
    assert life.cause == "killed by SIGKILL"
    assert failed(life, Ended(cause="exit status 1"), now=5, luck=0).cause == "exit status 1"


def test_a_first_start_on_a_taken_port_leaves_no_cause() -> None:
    life = failed(Life(), Ended(cause="port 1 is taken", port_taken=True), now=1, luck=0)
    assert started(life, now=2).cause is None
