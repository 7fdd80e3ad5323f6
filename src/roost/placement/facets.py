"""In which sets a node is: one facet of a node at a time, and what follows from its value.

Many nodes have equal values, so the sets that follow are worked out once a value.
"""

from bisect import bisect_right
from collections.abc import Callable, Hashable, Iterable, Mapping
from operator import attrgetter
from typing import Any, Final

from roost.domain.gpu import GpuClass
from roost.placement.cards import Cards
from roost.placement.needs import (
    ON_A_FABRIC,
    OPEN,
    PARTLY_USED,
    READY,
    REPORTS_GPUS,
    REPORTS_NO_GPU,
    Needs,
    Thresholds,
)
from roost.placement.rows import Row, disk_size

_REMEMBERED: Final = 20_000


class Facet:
    """What is read of a node comes to a value, and that decides in which of some sets it is."""

    __slots__ = ("_flips", "_follows", "_sets", "read", "value")

    def __init__(
        self,
        read: Callable[[Row], Any],
        follows: Callable[[Any], Iterable[int]],
        value: Callable[[Any], Hashable] = lambda read: read,
    ) -> None:
        self.read = read
        """Cheap, and enough to see that nothing has changed."""
        self.value = value
        self._follows = follows
        self._sets: dict[Hashable, frozenset[int]] = {}
        self._flips: dict[tuple[Hashable, Hashable], tuple[int, ...]] = {}

    def sets(self, value: Hashable) -> frozenset[int]:
        """The numbers of the sets in which nodes of this value are."""
        known = self._sets.get(value)
        if known is None:
            if len(self._sets) >= _REMEMBERED:
                self._sets.clear()
            known = self._sets[value] = frozenset(self._follows(value))
        return known

    def flips(self, old: Row, new: Row) -> tuple[int, ...]:
        """The sets that a node enters or leaves."""
        before, after = self.read(old), self.read(new)
        if before == after:
            return ()
        key = (self.value(before), self.value(after))
        known = self._flips.get(key)
        if known is None:
            if len(self._flips) >= _REMEMBERED:
                self._flips.clear()
            known = self._flips[key] = tuple(self.sets(key[0]) ^ self.sets(key[1]))
        return known


class Rules:
    """All that follows from a row, for one catalog."""

    __slots__ = ("held", "lasting", "on_cpu", "present", "states")

    def __init__(self, needs: Needs) -> None:
        self.lasting = _lasting(needs)
        """What a node is."""
        self.states = (
            Facet(attrgetter("node.ready"), lambda ready: (READY,) if ready else ()),
            Facet(is_open, lambda is_open: (OPEN,) if is_open else ()),
        )
        """What is said of it."""
        self.held = _held(needs)
        """What is left of it."""
        self.present = self.states + self.held
        self.on_cpu = needs.on_cpu

    def cpu_replicas(self, row: Row) -> int:
        """By which CPU replicas are spread; nobody asks where no profile runs on the CPU."""
        return row.cpu_replicas if self.on_cpu else 0

    def memory_left(self, row: Row) -> int:
        """More is better, and 0 is "not known"; nobody asks where no profile runs on the CPU."""
        if not self.on_cpu or row.memory_left is None:
            return 0
        return max(0, row.memory_left) + 1


def free_of_class(row: Row, gpu_class: GpuClass) -> int:
    """How many cards of a class are free."""
    if row.cards is None:
        return 0
    return (row.cards.of_class.get(gpu_class, 0) & row.free).bit_count()


def _lasting(needs: Needs) -> tuple[Facet, ...]:
    def labels(carried: Mapping[str, str]) -> Hashable:
        return tuple(
            number for (key, value), number in needs.labels.items() if carried.get(key) == value
        )

    def engines(reported: frozenset[str] | None) -> Iterable[int]:
        return (
            number
            for engine, number in needs.engines.items()
            if reported is None or engine in reported
        )

    def cards(cards: Cards | None) -> Iterable[int]:
        if cards is None:
            return
        yield REPORTS_GPUS
        if not cards.count:
            yield REPORTS_NO_GPU
        for sets in needs.kinds:
            of_class = cards.of_class.get(sets.kind.gpu_class, 0).bit_count()
            large = cards.of_kind(sets.kind).bit_count()
            yield from (number for count, number in sets.of_class.items() if of_class >= count)
            yield from (number for count, number in sets.large.items() if large >= count)

    return (
        Facet(attrgetter("node.facts.labels"), lambda numbers: numbers, labels),
        Facet(attrgetter("node.facts.engines"), engines),
        _reaches(attrgetter("node.facts.memory_bytes"), needs.memory_size),
        _reaches(lambda row: disk_size(row.disks), needs.disk_size),
        Facet(attrgetter("cards"), cards),
        Facet(is_on_a_fabric, lambda on_one: (ON_A_FABRIC,) if on_one else ()),
    )


def _held(needs: Needs) -> tuple[Facet, ...]:
    def free(value: tuple[Cards | None, int, bool]) -> Iterable[int]:
        cards, free, partly_used = value
        if partly_used:
            yield PARTLY_USED
        if cards is None:
            return
        for sets in needs.kinds:
            room = cards.room(sets.kind, free)
            yield from (number for count, number in sets.usable.items() if room.usable >= count)
            yield from (number for count, number in sets.one_domain.items() if room.span >= count)

    return (
        _reaches(attrgetter("memory_left"), needs.memory),
        _reaches(attrgetter("disk_room"), needs.disk),
        Facet(
            attrgetter("cards", "free", "taken"),
            free,
            lambda read: (read[0], read[1], bool(read[2])),
        ),
    )


def is_open(row: Row) -> bool:
    """Whether new work may go there; a draining node is a cordoned one."""
    return not (row.node.cordoned or row.node.draining)


def is_on_a_fabric(row: Row) -> bool:
    """Whether it reports a fabric with at least one usable adapter."""
    return any(fabric.hcas for fabric in row.node.facts.fabrics or ())


def _reaches(amount: Callable[[Row], int | None], thresholds: Thresholds) -> Facet:
    """The sets of the amounts that a node has; one that doesn't report has them all.

    What is overdrawn counts as nothing left, so that a need of 0 is met everywhere.
    """
    everything = len(thresholds.amounts)

    def reached(has: int | None) -> int:
        return everything if has is None else bisect_right(thresholds.amounts, max(0, has))

    return Facet(amount, lambda count: thresholds.sets[:count], reached)
