"""A client's connection: requests read one after the other, each answered here or passed on."""

import asyncio
import socket
import struct
import time
from typing import Final, cast

from roost.gateway.accounts import NO_MODEL, UNKNOWN_MODEL, Event
from roost.gateway.answers import answer, headers_of, last_answer, preflight_answer
from roost.gateway.chunks import BadChunk, ChunkWalker
from roost.gateway.context import Context
from roost.gateway.cors import is_preflight
from roost.gateway.course import Course
from roost.gateway.doors import judge, list_models, too_much
from roost.gateway.exchange import Exchange
from roost.gateway.heads import END, BadHead, has_bare_lf, parse_request
from roost.gateway.ids import id_for
from roost.gateway.refusals import Refusal, bad_request, too_large
from roost.gateway.request import Request

CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_SMALL_BODY: Final = 64 * 1024
"""A refused request's body is still read up to this, so that the connection can go on."""
_MOST_DISCARDED: Final = 8 * 1024 * 1024
_MOST_KEPT_BACK: Final = 16 * 1024


class ClientConnection(asyncio.Protocol):
    """An asyncio protocol: one request is read, one is in flight, what follows is held."""

    __slots__ = (
        "_advancing",
        "_buffer",
        "_congested",
        "_context",
        "_course",
        "_discarded",
        "_exchange",
        "_left",
        "_lingering",
        "_loop",
        "_out",
        "_owners",
        "_reading_paused",
        "_refusal",
        "_request",
        "_transport",
        "_walker",
        "deadline",
    )

    def __init__(self, context: Context, owners: "set[ClientConnection]") -> None:
        self._context = context
        self._loop = context.loop
        self._owners = owners
        self._transport: asyncio.Transport | None = None
        self._buffer = b""
        self._request: Request | None = None
        """Being read."""
        self._refusal: Refusal | None = None
        """What the request being read will be answered, as far as that is known from its head."""
        self._left = 0
        self._walker: ChunkWalker | None = None
        self._exchange: Exchange | None = None
        self._course: Course | None = None
        self._advancing = False
        self._congested = False
        self._reading_paused = False
        self._lingering = False
        self._discarded = 0
        self._out: list[bytes] = []
        """To be sent before anything else is done to the connection."""
        self.deadline = 0.0

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio."""
        self._transport = cast("asyncio.Transport", transport)
        self._owners.add(self)
        self.deadline = self._loop.time() + self._context.limits.keep_alive_s

    def data_received(self, data: bytes) -> None:
        """Called by asyncio."""
        if self._lingering:
            self._discarded += len(data)
            if self._discarded > _MOST_DISCARDED:
                self._abort()
            return
        self._buffer = self._buffer + data if self._buffer else data
        if self._exchange is not None or self._congested:
            if len(self._buffer) > self._context.limits.pipelined_bytes:
                self._pause_reading()
            return
        self._advance()

    def eof_received(self) -> None:
        """
        Called by asyncio. The client will say nothing more, and is taken to be gone.

        A process that dies looks the same, and engines are too dear to work for nobody.
        """
        if self._exchange is not None:
            self._abort()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        """Called by asyncio."""
        self._owners.discard(self)
        self._transport = None
        self._out.clear()
        self._drop_request()
        self._cancel()

    def pause_writing(self) -> None:
        """Called by asyncio: the client reads more slowly than the engine writes."""
        self._congested = True
        if self._exchange is not None:
            self._exchange.pause()

    def resume_writing(self) -> None:
        """Called by asyncio."""
        self._congested = False
        if self._exchange is not None:
            self._exchange.resume()
        else:
            self._go_on()

    # What an exchange calls.

    @property
    def congested(self) -> bool:
        """Whether the client takes no more for now."""
        return self._congested

    def write(self, data: bytes) -> None:
        """Send bytes of an answer, at the end of the loop's turn."""
        if self._transport is not None:
            if not self._out:
                self._context.writes.add(self.flush)
            self._out.append(data)
            if len(data) > _MOST_KEPT_BACK:
                # Whether the client takes it has to be known before more is read for it.
                self.flush()

    def flush(self) -> None:
        """Hand what is to be sent to the transport."""
        out = self._out
        if out and self._transport is not None:
            self._transport.write(out[0] if len(out) == 1 else b"".join(out))
        out.clear()

    def finished(self, *, keep_alive: bool, reset: bool) -> None:
        """The exchange is over."""
        self._exchange = None
        self._course = None
        if self._transport is None:
            return
        if reset:
            self._reset()
        elif not keep_alive or (self._context.draining and not self._context.patient):
            self._close()
        else:
            self.deadline = self._loop.time() + self._context.limits.keep_alive_s
            self._go_on()

    def refuse(self, request: Request, refusal: Refusal, *, close: bool) -> None:
        """Answer here, in OpenAI's error shape."""
        extra = headers_of(refusal)
        self._answer(request, refusal.status, refusal.body(), extra=extra, close=close)

    # Time.

    @property
    def is_idle(self) -> bool:
        """Whether nothing is being read or answered."""
        return self._request is None and self._exchange is None and not self._buffer

    def check_time(self, now: float) -> None:
        """Act on a deadline that has passed."""
        if self._exchange is not None or now < self.deadline:
            return
        transport = self._transport
        if (
            transport is not None
            and transport.get_write_buffer_size()
            and now < self.deadline + self._context.limits.stalled_s
        ):
            return
        if self._lingering or self._congested or self.is_idle:
            self._abort()
        else:
            self._refuse_connection(
                Refusal(
                    status=408,
                    code="request_timeout",
                    message="the rest of the request did not come in time",
                )
            )

    def stop(self) -> None:
        """The gateway stops: an idle connection closes now, another after its answer."""
        if self.is_idle:
            self._close()

    def cut_off(self) -> None:
        """The gateway's time to stop is over."""
        self._abort()

    # Reading.

    def _go_on(self) -> None:
        if self._advancing:
            return  # it goes on by itself
        self._advance()
        if self._reading_paused and (
            self._exchange is None or len(self._buffer) <= self._context.limits.pipelined_bytes
        ):
            self._resume_reading()

    def _advance(self) -> None:
        self._advancing = True
        try:
            while (
                self._buffer
                and self._exchange is None
                and not self._congested
                and not self._lingering
                and self._transport is not None
                and not self._transport.is_closing()
            ):
                if self._request is None:
                    if not self._read_head():
                        return
                elif not self._read_body(self._request):
                    return
        except (BadHead, BadChunk) as error:
            self._refuse_connection(bad_request(str(error), code="bad_http"))
        finally:
            self._advancing = False

    def _read_head(self) -> bool:
        """Whether there may be more to do."""
        buffer, limits = self._buffer, self._context.limits
        if buffer.startswith(b"\r\n"):
            # A line too many after the last body, which old clients send.
            self._buffer = buffer[2:]
            return True
        end = buffer.find(END)
        if end < 0 or end + 4 > limits.head_bytes:
            if has_bare_lf(buffer[: limits.head_bytes]):
                raise BadHead("a line of the head does not end in CR LF")
            if len(buffer) > limits.head_bytes:
                self._refuse_connection(
                    bad_request(
                        f"the request's head is larger than {limits.head_bytes} bytes",
                        code="head_too_large",
                        status=431,
                    )
                )
                return False
            self.deadline = min(self.deadline, self._loop.time() + limits.head_s)
            return False
        head = parse_request(buffer[: end + 4], most_headers=limits.headers)
        self._buffer = buffer[end + 4 :]
        request = Request(head, id_for(head.request_id), time.monotonic())
        told = head.origin is not None and self._is_told_beforehand(request)
        refusal = None if told else judge(request, self._context)
        self._left = head.length or 0
        self._walker = ChunkWalker() if head.chunked else None
        has_body = head.chunked or self._left > 0
        if (
            refusal is not None
            and has_body
            and (head.chunked or head.expects_continue or self._left > _SMALL_BODY)
        ):
            # Early: nobody uploads megabytes to be told no.
            self._tell(request, refusal, close=True)
            return False
        if not has_body:
            if not told:
                self._dispatch(request, refusal)
            return True
        self._request = request
        self._refusal = refusal
        self.deadline = self._loop.time() + limits.body_idle_s
        if head.expects_continue and not self._buffer:
            self.write(CONTINUE)
        return True

    def _read_body(self, request: Request) -> bool:
        """Whether there may be more to do."""
        buffer = self._buffer
        if self._walker is not None:
            used = self._walker.feed(buffer)
            self._buffer = buffer[used:]
            pieces = self._walker.data
            whole = self._walker.done
        else:
            piece = buffer[: self._left]
            self._buffer = buffer[self._left :]
            self._left -= len(piece)
            pieces = [piece]
            whole = self._left == 0
        size = sum(map(len, pieces))
        if self._refusal is None:
            request.parts.extend(pieces)
            request.held += size
            self._context.body_bytes += size
        request.size += size
        limit = self._context.limits.body_bytes
        if request.size > limit:
            self._drop_request()
            self._tell(request, too_large(limit), close=True)
            return False
        if self._context.body_bytes > self._context.limits.buffered_bytes:
            self._drop_request()
            self._tell(request, too_much(self._context), close=True)
            return False
        if not whole:
            self.deadline = self._loop.time() + self._context.limits.body_idle_s
            return False
        self._request = None
        refusal, self._refusal = self._refusal, None
        parts = request.parts
        request.body = parts[0] if len(parts) == 1 else b"".join(parts)
        request.parts = []
        self._dispatch(request, refusal)
        return True

    def _drop_request(self) -> None:
        """What was being read is not wanted any more."""
        request, self._request = self._request, None
        if request is not None:
            request.let_go(self._context)

    # Answering.

    def _dispatch(self, request: Request, refusal: Refusal | None) -> None:
        if refusal is not None:
            self._tell(request, refusal, close=not request.head.keep_alive)
        elif request.api is None:
            request.let_go(self._context)
            self._answer_models(request)
        else:
            self._exchange = Exchange(self._context, self, request, request.api)
            self._course = Course(self._exchange.run())
            self._loop.call_soon(self._course.begin)

    def _is_told_beforehand(self, request: Request) -> bool:
        """A web page asks: whether that was its browser, which wants to know what it may ask."""
        cors, head = self._context.cors, request.head
        if cors is None:
            return False
        request.cors = cors.lines(head)
        if not request.cors or not is_preflight(head):
            return False
        keep_alive = head.keep_alive and not self._context.draining
        self.write(preflight_answer(request, cors.preflight(head), keep_alive=keep_alive))
        self._account(request, 204, None, NO_MODEL)
        if keep_alive:
            self.deadline = self._loop.time() + self._context.limits.keep_alive_s
        else:
            self._linger()
        return True

    def _answer_models(self, request: Request) -> None:
        listed = list_models(request.head.path, self._context.table)
        if isinstance(listed, Refusal):
            self._tell(request, listed, close=False, label=UNKNOWN_MODEL)
            return
        self._answer(request, 200, listed, close=False)
        self._account(request, 200, None, NO_MODEL)

    def _tell(
        self, request: Request, refusal: Refusal, *, close: bool, label: str = NO_MODEL
    ) -> None:
        """Refuse, and account for it; the exchange accounts for its own."""
        self.refuse(request, refusal, close=close)
        self._account(request, refusal.status, refusal.message, label)
        if close and self._transport is not None and not self._transport.is_closing():
            self._linger()

    def _answer(
        self, request: Request, status: int, body: bytes, *, extra: bytes = b"", close: bool
    ) -> None:
        keep_alive = request.head.keep_alive and not close and not self._context.draining
        self.write(answer(request, status, body, extra=extra, keep_alive=keep_alive))
        if not keep_alive and self._exchange is None:
            self._linger()
        elif self._exchange is None:
            self.deadline = self._loop.time() + self._context.limits.keep_alive_s

    def _refuse_connection(self, refusal: Refusal) -> None:
        """What came is not HTTP, or not in time: answer and close; what comes next is unknown."""
        self._drop_request()
        self.write(last_answer(refusal))
        self._context.accounts.count(NO_MODEL, refusal.status, None)
        self._context.accounts.log.say(
            "gateway.refused_connection", status=refusal.status, cause=refusal.message
        )
        self._linger()

    def _account(self, request: Request, status: int, cause: str | None, label: str) -> None:
        accounts = self._context.accounts
        accounts.count(label, status, None)
        head = request.head
        accounts.log.line(
            Event(
                event="gateway.request",
                at=round(time.time(), 3),
                request=request.id.decode("latin-1"),
                method=head.method.decode("latin-1"),
                path=head.path[:200].decode("latin-1"),
                status=status,
                ended_by="gateway",
                duration_ms=round((time.monotonic() - request.arrived_at) * 1000, 2),
                key=request.key_name,
                cause=cause,
            )
        )

    # Ending.

    def _cancel(self) -> None:
        course, exchange = self._course, self._exchange
        self._course = self._exchange = None
        if course is not None:
            course.cancel()
        if exchange is not None:
            exchange.settle()

    def _linger(self) -> None:
        """
        Say no more, and drop what still comes for a while.

        To close with bytes unread would reset the connection, and the client might lose its answer.
        """
        if self._transport is None or self._lingering:
            return
        self._lingering = True
        self._buffer = b""
        self.deadline = self._loop.time() + self._context.limits.linger_s
        if self._reading_paused:
            self._resume_reading()
        self.flush()
        if self._transport.can_write_eof():
            self._transport.write_eof()

    def _close(self) -> None:
        transport = self._transport
        if transport is not None and not transport.can_write_eof() and not self._lingering:
            # TLS has no half-closed connection; what was written goes out before its farewell.
            self.flush()
            transport.close()
        else:
            self._linger()

    def _reset(self) -> None:
        """Reset: a body that ends with its connection cannot be called broken in another way."""
        if self._transport is None:
            return
        self.flush()
        sock = self._transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._transport.abort()

    def _abort(self) -> None:
        self._cancel()
        if self._transport is not None:
            self.flush()
            self._transport.abort()

    def _pause_reading(self) -> None:
        if not self._reading_paused and self._transport is not None:
            self._reading_paused = True
            self._transport.pause_reading()

    def _resume_reading(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._reading_paused = False
            self._transport.resume_reading()
