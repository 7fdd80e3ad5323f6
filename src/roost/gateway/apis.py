"""The paths that are passed on to engines, and how a stream of each ends."""

import re
from dataclasses import dataclass
from typing import Final

import msgspec


@dataclass(frozen=True, slots=True, kw_only=True)
class Api:
    """One path of an engine's."""

    path: bytes
    form: bool = False
    """Its requests are multipart forms, not JSON."""
    end: re.Pattern[bytes] | None = None
    """What the last event of a whole stream looks like; `None`: its streams have no such thing."""
    error_event: bytes = b"data: "
    error_type: str | None = None
    """The `type` beside `error` in an error event, where the protocol wants one."""
    named_in: bytes | None = None
    """The key of an event's object that names the model; `None`: the event itself does."""


_DONE: Final = re.compile(rb"(?:^|[\r\n])data: ?\[DONE\]")


def _ended_by(event: bytes) -> re.Pattern[bytes]:
    """A stream's last event, by its name or its `type`; some engines end every stream as chats."""
    return re.compile(
        rb'(?:^|[\r\n])event: ?%b[\r\n]|"type": ?"%b"|%b' % (event, event, _DONE.pattern)
    )


_TRANSCRIBED: Final = _ended_by(rb"transcript\.text\.done")

FORWARDED: Final = {
    api.path: api
    for api in (
        Api(path=b"/v1/chat/completions", end=_DONE),
        Api(path=b"/v1/completions", end=_DONE),
        Api(path=b"/v1/embeddings"),
        Api(
            path=b"/v1/responses",
            end=_ended_by(rb"response\.(?:completed|failed|incomplete)"),
            error_event=b"event: error\ndata: ",
            error_type="error",
            named_in=b"response",
        ),
        Api(
            path=b"/v1/messages",
            end=_ended_by(rb"message_stop"),
            error_event=b"event: error\ndata: ",
            error_type="error",
            named_in=b"message",
        ),
        Api(path=b"/v1/rerank"),
        Api(path=b"/v1/audio/speech", end=_ended_by(rb"speech\.audio\.done")),
        Api(path=b"/v1/audio/transcriptions", form=True, end=_TRANSCRIBED),
        Api(path=b"/v1/audio/translations", form=True, end=_TRANSCRIBED),
        Api(path=b"/tokenize"),
    )
}
MODELS: Final = b"/v1/models"

# An error event of the engine's own: it has already told the client.
ERROR_EVENT: Final = re.compile(rb'(?:^|[\r\n])(?:event: ?error[\r\n]|(?:data|error): ?\{"error")')

_USAGE: Final = re.compile(rb'"usage"\s*:\s*(\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\})')


class Usage(msgspec.Struct, gc=False):
    """Tokens of one answer, in the spelling of either protocol; `None`: not said."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None

    @property
    def tokens_in(self) -> int | None:
        """Tokens of the prompt."""
        return self.prompt_tokens if self.prompt_tokens is not None else self.input_tokens

    @property
    def tokens_out(self) -> int | None:
        """Tokens that were generated."""
        return self.completion_tokens if self.completion_tokens is not None else self.output_tokens


_decode_usage: Final = msgspec.json.Decoder(Usage).decode


def usage_in(tail: bytes) -> Usage | None:
    """The last usage in the end of an answer."""
    at = tail.rfind(b'"usage"')
    found = _USAGE.match(tail, at) if at >= 0 else None
    if found is None:
        return None
    try:
        return _decode_usage(found[1])
    except msgspec.DecodeError:
        return None
