"""Orphans stopped on order: which may be, and that the order outlives this server."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from roost.domain.allocation import ReplicaName
from roost.domain.node import NodeName
from roost.domain.replica import PlacementId, ReplicaState
from roost.errors import Conflict, NotFound
from roost.reconcile.replicas import Replica, Shard, Wish
from roost.reconcile.schedule import adoptable
from roost.reconcile.world import Orphan
from roost.services.clock import Clock
from roost.services.inventory import Inventory
from roost.services.ledger import Ledger
from roost.services.scheduler import Scheduler
from roost.services.taking_over import taken_over
from roost.store.records import Event, Put

_BECAUSE = "reaped: it was an orphan"


class Outcome(StrEnum):
    """What an order did to one placement."""

    ORDERED = "ordered"
    """Its agents are told to stop it from now on."""
    STOPPING = "stopping"
    """They were told so before."""
    KEPT = "kept"
    """It is left running: its model is in the catalog, and takes it over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reaped:
    """One placement of an order."""

    placement: PlacementId
    replica: ReplicaName
    nodes: tuple[NodeName, ...]
    outcome: Outcome


class Orphans:
    """Stops on order what agents run and nobody gave them.

    An order is a tombstone like any other: stored before it is answered, it holds the cards and
    ports as they were reported until each agent has seen its part end.
    """

    def __init__(
        self, ledger: Ledger, inventory: Inventory, scheduler: Scheduler, clock: Clock
    ) -> None:
        self._ledger = ledger
        self._inventory = inventory
        self._scheduler = scheduler
        self._clock = clock

    async def reap(self, placements: Sequence[str], *, who: str) -> tuple[Reaped, ...]:
        """Stop the orphans named, all or none of them.

        One that is stopping already stays so. NotFound: there is none of that placement, never or
        no more. Conflict: it is a replica, or its model is in the catalog and takes it over.
        """
        async with self._ledger.turn():
            found, adopted = self._found()
            told = [
                self._judged(PlacementId(name), found, adopted)
                for name in dict.fromkeys(placements)
            ]
            return await self._order(told, found, who)

    async def reap_all(self, *, who: str) -> tuple[Reaped, ...]:
        """Stop every orphan but those that a model in the catalog takes over."""
        async with self._ledger.turn():
            found, adopted = self._found()
            told = [
                _reaped(orphan, Outcome.KEPT if placement in adopted else Outcome.ORDERED)
                for placement, orphan in found.items()
            ]
            return await self._order(told, found, who)

    def _found(self) -> tuple[dict[PlacementId, Orphan], frozenset[PlacementId]]:
        # One whose node is away is adopted when that is back: what the catalog wants decides.
        everywhere = replace(self._scheduler.world(), back=frozenset(self._ledger.nodes))
        found = {orphan.placement: orphan for orphan in self._inventory.orphans()}
        return found, adoptable(everywhere)

    def _judged(
        self,
        placement: PlacementId,
        found: dict[PlacementId, Orphan],
        adopted: frozenset[PlacementId],
    ) -> Reaped:
        orphan, replica = found.get(placement), self._ledger.replicas.get(placement)
        if replica is not None and replica.wish is not Wish.STOP:
            raise Conflict(
                f"{placement} is no orphan: it is {replica.name}, and the catalog has "
                f"{replica.model}",
                hint=f"to stop the model: roost ctl delete {replica.model}",
            )
        if orphan is not None and placement in adopted:
            model = orphan.spec.model
            raise Conflict(
                f"{placement} is about to be adopted as {orphan.spec.replica}: "
                f"the catalog has {model}",
                hint=f"to stop the model: roost ctl delete {model}",
            )
        if orphan is not None:
            return _reaped(orphan, Outcome.ORDERED)
        if replica is None:
            raise NotFound(
                f"there is no orphan {placement[:80]}: it never was one, or it is gone",
                hint="roost ctl orphans",
            )
        return Reaped(
            placement=placement,
            replica=replica.name,
            nodes=replica.nodes,
            outcome=Outcome.STOPPING,
        )

    async def _order(
        self, told: Sequence[Reaped], found: dict[PlacementId, Orphan], who: str
    ) -> tuple[Reaped, ...]:
        now = self._clock.time()
        ordered = [one for one in told if one.outcome is Outcome.ORDERED]
        if ordered:
            await self._ledger.commit(
                [Put(record=one) for one in self._tombstones(ordered, found, now)],
                events=[
                    Event(
                        at=now,
                        who=who,
                        what="orphan.reaped",
                        object=one.replica,
                        why=f"{one.placement} on {', '.join(one.nodes)} was wanted by nobody",
                    )
                    for one in ordered
                ],
            )
        return tuple(told)

    def _tombstones(
        self, ordered: Sequence[Reaped], found: Mapping[PlacementId, Orphan], now: float
    ) -> Iterator[Replica]:
        taken = {
            (shard.host, shard.port)
            for replica in self._ledger.replicas.values()
            for shard in replica.shards
        }
        for one in ordered:
            fresh = taken_over(found[one.placement], now=now)
            shards = [_without_port_of_another(shard, one, taken) for shard in fresh.shards]
            yield self._stopped(replace(fresh, shards=tuple(shards)))

    def _stopped(self, fresh: Replica) -> Replica:
        earlier = self._ledger.replicas.get(fresh.placement)
        if earlier is None:
            return replace(
                fresh,
                wish=Wish.STOP,
                because=_BECAUSE,
                state=ReplicaState.DRAINING,
                at_once=True,
            )
        # Parts of it stop already; these were reported since.
        known = {shard.rank for shard in fresh.shards}
        others = (shard for shard in earlier.shards if shard.rank not in known)
        shards = sorted((*others, *fresh.shards), key=lambda shard: shard.rank)
        return replace(earlier, shards=tuple(shards))


def _without_port_of_another(shard: Shard, of: Reaped, taken: set[tuple[str, int]]) -> Shard:
    """Of two that claim one port the later has none: it is stopped by its node all the same."""
    if (shard.host, shard.port) in taken:
        # Nobody connects to what is stopping, and this name leads nowhere (RFC 2606).
        return replace(shard, host=f"{of.placement}.{shard.rank}.invalid")
    taken.add((shard.host, shard.port))
    return shard


def _reaped(orphan: Orphan, outcome: Outcome) -> Reaped:
    return Reaped(
        placement=orphan.placement,
        replica=orphan.spec.replica,
        nodes=tuple(dict.fromkeys(node for node, _ in orphan.shards.values())),
        outcome=outcome,
    )
