"""The model's name in a JSON body: read, and exchanged in place without touching another byte."""

import re
from typing import Final

import msgspec

_TOKEN: Final = re.compile(
    rb'"([^"\\]*(?:\\.[^"\\]*)*)"([ \t\r\n]*:[ \t\r\n]*)?|[{}\[\]]', re.DOTALL
)
_STRING: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_KEY: Final = b'"model"'


class BadBody(Exception):
    """The request's body does not say which model is meant."""


class Ask(msgspec.Struct, gc=False):
    """What the gateway reads of a request's body: nothing else of it is looked at."""

    model: str
    stream: msgspec.Raw = msgspec.Raw(b"false")


class _Named(msgspec.Struct, gc=False):
    model: str | None = None


_decode_ask: Final = msgspec.json.Decoder(Ask).decode
_decode_named: Final = msgspec.json.Decoder(_Named).decode
_decode_string: Final = msgspec.json.Decoder(str).decode


def read_ask(body: bytes) -> tuple[str, bool]:
    """The model that a request names, and whether it asks for a stream."""
    try:
        ask = _decode_ask(body)
    except msgspec.ValidationError as error:
        raise BadBody(_sentence(str(error))) from None
    except msgspec.DecodeError as error:
        raise BadBody(f"the body is not JSON: {_sentence(str(error))}") from None
    except RecursionError:
        raise BadBody("the body is nested too deeply") from None
    except UnicodeDecodeError:
        raise BadBody("the body is not UTF-8") from None
    return ask.model, bytes(ask.stream) == b"true"


def _sentence(text: str) -> str:
    text = text.replace("Object missing required field `model`", "the body names no `model`")
    return text[:1].lower() + text[1:]


def with_model(body: bytes, name: str) -> bytes:
    """`body` with `name` as the top-level object's `model`; as it was where that has none."""
    value = msgspec.json.encode(name)
    if body.count(_KEY) == 1:
        # Nearly every body. The one mention may still be deeper down while the key itself is
        # spelt with escapes, so the outcome is read again.
        at = body.index(_KEY) + len(_KEY)
        found = re.compile(rb"[ \t\r\n]*:[ \t\r\n]*").match(body, at)
        text = _STRING.match(body, found.end()) if found else None
        if text is not None:
            changed = body[: text.start()] + value + body[text.end() :]
            if model_of(changed) == name:
                return changed
    span = find_model(body)
    if span is None:
        return body
    return body[: span[0]] + value + body[span[1] :]


def model_of(body: bytes) -> str | None:
    """The top-level object's `model`; `None` where there is none or it is no text."""
    try:
        return _decode_named(body).model
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None


def find_model(body: bytes, named_in: bytes | None = None) -> tuple[int, int] | None:
    """
    Where the value of the top-level object's `model` stands, with its quotes.

    With `named_in` that of the object under this key counts too. The last one if the key is
    repeated: that is the one decoders keep.
    """
    depth = 0
    found = key = None
    inside = False
    for token in _TOKEN.finditer(body):
        mark = body[token.start()]
        if mark == 0x22:
            if token[2] is None:
                continue
            if depth == 1:
                key = token[1]
            if (depth == 1 or (depth == 2 and inside)) and _is_model(token[1]):
                text = _STRING.match(body, token.end())
                found = text.span() if text else None
        elif mark in b"{[":
            if depth == 1:
                inside = named_in is not None and key == named_in
            depth += 1
        else:
            depth -= 1
    return found


def _is_model(key: bytes) -> bool:
    if b"\\" not in key:
        return key == b"model"
    try:
        return _decode_string(b'"%b"' % key) == "model"
    except msgspec.DecodeError:
        return False
