"""One replica as a gateway sees it: requests in flight there, its health, idle connections."""

from roost.formats.routing import Route
from roost.gateway.engine import EngineConnection
from roost.gateway.limits import Limits
from roost.gateway.shared_loads import Share
from roost.reconcile.routing import HEALTHY


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
    def load(self) -> int:
        """Requests in flight on the replica, as far as is known."""
        return self.in_flight

    def claim(self) -> bool:
        """One more in flight; whether there was room."""
        self.in_flight += 1
        return True

    def free(self) -> None:
        """One less in flight."""
        self.in_flight -= 1

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


class SharedEndpoint(Endpoint):
    """One replica as several workers see it: its load is what all of them have there."""

    def __init__(self, route: Route, limits: Limits, share: Share, column: int) -> None:
        super().__init__(route, limits)
        self._share = share
        self._column = column

    @property
    def load(self) -> int:
        """Requests in flight on the replica, of all workers."""
        return self._share.load(self._column)

    def claim(self) -> bool:
        """One more in flight; whether there was room."""
        if not self._share.claim(self._column, self.route.slots):
            return False
        self.in_flight += 1
        return True

    def free(self) -> None:
        """One less in flight."""
        self.in_flight -= 1
        self._share.free(self._column)
