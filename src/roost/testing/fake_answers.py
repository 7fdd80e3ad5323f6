"""What a fake engine answers to a request that it serves: its words, whole or as events.

The words are `w0 w1 w2 …`, as many as were asked for.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from roost.testing.fake_refusals import words

SERVED: Final = frozenset({"/v1/chat/completions", "/v1/completions", "/v1/embeddings"})
"""The paths that a fake engine answers a POST to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """One answer in words; `tokens` of them."""

    model: str
    chat: bool
    tokens: int
    prompt_tokens: int
    include_usage: bool = False

    @classmethod
    def asked(cls, path: str, said: dict[str, Any], *, model: str, tokens: int) -> "Completion":
        """By the body of a request; `tokens` is what it gets that names no number."""
        return cls(
            model=model,
            chat=path.endswith("/chat/completions"),
            tokens=int(said.get("max_tokens") or tokens),
            prompt_tokens=words(said),
            include_usage=bool((said.get("stream_options") or {}).get("include_usage")),
        )

    def whole(self) -> dict[str, object]:
        """Not streamed."""
        text = "".join(self.words())
        said = {"message": {"role": "assistant", "content": text}} if self.chat else {"text": text}
        choice = {"index": 0, "finish_reason": "stop", **said}
        return {**self._base(streamed=False), "choices": [choice], "usage": self._usage()}

    def words(self) -> Iterator[str]:
        """Each is a token."""
        return (f"w{number} " for number in range(self.tokens))

    def first(self) -> dict[str, object] | None:
        """The event before the first word; a bare completion has none."""
        if not self.chat:
            return None
        return self._event(delta={"role": "assistant", "content": ""})

    def word(self, text: str) -> dict[str, object]:
        """The event of one word."""
        return self._event(**({"delta": {"content": text}} if self.chat else {"text": text}))

    def last(self) -> Iterator[dict[str, object]]:
        """The events after the last word."""
        ending: dict[str, object] = {"delta": {}} if self.chat else {"text": ""}
        yield self._event(finish_reason="stop", **ending)
        if self.include_usage:
            yield {**self._base(streamed=True), "choices": [], "usage": self._usage()}

    def _event(self, **said: object) -> dict[str, object]:
        return {**self._base(streamed=True), "choices": [{"index": 0, **said}]}

    def _base(self, *, streamed: bool) -> dict[str, object]:
        kind = "chat.completion" if self.chat else "text_completion"
        if self.chat and streamed:
            kind += ".chunk"
        return {"id": "fake-1", "object": kind, "created": 0, "model": self.model}

    def _usage(self) -> dict[str, int]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.tokens,
            "total_tokens": self.prompt_tokens + self.tokens,
        }


def embedded(said: dict[str, Any], *, model: str) -> dict[str, object]:
    """To `/v1/embeddings`: a short vector for each input."""
    given = said.get("input", "")
    texts = given if isinstance(given, list) else [given]
    data = [
        {"object": "embedding", "index": index, "embedding": [float(len(str(text))), 1.0]}
        for index, text in enumerate(texts)
    ]
    tokens = words(said)
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"object": "list", "model": model, "data": data, "usage": usage}


def encoded(said: object) -> bytes:
    """As JSON."""
    return json.dumps(said).encode()
