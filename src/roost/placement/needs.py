"""What the profiles of a catalog ask for: each requirement once, with its set's number.

A *lasting* set follows from what nodes are (labels, engines, sizes, cards, fabrics); a *present*
one also from what is ready, open, healthy and free now. A view has one list of each.
"""

from collections.abc import Hashable, Iterable
from typing import Final

from roost.domain.gpu import GpuClass
from roost.domain.model import Catalog, Model, ModelName
from roost.domain.profile import Engine, Profile
from roost.placement.cards import Kind

# Lasting sets that every catalog has.
REPORTS_GPUS: Final = 0
REPORTS_NO_GPU: Final = 1
"""Reports its GPUs, and has none."""
ON_A_FABRIC: Final = 2

# Present sets that every catalog has.
READY: Final = 0
OPEN: Final = 1
"""Not cordoned."""
PARTLY_USED: Final = 2
"""Some GPU of it, of whatever class, is allocated."""

# Numbers that every catalog has.
CPU_REPLICAS: Final = 0
MEMORY_LEFT: Final = 1


class Need:
    """One profile's requirements. A set that is `None` is no requirement."""

    __slots__ = (
        "cards",
        "disk",
        "disk_size",
        "engine",
        "free_of_class",
        "kind",
        "labels",
        "large",
        "memory",
        "memory_size",
        "nodes",
        "of_class",
        "one_domain",
        "profile",
        "usable",
        "weight",
    )

    def __init__(self, profile: Profile, model: Model, numbered: "_Numbered") -> None:
        lasting, present = numbered.lasting, numbered.present
        self.profile = profile
        self.nodes = profile.nodes
        self.cards = profile.gpus_per_node if profile.gpu_class is not None else 0
        self.kind: Kind | None = None
        self.of_class = self.large = self.usable = self.one_domain = self.free_of_class = -1
        if profile.gpu_class is not None and self.cards:
            kind = self.kind = numbered.kind(profile.gpu_class, profile.min_gpu_memory_bytes)
            self.of_class = lasting(("class", kind.gpu_class, self.cards))
            self.large = lasting(("large", kind, self.cards))
            self.usable = present(("usable", kind, self.cards))
            self.one_domain = present(("one domain", kind, self.cards))
            self.free_of_class = numbered.number(kind.gpu_class)
        self.labels = tuple(
            lasting(("label", key, value)) for key, value in sorted(profile.node_selector.items())
        )
        self.engine = lasting(("engine", profile.engine))
        self.memory = self.memory_size = self.disk = self.disk_size = -1
        if (memory := profile.min_memory_bytes) is not None:
            self.memory = present(("memory", memory))
            self.memory_size = lasting(("memory", memory))
        if (disk := profile.min_disk_bytes) is not None:
            self.disk = present(("disk", disk))
            self.disk_size = lasting(("disk", disk))
        self.weight = model.replicas * self.cards * self.nodes


class _Numbered:
    """Gives every requirement its number, the same for the same catalog."""

    def __init__(self) -> None:
        self.lasting_keys: dict[Hashable, int] = {}
        self.present_keys: dict[Hashable, int] = {}
        self.classes: dict[GpuClass, int] = {}
        self._kinds: dict[tuple[GpuClass, int | None], Kind] = {}

    def kind(self, gpu_class: GpuClass, least_memory: int | None) -> Kind:
        key = (gpu_class, least_memory)
        return self._kinds.setdefault(key, Kind(gpu_class, least_memory))

    def lasting(self, key: Hashable) -> int:
        return self.lasting_keys.setdefault(key, len(self.lasting_keys) + ON_A_FABRIC + 1)

    def present(self, key: Hashable) -> int:
        return self.present_keys.setdefault(key, len(self.present_keys) + PARTLY_USED + 1)

    def number(self, gpu_class: GpuClass) -> int:
        return self.classes.setdefault(gpu_class, len(self.classes) + MEMORY_LEFT + 1)


class Thresholds:
    """Amounts that profiles ask for, ascending, and the sets of the nodes that have as much."""

    __slots__ = ("amounts", "sets")

    def __init__(self, pairs: Iterable[tuple[int, int]]) -> None:
        ascending = sorted(pairs)
        self.amounts = [amount for amount, _ in ascending]
        self.sets = tuple(number for _, number in ascending)


class CardSets:
    """The sets of one kind of card: for each count that is asked for, by count."""

    __slots__ = ("kind", "large", "of_class", "one_domain", "usable")

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.of_class: dict[int, int] = {}
        self.large: dict[int, int] = {}
        self.usable: dict[int, int] = {}
        self.one_domain: dict[int, int] = {}


class Needs:
    """A catalog as placement keeps it."""

    __slots__ = (
        "by_model",
        "catalog",
        "classes",
        "disk",
        "disk_size",
        "engines",
        "every",
        "kinds",
        "labels",
        "lasting_sets",
        "memory",
        "memory_size",
        "numbers",
        "on_cpu",
        "present_sets",
    )

    def __init__(self, catalog: Catalog) -> None:
        numbered = _Numbered()
        self.catalog = catalog
        self.by_model: dict[ModelName, tuple[Need, ...]] = {
            model.name: tuple(
                Need(profile, model, numbered)
                for profile in sorted(model.profiles, key=lambda profile: -profile.priority)
            )
            for model in catalog.models
        }
        self.every = tuple(need for needs in self.by_model.values() for need in needs)
        self.on_cpu = any(need.kind is None and need.nodes == 1 for need in self.every)
        self.classes = numbered.classes
        self.lasting_sets = len(numbered.lasting_keys) + ON_A_FABRIC + 1
        self.present_sets = len(numbered.present_keys) + PARTLY_USED + 1
        self.numbers = len(self.classes) + MEMORY_LEFT + 1
        self.labels: dict[tuple[str, str], int] = {}
        self.engines: dict[Engine, int] = {}
        kinds: dict[Kind, CardSets] = {}
        for need in self.every:
            for pair, number in zip(
                sorted(need.profile.node_selector.items()), need.labels, strict=True
            ):
                self.labels[pair] = number
            self.engines[need.profile.engine] = need.engine
            if need.kind is not None:
                sets = kinds.setdefault(need.kind, CardSets(need.kind))
                sets.of_class[need.cards] = need.of_class
                sets.large[need.cards] = need.large
                sets.usable[need.cards] = need.usable
                sets.one_domain[need.cards] = need.one_domain
        self.kinds = tuple(kinds.values())
        self.memory = self._thresholds("min_memory_bytes", "memory")
        self.memory_size = self._thresholds("min_memory_bytes", "memory_size")
        self.disk = self._thresholds("min_disk_bytes", "disk")
        self.disk_size = self._thresholds("min_disk_bytes", "disk_size")

    def _thresholds(self, amount: str, number: str) -> Thresholds:
        return Thresholds(
            {
                (getattr(need.profile, amount), getattr(need, number))
                for need in self.every
                if getattr(need.profile, amount) is not None
            }
        )
