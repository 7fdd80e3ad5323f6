"""The bytes of an answer that the gateway gives itself."""

from typing import Final

from roost.gateway.refusals import Refusal
from roost.gateway.request import Request

REASONS: Final = {
    200: b"OK",
    400: b"Bad Request",
    401: b"Unauthorized",
    404: b"Not Found",
    405: b"Method Not Allowed",
    408: b"Request Timeout",
    413: b"Content Too Large",
    429: b"Too Many Requests",
    431: b"Request Header Fields Too Large",
    500: b"Internal Server Error",
    502: b"Bad Gateway",
    503: b"Service Unavailable",
    504: b"Gateway Timeout",
}


def answer(
    request: Request, status: int, body: bytes, *, extra: bytes = b"", keep_alive: bool
) -> bytes:
    """JSON for a request; `extra` are whole header lines. Without its body for a HEAD."""
    head = request.head
    if not keep_alive:
        connection = b"connection: close\r\n"
    else:
        connection = b"" if head.http11 else b"connection: keep-alive\r\n"
    return (
        b"HTTP/%b %d %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n%b%b%b"
        b"x-request-id: %b\r\n\r\n%b"
        % (
            b"1.1" if head.http11 else b"1.0",
            status,
            REASONS[status],
            len(body),
            extra,
            request.cors,
            connection,
            request.id,
            b"" if head.method == b"HEAD" else body,
        )
    )


def preflight_answer(request: Request, extra: bytes, *, keep_alive: bool) -> bytes:
    """To a browser that asks what it may ask; `extra` are whole header lines."""
    return b"HTTP/1.1 204 No Content\r\n%b%b%bx-request-id: %b\r\n\r\n" % (
        request.cors,
        extra,
        b"" if keep_alive else b"connection: close\r\n",
        request.id,
    )


def headers_of(refusal: Refusal) -> bytes:
    """What a refusal says in header lines of its own."""
    lines = b""
    if refusal.retry_after is not None:
        lines += b"retry-after: %d\r\n" % refusal.retry_after
    if refusal.allow is not None:
        lines += b"allow: %b\r\n" % refusal.allow.encode()
    if refusal.status == 401:
        lines += b"www-authenticate: Bearer\r\n"
    return lines


def last_answer(refusal: Refusal) -> bytes:
    """To what came instead of a request; the connection is closed after it."""
    body = refusal.body()
    return (
        b"HTTP/1.1 %d %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n"
        b"connection: close\r\n\r\n%b" % (refusal.status, REASONS[refusal.status], len(body), body)
    )
