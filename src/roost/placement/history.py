"""The view that an old decision was made on, without keeping one for each decision.

One view in `KEPT` is kept, and what was held since is held again when an older one is asked for.
Reading decisions in the order in which they were made costs one event each.
"""

from typing import Final, TypeAlias

from roost.domain.allocation import Allocation
from roost.placement import events
from roost.placement.view import View

KEPT: Final = 128


class History:
    """The views of one plan, in which replicas come and none goes."""

    __slots__ = ("_holds", "_kept", "_last")

    def __init__(self, view: View) -> None:
        self._kept = [view]
        self._holds: list[Allocation] = []
        self._last = (0, view)

    def now(self) -> "Past":
        """The moment after all that is held so far."""
        return Past(self, len(self._holds))

    def held(self, hold: Allocation, view: View) -> None:
        """`hold` was allocated, and made this view."""
        self._holds.append(hold)
        if len(self._holds) % KEPT == 0:
            self._kept.append(view)

    def at(self, count: int) -> View:
        """The view after so many allocations."""
        frame = count // KEPT
        done, view = self._last
        if not frame * KEPT <= done <= count:
            done, view = frame * KEPT, self._kept[frame]
        for hold in self._holds[done:count]:
            view = events.allocated(view, hold)
        self._last = (count, view)
        return view


class Past:
    """A moment of a history."""

    __slots__ = ("_count", "_history")

    def __init__(self, history: History, count: int) -> None:
        self._history = history
        self._count = count

    @property
    def view(self) -> View:
        """The fleet as it was."""
        return self._history.at(self._count)


Moment: TypeAlias = View | Past


def view_at(moment: Moment) -> View:
    """The view of a moment; a view is its own."""
    return moment.view if isinstance(moment, Past) else moment
