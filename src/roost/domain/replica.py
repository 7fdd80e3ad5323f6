"""One running copy of a model: its life, and its part on each node."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import NewType

from roost.domain.allocation import ReplicaName
from roost.domain.model import ModelName
from roost.domain.profile import MetricNames, Profile

PlacementId = NewType("PlacementId", str)
"""One placing of a replica, for ever: `coder-0` placed again elsewhere has the same name and
another id."""


class ReplicaState(StrEnum):
    """`pending → placed → starting → loading → ready → draining → stopped`; `failed` from any, with
    the cause.
    """

    PENDING = "pending"
    """Wanted, and on no node yet."""
    PLACED = "placed"
    """Holds its allocation; the node's agent has not acted on it yet."""
    STARTING = "starting"
    """The process exists and does not answer yet."""
    LOADING = "loading"
    """The engine answers that it is loading, or is silent as this engine is while it loads."""
    READY = "ready"
    DRAINING = "draining"
    """Out of routing; what is in flight finishes."""
    STOPPED = "stopped"
    FAILED = "failed"
    """Ended or never became ready; the cause says why. Its agent tries again after a delay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardSpec:
    """Everything an agent needs to run one replica's part on its node."""

    placement: PlacementId
    rank: int
    replica: ReplicaName
    model: ModelName
    index: int
    profile: Profile
    host: str
    port: int
    key: str = field(repr=False)
    """The engine's API key. A secret: env or file, never argv, logs or events."""
    gpus: tuple[int, ...] = ()
    gpu_uuids: tuple[str, ...] = ()
    hcas: tuple[str, ...] = ()
    memory_bytes: int | None = None
    """Claimed by the replica on this node."""
    disk_bytes: int | None = None
    metrics: MetricNames | None = None
    """What the server's settings say of this engine's metrics; `None`: nothing."""
    peers: tuple[str, ...] = ()
    """Hosts of the replica's shards by rank, this one's among them; empty: it has one shard."""
    group_port: int | None = None
    """Where rank 0 of several meets the others; a port of rank 0's node, apart from `port`."""
    generation: int = 0
    """Of a replica on several nodes: which start of all its shards together this is."""
    hold: bool = False
    """Of a replica on several nodes: no shard of this generation is to be started yet. One of an
    earlier generation may still end elsewhere, or the pause after a failure isn't over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """How busy an engine said it is; `None` is "not measured", never 0."""

    running: float | None = None
    waiting: float | None = None
    kv_usage: float | None = None
    """0 to 1."""
    age_s: float = 0
    """Seconds between the scrape and the report that carries it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedShard:
    """One shard as its agent sees it now."""

    placement: PlacementId
    rank: int
    replica: ReplicaName
    state: ReplicaState
    since: float
    """Seconds since the epoch, by the agent's clock."""
    pid: int | None = None
    port: int | None = None
    restarts: int = 0
    """Starts after the first, in place."""
    generation: int = 0
    """Of a replica on several nodes: the start of all its shards that this one belongs to."""
    cause: str | None = None
    """Why it failed, or why it was restarted last; a sentence with the exit status and the log's
    evidence."""
    due: float | None = None
    """Of one that failed: when it is started again, in seconds since the epoch by the agent's
    clock. None: no start is due."""
    port_taken: bool = False
    """The engine could not bind: the server is to assign another port."""
    slots: int | None = None
    """Requests at once, as the engine said; `None` until learnt."""
    load: Load | None = None
    unmeasured: tuple[str, ...] = ()
    """Series that its metrics page should have and hasn't, `a or b` where it may be called either
    way."""
    spec: ShardSpec | None = None
    """Set only for an engine that is in no desired state: what it was started with, so that it can
    be adopted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Desired:
    """All that should run on one node. What is in neither list is left alone and reported with its
    `spec`.

    Of one fleet, (`incarnation`, `epoch`, `revision`) only grows; an agent refuses what is lower.
    """

    fleet: str
    incarnation: int
    epoch: int
    revision: int
    run: tuple[ShardSpec, ...] = ()
    stop: tuple[PlacementId, ...] = ()
    """Tombstones: drain and stop these, whatever else is true."""
    report_interval_s: float = 5
