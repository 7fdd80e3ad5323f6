"""What gateways need to route: the models, their ready replicas, the keys; by revision."""

from typing import Final

from roost.domain.model import Model, ModelName
from roost.domain.replica import ReplicaState
from roost.formats.routing import GatewayKey, Route, RoutedModel, Snapshot
from roost.reconcile.nodes import NodeStatus
from roost.reconcile.replicas import Replica, Wish
from roost.services.clock import Clock
from roost.services.desired import LONGEST_WAIT_S
from roost.services.inventory import Inventory
from roost.services.ledger import Ledger
from roost.services.scheduler import Scheduler
from roost.services.watch import Watch

_TOPIC: Final = "routing"
_LOAD_AGE_S: Final = 30.0
"""An older measurement is none."""


class Routing:
    """The snapshot, made anew when something changed; a new revision only when it then differs."""

    def __init__(
        self,
        ledger: Ledger,
        inventory: Inventory,
        scheduler: Scheduler,
        watch: Watch,
        clock: Clock,
    ) -> None:
        self._ledger = ledger
        self._inventory = inventory
        self._scheduler = scheduler
        self._watch = watch
        self._clock = clock
        self._models: tuple[RoutedModel, ...] | None = None
        self._keys: tuple[GatewayKey, ...] = ()
        self._adopting = True

    def refresh(self) -> None:
        """Something may have changed: if it did, gateways are told."""
        models = tuple(self._routed(model) for model in self._ledger.catalog.models)
        keys = tuple(
            GatewayKey(name=key.name, sha256=key.sha256)
            for _, key in sorted(self._ledger.stored.keys.items())
        )
        now = (models, keys, self._ledger.fleet.adopting)
        if now != (self._models, self._keys, self._adopting):
            self._models, self._keys, self._adopting = now
            self._watch.bump([_TOPIC])

    async def fetch(
        self, *, revision: int, incarnation: int, epoch: int, wait_s: float
    ) -> Snapshot | None:
        """The snapshot once it differs from what the gateway has; `None`: it doesn't yet."""
        if (incarnation, epoch) == (self._ledger.fleet.incarnation, self._ledger.epoch):
            wait = min(max(wait_s, 0.0), LONGEST_WAIT_S)
            if not await self._watch.change(_TOPIC, revision, timeout_s=wait):
                return None
        return self.snapshot()

    def snapshot(self) -> Snapshot:
        """All that a gateway needs, now."""
        if self._models is None:
            self.refresh()
        fleet = self._ledger.fleet
        return Snapshot(
            fleet=fleet.fleet,
            incarnation=fleet.incarnation,
            epoch=self._ledger.epoch,
            revision=self._watch.revision(_TOPIC),
            adopting=self._adopting,
            models=self._models or (),
            keys=self._keys,
        )

    def _routed(self, model: Model) -> RoutedModel:
        mine = sorted(
            (r for r in self._ledger.replicas.values() if r.model == model.name),
            key=lambda r: (r.index, r.created_at, r.placement),
        )
        routes = tuple(self._route(replica, model) for replica in mine if self._is_routed(replica))
        return RoutedModel(
            name=model.name,
            aliases=model.aliases,
            replicas=model.replicas,
            queue_size=model.queue.size,
            queue_max_wait_s=model.queue.max_wait_s,
            routes=routes,
            state=None if routes else self._why_not(model.name, model.replicas, mine),
        )

    def _is_routed(self, replica: Replica) -> bool:
        # A node that is late is not left out: a slow server or agent is no dead engine.
        return replica.is_ready and all(
            self._inventory.status(node) is not NodeStatus.LOST for node in replica.nodes
        )

    def _route(self, replica: Replica, model: Model) -> Route:
        first = replica.shards[0]
        observed = self._inventory.observed(replica)
        load = self._inventory.load(replica)
        if load is not None and load.age_s > _LOAD_AGE_S:
            load = None
        wanted = next((p for p in model.profiles if p.name == replica.profile.name), None)
        configured = (wanted or replica.profile).slots
        learnt = None if observed is None else observed.slots
        return Route(
            replica=replica.name,
            placement=replica.placement,
            host=first.host,
            port=first.port,
            key=first.key,
            slots=learnt if configured is None else configured,
            running=None if load is None else load.running,
            waiting=None if load is None else load.waiting,
            kv_usage=None if load is None else load.kv_usage,
        )

    def _why_not(self, model: ModelName, wanted: int, replicas: list[Replica]) -> str:
        if wanted == 0:
            return "its model wants no replicas"
        running = [replica for replica in replicas if replica.wish is Wish.RUN]
        for state in (ReplicaState.LOADING, ReplicaState.STARTING, ReplicaState.PLACED):
            if any(replica.state is state for replica in running):
                return state.value
        for replica in running:
            if replica.state is ReplicaState.FAILED:
                return f"failed: {replica.cause}" if replica.cause else "failed"
        why = next((w for (name, _), w in self._scheduler.waiting.items() if name == model), None)
        return f"pending: {why}" if why else "pending"
