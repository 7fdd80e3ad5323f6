"""The management API: what operators and `roost ctl` see and do."""

from collections.abc import AsyncIterator
from importlib.metadata import version
from typing import Annotated, Any, Final

import msgspec
from fastapi import Body, FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from starlette.responses import Response, StreamingResponse

from roost.api.problems import HANDLERS, body_of, problem
from roost.api.schemas import (
    Applied,
    Cordoned,
    CreatedKey,
    CreatedToken,
    Decisions,
    Events,
    Explained,
    Fleet,
    Keys,
    ModelRows,
    NewKey,
    NewToken,
    NodeRow,
    Orphans,
    OrphansToReap,
    Reaped,
    ReplicaRows,
    Tokens,
)
from roost.domain.model import ModelName
from roost.domain.node import NodeName
from roost.errors import Unusable
from roost.services.metrics import CONTENT_TYPE, exposition
from roost.services.server import Server
from roost.services.views import moment

_CATALOG_BYTES: Final = 4_000_000
_WHO: Final = "admin"
_YAML: Final[dict[str, Any]] = {
    "requestBody": {
        "required": True,
        "content": {"application/yaml": {"schema": {"type": "string"}}},
    }
}


def management(server: Server) -> FastAPI:
    """The application; who may use it was decided at the door."""
    app = FastAPI(
        title="Roost",
        version=version("roost"),
        description="Serves language models from a fleet of machines.",
        openapi_url="/api/openapi.json",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        exception_handlers={**HANDLERS, RequestValidationError: _on_invalid},
    )
    _health(app, server)
    _nodes(app, server)
    _models(app, server)
    _replicas(app, server)
    _decisions(app, server)
    _keys(app, server)
    _tokens(app, server)
    _events(app, server)
    _orphans(app, server)
    return app


def _json(value: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")


async def _on_invalid(_: Request, error: Exception) -> Response:
    errors = error.errors() if isinstance(error, RequestValidationError) else []
    problems = tuple(
        f"{'.'.join(str(part) for part in one['loc'][1:]) or one['loc'][0]}: {_lower(one['msg'])}"
        for one in errors
    )
    return problem(
        422,
        problems[0] if problems else "unusable request",
        code="unusable_input",
        problems=problems,
    )


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]


def _health(app: FastAPI, server: Server) -> None:
    @app.get("/healthz", include_in_schema=False)
    async def healthz() -> Response:
        return _json({"status": "ok"})

    @app.get("/readyz", include_in_schema=False)
    async def readyz() -> Response:
        # The schema is current before anything listens, and only who leads listens.
        error = server.trouble
        return _json({"status": "ok" if error is None else error})

    @app.get("/metrics", include_in_schema=False)
    async def metrics() -> Response:
        return Response(
            exposition(server.inventory.nodes, server.views.allocations), media_type=CONTENT_TYPE
        )


def _nodes(app: FastAPI, server: Server) -> None:
    @app.get("/api/v1/nodes", response_model=Fleet)
    async def nodes() -> Response:
        """The fleet, in the format that `roost plan --fleet` reads."""
        return _json(server.views.nodes())

    @app.get("/api/v1/nodes/{name}", response_model=NodeRow)
    async def node(name: str) -> Response:
        """One node, with its cards' addresses and its adapters' ports."""
        return _json(server.views.whole_node(NodeName(name)))

    @app.post("/api/v1/nodes/{name}/cordon", response_model=NodeRow)
    async def cordon(name: str, asked: Annotated[Cordoned | None, Body()] = None) -> Response:
        """Nothing new goes there."""
        reason = asked.reason if asked else None
        await server.operations.cordon(NodeName(name), reason=reason, drain=False, who=_WHO)
        return _json(server.views.node(NodeName(name)))

    @app.post("/api/v1/nodes/{name}/drain", response_model=NodeRow)
    async def drain(name: str, asked: Annotated[Cordoned | None, Body()] = None) -> Response:
        """Nothing new goes there, and what is there moves away."""
        reason = asked.reason if asked else None
        await server.operations.cordon(NodeName(name), reason=reason, drain=True, who=_WHO)
        return _json(server.views.node(NodeName(name)))

    @app.post("/api/v1/nodes/{name}/uncordon", response_model=NodeRow)
    async def uncordon(name: str, asked: Annotated[Cordoned | None, Body()] = None) -> Response:
        """New things go there again; the reason is kept with the event."""
        reason = asked.reason if asked else None
        await server.operations.uncordon(NodeName(name), reason=reason, who=_WHO)
        return _json(server.views.node(NodeName(name)))

    @app.delete("/api/v1/nodes/{name}", status_code=204)
    async def delete(name: str) -> Response:
        """The machine is gone for good."""
        await server.operations.delete_node(NodeName(name), who=_WHO)
        return Response(status_code=204)


