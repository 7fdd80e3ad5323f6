"""What became of one profile on every node; what costs something is worked out when it is read."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import overload

from roost.domain.profile import ProfileName
from roost.domain.reasons import Code
from roost.placement import bits, filters, groups
from roost.placement.decision import FabricCount, Rejection
from roost.placement.history import Moment, view_at
from roost.placement.needs import Need
from roost.placement.view import View


class Trial:
    """One profile on one view, as sets of nodes."""

    __slots__ = ("enough", "fitting", "need", "passing", "view")

    def __init__(self, need: Need, view: View) -> None:
        self.need = need
        self.view = view
        self.passing = filters.passing(need, view)
        """Nodes that pass every filter of one node."""
        self.enough: tuple[groups.Candidate, ...] = ()
        """Fabrics that suffice, best first."""
        self.fitting = self.passing
        if need.nodes > 1:
            self.enough = groups.sufficing(need, groups.candidates(view, self.passing))
            self.fitting = groups.fitting(self.enough)

    @property
    def fabrics(self) -> tuple[FabricCount, ...]:
        """Every fabric of the fleet; none for a replica on one node."""
        if self.need.nodes == 1:
            return ()
        return tuple(
            FabricCount(fabric=found.fabric, eligible=found.size, needs=self.need.nodes)
            for found in groups.candidates(self.view, self.passing)
        )


class Attempt:
    """A trial's outcome, and the moment at which it can be had again; a `Tried`."""

    __slots__ = ("_moment", "considered", "counts", "fit", "need")

    def __init__(self, trial: Trial, moment: Moment) -> None:
        need, view = trial.need, trial.view
        self.need = need
        self._moment = moment
        self.considered = view.size
        self.fit = trial.fitting.bit_count()
        self.counts: Mapping[Code, int] = filters.counts(need, view, self.fit)

    @property
    def profile(self) -> ProfileName:
        """Which profile."""
        return self.need.profile.name

    @property
    def fits(self) -> bool:
        """Whether there is room for it."""
        return self.fit > 0

    @property
    def trial(self) -> Trial:
        """The sets of nodes once more."""
        return Trial(self.need, view_at(self._moment))

    @property
    def fabrics(self) -> Sequence[FabricCount]:
        """Every fabric of the fleet; none for a replica on one node."""
        return () if self.need.nodes == 1 else self.trial.fabrics

    @property
    def rejected(self) -> "Rejections":
        """By node name."""
        return Rejections(self.trial)


class Rejections(Sequence[Rejection]):
    """The nodes turned down; a row is made when it is read, and costs what that row costs."""

    __slots__ = ("_against", "_nodes", "_view")

    def __init__(self, trial: Trial) -> None:
        self._view = trial.view
        self._against = filters.Against(trial.need, trial.fabrics)
        self._nodes = trial.view.lasting.every ^ trial.fitting

    def __len__(self) -> int:
        return self._nodes.bit_count()

    @overload
    def __getitem__(self, at: int) -> Rejection: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[Rejection, ...]: ...
    def __getitem__(self, at: int | slice) -> Rejection | tuple[Rejection, ...]:
        if isinstance(at, slice):
            start, stop, step = at.indices(len(self))
            if step != 1:
                return tuple(self)[at]
            return tuple(map(self._row, islice(bits.members(self._nodes), start, stop)))
        if at < 0:
            at += len(self)
        if at >= 0:
            for place in islice(bits.members(self._nodes), at, at + 1):
                return self._row(place)
        raise IndexError("there are not so many rejected nodes")

    def __iter__(self) -> Iterator[Rejection]:
        return map(self._row, bits.members(self._nodes))

    def _row(self, place: int) -> Rejection:
        row = self._view.row(place)
        return Rejection(node=row.node.name, reasons=self._against(row))
