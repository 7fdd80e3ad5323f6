"""One answer on its way from an engine to a client: the same bytes, but for the model's name."""

import time
from collections.abc import Callable
from typing import Final

import msgspec

from roost.gateway.apis import ERROR_EVENT, Api
from roost.gateway.heads import AnswerHead
from roost.gateway.naming import find_model, with_model

LAST_CHUNK: Final = b"0\r\n\r\n"
_TAIL: Final = 4096
_LONGEST_EVENT: Final = 1024 * 1024
_NO_BODY: Final = frozenset({204, 304})

# How the body's bytes reach the client.
_VERBATIM: Final = 0
"""As the engine framed them."""
_CHUNKED: Final = 1
"""In chunks made here."""
_BARE: Final = 2
"""Without framing: a length was said, or the connection's end is the body's."""

# What is done to the body.
_PASS: Final = 0
_SNIFF: Final = 1
"""An event stream whose first event with a name has not been seen."""
_RENAME: Final = 2
"""An event stream whose events get another name."""
_HOLD: Final = 3
"""A JSON answer that is held until its name is known."""


class Relay:
    """
    Takes an answer as it arrives and writes it to the client at once.

    The engine's connection calls `begin`, `pass_on`, then `complete` or `cut`; after each, `flush`.
    """

    __slots__ = (
        "_api",
        "_cors",
        "_framing",
        "_head",
        "_held",
        "_held_raw",
        "_held_size",
        "_http11",
        "_mode",
        "_most_held",
        "_name",
        "_out",
        "_quoted",
        "_request_id",
        "_rest",
        "_tail",
        "_write",
        "broken",
        "cause",
        "ended_itself",
        "first_data_at",
        "head_sent",
        "keep_alive",
        "needs_reset",
        "stalled",
        "status",
        "stream",
    )

    def __init__(
        self,
        write: Callable[[bytes], None],
        *,
        api: Api,
        name: str,
        http11: bool,
        keep_alive: bool,
        request_id: bytes,
        cors: bytes,
        most_held: int,
    ) -> None:
        self._write = write
        self._api = api
        self._name = name
        quoted = msgspec.json.encode(name)
        self._quoted = (b'"model":' + quoted, b'"model": ' + quoted)
        self._http11 = http11
        self._request_id = request_id
        self._cors = cors
        self._most_held = most_held
        self._head: AnswerHead | None = None
        self._framing = _VERBATIM
        self._mode = _PASS
        self._out: list[bytes] = []
        self._held: list[bytes] = []
        self._held_raw: list[bytes] = []
        self._held_size = 0
        self._rest = b""
        self._tail = b""
        self.first_data_at: float | None = None
        """When the first byte of the body came (monotonic seconds)."""
        self.keep_alive = keep_alive
        """Whether the client's connection may take another request after this answer."""
        self.head_sent = False
        self.status = 0
        self.stream = False
        self.broken = False
        """The answer is not whole, and the client was told so or can still be."""
        self.cause: str | None = None
        self.stalled = False
        """It was the client who stopped."""
        self.ended_itself = False
        """The engine said that this is all; it is not a broken connection."""
        self.needs_reset = False
        """Only a reset tells this client that the body is not whole."""

    @property
    def tail(self) -> bytes:
        """The last of the data, for what is read there when all is over."""
        return self._tail

    def begin(self, head: AnswerHead) -> None:
        """The engine's head has come."""
        self._head = head
        self.status = head.status
        readable = 200 <= head.status < 300 and not head.encoded
        self.stream = head.status == 200 and head.content_type == b"text/event-stream"
        if self.stream and readable:
            self._mode = _SNIFF
        elif readable and head.content_type == b"application/json":
            self._mode = _HOLD
        if head.chunked:
            if not self._http11:
                self._framing = _BARE
        elif head.length is None or self.stream:
            # A stream's end has to be the gateway's to say, in case it is not the engine's own.
            self._framing = _CHUNKED if self._http11 else _BARE
        if self.stream:
            self._send_head()

    def pass_on(self, raw: bytes, data: list[bytes], between: bool) -> None:
        """
        A block of the body: as it was framed, and its data.

        `between` says that the block ends with a whole chunk, or that there are no chunks.
        """
        if data:
            if self.first_data_at is None:
                self.first_data_at = time.monotonic()
            last = data[-1]
            self._tail = last[-_TAIL:] if len(last) >= _TAIL else self._tail_with(data)
        if self._mode == _PASS:
            self._send_head()
            self._emit(raw, data)
        elif self._mode == _RENAME:
            self._rename(data)
        elif self._mode == _HOLD:
            self._hold(raw, data)
        else:
            self._sniff(raw, data, between)

    def complete(self, *, between: bool = True) -> bool:
        """The body has ended as its framing says; whether that is a whole answer."""
        head = self._head
        assert head is not None  # noqa: S101 - `begin` comes first
        bodiless = head.status in _NO_BODY
        self.ended_itself = True
        if head.status == 200 and self.first_data_at is None:
            self.cut("the engine's answer is empty", between=between)
            return False
        if self._mode == _HOLD:
            self._release_held()
        elif self._mode == _SNIFF:
            self._flush_held()
        elif self._mode == _RENAME and self._rest:
            self._emit_data(self._renamed_line(self._rest))
            self._rest = b""
        if self.stream and self._api.end is not None and not self._api.end.search(self._tail):
            told = ERROR_EVENT.search(self._tail) is not None
            self.cut("the engine ended the stream without its end marker", told=told)
            return False
        self._send_head()
        if not bodiless and (
            self._framing == _CHUNKED or (self._framing == _VERBATIM and head.chunked)
        ):
            self._out.append(LAST_CHUNK)
        return True

    def cut(self, cause: str, *, between: bool = True, told: bool = False) -> None:
        """The answer stops here; a client that has its beginning is told so."""
        self.broken = True
        self.cause = cause
        self.keep_alive = False
        if not self.head_sent:
            self._out.clear()
            return
        if self.stream and not told:
            if self._mode == _SNIFF:
                # What is held was not shown, so nothing of it is left half said.
                between = between or not self._held_raw
                self._held_raw.clear()
                self._held.clear()
            at_event_end = not self._tail or self._tail.endswith((b"\n\n", b"\r\n\r\n", b"\r\r"))
            if self._mode == _RENAME or self._framing != _VERBATIM:
                between = True
            if between and (at_event_end or self._mode in (_SNIFF, _RENAME)):
                self._emit_data(self._error_event(cause))
        self.needs_reset = self._framing == _BARE and not self.stream

    def flush(self) -> None:
        """Write what this reading brought, in one piece."""
        out = self._out
        if out:
            self._write(out[0] if len(out) == 1 else b"".join(out))
            out.clear()

    def _tail_with(self, data: list[bytes]) -> bytes:
        return (self._tail + (data[0] if len(data) == 1 else b"".join(data)))[-_TAIL:]

    def _send_head(self, length: int | None = None) -> None:
        if self.head_sent:
            return
        self.head_sent = True
        head = self._head
        assert head is not None  # noqa: S101 - `begin` comes first
        out = self._out
        version = b"1.1" if self._http11 else b"1.0"
        out.append(b"HTTP/%b %d %b\r\n" % (version, head.status, head.reason))
        out.extend(head.lines)
        if head.status not in _NO_BODY:
            self._say_framing(head.length if self._framing == _VERBATIM else length)
        if self.stream:
            out.append(b"x-accel-buffering: no\r\n")
            if not head.cache_control:
                out.append(b"cache-control: no-cache\r\n")
        if head.status in (429, 503) and not head.retry_after:
            out.append(b"retry-after: 1\r\n")
        if not self.keep_alive:
            out.append(b"connection: close\r\n")
        elif not self._http11:
            out.append(b"connection: keep-alive\r\n")
        out.append(b"%bx-request-id: %b\r\n\r\n" % (self._cors, self._request_id))

    def _say_framing(self, length: int | None) -> None:
        if length is not None:
            self._out.append(b"content-length: %d\r\n" % length)
        elif self._framing == _BARE:
            self.keep_alive = False
        else:
            self._out.append(b"transfer-encoding: chunked\r\n")

    def _emit(self, raw: bytes, data: list[bytes]) -> None:
        if self._framing == _VERBATIM:
            if raw:
                self._out.append(raw)
        elif data:
            self._emit_data(data[0] if len(data) == 1 else b"".join(data))

    def _emit_data(self, data: bytes) -> None:
        if not data:
            return
        if self._framing == _BARE:
            self._out.append(data)
        else:
            self._out.append(b"%x\r\n%b\r\n" % (len(data), data))

    def _names_it(self, data: bytes) -> bool:
        return self._quoted[0] in data or self._quoted[1] in data

    def _keep(self, raw: bytes, data: list[bytes]) -> None:
        self._held_raw.append(raw)
        self._held.extend(data)
        self._held_size += len(raw)

    def _flush_held(self) -> None:
        """What was held goes on as it came."""
        self._send_head()
        if self._held_raw:
            self._emit(b"".join(self._held_raw), self._held)
            self._held_raw = []
            self._held = []
            self._held_size = 0

    def _hold(self, raw: bytes, data: list[bytes]) -> None:
        self._keep(raw, data)
        # Inside a JSON text quotes are escaped, so these bytes are a key and its value.
        if self._held_size > self._most_held or any(self._names_it(part) for part in data):
            self._mode = _PASS
            self._flush_held()

    def _release_held(self) -> None:
        body = b"".join(self._held)
        named = with_model(body, self._name) if b'"model"' in body else body
        if named == body:
            self._flush_held()
            return
        self._framing = _BARE
        self._send_head(len(named))
        self._out.append(named)

    def _sniff(self, raw: bytes, data: list[bytes], between: bool) -> None:
        if not self._held_raw and between and data and data[-1].endswith(b"\n"):
            # Nearly every first block: whole events, and the name is the one that was asked for.
            block = data[0] if len(data) == 1 else b"".join(data)
            if self._names_it(block):
                self._mode = _PASS
            if self._mode == _PASS or b'"model"' not in block:
                self._emit(raw, data)
                return
        self._keep(raw, data)
        held = b"".join(self._held)
        named = _first_name(held[: held.rfind(b"\n") + 1], self._api.named_in)
        if named is not None and named != self._quoted[0][8:]:
            # From here on the chunks are made here. Between chunks nothing half said was passed on.
            self._mode = _RENAME
            if self._framing == _VERBATIM:
                self._framing = _CHUNKED
            parts, self._held, self._held_raw = self._held, [], []
            self._rename(parts)
            return
        if named is not None:
            self._mode = _PASS
        whole = between and (held.endswith(b"\n") or not held)
        if self._mode == _PASS or whole or self._held_size > _LONGEST_EVENT:
            if not whole:
                self._mode = _PASS
            self._flush_held()

    def _rename(self, data: list[bytes]) -> None:
        block = self._rest + b"".join(data)
        end = block.rfind(b"\n") + 1
        if len(block) - end > _LONGEST_EVENT:
            end = len(block)
        self._rest = block[end:]
        if end:
            lines = block[:end].splitlines(keepends=True)
            self._emit_data(b"".join([self._renamed_line(line) for line in lines]))

    def _renamed_line(self, line: bytes) -> bytes:
        if b'"model"' not in line or not line.startswith(b"data:"):
            return line
        span = find_model(line, self._api.named_in)
        if span is None:
            return line
        return line[: span[0]] + self._quoted[0][8:] + line[span[1] :]

    def _error_event(self, cause: str) -> bytes:
        error: dict[str, object] = {
            "error": {"message": cause, "type": "server_error", "param": None, "code": "engine_cut"}
        }
        if self._api.error_type is not None:
            error = {"type": self._api.error_type, **error}
        return self._api.error_event + msgspec.json.encode(error) + b"\n\n"


def _first_name(lines: bytes, named_in: bytes | None) -> bytes | None:
    """The first `model` of an event, in its quotes."""
    for line in lines.splitlines(keepends=True):
        if line.startswith(b"data:") and b'"model"' in line:
            span = find_model(line, named_in)
            if span is not None:
                return line[span[0] : span[1]]
    return None
