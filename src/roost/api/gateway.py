"""What gateways ask: the routing snapshot, when it has changed."""

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from roost.api.agent import seconds, whole
from roost.api.problems import HANDLERS, bearer, unauthorized
from roost.formats import routing as wire
from roost.services.server import Server


class GatewayDoor:
    """Lets in gateways by their credential."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._app: ASGIApp = _routes(server)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        credential = bearer(scope)
        if credential is None or not self._server.is_gateway(credential):
            await unauthorized()(scope, receive, send)
            return
        await self._app(scope, receive, send)


def _routes(server: Server) -> Starlette:
    async def snapshot(request: Request) -> Response:
        found = await server.routing.fetch(
            revision=whole(request, "revision"),
            incarnation=whole(request, "incarnation"),
            epoch=whole(request, "epoch"),
            wait_s=seconds(request, "wait"),
        )
        if found is None:
            return Response(status_code=204)
        return Response(wire.encode(found), media_type="application/json")

    return Starlette(
        routes=[Route("/gateway/v1/snapshot", snapshot, methods=["GET"])],
        exception_handlers=HANDLERS,
    )
