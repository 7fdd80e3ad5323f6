"""Which of the nodes that fit: one criterion after the other, each leaving those best by it.

Narrowing by each in turn is comparing the tuple of them all, and the lowest bit is the first name.
"""

from collections.abc import Callable
from typing import TypeAlias

from roost.placement import bits, slices
from roost.placement.needs import (
    CPU_REPLICAS,
    MEMORY_LEFT,
    PARTLY_USED,
    REPORTS_NO_GPU,
    Need,
)
from roost.placement.view import View

Criterion: TypeAlias = Callable[[Need, View, int], int]
"""Those of some nodes that are best by one thing; never none of some."""


def may_be_one_domain(need: Need, view: View, among: int) -> int:
    """Not known to be unable to hold the group in one NVLink domain."""
    if need.cards == 1:
        return among
    return among & view.present[need.one_domain] or among


def partly_used(need: Need, view: View, among: int) -> int:  # noqa: ARG001 - one signature for all
    """Some GPU is allocated already: whole nodes stay free for what can't be split."""
    return among & view.present[PARTLY_USED] or among


def fewest_left(need: Need, view: View, among: int) -> int:
    """Fewest free GPUs of the class."""
    return slices.least(view.numbers[need.free_of_class], among)


def least_wanted(need: Need, view: View, among: int) -> int:  # noqa: ARG001 - one signature for all
    """Fewest GPUs that the catalog's replicas could ever want of it."""
    if not among & (among - 1):
        return among
    return slices.least(view.lasting.scarcity_rank, among)


def fewest_cpu_replicas(need: Need, view: View, among: int) -> int:  # noqa: ARG001 - as above
    """Fewest replicas that run without a GPU."""
    return slices.least(view.numbers[CPU_REPLICAS], among)


def has_no_gpu(need: Need, view: View, among: int) -> int:  # noqa: ARG001 - as above
    """Reports that it has no GPU."""
    return among & view.lasting.sets[REPORTS_NO_GPU] or among


def most_memory_left(need: Need, view: View, among: int) -> int:  # noqa: ARG001 - as above
    """Most main memory left; not reported comes last."""
    if not among & (among - 1):
        return among
    return slices.most(view.numbers[MEMORY_LEFT], among)


ON_GPUS: tuple[Criterion, ...] = (may_be_one_domain, partly_used, fewest_left, least_wanted)
ON_CPU: tuple[Criterion, ...] = (fewest_cpu_replicas, has_no_gpu, most_memory_left)


def criteria(need: Need) -> tuple[Criterion, ...]:
    """What nodes are compared by, for a replica on one node."""
    return ON_CPU if need.kind is None else ON_GPUS


def best(need: Need, view: View, among: int) -> int:
    """The place of the best of some nodes, of which there is at least one."""
    for criterion in criteria(need):
        among = criterion(need, view, among)
    return bits.lowest(among)
