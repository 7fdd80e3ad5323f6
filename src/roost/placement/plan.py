"""The answers for all replicas of a catalog, as the live scheduler would give them."""

from collections.abc import Iterable
from functools import cached_property
from typing import Final, NamedTuple

from roost.domain.allocation import Allocation, AllocationState, replica_name
from roost.domain.fabric import FabricName
from roost.domain.fleet import Fleet
from roost.domain.model import Catalog, Model, ModelName
from roost.domain.profile import ProfileName
from roost.placement.decide import Ask, Placed, Unplaceable, decide
from roost.placement.decision import Decision, Outcome, Remedy, ShardPlacement, Tried
from roost.placement.index import Index
from roost.placement.view import View, hcas_of


class ReplicaKey(NamedTuple):
    """Which replica of the catalog an allocation is for."""

    model: ModelName
    number: int


class Kept:
    """A replica that already holds what it needs; a `Decision`."""

    outcome: Final = Outcome.KEPT

    def __init__(
        self, key: ReplicaKey, order: int, holds: tuple[Allocation, ...], view: View
    ) -> None:
        self.model = key.model
        self.replica = key.number
        self.order = order
        self.tried: tuple[Tried, ...] = ()
        self.would_fit_if: tuple[Remedy, ...] = ()
        self._holds = holds
        self._view = view

    @property
    def profile(self) -> ProfileName | None:
        """`None` where its allocations don't say, or don't agree."""
        named = {hold.profile for hold in self._holds}
        return named.pop() if len(named) == 1 else None

    @cached_property
    def fabric(self) -> FabricName | None:
        """The one fabric that all of several nodes are on; an allocation doesn't say it."""
        if len(self._holds) == 1:
            return None
        common: set[FabricName] | None = None
        for hold in self._holds:
            place = self._view.places.get(hold.node)
            facts = () if place is None else self._view.row(place).node.facts.fabrics or ()
            names = {fabric.name for fabric in facts if fabric.hcas}
            common = names if common is None else common & names
        return common.pop() if common and len(common) == 1 else None

    @cached_property
    def shards(self) -> tuple[ShardPlacement, ...]:
        """By node name: which rank is where, an allocation doesn't say."""
        return tuple(self._shard(rank, hold) for rank, hold in enumerate(self._holds))

    def _shard(self, rank: int, hold: Allocation) -> ShardPlacement:
        place = self._view.places.get(hold.node)
        if place is None:
            return ShardPlacement(
                rank=rank, node=hold.node, gpus=hold.gpus, gpu_uuids=hold.gpu_uuids
            )
        row = self._view.row(place)
        uuids = hold.gpu_uuids or tuple(
            gpu.uuid for gpu in row.gpus if gpu.index in hold.gpus and gpu.uuid is not None
        )
        return ShardPlacement(
            rank=rank,
            node=hold.node,
            gpus=hold.gpus,
            gpu_uuids=uuids,
            hcas=() if self.fabric is None else hcas_of(row, self.fabric),
        )

    @property
    def why(self) -> str:
        """Where it is."""
        return f"already holds its place on {', '.join(hold.node for hold in self._holds)}"


def plan(catalog: Catalog, fleet: Fleet) -> tuple[Decision, ...]:
    """Decide every replica of `catalog` that has no place, each seeing those before it.

    In catalog order; `order` says in which order they were decided.
    """
    index = Index(catalog, fleet)
    start = index.view
    held = held_by_replica(fleet.allocations)
    decided: dict[ReplicaKey, Decision] = {}
    for model in catalog.models:
        for number in range(model.replicas):
            key = ReplicaKey(model.name, number)
            if holds := held.get(key):
                decided[key] = Kept(key, len(decided) + 1, holds, start)
    refused: Unplaceable | None = None
    for model in in_order(catalog.models, start):
        for number in range(model.replicas):
            key = ReplicaKey(model.name, number)
            if key in decided:
                continue
            order = len(decided) + 1
            ask = Ask(model, number)
            if refused is not None and refused.model == model.name:
                # Nothing was placed since the last replica of this model was refused.
                decided[key] = Unplaceable(ask, order, refused.refusal)
                continue
            answer = decide(ask, index.view, order=order)
            decided[key] = answer
            if isinstance(answer, Placed):
                for hold in answer.allocations:
                    index.allocate(hold)
            else:
                refused = answer
    return tuple(
        decided[ReplicaKey(model.name, number)]
        for model in catalog.models
        for number in range(model.replicas)
    )


def in_order(models: Iterable[Model], view: View) -> list[Model]:
    """Whose replicas are decided first: by priority, then those that the fewest nodes could ever hold,
    then the largest (by the largest of its profiles), then as listed."""
    return sorted(
        models,
        key=lambda model: (
            -model.priority,
            view.lasting.nodes_for(model),
            -max((need.cards * need.nodes for need in view.needs.by_model[model.name]), default=0),
        ),
    )


def held_by_replica(allocations: Iterable[Allocation]) -> dict[ReplicaKey, tuple[Allocation, ...]]:
    """What each replica holds that still counts for its model, by node name.

    An allocation that doesn't name its model is somebody else's. One that names it without the number
    of the replica is of the replica whose name it has.
    """
    found: dict[ReplicaKey, list[Allocation]] = {}
    for hold in allocations:
        if hold.model is None or hold.state is not AllocationState.HELD:
            continue
        number = hold.index
        if number is None:
            digits = hold.replica.removeprefix(f"{hold.model}-")
            if not digits.isdecimal() or hold.replica != replica_name(hold.model, int(digits)):
                continue
            number = int(digits)
        found.setdefault(ReplicaKey(hold.model, number), []).append(hold)
    return {
        key: tuple(sorted(holds, key=lambda hold: (hold.node, hold.gpus, hold.gpu_uuids)))
        for key, holds in found.items()
    }
