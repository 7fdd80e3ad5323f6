"""Can a node take a part of such a replica: every filter, for all nodes at once and for one node.

The order is the order in which a node is charged: that of `Code`.
"""

from collections.abc import Callable, Iterable
from typing import TypeAlias

from roost.domain import reasons
from roost.domain.reasons import Code, Reason
from roost.placement import bits
from roost.placement.cards import Kind
from roost.placement.decision import FabricCount
from roost.placement.facets import is_open
from roost.placement.needs import ON_A_FABRIC, OPEN, READY, REPORTS_GPUS, Need
from roost.placement.rows import Row, roomiest_disk
from roost.placement.view import View

Stage: TypeAlias = tuple[Code, int]
"""A filter and the nodes that it lets through."""


def passing(need: Need, view: View) -> int:
    """Nodes that every filter of one node lets through; that their fabric suffices comes after."""
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
    return [*_whatever_is_held(need, view), *_by_what_is_held(need, view)]


def _whatever_is_held(need: Need, view: View) -> list[Stage]:
    """The first of the filters: no allocation changes what they let through."""
    lasting, present = view.lasting.sets, view.present
    found = [(Code.NOT_READY, present[READY]), (Code.CORDONED, present[OPEN])]
    if need.labels:
        carrying = view.lasting.every
        for label in need.labels:
            carrying &= lasting[label]
        found.append((Code.LABEL_MISMATCH, carrying))
    found.append((Code.ENGINE_ABSENT, lasting[need.engine]))
    return found


def _by_what_is_held(need: Need, view: View) -> list[Stage]:
    """The others, from the first that an allocation may change."""
    lasting, present = view.lasting.sets, view.present
    found: list[Stage] = []
    if need.memory >= 0:
        found.append((Code.MEMORY_SHORT, present[need.memory]))
    if need.disk >= 0:
        found.append((Code.DISK_SHORT, present[need.disk]))
    if need.kind is not None:
        found.append((Code.GPUS_UNKNOWN, lasting[REPORTS_GPUS]))
        found.append((Code.GPU_CLASS_ABSENT, lasting[need.of_class]))
        if need.kind.least_memory is not None:
            found.append((Code.GPU_MEMORY_SHORT, lasting[need.large]))
        found.append((Code.GPUS_SHORT, present[need.usable]))
    if need.nodes > 1:
        found.append((Code.NO_FABRIC, lasting[ON_A_FABRIC]))
    return found


def counts(need: Need, view: View, fit: int) -> dict[Code, int]:
    """Each node that is not among the `fit` nodes charged to the first filter that stops it."""
    left, many, before = _charged_first(need, view)
    charged = dict(before)
    many = _charge(_by_what_is_held(need, view), left, many, charged)[1]
    if many != fit:
        charged[Code.FABRIC_SHORT] = many - fit
    return charged


def _charged_first(need: Need, view: View) -> tuple[int, int, dict[Code, int]]:
    """What the first filters leave, how many that is, and the counts; as long as it is true."""
    ready, is_open = view.present[READY], view.present[OPEN]
    known = view.lasting.charged.get(need)
    if known is not None and known[0] is ready and known[1] is is_open:
        return known[2]
    charged: dict[Code, int] = {}
    first, every = _whatever_is_held(need, view), view.lasting.every
    found = (*_charge(first, every, view.size, charged), charged)
    view.lasting.charged[need] = (ready, is_open, found)
    return found


def _charge(
    filters: Iterable[Stage], left: int, many: int, charged: dict[Code, int]
) -> tuple[int, int]:
    """Count those whom each filter stops first; who is left, and how many."""
    for code, through in filters:
        left &= through
        passed = left.bit_count()
        if passed != many:
            charged[code] = many - passed
            many = passed
    return left, many


