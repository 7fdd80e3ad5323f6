"""Can a node take a part of such a replica: every filter, for all nodes at once and for one node.

The order is the order in which a node is charged: that of `Code`.
"""

from collections.abc import Mapping
from typing import TypeAlias

from roost.domain import reasons
from roost.domain.fabric import FabricName
from roost.domain.reasons import Code, Reason
from roost.placement import bits
from roost.placement.decision import FabricCount
from roost.placement.facets import is_on_a_fabric, is_open
from roost.placement.needs import ON_A_FABRIC, OPEN, READY, REPORTS_GPUS, Need
from roost.placement.rows import Row, roomiest_disk
from roost.placement.view import View

Stage: TypeAlias = tuple[Code, int]
"""A filter and the nodes that it lets through."""


def passing(need: Need, view: View) -> int:
    """Nodes that every filter of one node lets through; whether their fabric suffices comes after."""
    present = view.present
    left = view.lasting.passing(need) & present[READY] & present[OPEN]
    if need.memory >= 0:
        left &= present[need.memory]
    if need.disk >= 0:
        left &= present[need.disk]
    if need.kind is not None:
        left &= present[need.usable]
    return left


def stages(need: Need, view: View) -> list[Stage]:
    """The filters of one node that `passing` is the meeting of, in order."""
    lasting, present = view.lasting.sets, view.present
    every = view.lasting.every
    carrying = every
    for label in need.labels:
        carrying &= lasting[label]
    found = [
        (Code.NOT_READY, present[READY]),
        (Code.CORDONED, present[OPEN]),
        (Code.LABEL_MISMATCH, carrying),
        (Code.ENGINE_ABSENT, lasting[need.engine]),
    ]
    if need.memory >= 0:
        found.append((Code.MEMORY_SHORT, present[need.memory]))
    if need.disk >= 0:
        found.append((Code.DISK_SHORT, present[need.disk]))
    if need.kind is not None:
        found += (
            (Code.GPUS_UNKNOWN, lasting[REPORTS_GPUS]),
            (Code.GPU_CLASS_ABSENT, lasting[need.of_class]),
            (Code.GPU_MEMORY_SHORT, lasting[need.large]),
            (Code.GPUS_SHORT, present[need.usable]),
        )
    if need.nodes > 1:
        found.append((Code.NO_FABRIC, lasting[ON_A_FABRIC]))
    return found


def counts(need: Need, view: View, fit: int) -> dict[Code, int]:
    """Each node that is not among `fit` charged to the first filter that stops it."""
    charged: dict[Code, int] = {}
    left = view.lasting.every
    for code, through in stages(need, view):
        passed = left & through
        if passed != left:
            charged[code] = (left ^ passed).bit_count()
            left = passed
    if left != fit:
        charged[Code.FABRIC_SHORT] = (left ^ fit).bit_count()
    return charged


def against(need: Need, row: Row, fabrics: Mapping[FabricName, FabricCount]) -> tuple[Reason, ...]:
    """All that speaks against one node that does not fit.

    That its fabrics are short is said of a node only if nothing else is: the fabric's count is of
    nodes that pass, and repairing a node that doesn't may be what completes it.
    """
    node, profile = row.node, need.profile
    facts = node.facts
    found: list[Reason] = []
    if not node.ready:
        found.append(reasons.not_ready(node.not_ready_since))
    if not is_open(row):
        found.append(reasons.cordoned(node.cordon_reason, draining=node.draining))
    if need.labels:
        carried = facts.labels
        for key, value in profile.node_selector.items():
            if carried.get(key) != value:
                found.append(reasons.label_mismatch(carried, profile.node_selector))
                break
    if facts.engines is not None and profile.engine not in facts.engines:
        found.append(reasons.engine_absent(profile.engine))
    if profile.min_memory_bytes is not None:
        _add(found, _memory(profile.min_memory_bytes, row))
    if profile.min_disk_bytes is not None:
        _add(found, _disk(profile.min_disk_bytes, row))
    if need.kind is not None:
        _add(found, _gpus(need, row))
    if need.nodes > 1:
        if not is_on_a_fabric(row):
            found.append(reasons.no_fabric(reported=facts.fabrics is not None))
        elif not found:
            found.append(_fabric_short(need, row, fabrics))
    return tuple(found)


def _add(found: list[Reason], reason: Reason | None) -> None:
    if reason is not None:
        found.append(reason)


def _memory(needs: int, row: Row) -> Reason | None:
    total = row.node.facts.memory_bytes
    if total is None or row.memory_left is None or max(0, row.memory_left) >= needs:
        return None
    return reasons.memory_short(
        total,
        claimed=total - row.memory_left,
        holders=(hold.replica for hold in row.holds if hold.memory_bytes),
        needs=needs,
    )


def _disk(needs: int, row: Row) -> Reason | None:
    if row.disk_room is None or max(0, row.disk_room) >= needs:
        return None
    roomiest = roomiest_disk(row.disks, row.holds)
    total = None if roomiest is None else roomiest[1]
    return reasons.disk_short(row.disk_room, total=total, needs=needs)


def _gpus(need: Need, row: Row) -> Reason | None:
    """The first of the four reasons that have to do with GPUs."""
    cards, kind = row.cards, need.kind
    if cards is None:
        return reasons.gpus_unknown()
    if kind is None:
        return None
    gpu_class, needs = kind.gpu_class, need.cards
    of_class = cards.of_class.get(gpu_class, 0).bit_count()
    if of_class < needs:
        return reasons.gpu_class_absent(gpu_class, has=of_class, needs=needs)
    large = cards.of_kind(kind)
    if (has := large.bit_count()) < needs:
        least = kind.least_memory or 0
        return reasons.gpu_memory_short(gpu_class, least=least, has=has, of=of_class, needs=needs)
    usable = large & row.free
    if (free := usable.bit_count()) >= needs:
        return None
    taken = large & row.taken
    broken = large & row.broken & ~taken
    foreign = large & row.foreign & ~(taken | broken)
    return reasons.gpus_short(
        gpu_class,
        has=free,
        of=has,
        needs=needs,
        allocated=taken.bit_count(),
        holders=holders(row, taken),
        unhealthy=broken.bit_count(),
        causes=(
            cause
            for position in bits.members(broken)
            if (cause := row.gpus[position].unhealthy_reason)
        ),
        foreign=foreign.bit_count(),
    )


def holders(row: Row, taken: int) -> tuple[str, ...]:
    """Whose the cards at these positions are."""
    if not taken:
        return ()
    return tuple(hold.replica for hold in row.holds if taken & row.taken_by(hold))


def _fabric_short(need: Need, row: Row, fabrics: Mapping[FabricName, FabricCount]) -> Reason:
    short = sorted({fabric.name for fabric in row.node.facts.fabrics or () if fabric.hcas})
    return reasons.fabric_short(
        (fabrics[name].message for name in short),
        has=max(fabrics[name].eligible for name in short),
        needs=need.nodes,
    )
