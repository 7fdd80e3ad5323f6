"""The world while a step is thought through: every action is applied to it at once. Pure."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from roost.domain.allocation import Allocation
from roost.domain.fleet import Fleet
from roost.domain.model import Catalog, ModelName
from roost.domain.node import NodeName
from roost.domain.profile import Profile, ProfileName
from roost.domain.replica import PlacementId, ReplicaState
from roost.placement.decision import Decision, Outcome
from roost.reconcile.actions import Action, Adopt, Drain, Lose, Place, Release, Return
from roost.reconcile.groups import regroup
from roost.reconcile.replicas import Replica, Wish, allocations, runs_alike
from roost.reconcile.world import World, orphan_allocations

Plan = Callable[[Catalog, Fleet], Sequence[Decision]]


@dataclass(frozen=True, slots=True)
class Decided:
    """A decision, and the index of its replica: placement counts a model's replicas from 0, ours
    keep their index when another goes.
    """

    index: int
    decision: Decision


class Board:
    """What runs and what is wanted, and the actions so far; its methods are the parts of a step."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.replicas: dict[PlacementId, Replica] = {
            replica.placement: replica
            for replica in sorted(world.replicas, key=lambda r: (r.name, r.created_at, r.placement))
        }
        self.orphans = {orphan.placement: orphan for orphan in world.orphans}
        self.models = {model.name: model for model in world.catalog.models}
        self.draining = {node.name for node in world.nodes if node.draining}
        self.cordoned = {node.name for node in world.nodes if node.cordoned}
        self.actions: list[Action] = []

    # What each action does to the board.

    def drain(self, replica: Replica, because: str, *, at_once: bool = False) -> None:
        """Stop it; `at_once`: nobody uses it any more."""
        self.replicas[replica.placement] = replace(
            replica, wish=Wish.STOP, because=because, state=ReplicaState.DRAINING, at_once=at_once
        )
        self.actions.append(Drain(placement=replica.placement, because=because, at_once=at_once))

    # 1. What is gone, what is lost.

    def release_and_lose(self) -> None:
        """What has stopped gives its cards back; what is on a node that is lost counts as lost."""
        for replica in list(self.replicas.values()):
            gone = self.world.gone.get(replica.placement, frozenset())
            if replica.wish is Wish.STOP and gone:
                self._release(replica, gone)
                continue
            lost = next((node for node in replica.nodes if node in self.world.lost), None)
            if lost is None:
                continue
            because = f"{lost} is silent for {self.world.lost[lost]:.0f} s"
            if replica.wish is Wish.STOP:
                if replica.is_group and not replica.at_once:
                    self.drain(replica, because, at_once=True)
            elif replica.is_group:
                # Without one of its shards none is of use, and theirs are free to be placed.
                self.drain(replica, because, at_once=True)
            elif replica.wish is Wish.RUN:
                self.replicas[replica.placement] = replace(replica, wish=Wish.LOST, because=because)
                self.actions.append(Lose(placement=replica.placement, because=because))

    def _release(self, replica: Replica, gone: frozenset[int]) -> None:
        left = tuple(shard for shard in replica.shards if shard.rank not in gone)
        went = (shard.node for shard in replica.shards if shard.rank in gone)
        if left:
            self.replicas[replica.placement] = replace(replica, shards=left)
        else:
            del self.replicas[replica.placement]
        self.actions.append(
            Release(placement=replica.placement, ranks=gone, because=f"gone from {_listed(went)}")
        )

    # 2. Whichever copy is ready stays; both: the newer; neither: the newer.

    def settle_returns(self) -> None:
        """Of a replica that was lost and is back, and the one made for it, one stays."""
        for replica in sorted(self.replicas.values(), key=lambda r: (-r.created_at, r.placement)):
            if replica.wish is not Wish.LOST or not set(replica.nodes) <= self.world.back:
                continue
            others = [
                other
                for other in self.replicas.values()
                if (other.model, other.index) == (replica.model, replica.index)
                and other.wish is Wish.RUN
            ]
            ready = replica.state is ReplicaState.READY
            if others and (not ready or any(other.is_ready for other in others)):
                where = _listed(others[-1].nodes)
                self.drain(replica, f"{_listed(replica.nodes)} is back, and {where} has taken over")
                continue
            because = f"{_listed(replica.nodes)} is back"
            self.replicas[replica.placement] = replace(replica, wish=Wish.RUN, because=None)
            self.actions.append(Return(placement=replica.placement, because=because))
            for other in others:
                self.drain(other, f"{because}, and {replica.name} is ready there")

    # 3. No more than is wanted.

    def by_model(self) -> dict[ModelName, list[Replica]]:
        """All replicas, of models that are not wanted too."""
        models: dict[ModelName, list[Replica]] = {}
        for replica in self.replicas.values():
            models.setdefault(replica.model, []).append(replica)
        return models

    def running(self, name: ModelName) -> dict[int, list[Replica]]:
        """The copies that count, by index, best last."""
        copies: dict[int, list[Replica]] = {}
        for replica in self.replicas.values():
            if replica.model == name and replica.wish is Wish.RUN:
                copies.setdefault(replica.index, []).append(replica)
        for several in copies.values():
            several.sort(key=lambda r: (not self.is_stale(r), r.created_at, r.placement))
        return copies

    def is_stale(self, replica: Replica) -> bool:
        """It runs by a profile that is no longer wanted, or where nothing is to run."""
        profile = self.profile(replica.model, replica.profile.name)
        return profile is None or not runs_alike(profile, replica.profile) or self._must_go(replica)

    def profile(self, model: ModelName, name: ProfileName) -> Profile | None:
        """As the catalog has it now."""
        wanted = self.models.get(model)
        if wanted is None:
            return None
        return next((profile for profile in wanted.profiles if profile.name == name), None)

    def trim(self, name: ModelName) -> None:
        """Stop what a model has too many of."""
        wanted = self.models[name].replicas if name in self.models else 0
        if wanted == 0:
            because = (
                "its model wants no replicas" if name in self.models else "its model was deleted"
            )
            for replica in self.by_model()[name]:
                if replica.wish is not Wish.STOP:
                    self.drain(replica, because)
            return
        copies = self.running(name)
        surplus = len(copies) - wanted
        worst_first = sorted(copies, key=lambda index: self._worth(copies[index][-1], index))
        for index in worst_first[: max(0, surplus)]:
            for replica in copies.pop(index):
                self.drain(replica, f"{wanted} of its model wanted")
        for several in copies.values():
            self._keep_one(several)
        # A lost copy whose index is filled waits for its node; one of no index isn't wanted.
        if len(copies) == wanted:
            for replica in self.by_model()[name]:
                if replica.wish is Wish.LOST and replica.index not in copies:
                    self.drain(replica, f"{wanted} of its model wanted")

    def _worth(self, replica: Replica, index: int) -> tuple[bool, bool, float, int]:
        on_cordoned = any(node in self.cordoned for node in replica.nodes)
        return (replica.is_ready, not on_cordoned, -replica.created_at, -index)

    def _keep_one(self, copies: list[Replica]) -> None:
        """Of several copies the best stays, and beside it the one that serves until it does."""
        best = copies[-1]
        serving = [replica for replica in copies if replica.is_ready]
        if best.is_ready or not serving:
            keep = {best.placement}
        elif self.is_stale(best):
            keep = {serving[-1].placement}
        else:
            keep = {best.placement, serving[-1].placement}
        for replica in copies:
            if replica.placement not in keep:
                self.drain(replica, f"replaced on {_listed(best.nodes)}")

    # 4. What is missing: adopted where it already runs, else placed.

    def missing(self) -> dict[ModelName, list[int]]:
        """Per model the lowest free indices, as many as replicas are missing."""
        missing: dict[ModelName, list[int]] = {}
        for model in self.world.catalog.models:
            used = set(self.running(model.name))
            short = model.replicas - len(used)
            free = (index for index in range(model.replicas + len(used)) if index not in used)
            indices = [next(free) for _ in range(short)]
            if indices:
                missing[model.name] = indices
        return missing

    def adopt(self) -> None:
        """Take orphans that run as a replica that is wanted and missing."""
        missing = self.missing()
        for orphan in sorted(self.orphans.values(), key=lambda o: o.placement):
            spec = orphan.spec
            wanted = self.profile(spec.model, spec.profile.name)
            if (
                spec.index not in missing.get(spec.model, ())
                or wanted is None
                or not runs_alike(wanted, spec.profile)
                or not orphan.is_whole
                or not orphan.usable
                or not {node for node, _ in orphan.shards.values()} <= self.world.back
            ):
                continue
            missing[spec.model].remove(spec.index)
            self.actions.append(
                Adopt(
                    orphan=orphan,
                    model=spec.model,
                    index=spec.index,
                    because=f"runs on {_listed(node for node, _ in orphan.shards.values())}",
                )
            )

    def place(self, plan: Plan) -> tuple[Decided, ...]:
        """Place what is missing; what found no place."""
        missing = self.missing()
        if not missing:
            return ()
        waiting = []
        for one in self.decided(plan):
            index, decision = one.index, one.decision
            if index not in missing.get(decision.model, ()):
                continue
            if decision.outcome is Outcome.PLACED:
                self._place(decision, index, decision.why)
            elif decision.outcome is Outcome.UNPLACEABLE:
                waiting.append(one)
        return tuple(waiting)

    def _place(self, decision: Decision, index: int, because: str) -> None:
        profile = (
            None if decision.profile is None else self.profile(decision.model, decision.profile)
        )
        if (
            profile is None
        ):  # a plan that answers with a profile nobody wrote has no place in this world
            raise ValueError(f"{decision.model}-{index} was placed by no known profile")
        self.actions.append(
            Place(
                model=decision.model,
                index=index,
                profile=profile,
                decision=decision,
                because=because,
            )
        )

    # 5. What runs by an old profile or on a draining node: one at a time.

    def replace_one(self, plan: Plan) -> None:
        """Exchange one replica that runs by an old profile or has to leave its node."""
        for model in self.world.catalog.models:
            copies = self.running(model.name)
            mine = [replica for replica in self.replicas.values() if replica.model == model.name]
            busy = any(replica.wish is Wish.STOP for replica in mine) or any(
                len(several) > 1 for several in copies.values()
            )
            if busy or len(copies) < model.replicas:
                continue
            best = [several[-1] for several in copies.values()]
            # A successor that never becomes ready must not cost one replica after another.
            awaited = any(not one.is_ready and not self.is_stale(one) for one in best)
            stale = sorted(
                (
                    one
                    for one in best
                    if self.is_stale(one)
                    and (not awaited or not one.is_ready or self._must_go(one))
                ),
                key=lambda replica: (replica.is_ready, replica.index),
            )
            if stale and self._replace(stale[0], plan):
                return

    def _replace(self, old: Replica, plan: Plan) -> bool:
        reason = self._stale_because(old)
        beside = self._decide(old, plan, without=False)
        if beside is not None:
            self._place(beside, old.index, f"{reason}; {beside.why}")
            return True
        # No room beside it: the old one goes first, if there is room then, or it must go anyway.
        if self._must_go(old) or self._decide(old, plan, without=True) is not None:
            self.drain(old, reason)
            return True
        return False

    def _must_go(self, replica: Replica) -> bool:
        return any(node in self.draining for node in replica.nodes)

    def _stale_because(self, old: Replica) -> str:
        draining = [node for node in old.nodes if node in self.draining]
        if draining:
            return f"{draining[0]} is draining"
        return f"profile {old.profile.name} changed"

    def _decide(self, old: Replica, plan: Plan, *, without: bool) -> Decision | None:
        held = {
            placement: replica
            for placement, replica in self.replicas.items()
            if not (without and placement == old.placement)
        }
        position = {
            own: counted for (name, counted), own in self.numbering().items() if name == old.model
        }
        for decision in plan(self.world.catalog, self._fleet(held, uncounted=old.placement)):
            if (decision.model, decision.replica) == (old.model, position[old.index]):
                return decision if decision.outcome is Outcome.PLACED else None
        return None

    # 6. Groups whose shards start again together.

    def regroup(self) -> None:
        """Restart groups that have lost a shard, and let those begin whose shards are all clear."""
        world = self.world
        for replica in list(self.replicas.values()):
            action = regroup(replica, back=world.back, now=world.now, luck=world.luck)
            if action is not None:
                self.actions.append(action)

    # The fleet as placement sees it.

    def decided(self, plan: Plan) -> tuple[Decided, ...]:
        """What placement says of all that will be wanted."""
        numbering = self.numbering()
        listed = {model.name: at for at, model in enumerate(self.world.catalog.models)}
        found = [
            Decided(numbering[decision.model, decision.replica], decision)
            for decision in plan(self.world.catalog, self.fleet())
        ]
        return tuple(sorted(found, key=lambda one: (listed[one.decision.model], one.index)))

    def numbering(self) -> dict[tuple[ModelName, int], int]:
        """From a model and the number of a replica as placement counts to its index."""
        numbering: dict[tuple[ModelName, int], int] = {}
        missing = self.missing()
        for model in self.world.catalog.models:
            used = set(self.running(model.name)) | set(missing.get(model.name, ()))
            low = [index for index in sorted(used) if index < model.replicas]
            high = iter([index for index in sorted(used) if index >= model.replicas])
            for counted in range(model.replicas):
                numbering[model.name, counted] = counted if counted in low else next(high, counted)
        return numbering

    def fleet(self) -> Fleet:
        """As placement sees it."""
        return self._fleet(self.replicas, uncounted=None)

    def _fleet(
        self, replicas: Mapping[PlacementId, Replica], *, uncounted: PlacementId | None
    ) -> Fleet:
        counted = {(name, own): number for (name, number), own in self.numbering().items()}
        best = {
            several[-1].placement
            for name in self.by_model()
            for several in self.running(name).values()
        }
        held: list[Allocation] = []
        for replica in replicas.values():
            number = counted.get((replica.model, replica.index))
            counts = (
                replica.placement in best and replica.placement != uncounted and number is not None
            )
            held.extend(allocations(replica, counts=counts, index=number if counts else None))
        for orphan in self.orphans.values():
            held.extend(orphan_allocations(orphan))
        names = {node.name for node in self.world.nodes}
        return Fleet(
            nodes=self.world.nodes,
            allocations=tuple(allocation for allocation in held if allocation.node in names),
        )


def _listed(nodes: Iterable[NodeName]) -> str:
    return ", ".join(dict.fromkeys(nodes)) or "no node"
