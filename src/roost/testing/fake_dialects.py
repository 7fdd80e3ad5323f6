"""How each engine words its pages and errors: what `fake_engine` says in the name of which.

llama.cpp b10434 and vLLM 0.32.0 as captured (tests/data/engines); SGLang 0.5.23 as its source
reads, not run. Pages are in the engine's names, labels and content type; vLLM's and SGLang's leave
out the histograms and what nothing here moves.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

_KINDS: Final[Mapping[int, str]] = {
    400: "BadRequestError",
    401: "Unauthorized",
    404: "NotFoundError",
    429: "TooManyRequestsError",
    500: "InternalServerError",
    503: "ServiceUnavailableError",
}
STATUSES: Final = tuple(sorted(_KINDS))
"""The errors that an engine can be told to answer with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What an engine counts."""

    model: str
    running: int
    waiting: int
    slots: int
    prompt_tokens: int
    generated_tokens: int

    @property
    def usage(self) -> float:
        """Of the KV cache, 0 to 1: a request in a slot fills the slot's part."""
        return min(1.0, self.running / self.slots)


class Dialect(ABC):
    """One engine's manner of speaking."""

    metrics_kind: str
    refuses_while_loading: bool
    """No listener until it is ready, instead of 503."""

    @abstractmethod
    def metrics(self, now: Figures) -> str:
        """The page `/metrics`."""

    @abstractmethod
    def health(self) -> bytes:
        """The body of `/health` when all is well."""

    @abstractmethod
    def loading(self) -> bytes:
        """The body of 503 while it loads."""

    @abstractmethod
    def models(self, name: str, context: int | None) -> Mapping[str, object]:
        """`/v1/models`."""

    @abstractmethod
    def error(self, status: int, message: str, param: str | None = None) -> bytes:
        """The body of an error."""

    @abstractmethod
    def bad_json(self) -> tuple[int, bytes]:
        """To a body that is no JSON."""

    @abstractmethod
    def too_long(self, tokens: int, context: int) -> bytes:
        """400 to a prompt that doesn't fit."""

    def unknown_path(self) -> bytes:
        """404 to a path it hasn't."""
        return b'{"detail":"Not Found"}'

    def no_embeddings(self) -> tuple[int, bytes]:
        """To `/v1/embeddings` of a model that generates."""
        return 404, self.unknown_path()

    def unknown_model(self, asked: str, name: str) -> bytes | None:
        """404 to another model's name; `None`: it is served all the same."""
        del asked, name
        return None


class _LlamaCpp(Dialect):
    """llama.cpp's `llama-server`; an old one still measures its KV cache."""

    metrics_kind = "text/plain; version=0.0.4"
    refuses_while_loading = False

    def __init__(self, *, old: bool) -> None:
        self._old = old

    def metrics(self, now: Figures) -> str:
        rows: list[tuple[str, str, str, float]] = [
            ("prompt_tokens_total", "counter",
             "Number of prompt tokens processed, excluding cached tokens", now.prompt_tokens),
            ("tokens_predicted_total", "counter", "Number of generation tokens processed",
             now.generated_tokens),
            ("requests_processing", "gauge", "Number of requests processing", now.running),
            ("requests_deferred", "gauge", "Number of requests deferred", now.waiting),
        ]  # fmt: skip
        if self._old:
            rows.append(
                ("kv_cache_usage_ratio", "gauge", "KV-cache usage. 1 means 100 percent usage.",
                 now.usage)
            )  # fmt: skip
        return "".join(
            f"# HELP llamacpp:{name} {text}\n# TYPE llamacpp:{name} {kind}\n"
            f"llamacpp:{name} {value:g}\n"
            for name, kind, text, value in rows
        )

    def health(self) -> bytes:
        return b'{"status":"ok"}'

    def loading(self) -> bytes:
        return self._said(503, "Loading model", "unavailable_error")

    def models(self, name: str, context: int | None) -> Mapping[str, object]:
        model = {"id": name, "aliases": [name], "tags": [], "object": "model", "created": 0}
        meta = {} if context is None else {"meta": {"n_ctx": context}}
        return {
            "models": [{"name": name, "model": name, "type": "model"}],
            "object": "list",
            "data": [{**model, "owned_by": "llamacpp", **meta}],
        }

    def error(self, status: int, message: str, param: str | None = None) -> bytes:
        del param
        kinds = {400: "invalid_request_error", 401: "authentication_error",
                 404: "not_found_error", 503: "unavailable_error"}  # fmt: skip
        return self._said(status, message, kinds.get(status, "server_error"))

    def bad_json(self) -> tuple[int, bytes]:
        return 500, self.error(
            500, "[json.exception.parse_error.101] parse error at line 1, column 1: syntax error"
        )

    def too_long(self, tokens: int, context: int) -> bytes:
        said = {
            "code": 400,
            "message": f"request ({tokens} tokens) exceeds the available context size "
            f"({context} tokens), try increasing it",
            "type": "exceed_context_size_error",
            "n_prompt_tokens": tokens,
            "n_ctx": context,
        }
        return json.dumps({"error": said}).encode()

    def unknown_path(self) -> bytes:
        return self._said(404, "File Not Found", "not_found_error")

    def no_embeddings(self) -> tuple[int, bytes]:
        return 501, self._said(
            501,
            "This server does not support embeddings. Start it with `--embeddings`",
            "not_supported_error",
        )

    @staticmethod
    def _said(status: int, message: str, kind: str) -> bytes:
        return json.dumps({"error": {"message": message, "type": kind, "code": status}}).encode()


