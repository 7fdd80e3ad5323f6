"""One request's way: admitted, routed, sent, awaited, accounted for."""

import asyncio
import time
from typing import Protocol

from roost.gateway.accounts import NO_MODEL, UNKNOWN_MODEL, Event
from roost.gateway.apis import Api, usage_in
from roost.gateway.context import Context
from roost.gateway.endpoints import Endpoint
from roost.gateway.engine import EngineConnection, Outcome
from roost.gateway.forms import Form
from roost.gateway.naming import BadBody, read_ask, with_model
from roost.gateway.refusals import (
    Refusal,
    bad_gateway,
    bad_key,
    bad_request,
    busy,
    no_such_model,
    unavailable,
)
from roost.gateway.relay import Relay
from roost.gateway.request import Request
from roost.gateway.table import Model

_STALE_S = 1.0
"""A reused connection that closes unanswered so soon was closing; later, the engine was at work."""


class Client(Protocol):
    """The client's side of an exchange."""

    def write(self, data: bytes) -> None:
        """Send bytes of the answer."""

    @property
    def congested(self) -> bool:
        """Whether the client takes no more for now."""

    def refuse(self, request: Request, refusal: Refusal, *, close: bool) -> None:
        """Answer here."""

    def finished(self, *, keep_alive: bool, reset: bool) -> None:
        """The exchange is over."""


