"""The fleet as it changes: events in, immutable views out.

Every event costs some microseconds, and after any of them the view equals the one that would be
built from the rows anew. A view once taken stays as it is.
"""

from collections.abc import Callable, Hashable, Iterable

from roost.domain.allocation import Allocation
from roost.domain.fabric import FabricName
from roost.domain.fleet import Fleet
from roost.domain.gpu import Gpu, GpuClass
from roost.domain.model import Catalog
from roost.domain.node import Node, NodeName
from roost.placement import bits, events, slices
from roost.placement.cards import Cards, CardsKey, by_index, cards_key
from roost.placement.facets import Facet, Rules, free_of_class
from roost.placement.needs import Needs
from roost.placement.rows import Row
from roost.placement.view import CHUNK, Lasting, View


class Index:
    """Nodes and what is held on them, ready to be asked about the models of one catalog.

    Allocations on nodes that the fleet doesn't have are left out: they hold nothing that could be
    given to somebody else.
    """

    def __init__(self, catalog: Catalog, fleet: Fleet) -> None:
        self._needs = Needs(catalog)
        self._rules = Rules(self._needs)
        self._cards: dict[CardsKey, Cards] = {}
        self._view = self._built(fleet.nodes, fleet.allocations)

    @property
    def view(self) -> View:
        """The fleet as of now; taking it costs nothing."""
        return self._view

    def observe(self, node: Node) -> None:
        """What is now known of a node: other facts, readiness, a cordon, a GPU's health.

        A node not seen before is given its place, which costs as much as building the index.
        """
        place = self._view.places.get(node.name)
        if place is None:
            self._rebuild((*self._nodes(), node), self._allocations())
            return
        old = self._view.row(place)
        gpus, cards = old.gpus, old.cards
        if node.facts.gpus is not old.node.facts.gpus:
            gpus, cards = self._cards_of(node)
        self._view = events.observed(self._view, Row(node, cards, gpus, old.holds))

    def forget(self, name: NodeName) -> None:
        """A node was deleted, and what was held on it is no more; costs as much as building."""
        self._rebuild(
            (node for node in self._nodes() if node.name != name),
            (hold for hold in self._allocations() if hold.node != name),
        )

    def allocate(self, hold: Allocation) -> None:
        """A replica now holds this on its node."""
        self._view = events.allocated(self._view, hold)

    def release(self, hold: Allocation) -> None:
        """What was held is free again; `hold` is as it was allocated."""
        self._view = events.released(self._view, hold)

    def _nodes(self) -> Iterable[Node]:
        return (row.node for row in self._view.every_row())

    def _allocations(self) -> Iterable[Allocation]:
        return (hold for row in self._view.every_row() for hold in row.holds)

    def _rebuild(self, nodes: Iterable[Node], allocations: Iterable[Allocation]) -> None:
        self._view = self._built(tuple(nodes), tuple(allocations))

    def _built(self, nodes: Iterable[Node], allocations: Iterable[Allocation]) -> View:
        holds: dict[NodeName, list[Allocation]] = {}
        for hold in allocations:
            holds.setdefault(hold.node, []).append(hold)
        rows: list[Row] = []
        for node in sorted(nodes, key=lambda node: node.name):
            gpus, cards = self._cards_of(node)
            rows.append(Row(node, cards, gpus, tuple(holds.get(node.name, ()))))
        size = len(rows)
        needs, rules = self._needs, self._rules
        numbers: list[Callable[[Row], int]] = [rules.cpu_replicas, rules.memory_left]
        numbers.extend(_free_of(gpu_class) for gpu_class in needs.classes)
        fabrics: dict[FabricName, list[int]] = {}
        for place, row in enumerate(rows):
            for fabric in events.fabrics_of(row):
                fabrics.setdefault(fabric, []).append(place)
        lasting = Lasting(
            needs,
            (1 << size) - 1,
            _sets(rows, rules.lasting, needs.lasting_sets),
            {name: bits.gathered(places, size) for name, places in fabrics.items()},
        )
        return View(
            needs,
            rules,
            {row.node.name: place for place, row in enumerate(rows)},
            tuple(tuple(rows[at : at + CHUNK]) for at in range(0, size, CHUNK)),
            lasting,
            _sets(rows, rules.present, needs.present_sets),
            tuple(slices.gathered(_groups(rows, number), size) for number in numbers),
        )

    def _cards_of(self, node: Node) -> tuple[tuple[Gpu, ...], Cards | None]:
        if node.facts.gpus is None:
            return (), None
        gpus = by_index(node.facts.gpus)
        key = cards_key(gpus)
        cards = self._cards.get(key)
        if cards is None:
            cards = self._cards[key] = Cards(gpus)
        return gpus, cards


def _groups(rows: list[Row], number: Callable[[Row], int]) -> dict[int, list[int]]:
    groups: dict[int, list[int]] = {}
    for place, row in enumerate(rows):
        groups.setdefault(number(row), []).append(place)
    return groups


def _free_of(gpu_class: GpuClass) -> Callable[[Row], int]:
    return lambda row: free_of_class(row, gpu_class)


def _sets(rows: list[Row], by: Iterable[Facet], count: int) -> tuple[int, ...]:
    """All sets that follow from these facets, from nothing."""
    sets = [0] * count
    for facet in by:
        groups: dict[Hashable, list[int]] = {}
        for place, row in enumerate(rows):
            groups.setdefault(facet.value(facet.read(row)), []).append(place)
        for value, places in groups.items():
            nodes = bits.gathered(places, len(rows))
            for number in facet.sets(value):
                sets[number] |= nodes
    return tuple(sets)
