"""Whatever breaks in a replica on several nodes, in whatever order it is heard of: no rank begins
beside one of an earlier start, none begins twice in one start, and in the end all of them serve.
"""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from reconcile.group_twin import Group
from roost.reconcile import groups, supervise
from roost.reconcile.engine_life import NOTHING_LEFT, Ended, Health, Left, Life

RANKS = st.integers(0, 2)


class Grouping(RuleBasedStateMachine):
    """Anything may happen between any two messages."""

    @initialize()
    def place(self) -> None:
        self.group = Group(nodes=3)
        self.saved = self.group.replica

    @rule(rank=RANKS)
    def tell(self, rank: int) -> None:
        self.group.tell(rank)

    @rule(rank=RANKS)
    def report(self, rank: int) -> None:
        self.group.report(rank)

    @rule()
    def decide(self) -> None:
        self.group.decide()

    @rule(rank=RANKS)
    def look(self, rank: int) -> None:
        self.group.look(rank)

    @rule(turns=st.integers(1, 4))
    def go_on(self, turns: int) -> None:
        for _ in range(turns):
            self.group.turn()
            self.group.now += 0.5

    @rule(rank=RANKS, children=st.integers(0, 1))
    def crash(self, rank: int, children: int) -> None:
        agent = self.group.agents[rank]
        if agent.running:
            agent.crash()
            agent.others = children

    @rule(rank=RANKS)
    def answer(self, rank: int) -> None:
        self.group.agents[rank].health = Health.READY

    @rule(rank=RANKS, deaf=st.booleans())
    def ignore_sigterm(self, rank: int, deaf: bool) -> None:
        self.group.agents[rank].deaf = deaf

    @rule(rank=RANKS, held=st.booleans())
    def hold_port(self, rank: int, held: bool) -> None:
        self.group.agents[rank].left = Left(port=20000) if held else NOTHING_LEFT

    @rule(rank=RANKS, machine=st.booleans())
    def reboot(self, rank: int, machine: bool) -> None:
        self.group.agents[rank].reboot(machine=machine)

    @rule(seconds=st.sampled_from([1, 12, 60, 400]))
    def wait(self, seconds: int) -> None:
        self.group.now += seconds

    @rule()
    def back_up(self) -> None:
        self.saved = self.group.replica

    @rule()
    def restore(self) -> None:
        """The server's database is an earlier one, and it has heard nobody."""
        self.group.replica = self.saved
        self.group.back = set()

    def teardown(self) -> None:
        group = self.group
        for agent in group.agents:
            agent.deaf, agent.left = False, NOTHING_LEFT
        group.settle()
        assert group.is_whole, "\n".join([*group.story[-10:], str(group.replica)])
        starts = [list(agent.begun) for agent in group.agents]
        group.settle(30)
        assert starts == [agent.begun for agent in group.agents], "it never comes to rest"


TestGrouping = Grouping.TestCase
TestGrouping.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def _always(*_: object) -> bool:
    return True


def _never(*_: object) -> bool:
    return False


def _without_cause(life: Life, ended: Ended, *, now: float, luck: float) -> Life:
    return replace(_failed(life, ended, now=now, luck=luck), cause=None)


_failed = supervise.failed


@pytest.mark.parametrize(
    ("where", "name", "bug"),
    [
        pytest.param(groups, "_is_clear", _always, id="nobody waits for the ports of the others"),
        pytest.param(groups, "_has_failed", _never, id="the failure of a rank is its own affair"),
        pytest.param(groups, "_catch_up", lambda *_, **__: None, id="an old database stays behind"),
        pytest.param(supervise, "_REPLACED", None, id="who made way begins the same start again"),
        pytest.param(supervise, "failed", _without_cause, id="who failed begins the same again"),
        pytest.param(supervise, "_is_later", _never, id="nobody makes way for a later start"),
    ],
)
def test_a_planted_bug_is_caught(
    monkeypatch: pytest.MonkeyPatch, where: object, name: str, bug: Callable[..., object] | None
) -> None:
    monkeypatch.setattr(where, name, bug)
    quick = settings(
        max_examples=400,
        stateful_step_count=40,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        print_blob=False,
    )
    with pytest.raises((AssertionError, ExceptionGroup)):
        run_state_machine_as_test(Grouping, settings=quick)
