"""What cards a node has, as bits over their positions in the order of their indices.

Everything here follows from what kind of cards they are, so thousands of equal machines share one
`Cards`; which of them are free is a set of positions that the caller holds.
"""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, TypeAlias

from roost.domain.gpu import Gpu, GpuClass
from roost.placement import bits, nvlink

CardsKey: TypeAlias = tuple[tuple[int, str, int | None, int | None], ...]


class Kind:
    """Cards that a profile can use; compared by identity, so a catalog has one for each."""

    __slots__ = ("gpu_class", "least_memory")

    def __init__(self, gpu_class: GpuClass, least_memory: int | None) -> None:
        self.gpu_class = gpu_class
        self.least_memory = least_memory
        """Of each card; `None` is no requirement."""


_REMEMBERED: Final = 20_000
"""A node of 8 cards has at most 256 states; of more cards, not all states are remembered."""


class Room(NamedTuple):
    """How much of a kind is free on a node."""

    usable: int
    """Free cards of the class that are large enough."""
    span: int
    """The most usable ones that may be in one NVLink domain."""


class Cards:
    """The cards of one or many nodes; unchanging, compared by identity."""

    __slots__ = (
        "_by_domain",
        "_chosen",
        "_kinds",
        "_memory",
        "_rooms",
        "count",
        "of_class",
        "unknown_domain",
    )

    def __init__(self, gpus: Sequence[Gpu]) -> None:
        of_class: dict[GpuClass, int] = {}
        by_domain: dict[int, int] = {}
        unknown = 0
        for position, gpu in enumerate(gpus):
            bit = 1 << position
            of_class[gpu.gpu_class] = of_class.get(gpu.gpu_class, 0) | bit
            if gpu.nvlink_domain is None:
                unknown |= bit
            else:
                by_domain[gpu.nvlink_domain] = by_domain.get(gpu.nvlink_domain, 0) | bit
        self.count = len(gpus)
        self.of_class = of_class
        self.unknown_domain = unknown
        self._by_domain = tuple(by_domain.values())
        self._memory = tuple(gpu.memory_bytes for gpu in gpus)
        self._kinds: dict[Kind, int] = {}
        self._rooms: dict[tuple[Kind, int], Room] = {}
        self._chosen: dict[tuple[Kind, int, int], tuple[int, ...]] = {}

    def of_kind(self, kind: Kind) -> int:
        """The cards of the class that have the memory asked for, or don't report theirs."""
        known = self._kinds.get(kind)
        if known is None:
            known = self.of_class.get(kind.gpu_class, 0)
            if kind.least_memory is not None:
                for position, memory in enumerate(self._memory):
                    if memory is not None and memory < kind.least_memory:
                        known &= ~(1 << position)
            self._kinds[kind] = known
        return known

    def room(self, kind: Kind, free: int) -> Room:
        """What `free` cards offer to a profile that asks for this kind."""
        key = (kind, free)
        known = self._rooms.get(key)
        if known is None:
            usable = self.of_kind(kind) & free
            if len(self._rooms) >= _REMEMBERED:
                self._rooms.clear()
            known = self._rooms[key] = Room(
                usable.bit_count(),
                nvlink.span(self._by_domain, self.unknown_domain, usable),
            )
        return known

    def choose(self, kind: Kind, free: int, count: int) -> tuple[int, ...]:
        """The positions to take for a group of `count`."""
        key = (kind, free, count)
        known = self._chosen.get(key)
        if known is None:
            free &= self.of_class.get(kind.gpu_class, 0)
            chosen = nvlink.choose(self._by_domain, free, free & self.of_kind(kind), count)
            if len(self._chosen) >= _REMEMBERED:
                self._chosen.clear()
            known = self._chosen[key] = tuple(bits.members(chosen))
        return known

    def domains_of(self, positions: Iterable[int]) -> tuple[int, bool]:
        """How many known NVLink domains these are in, and whether some are in an unknown one."""
        cards = sum(1 << position for position in positions)
        return nvlink.touched(self._by_domain, self.unknown_domain, cards)


def by_index(gpus: Iterable[Gpu]) -> tuple[Gpu, ...]:
    """The order in which positions are counted."""
    return tuple(sorted(gpus, key=lambda gpu: gpu.index))


def cards_key(gpus: Iterable[Gpu]) -> CardsKey:
    """Equal for nodes that can share one `Cards`."""
    return tuple((g.index, g.gpu_class, g.memory_bytes, g.nvlink_domain) for g in gpus)
