"""The management API's bodies: checked on the way in, documented on the way out."""

from pydantic import BaseModel, ConfigDict, Field


class _In(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Cordoned(_In):
    """Why nothing new is to go to a node."""

    reason: str | None = Field(default=None, max_length=500)


class NewKey(_In):
    """A key for a client."""

    name: str


class NewToken(_In):
    """A join token: how long it admits machines, and how many."""

    ttl_s: float = 3600
    uses: int = 1


class OrphansToReap(_In):
    """Which orphans to stop: those named, or all."""

    placements: list[str] = Field(default_factory=list, max_length=10_000)
    all: bool = False


class _Open(BaseModel):
    model_config = ConfigDict(extra="allow")


class GpuRow(_Open):
    """A card; null is not reported."""

    index: int
    uuid: str | None
    gpu_class: str = Field(alias="class")
    memory_bytes: int | None
    nvlink_domain: int | None
    healthy: bool | None
    unhealthy_reason: str | None
    foreign_processes: int | None


class FabricRow(_Open):
    """A node's usable adapters on a fabric."""

    name: str
    hcas: list[str]


class FilesystemRow(_Open):
    """One filesystem."""

    filesystem: str
    mounts: list[str]
    shared: bool
    free_bytes: int | None
    total_bytes: int | None


class NodeRow(_Open):
    """A node: what it reported, and how it is; null is not reported."""

    name: str
    ready: bool
    status: str
    cordoned: bool
    cordon_reason: str | None = None
    draining: bool
    labels: dict[str, str]
    memory_bytes: int | None
    engines: list[str] | None
    gpus: list[GpuRow] | None
    fabrics: list[FabricRow] | None
    storage: list[FilesystemRow] | None
    last_report_age_s: float | None
    agent_version: str | None
    address: str | None
    hostname: str | None
    joined_at: str
    problems: list[str]


class AllocationRow(_Open):
    """What a replica holds on a node."""

    replica: str
    node: str
    model: str | None = None
    index: int | None = None
    profile: str | None = None
    gpus: list[int]
    memory_bytes: int | None
    disk_bytes: int | None
    state: str


class Fleet(BaseModel):
    """Nodes, and what is held on them."""

    nodes: list[NodeRow]
    allocations: list[AllocationRow]


class ModelRow(BaseModel):
    """A model that is wanted."""

    model: str
    aliases: list[str]
    replicas: int
    ready: int
    priority: int
    profiles: list[str]
    state: str


class ModelRows(BaseModel):
    """All models."""

    models: list[ModelRow]


class ShardRow(BaseModel):
    """A replica's part on one node."""

    rank: int
    node: str
    pid: int | None
    host: str
    port: int
    gpus: list[int]
    gpu_uuids: list[str]
    hcas: list[str]
    state: str
    node_status: str


class ReplicaRow(BaseModel):
    """A replica that holds something, or waits for a place."""

    replica: str
    model: str
    index: int
    placement: str | None
    profile: str | None
    state: str
    since: str
    restarts: int
    cause: str | None
    next_try_at: str | None
    because: str | None
    shards: list[ShardRow]
    running: float | None
    waiting: float | None
    kv_usage: float | None
    unmeasured: list[str]


class ReplicaRows(BaseModel):
    """All replicas."""

    replicas: list[ReplicaRow]


class ChangeRow(BaseModel):
    """What applying does to one model: added, changed, unchanged."""

    model: str
    change: str


class Applied(BaseModel):
    """What applying a catalog changed, or would change."""

    changes: list[ChangeRow]
    applied: bool


class PlacedShardRow(BaseModel):
    """A part of a replica, as decided."""

    rank: int
    node: str
    gpus: list[int]
    gpu_uuids: list[str]
    hcas: list[str]


class ReasonRow(BaseModel):
    """One reason against one node."""

    code: str
    has: int | None
    needs: int | None
    unit: str | None
    message: str


class RejectionRow(BaseModel):
    """A node turned down."""

    node: str
    reasons: list[ReasonRow]


class FabricCountRow(BaseModel):
    """How many nodes of a fabric would do."""

    fabric: str
    eligible: int
    needs: int
    message: str


class TriedRow(BaseModel):
    """One profile tried on every node."""

    profile: str
    outcome: str
    considered: int
    fit: int
    counts: dict[str, int]
    rejected: list[RejectionRow] | None = None
    fabrics: list[FabricCountRow]


class RemedyRow(BaseModel):
    """One change after which it would fit."""

    change: str
    node: str | None = None
    fabric: str | None = None
    amount: int | None = None
    message: str


class DecisionRow(BaseModel):
    """The answer for one replica."""

    model: str
    replica: int
    order: int
    outcome: str
    profile: str | None
    fabric: str | None
    shards: list[PlacedShardRow]
    why: str
    tried: list[TriedRow] | None = None
    would_fit_if: list[RemedyRow] | None = None


class Decisions(BaseModel):
    """The answer for every replica."""

    decisions: list[DecisionRow]


class Explained(Decisions):
    """A model's replicas, and the decisions about them."""

    model: str
    replicas: list[ReplicaRow]


class KeyRow(BaseModel):
    """A client's key, without its text."""

    name: str
    ending: str
    created_at: str


class Keys(BaseModel):
    """All keys."""

    keys: list[KeyRow]


class CreatedKey(BaseModel):
    """A new key; shown once."""

    name: str
    key: str


class TokenRow(BaseModel):
    """A join token, without its text."""

    id: str
    expires_at: str
    uses: int


class Tokens(BaseModel):
    """All tokens that still admit machines."""

    tokens: list[TokenRow]


class CreatedToken(TokenRow):
    """A new token; shown once."""

    token: str


class EventRow(BaseModel):
    """A change: who, when, what, why."""

    id: int
    at: str
    who: str
    what: str
    object: str
    why: str


class Events(BaseModel):
    """A page of events; `next` is the `before` of the page after it."""

    events: list[EventRow]
    next: int | None


class OrphanShardRow(BaseModel):
    """A part of an orphan."""

    rank: int
    node: str
    host: str
    port: int
    gpus: list[int]


class OrphanRow(BaseModel):
    """An engine that nobody here asked for."""

    placement: str
    replica: str
    model: str
    index: int
    profile: str
    shards: list[OrphanShardRow]


class Orphans(BaseModel):
    """All orphans."""

    orphans: list[OrphanRow]


class ReapedRow(BaseModel):
    """What an order did: `ordered`, `stopping` (it was before), or `kept` (to be adopted)."""

    placement: str
    replica: str
    nodes: list[str]
    outcome: str


class Reaped(BaseModel):
    """All placements of an order."""

    reaped: list[ReapedRow]
