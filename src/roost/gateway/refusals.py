"""What a client reads when the gateway itself answers, in OpenAI's error shape."""

import math
from dataclasses import dataclass

import msgspec


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A request that is answered here; `retry_after` is in whole seconds."""

    status: int
    code: str
    message: str
    type: str = "invalid_request_error"
    param: str | None = None
    retry_after: int | None = None
    allow: str | None = None

    def __post_init__(self) -> None:
        if self.status in (429, 503) and self.retry_after is None:
            raise ValueError(f"{self.status} {self.code} without a time to come again")

    def body(self) -> bytes:
        """The JSON."""
        return msgspec.json.encode(
            {
                "error": {
                    "message": self.message,
                    "type": self.type,
                    "param": self.param,
                    "code": self.code,
                }
            }
        )


def bad_request(message: str, *, code: str = "bad_request", status: int = 400) -> Refusal:
    """The request cannot be understood."""
    return Refusal(status=status, code=code, message=message)


def bad_key(*, given: bool) -> Refusal:
    """No key, or none that is known; the key itself is never repeated."""
    return Refusal(
        status=401,
        code="invalid_api_key",
        message=(
            "the API key is not known: make one with `roost ctl keys create NAME`"
            if given
            else "no API key was given: send it as `Authorization: Bearer KEY`"
        ),
    )


def no_such_path(method: str, path: str) -> Refusal:
    """Nothing is served under that path."""
    return Refusal(status=404, code="not_found", message=f"there is no {method} {path} here")


def wrong_method(method: str, path: str, allow: str) -> Refusal:
    """The path is known and takes another method."""
    return Refusal(
        status=405,
        code="method_not_allowed",
        message=f"{path} takes {allow}, not {method}",
        allow=allow,
    )


def no_such_model(name: str) -> Refusal:
    """A model that is not in the catalog."""
    return Refusal(
        status=404,
        code="model_not_found",
        param="model",
        message=f"the model `{name[:200]}` does not exist; GET /v1/models lists those that do",
    )


def too_large(limit: int) -> Refusal:
    """The body is over the limit."""
    return Refusal(
        status=413,
        code="request_too_large",
        message=f"the request's body is larger than the limit of {limit} bytes",
    )


def unavailable(message: str, *, code: str, retry_after: float) -> Refusal:
    """Not now; the same request may succeed later."""
    return Refusal(
        status=503,
        code=code,
        type="server_error",
        message=message,
        retry_after=max(1, math.ceil(retry_after)),
    )


def busy(message: str, *, code: str) -> Refusal:
    """Too many requests for what the replicas can take."""
    return Refusal(status=429, code=code, type="rate_limit_error", message=message, retry_after=1)


def bad_gateway(cause: str, *, status: int = 502) -> Refusal:
    """The engine gave no usable answer."""
    return Refusal(
        status=status,
        code="engine_timeout" if status == 504 else "engine_failed",
        type="server_error",
        message=cause,
    )
