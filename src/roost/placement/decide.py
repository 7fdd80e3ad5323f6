"""The answer for one replica: the first profile that fits, where, and why."""

from collections.abc import Sequence
from functools import cached_property
from typing import Final, TypeAlias

from roost.domain.allocation import Allocation, replica_name
from roost.domain.fabric import FabricName
from roost.domain.gpu import GpuUuid
from roost.domain.model import Model, ModelName
from roost.domain.profile import ProfileName
from roost.placement import bits, groups, ranking, remedies, why
from roost.placement.decision import Outcome, Remedy, ShardPlacement, Tried
from roost.placement.tried import Attempt
from roost.placement.view import View, hcas_of


class Ask:
    """One replica that waits for a place."""

    __slots__ = ("index", "model")

    def __init__(self, model: Model, index: int) -> None:
        self.model = model
        self.index = index


class Placed:
    """A replica that has a place now; a `Decision`."""

    outcome: Final = Outcome.PLACED

    def __init__(
        self,
        ask: Ask,
        order: int,
        attempts: tuple[Attempt, ...],
        places: tuple[int, ...],
        fabric: FabricName | None,
    ) -> None:
        """The last of the attempts is the one that fits."""
        self.model: ModelName = ask.model.name
        self.replica = ask.index
        self.order = order
        self.fabric = fabric
        self.would_fit_if: tuple[Remedy, ...] = ()
        self._attempts = attempts
        self._places = places
        used = attempts[-1]
        self.shards = tuple(_shard(rank, place, used, fabric) for rank, place in enumerate(places))

    @property
    def profile(self) -> ProfileName:
        """The first that fits."""
        return self._attempts[-1].profile

    @property
    def tried(self) -> Sequence[Tried]:
        """By priority, down to the profile used."""
        return self._attempts

    @cached_property
    def why(self) -> str:
        """What it won by, and the runner-up."""
        return why.placed(self._attempts[-1], self._places, self.fabric)

    @cached_property
    def allocations(self) -> tuple[Allocation, ...]:
        """What it is to hold, one allocation a node, by rank."""
        profile = self._attempts[-1].need.profile
        return tuple(
            Allocation(
                replica=replica_name(self.model, self.replica),
                node=shard.node,
                model=self.model,
                index=self.replica,
                profile=profile.name,
                gpus=shard.gpus,
                gpu_uuids=shard.gpu_uuids,
                memory_bytes=profile.min_memory_bytes,
                disk_bytes=profile.min_disk_bytes,
            )
            for shard in self.shards
        )


class Refusal:
    """Every profile tried in vain; shared by the replicas that are refused at the same moment."""

    def __init__(self, attempts: tuple[Attempt, ...]) -> None:
        self.attempts = attempts

    @cached_property
    def why(self) -> str:
        """What is nearest to fitting."""
        return why.unplaceable(self.attempts, self.would_fit_if)

    @cached_property
    def would_fit_if(self) -> Sequence[Remedy]:
        """Smallest first, at most five."""
        return remedies.remedies(self.attempts)


class Unplaceable:
    """A replica for which no profile fits; a `Decision`."""

    outcome: Final = Outcome.UNPLACEABLE

    def __init__(self, ask: Ask, order: int, refusal: Refusal) -> None:
        self.model: ModelName = ask.model.name
        self.replica = ask.index
        self.order = order
        self.profile: ProfileName | None = None
        self.fabric: FabricName | None = None
        self.shards: tuple[ShardPlacement, ...] = ()
        self.refusal = refusal

    @property
    def tried(self) -> Sequence[Tried]:
        """Every profile, by priority."""
        return self.refusal.attempts

    @property
    def why(self) -> str:
        """What is nearest to fitting."""
        return self.refusal.why

    @property
    def would_fit_if(self) -> Sequence[Remedy]:
        """Smallest first, at most five."""
        return self.refusal.would_fit_if


Answer: TypeAlias = Placed | Unplaceable


def decide(ask: Ask, view: View, *, order: int = 1) -> Answer:
    """Place one replica of a model of the view's catalog, or say why not; what runs never moves."""
    attempts: tuple[Attempt, ...] = ()
    for need in view.needs.by_model[ask.model.name]:
        attempt = Attempt(need, view)
        attempts = (*attempts, attempt)
        if not attempt.fitting:
            continue
        if need.nodes == 1:
            place = ranking.best(need, view, attempt.fitting)
            return Placed(ask, order, attempts, (place,), None)
        chosen = attempt.enough[0]
        places = tuple(groups.emptiest(need, view, chosen.nodes))
        return Placed(ask, order, attempts, places, chosen.fabric)
    return Unplaceable(ask, order, Refusal(attempts))


def _shard(rank: int, place: int, attempt: Attempt, fabric: FabricName | None) -> ShardPlacement:
    row, need = attempt.view.row(place), attempt.need
    gpus: tuple[int, ...] = ()
    uuids: tuple[GpuUuid, ...] = ()
    if row.cards is not None and need.kind is not None:
        chosen = [
            row.gpus[position]
            for position in bits.members(row.cards.choose(need.kind, row.free, need.cards))
        ]
        gpus = tuple(gpu.index for gpu in chosen)
        uuids = tuple(gpu.uuid for gpu in chosen if gpu.uuid is not None)
    return ShardPlacement(
        rank=rank,
        node=row.node.name,
        gpus=gpus,
        gpu_uuids=uuids,
        hcas=() if fabric is None else hcas_of(row, fabric),
    )
