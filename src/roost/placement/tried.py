"""What became of one profile on every node; what costs something is worked out when it is read."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice
from typing import overload

from roost.domain.profile import ProfileName
from roost.domain.reasons import Code
from roost.placement import bits, filters, groups
from roost.placement.decision import FabricCount, Rejection
from roost.placement.needs import Need
from roost.placement.view import View


class Attempt:
    """One profile tried on one view; a `Tried`."""

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
    def profile(self) -> ProfileName:
        """Which profile."""
        return self.need.profile.name

    @property
    def fits(self) -> bool:
        """Whether there is room for it."""
        return bool(self.fitting)

    @property
    def considered(self) -> int:
        """All nodes of the fleet."""
        return self.view.size

    @property
    def fit(self) -> int:
        """Nodes that could be chosen."""
        return self.fitting.bit_count()

    @cached_property
    def counts(self) -> Mapping[Code, int]:
        """Each rejected node charged to the first of its reasons."""
        return filters.counts(self.need, self.view, self.fitting)

    @cached_property
    def fabrics(self) -> Sequence[FabricCount]:
        """Every fabric of the fleet; none for a replica on one node."""
        if self.need.nodes == 1:
            return ()
        return tuple(
            FabricCount(
                fabric=found.fabric, eligible=found.nodes.bit_count(), needs=self.need.nodes
            )
            for found in groups.candidates(self.view, self.passing)
        )

    @cached_property
    def rejected(self) -> Sequence[Rejection]:
        """By node name."""
        return Rejections(self)


class Rejections(Sequence[Rejection]):
    """The nodes turned down; a row is made when it is read, and costs what that row costs."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._nodes = attempt.view.lasting.every ^ attempt.fitting
        self._fabrics = {count.fabric: count for count in attempt.fabrics}

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
                return tuple(self[place] for place in range(start, stop, step))
            return tuple(map(self._row, islice(bits.members(self._nodes), start, stop)))
        if at < 0:
            at += len(self)
        for place in islice(bits.members(self._nodes), max(0, at), at + 1):
            return self._row(place)
        raise IndexError("no such row")

    def __iter__(self) -> Iterator[Rejection]:
        return map(self._row, bits.members(self._nodes))

    def _row(self, place: int) -> Rejection:
        row = self._attempt.view.row(place)
        return Rejection(
            node=row.node.name, reasons=filters.against(self._attempt.need, row, self._fabrics)
        )
