"""Shards of replicas on cards, on one node and on several."""

from dataclasses import replace

from roost.domain.allocation import ReplicaName
from roost.domain.gpu import GpuClass
from roost.domain.model import ModelName
from roost.domain.profile import Engine, Profile, ProfileName
from roost.domain.replica import PlacementId, ShardSpec

KEY = "very-secret"


def spec(engine: Engine, *, cards: int = 1, **profile: object) -> ShardSpec:
    """One shard, on its own, of a replica with that many cards."""
    made = Profile(
        name=ProfileName("gpu"),
        engine=engine,
        source="org/coder",
        gpu_class=GpuClass("h100-80gb-hbm3"),
        gpus_per_node=cards,
        tensor_parallel=cards,
    )
    return ShardSpec(
        placement=PlacementId("p1"),
        rank=0,
        replica=ReplicaName("coder-0"),
        model=ModelName("coder"),
        index=0,
        profile=replace(made, **profile),  # type: ignore[arg-type]  # by name
        host="10.0.0.1",
        port=21000,
        key=KEY,
        gpus=tuple(range(cards)),
        gpu_uuids=tuple(f"GPU-{number}" for number in range(cards)),
    )


def group(engine: Engine, *, rank: int, tensor: int, pipeline: int) -> ShardSpec:
    """A rank of a replica on two nodes of eight cards."""
    alone = spec(engine, cards=8, nodes=2, tensor_parallel=tensor, pipeline_parallel=pipeline)
    return replace(
        alone,
        rank=rank,
        host=f"10.0.0.{rank + 1}",
        port=21000 + rank,
        hcas=("mlx5_0", "mlx5_1"),
        peers=("10.0.0.1", "10.0.0.2"),
        group_port=21050,
    )
