"""The answer for one replica: the first profile that fits, where, and why."""

from collections.abc import Sequence
from functools import cached_property
from typing import Final, TypeAlias

from roost.domain.allocation import Allocation, replica_name
from roost.domain.fabric import FabricName
from roost.domain.gpu import GpuUuid
from roost.domain.model import Model, ModelName
from roost.domain.profile import ProfileName
from roost.placement import groups, ranking, remedies, why
from roost.placement.decision import Outcome, Remedy, ShardPlacement, Tried
from roost.placement.history import Moment
from roost.placement.needs import Need
from roost.placement.rows import Row
from roost.placement.tried import Attempt, Trial
from roost.placement.view import View, hcas_of


class Ask:
    """One replica that waits for a place."""

    __slots__ = ("index", "model")

    def __init__(self, model: Model, index: int) -> None:
        self.model = model
        self.index = index


class Placed:
    """A replica that has a place now; a `Decision`."""

    __slots__ = ("_attempts", "_places", "fabric", "model", "order", "replica", "shards")
    outcome: Final = Outcome.PLACED
    would_fit_if: Final[tuple[Remedy, ...]] = ()

    def __init__(
        self,
        ask: Ask,
        order: int,
        attempts: tuple[Attempt, ...],
        places: tuple[int, ...],
        fabric: FabricName | None,
        shards: tuple[ShardPlacement, ...],
    ) -> None:
        """The last of the attempts is the one that fits."""
        self.model: ModelName = ask.model.name
        self.replica = ask.index
        self.order = order
        self.fabric = fabric
        self.shards = shards
        self._attempts = attempts
        self._places = places

    @property
    def profile(self) -> ProfileName:
        """The first that fits."""
        return self._attempts[-1].profile

    @property
    def tried(self) -> Sequence[Tried]:
        """By priority, down to the profile used."""
        return self._attempts

    @property
    def why(self) -> str:
        """What it won by, and the runner-up."""
        return why.placed(self._attempts[-1].trial, self._places, self.fabric)

    @property
    def allocations(self) -> tuple[Allocation, ...]:
        """What it is to hold, one allocation a node, by rank."""
        profile = self._attempts[-1].need.profile
        replica = replica_name(self.model, self.replica)
        return tuple(
            Allocation(
                replica=replica,
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

    @property
    def trials(self) -> tuple[Trial, ...]:
        """The sets of nodes once more."""
        return tuple(attempt.trial for attempt in self.attempts)

    @cached_property
    def why(self) -> str:
        """What is nearest to fitting."""
        return why.unplaceable(self.trials, self._found)

    @property
    def would_fit_if(self) -> Sequence[Remedy]:
        """Smallest first, at most five."""
        return tuple(found.remedy for found in self._found)

    @cached_property
    def _found(self) -> Sequence[remedies.Found]:
        return remedies.remedies(self.trials)


class Unplaceable:
    """A replica for which no profile fits; a `Decision`."""

    __slots__ = ("model", "order", "refusal", "replica")
    outcome: Final = Outcome.UNPLACEABLE
    profile: Final[ProfileName | None] = None
    fabric: Final[FabricName | None] = None
    shards: Final[tuple[ShardPlacement, ...]] = ()

    def __init__(self, ask: Ask, order: int, refusal: Refusal) -> None:
        self.model: ModelName = ask.model.name
        self.replica = ask.index
        self.order = order
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


def decide(ask: Ask, view: View, *, order: int = 1, moment: Moment | None = None) -> Answer:
    """Place one replica of a model of the view's catalog, or say why not; what runs never moves.

    The answer refers to `view` for what is read later, or to `moment` if that is given.
    """
    attempts: tuple[Attempt, ...] = ()
    for need in view.needs.by_model[ask.model.name]:
        trial = Trial(need, view)
        attempts = (*attempts, Attempt(trial, view if moment is None else moment))
        if trial.fitting:
            return _placed(ask, order, attempts, trial)
    return Unplaceable(ask, order, Refusal(attempts))


def _placed(ask: Ask, order: int, attempts: tuple[Attempt, ...], trial: Trial) -> Placed:
    need, view = trial.need, trial.view
    fabric: FabricName | None = None
    if need.nodes == 1:
        places: tuple[int, ...] = (ranking.best(need, view, trial.fitting),)
    else:
        chosen = trial.enough[0]
        fabric = chosen.fabric
        places = tuple(groups.emptiest(need, view, chosen.nodes))
    shards = tuple(
        [_shard(rank, need, view.row(place), fabric) for rank, place in enumerate(places)]
    )
    return Placed(ask, order, attempts, places, fabric, shards)


def _shard(rank: int, need: Need, row: Row, fabric: FabricName | None) -> ShardPlacement:
    gpus: tuple[int, ...] = ()
    uuids: tuple[GpuUuid, ...] = ()
    if row.cards is not None and need.kind is not None:
        positions = row.cards.choose(need.kind, row.free, need.cards)
        chosen = [row.gpus[position] for position in positions]
        gpus = tuple([gpu.index for gpu in chosen])
        uuids = tuple([gpu.uuid for gpu in chosen if gpu.uuid is not None])
    return ShardPlacement(
        rank=rank,
        node=row.node.name,
        gpus=gpus,
        gpu_uuids=uuids,
        hcas=() if fabric is None else hcas_of(row, fabric),
    )
