"""A machine with an agent: what it reported, and what the operator and the server say of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NewType

from roost.domain.fabric import FabricAttachment, Hca
from roost.domain.gpu import Gpu, GpuDetail

NodeName = NewType("NodeName", str)

OWN_LABELS: Final = "roost/"
"""How labels begin that agents find for themselves: nobody gives a node one of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Filesystem:
    """One filesystem behind the model directories, however often it is mounted."""

    filesystem: str
    """The device or mount source: `/dev/nvme0n1p2`, `filer:/models`."""
    mounts: tuple[str, ...] = ()
    shared: bool = False
    free_bytes: int | None = None
    total_bytes: int | None = None
    read_only: bool | None = None
    """Nothing can be written, so nothing is free; `None` is "not reported"."""
    stale_since: int | None = None
    """It does not answer any more: the numbers are of this moment (epoch seconds)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What an agent saw; `None` is "not reported", which differs from none (an empty tuple)."""

    labels: Mapping[str, str] = field(default_factory=dict)
    memory_bytes: int | None = None
    engines: frozenset[str] | None = None
    gpus: tuple[Gpu, ...] | None = None
    fabrics: tuple[FabricAttachment, ...] | None = None
    storage: tuple[Filesystem, ...] | None = None
    gpu_details: tuple[GpuDetail, ...] | None = None
    hcas: tuple[Hca, ...] | None = None
    """All adapters, usable or not; `fabrics` has what placement may use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node as placement sees it. A report replaces `facts` and can change nothing else."""

    name: NodeName
    facts: Facts = Facts()
    ready: bool = True
    not_ready_since: str | None = None
    """When readiness was lost, as text for people (`12:03:10`); never compared."""
    cordoned: bool = False
    """Nothing new goes here; true while draining too."""
    cordon_reason: str | None = None
    draining: bool = False
