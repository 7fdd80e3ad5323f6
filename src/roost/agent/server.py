"""What an agent asks of the server (`formats/agent_wire.py`), and what the answers mean."""

import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Final, TypeVar

import httpx2
import msgspec

from roost.domain.replica import Desired
from roost.errors import (
    Conflict,
    Copied,
    NotFound,
    Refused,
    RoostError,
    Unavailable,
    Unreachable,
    Unusable,
)
from roost.formats import agent_wire as wire

T = TypeVar("T")

TIMEOUT_S: Final = 15.0
MAX_ANSWER_BYTES: Final = 32_000_000
LOGS_AT_ONCE: Final = 64
"""As many as a server lets people read."""

_ERRORS: Final[dict[int, type[RoostError]]] = {
    401: Refused,
    403: Refused,
    404: NotFound,
    409: Conflict,
    422: Unusable,
}


class Server:
    """One server, by its URL; connections are kept and few."""

    def __init__(
        self,
        url: str,
        *,
        boot_id: str | None = None,
        speak_from: str | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """With `tls` many of them share one context, which takes longer to make than all else."""
        self.url = url.rstrip("/")
        # A copy of this machine's disk must not be taken for it.
        self._boot = "" if boot_id is None else f"&boot={boot_id}"
        limits = httpx2.Limits(max_connections=16, max_keepalive_connections=4, keepalive_expiry=60)
        self._http = httpx2.AsyncClient(
            trust_env=False,
            transport=httpx2.AsyncHTTPTransport(
                verify=tls or True, trust_env=False, limits=limits, local_address=speak_from
            ),
            timeout=TIMEOUT_S,
        )
        # Of their own: however many logs are followed, reports never wait for a connection.
        self._logs_http = httpx2.AsyncClient(
            verify=tls or True,
            trust_env=False,
            limits=httpx2.Limits(max_connections=LOGS_AT_ONCE, max_keepalive_connections=0),
        )

    async def close(self) -> None:
        """Close its connections."""
        await self._http.aclose()
        await self._logs_http.aclose()

    async def join(self, join: wire.Join) -> wire.Joined:
        """Buy a credential with a token."""
        body = await self._ask("POST", "/agent/v1/join", None, content=wire.encode(join))
        return _decoded(wire.decode_joined, body)

    async def report(self, credential: str, report: wire.Report) -> wire.Reported:
        """Say what this node is and does."""
        content = wire.encode(report)
        body = await self._ask("POST", "/agent/v1/report", credential, content=content)
        return _decoded(wire.decode_reported, body)

    async def desired(
        self, credential: str, known: Desired | None, *, wait: float
    ) -> Desired | None:
        """The desired state once it differs from `known`; `None`: not within `wait` seconds."""
        query = f"?wait={wait:g}{self._boot}"
        if known is not None:
            query += (
                f"&revision={known.revision}&incarnation={known.incarnation}&epoch={known.epoch}"
            )
        body = await self._ask("GET", f"/agent/v1/desired{query}", credential, wait=wait)
        return _decoded(wire.decode_desired, body) if body else None

    async def orders(self, credential: str, *, wait: float) -> wire.Orders:
        """What is asked of this agent once."""
        body = await self._ask(
            "GET", f"/agent/v1/orders?wait={wait:g}{self._boot}", credential, wait=wait
        )
        return _decoded(wire.decode_orders, body) if body else wire.Orders()

    async def send_log(self, credential: str, order: str, chunks: AsyncIterator[bytes]) -> None:
        """Answer a `LogOrder`, for as long as there are chunks and somebody reads them.

        An empty chunk sends nothing: it is an occasion to see that nobody reads any more.
        """
        line = _Line(plain=self.url.startswith("http:"))
        await self._ask(
            *("POST", f"/agent/v1/logs/{order}", credential),
            content=line.while_unanswered(chunks),
            wait=None,
            through=self._logs_http,
            extensions={"trace": line.trace},
        )

    async def _ask(
        self,
        method: str,
        path: str,
        credential: str | None,
        *,
        content: bytes | AsyncIterator[bytes] | None = None,
        wait: float | None = 0,
        through: httpx2.AsyncClient | None = None,
        extensions: dict[str, Any] | None = None,
    ) -> bytes:
        headers = {} if credential is None else {"Authorization": f"Bearer {credential}"}
        if isinstance(content, bytes):
            headers["Content-Type"] = "application/json"
        read = None if wait is None else wait + TIMEOUT_S
        timeout = httpx2.Timeout(TIMEOUT_S, read=read)
        try:
            async with (through or self._http).stream(
                *(method, self.url + path),
                headers=headers,
                content=content,
                timeout=timeout,
                extensions=extensions,
            ) as answer:
                body = bytearray()
                async for chunk in answer.aiter_bytes():
                    body += chunk
                    if len(body) > MAX_ANSWER_BYTES:
                        raise Unavailable(f"the answer of {self.url} is too large")
        except httpx2.HTTPError as cause:
            what = str(cause) or type(cause).__name__
            raise Unreachable(f"the server {self.url} does not answer: {what}") from cause
        if answer.is_success:
            return bytes(body)
        raise _error(answer.status_code, bytes(body), self.url)


class _Line:
    """The connection of one upload: who is answered before the end of it need not go on."""

    def __init__(self, *, plain: bool) -> None:
        self._plain = plain
        self._stream: Any = None

    async def trace(self, event: str, info: Mapping[str, Any]) -> None:
        """Called by the client at every step of a request."""
        if event == "connection.connect_tcp.complete":
            self._stream = info["return_value"]

    async def while_unanswered(self, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """The chunks, as long as the server has neither answered nor gone."""
        async for chunk in chunks:
            if self._is_answered():
                return
            yield chunk

    def _is_answered(self) -> bool:
        # With TLS there is something to read that is no answer.
        return (
            self._plain
            and self._stream is not None
            and bool(self._stream.get_extra_info("is_readable"))
        )


def _error(status: int, body: bytes, url: str) -> RoostError:
    detail, hint = f"{url} answered {status}", None
    kind = _ERRORS.get(status, Unavailable)
    try:
        problem = wire.decode_problem(body)
        detail, hint = problem.detail or problem.title, problem.hint
        if kind is Conflict and problem.code == Copied.code:
            kind = Copied
    except msgspec.DecodeError:
        pass
    return kind(detail, hint=hint)


def _decoded(decode: Callable[[bytes], T], body: bytes) -> T:
    try:
        return decode(body)
    except msgspec.DecodeError as cause:
        raise Unavailable(f"the server's answer cannot be read: {cause}") from cause
