"""The one port's three doors, each with a credential of its own; no path is open by accident."""

import ipaddress
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from roost.api.agent import AgentDoor
from roost.api.gateway import GatewayDoor
from roost.api.management import management
from roost.api.problems import bearer, unauthorized
from roost.services.server import Server

OPEN: Final = frozenset({"/healthz", "/readyz"})
"""All that is answered to anybody without a credential, but `POST /agent/v1/join`."""

LOCAL: Final = frozenset({"/metrics"})
"""Answered without a credential to who asks at a loopback address, which only this machine can."""


class App:
    """Which door a request goes through is decided by its exact path, before any routing."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._agent: ASGIApp = AgentDoor(server)
        self._gateway: ASGIApp = GatewayDoor(server)
        self._management: ASGIApp = management(server)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
            return
        path: str = scope["path"]
        if path.startswith("/agent/"):
            await self._agent(scope, receive, send)
        elif path.startswith("/gateway/"):
            await self._gateway(scope, receive, send)
        elif path in OPEN or (path in LOCAL and _asked_locally(scope)) or self._is_admin(scope):
            await self._management(scope, receive, send)
        else:
            await unauthorized()(scope, receive, send)

    def _is_admin(self, scope: Scope) -> bool:
        credential = bearer(scope)
        return credential is not None and self._server.is_admin(credential)


def _asked_locally(scope: Scope) -> bool:
    """By the address the connection came in at, not by any header."""
    at = scope.get("server")
    try:
        return at is not None and ipaddress.ip_address(at[0]).is_loopback
    except ValueError:
        return False
