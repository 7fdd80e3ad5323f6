"""One card, and what kind of card it is."""

from dataclasses import dataclass
from typing import NewType

GpuUuid = NewType("GpuUuid", str)
GpuClass = NewType("GpuClass", str)
"""The canonical spelling of a whole product name, lower case: `h100-80gb-hbm3`. Equality, never
containment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A card as its node reported it; `None` is "not reported" and never a reason to reject."""

    index: int
    gpu_class: GpuClass
    uuid: GpuUuid | None = None
    memory_bytes: int | None = None
    nvlink_domain: int | None = None
    """GPUs of one domain reach each other by NVLink; one *known* to have none is a domain of its
    own."""
    healthy: bool | None = None
    unhealthy_reason: str | None = None
    foreign_processes: int | None = None
    """Processes with a compute context that are not engines of Roost's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuDetail:
    """What people want to know of a card and placement doesn't ask."""

    index: int
    uuid: GpuUuid | None = None
    product: str | None = None
    """The whole name, as the driver spells it."""
    driver: str | None = None
    pci_address: str | None = None
    numa_node: int | None = None
