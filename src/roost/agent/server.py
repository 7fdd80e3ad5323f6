"""What an agent asks of the server (`formats/agent_wire.py`), and what the answers mean."""

from collections.abc import AsyncIterator, Callable
from typing import Final, TypeVar

import httpx2
import msgspec

from roost.domain.replica import Desired
from roost.errors import Conflict, NotFound, Refused, RoostError, Unavailable, Unreachable, Unusable
from roost.formats import agent_wire as wire

T = TypeVar("T")

TIMEOUT_S: Final = 15.0
MAX_ANSWER_BYTES: Final = 32_000_000

_ERRORS: Final[dict[int, type[RoostError]]] = {
    401: Refused,
    403: Refused,
    404: NotFound,
    409: Conflict,
    422: Unusable,
}


class Server:
    """One server, by its URL; connections are kept and few."""

    def __init__(self, url: str, *, boot_id: str | None = None) -> None:
        self.url = url.rstrip("/")
        # A copy of this machine's disk must not be taken for it.
        self._boot = "" if boot_id is None else f"&boot={boot_id}"
        self._http = httpx2.AsyncClient(
            trust_env=False,
            limits=httpx2.Limits(
                max_connections=16, max_keepalive_connections=4, keepalive_expiry=60
            ),
            timeout=TIMEOUT_S,
        )

    async def close(self) -> None:
        """Close its connections."""
        await self._http.aclose()

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
        """Answer a `LogOrder`, for as long as there are chunks and somebody reads them."""
        path = f"/agent/v1/logs/{order}"
        await self._ask("POST", path, credential, content=chunks, wait=None)

    async def _ask(
        self,
        method: str,
        path: str,
        credential: str | None,
        *,
        content: bytes | AsyncIterator[bytes] | None = None,
        wait: float | None = 0,
    ) -> bytes:
        headers = {} if credential is None else {"Authorization": f"Bearer {credential}"}
        if isinstance(content, bytes):
            headers["Content-Type"] = "application/json"
        read = None if wait is None else wait + TIMEOUT_S
        timeout = httpx2.Timeout(TIMEOUT_S, read=read)
        try:
            async with self._http.stream(
                method, self.url + path, headers=headers, content=content, timeout=timeout
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


def _error(status: int, body: bytes, url: str) -> RoostError:
    detail, hint = f"{url} answered {status}", None
    try:
        problem = wire.decode_problem(body)
        detail, hint = problem.detail or problem.title, problem.hint
    except msgspec.DecodeError:
        pass
    return _ERRORS.get(status, Unavailable)(detail, hint=hint)


def _decoded(decode: Callable[[bytes], T], body: bytes) -> T:
    try:
        return decode(body)
    except msgspec.DecodeError as cause:
        raise Unavailable(f"the server's answer cannot be read: {cause}") from cause
