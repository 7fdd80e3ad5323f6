"""Who waits for a replica with room, and who is turned away: first in, first out, and bounded."""

from collections import OrderedDict


class Ticket:
    """A place in a queue."""

    __slots__ = ("since",)

    def __init__(self, since: float) -> None:
        self.since = since


class Queue:
    """
    The requests of one model that wait for room.

    At most `size` wait, each at most `max_wait_s`. Who leaves makes room at once.
    """

    __slots__ = ("_tickets", "max_wait_s", "size")

    def __init__(self, *, size: int, max_wait_s: float) -> None:
        self.size = size
        self.max_wait_s = max_wait_s
        self._tickets: OrderedDict[Ticket, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._tickets)

    def join(self, now: float) -> Ticket | None:
        """A place at the end; `None`: the queue is full."""
        if len(self._tickets) >= self.size:
            return None
        ticket = Ticket(now)
        self._tickets[ticket] = None
        return ticket

    def leave(self, ticket: Ticket) -> None:
        """Give a place up, from wherever in the queue; twice does no harm."""
        self._tickets.pop(ticket, None)

    def first(self) -> Ticket | None:
        """Who has waited longest."""
        return next(iter(self._tickets), None)

    def overdue(self, now: float) -> list[Ticket]:
        """Those who have waited too long, the longest first; they still have to `leave`."""
        overdue = []
        for ticket in self._tickets:
            if now - ticket.since < self.max_wait_s:
                break
            overdue.append(ticket)
        return overdue
