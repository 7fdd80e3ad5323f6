"""What agents ask: join, report, fetch what should run, fetch orders, send logs."""

from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from roost.api.problems import HANDLERS, bearer, body_of, from_error, unknown_credential
from roost.domain.node import NodeName
from roost.errors import RoostError, Unusable
from roost.formats import agent_wire as wire
from roost.services.server import Server

JOIN = "/agent/v1/join"
_JOIN_BYTES = 16_384
_JSON = "application/json"


class AgentDoor:
    """Lets in who joins, and nodes by their own credential; no path is open by accident."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._app: ASGIApp = _routes(server)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if not (scope["path"] == JOIN and scope["method"] == "POST"):
            credential = bearer(scope)
            try:
                if credential is None:
                    raise unknown_credential()
                scope.setdefault("state", {})["node"] = self._server.joining.node(credential)
            except RoostError as error:
                await from_error(error)(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _routes(server: Server) -> Starlette:
    async def join(request: Request) -> Response:
        body = await body_of(request, _JOIN_BYTES)
        joined = await server.joining.join(_decoded(wire.decode_join, body))
        return Response(wire.encode(joined), media_type=_JSON)

    async def report(request: Request) -> Response:
        body = await body_of(request, wire.MAX_REPORT_BYTES)
        peer = request.client.host if request.client else None
        said = _decoded(wire.decode_report, body)
        interval = server.reports.take(_node(request), said, peer=peer)
        server.reports.note_unknown_keys(_node(request), said, body)
        answer = wire.Reported(report_interval_s=interval)
        return Response(wire.encode(answer), media_type=_JSON)

    async def desired(request: Request) -> Response:
        server.reports.refuse_copy(_node(request), request.query_params.get("boot"))
        found = await server.desired.fetch(
            _node(request),
            revision=whole(request, "revision"),
            incarnation=whole(request, "incarnation"),
            epoch=whole(request, "epoch"),
            wait_s=seconds(request, "wait"),
        )
        if found is None:
            return Response(status_code=204)
        return Response(wire.encode(found), media_type=_JSON)

    async def orders(request: Request) -> Response:
        server.reports.refuse_copy(_node(request), request.query_params.get("boot"))
        found = await server.logs.orders(_node(request), wait_s=seconds(request, "wait"))
        return Response(wire.encode(found), media_type=_JSON)

    async def logs(request: Request) -> Response:
        try:
            await server.logs.feed(_node(request), request.path_params["id"], request.stream())
        except ClientDisconnect:
            return Response(status_code=400)
        # The reader may have left before the log's end: what comes after is not wanted.
        return Response(status_code=200, headers={"connection": "close"})

    return Starlette(
        routes=[
            Route(JOIN, join, methods=["POST"]),
            Route("/agent/v1/report", report, methods=["POST"]),
            Route("/agent/v1/desired", desired, methods=["GET"]),
            Route("/agent/v1/orders", orders, methods=["GET"]),
            Route("/agent/v1/logs/{id}", logs, methods=["POST"]),
        ],
        exception_handlers=HANDLERS,
    )


def _node(request: Request) -> NodeName:
    return NodeName(request.scope["state"]["node"])


def _decoded(decode: Any, body: bytes) -> Any:
    try:
        return decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Unusable(f"the body cannot be read: {str(error).lower()}") from None


def whole(request: Request, name: str) -> int:
    """A whole number from the query, 0 if it isn't there."""
    text = request.query_params.get(name, "0")
    try:
        return int(text)
    except ValueError:
        raise Unusable(f"{name} is not a whole number: {text[:40]!r}") from None


def seconds(request: Request, name: str) -> float:
    """Seconds from the query, 0 if they aren't there."""
    text = request.query_params.get(name, "0")
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not 0 <= value < 86_400:
        raise Unusable(f"{name} is not a number of seconds: {text[:40]!r}")
    return value
