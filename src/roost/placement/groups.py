"""Where a replica of several nodes goes: candidates are built per fabric, so none combines two."""

from collections.abc import Iterator
from typing import NamedTuple

from roost.domain.fabric import FabricName
from roost.placement import bits, slices
from roost.placement.needs import Need
from roost.placement.view import View


class Candidate(NamedTuple):
    """The nodes of one fabric that pass every filter of one node."""

    fabric: FabricName
    nodes: int
    size: int
    """How many they are."""


def candidates(view: View, passing: int) -> tuple[Candidate, ...]:
    """Every fabric of the fleet by name, also those with no node that passes."""
    found = []
    for fabric, nodes in view.lasting.fabrics.items():
        here = nodes & passing
        found.append(Candidate(fabric, here, here.bit_count()))
    return tuple(found)


def sufficing(need: Need, found: tuple[Candidate, ...]) -> tuple[Candidate, ...]:
    """The fabrics with enough nodes, best first: fewest eligible nodes, then name."""
    enough = [fabric for fabric in found if fabric.size >= need.nodes]
    enough.sort(key=lambda fabric: (fabric.size, fabric.fabric))
    return tuple(enough)


def fitting(enough: tuple[Candidate, ...]) -> int:
    """The nodes that are on a fabric with enough of them."""
    union = 0
    for fabric in enough:
        union |= fabric.nodes
    return union


def emptiest(need: Need, view: View, among: int) -> Iterator[int]:
    """The places for a group on one fabric, in the order of ranks: most free GPUs, then name."""
    wanted = need.nodes
    while wanted:
        level = among
        if need.kind is not None:
            level = slices.most(view.numbers[need.free_of_class], among)
        among ^= level
        while level and wanted:
            yield bits.lowest(level)
            level &= level - 1
            wanted -= 1
