"""Every placing of a replica: what is wanted of it, what was seen of it, what it holds. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from roost.domain.allocation import Allocation, AllocationState, ReplicaName
from roost.domain.gpu import GpuUuid
from roost.domain.model import ModelName
from roost.domain.node import NodeName
from roost.domain.profile import Profile
from roost.domain.replica import ObservedShard, PlacementId, ReplicaState


class Wish(StrEnum):
    """What the server wants of a placement."""

    RUN = "run"
    LOST = "lost"
    """Its node is lost: not counted for its model; its agent may run it until that is decided."""
    STOP = "stop"
    """A tombstone: drained and stopped, until its agents have reported it gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """A replica's part on one node, and what that part holds there."""

    rank: int
    node: NodeName
    host: str
    port: int
    key: str = field(repr=False)
    gpus: tuple[int, ...] = ()
    gpu_uuids: tuple[GpuUuid, ...] = ()
    hcas: tuple[str, ...] = ()
    memory_bytes: int | None = None
    disk_bytes: int | None = None
    state: ReplicaState = ReplicaState.PLACED
    pid: int | None = None
    restarts: int = 0
    seen: bool = False
    """Its agent has listed it at least once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """One placing of a replica on its nodes, whole."""

    placement: PlacementId
    name: ReplicaName
    model: ModelName
    index: int
    profile: Profile
    """As it was when the replica was placed."""
    created_at: float
    since: float
    """When it came into its state."""
    shards: tuple[Shard, ...]
    wish: Wish = Wish.RUN
    because: str | None = None
    """Why it is lost or stopped."""
    state: ReplicaState = ReplicaState.PLACED
    cause: str | None = None
    ever_ready: bool = False

    @property
    def nodes(self) -> tuple[NodeName, ...]:
        """Where its shards are, by rank."""
        return tuple(shard.node for shard in self.shards)

    @property
    def is_ready(self) -> bool:
        """It answers and is wanted."""
        return self.wish is Wish.RUN and self.state is ReplicaState.READY

    @property
    def restarts(self) -> int:
        """In place, of the shard that restarted most."""
        return max((shard.restarts for shard in self.shards), default=0)


# What must not differ between the profile a replica runs by and the one in the catalog. Priority
# decides between profiles, slots and timeouts are Roost's own: changing them restarts nothing.
_RUNS_BY: Final = (
    "engine",
    "source",
    "gpu_class",
    "gpus_per_node",
    "nodes",
    "tensor_parallel",
    "pipeline_parallel",
    "node_selector",
    "min_memory_bytes",
    "min_disk_bytes",
    "min_gpu_memory_bytes",
    "args",
    "env",
    "command",
    "health",
    "metrics",
)


def runs_alike(one: Profile, other: Profile) -> bool:
    """Whether a replica of the one is as good as a replica of the other."""
    return all(getattr(one, name) == getattr(other, name) for name in _RUNS_BY)


_PROGRESS: Final = (
    ReplicaState.PENDING,
    ReplicaState.PLACED,
    ReplicaState.STARTING,
    ReplicaState.LOADING,
    ReplicaState.READY,
)


def observe(replica: Replica, seen: Mapping[int, ObservedShard | None], *, now: float) -> Replica:
    """The replica after reports: `seen` has the ranks whose node reported, `None` where unlisted.

    A shard of which nothing was reported stays as it was.
    """
    shards = []
    causes: dict[int, str | None] = {}
    times: dict[int, float] = {}
    for shard in replica.shards:
        if shard.rank not in seen:
            shards.append(shard)
            continue
        observed = seen[shard.rank]
        if observed is None:
            # Its agent has not started it yet, or has no memory of it and will start it again.
            shards.append(replace(shard, state=ReplicaState.PLACED, pid=None))
            continue
        causes[shard.rank] = observed.cause
        times[shard.rank] = observed.since
        shards.append(
            replace(
                shard,
                state=observed.state,
                pid=observed.pid,
                restarts=max(shard.restarts, observed.restarts),
                seen=True,
            )
        )
    slowest = min(shards, key=lambda shard: (_rank_of(shard.state), shard.rank))
    state = ReplicaState.DRAINING if replica.wish is Wish.STOP else slowest.state
    return replace(
        replica,
        shards=tuple(shards),
        state=state,
        since=replica.since if state is replica.state else times.get(slowest.rank, now),
        cause=_cause(replica, slowest, causes),
        ever_ready=replica.ever_ready or state is ReplicaState.READY,
    )


def carried(seen: Replica, *, onto: Replica) -> Replica:
    """What was seen of a replica, on what was decided about it meanwhile."""
    shards = {shard.rank: shard for shard in seen.shards}
    return replace(
        onto,
        state=ReplicaState.DRAINING if onto.wish is Wish.STOP else seen.state,
        since=onto.since if onto.wish is Wish.STOP else seen.since,
        cause=seen.cause,
        ever_ready=seen.ever_ready or onto.ever_ready,
        shards=tuple(
            replace(
                shard,
                state=shards[shard.rank].state,
                pid=shards[shard.rank].pid,
                restarts=shards[shard.rank].restarts,
                seen=shards[shard.rank].seen,
            )
            if shard.rank in shards
            else shard
            for shard in onto.shards
        ),
    )


def _rank_of(state: ReplicaState) -> int:
    # A group is as far as its slowest part; one part that ended or is ending speaks for it.
    return _PROGRESS.index(state) if state in _PROGRESS else -1


def _cause(replica: Replica, slowest: Shard, causes: Mapping[int, str | None]) -> str | None:
    if slowest.rank not in causes:
        return replica.cause
    mine = causes[slowest.rank]
    if mine is None and slowest.state is not ReplicaState.READY:
        # What made a replica restart stays readable while it loads again.
        return next((cause for cause in causes.values() if cause), None)
    return mine


def allocations(
    replica: Replica, *, counts: bool, index: int | None = None
) -> tuple[Allocation, ...]:
    """What a replica holds on its nodes; with `counts` it is its model's replica `index`."""
    state = {
        Wish.RUN: AllocationState.HELD,
        Wish.LOST: AllocationState.LOST,
        Wish.STOP: AllocationState.STOPPING,
    }[replica.wish]
    # One that is to be replaced belongs to no model: nothing counts it, nothing moves it.
    named = counts or replica.wish is not Wish.RUN
    return tuple(
        Allocation(
            replica=replica.name,
            node=shard.node,
            model=replica.model if named else None,
            index=(replica.index if index is None else index) if named else None,
            profile=replica.profile.name if named else None,
            gpus=shard.gpus,
            gpu_uuids=shard.gpu_uuids,
            memory_bytes=shard.memory_bytes,
            # Once it was ready, its bytes are on the disk and missing from what is free there.
            disk_bytes=None if replica.ever_ready else shard.disk_bytes,
            state=state,
        )
        for shard in replica.shards
    )
