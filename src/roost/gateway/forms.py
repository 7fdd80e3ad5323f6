"""The model's name in a multipart form: read, and exchanged in place without touching another byte.

RFC 7578 over RFC 2046. What could be read in two ways is refused, because an engine may read the
other one.
"""

import re
from collections.abc import Iterator
from typing import Final

from roost.gateway.naming import BadBody

MOST_PARTS: Final = 200

_PARAMETER: Final = re.compile(rb';[ \t]*([^=;"\s]+)=(?:"((?:[^"\\\r\n]|\\.)*)"|([^;"\s]*))[ \t]*')
_BOUNDARY: Final = re.compile(rb"[0-9A-Za-z'()+_,./:=? -]{0,69}[0-9A-Za-z'()+_,./:=?-]")
_TRUE: Final = frozenset({b"true", b"1", b"True"})


class Form:
    """What the gateway reads of a form: its `model` and `stream`; no other field is looked at."""

    __slots__ = ("_body", "_end", "_start", "model", "stream")

    def __init__(self, body: bytes, content_type: bytes | None) -> None:
        """Raises `BadBody`: no form, a broken one, or one that does not say which model."""
        fields: dict[bytes, tuple[int, int]] = {}
        for name, start, end in _parts(body, _boundary(content_type)):
            if name not in (b"model", b"stream"):
                continue
            if name in fields:
                raise BadBody(f"the form has two fields `{name.decode()}`")
            fields[name] = start, end
        if b"model" not in fields:
            raise BadBody("the form names no `model`")
        self._body = body
        self._start, self._end = fields[b"model"]
        try:
            self.model = body[self._start : self._end].decode()
        except UnicodeDecodeError:
            raise BadBody("the form's `model` is not UTF-8") from None
        at = fields.get(b"stream")
        self.stream = at is not None and body[slice(*at)] in _TRUE

    def with_model(self, name: str) -> bytes:
        """The form with another model."""
        return self._body[: self._start] + name.encode() + self._body[self._end :]


def _boundary(content_type: bytes | None) -> bytes:
    kind, _, _ = (content_type or b"").partition(b";")
    if kind.strip().lower() != b"multipart/form-data":
        raise BadBody("the body is no form: this path wants content-type multipart/form-data")
    boundary = _parameters(content_type or b"").get(b"boundary", b"")
    if not _BOUNDARY.fullmatch(boundary):
        raise BadBody("the content-type names no boundary of 1 to 70 plain characters")
    return boundary


def _parts(body: bytes, boundary: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Each part's name, and where its content stands."""
    line = b"--" + boundary
    delimiter = b"\r\n" + line
    if not body.startswith(line):
        # A preamble is allowed, and some readers take what is in it for parts.
        raise BadBody("the form does not begin with its boundary")
    at = len(line)
    for _ in range(MOST_PARTS):
        if body[at : at + 2] == b"--":
            return
        if body[at : at + 2] != b"\r\n":
            raise BadBody("a boundary of the form is followed by something else")
        head_end = body.find(b"\r\n\r\n", at)
        end = body.find(delimiter, at)
        if end < 0 or not at <= head_end < end:
            raise BadBody("the form is cut off, or a part of it has no head")
        yield _name(body[at + 2 : head_end + 2]), head_end + 4, end
        at = end + len(delimiter)
    raise BadBody(f"the form has more than {MOST_PARTS} parts")


def _name(head: bytes) -> bytes:
    """What a part's head calls it."""
    found = None
    for line in head.split(b"\r\n")[:-1]:
        key, colon, value = line.partition(b":")
        if not colon or key != key.strip() or b"\n" in line:
            raise BadBody("a part of the form has a head that is no header")
        if key.lower() == b"content-disposition":
            if found is not None:
                raise BadBody("a part of the form has two dispositions")
            found = _parameters(value).get(b"name")
    if found is None:
        raise BadBody("a part of the form has no name")
    return found


def _parameters(value: bytes) -> dict[bytes, bytes]:
    """`; key=value` and `; key="value"`, to the end; a key given twice, or junk, is refused."""
    found: dict[bytes, bytes] = {}
    at = value.find(b";")
    while 0 <= at < len(value):
        match = _PARAMETER.match(value, at)
        if match is None:
            raise BadBody("a parameter of the form cannot be read")
        key = match[1].lower()
        if key in found:
            raise BadBody(f"a parameter of the form is there twice: {key.decode('latin-1')}")
        found[key] = match[2] if match[2] is not None else match[3]
        at = match.end()
    return found
