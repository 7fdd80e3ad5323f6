"""The routing table: models by name, their replicas as seen from here, and clients' keys."""

import asyncio
import functools
import hashlib
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from roost.formats.routing import RoutedModel, Snapshot
from roost.gateway.endpoints import Endpoint, SharedEndpoint
from roost.gateway.limits import Limits
from roost.gateway.line import Line
from roost.gateway.refusals import Refusal, no_such_model, unavailable
from roost.gateway.shared_loads import Share
from roost.reconcile.admission import Queue, Ticket
from roost.reconcile.routing import Version, first_for, less_loaded_of_two

Clock = Callable[[], float]

# How soon it is worth asking again while no replica is ready.
_RETRY_READY_S: Final = 5
_RETRY_PENDING_S: Final = 30


class Waiting(NamedTuple):
    """Who waits for room on a model's replicas."""

    turn: "asyncio.Future[Endpoint | Refusal]"
    session: bytes | None


class Model:
    """One model with its replicas and those who wait for room on them."""

    def __init__(self, routed: RoutedModel, clock: Clock, rng: random.Random) -> None:
        self.routed = routed
        self.name = routed.name
        self.endpoints: list[Endpoint] = []
        self.gone = False
        self.queue = Queue(size=routed.queue_size, max_wait_s=routed.queue_max_wait_s)
        self.waiting: dict[Ticket, Waiting] = {}
        self._clock = clock
        self._rng = rng
        self.line: Line | None = None
        """`None`: this worker is the only one."""

    def update(self, routed: RoutedModel, endpoints_of: "EndpointsOf") -> None:
        """Take the new routes; a replica that stays keeps what is known of it."""
        self.routed = routed
        self.queue.size = routed.queue_size
        self.queue.max_wait_s = routed.queue_max_wait_s
        known = {endpoint.identity: endpoint for endpoint in self.endpoints}
        endpoints = []
        for fresh in endpoints_of(routed):
            route = fresh.route
            endpoint = known.pop(fresh.identity, fresh)
            endpoint.route = route
            endpoints.append(endpoint)
        for endpoint in known.values():
            endpoint.retire()
        self.endpoints = endpoints
        self.pump()

    def remove(self) -> None:
        """The model is no longer in the catalog."""
        self.gone = True
        for endpoint in self.endpoints:
            endpoint.retire()
        self.endpoints = []
        self.pump()

    def take(self, *, but: Endpoint | None = None, session: bytes | None = None) -> Endpoint | None:
        """A replica with room, one more request in flight on it; `None`: there is none now.

        A session goes to the same replica as long as that has room: its cache holds what was said.
        """
        now = self._clock()
        endpoints, loads = [], []
        for endpoint in self.endpoints:
            if endpoint is not but and endpoint.health.takes(now):
                load, slots = endpoint.load, endpoint.route.slots
                if slots is None or load < slots:
                    endpoints.append(endpoint)
                    loads.append(load)
        while endpoints:
            if len(endpoints) == 1:
                chosen = 0
            elif session is not None:
                chosen = first_for(session, [e.route.replica for e in endpoints])
            else:
                chosen = less_loaded_of_two(loads, self._rng)
            endpoint = endpoints[chosen]
            if endpoint.claim():
                endpoint.health = endpoint.health.sent()
                return endpoint
            # Another worker was quicker.
            del endpoints[chosen], loads[chosen]
        return None

    def give_back(self, endpoint: Endpoint) -> None:
        """A request is off its replica."""
        endpoint.free()
        if self.waiting:
            self.pump()
        elif self.line is not None:
            self.line.wake_first()

    @property
    def has_queue(self) -> bool:
        """Whether somebody waits already, here or in another worker: who comes now is behind."""
        return bool(self.waiting) or (self.line is not None and self.line.others_wait())

    def pump(self) -> None:
        """Let in who has waited longest, as far as there is room; turn all away if it is no use."""
        line = self.line
        if not self.waiting:
            if line is not None:
                line.wake_first()
            return
        reason = self.reason_not_ready()
        if reason is not None:
            self._turn_all_away(reason)
            return
        while (ticket := self.queue.first()) is not None:
            if line is not None and line.wake_first(ticket.since):
                return
            endpoint = self.take(session=self.waiting[ticket].session)
            if endpoint is None:
                return
            future = self._out(ticket)
            if future.done():
                endpoint.free()
                endpoint.health = endpoint.health.let_go()
            else:
                future.set_result(endpoint)
        if line is not None:
            line.wake_first()

    def _turn_all_away(self, reason: Refusal) -> None:
        for waiting in list(self.waiting):
            turned_away = self._out(waiting)
            if not turned_away.done():
                turned_away.set_result(reason)

    def join(
        self, loop: asyncio.AbstractEventLoop, session: bytes | None = None
    ) -> tuple[Ticket, "asyncio.Future[Endpoint | Refusal]"] | None:
        """A place in the queue and what comes of it; `None`: the queue is full."""
        now, line = self._clock(), self.line
        if line is not None and not line.may_wait(self.queue.size, now):
            return None
        ticket = self.queue.join(now)
        if ticket is None:
            if line is not None:
                line.publish(self.queue)
            return None
        future: asyncio.Future[Endpoint | Refusal] = loop.create_future()
        self.waiting[ticket] = Waiting(future, session)
        if line is not None:
            # Room that was made before the others could know of this one is its own.
            self.pump()
        return ticket, future

    def leave(self, ticket: Ticket) -> None:
        """Out of the queue, whatever the reason."""
        self.queue.leave(ticket)
        self.waiting.pop(ticket, None)
        if self.line is not None:
            self.line.publish(self.queue)

    def _out(self, ticket: Ticket) -> "asyncio.Future[Endpoint | Refusal]":
        self.queue.leave(ticket)
        if self.line is not None:
            self.line.publish(self.queue)
        return self.waiting.pop(ticket).turn

    def expire(self, refusal: Refusal) -> None:
        """Turn away those who have waited too long."""
        for late in self.queue.overdue(self._clock()):
            future = self._out(late)
            if not future.done():
                future.set_result(refusal)

    def reason_not_ready(self) -> Refusal | None:
        """Why no replica takes requests at all; `None`: one does, or will when it has room."""
        if self.gone:
            return no_such_model(self.name)
        if not self.endpoints:
            routed = self.routed
            if routed.replicas == 0:
                reason, code = "it is scaled to 0 replicas", "model_scaled_to_zero"
            else:
                reason, code = routed.state or "no replica is ready", "model_not_ready"
            pending = routed.replicas == 0 or (routed.state or "").startswith(("pending", "failed"))
            return unavailable(
                f"the model `{self.name}` has no ready replica: {reason}",
                code=code,
                retry_after=_RETRY_PENDING_S if pending else _RETRY_READY_S,
            )
        now = self._clock()
        if any(endpoint.health.takes(now) for endpoint in self.endpoints):
            return None
        waits = [e.health.until - now for e in self.endpoints if e.health.until is not None]
        return unavailable(
            f"no replica of the model `{self.name}` answers; one is tried again soon",
            code="model_not_answering",
            retry_after=max(0.0, min(waits)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """The columns of the shared memory, by the models' names."""

    models: Mapping[str, int | None]
    """`None`: it has none, so each worker has a queue of its own for it."""
    replicas: Mapping[str, Sequence[int | None]]
    """In the order of the model's routes; `None`: each worker knows of its own load alone."""


EndpointsOf = Callable[[RoutedModel], list[Endpoint]]


class RoutingTable:
    """What the last snapshot says, with what this gateway knows beside it."""

    def __init__(
        self, limits: Limits, clock: Clock, rng: random.Random, share: Share | None = None
    ) -> None:
        """`share`: what other workers have in flight; `None`: there are none."""
        self._limits = limits
        self._clock = clock
        self._rng = rng
        self._share = share
        self.version: Version | None = None
        self.models: dict[str, Model] = {}
        self._by_name: dict[str, Model] = {}
        self._keys: dict[str, str] = {}
        self.confirmed = asyncio.Event()
        """Set once a server has said what is true now, as against what a file says."""

    def adopt(self, snapshot: Snapshot, places: Places | None = None) -> None:
        """Route by `snapshot` from now on; `places`: where its replicas' loads are shared."""
        self.version = Version(
            fleet=snapshot.fleet,
            incarnation=snapshot.incarnation,
            epoch=snapshot.epoch,
            revision=snapshot.revision,
        )
        models: dict[str, Model] = {}
        by_name: dict[str, Model] = {}
        for routed in snapshot.models:
            model = self.models.pop(routed.name, None) or Model(routed, self._clock, self._rng)
            models[routed.name] = model
            for name in (routed.name, *routed.aliases):
                by_name.setdefault(name, model)
        removed = list(self.models.values())
        self.models = models
        self._by_name = by_name
        self._keys = {key.sha256: key.name for key in snapshot.keys}
        for routed in snapshot.models:
            model = models[routed.name]
            if self._share is not None and places is not None:
                column = places.models[routed.name]
                model.line = None if column is None else Line(self._share, column)
            model.update(routed, functools.partial(self._endpoints, places))
        for model in removed:
            model.remove()

    def _endpoints(self, places: Places | None, routed: RoutedModel) -> list[Endpoint]:
        share, limits = self._share, self._limits
        if share is None or places is None:
            return [Endpoint(route, limits) for route in routed.routes]
        columns = places.replicas[routed.name]
        return [
            Endpoint(route, limits)
            if column is None
            else SharedEndpoint(route, limits, share, column)
            for route, column in zip(routed.routes, columns, strict=True)
        ]

    def model(self, name: str) -> Model | None:
        """The model that clients call so."""
        return self._by_name.get(name)

    @property
    def names(self) -> list[str]:
        """All that clients may ask for, aliases too."""
        return list(self._by_name)

    def key_name(self, key: bytes) -> str | None:
        """Whose key it is; keys are stored hashed."""
        return self._keys.get(hashlib.sha256(key).hexdigest())

    def sweep(self) -> None:
        """Close connections that were idle for too long; turn away who waited too long."""
        since = self._clock() - self._limits.engine_idle_s
        for model in self.models.values():
            for endpoint in model.endpoints:
                if endpoint.idle:
                    endpoint.close_idle(since)
            if model.waiting:
                model.expire(_LATE)
                model.pump()

    def look_at_queues(self) -> None:
        """Another worker has made room, or is gone."""
        for model in self.models.values():
            if model.waiting:
                model.pump()


_LATE: Final = Refusal(
    status=429,
    code="queue_timeout",
    type="rate_limit_error",
    message="no replica had room in time; the request waited its longest",
    retry_after=2,
)
