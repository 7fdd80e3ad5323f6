"""The answers for all replicas of a catalog, as the live scheduler would give them."""

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from itertools import chain
from typing import Final, TypeAlias

from roost.domain.allocation import Allocation, AllocationState, ReplicaName, replica_name
from roost.domain.fabric import FabricName
from roost.domain.fleet import Fleet
from roost.domain.model import Catalog, Model, ModelName
from roost.domain.profile import ProfileName
from roost.placement import bits, events
from roost.placement.decide import Ask, Placed, Unplaceable, decide
from roost.placement.decision import Decision, Outcome, Remedy, ShardPlacement, Tried
from roost.placement.history import History
from roost.placement.index import Index
from roost.placement.rows import taken_by
from roost.placement.view import View


class Kept:
    """A replica that already holds what it needs; a `Decision`."""

    outcome: Final = Outcome.KEPT

    fabric: FabricName | None = None
    """An allocation doesn't say it."""

    def __init__(self, ask: Ask, order: int, holds: tuple[Allocation, ...], view: View) -> None:
        self.model = ask.model.name
        self.replica = ask.index
        self.order = order
        self.tried: tuple[Tried, ...] = ()
        self.would_fit_if: tuple[Remedy, ...] = ()
        self._holds = holds
        self._view = view

    @property
    def profile(self) -> ProfileName | None:
        """`None` where its allocations don't say, or don't agree."""
        named = {hold.profile for hold in self._holds if hold.profile is not None}
        return named.pop() if len(named) == 1 else None

    @cached_property
    def shards(self) -> tuple[ShardPlacement, ...]:
        """By node name: which rank is where, and by which adapters, an allocation doesn't say."""
        return tuple(self._shard(rank, hold) for rank, hold in enumerate(self._holds))

    def _shard(self, rank: int, hold: Allocation) -> ShardPlacement:
        place = self._view.places.get(hold.node)
        gpus = () if place is None else self._view.row(place).gpus
        uuids = hold.gpu_uuids or tuple(
            gpu.uuid for gpu in gpus if gpu.index in hold.gpus and gpu.uuid is not None
        )
        return ShardPlacement(
            rank=rank, node=hold.node, gpus=tuple(sorted(hold.gpus)), gpu_uuids=uuids
        )

    @property
    def why(self) -> str:
        """Where it is, and what speaks against its cards."""
        held = f"already holds its place on {', '.join(hold.node for hold in self._holds)}"
        return "; ".join([held, *chain.from_iterable(self._ill(hold) for hold in self._holds)])

    def _ill(self, hold: Allocation) -> Iterator[str]:
        place = self._view.places.get(hold.node)
        if place is None:
            return
        row = self._view.row(place)
        for position in bits.members(taken_by(hold, row.gpus) & row.broken):
            gpu = row.gpus[position]
            reason = gpu.unhealthy_reason or "no reason given"
            yield f"GPU {gpu.index} of {hold.node} is unhealthy: {reason}"


def plan(catalog: Catalog, fleet: Fleet) -> tuple[Decision, ...]:
    """Decide every replica of `catalog` that has no place, each seeing those before it.

    In catalog order; `order` says in which order they were decided.
    """
    start = view = Index(catalog, fleet).view
    history = History(start)
    held = held_by_replica(fleet.allocations)
    asks = [[Ask(model, number) for number in range(model.replicas)] for model in catalog.models]
    decided: dict[Ask, Decision] = {}
    for ask in chain.from_iterable(asks):
        if holds := held_by(ask, held):
            decided[ask] = Kept(ask, len(decided) + 1, holds, start)
    for waiting in in_order(asks, start):
        refused: Unplaceable | None = None
        for ask in waiting:
            if ask in decided:
                continue
            order = len(decided) + 1
            if refused is not None:
                # Nothing was placed since another replica of this model was refused.
                decided[ask] = Unplaceable(ask, order, refused.refusal)
                continue
            answer = decided[ask] = decide(ask, view, order=order, moment=history.now())
            if isinstance(answer, Placed):
                for hold in answer.allocations:
                    view = events.allocated(view, hold)
                    history.held(hold, view)
            else:
                refused = answer
    return tuple(decided[ask] for ask in chain.from_iterable(asks))


def in_order(asks: Iterable[list[Ask]], view: View) -> list[list[Ask]]:
    """Whose replicas are decided first, of lists of replicas of one model each.

    By priority, then those that the fewest nodes could ever hold, then the largest (by the largest
    of its profiles), then as listed.
    """

    def rank(model: Model) -> tuple[int, int, int]:
        largest = max(need.cards * need.nodes for need in view.needs.by_model[model.name])
        return -model.priority, view.lasting.nodes_for(model), -largest

    return sorted((some for some in asks if some), key=lambda some: rank(some[0].model))


Holder: TypeAlias = ReplicaName | int
"""The number of a replica of a model, or its name where an allocation gives only that."""


def held_by_replica(
    allocations: Iterable[Allocation],
) -> dict[tuple[ModelName, Holder], list[Allocation]]:
    """What counts for a model: not what is stopping, on a lost node, or somebody else's.

    An allocation that doesn't name its model is somebody else's.
    """
    found: dict[tuple[ModelName, Holder], list[Allocation]] = {}
    for hold in allocations:
        if hold.model is not None and hold.state is AllocationState.HELD:
            holder = hold.replica if hold.index is None else hold.index
            found.setdefault((hold.model, holder), []).append(hold)
    return found


def held_by(
    ask: Ask, held: Mapping[tuple[ModelName, Holder], list[Allocation]]
) -> tuple[Allocation, ...]:
    """What one replica holds, by node name."""
    model, number = ask.model.name, ask.index
    found = held.get((model, number), []) + held.get((model, replica_name(model, number)), [])
    return tuple(sorted(found, key=lambda hold: (hold.node, hold.gpus, hold.gpu_uuids)))
