"""What the store keeps, as frozen records, and the two changes that can be made to it."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Final

from roost.domain.model import Model
from roost.domain.node import Facts, NodeName
from roost.domain.replica import PlacementId
from roost.reconcile.replicas import Replica


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetRecord:
    """Which fleet this database is; one row."""

    fleet: str
    incarnation: int
    """Milliseconds since the epoch when the database was made or restored."""
    adopting: bool
    """No catalog has been applied since then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRecord:
    """A machine that joined: what it last said, and what the operator said of it."""

    name: NodeName
    identity: str
    credential_sha256: str
    joined_at: float
    cordoned: bool = False
    cordon_reason: str | None = None
    draining: bool = False
    facts: Facts | None = None
    address: str | None = None
    port_range: tuple[int, int] | None = None
    agent_version: str = ""
    boot_id: str | None = None
    hostname: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRecord:
    """A model as applied, and its place in the catalog."""

    model: Model
    position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRecord:
    """A join token as it is stored."""

    id: str
    sha256: str
    expires_at: float
    uses_left: int
    created_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRecord:
    """A client's key as it is stored; `ending` is what it is recognised by."""

    name: str
    sha256: str
    ending: str
    created_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogText:
    """A catalog as it was applied."""

    at: float
    who: str
    filename: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A change: who, when, what, to which object, and why."""

    at: float
    who: str
    what: str
    object: str
    why: str = ""
    id: int = 0
    """Given by the store; grows."""


Record = FleetRecord | NodeRecord | ModelRecord | TokenRecord | KeyRecord | Replica


@dataclass(frozen=True, slots=True, kw_only=True)
class Put:
    """So the record is from now on; one of the same key is replaced."""

    record: Record


@dataclass(frozen=True, slots=True, kw_only=True)
class Drop:
    """The record is no more."""

    record: NodeRecord | ModelRecord | TokenRecord | KeyRecord | Replica


Change = Put | Drop


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """Everything that is kept in memory while a server runs."""

    fleet: FleetRecord
    nodes: dict[NodeName, NodeRecord] = field(default_factory=dict)
    models: dict[str, ModelRecord] = field(default_factory=dict)
    tokens: dict[str, TokenRecord] = field(default_factory=dict)
    keys: dict[str, KeyRecord] = field(default_factory=dict)
    replicas: dict[PlacementId, Replica] = field(default_factory=dict)


_KEPT: Final[dict[type, tuple[str, Callable[[Any], str]]]] = {
    NodeRecord: ("nodes", lambda record: record.name),
    ModelRecord: ("models", lambda record: record.model.name),
    TokenRecord: ("tokens", lambda record: record.id),
    KeyRecord: ("keys", lambda record: record.name),
    Replica: ("replicas", lambda record: record.placement),
}


def changed(stored: Stored, changes: Iterable[Change]) -> Stored:
    """What is kept after these changes: what `load` answers once they are committed."""
    after: dict[str, Any] = {}
    for change in changes:
        if isinstance(change.record, FleetRecord):
            after["fleet"] = change.record
            continue
        kept, key = _KEPT[type(change.record)]
        if kept not in after:
            after[kept] = dict(getattr(stored, kept))
        if isinstance(change, Put):
            after[kept][key(change.record)] = change.record
        else:
            after[kept].pop(key(change.record), None)
    return replace(stored, **after)