class _Python(Dialect):
    """What vLLM and SGLang share."""

    def error(self, status: int, message: str, param: str | None = None) -> bytes:
        kind = _KINDS.get(status, "InternalServerError")
        said = {"message": message, "type": kind, "param": param, "code": status}
        return json.dumps({"error": said}).encode()

    def health(self) -> bytes:
        return b""

    def loading(self) -> bytes:
        return b""

    def too_long(self, tokens: int, context: int) -> bytes:
        return self.error(
            400,
            f"This model's maximum context length is {context} tokens. However, your prompt "
            f"contains at least {tokens} input tokens, which exceeds this limit even without any "
            "output tokens. Please reduce the length of the input prompt. "
            f"(parameter=input_tokens, value={tokens})",
            "input_tokens",
        )

    def _model(self, name: str, context: int | None, owner: str) -> Mapping[str, object]:
        model = {"id": name, "object": "model", "created": 0, "owned_by": owner, "root": name,
                 "parent": None, "max_model_len": context}  # fmt: skip
        return {"object": "list", "data": [model]}


class _Vllm(_Python):
    """`vllm serve`."""

    metrics_kind = "text/plain; version=1.0.0; charset=utf-8"
    refuses_while_loading = True

    def metrics(self, now: Figures) -> str:
        own = f'engine="0",model_name="{now.model}"'
        rows: Sequence[tuple[str, str, str, Mapping[str, float]]] = (
            ("num_requests_running", "gauge", "Number of requests in model execution batches.",
             {own: now.running}),
            ("num_requests_waiting", "gauge", "Number of requests waiting to be processed.",
             {own: now.waiting}),
            ("num_requests_waiting_by_reason", "gauge",
             ("Number of waiting requests by reason. "
             "Reason labels: 'capacity' = waiting for scheduling capacity; 'deferred' = deferred "
             "by transient constraints (LoRA budget, KV transfer, blocked status). Sum of all "
             "reasons equals vllm:num_requests_waiting."),
             {f'{own},reason="capacity"': now.waiting, f'{own},reason="deferred"': 0}),
            ("kv_cache_usage_perc", "gauge", "KV-cache usage. 1 means 100 percent usage.",
             {own: now.usage}),
            ("prompt_tokens_total", "counter", "Number of prefill tokens processed.",
             {own: now.prompt_tokens}),
            ("generation_tokens_total", "counter", "Number of generation tokens processed.",
             {own: now.generated_tokens}),
        )  # fmt: skip
        return _page("vllm", rows)

    def models(self, name: str, context: int | None) -> Mapping[str, object]:
        return self._model(name, context, "vllm")

    def bad_json(self) -> tuple[int, bytes]:
        said = {
            "message": "1 validation error:\n  {'type': 'json_invalid', 'loc': 'body.0', "
            "'msg': 'JSON decode error', 'input': '<dict of 0 items>', "
            "'ctx': {'error': 'Expecting value'}}",
            "type": "Bad Request",
            "param": "body.0",
            "code": 400,
        }
        return 400, json.dumps({"error": said}).encode()

    def unknown_model(self, asked: str, name: str) -> bytes | None:
        message = f"The model `{asked}` does not exist. Valid aliases: {name}."
        return self.error(404, message, "model")


class _Sglang(_Python):
    """`python -m sglang.launch_server`."""

    metrics_kind = "text/plain; version=0.0.4; charset=utf-8"
    refuses_while_loading = False

    def metrics(self, now: Figures) -> str:
        own = f'engine_type="unified",model_name="{now.model}",pp_rank="0",tp_rank="0"'
        return _page(
            "sglang",
            (
                ("num_running_reqs", "gauge", "The number of running requests.",
                 {own: now.running}),
                ("num_queue_reqs", "gauge", "The number of requests in the waiting queue.",
                 {own: now.waiting}),
                ("token_usage", "gauge", "The token usage.", {own: now.usage}),
            ),
        )  # fmt: skip

    def models(self, name: str, context: int | None) -> Mapping[str, object]:
        return self._model(name, context, "sglang")

    def bad_json(self) -> tuple[int, bytes]:
        return 400, self.error(400, "the body is not JSON")


DIALECTS: Final[Mapping[str, Dialect]] = {
    "llama.cpp": _LlamaCpp(old=False),
    "llama.cpp-old": _LlamaCpp(old=True),
    "vllm": _Vllm(),
    "sglang": _Sglang(),
}


def _page(engine: str, rows: Sequence[tuple[str, str, str, Mapping[str, float]]]) -> str:
    return "".join(
        f"# HELP {engine}:{name} {text}\n# TYPE {engine}:{name} {kind}\n"
        + "".join(
            f"{engine}:{name}{{{labels}}} {float(value)}\n" for labels, value in series.items()
        )
        for name, kind, text, series in rows
    )
