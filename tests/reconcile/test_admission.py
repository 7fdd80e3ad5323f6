from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from roost.reconcile.admission import Queue, Ticket


class QueueAgainstAList(RuleBasedStateMachine):
    """The queue beside a list that does the same, slowly."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = Queue(size=4, max_wait_s=10)
        self.waiting: list[Ticket] = []
        self.gone: list[Ticket] = []
        self.now = 0.0

    @rule()
    def join(self) -> None:
        ticket = self.queue.join(self.now)
        assert (ticket is None) == (len(self.waiting) >= self.queue.size)
        if ticket is not None:
            self.waiting.append(ticket)

    @precondition(lambda self: self.waiting)
    @rule(choose=st.data())
    def leave(self, choose: st.DataObject) -> None:
        ticket = choose.draw(st.sampled_from(self.waiting))
        self.waiting.remove(ticket)
        self.gone.append(ticket)
        self.queue.leave(ticket)

    @precondition(lambda self: self.gone)
    @rule(choose=st.data())
    def leave_twice(self, choose: st.DataObject) -> None:
        self.queue.leave(choose.draw(st.sampled_from(self.gone)))

    @rule(seconds=st.integers(1, 6))
    def wait(self, seconds: int) -> None:
        self.now += seconds

    @rule(size=st.integers(0, 6))
    def resize(self, size: int) -> None:
        self.queue.size = size

    @invariant()
    def same(self) -> None:
        assert len(self.queue) == len(self.waiting)
        assert self.queue.first() is (self.waiting[0] if self.waiting else None)
        late = [ticket for ticket in self.waiting if self.now - ticket.since >= 10]
        assert self.queue.overdue(self.now) == late


QueueAgainstAList.TestCase.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None
)
test_the_queue_does_what_a_list_does = QueueAgainstAList.TestCase
