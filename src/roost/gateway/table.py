"""The routing table: models by name, their replicas as seen from here, and clients' keys."""

import asyncio
import hashlib
import random
from collections.abc import Callable
from typing import Final, NamedTuple

from roost.formats.routing import Route, RoutedModel, Snapshot
from roost.gateway.engine import EngineConnection
from roost.gateway.limits import Limits
from roost.gateway.refusals import Refusal, no_such_model, unavailable
from roost.reconcile.admission import Queue, Ticket
from roost.reconcile.routing import HEALTHY, Version, first_for, less_loaded_of_two

Clock = Callable[[], float]

# How soon it is worth asking again while no replica is ready.
_RETRY_READY_S: Final = 5
_RETRY_PENDING_S: Final = 30


class Endpoint:
    """One replica as seen from here: requests in flight, health, idle connections."""

    def __init__(self, route: Route, limits: Limits) -> None:
        self.route = route
        self.limits = limits
        self.health = HEALTHY
        self.in_flight = 0
        self.retired = False
        self.idle: list[EngineConnection] = []
        host = f"[{route.host}]" if ":" in route.host else route.host
        self.head_lines = (
            f"host: {host}:{route.port}\r\n"
            "accept-encoding: identity\r\n"
            f"authorization: Bearer {route.key}\r\n"
        ).encode("latin-1")

    @property
    def identity(self) -> tuple[str, str, str, int, str]:
        """Two routes with the same one are the same engine."""
        route = self.route
        return route.replica, route.placement, route.host, route.port, route.key

    @property
    def has_room(self) -> bool:
        """Whether it takes one more; a replica whose slots are not known always does."""
        return self.route.slots is None or self.in_flight < self.route.slots

    def take_idle(self) -> EngineConnection | None:
        """The connection used last, if one is open."""
        while self.idle:
            connection = self.idle.pop()
            if connection.usable:
                return connection
        return None

    def keep(self, connection: EngineConnection, now: float) -> None:
        """Keep a connection for the next request."""
        if self.retired or len(self.idle) >= self.limits.engine_idle_connections:
            connection.abort()
        elif connection.usable:
            connection.idle_since = now
            self.idle.append(connection)

    def close_idle(self, since: float) -> None:
        """Close the connections that were last used before `since`."""
        stay = [c for c in self.idle if c.idle_since >= since]
        go = [c for c in self.idle if c.idle_since < since]
        self.idle = stay
        for connection in go:
            connection.abort()

    def connection_closed(self, connection: EngineConnection) -> None:
        """A connection is gone; an idle one drops out."""
        if connection in self.idle:
            self.idle.remove(connection)

    def retire(self) -> None:
        """The route is gone; what is in flight there finishes."""
        self.retired = True
        self.close_idle(float("inf"))


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

    def update(self, routed: RoutedModel, limits: Limits) -> None:
        """Take the new routes; a replica that stays keeps what is known of it."""
        self.routed = routed
        self.queue.size = routed.queue_size
        self.queue.max_wait_s = routed.queue_max_wait_s
        known = {endpoint.identity: endpoint for endpoint in self.endpoints}
        endpoints = []
        for route in routed.routes:
            fresh = Endpoint(route, limits)
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
        endpoints = [
            e for e in self.endpoints if e.has_room and e is not but and e.health.takes(now)
        ]
        if not endpoints:
            return None
        if len(endpoints) == 1:
            endpoint = endpoints[0]
        elif session is not None:
            endpoint = endpoints[first_for(session, [e.route.replica for e in endpoints])]
        else:
            loads = [e.in_flight for e in endpoints]
            endpoint = endpoints[less_loaded_of_two(loads, self._rng)]
        endpoint.in_flight += 1
        endpoint.health = endpoint.health.sent()
        return endpoint

    def give_back(self, endpoint: Endpoint) -> None:
        """A request is off its replica."""
        endpoint.in_flight -= 1
        if self.waiting:
            self.pump()

    def pump(self) -> None:
        """Let in who has waited longest, as far as there is room; turn all away if it is no use."""
        if not self.waiting:
            return
        reason = self.reason_not_ready()
        if reason is not None:
            for waiting in list(self.waiting):
                turned_away = self._out(waiting)
                if not turned_away.done():
                    turned_away.set_result(reason)
            return
        while (ticket := self.queue.first()) is not None:
            endpoint = self.take(session=self.waiting[ticket].session)
            if endpoint is None:
                return
            future = self._out(ticket)
            if future.done():
                endpoint.in_flight -= 1
                endpoint.health = endpoint.health.let_go()
            else:
                future.set_result(endpoint)

    def join(
        self, loop: asyncio.AbstractEventLoop, session: bytes | None = None
    ) -> tuple[Ticket, "asyncio.Future[Endpoint | Refusal]"] | None:
        """A place in the queue and what comes of it; `None`: the queue is full."""
        ticket = self.queue.join(self._clock())
        if ticket is None:
            return None
        future: asyncio.Future[Endpoint | Refusal] = loop.create_future()
        self.waiting[ticket] = Waiting(future, session)
        return ticket, future

    def leave(self, ticket: Ticket) -> None:
        """Out of the queue, whatever the reason."""
        self.queue.leave(ticket)
        self.waiting.pop(ticket, None)

    def _out(self, ticket: Ticket) -> "asyncio.Future[Endpoint | Refusal]":
        self.queue.leave(ticket)
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


class RoutingTable:
    """What the last snapshot says, with what this gateway knows beside it."""

    def __init__(self, limits: Limits, clock: Clock, rng: random.Random) -> None:
        self._limits = limits
        self._clock = clock
        self._rng = rng
        self.version: Version | None = None
        self.models: dict[str, Model] = {}
        self._by_name: dict[str, Model] = {}
        self._keys: dict[str, str] = {}
        self.confirmed = asyncio.Event()
        """Set once a server has said what is true now, as against what a file says."""

    def adopt(self, snapshot: Snapshot) -> None:
        """Route by `snapshot` from now on."""
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
            models[routed.name].update(routed, self._limits)
        for model in removed:
            model.remove()

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


_LATE: Final = Refusal(
    status=429,
    code="queue_timeout",
    type="rate_limit_error",
    message="no replica had room in time; the request waited its longest",
    retry_after=2,
)
