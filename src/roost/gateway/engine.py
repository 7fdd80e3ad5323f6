"""A connection to an engine: one request at a time, its answer passed on as it comes."""

import asyncio
from enum import Enum
from typing import Protocol, cast

from roost.gateway.chunks import BadChunk, ChunkWalker
from roost.gateway.heads import END, AnswerHead, BadHead, parse_answer
from roost.gateway.limits import Limits
from roost.gateway.relay import Relay


class Outcome(Enum):
    """How a request on an engine's connection came to its end."""

    WHOLE = "whole"
    NO_BYTE = "no byte"
    """Closed before any byte of the answer."""
    KEY_REFUSED = "key refused"
    """401: the engine has another key than the route says."""
    SILENT = "silent"
    """No byte of the answer in time."""
    CUT = "cut"
    """No whole answer for another reason; the relay has the cause and what the client has seen."""


class Owner(Protocol):
    """Who keeps the connection while it is idle."""

    def connection_closed(self, connection: "EngineConnection") -> None:
        """The connection is gone."""


_LENGTH, _CHUNKS, _TO_THE_END, _NOTHING = range(4)


class EngineConnection(asyncio.Protocol):
    """An asyncio protocol; `start` gives it a request, `outcome` resolves when that is over."""

    __slots__ = (
        "_clock",
        "_framing",
        "_head",
        "_left",
        "_limits",
        "_owner",
        "_paused",
        "_relay",
        "_rest",
        "_transport",
        "_walker",
        "any_byte",
        "deadline",
        "idle_since",
        "outcome",
        "reused",
        "started_at",
    )

    def __init__(self, owner: Owner, limits: Limits, loop: asyncio.AbstractEventLoop) -> None:
        self._owner = owner
        self._limits = limits
        self._clock = loop
        self._transport: asyncio.Transport | None = None
        self._relay: Relay | None = None
        self._head: AnswerHead | None = None
        self._rest = b""
        self._framing = _NOTHING
        self._left = 0
        self._walker: ChunkWalker | None = None
        self._paused = False
        self.any_byte = False
        self.reused = False
        self.outcome: asyncio.Future[Outcome] | None = None
        self.deadline: float | None = None
        self.idle_since = 0.0
        self.started_at = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio."""
        self._transport = cast("asyncio.Transport", transport)

    @property
    def usable(self) -> bool:
        """Whether a request may be sent on it."""
        transport = self._transport
        return transport is not None and not transport.is_closing() and self._relay is None

    def start(self, request: bytes, body: bytes, relay: Relay) -> "asyncio.Future[Outcome]":
        """Send a request; its answer goes to `relay`."""
        transport = self._transport
        assert transport is not None  # noqa: S101 - only a usable connection is started
        self._relay = relay
        self._head = None
        self._rest = b""
        self.any_byte = False
        self.started_at = self._clock.time()
        self.deadline = self.started_at + self._limits.first_byte_s
        self.outcome = self._clock.create_future()
        if len(body) <= 65536:
            transport.write(request + body)
        else:
            transport.write(request)
            transport.write(body)
        return self.outcome

    def data_received(self, data: bytes) -> None:
        """Called by asyncio."""
        relay = self._relay
        if relay is None:
            # An engine says nothing unasked.
            self.abort()
            return
        self.any_byte = True
        self.deadline = self._clock.time() + self._limits.stream_idle_s
        if self._rest:
            data = self._rest + data
            self._rest = b""
        try:
            if self._head is None:
                self._read_head(data, relay)
            else:
                self._read_body(data, relay)
        except (BadHead, BadChunk) as error:
            relay.cut(f"the engine's answer is not HTTP: {error}", between=False)
            relay.flush()
            self._end(Outcome.CUT, keep=False)

    def _read_head(self, data: bytes, relay: Relay) -> None:
        while True:
            end = data.find(END)
            if end < 0:
                if len(data) > self._limits.head_bytes:
                    raise BadHead(f"its head is larger than {self._limits.head_bytes} bytes")
                self._rest = data
                return
            head = parse_answer(data[: end + 4])
            data = data[end + 4 :]
            if head.status >= 200:
                break
            # 100 and 103 are between the engine and the gateway.
        self._head = head
        if head.status == 401:
            relay.cause = "the engine refuses the gateway's key"
            self._end(Outcome.KEY_REFUSED, keep=False)
            return
        self._walker = None
        if head.status in (204, 304):
            self._framing = _NOTHING
        elif head.chunked:
            self._framing = _CHUNKS
            self._walker = ChunkWalker()
        elif head.length is not None:
            self._framing = _LENGTH if head.length else _NOTHING
            self._left = head.length
        else:
            self._framing = _TO_THE_END
        relay.begin(head)
        if data or self._framing == _NOTHING:
            self._read_body(data, relay)
        else:
            relay.flush()

    def _read_body(self, data: bytes, relay: Relay) -> None:
        framing = self._framing
        if framing == _CHUNKS:
            walker = self._walker
            assert walker is not None  # noqa: S101 - made with the head
            used = walker.feed(data)
            size = len(data)
            if walker.data or walker.forward_to:
                relay.pass_on(
                    data if walker.forward_to == size else data[: walker.forward_to],
                    walker.data,
                    walker.between_chunks,
                )
            if walker.done:
                self._complete(relay, surplus=used < size)
                return
            if used < size:
                self._rest = data[used:]
        elif framing == _LENGTH:
            surplus = len(data) > self._left
            if surplus:
                data = data[: self._left]
            self._left -= len(data)
            relay.pass_on(data, [data], True)
            if self._left == 0:
                self._complete(relay, surplus=surplus)
                return
        elif framing == _TO_THE_END:
            relay.pass_on(data, [data], True)
        else:
            self._complete(relay, surplus=bool(data))
            return
        relay.flush()

    def _complete(self, relay: Relay, *, surplus: bool) -> None:
        whole = relay.complete()
        relay.flush()
        transport = self._transport
        keep = (
            not surplus
            and self._framing != _TO_THE_END
            and self._head is not None
            and self._head.keep_alive
            and transport is not None
            and transport.get_write_buffer_size() == 0
        )
        self._end(Outcome.WHOLE if whole else Outcome.CUT, keep=keep)

    def eof_received(self) -> None:
        """Called by asyncio; the transport closes itself after it."""

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by asyncio."""
        relay = self._relay
        if relay is not None:
            if not self.any_byte:
                relay.cause = "the engine closed the connection before it answered"
                self._end(Outcome.NO_BYTE, keep=False)
            elif self._head is None:
                relay.cut("the engine closed the connection in the head of its answer")
                self._end(Outcome.CUT, keep=False)
            elif self._framing == _TO_THE_END and exc is None:
                self._complete(relay, surplus=False)
            else:
                between = self._walker is None or self._walker.between_chunks
                relay.cut("the engine broke off its answer", between=between)
                relay.flush()
                self._end(Outcome.CUT, keep=False)
        self._transport = None
        self._owner.connection_closed(self)

    def _end(self, outcome: Outcome, *, keep: bool) -> None:
        self._relay = None
        self.deadline = None
        self._head = None
        self._walker = None
        self._rest = b""
        future = self.outcome
        self.outcome = None
        if keep:
            # Never kept paused: the next request would wait for a client that has gone.
            self.resume()
            self.reused = True
        else:
            self.abort()
        if future is not None and not future.done():
            future.set_result(outcome)

    def give_up(self) -> None:
        """The time is over: nothing has come for too long."""
        relay = self._relay
        if relay is None:
            self.abort()
            return
        if self._paused:
            relay.stalled = True
            relay.cut("the client has stopped reading", between=False)
            self._end(Outcome.CUT, keep=False)
        elif not self.any_byte:
            relay.cause = f"the engine has not answered for {self._limits.first_byte_s:g} s"
            self._end(Outcome.SILENT, keep=False)
        else:
            between = self._walker is None or self._walker.between_chunks
            relay.cut(
                f"the engine has said nothing for {self._limits.stream_idle_s:g} s", between=between
            )
            relay.flush()
            self._end(Outcome.CUT, keep=False)

    def abandon(self) -> None:
        """Nobody wants the answer any more: the engine sees its connection close."""
        self._relay = None
        self.outcome = None
        self.deadline = None
        self.abort()

    def pause(self) -> None:
        """The client takes no more for now."""
        if not self._paused and self._transport is not None:
            self._paused = True
            self.deadline = self._clock.time() + self._limits.stalled_s
            self._transport.pause_reading()

    def resume(self) -> None:
        """The client takes more."""
        if self._paused and self._transport is not None:
            self._paused = False
            if self._relay is not None:
                self.deadline = self._clock.time() + self._limits.stream_idle_s
            self._transport.resume_reading()

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()