def _models(app: FastAPI, server: Server) -> None:
    @app.get("/api/v1/models", response_model=ModelRows)
    async def models() -> Response:
        """Every model that is wanted, and how many of its replicas are ready."""
        return _json(server.views.models())

    @app.delete("/api/v1/models/{name:path}", status_code=204)
    async def delete(name: str) -> Response:
        """It is no longer wanted: its replicas drain and stop."""
        await server.operations.delete_model(ModelName(name), who=_WHO)
        return Response(status_code=204)

    @app.post("/api/v1/catalog", response_model=Applied, openapi_extra=_YAML)
    async def apply(
        request: Request, filename: str = "catalog.yaml", dry_run: bool = False
    ) -> Response:
        """Say what is wanted: models that the text doesn't name stay as they are."""
        text = await _text(request)
        changes = await server.operations.apply(text, filename=filename, who=_WHO, dry_run=dry_run)
        return _json({"changes": changes, "applied": not dry_run})


async def _text(request: Request) -> str:
    body = await body_of(request, _CATALOG_BYTES)
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        raise Unusable(
            f"the text is not UTF-8: byte {error.start} is {body[error.start]:#04x}"
        ) from None


def _replicas(app: FastAPI, server: Server) -> None:
    @app.get("/api/v1/replicas", response_model=ReplicaRows)
    async def replicas(model: str | None = None) -> Response:
        """Every replica that holds something or waits for a place."""
        rows = server.views.replicas(None if model is None else ModelName(model))
        return _json({"replicas": rows})

    @app.get("/api/v1/replicas/{name:path}/logs", response_class=Response)
    async def logs(
        name: str,
        tail: Annotated[int, Query(ge=0, le=1_000_000)] = 200,
        follow: bool = False,
        runs_back: Annotated[int, Query(ge=0, le=100)] = 0,
        rank: Annotated[int, Query(ge=0)] = 0,
    ) -> Response:
        """What a replica's engine wrote, from the agent that has it."""
        replica = server.views.find(name)
        shard = next((one for one in replica.shards if one.rank == rank), None)
        if shard is None:
            raise Unusable(f"{replica.name} has ranks 0 to {len(replica.shards) - 1}, not {rank}")
        stream = server.logs.open(
            shard.node,
            replica.placement,
            rank=rank,
            tail_lines=tail,
            follow=follow,
            runs_back=runs_back,
        )
        try:
            first = await stream.first()
        except BaseException:
            server.logs.close(stream)
            raise

        async def chunks() -> AsyncIterator[bytes]:
            try:
                yield first
                if first or follow:
                    async for chunk in stream.rest():
                        yield chunk
            finally:
                server.logs.close(stream)

        return StreamingResponse(chunks(), media_type="text/plain; charset=utf-8")


def _decisions(app: FastAPI, server: Server) -> None:
    @app.get("/api/v1/explain/{model:path}", response_model=Explained)
    async def explain(model: str, brief: bool = False) -> Response:
        """Why a model's replicas are where they are, or nowhere."""
        return _json(await server.views.explain(ModelName(model), brief=brief))

    @app.post("/api/v1/plan", response_model=Decisions, openapi_extra=_YAML)
    async def plan(
        request: Request, filename: str = "catalog.yaml", brief: bool = False
    ) -> Response:
        """What applying this catalog would place where; nothing is changed."""
        text = await _text(request)
        return _json(await server.views.plan(text, filename, brief=brief))


