"""What one change would make it fit: for nodes that one thing alone speaks against.

Each remedy is true as of the decision: with that change and no other, the replica fits. They come
in the order of `Change`, which goes from a command to a purchase, then by amount, then by node.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple, TypeAlias

from roost.domain.fabric import FabricName
from roost.domain.node import OWN_LABELS
from roost.domain.units import needs_gb
from roost.placement import bits, groups
from roost.placement.decision import Change, Remedy
from roost.placement.needs import ON_A_FABRIC, OPEN, READY, Need
from roost.placement.rows import Disk, Row, roomiest_disk
from roost.placement.tried import Trial
from roost.placement.view import View

MOST: Final = 5
_RANK: Final = {change: rank for rank, change in enumerate(Change)}


class Found(NamedTuple):
    """A remedy, ordered by what it costs."""

    rank: int
    size: int
    node: str
    profile: int
    """By which of the profiles it would then fit: the number of its trial."""
    remedy: Remedy


Remedies: TypeAlias = Callable[[Need, Row], Iterator[tuple[int, Remedy]]]
"""What could be done about one filter on one node: how much of it, and the remedy."""


def remedies(trials: Sequence[Trial]) -> tuple[Found, ...]:
    """Smallest first, at most five."""
    found: list[Found] = []
    for number, trial in enumerate(trials):
        if trial.need.nodes == 1:
            found += _on_nodes(number, trial, trial.view.lasting.every)
        else:
            found += _on_fabrics(number, trial)
    chosen: dict[tuple[Change, str, FabricName | None], Found] = {}
    for one in sorted(found, key=lambda found: found[:4]):
        # The same change on the same node for another profile may be larger; the smaller is enough.
        chosen.setdefault((one.remedy.change, one.node, one.remedy.fabric), one)
        if len(chosen) == MOST:
            break
    return tuple(chosen.values())


def _on_fabrics(number: int, trial: Trial) -> Iterator[Found]:
    """A group that lacks one node: another node of that fabric, or one more on it."""
    need, view = trial.need, trial.view
    elsewhere, _ = _but_one(need, view)
    for fabric, _, size in groups.candidates(view, trial.passing):
        if size != need.nodes - 1:
            continue
        here = view.lasting.fabrics[fabric]
        yield from _on_nodes(number, trial, here)
        joinable = elsewhere & ~here
        for place in bits.members(bits.first(joinable, MOST)):
            row = view.row(place)
            yield _found(number, 1, _join(row, fabric))


def _join(row: Row, fabric: FabricName) -> Remedy:
    name = row.node.name
    if row.node.facts.fabrics is None:
        return Remedy(
            change=Change.REPORT_FACTS,
            node=name,
            fabric=fabric,
            message=f"report the fabrics of {name}, if it is on {fabric}",
        )
    return Remedy(
        change=Change.JOIN_FABRIC,
        node=name,
        fabric=fabric,
        message=f"put {name} on fabric {fabric}",
    )


def _on_nodes(number: int, trial: Trial, among: int) -> Iterator[Found]:
    """Remedies for those of `among` that a single filter stops."""
    need, view = trial.need, trial.view
    _, stopped = _but_one(need, view)
    for remedies_for, nodes in stopped:
        yield from _smallest(number, need, view, nodes & among, remedies_for)


def _smallest(
    number: int, need: Need, view: View, nodes: int, remedies_for: Remedies
) -> Iterable[Found]:
    """The smallest of each change over many nodes, at most `MOST` of each."""
    by_change: dict[Change, list[Found]] = {}
    for place in bits.members(nodes):
        row = view.row(place)
        for size, remedy in remedies_for(need, row):
            by_change.setdefault(remedy.change, []).append(_found(number, size, remedy))
    for found in by_change.values():
        found.sort(key=lambda found: found[:4])
        yield from found[:MOST]


def _found(profile: int, size: int, remedy: Remedy) -> Found:
    return Found(_RANK[remedy.change], size, remedy.node or "", profile, remedy)


def _but_one(need: Need, view: View) -> tuple[int, list[tuple[Remedies, int]]]:
    """The nodes that pass every filter but that for fabrics, and those that one alone stops.

    The second are by filter, for the filters about which something can be done.
    """
    lasting, present = view.lasting.sets, view.present
    every = view.lasting.every
    carrying = every
    for label in need.labels:
        carrying &= lasting[label]
    steps: list[tuple[Remedies, int]] = [
        (_nothing, present[READY]),
        (_nothing, lasting[need.engine]),
        (_uncordon, present[OPEN]),
        (_add_labels, carrying),
    ]
    if need.memory >= 0:
        steps.append((_memory, present[need.memory]))
    if need.disk >= 0:
        steps.append((_disk, present[need.disk]))
    if need.kind is not None:
        steps.append((_gpus, present[need.usable]))
    clean, once = every, 0
    for _, through in steps:
        once = once & through | clean & (every ^ through)
        clean &= through
    if need.nodes > 1:
        once &= lasting[ON_A_FABRIC]
    return clean, [
        (remedy, once & (every ^ through)) for remedy, through in steps if remedy is not _nothing
    ]


def _nothing(_need: Need, _row: Row) -> Iterator[tuple[int, Remedy]]:
    """An operator can't make a node ready or install an engine from here."""
    yield from ()


def _uncordon(_need: Need, row: Row) -> Iterator[tuple[int, Remedy]]:
    name = row.node.name
    yield 1, Remedy(change=Change.UNCORDON, node=name, message=f"uncordon {name}")


