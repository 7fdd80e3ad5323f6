"""What the scheduler can do, each with why it does it. Pure."""

from dataclasses import dataclass

from roost.domain.model import ModelName
from roost.domain.profile import Profile
from roost.domain.replica import PlacementId
from roost.placement.decision import Decision
from roost.reconcile.world import Orphan


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Give a replica its place."""

    model: ModelName
    index: int
    profile: Profile
    decision: Decision
    because: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Adopt:
    """Take an engine that already runs as the replica that is wanted, without a restart."""

    orphan: Orphan
    model: ModelName
    index: int
    because: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """Out of routing, and stopped by its agents."""

    placement: PlacementId
    because: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Lose:
    """Its node is lost: no longer counted, still held."""

    placement: PlacementId
    because: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Return:
    """A lost one is back and counts again."""

    placement: PlacementId
    because: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """It is gone from every node: what it held is free."""

    placement: PlacementId
    because: str


Action = Place | Adopt | Drain | Lose | Return | Release
