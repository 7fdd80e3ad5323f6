"""What an orphan becomes when the server makes it its own: to run on, or to be stopped."""

from roost.domain.gpu import GpuUuid
from roost.reconcile.replicas import Replica, Shard
from roost.reconcile.world import Orphan


def taken_over(orphan: Orphan, *, now: float) -> Replica:
    """A replica with the shards, cards and ports that its agents reported."""
    spec = orphan.spec
    return Replica(
        placement=orphan.placement,
        name=spec.replica,
        model=spec.model,
        index=spec.index,
        profile=spec.profile,
        created_at=now,
        since=now,
        generation=spec.generation,
        hold=spec.hold,
        shards=tuple(
            Shard(
                rank=rank,
                node=node,
                host=part.host,
                port=part.port,
                key=part.key,
                gpus=part.gpus,
                gpu_uuids=tuple(GpuUuid(uuid) for uuid in part.gpu_uuids),
                hcas=part.hcas,
                memory_bytes=part.memory_bytes,
                disk_bytes=part.disk_bytes,
                seen=True,
                generation=part.generation,
                group_port=part.group_port if rank == 0 else None,
            )
            for rank, (node, part) in sorted(orphan.shards.items())
        ),
    )
