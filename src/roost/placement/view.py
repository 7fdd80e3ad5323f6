"""A fleet at one moment, as sets of nodes: what `decide` looks at. Nothing in it ever changes."""

from collections.abc import Iterator
from typing import TypeAlias

from roost.domain.fabric import FabricName, HcaName
from roost.domain.model import Model
from roost.domain.node import NodeName
from roost.domain.reasons import Code
from roost.placement import slices
from roost.placement.facets import Rules
from roost.placement.needs import ON_A_FABRIC, Need, Needs
from roost.placement.rows import Row
from roost.placement.slices import Slices

CHUNK = 64
"""Rows are kept in tuples of this many, so that replacing one copies little."""


Charged: TypeAlias = tuple[int, int, tuple[int, int, dict[Code, int]]]
"""For these nodes ready and these open: what the filters leave that no allocation changes, how many
that is, and how many each has stopped.
"""


class Lasting:
    """The sets that follow from what nodes are; most events leave them as they are.

    What is worked out from them is remembered, which no answer can show.
    """

    __slots__ = ("_ever", "_passing", "_rank", "charged", "every", "fabrics", "needs", "sets")

    def __init__(
        self, needs: Needs, every: int, sets: tuple[int, ...], fabrics: dict[FabricName, int]
    ) -> None:
        self.needs = needs
        self.every = every
        self.sets = sets
        self.fabrics = dict(sorted(fabrics.items()))
        self._passing: dict[Need, int] = {}
        self._ever: dict[Need, int] = {}
        self._rank: Slices | None = None
        self.charged: dict[Need, Charged] = {}

    def passing(self, need: Need) -> int:
        """Nodes that pass those filters of a profile that no allocation or repair changes."""
        known = self._passing.get(need)
        if known is None:
            known = self._passing[need] = self._identity(need)
        return known

    def ever(self, need: Need) -> int:
        """Nodes that could ever hold a part of it, whatever is free, ready or healthy now.

        On a fabric is enough: how many others are on it is not what this node is.
        """
        known = self._ever.get(need)
        if known is None:
            known = self._identity(need)
            if need.memory_size >= 0:
                known &= self.sets[need.memory_size]
            if need.disk_size >= 0:
                known &= self.sets[need.disk_size]
            self._ever[need] = known
        return known

    def _identity(self, need: Need) -> int:
        left = self.every & self.sets[need.engine]
        for label in need.labels:
            left &= self.sets[label]
        if need.kind is not None:
            left &= self.sets[need.of_class] & self.sets[need.large]
        if need.nodes > 1:
            left &= self.sets[ON_A_FABRIC]
        return left

    @property
    def scarcity(self) -> Slices:
        """How many GPUs the catalog's replicas could want of each node."""
        return slices.summed((self.ever(need), need.weight) for need in self.needs.every)

    @property
    def scarcity_rank(self) -> Slices:
        """The rank of each node's scarcity among all that occur."""
        if self._rank is None:
            self._rank = slices.ranked(self.scarcity, self.every)
        return self._rank

    def nodes_for(self, model: Model) -> int:
        """How many nodes could ever hold a replica of it, by any of its profiles."""
        union = 0
        for need in self.needs.by_model[model.name]:
            union |= self.ever(need)
        return union.bit_count()


class View:
    """All nodes by name: bit and place `i` of every set and sequence are the `i`-th node."""

    __slots__ = ("lasting", "needs", "numbers", "places", "present", "rows", "rules")

    def __init__(
        self,
        needs: Needs,
        rules: Rules,
        places: dict[NodeName, int],
        rows: tuple[tuple[Row, ...], ...],
        lasting: Lasting,
        present: tuple[int, ...],
        numbers: tuple[Slices, ...],
    ) -> None:
        self.needs = needs
        self.rules = rules
        self.places = places
        self.rows = rows
        self.lasting = lasting
        self.present = present
        self.numbers = numbers

    @property
    def size(self) -> int:
        """How many nodes there are."""
        return len(self.places)

    def row(self, place: int) -> Row:
        """The node at a place."""
        return self.rows[place // CHUNK][place % CHUNK]

    def every_row(self) -> Iterator[Row]:
        """All nodes by name."""
        for chunk in self.rows:
            yield from chunk


def hcas_of(row: Row, fabric: FabricName) -> tuple[HcaName, ...]:
    """Every usable adapter of a node on one fabric, as it lists them."""
    return tuple(
        hca
        for attachment in row.node.facts.fabrics or ()
        if attachment.name == fabric
        for hca in attachment.hcas
    )
