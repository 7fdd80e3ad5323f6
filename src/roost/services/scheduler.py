"""The loop that makes what runs agree with what is wanted: look, decide, commit, when nudged."""

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final, assert_never

import structlog

from roost.domain.allocation import ReplicaName, replica_name
from roost.domain.model import Catalog, ModelName
from roost.domain.node import NodeName
from roost.domain.replica import PlacementId, ReplicaState
from roost.errors import RoostError, Unavailable
from roost.garbage import uncollected
from roost.placement.decision import ShardPlacement
from roost.reconcile.actions import Action, Adopt, Drain, Lose, Place, Release, Return
from roost.reconcile.replicas import Replica, Shard, Wish, observe
from roost.reconcile.schedule import Decided, Plan, decided, step
from roost.reconcile.world import World
from roost.services.clock import Clock
from roost.services.inventory import Inventory
from roost.services.ledger import Ledger
from roost.services.secrets import new_id, new_secret
from roost.services.taking_over import taken_over
from roost.store.records import Change, Drop, Event, Put

DEFAULT_PORTS: Final = (20_000, 21_999)
"""Of a node whose agent reports no range."""
_RETRY_S: Final = 3.0

log = structlog.get_logger("roost.scheduler")


class Scheduler:
    """One step at a time, each in one transaction."""

    def __init__(
        self,
        ledger: Ledger,
        inventory: Inventory,
        clock: Clock,
        *,
        plan: Plan,
        own_port: int | None = None,
    ) -> None:
        self._ledger = ledger
        self._inventory = inventory
        self._clock = clock
        self._plan = plan
        self._own_port = own_port
        self._nudged = asyncio.Event()
        self._refused_ports: dict[PlacementId, set[int]] = {}
        self.waiting: Mapping[tuple[ModelName, int], str] = {}
        """Why each replica that has no place has none: (model, index) to a sentence."""
        self.pending_since: dict[tuple[ModelName, int], float] = {}
        self.last_error: str | None = None

    def nudge(self) -> None:
        """Something changed that could change the answer."""
        self._nudged.set()

    async def run(self) -> None:
        """Step whenever nudged, until cancelled; what can't be stored is tried again."""
        while True:
            await self._nudged.wait()
            # Many things change together: one step sees them all.
            await asyncio.sleep(0.02)
            self._nudged.clear()
            try:
                acted = await self.step()
                self.last_error = None
            except RoostError as error:
                if error.message != self.last_error:
                    log.warning("scheduler.blocked", error=error.message, hint=error.hint)
                self.last_error = error.message
                await asyncio.sleep(_RETRY_S)
                self.nudge()
            except Exception:  # the loop outlives a fault in one step
                log.exception("scheduler.step")
                self.last_error = "internal error in a step"
                await asyncio.sleep(_RETRY_S)
            else:
                if acted:
                    self.nudge()

    async def step(self) -> bool:
        """One step; whether it did anything."""
        async with self._ledger.lock:
            world = self.world()
            # A plan over a large fleet takes a while; reports are answered meanwhile.
            with uncollected():
                done = await asyncio.to_thread(step, world, self._plan)
            changes: list[Change] = []
            events: list[Event] = []
            ports = _Ports(self._ledger.replicas.values(), self._inventory, self._own_port)
            unplaced: dict[tuple[ModelName, int], str] = {}
            for action in done.actions:
                try:
                    changes += self._perform(action, ports)
                except Unavailable as error:
                    if isinstance(action, Place):
                        unplaced[action.model, action.index] = error.message
                    continue
                events.append(self._event(action))
            moved = tuple(self._move_ports(ports, {_placement(change) for change in changes}))
            changes += [Put(record=replica) for replica in moved]
            await self._ledger.commit(changes, events=events)
            for event in events:
                log.info(event.what, object=event.object, why=event.why)
            waiting = {(w.decision.model, w.index): w.decision.why for w in done.waiting}
            self._await(waiting | unplaced)
            return bool(changes)

    def _await(self, waiting: dict[tuple[ModelName, int], str]) -> None:
        now = self._clock.time()
        self.pending_since = {
            wanted: self.pending_since.get(wanted, now) for wanted in self._wanted_and_missing()
        }
        for wanted, why in waiting.items():
            if self.waiting.get(wanted) != why:
                log.info("replica.unplaceable", replica=replica_name(*wanted), why=why)
        self.waiting = waiting

    def _wanted_and_missing(self) -> Iterator[tuple[ModelName, int]]:
        running: dict[ModelName, set[int]] = {}
        for replica in self._ledger.replicas.values():
            if replica.wish is Wish.RUN:
                running.setdefault(replica.model, set()).add(replica.index)
        for model in self._ledger.catalog.models:
            used = running.get(model.name, set())
            free = (index for index in range(model.replicas + len(used)) if index not in used)
            for _ in range(model.replicas - len(used)):
                yield model.name, next(free)

    def world(self) -> World:
        """Everything the decision is made from, at this moment."""
        return World(
            catalog=self._ledger.catalog,
            nodes=self._inventory.nodes(),
            replicas=tuple(self._ledger.replicas.values()),
            orphans=self._inventory.orphans(),
            lost=self._inventory.lost(),
            back=self._inventory.back(),
            gone=self._inventory.gone(),
            settled=self._inventory.settled,
        )

    async def decide(self, catalog: Catalog | None = None) -> tuple[Decided, ...]:
        """What placement says now, of this catalog or the applied one; nothing is changed."""
        world = self.world()
        if catalog is not None:
            world = replace(world, catalog=catalog)
        with uncollected():
            return await asyncio.to_thread(decided, world, self._plan)

    # What each action does to the store.

    def _perform(self, action: Action, ports: "_Ports") -> list[Change]:
        replicas = self._ledger.replicas
        now = self._clock.time()
        match action:
            case Place():
                return [Put(record=self._place(action, ports, now))]
            case Adopt():
                return [Put(record=self._adopt(action, now))]
            case Drain(placement=placement):
                draining = replace(
                    replicas[placement],
                    wish=Wish.STOP,
                    because=action.because,
                    state=ReplicaState.DRAINING,
                    since=now,
                )
                return [Put(record=draining)]
            case Lose(placement=placement):
                lost = replace(replicas[placement], wish=Wish.LOST, because=action.because)
                return [Put(record=lost)]
            case Return(placement=placement):
                back = replace(replicas[placement], wish=Wish.RUN, because=None)
                return [Put(record=back)]
            case Release(placement=placement):
                self._refused_ports.pop(placement, None)
                return [Drop(record=replicas[placement])]
            case _:
                assert_never(action)

    def _place(self, action: Place, ports: "_Ports", now: float) -> Replica:
        shards = action.decision.shards
        return Replica(
            placement=PlacementId(new_id("p-")),
            name=replica_name(action.model, action.index),
            model=action.model,
            index=action.index,
            profile=action.profile,
            created_at=now,
            since=now,
            shards=tuple(self._shard(shard, action, ports) for shard in shards),
        )

    def _shard(self, placed: ShardPlacement, action: Place, ports: "_Ports") -> Shard:
        record = self._ledger.nodes[placed.node]
        host = record.address or "127.0.0.1"
        return Shard(
            rank=placed.rank,
            node=placed.node,
            host=host,
            port=ports.take(placed.node, host, record.port_range or DEFAULT_PORTS),
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

    def _move_ports(self, ports: "_Ports", busy: set[PlacementId | None]) -> Iterator[Replica]:
        """Another port for each engine whose port somebody else has: no crash, a new address."""
        for placement, rank, port in self._inventory.taken_ports():
            replica = self._ledger.replicas.get(placement)
            if replica is None or replica.wish is Wish.STOP or placement in busy:
                continue
            shards = list(replica.shards)
            for at, shard in enumerate(shards):
                if (shard.rank, shard.port) != (rank, port):
                    continue  # it has been given another one already
                refused = self._refused_ports.setdefault(placement, set())
                refused.add(port)
                record = self._ledger.nodes[shard.node]
                new = ports.take(
                    shard.node, shard.host, record.port_range or DEFAULT_PORTS, refused
                )
                shards[at] = replace(shard, port=new)
                log.info("replica.port", replica=replica.name, taken=port, port=new)
                yield replace(replica, shards=tuple(shards))

    def _event(self, action: Action) -> Event:
        match action:
            case Place() | Adopt():
                what = "replica.placed" if isinstance(action, Place) else "replica.adopted"
                name = replica_name(action.model, action.index)
            case Drain() | Lose() | Return() | Release():
                what = {
                    Drain: "replica.draining",
                    Lose: "replica.lost",
                    Return: "replica.returned",
                    Release: "replica.released",
                }[type(action)]
                name = self._name(action.placement)
            case _:
                assert_never(action)
        return Event(
            at=self._clock.time(), who="scheduler", what=what, object=name, why=action.because
        )

    def _name(self, placement: PlacementId) -> ReplicaName:
        return self._ledger.replicas[placement].name


def _placement(change: Change) -> PlacementId | None:
    return change.record.placement if isinstance(change.record, Replica) else None


class _Ports:
    """The ports that are given out at each address, while a step gives out more."""

    def __init__(self, replicas: Iterable[Replica], inventory: Inventory, own: int | None) -> None:
        self._inventory = inventory
        self._used: dict[str, set[int]] = {}
        self._own = own
        for replica in replicas:
            for shard in replica.shards:
                self._used.setdefault(shard.host, set()).add(shard.port)
        for orphan in inventory.orphans():
            for _, spec in orphan.shards.values():
                self._used.setdefault(spec.host, set()).add(spec.port)

    def take(
        self,
        node: NodeName,
        host: str,
        ports: tuple[int, int],
        refused: set[int] | frozenset[int] = frozenset(),
    ) -> int:
        """The lowest free port of the node's range; several nodes may share one address."""
        used = self._used.setdefault(host, set())
        taken = self._inventory.ports_taken(node)
        first, last = ports
        for port in range(first, last + 1):
            if port not in used and port not in taken and port not in refused and port != self._own:
                used.add(port)
                return port
        raise Unavailable(
            f"node {node} has no free port left from {first} to {last}",
            hint="widen the range: roost agent --port-range FIRST-LAST",
        )
