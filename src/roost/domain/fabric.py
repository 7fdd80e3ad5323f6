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
