"""What the scheduler can do, each with why it does it. Pure."""

from dataclasses import dataclass, replace
from typing import assert_never

from roost.domain.model import ModelName
from roost.domain.profile import Profile
from roost.domain.replica import PlacementId, ReplicaState
from roost.placement.decision import Decision
from roost.reconcile.replicas import Replica, Wish, observe
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
    at_once: bool = False
    """Of one on several nodes: no shard waits until rank 0 has ended."""


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
    """Shards of it are gone from their nodes: what they held is free; with the last, all of it."""

    placement: PlacementId
    ranks: frozenset[int]
    because: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """Every shard of a replica on several nodes is to end, and none is to start until `Begin`."""

    placement: PlacementId
    generation: int
    """The start that this one is, once it begins."""
    failures: int
    """In a row, this one among them."""
    at: float
    """No sooner; seconds since the epoch."""
    because: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Begin:
    """Every shard of a replica on several nodes is to run, in this start of it."""

    placement: PlacementId
    generation: int
    because: str


Action = Place | Adopt | Drain | Lose | Return | Release | Restart | Begin


def applied(
    action: Drain | Lose | Return | Restart | Begin, replica: Replica, *, now: float
) -> Replica:
    """The replica after the action."""
    match action:
        case Drain():
            return replace(
                replica,
                wish=Wish.STOP,
                because=action.because,
                state=ReplicaState.DRAINING,
                since=replica.since if replica.wish is Wish.STOP else now,
                at_once=action.at_once,
            )
        case Lose():
            return replace(replica, wish=Wish.LOST, because=action.because)
        case Return():
            return replace(replica, wish=Wish.RUN, because=None)
        case Restart():
            held = replace(
                replica,
                generation=action.generation,
                hold=True,
                failures=action.failures,
                restart_at=action.at,
                cause=action.because,
                ready_since=None,
            )
            return observe(held, {}, now=now)
        case Begin():
            going = replace(replica, generation=action.generation, hold=False, restart_at=None)
            return observe(going, {}, now=now)
        case _:
            assert_never(action)
