"""What the heads of requests and answers say; one that bends the grammar is refused."""

import re
from collections.abc import Callable
from typing import Final

import httptools

END: Final = b"\r\n\r\n"

_HOP_BY_HOP: Final = (
    b"keep-alive",
    b"proxy-authenticate",
    b"proxy-authorization",
    b"proxy-connection",
    b"te",
    b"trailer",
    b"upgrade",
)
# Which pages may use the gateway is the gateway's to say: llama.cpp lets every origin in.
_OF_CORS: Final = (
    b"access-control-allow-credentials",
    b"access-control-allow-headers",
    b"access-control-allow-methods",
    b"access-control-allow-origin",
    b"access-control-expose-headers",
    b"access-control-max-age",
)
_PERSISTENCE: Final = frozenset({b"close", b"keep-alive", b""})
_MOST_DIGITS: Final = 18
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
        "authorization",
        "chunked",
        "connection",
        "expects_continue",
        "headers",
        "hosts",
        "http11",
        "keep_alive",
        "length",
        "lines",
        "method",
        "origin",
        "path",
        "request_id",
        "session",
        "target",
        "x_api_key",
    )

    def __init__(self) -> None:
        self.headers: list[tuple[bytes, bytes]] = []
        self.target = b""
        self.path = b""
        """The target without its query, otherwise as it came."""
        self.method = b""
        self.http11 = True
        self.keep_alive = True
        self.lines: list[bytes] = []
        self.length: int | None = None
        self.chunked = False
        self.hosts = 0
        self.connection: bytes | None = None
        self.expects_continue = False
        self.authorization: bytes | None = None
        self.x_api_key: bytes | None = None
        self.request_id: bytes | None = None
        self.origin: bytes | None = None
        """The web page's that asks."""
        self.session: bytes | None = None
        """What the client calls the conversation that this is part of."""

    @property
    def content_type(self) -> bytes | None:
        """Looked for when it is asked for: most requests' is never looked at."""
        return next((v for name, v in self.headers if name.lower() == b"content-type"), None)

    def on_url(self, url: bytes) -> None:
        """Called by httptools."""
        self.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Called by httptools."""
        self.headers.append((name, value))


class AnswerHead:
    """An engine's status line and headers; `lines` are those that may go on to the client."""

    __slots__ = (
        "cache_control",
        "chunked",
        "connection",
        "content_type",
        "encoded",
        "headers",
        "keep_alive",
        "length",
        "lines",
        "reason",
        "retry_after",
        "status",
    )

    def __init__(self) -> None:
        self.headers: list[tuple[bytes, bytes]] = []
        self.status = 0
        self.reason = b""
        self.lines: list[bytes] = []
        self.length: int | None = None
        self.chunked = False
        self.connection: bytes | None = None
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
        self.headers.append((name, value))


def _drop(_head: object, _value: bytes) -> None:
    """It goes no further."""


def _take_length(head: "RequestHead | AnswerHead", value: bytes) -> None:
    value = value.strip(b" \t")
    if not value.isdigit() or len(value) > _MOST_DIGITS:
        raise BadHead("content-length is not a number")
    head.length = int(value)


def _take_transfer_encoding(head: "RequestHead | AnswerHead", value: bytes) -> None:
    if head.chunked or value.strip().lower() != b"chunked":
        raise BadHead("transfer-encoding is understood as chunked only")
    head.chunked = True


def _take_connection(head: "RequestHead | AnswerHead", value: bytes) -> None:
    head.connection = value if head.connection is None else head.connection + b"," + value


def _take_host(head: RequestHead, _value: bytes) -> None:
    head.hosts += 1


def _take_authorization(head: RequestHead, value: bytes) -> None:
    head.authorization = value


def _take_x_api_key(head: RequestHead, value: bytes) -> None:
    head.x_api_key = value


def _take_origin(head: RequestHead, value: bytes) -> None:
    head.origin = value


def _take_session(head: RequestHead, value: bytes) -> None:
    head.session = value
    head.lines.append(b"x-session-id: %b\r\n" % value)


