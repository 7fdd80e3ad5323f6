"""What the heads of requests and answers say; one that bends the grammar is refused."""

import re
from collections.abc import Sequence
from typing import Final

import httptools

END: Final = b"\r\n\r\n"

_HOP_BY_HOP: Final = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
# The client's credentials, what the gateway says itself, encodings that would hold a stream back.
_NOT_TO_ENGINE: Final = _HOP_BY_HOP | {
    b"accept-encoding",
    b"api-key",
    b"authorization",
    b"content-length",
    b"cookie",
    b"expect",
    b"host",
    b"x-api-key",
    b"x-request-id",
}
_NOT_TO_CLIENT: Final = _HOP_BY_HOP | {b"content-length", b"x-request-id"}
_PERSISTENCE: Final = frozenset({b"close", b"keep-alive", b""})
_DIGITS: Final = re.compile(rb"[0-9]{1,18}")
_BARE_LF: Final = re.compile(rb"(?<!\r)\n")
_VERSIONS: Final = frozenset({"1.0", "1.1"})


class BadHead(Exception):
    """The bytes are no head that may be passed on."""


def has_bare_lf(data: bytes) -> bool:
    """Whether a line ends without CR; seen before the head is whole, so that nobody waits."""
    return _BARE_LF.search(data) is not None


class RequestHead:
    """A request's first line and headers; `lines` are those that may go on to an engine."""

    __slots__ = (
        "_headers",
        "authorization",
        "chunked",
        "expects_continue",
        "http11",
        "keep_alive",
        "length",
        "lines",
        "method",
        "path",
        "request_id",
        "target",
        "x_api_key",
    )

    def __init__(self) -> None:
        self._headers: list[tuple[bytes, bytes]] = []
        self.target = b""
        self.path = b""
        """The target without its query, otherwise as it came."""
        self.method = b""
        self.http11 = True
        self.keep_alive = True
        self.lines: list[bytes] = []
        self.length: int | None = None
        self.chunked = False
        self.expects_continue = False
        self.authorization: bytes | None = None
        self.x_api_key: bytes | None = None
        self.request_id: bytes | None = None

    def on_url(self, url: bytes) -> None:
        """Called by httptools."""
        self.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Called by httptools."""
        self._headers.append((name, value))

    def _read(self, most: int) -> None:
        if len(self._headers) > most:
            raise BadHead(f"the request has {len(self._headers)} headers, at most {most} are read")
        hosts = 0
        connection: bytes | None = None
        lines = self.lines
        for name, value in self._headers:
            lower = name.lower()
            if lower not in _NOT_TO_ENGINE:
                lines.append(b"%b: %b\r\n" % (name, value))
            elif lower == b"host":
                hosts += 1
            elif lower == b"content-length":
                self.length = _length(value)
            elif lower == b"authorization":
                self.authorization = value
            elif lower == b"connection":
                connection = value if connection is None else connection + b"," + value
            elif lower == b"x-api-key":
                self.x_api_key = value
            elif lower == b"x-request-id":
                self.request_id = value
            elif lower == b"transfer-encoding":
                if self.chunked or value.strip().lower() != b"chunked":
                    raise BadHead("transfer-encoding is understood as chunked only")
                self.chunked = True
            elif lower == b"expect":
                if value.strip().lower() != b"100-continue":
                    raise BadHead("expect is understood as 100-continue only")
                self.expects_continue = self.http11
        if hosts != 1 and (self.http11 or hosts):
            raise BadHead(f"a request has one host header, this one has {hosts}")
        if self.chunked and not self.http11:
            raise BadHead("an HTTP/1.0 request cannot be chunked")
        self.keep_alive = self.http11
        if connection is not None:
            self.keep_alive, self.lines = _heed_connection(connection, self.http11, lines)


class AnswerHead:
    """An engine's status line and headers; `lines` are those that may go on to the client."""

    __slots__ = (
        "_headers",
        "cache_control",
        "chunked",
        "content_type",
        "encoded",
        "keep_alive",
        "length",
        "lines",
        "reason",
        "retry_after",
        "status",
    )

    def __init__(self) -> None:
        self._headers: list[tuple[bytes, bytes]] = []
        self.status = 0
        self.reason = b""
        self.lines: list[bytes] = []
        self.length: int | None = None
        self.chunked = False
        self.keep_alive = True
        self.content_type = b""
        self.encoded = False
        self.retry_after = False
        self.cache_control = False

    def on_status(self, reason: bytes) -> None:
        """Called by httptools."""
        self.reason += reason

    def on_header(self, name: bytes, value: bytes) -> None:
        """Called by httptools."""
        self._headers.append((name, value))

    def _read(self, http11: bool) -> None:
        connection: bytes | None = None
        lines = self.lines
        for name, value in self._headers:
            lower = name.lower()
            if lower not in _NOT_TO_CLIENT:
                lines.append(b"%b: %b\r\n" % (name, value))
                if lower == b"content-type":
                    self.content_type = value.partition(b";")[0].strip().lower()
                elif lower == b"content-encoding":
                    self.encoded = value.strip().lower() != b"identity"
                elif lower == b"retry-after":
                    self.retry_after = True
                elif lower == b"cache-control":
                    self.cache_control = True
            elif lower == b"content-length":
                self.length = _length(value)
            elif lower == b"connection":
                connection = value if connection is None else connection + b"," + value
            elif lower == b"transfer-encoding":
                if self.chunked or value.strip().lower() != b"chunked":
                    raise BadHead("the engine's transfer-encoding is not chunked")
                self.chunked = True
        self.keep_alive = http11
        if connection is not None:
            self.keep_alive, self.lines = _heed_connection(connection, http11, lines)


