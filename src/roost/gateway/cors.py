"""Which web pages may use the gateway: what a browser is told before and with its requests.

https://fetch.spec.whatwg.org/#http-cors-protocol. Keys still decide; without an origin named by the
operator, browsers keep every page out.
"""

import re
from collections.abc import Iterable
from typing import Final

from roost.gateway.heads import RequestHead

ANY: Final = "*"

_NAMES: Final = re.compile(rb"[A-Za-z0-9_, -]{1,2000}")
_EXPOSED: Final = b"access-control-expose-headers: retry-after, x-request-id\r\n"


class Cors:
    """The origins that are let in."""

    def __init__(self, origins: Iterable[str]) -> None:
        self._origins = frozenset(origin.rstrip("/").encode() for origin in origins)
        self._any = ANY.encode() in self._origins

    def lines(self, head: RequestHead) -> bytes:
        """Header lines for whatever a page is answered; empty: no page asks, or not one let in."""
        origin = head.origin
        if origin is None or not (self._any or origin in self._origins):
            return b""
        # With `*` no answer differs by origin; keys are no credentials in the browser's sense.
        said = b"*\r\n" if self._any else origin + b"\r\nvary: Origin\r\n"
        return b"access-control-allow-origin: " + said + _EXPOSED

    def preflight(self, head: RequestHead) -> bytes:
        """More lines, for a browser that asks beforehand."""
        asked = next(
            (v for n, v in head.headers if n.lower() == b"access-control-request-headers"), b""
        )
        names = asked if _NAMES.fullmatch(asked) else b"authorization, content-type"
        return (
            b"access-control-allow-methods: GET, HEAD, POST\r\n"
            b"access-control-allow-headers: " + names + b"\r\naccess-control-max-age: 600\r\n"
        )


def is_preflight(head: RequestHead) -> bool:
    """It asks what it may ask; it carries neither key nor body."""
    if head.method != b"OPTIONS" or head.chunked or head.length:
        return False
    return any(name.lower() == b"access-control-request-method" for name, _ in head.headers)
