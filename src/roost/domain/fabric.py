"""A named RDMA network, and a node's adapters on it."""

from dataclasses import dataclass
from typing import NewType

FabricName = NewType("FabricName", str)
HcaName = NewType("HcaName", str)


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricAttachment:
    """The usable adapters of one node on one fabric; an empty list is no attachment."""

    name: FabricName
    hcas: tuple[HcaName, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HcaPort:
    """One port of an adapter; `None` is "it does not say"."""

    number: int
    active: bool
    state: str | None = None
    """`ACTIVE`, `DOWN`, `INIT`, `ARMED`."""
    physical_state: str | None = None
    rate_gbps: float | None = None
    link_layer: str | None = None
    """`InfiniBand`, `Ethernet` (RoCE), `Unspecified` (EFA)."""
    subnet_prefix: str | None = None
    """Of an InfiniBand subnet that was given one of its own: 16 hexadecimal digits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hca:
    """An RDMA adapter of a node, usable or not, on a fabric or on none."""

    name: HcaName
    ports: tuple[HcaPort, ...] = ()
    kind: str | None = None
    """As its driver calls it: `MT4129`."""
    firmware: str | None = None
    node_guid: str | None = None
    pci_address: str | None = None
    numa_node: int | None = None
