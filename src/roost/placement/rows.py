"""What placement keeps of one node: its facts as bits and numbers, and what is held on it.

A row is never changed: an event makes another one, and a view that has the old row stays exact.
"""

from collections.abc import Iterable, Sequence

from roost.domain.allocation import Allocation
from roost.domain.gpu import Gpu
from roost.domain.node import Filesystem, Node
from roost.placement.cards import Cards


class Disk:
    """One local filesystem; `None` is "not reported"."""

    __slots__ = ("free", "total")

    def __init__(self, free: int | None, total: int | None) -> None:
        self.free = free
        self.total = total


class Row:
    """One node. `cards` and `gpus` are `None` where the node does not report its GPUs."""

    __slots__ = (
        "broken",
        "cards",
        "cpu_replicas",
        "disk_room",
        "disks",
        "foreign",
        "free",
        "gpus",
        "held",
        "holds",
        "memory_left",
        "node",
        "taken",
    )

    def __init__(
        self,
        node: Node,
        cards: Cards | None,
        gpus: tuple[Gpu, ...],
        holds: tuple[Allocation, ...],
    ) -> None:
        """`gpus` by index, as `cards` counts its positions."""
        broken = foreign = 0
        for position, gpu in enumerate(gpus):
            if gpu.healthy is False:
                broken |= 1 << position
            if gpu.foreign_processes:
                foreign |= 1 << position
        held = tuple(taken_by(hold, gpus) for hold in holds)
        taken = union(held)
        self.node = node
        self.cards = cards
        self.gpus = gpus
        self.holds = holds
        self.held = held
        self.broken = broken
        self.foreign = foreign
        self.taken = taken
        self.free = ((1 << len(gpus)) - 1) & ~(broken | foreign | taken)
        memory = node.facts.memory_bytes
        self.memory_left = None if memory is None else memory - sum_memory(holds)
        self.disks = local_disks(node.facts.storage)
        self.disk_room = disk_room(self.disks, holds)
        self.cpu_replicas = cpu_replicas(holds)

    def holding(self, hold: Allocation) -> "Row":
        """The node with one allocation more."""
        row = self._copy()
        cards = taken_by(hold, self.gpus)
        row.holds = (*self.holds, hold)
        row.held = (*self.held, cards)
        row.taken = self.taken | cards
        row.free = self.free & ~row.taken
        if hold.memory_bytes and self.memory_left is not None:
            row.memory_left = self.memory_left - hold.memory_bytes
        if hold.disk_bytes:
            row.disk_room = disk_room(self.disks, row.holds)
        if not _has_gpus(hold):
            row.cpu_replicas = cpu_replicas(row.holds)
        return row

    def releasing(self, hold: Allocation) -> "Row":
        """The node without one allocation that it has."""
        at = self.holds.index(hold)
        row = self._copy()
        row.holds = self.holds[:at] + self.holds[at + 1 :]
        row.held = self.held[:at] + self.held[at + 1 :]
        row.taken = union(row.held)
        row.free = ((1 << len(self.gpus)) - 1) & ~(self.broken | self.foreign | row.taken)
        if hold.memory_bytes and self.memory_left is not None:
            row.memory_left = self.memory_left + hold.memory_bytes
        if hold.disk_bytes:
            row.disk_room = disk_room(self.disks, row.holds)
        if not _has_gpus(hold):
            row.cpu_replicas = cpu_replicas(row.holds)
        return row

    def holders(self, cards: int) -> tuple[str, ...]:
        """Whose some of these cards are."""
        return tuple(
            [hold.replica for hold, held in zip(self.holds, self.held, strict=True) if held & cards]
        )

    def _copy(self) -> "Row":
        row = Row.__new__(Row)
        row.node = self.node
        row.cards = self.cards
        row.gpus = self.gpus
        row.holds = self.holds
        row.held = self.held
        row.broken = self.broken
        row.foreign = self.foreign
        row.taken = self.taken
        row.free = self.free
        row.memory_left = self.memory_left
        row.disks = self.disks
        row.disk_room = self.disk_room
        row.cpu_replicas = self.cpu_replicas
        return row


def _has_gpus(hold: Allocation) -> bool:
    return bool(hold.gpus or hold.gpu_uuids)


def union(sets: Iterable[int]) -> int:
    """All that are in any of the sets."""
    found = 0
    for one in sets:
        found |= one
    return found


def cpu_replicas(holds: Iterable[Allocation]) -> int:
    """How many replicas run there without a GPU; one that holds twice is one."""
    return len({hold.replica for hold in holds if not _has_gpus(hold)})


def taken_by(hold: Allocation, gpus: Sequence[Gpu]) -> int:
    """The positions that an allocation holds."""
    if not hold.gpus and not hold.gpu_uuids:
        return 0
    return sum(1 << position for position, gpu in enumerate(gpus) if hold.holds(gpu))


def sum_memory(holds: Iterable[Allocation]) -> int:
    """Main memory held; asking nothing holds nothing."""
    return sum(hold.memory_bytes or 0 for hold in holds)


def local_disks(storage: tuple[Filesystem, ...] | None) -> tuple[Disk, ...] | None:
    """The local filesystems; `None`, where none is reported, rejects nothing.

    What has one name and one size is one, mounted more than once, with the least that is said to be
    free. Two called `tmpfs` of different sizes are two.
    """
    found: dict[tuple[str, int | None], Disk] = {}
    for one in storage or ():
        if one.shared:
            continue
        key, free = (one.filesystem, one.total_bytes), one.free_bytes
        before = found.get(key)
        if before is not None and before.free is not None:
            free = before.free if free is None else min(free, before.free)
        found[key] = Disk(free, one.total_bytes)
    return tuple(found.values()) or None


def disk_room(disks: tuple[Disk, ...] | None, holds: Iterable[Allocation]) -> int | None:
    """What the roomiest local filesystem has left; `None` is "not known", which rejects nothing."""
    roomiest = roomiest_disk(disks, holds)
    return None if roomiest is None else roomiest[0]


def roomiest_disk(
    disks: tuple[Disk, ...] | None, holds: Iterable[Allocation]
) -> tuple[int, int | None] | None:
    """What is left of the local filesystem with most room, and its size.

    Claims are charged largest first, each to the filesystem that then has most room: the answer
    depends on what is held and not on the order in which it came.
    """
    if disks is None:
        return None
    rooms: list[int] = []
    for disk in disks:
        if disk.free is None:
            return None
        rooms.append(disk.free)
    for claim in sorted((hold.disk_bytes for hold in holds if hold.disk_bytes), reverse=True):
        rooms[rooms.index(max(rooms))] -= claim
    best = rooms.index(max(rooms))
    return rooms[best], disks[best].total


def disk_size(disks: tuple[Disk, ...] | None) -> int | None:
    """The largest local filesystem; `None` where the size of one is not known."""
    if disks is None:
        return None
    sizes = [disk.total for disk in disks if disk.total is not None]
    return max(sizes) if len(sizes) == len(disks) else None