class Exchange:
    """One request for an engine. Cancelling its coroutine `run` closes the engine's connection.

    The coroutine is run by a `Course`: it awaits futures and tasks, nothing else.
    """

    __slots__ = (
        "_accounted",
        "_api",
        "_client",
        "_connection",
        "_context",
        "_endpoint",
        "_model",
        "_queued",
        "_relay",
        "_replica",
        "_request",
        "cause",
        "ended_by",
        "label",
        "status",
        "streams",
    )

    def __init__(self, context: Context, client: Client, request: Request, api: Api) -> None:
        self._context = context
        self._client = client
        self._request = request
        self._api = api
        self._model: Model | None = None
        self._endpoint: Endpoint | None = None
        self._connection: EngineConnection | None = None
        self._relay: Relay | None = None
        self._replica: str | None = None
        self._queued: float | None = None
        """Seconds in the queue; `None`: it did not wait."""
        self._accounted = False
        self.label = NO_MODEL
        self.streams = False
        self.status = 499
        self.ended_by = "client"
        self.cause: str | None = None

    async def run(self) -> None:
        """Carry the request through; always gives back what it took, always accounts."""
        keep_alive = False
        reset = False
        try:
            refusal = await self._forward()
            relay = self._relay
            if refusal is not None:
                self.status = refusal.status
                self.cause = refusal.message
                if self.ended_by == "client":
                    self.ended_by = "gateway"
                self._client.refuse(self._request, refusal, close=False)
                keep_alive = self._request.head.keep_alive
            elif relay is not None:
                keep_alive = relay.keep_alive
                reset = relay.needs_reset
        except asyncio.CancelledError:
            if self._context.draining and self._relay is not None:
                self.cause = "the gateway stops"
            return
        except Exception as error:  # noqa: BLE001 - the outermost guard of a request
            self.status, self.ended_by = 500, "gateway"
            self.cause = f"a fault in the gateway: {type(error).__name__}: {error}"
            if self._relay is None or not self._relay.head_sent:
                self._client.refuse(
                    self._request,
                    Refusal(
                        status=500,
                        code="internal",
                        type="server_error",
                        message="a fault in the gateway; its log has the cause",
                    ),
                    close=True,
                )
        finally:
            self.settle()
        self._client.finished(keep_alive=keep_alive, reset=reset)

    def settle(self) -> None:
        """Give back what is held and account for the request, once."""
        if self._accounted:
            return
        self._accounted = True
        connection, endpoint = self._connection, self._endpoint
        if connection is not None:
            self._connection = None
            self._context.engines.discard(connection)
            connection.abandon()
        if endpoint is not None:
            self._release(endpoint)
        self._request.let_go(self._context)
        try:
            self._account()
        except Exception as error:  # noqa: BLE001 - a fault in the books is not the client's
            self._context.accounts.log.say("gateway.not_accounted", cause=repr(error))

    def pause(self) -> None:
        """The client takes no more for now."""
        if self._connection is not None:
            self._connection.pause()

    def resume(self) -> None:
        """The client takes more."""
        if self._connection is not None:
            self._connection.resume()

    def _release(self, endpoint: Endpoint) -> None:
        self._endpoint = None
        endpoint.health = endpoint.health.let_go()
        if self._model is not None:
            self._model.give_back(endpoint)

    async def _forward(self) -> Refusal | None:
        """`None`: the engine's answer has been passed on, as far as it came."""
        context, request = self._context, self._request
        if request.key_name is None:
            await self._news()
            request.key_name = (
                context.table.key_name(request.key) if request.key is not None else None
            )
            if request.key_name is None:
                return self._no_snapshot() or bad_key(given=True)
        form = None
        try:
            if self._api.form:
                form = Form(request.body, request.head.content_type)
                name, self.streams = form.model, form.stream
            else:
                name, self.streams = read_ask(request.body)
        except BadBody as error:
            return bad_request(str(error), code="invalid_body")
        model = context.table.model(name)
        if model is None:
            await self._news()
            model = context.table.model(name)
            if model is None:
                self.label = UNKNOWN_MODEL
                return self._no_snapshot() or no_such_model(name)
        self._model = model
        self.label = model.name
        admitted = await self._admit(model)
        if isinstance(admitted, Refusal):
            return admitted
        self._endpoint = admitted
        body = request.body
        if name != model.name:
            body = with_model(body, model.name) if form is None else form.with_model(model.name)
        relay = self._relay = Relay(
            self._client.write,
            api=self._api,
            name=name,
            http11=request.head.http11,
            keep_alive=request.head.keep_alive and not context.draining,
            request_id=request.id,
            cors=request.cors,
            most_held=context.limits.renamed_bytes,
        )
        return await self._send(model, admitted, body, relay)

    async def _news(self) -> None:
        """Right after start, wait for what the server says; later, what is unknown is unknown."""
        context = self._context
        if not context.table.confirmed.is_set():
            news = context.loop.create_task(context.table.confirmed.wait())
            late = context.loop.call_later(context.limits.first_snapshot_s, news.cancel)
            try:
                await asyncio.wait((news,))
            finally:
                late.cancel()
                news.cancel()
            # The last word stands; waiting again for each request would help nobody.
            context.table.confirmed.set()

    def _no_snapshot(self) -> Refusal | None:
        if self._context.table.version is not None:
            return None
        return unavailable(
            "the gateway has no routes yet: it has not heard of the server since its start",
            code="no_routes",
            retry_after=1,
        )

    async def _admit(self, model: Model) -> Endpoint | Refusal:
        session = self._request.head.session
        if not model.has_queue:
            endpoint = model.take(session=session)
            if endpoint is not None:
                return endpoint
        refusal = model.reason_not_ready()
        if refusal is not None:
            return refusal
        place = model.join(self._context.loop, session)
        if place is None:
            return busy(
                f"the queue of the model `{model.name}` is full: {model.queue.size} requests wait",
                code="queue_full",
            )
        ticket, turn = place
        since = time.monotonic()
        try:
            return await turn
        except asyncio.CancelledError:
            model.leave(ticket)
            if turn.done() and not turn.cancelled():
                got = turn.result()
                if isinstance(got, Endpoint):
                    self._release_unused(model, got)
            raise
        finally:
            self._queued = time.monotonic() - since

    def _release_unused(self, model: Model, endpoint: Endpoint) -> None:
        endpoint.health = endpoint.health.let_go()
        model.give_back(endpoint)

    async def _send(
        self, model: Model, endpoint: Endpoint, body: bytes, relay: Relay
    ) -> Refusal | None:
        """Send it, once; once more where nothing can have been accepted."""
        fresh = False
        moved = False
        while True:
            connection = None if fresh else endpoint.take_idle()
            if connection is None:
                try:
                    connection = await self._dial(endpoint)
                except OSError as error:
                    endpoint.health = endpoint.health.failed(self._context.loop.time())
                    session = self._request.head.session
                    other = None if moved or fresh else model.take(but=endpoint, session=session)
                    if other is None:
                        self.ended_by = "cut"
                        return self._unreachable(model, endpoint, error)
                    moved = True
                    self._release(endpoint)
                    endpoint = self._endpoint = other
                    continue
            reused = connection.reused
            outcome = await self._await_answer(connection, endpoint, body, relay)
            now = self._context.loop.time()
            if outcome is Outcome.NO_BYTE and reused and now - connection.started_at < _STALE_S:
                # It was closing as the request was written.
                fresh = True
                relay.cause = None
                continue
            return self._judge(outcome, model, endpoint, relay, now)

    async def _await_answer(
        self, connection: EngineConnection, endpoint: Endpoint, body: bytes, relay: Relay
    ) -> Outcome:
        context, request = self._context, self._request
        self._replica = endpoint.route.replica
        self._connection = connection
        context.engines.add(connection)
        head = b"".join(
            (
                b"POST %b HTTP/1.1\r\n" % self._api.path,
                endpoint.head_lines,
                *request.head.lines,
                b"x-request-id: %b\r\ncontent-length: %d\r\n\r\n" % (request.id, len(body)),
            )
        )
        done = connection.start(head, body, relay)
        if self._client.congested:
            connection.pause()
        outcome = await done
        self._connection = None
        context.engines.discard(connection)
        if outcome is Outcome.WHOLE:
            endpoint.keep(connection, context.loop.time())
        return outcome

    def _judge(
        self, outcome: Outcome, model: Model, endpoint: Endpoint, relay: Relay, now: float
    ) -> Refusal | None:
        self.status = relay.status
        self.cause = relay.cause
        if outcome is Outcome.WHOLE:
            self.ended_by = "engine"
            endpoint.health = endpoint.health.answered()
            return None
        self.ended_by = "cut"
        if outcome is Outcome.KEY_REFUSED:
            endpoint.health = endpoint.health.dropped(now)
            return unavailable(
                f"the route to replica {endpoint.route.replica} is out of date",
                code="route_stale",
                retry_after=0,
            )
        if relay.stalled:
            self.ended_by = "client"
            self.status = 499
            return None
        if relay.ended_itself:
            endpoint.health = endpoint.health.answered()
        else:
            endpoint.health = endpoint.health.failed(now)
        cause = relay.cause or "the engine gave no answer"
        if relay.head_sent:
            # Told by an error event or a broken transfer; counted as what it is.
            self.status = 502
            return None
        return bad_gateway(
            f"replica {endpoint.route.replica} of the model `{model.name}`: {cause}",
            status=504 if outcome is Outcome.SILENT else 502,
        )

    async def _dial(self, endpoint: Endpoint) -> EngineConnection:
        context = self._context
        connection = EngineConnection(endpoint, context.limits, context.loop)
        route, loop = endpoint.route, context.loop
        dialling = loop.create_task(
            loop.create_connection(lambda: connection, route.host, route.port)
        )
        late = loop.call_later(context.limits.connect_s, dialling.cancel)
        try:
            await asyncio.wait((dialling,))
        except asyncio.CancelledError:
            dialling.cancel()
            connection.abort()
            raise
        finally:
            late.cancel()
        if dialling.cancelled():
            connection.abort()
            raise OSError(f"no connection within {context.limits.connect_s:g} s")
        dialling.result()
        return connection

    def _unreachable(self, model: Model, endpoint: Endpoint, error: OSError) -> Refusal:
        cause = error.strerror or str(error) or type(error).__name__
        return unavailable(
            f"replica {endpoint.route.replica} of the model `{model.name}` takes no connection: "
            f"{cause[0].lower() + cause[1:]}",
            code="replica_unreachable",
            retry_after=1,
        )

    def _account(self) -> None:
        request, relay = self._request, self._relay
        usage = usage_in(relay.tail) if relay is not None and self.status == 200 else None
        duration = time.monotonic() - request.arrived_at
        first = relay.first_data_at if relay is not None else None
        ttft = None if first is None else first - request.arrived_at
        accounts = self._context.accounts
        accounts.count(self.label, self.status, ttft)
        accounts.log.line(
            Event(
                event="gateway.request",
                at=round(time.time(), 3),
                request=request.id.decode("latin-1"),
                method="POST",
                path=self._api.path.decode("latin-1"),
                status=self.status,
                ended_by=self.ended_by,
                duration_ms=round(duration * 1000, 2),
                key=request.key_name,
                model=self.label,
                replica=self._replica,
                stream=self.streams,
                queue_ms=round(self._queued * 1000, 2) if self._queued is not None else None,
                ttft_ms=round(ttft * 1000, 2) if ttft is not None else None,
                tokens_in=usage.tokens_in if usage is not None else None,
                tokens_out=usage.tokens_out if usage is not None else None,
                cause=self.cause,
            )
        )
