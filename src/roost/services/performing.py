"""What each action of the scheduler does to the store, and what is said of it."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final, assert_never

import structlog

from roost.domain.allocation import ReplicaName, replica_name
from roost.domain.replica import PlacementId
from roost.placement.decision import ShardPlacement
from roost.reconcile.actions import (
    Action,
    Adopt,
    Begin,
    Drain,
    Lose,
    Place,
    Release,
    Restart,
    Return,
    applied,
)
from roost.reconcile.replicas import Replica, Shard, Wish, observe
from roost.services.clock import Clock
from roost.services.inventory import Inventory
from roost.services.ledger import Ledger
from roost.services.ports import Ports
from roost.services.secrets import new_id, new_secret
from roost.services.taking_over import taken_over
from roost.store.records import Change, Drop, Event, Put

_SAID: Final = {
    Drain: "replica.draining",
    Lose: "replica.lost",
    Return: "replica.returned",
    Release: "replica.released",
    Restart: "replica.restarting",
    Begin: "replica.restarted",
}

log = structlog.get_logger("roost.scheduler")


class Performer:
    """Turns actions into changes; nothing is stored here."""

    def __init__(self, ledger: Ledger, inventory: Inventory, clock: Clock) -> None:
        self._ledger = ledger
        self._inventory = inventory
        self._clock = clock
        self._refused_ports: dict[PlacementId, set[int]] = {}

    def perform(self, action: Action, ports: Ports) -> Change:
        """The change that the action is; `Unavailable`: its node has no port left."""
        replicas = self._ledger.replicas
        now = self._clock.time()
        match action:
            case Place():
                return Put(record=self._place(action, ports, now))
            case Adopt():
                return Put(record=self._adopt(action, now))
            case Release(placement=placement, ranks=ranks):
                return self._release(replicas[placement], ranks)
            case Drain() | Lose() | Return() | Restart() | Begin():
                return Put(record=applied(action, replicas[action.placement], now=now))
            case _:
                assert_never(action)

    def event(self, action: Action) -> Event:
        """What the history says of it."""
        match action:
            case Place() | Adopt():
                what = "replica.placed" if isinstance(action, Place) else "replica.adopted"
                name = replica_name(action.model, action.index)
            case _:
                what, name = _SAID[type(action)], self._name(action.placement)
        return Event(
            at=self._clock.time(), who="scheduler", what=what, object=name, why=action.because
        )

    def moved(self, ports: Ports, busy: set[PlacementId | None]) -> Iterator[Replica]:
        """Another port for each engine whose port somebody else has: no crash, a new address."""
        for placement, rank, port in self._inventory.taken_ports():
            replica = self._ledger.replicas.get(placement)
            if replica is None or replica.wish is Wish.STOP or placement in busy:
                continue
            shard = next((s for s in replica.shards if (s.rank, s.port) == (rank, port)), None)
            if shard is None or (replica.is_group and replica.hold):
                continue  # it has been given another one already
            busy.add(placement)
            yield self._move(replica, shard, ports)

    def _move(self, replica: Replica, shard: Shard, ports: Ports) -> Replica:
        refused = self._refused_ports.setdefault(replica.placement, set())
        refused.add(shard.port)
        range_ = self._ledger.nodes[shard.node].port_range
        new = replace(shard, port=ports.take(shard.node, shard.host, range_, refused))
        if shard.group_port is not None:
            # Its agent doesn't say which of the two was taken.
            refused.add(shard.group_port)
            new = replace(new, group_port=ports.take(shard.node, shard.host, range_, refused))
        log.info("replica.port", replica=replica.name, taken=shard.port, port=new.port)
        shards = tuple(new if one.rank == shard.rank else one for one in replica.shards)
        moved = replace(replica, shards=shards)
        if not replica.is_group:
            return moved
        # The others were told of the old one: they start anew too, and nobody has failed.
        held = replace(moved, generation=replica.generation + 1, hold=True, restart_at=None)
        return observe(held, {}, now=self._clock.time())

    def _place(self, action: Place, ports: Ports, now: float) -> Replica:
        return Replica(
            placement=PlacementId(new_id("p-")),
            name=replica_name(action.model, action.index),
            model=action.model,
            index=action.index,
            profile=action.profile,
            created_at=now,
            since=now,
            shards=tuple(self._shard(shard, action, ports) for shard in action.decision.shards),
        )

    def _shard(self, placed: ShardPlacement, action: Place, ports: Ports) -> Shard:
        record = self._ledger.nodes[placed.node]
        host = record.address or "127.0.0.1"
        meets = placed.rank == 0 and action.profile.nodes > 1
        return Shard(
            rank=placed.rank,
            node=placed.node,
            host=host,
            port=ports.take(placed.node, host, record.port_range),
            group_port=ports.take(placed.node, host, record.port_range) if meets else None,
            key=new_secret(),
            gpus=placed.gpus,
            gpu_uuids=placed.gpu_uuids,
            hcas=tuple(placed.hcas),
            memory_bytes=action.profile.min_memory_bytes,
            disk_bytes=action.profile.min_disk_bytes,
        )

    def _adopt(self, action: Adopt, now: float) -> Replica:
        adopted = taken_over(action.orphan, now=now)
        # It may serve already: what was reported of it as an orphan is what is known of it.
        seen = {
            shard.rank: self._inventory.live(shard.node).shards.get((adopted.placement, shard.rank))
            for shard in adopted.shards
        }
        return observe(adopted, seen, now=now)

    def _release(self, replica: Replica, ranks: frozenset[int]) -> Change:
        left = tuple(shard for shard in replica.shards if shard.rank not in ranks)
        if left:
            return Put(record=replace(replica, shards=left))
        self._refused_ports.pop(replica.placement, None)
        return Drop(record=replica)

    def _name(self, placement: PlacementId) -> ReplicaName:
        return self._ledger.replicas[placement].name
