"""All nodes and all that is held on them, at one moment."""

from dataclasses import dataclass

from roost.domain.allocation import Allocation
from roost.domain.node import Node


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """What `plan` is asked about; the order of nodes and allocations changes no answer."""

    nodes: tuple[Node, ...] = ()
    allocations: tuple[Allocation, ...] = ()