def _take_request_id(head: RequestHead, value: bytes) -> None:
    head.request_id = value


def _take_expect(head: RequestHead, value: bytes) -> None:
    if value.strip().lower() != b"100-continue":
        raise BadHead("expect is understood as 100-continue only")
    head.expects_continue = head.http11


# What is read here and goes no further: framing, the client's credentials, what the gateway says
# itself, and encodings that would hold a stream back.
_OF_REQUESTS: Final[dict[bytes, Callable[[RequestHead, bytes], None]]] = {
    **dict.fromkeys(_HOP_BY_HOP, _drop),
    b"accept-encoding": _drop,
    b"api-key": _drop,
    b"authorization": _take_authorization,
    b"connection": _take_connection,
    b"content-length": _take_length,
    b"cookie": _drop,
    b"expect": _take_expect,
    b"host": _take_host,
    b"origin": _take_origin,
    b"transfer-encoding": _take_transfer_encoding,
    b"x-api-key": _take_x_api_key,
    b"x-request-id": _take_request_id,
    b"x-session-id": _take_session,
}
_OF_ANSWERS: Final[dict[bytes, Callable[[AnswerHead, bytes], None]]] = {
    **dict.fromkeys(_HOP_BY_HOP, _drop),
    **dict.fromkeys(_OF_CORS, _drop),
    b"connection": _take_connection,
    b"content-length": _take_length,
    b"transfer-encoding": _take_transfer_encoding,
    b"x-request-id": _drop,
}


def _note_type(head: AnswerHead, value: bytes) -> None:
    head.content_type = value.partition(b";")[0].strip().lower()


def _note_encoding(head: AnswerHead, value: bytes) -> None:
    head.encoded = value.strip().lower() != b"identity"


def _note_retry_after(head: AnswerHead, _value: bytes) -> None:
    head.retry_after = True


def _note_cache_control(head: AnswerHead, _value: bytes) -> None:
    head.cache_control = True


# What is read here and goes on.
_NOTED: Final[dict[bytes, Callable[[AnswerHead, bytes], None]]] = {
    b"cache-control": _note_cache_control,
    b"content-encoding": _note_encoding,
    b"content-type": _note_type,
    b"retry-after": _note_retry_after,
}


def _heed_connection(head: "RequestHead | AnswerHead", *, http11: bool) -> None:
    """Whether the connection stays open; the headers that `Connection` names go no further."""
    head.keep_alive = http11
    if head.connection is None:
        return
    named = {token.strip().lower() for token in head.connection.split(b",")}
    head.keep_alive = b"close" not in named and (http11 or b"keep-alive" in named)
    if not named <= _PERSISTENCE:
        head.lines = [line for line in head.lines if line.partition(b":")[0].lower() not in named]


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
    if len(head.headers) > most_headers:
        raise BadHead(f"{len(head.headers)} headers, at most {most_headers} are read")
    head.method = parser.get_method()
    head.http11 = version == "1.1"
    head.path = head.target.partition(b"?")[0]
    lines = head.lines
    for name, value in head.headers:
        take = _OF_REQUESTS.get(name.lower())
        if take is None:
            lines.append(b"%b: %b\r\n" % (name, value))
        else:
            take(head, value)
    if head.hosts != 1 and (head.http11 or head.hosts):
        raise BadHead(f"a request has one host header, this one has {head.hosts}")
    if head.chunked and not head.http11:
        raise BadHead("an HTTP/1.0 request cannot be chunked")
    _heed_connection(head, http11=head.http11)
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
    lines = head.lines
    for name, value in head.headers:
        lower = name.lower()
        take = _OF_ANSWERS.get(lower)
        if take is not None:
            take(head, value)
            continue
        lines.append(b"%b: %b\r\n" % (name, value))
        note = _NOTED.get(lower)
        if note is not None:
            note(head, value)
    _heed_connection(head, http11=version == "1.1")
    return head


def _in_words(error: Exception) -> str:
    words = str(error) or type(error).__name__
    return words[0].lower() + words[1:]
