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
    generation: int = 0
    """Of a replica on several nodes: the start that it belongs to, as its agent said last."""
    group_port: int | None = None
    """Rank 0 of several: where the others meet it."""


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
    generation: int = 0
    """On several nodes: which start of all its shards together is wanted."""
    hold: bool = False
    """On several nodes: none of this generation is to be started yet."""
    failures: int = 0
    """On several nodes: in a row, for the delay."""
    restart_at: float | None = None
    """On several nodes, held after a failure: when it is started again."""
    ready_since: float | None = None
    """On several nodes: since when this generation is ready, or was when it failed."""
    at_once: bool = False
    """On several nodes, to be stopped: its shards don't wait for each other."""

    @property
    def is_group(self) -> bool:
        """On several nodes: its shards start, fail and stop together."""
        return self.profile.nodes > 1

    def is_told_to_stop(self, shard: Shard) -> bool:
        """Whether the shard's agent is told: rank 0 first, which has the requests in flight."""
        first = self.shards[0].rank
        return self.wish is Wish.STOP and (self.at_once or shard.rank == 0 or first != 0)

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
    shards = tuple(
        _shard_after(shard, seen[shard.rank]) if shard.rank in seen else shard
        for shard in replica.shards
    )
    listed = {rank: shard for rank, shard in seen.items() if shard is not None}
    return _whole(replace(replica, shards=shards), before=replica, listed=listed, now=now)


def carried(seen: Replica, *, onto: Replica) -> Replica:
    """What was seen of a replica, on what was decided about it meanwhile."""
    shards = {shard.rank: shard for shard in seen.shards}
    after = replace(
        onto,
        ever_ready=seen.ever_ready or onto.ever_ready,
        shards=tuple(
            replace(
                shard,
                state=shards[shard.rank].state,
                pid=shards[shard.rank].pid,
                restarts=shards[shard.rank].restarts,
                seen=shards[shard.rank].seen,
                generation=shards[shard.rank].generation,
            )
            if shard.rank in shards
            else shard
            for shard in onto.shards
        ),
    )
    if onto.wish is Wish.STOP:
        return replace(after, state=ReplicaState.DRAINING, cause=seen.cause)
    if (onto.generation, onto.hold) != (seen.generation, seen.hold):
        # What was seen is of a start that is over: the decision says what state follows it.
        return after
    return replace(
        after,
        state=seen.state,
        since=seen.since,
        cause=seen.cause,
        ready_since=seen.ready_since,
    )


def _shard_after(shard: Shard, observed: ObservedShard | None) -> Shard:
    if observed is None:
        # Its agent has not started it yet, or has no memory of it and will start it again.
        return replace(shard, state=ReplicaState.PLACED, pid=None)
    return replace(
        shard,
        state=observed.state,
        pid=observed.pid,
        restarts=max(shard.restarts, observed.restarts),
        seen=True,
        generation=observed.generation,
    )


def _whole(
    replica: Replica, *, before: Replica, listed: Mapping[int, ObservedShard], now: float
) -> Replica:
    """The replica as its shards are."""
    slowest = min(
        replica.shards, key=lambda shard: (_rank_of(_state_in(replica, shard)), shard.rank)
    )
    state = _state_in(replica, slowest)
    if replica.wish is Wish.STOP:
        state = ReplicaState.DRAINING
    elif replica.hold:
        state = ReplicaState.PLACED if replica.restart_at is None else ReplicaState.FAILED
    reported = listed.get(slowest.rank)
    since = now if reported is None or replica.is_group else reported.since
    ready = state is ReplicaState.READY
    return replace(
        replica,
        state=state,
        since=before.since if state is before.state else since,
        cause=(
            _cause_of_group(before, slowest, state, listed)
            if replica.is_group
            else _cause(before, listed.get(slowest.rank))
        ),
        ever_ready=replica.ever_ready or ready,
        ready_since=(
            now
            if ready and replica.is_group and replica.ready_since is None
            else replica.ready_since
        ),
    )


def _state_in(replica: Replica, shard: Shard) -> ReplicaState:
    """A shard of an earlier start has not begun the one that is wanted."""
    return ReplicaState.PLACED if shard.generation < replica.generation else shard.state


def _rank_of(state: ReplicaState) -> int:
    # A group is as far as its slowest part; one part that ended or is ending speaks for it.
    return _PROGRESS.index(state) if state in _PROGRESS else -1


def _cause(before: Replica, reported: ObservedShard | None) -> str | None:
    return before.cause if reported is None else reported.cause


def _cause_of_group(
    before: Replica, slowest: Shard, state: ReplicaState, listed: Mapping[int, ObservedShard]
) -> str | None:
    """Whoever failed first: the others fail because of it."""
    if before.hold or (state is ReplicaState.FAILED and before.state is ReplicaState.FAILED):
        return before.cause
    reported = listed.get(slowest.rank)
    if reported is None or slowest.generation < before.generation or reported.cause is None:
        # What made it restart stays readable while it loads again.
        return None if state is ReplicaState.READY else before.cause
    return f"rank {slowest.rank} on {slowest.node}: {reported.cause}"


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
