"""What each card of a node is doing: free, given away, ill, somebody else's, or on its way back."""

from collections import Counter
from collections.abc import Iterable
from enum import StrEnum

from roost.domain.allocation import Allocation, AllocationState
from roost.domain.gpu import Gpu, GpuClass
from roost.domain.node import Node


class CardState(StrEnum):
    """One for each card; the first that applies, in this order."""

    UNHEALTHY = "unhealthy"
    STOPPING = "stopping"
    """Its replica is gone, and its processes have not been seen to exit."""
    ALLOCATED = "allocated"
    FOREIGN = "foreign"
    FREE = "free"


def states(node: Node, held: Iterable[Allocation]) -> Counter[tuple[GpuClass, CardState]]:
    """How many cards of each class are in each state; `held` is what replicas hold on the node.

    Every class the node has is there in every state, with 0: a series that vanishes tells nothing.
    """
    gpus = node.facts.gpus or ()
    holds = list(held)
    counted = Counter({(gpu.gpu_class, state): 0 for gpu in gpus for state in CardState})
    counted.update((gpu.gpu_class, _state(gpu, holds)) for gpu in gpus)
    return counted


def _state(gpu: Gpu, holds: Iterable[Allocation]) -> CardState:
    if gpu.healthy is False:
        return CardState.UNHEALTHY
    for hold in holds:
        if hold.holds(gpu):
            stopping = hold.state is AllocationState.STOPPING
            return CardState.STOPPING if stopping else CardState.ALLOCATED
    return CardState.FOREIGN if gpu.foreign_processes else CardState.FREE
