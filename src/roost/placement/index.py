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
from roost.placement import bits, facets, slices
from roost.placement.cards import NO_ROOM, Cards, CardsKey, Kind, by_index, cards_key
from roost.placement.needs import MEMORY_LEFT, Needs
from roost.placement.rows import Row
from roost.placement.slices import Slices
from roost.placement.view import CHUNK, Lasting, View


class Index:
    """Nodes and what is held on them, ready to be asked about the models of one catalog.

    Allocations on nodes that the fleet doesn't have are left out: they hold nothing that could be
    given to somebody else.
    """

    def __init__(self, catalog: Catalog, fleet: Fleet) -> None:
        self._needs = Needs(catalog)
        self._lasting_facets = facets.lasting(self._needs)
        self._present_facets = facets.present(self._needs)
        self._numbers = _numbers(self._needs)
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
        self._replace(place, old, Row(node, cards, gpus, old.holds))

    def forget(self, name: NodeName) -> None:
        """A node was deleted, and what was held on it is no more; costs as much as building."""
        self._rebuild(
            (node for node in self._nodes() if node.name != name),
            (hold for hold in self._allocations() if hold.node != name),
        )

    def allocate(self, hold: Allocation) -> None:
        """A replica now holds this on its node."""
        place = self._view.places[hold.node]
        old = self._view.row(place)
        self._replace(place, old, old.holding(hold))

    def release(self, hold: Allocation) -> None:
        """What was held is free again; `hold` is as it was allocated."""
        place = self._view.places[hold.node]
        old = self._view.row(place)
        self._replace(place, old, old.releasing(hold))

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
        needs = self._needs
        fabrics: dict[FabricName, list[int]] = {}
        for place, row in enumerate(rows):
            for fabric in _fabrics(row):
                fabrics.setdefault(fabric, []).append(place)
        lasting = Lasting(
            needs,
            (1 << size) - 1,
            _sets(rows, self._lasting_facets, needs.lasting_sets),
            {name: bits.gathered(places, size) for name, places in fabrics.items()},
        )
        return View(
            needs,
            {row.node.name: place for place, row in enumerate(rows)},
            tuple(tuple(rows[at : at + CHUNK]) for at in range(0, size, CHUNK)),
            lasting,
            _sets(rows, self._present_facets, needs.present_sets),
            [slices.gathered(_groups(rows, number), size) for number in self._numbers],
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

    def _replace(self, place: int, old: Row, new: Row) -> None:
        view = self._view
        bit = 1 << place
        lasting = view.lasting
        if new.node.facts is not old.node.facts:
            sets = _flipped(lasting.sets, self._lasting_facets, old, new, bit)
            fabrics = _refabricked(lasting.fabrics, _fabrics(old), _fabrics(new), bit)
            if sets is not lasting.sets or fabrics is not lasting.fabrics:
                lasting = Lasting(lasting.needs, lasting.every, sets, fabrics)
        numbers: list[Slices] | None = None
        for j, number in enumerate(self._numbers):
            before, after = number(old), number(new)
            if before != after:
                if numbers is None:
                    numbers = view.numbers.copy()
                numbers[j] = slices.changed(numbers[j], place, before, after)
        at, inside = divmod(place, CHUNK)
        chunk = list(view.rows[at])
        chunk[inside] = new
        rows = list(view.rows)
        rows[at] = tuple(chunk)
        self._view = View(
            view.needs,
            view.places,
            tuple(rows),
            lasting,
            _flipped(view.present, self._present_facets, old, new, bit),
            view.numbers if numbers is None else numbers,
        )


def _numbers(needs: Needs) -> tuple[Callable[[Row], int], ...]:
    """The numbers by which nodes are ranked, in the order of `needs`."""

    def free_of(gpu_class: GpuClass) -> Callable[[Row], int]:
        kind = Kind(gpu_class, None)

        def free(row: Row) -> int:
            room = NO_ROOM if row.cards is None else row.cards.room(kind, row.free)
            return room.of_class

        return free

    def memory_left(row: Row) -> int:
        # 0 is "not known": it comes last.
        return 0 if row.memory_left is None else max(0, row.memory_left) + 1

    def nothing(row: Row) -> int:  # noqa: ARG001 - no profile runs on the CPU, so nobody asks
        return 0

    common: tuple[Callable[[Row], int], ...] = (nothing,) * (MEMORY_LEFT + 1)
    if needs.on_cpu:
        common = (lambda row: row.cpu_replicas, memory_left)
    return (*common, *(free_of(gpu_class) for gpu_class in needs.classes))


def _groups(rows: list[Row], number: Callable[[Row], int]) -> dict[int, list[int]]:
    groups: dict[int, list[int]] = {}
    for place, row in enumerate(rows):
        groups.setdefault(number(row), []).append(place)
    return groups


def _sets(rows: list[Row], by: tuple[facets.Facet, ...], count: int) -> list[int]:
    """All sets that follow from these facets, from nothing."""
    sets = [0] * count
    for facet in by:
        groups: dict[Hashable, list[int]] = {}
        for place, row in enumerate(rows):
            groups.setdefault(facet.value(row), []).append(place)
        for value, places in groups.items():
            nodes = bits.gathered(places, len(rows))
            for number in facet.sets(value):
                sets[number] |= nodes
    return sets


def _flipped(
    sets: list[int], by: tuple[facets.Facet, ...], old: Row, new: Row, bit: int
) -> list[int]:
    """The sets with one node moved to where its new row belongs; the same list if it stays."""
    changed: list[int] | None = None
    for facet in by:
        before, after = facet.value(old), facet.value(new)
        if before == after:
            continue
        for number in facet.sets(before) ^ facet.sets(after):
            if changed is None:
                changed = sets.copy()
            changed[number] ^= bit
    return sets if changed is None else changed


def _fabrics(row: Row) -> frozenset[FabricName]:
    return frozenset(fabric.name for fabric in row.node.facts.fabrics or () if fabric.hcas)


def _refabricked(
    fabrics: dict[FabricName, int],
    before: frozenset[FabricName],
    after: frozenset[FabricName],
    bit: int,
) -> dict[FabricName, int]:
    """The nodes of each fabric with one node moved; a fabric without nodes is none."""
    if before == after:
        return fabrics
    moved = dict(fabrics)
    for name in before ^ after:
        moved[name] = moved.get(name, 0) ^ bit
        if not moved[name]:
            del moved[name]
    return moved