def _add_labels(need: Need, row: Row) -> Iterator[tuple[int, Remedy]]:
    name, carried = row.node.name, row.node.facts.labels
    wanted = [
        f"{key}={value}"
        for key, value in sorted(need.profile.node_selector.items())
        if carried.get(key) != value
    ]
    if any(pair.startswith(OWN_LABELS) for pair in wanted):
        return
    label = "label" if len(wanted) == 1 else "labels"
    yield (
        len(wanted),
        Remedy(
            change=Change.ADD_LABEL,
            node=name,
            amount=len(wanted),
            message=f"add {label} {', '.join(wanted)} to {name}",
        ),
    )


def _memory(need: Need, row: Row) -> Iterator[tuple[int, Remedy]]:
    wanted, total, left = (
        need.profile.min_memory_bytes,
        row.node.facts.memory_bytes,
        row.memory_left,
    )
    if wanted is None or total is None or left is None:
        return
    name, amount = row.node.name, wanted - left
    if total >= wanted:
        holders = ", ".join(sorted({hold.replica for hold in row.holds if hold.memory_bytes}))
        change = Change.FREE_MEMORY
        message = f"free {needs_gb(amount)} GB of memory on {name}, held by {holders}"
    else:
        change = Change.ADD_MEMORY
        message = f"add {needs_gb(amount)} GB of memory to {name}"
    yield amount, Remedy(change=change, node=name, amount=amount, message=message)


def _disk(need: Need, row: Row) -> Iterator[tuple[int, Remedy]]:
    wanted, name = need.profile.min_disk_bytes, row.node.name
    if wanted is None or row.disks is None:
        return
    amounts = [
        amount
        for number in range(len(row.disks))
        if (amount := _to_free(row, row.disks, number, wanted)) is not None
    ]
    if amounts:
        amount = min(amounts)
        message = f"free {needs_gb(amount)} GB on a local disk of {name}"
        yield amount, Remedy(change=Change.FREE_DISK, node=name, amount=amount, message=message)


def _to_free(row: Row, disks: tuple[Disk, ...], number: int, wanted: int) -> int | None:
    """How much to free on one filesystem; claims may move to it when it becomes the roomiest."""
    disk = disks[number]
    if disk.free is None:
        return None
    amount = 0
    while True:
        freed = Disk(disk.free + amount, disk.total)
        found = roomiest_disk((*disks[:number], freed, *disks[number + 1 :]), row.holds)
        short = 0 if found is None else wanted - max(0, found[0])
        if short <= 0:
            return amount
        amount += short
        if disk.total is not None and disk.free + amount > disk.total:
            return None


def _gpus(need: Need, row: Row) -> Iterator[tuple[int, Remedy]]:
    """Repair, end, free: whichever alone gives enough cards; where none does, more cards."""
    kind, cards, name = need.kind, row.cards, row.node.name
    if kind is None:
        return
    if cards is None:
        message = f"report the GPUs of {name}, if it has {need.cards} free {kind.gpu_class}"
        yield (
            need.cards,
            Remedy(change=Change.REPORT_FACTS, node=name, amount=need.cards, message=message),
        )
        return
    usable = cards.of_kind(kind)
    amount = need.cards - (usable & row.free).bit_count()
    broken = usable & row.broken & ~(row.taken | row.foreign)
    foreign = usable & row.foreign & ~(row.taken | row.broken)
    taken = usable & row.taken & ~(row.broken | row.foreign)
    enough = False
    for change, at in (
        (Change.REPAIR_GPU, broken),
        (Change.END_PROCESS, foreign),
        (Change.FREE_GPUS, taken),
    ):
        if at.bit_count() >= amount:
            enough = True
            message = _GPU_MESSAGE[change](row, at, amount, kind.gpu_class)
            yield amount, Remedy(change=change, node=name, amount=amount, message=message)
    if not enough:
        large = f" with {needs_gb(kind.least_memory)} GB or more each" if kind.least_memory else ""
        message = f"add {amount} {kind.gpu_class}{large} to {name}"
        yield amount, Remedy(change=Change.ADD_GPUS, node=name, amount=amount, message=message)


def _repair(row: Row, at: int, amount: int, _gpu_class: str) -> str:
    return f"repair {_cards(row, at, amount)} of {row.node.name}"


def _end(row: Row, at: int, amount: int, _gpu_class: str) -> str:
    return f"end the other processes on {_cards(row, at, amount)} of {row.node.name}"


def _free(row: Row, at: int, amount: int, gpu_class: str) -> str:
    holders = ", ".join(sorted(set(row.holders(at))))
    return f"free {amount} {gpu_class} of {row.node.name}, held by {holders}"


_GPU_MESSAGE: Final[dict[Change, Callable[[Row, int, int, str], str]]] = {
    Change.REPAIR_GPU: _repair,
    Change.END_PROCESS: _end,
    Change.FREE_GPUS: _free,
}


def _cards(row: Row, at: int, amount: int) -> str:
    """`GPU 3`, `GPUs 0, 1`, or `2 of GPUs 0, 1, 3` where fewer than all would do."""
    indices = [str(row.gpus[position].index) for position in bits.members(at)]
    listed = f"{'GPU' if len(indices) == 1 else 'GPUs'} {', '.join(indices)}"
    return listed if len(indices) == amount else f"{amount} of {listed}"