class Against:
    """All that speaks against nodes that do not fit, for one profile at one moment."""

    __slots__ = ("_fabrics", "_need", "_of_one_node")

    def __init__(self, need: Need, fabrics: Iterable[FabricCount]) -> None:
        self._need = need
        self._fabrics = {fabric.fabric: fabric for fabric in fabrics}
        profile = need.profile
        self._of_one_node: tuple[Callable[[Need, Row], Reason | None], ...] = (
            _not_ready,
            _cordoned,
            *((_labels,) if need.labels else ()),
            _engine,
            *((_memory,) if profile.min_memory_bytes is not None else ()),
            *((_disk,) if profile.min_disk_bytes is not None else ()),
            *((_gpus,) if need.kind is not None else ()),
        )

    def __call__(self, row: Row) -> tuple[Reason, ...]:
        """In the order of `Code`.

        That its fabrics are short is said of a node only if nothing else is: the fabric's count is
        of nodes that pass, and repairing a node that doesn't may be what completes it.
        """
        need = self._need
        found = [reason for one in self._of_one_node if (reason := one(need, row)) is not None]
        if need.nodes > 1:
            attached = sorted({one.name for one in row.node.facts.fabrics or () if one.hcas})
            if not attached:
                found.append(reasons.no_fabric(reported=row.node.facts.fabrics is not None))
            elif not found:
                short = [self._fabrics[name] for name in attached]
                has = max(fabric.eligible for fabric in short)
                messages = (fabric.message for fabric in short)
                found.append(reasons.fabric_short(messages, has=has, needs=need.nodes))
        return tuple(found)


def _not_ready(_need: Need, row: Row) -> Reason | None:
    return None if row.node.ready else reasons.not_ready(row.node.not_ready_since)


def _cordoned(_need: Need, row: Row) -> Reason | None:
    if is_open(row):
        return None
    return reasons.cordoned(row.node.cordon_reason, draining=row.node.draining)


def _labels(need: Need, row: Row) -> Reason | None:
    carried, selector = row.node.facts.labels, need.profile.node_selector
    for key, value in selector.items():
        if carried.get(key) != value:
            return reasons.label_mismatch(carried, selector)
    return None


def _engine(need: Need, row: Row) -> Reason | None:
    engine, installed = need.profile.engine, row.node.facts.engines
    return None if installed is None or engine in installed else reasons.engine_absent(engine)


def _memory(need: Need, row: Row) -> Reason | None:
    needs, total, left = need.profile.min_memory_bytes, row.node.facts.memory_bytes, row.memory_left
    if needs is None or total is None or left is None or max(0, left) >= needs:
        return None
    holding = (hold.replica for hold in row.holds if hold.memory_bytes)
    return reasons.memory_short(total, claimed=total - left, holders=holding, needs=needs)


def _disk(need: Need, row: Row) -> Reason | None:
    needs, room = need.profile.min_disk_bytes, row.disk_room
    if needs is None or room is None or max(0, room) >= needs:
        return None
    roomiest = roomiest_disk(row.disks, row.holds)
    total = None if roomiest is None else roomiest[1]
    return reasons.disk_short(room, total=total, needs=needs)


def _gpus(need: Need, row: Row) -> Reason | None:
    """The first of the four reasons that have to do with GPUs."""
    cards, kind, needs = row.cards, need.kind, need.cards
    if kind is None:
        return None
    if cards is None:
        return reasons.gpus_unknown()
    of_class = cards.of_class.get(kind.gpu_class, 0).bit_count()
    if of_class < needs:
        return reasons.gpu_class_absent(kind.gpu_class, has=of_class, needs=needs)
    large = cards.of_kind(kind)
    if (has := large.bit_count()) < needs:
        return reasons.gpu_memory_short(
            kind.gpu_class, least=kind.least_memory or 0, has=has, of=of_class, needs=needs
        )
    if (large & row.free).bit_count() < needs:
        return _gpus_short(need, kind, row, large)
    return None


def _gpus_short(need: Need, kind: Kind, row: Row, large: int) -> Reason:
    """Each card that is not free counted once: allocated, else unhealthy, else in use."""
    taken = large & row.taken
    broken = large & row.broken & ~taken
    causes = (row.gpus[position].unhealthy_reason for position in bits.members(broken))
    return reasons.gpus_short(
        kind.gpu_class,
        has=(large & row.free).bit_count(),
        of=large.bit_count(),
        needs=need.cards,
        allocated=taken.bit_count(),
        holders=row.holders(taken),
        unhealthy=broken.bit_count(),
        causes=(cause for cause in causes if cause),
        foreign=(large & row.foreign & ~(taken | broken)).bit_count(),
    )
