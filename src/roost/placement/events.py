"""What an event makes of a view: another view, that shares all that the event leaves as it is."""

from collections.abc import Iterable

from roost.domain.allocation import Allocation
from roost.domain.fabric import FabricName
from roost.placement import slices
from roost.placement.facets import Facet, free_of_class
from roost.placement.needs import CPU_REPLICAS, MEMORY_LEFT
from roost.placement.rows import Row
from roost.placement.slices import Slices
from roost.placement.view import CHUNK, Lasting, View


def allocated(view: View, hold: Allocation) -> View:
    """A replica now holds this on its node."""
    place = view.places[hold.node]
    old = view.row(place)
    return _replaced(view, place, old, old.holding(hold), view.rules.held)


def released(view: View, hold: Allocation) -> View:
    """What was held is free again; `hold` is as it was allocated."""
    place = view.places[hold.node]
    old = view.row(place)
    return _replaced(view, place, old, old.releasing(hold), view.rules.held)


def observed(view: View, new: Row) -> View:
    """All else that is known of a node has changed."""
    place = view.places[new.node.name]
    return _replaced(view, place, view.row(place), new, view.rules.present)


def fabrics_of(row: Row) -> frozenset[FabricName]:
    """On which fabrics a node is."""
    return frozenset(fabric.name for fabric in row.node.facts.fabrics or () if fabric.hcas)


def _replaced(view: View, place: int, old: Row, new: Row, may_change: tuple[Facet, ...]) -> View:
    lasting = view.lasting
    if new.node.facts is not old.node.facts:
        sets = _flipped(lasting.sets, view.rules.lasting, old, new, place)
        fabrics = _moved(lasting.fabrics, fabrics_of(old), fabrics_of(new), place)
        if sets is not lasting.sets or fabrics is not lasting.fabrics:
            lasting = Lasting(lasting.needs, lasting.every, sets, fabrics)
    at, inside = divmod(place, CHUNK)
    rows, chunk = view.rows, view.rows[at]
    chunk = (*chunk[:inside], new, *chunk[inside + 1 :])
    return View(
        view.needs,
        view.rules,
        view.places,
        (*rows[:at], chunk, *rows[at + 1 :]),
        lasting,
        _flipped(view.present, may_change, old, new, place),
        _renumbered(view, place, old, new),
    )


def _flipped(
    sets: tuple[int, ...], by: Iterable[Facet], old: Row, new: Row, place: int
) -> tuple[int, ...]:
    """The sets with one node moved to where its new row belongs; the same ones if it stays."""
    changed: list[int] | None = None
    bit = 0
    for facet in by:
        for number in facet.flips(old, new):
            if changed is None:
                changed = list(sets)
                bit = 1 << place
            changed[number] ^= bit
    return sets if changed is None else tuple(changed)


def _renumbered(view: View, place: int, old: Row, new: Row) -> tuple[Slices, ...]:
    """The numbers by which nodes are ranked, with those of one node changed."""
    rules = view.rules
    changes = []
    if rules.on_cpu:
        changes.append((CPU_REPLICAS, old.cpu_replicas, new.cpu_replicas))
        if old.memory_left != new.memory_left:
            changes.append((MEMORY_LEFT, rules.memory_left(old), rules.memory_left(new)))
    if old.free != new.free or old.cards is not new.cards:
        classes = {**(old.cards.of_class if old.cards else {})}
        if new.cards is not None and new.cards is not old.cards:
            classes |= new.cards.of_class
        for gpu_class in classes:
            number = view.needs.classes.get(gpu_class)
            if number is not None:
                changes.append(
                    (number, free_of_class(old, gpu_class), free_of_class(new, gpu_class))
                )
    numbers: list[Slices] | None = None
    for number, before, after in changes:
        if before != after:
            if numbers is None:
                numbers = list(view.numbers)
            numbers[number] = slices.changed(numbers[number], place, before, after)
    return view.numbers if numbers is None else tuple(numbers)


def _moved(
    fabrics: dict[FabricName, int],
    before: frozenset[FabricName],
    after: frozenset[FabricName],
    place: int,
) -> dict[FabricName, int]:
    """The nodes of each fabric with one node moved; a fabric without nodes is none."""
    if before == after:
        return fabrics
    moved = dict(fabrics)
    for name in before ^ after:
        moved[name] = moved.get(name, 0) ^ (1 << place)
        if not moved[name]:
            del moved[name]
    return moved
