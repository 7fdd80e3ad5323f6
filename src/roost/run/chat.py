"""One streamed chat completion over plain HTTP, as a client of the gateway sees it."""

import http.client
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from roost.errors import Unavailable, Unreachable


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What came back, and how fast."""

    text: str
    completion_tokens: int
    first_token_s: float
    total_s: float

    @property
    def tokens_per_second(self) -> float | None:
        """After the first token; `None` when there is only one."""
        span = self.total_s - self.first_token_s
        return (
            (self.completion_tokens - 1) / span if self.completion_tokens > 1 and span > 0 else None
        )


def stream_chat(
    gateway: str,
    key: str,
    *,
    model: str,
    question: str,
    max_tokens: int,
    piece: Callable[[str], None] = lambda _: None,
) -> Answer:
    """Ask and read to the end; `Unavailable`, with its words, if it refuses or breaks off."""
    parts = urlsplit(gateway)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=120)
    body = {
        "model": model,
        "messages": [{"role": "user", "content": question}],
        "max_tokens": max_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    started = time.monotonic()
    first: float | None = None
    text: list[str] = []
    tokens: int | None = None
    finished = False
    try:
        connection.request(
            "POST",
            "/v1/chat/completions",
            json.dumps(body),
            {"Authorization": f"Bearer {key}", "Content-Type": "application/json"},
        )
        response = connection.getresponse()
        if response.status != http.HTTPStatus.OK:
            raise Unavailable(
                f"the gateway answers {response.status}: {_error_text(response.read())}"
            )
        for event in _events(response):
            if event is None:
                finished = True
                continue  # to the end of the answer, or the gateway sees a client that left
            if "error" in event:
                raise Unavailable(
                    f"the answer broke off: {event['error'].get('message', event['error'])}"
                )
            for choice in event.get("choices", []):
                said = choice.get("delta", {}).get("content")
                if said:
                    first = first or time.monotonic()
                    text.append(said)
                    piece(said)
            usage = event.get("usage")
            if usage:
                tokens = int(usage["completion_tokens"])
    except (OSError, http.client.HTTPException) as error:
        raise Unreachable(f"the gateway at {gateway} does not answer: {error}") from error
    finally:
        connection.close()
    if not finished or first is None:
        raise Unavailable(
            "the answer ended without its end marker" if text else "the answer is empty"
        )
    now = time.monotonic()
    return Answer(
        text="".join(text),
        completion_tokens=len(text) if tokens is None else tokens,
        first_token_s=first - started,
        total_s=now - started,
    )


def _events(response: http.client.HTTPResponse) -> Iterator[dict[str, Any] | None]:
    """Each server-sent event's JSON; `None` is the end marker."""
    for line in response:
        if line.startswith(b"data: "):
            data = line[6:].strip()
            yield None if data == b"[DONE]" else json.loads(data)


def _error_text(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return body[:200].decode("utf-8", "replace")