def _length(value: bytes) -> int:
    value = value.strip(b" \t")
    if not _DIGITS.fullmatch(value):
        raise BadHead("content-length is not a number")
    return int(value)


def _heed_connection(
    connection: bytes, http11: bool, lines: Sequence[bytes]
) -> tuple[bool, list[bytes]]:
    """Whether the connection stays open, and the lines that `Connection` does not name."""
    named = {token.strip().lower() for token in connection.split(b",")}
    keep_alive = b"close" not in named and (http11 or b"keep-alive" in named)
    if not named <= _PERSISTENCE:
        return keep_alive, [line for line in lines if line.partition(b":")[0].lower() not in named]
    return keep_alive, list(lines)


def parse_request(data: bytes, *, most_headers: int) -> RequestHead:
    """The head in `data`, which ends with the empty line."""
    head = RequestHead()
    parser = httptools.HttpRequestParser(head)
    try:
        parser.feed_data(data)
    except httptools.HttpParserUpgrade:
        # An upgrade is never taken up: the header is dropped and the request is one like any other.
        pass
    except httptools.HttpParserError as error:
        raise BadHead(_in_words(error)) from None
    version = parser.get_http_version()
    if version not in _VERSIONS:
        raise BadHead(f"HTTP/{version} is not spoken here, HTTP/1.1 and HTTP/1.0 are")
    head.method = parser.get_method()
    head.http11 = version == "1.1"
    head.path = head.target.partition(b"?")[0]
    head._read(most_headers)
    return head


def parse_answer(data: bytes) -> AnswerHead:
    """The head in `data`, which ends with the empty line."""
    head = AnswerHead()
    parser = httptools.HttpResponseParser(head)
    try:
        parser.feed_data(data)
    except httptools.HttpParserUpgrade:
        raise BadHead("the engine switches protocols, which nobody asked for") from None
    except httptools.HttpParserError as error:
        raise BadHead(_in_words(error)) from None
    version = parser.get_http_version()
    if version not in _VERSIONS:
        raise BadHead(f"the engine answers in HTTP/{version}")
    head.status = parser.get_status_code()
    head._read(version == "1.1")
    return head


def _in_words(error: Exception) -> str:
    words = str(error) or type(error).__name__
    return words[0].lower() + words[1:]
