"""Every refusal as `application/problem+json` (RFC 9457)."""

from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Final

import structlog
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from roost.errors import RoostError, Unavailable, UnknownCredential, Unusable
from roost.formats.agent_wire import Problem, encode

MEDIA_TYPE: Final = "application/problem+json"
_CODES: Final = {404: "not_found", 405: "method_not_allowed", 413: "too_large"}

log = structlog.get_logger("roost.api")


def problem(
    status: int,
    detail: str,
    *,
    code: str | None = None,
    hint: str | None = None,
    problems: tuple[str, ...] = (),
    headers: dict[str, str] | None = None,
) -> Response:
    """One refusal."""
    body = Problem(
        title=HTTPStatus(status).phrase,
        status=status,
        code=code or _CODES.get(status, "bad_request" if status < 500 else "internal"),
        detail=detail,
        hint=hint,
        problems=problems,
    )
    return Response(encode(body), status_code=status, media_type=MEDIA_TYPE, headers=headers)


def from_error(error: RoostError) -> Response:
    """What Roost says on purpose."""
    headers: dict[str, str] = {}
    if isinstance(error, Unavailable):
        headers["retry-after"] = "5"
    if error.status == 401:
        headers["www-authenticate"] = 'Bearer realm="roost"'
    return problem(
        error.status,
        error.message,
        code=error.code,
        hint=error.hint,
        problems=error.problems if isinstance(error, Unusable) else (),
        headers=headers,
    )


def unauthorized() -> Response:
    """No credential, or a wrong one: the same words for every path."""
    return problem(
        401,
        "a credential is needed: Authorization: Bearer CREDENTIAL",
        code="refused",
        headers={"www-authenticate": 'Bearer realm="roost"'},
    )


def unknown_credential() -> UnknownCredential:
    """For a node without a credential."""
    return UnknownCredential(
        "a node's credential is needed: Authorization: Bearer CREDENTIAL",
        hint="join with a token: roost ctl token create",
    )


async def on_roost_error(_: Request, error: Exception) -> Response:
    """For Starlette's table of handlers."""
    if isinstance(error, RoostError):
        return from_error(error)
    raise error


async def on_http_error(request: Request, error: Exception) -> Response:
    """No such path, or not by this method."""
    status = getattr(error, "status_code", 500)
    if status == 404:
        return problem(404, f"there is nothing at {request.url.path}")
    if status == 405:
        headers = dict(getattr(error, "headers", None) or {})
        return problem(405, f"{request.method} is not for {request.url.path}", headers=headers)
    return problem(status, str(getattr(error, "detail", "refused")).lower())


async def on_fault(request: Request, error: Exception) -> Response:
    """A fault of ours: the log has it, the answer does not."""
    log.error("api.fault", path=request.url.path, exc_info=error)
    return problem(500, "an internal error; the server's log has it")


HANDLERS: Final[dict[Any, Callable[[Request, Exception], Any]]] = {
    RoostError: on_roost_error,
    HTTPException: on_http_error,
    Exception: on_fault,
}


def bearer(scope: Any) -> str | None:
    """The credential of a request; `None` where there is not exactly one."""
    found = [value for name, value in scope["headers"] if name == b"authorization"]
    if len(found) != 1:
        return None
    scheme, _, credential = found[0].decode("latin-1").partition(" ")
    return credential.strip() if scheme.lower() == "bearer" and credential.strip() else None


async def body_of(request: Request, limit: int) -> bytes:
    """The whole body, if it isn't larger than the limit."""
    said = request.headers.get("content-length")
    if said is not None and said.isdigit() and int(said) > limit:
        raise TooLarge(f"the body has {said} bytes, at most {limit} are read")
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > limit:
            raise TooLarge(f"the body has more than the {limit} bytes that are read")
        parts.append(part)
    return b"".join(parts)


class TooLarge(Unusable):
    """More than is read."""

    code = "too_large"
    status = 413
