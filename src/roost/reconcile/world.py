"""All that the scheduler looks at, at one moment. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from roost.domain.allocation import Allocation
from roost.domain.gpu import GpuUuid
from roost.domain.model import Catalog
from roost.domain.node import Node, NodeName
from roost.domain.replica import PlacementId, ShardSpec
from roost.reconcile.replicas import Replica


@dataclass(frozen=True, slots=True, kw_only=True)
class Orphan:
    """A placement that agents run and nobody gave them: every shard of it that was reported."""

    placement: PlacementId
    shards: Mapping[int, tuple[NodeName, ShardSpec]]
    """By rank."""
    usable: bool = True
    """Its address and port are ones its node may use."""

    @property
    def spec(self) -> ShardSpec:
        """Of its lowest rank."""
        return self.shards[min(self.shards)][1]

    @property
    def is_whole(self) -> bool:
        """Every shard was reported, and they agree."""
        first = self.spec

        def says(spec: ShardSpec) -> tuple[object, ...]:
            return (spec.model, spec.index, spec.profile, spec.generation, spec.hold)

        return set(self.shards) == set(range(first.profile.nodes)) and all(
            says(spec) == says(first) for _, spec in self.shards.values()
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """All the scheduler looks at, at one moment."""

    catalog: Catalog
    nodes: tuple[Node, ...]
    replicas: tuple[Replica, ...]
    orphans: tuple[Orphan, ...] = ()
    lost: Mapping[NodeName, float] = field(default_factory=dict)
    """Lost nodes, and for how many seconds each has been silent."""
    back: frozenset[NodeName] = frozenset()
    """Nodes that have reported since this server started, and are not lost."""
    gone: Mapping[PlacementId, frozenset[int]] = field(default_factory=dict)
    """Of stopped placements, the ranks whose agents have reported them gone."""
    settled: bool = True
    """Enough nodes have been heard to place something new."""
    now: float = 0
    """Seconds since the epoch, by the server's clock."""
    luck: float = 0
    """In [0, 1): spreads restarts."""


def orphan_allocations(orphan: Orphan) -> tuple[Allocation, ...]:
    """What an orphan holds: somebody else's, so that nothing is placed over it."""
    return tuple(
        Allocation(
            replica=spec.replica,
            node=node,
            gpus=spec.gpus,
            gpu_uuids=tuple(GpuUuid(uuid) for uuid in spec.gpu_uuids),
            memory_bytes=spec.memory_bytes,
            disk_bytes=None,
        )
        for _, (node, spec) in sorted(orphan.shards.items())
    )
