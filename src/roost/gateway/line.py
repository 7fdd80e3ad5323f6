"""One model's queues in all workers: who has waited longest goes first, wherever that is."""

from roost.gateway.shared_loads import Share
from roost.reconcile.admission import Queue


class Line:
    """What one worker knows of those who wait for a model in the others, and tells of its own."""

    def __init__(self, share: Share, column: int) -> None:
        self._share = share
        self._column = column

    def others_wait(self, since: float = float("inf")) -> bool:
        """Whether a request in another worker has waited since before `since`."""
        return self._share.first_other(self._column, since) is not None

    def may_wait(self, size: int, since: float) -> bool:
        """Whether fewer than `size` wait, one more from now on."""
        return self._share.may_wait(self._column, size, since)

    def publish(self, queue: Queue) -> None:
        """Tell the others who waits here."""
        first = queue.first()
        self._share.publish(self._column, len(queue), 0.0 if first is None else first.since)

    def wake_first(self, since: float = float("inf")) -> bool:
        """Let the worker look where a request has waited longest; whether that is another one."""
        row = self._share.first_other(self._column, since)
        if row is None:
            return False
        self._share.wake(row)
        return True