def _keys(app: FastAPI, server: Server) -> None:
    @app.get("/api/v1/keys", response_model=Keys)
    async def keys() -> Response:
        """The clients' keys, by their names and last four characters."""
        rows = [
            {"name": key.name, "ending": key.ending, "created_at": moment(key.created_at)}
            for key in server.operations.client_keys()
        ]
        return _json({"keys": rows})

    @app.post("/api/v1/keys", response_model=CreatedKey, status_code=201)
    async def create(asked: NewKey) -> Response:
        """A key for a client; its text is in this answer and nowhere else."""
        text = await server.operations.create_key(asked.name, who=_WHO)
        return _json({"name": asked.name, "key": text}, 201)

    @app.delete("/api/v1/keys/{name}", status_code=204)
    async def delete(name: str) -> Response:
        """Gateways refuse it from now on."""
        await server.operations.delete_key(name, who=_WHO)
        return Response(status_code=204)


def _tokens(app: FastAPI, server: Server) -> None:
    @app.get("/api/v1/tokens", response_model=Tokens)
    async def tokens() -> Response:
        """Join tokens that still admit machines."""
        now = server.clock.time()
        rows = [
            {"id": token.id, "expires_at": moment(token.expires_at), "uses": token.uses_left}
            for token in sorted(server.ledger.stored.tokens.values(), key=lambda t: t.created_at)
            if token.expires_at > now and token.uses_left > 0
        ]
        return _json({"tokens": rows})

    @app.post("/api/v1/tokens", response_model=CreatedToken, status_code=201)
    async def create(asked: Annotated[NewToken | None, Body()] = None) -> Response:
        """A token with which machines join; its text is in this answer and nowhere else."""
        wanted = asked or NewToken()
        token, text = await server.joining.create_token(
            ttl_s=wanted.ttl_s, uses=wanted.uses, who=_WHO
        )
        answer = {
            "id": token.id,
            "token": text,
            "expires_at": moment(token.expires_at),
            "uses": token.uses_left,
        }
        return _json(answer, 201)

    @app.delete("/api/v1/tokens/{token}", status_code=204)
    async def delete(token: str) -> Response:
        """Nobody joins with it any more."""
        await server.joining.delete_token(token, who=_WHO)
        return Response(status_code=204)


def _events(app: FastAPI, server: Server) -> None:
    @app.get("/api/v1/events", response_model=Events)
    async def events(
        limit: Annotated[int, Query(ge=1, le=1000)] = 100,
        before: Annotated[int | None, Query(ge=1, lt=2**63)] = None,
    ) -> Response:
        """What changed, the newest first: who, when, what, why."""
        found = await server.ledger.store.events(limit=limit, before=before)
        rows = [
            {
                "id": event.id,
                "at": moment(event.at),
                "who": event.who,
                "what": event.what,
                "object": event.object,
                "why": event.why,
            }
            for event in found
        ]
        more = found[-1].id if len(found) == limit and found[-1].id > 1 else None
        return _json({"events": rows, "next": more})


def _orphans(app: FastAPI, server: Server) -> None:
    @app.get("/api/v1/orphans", response_model=Orphans)
    async def orphans() -> Response:
        """Engines that agents run and that this server did not give them."""
        return _json(server.views.orphans())

    @app.post("/api/v1/orphans/reap", response_model=Reaped)
    async def reap(asked: OrphansToReap) -> Response:
        """Stop orphans; they drain, and hold their cards until their agents saw them end."""
        if asked.all == bool(asked.placements):
            raise Unusable('name the orphans to reap in "placements", or say "all": true')
        reaped = (
            await server.orphans.reap_all(who=_WHO)
            if asked.all
            else await server.orphans.reap(asked.placements, who=_WHO)
        )
        return _json({"reaped": reaped})
