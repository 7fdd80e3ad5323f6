"""The loop that makes what runs agree with what is wanted: look, decide, commit, when nudged."""

import asyncio
import contextlib
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Final

import structlog

from roost.domain.allocation import replica_name
from roost.domain.model import Catalog, ModelName
from roost.domain.replica import PlacementId
from roost.errors import RoostError, Unavailable
from roost.garbage import uncollected
from roost.reconcile.actions import Place
from roost.reconcile.board import Decided, Plan
from roost.reconcile.groups import restart_due
from roost.reconcile.replicas import Replica, Wish
from roost.reconcile.schedule import decided, step
from roost.reconcile.world import World
from roost.services.clock import Clock
from roost.services.inventory import Inventory
from roost.services.ledger import Ledger
from roost.services.performing import Performer
from roost.services.ports import Ports
from roost.store.records import Change, Event, Put

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
        luck: Callable[[], float] = random.random,
    ) -> None:
        self._ledger = ledger
        self._inventory = inventory
        self._clock = clock
        self._plan = plan
        self._luck = luck
        self._performer = Performer(ledger, inventory, clock)
        self._nudged = asyncio.Event()
        self.waiting: Mapping[tuple[ModelName, int], str] = {}
        """Why each replica that has no place has none: (model, index) to a sentence."""
        self.pending_since: dict[tuple[ModelName, int], float] = {}
        self.last_error: str | None = None
        self.own_port: int | None = None
        """Where the server itself listens."""

    def nudge(self) -> None:
        """Something changed that could change the answer."""
        self._nudged.set()

    async def run(self) -> None:
        """Step whenever nudged, until cancelled; what can't be stored is tried again."""
        while True:
            await self._nudged_or_due()
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

    async def _nudged_or_due(self) -> None:
        """Until something changed, or the pause of a group that failed is over."""
        now = self._clock.time()
        pauses = (restart_due(replica, now=now) for replica in self._ledger.replicas.values())
        pause = min((pause for pause in pauses if pause is not None), default=None)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._nudged.wait(), pause)

    async def step(self) -> bool:
        """One step; whether it did anything."""
        async with self._ledger.turn():
            world = self.world()
            # A plan over a large fleet takes a while; reports are answered meanwhile.
            with uncollected():
                done = await asyncio.to_thread(step, world, self._plan)
            changes: list[Change] = []
            events: list[Event] = []
            ports = Ports(self._ledger.replicas.values(), self._inventory, self.own_port)
            unplaced: dict[tuple[ModelName, int], str] = {}
            for action in done.actions:
                try:
                    changes.append(self._performer.perform(action, ports))
                except Unavailable as error:
                    if isinstance(action, Place):
                        unplaced[action.model, action.index] = error.message
                    continue
                events.append(self._performer.event(action))
            busy = {_placement(change) for change in changes}
            changes += [Put(record=replica) for replica in self._performer.moved(ports, busy)]
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
            now=self._clock.time(),
            luck=self._luck(),
        )

    async def decide(self, catalog: Catalog | None = None) -> tuple[Decided, ...]:
        """What placement says now, of this catalog or the applied one; nothing is changed."""
        world = self.world()
        if catalog is not None:
            world = replace(world, catalog=catalog)
        with uncollected():
            return await asyncio.to_thread(decided, world, self._plan)


def _placement(change: Change) -> PlacementId | None:
    return change.record.placement if isinstance(change.record, Replica) else None
