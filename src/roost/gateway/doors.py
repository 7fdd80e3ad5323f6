"""Who may ask, and for what: judged by a request's head alone, before any of its body is kept."""

from urllib.parse import unquote

import msgspec

from roost.gateway.apis import FORWARDED, MODELS
from roost.gateway.context import Context
from roost.gateway.refusals import (
    Refusal,
    bad_key,
    no_such_model,
    no_such_path,
    too_large,
    unavailable,
    wrong_method,
)
from roost.gateway.request import Request
from roost.gateway.table import RoutingTable


def judge(request: Request, context: Context) -> Refusal | None:
    """The key first, whatever the path; then the path, the method and the size."""
    return _judge_key(request, context.table) or _judge_target(request, context)


def _judge_key(request: Request, table: RoutingTable) -> Refusal | None:
    head = request.head
    key = _bearer(head.authorization) if head.authorization is not None else head.x_api_key
    if not key:
        return bad_key(given=False)
    request.key = key
    request.key_name = table.key_name(key)
    if request.key_name is not None:
        return None
    if not table.confirmed.is_set() and head.method == b"POST" and head.path in FORWARDED:
        # Right after start the key may be news: the exchange waits for that and looks again.
        return None
    if table.version is None:
        return unavailable(
            "the gateway has not heard of the server since its start",
            code="no_routes",
            retry_after=1,
        )
    return bad_key(given=True)


def _judge_target(request: Request, context: Context) -> Refusal | None:
    head = request.head
    method, path = head.method.decode("latin-1"), head.path[:200].decode("latin-1")
    if head.path == MODELS or head.path.startswith(MODELS + b"/"):
        return None if method in ("GET", "HEAD") else wrong_method(method, path, "GET, HEAD")
    request.api = FORWARDED.get(head.path)
    if request.api is None:
        return no_such_path(method, path)
    if method != "POST":
        return wrong_method(method, path, "POST")
    length = head.length or 0
    if length > context.limits.body_bytes:
        return too_large(context.limits.body_bytes)
    if context.body_bytes + length > context.limits.buffered_bytes:
        return too_much(context)
    return None


def too_much(context: Context) -> Refusal:
    """All requests' bodies together are as many as the gateway holds."""
    return unavailable(
        f"the gateway holds {context.body_bytes} bytes of requests, and no more for now",
        code="gateway_full",
        retry_after=1,
    )


def list_models(path: bytes, table: RoutingTable) -> bytes | Refusal:
    """All names that clients may use, or the one that the path names."""
    if path == MODELS:
        entries = [_entry(name) for name in table.names]
        return msgspec.json.encode({"object": "list", "data": entries})
    name = unquote(path[len(MODELS) + 1 :].decode("latin-1"))
    if table.model(name) is None:
        return no_such_model(name)
    return msgspec.json.encode(_entry(name))


def _bearer(value: bytes) -> bytes | None:
    scheme, _, key = value.partition(b" ")
    return key.strip() if scheme.lower() == b"bearer" else None


def _entry(name: str) -> dict[str, object]:
    # Clients want a number in `created`; when a model was made is not known here.
    return {"id": name, "object": "model", "created": 0, "owned_by": "roost"}
