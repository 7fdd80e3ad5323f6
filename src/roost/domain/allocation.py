"""What a replica holds on a node."""

from dataclasses import dataclass
from enum import StrEnum
from typing import NewType

from roost.domain.gpu import Gpu, GpuUuid
from roost.domain.model import ModelName
from roost.domain.node import NodeName
from roost.domain.profile import ProfileName

ReplicaName = NewType("ReplicaName", str)
"""`MODEL-INDEX`: `coder-0`."""


def replica_name(model: ModelName, index: int) -> ReplicaName:
    """The name people see: `coder-0`."""
    return ReplicaName(f"{model}-{index}")


class AllocationState(StrEnum):
    """All states hold; they differ in whether the replica still counts for its model."""

    HELD = "held"
    STOPPING = "stopping"
    """The replica is gone from the catalog or replaced; its processes have not been seen to exit
    yet."""
    LOST = "lost"
    """Its node is lost; the processes may still run there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """A replica's hold on one node. `model`, `index`, `profile` may be unknown: somebody else's."""

    replica: ReplicaName
    node: NodeName
    model: ModelName | None = None
    index: int | None = None
    profile: ProfileName | None = None
    gpus: tuple[int, ...] = ()
    """Indices as the node numbers its cards now."""
    gpu_uuids: tuple[GpuUuid, ...] = ()
    """What is enforced where it is known; an index shifts when a card falls off the bus."""
    memory_bytes: int | None = None
    disk_bytes: int | None = None
    state: AllocationState = AllocationState.HELD

    def holds(self, gpu: Gpu) -> bool:
        """Whether one of its node's cards is held: by uuid where both sides know it, else by index.

        With fewer uuids than indices it doesn't know all of its cards' uuids: its indices then hold
        as well, because holding a card too many is safe and one too few isn't.
        """
        if gpu.uuid is None or not self.gpu_uuids:
            return gpu.index in self.gpus
        if gpu.uuid in self.gpu_uuids:
            return True
        return len(self.gpu_uuids) < len(self.gpus) and gpu.index in self.gpus
