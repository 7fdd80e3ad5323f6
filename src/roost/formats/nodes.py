"""What a YAML 1.2 or JSON text says, with the place of every part; hostile text is bounded."""

import json
import re
from collections.abc import Sequence as AbstractSequence
from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum
from typing import Final, NamedTuple

MAX_CHARACTERS: Final = 4_000_000
MAX_DEPTH: Final = 64
MAX_PARTS: Final = 1_000_000
"""Scalars, lists and mappings, each counted once for every place an alias puts it."""


class At(NamedTuple):
    """A place in the text, both from 1."""

    line: int
    column: int


class Kind(StrEnum):
    """YAML 1.2's core schema: `no`, `on` and `2026-01-01` are text."""

    TEXT = "text"
    WHOLE = "a whole number"
    NUMBER = "a number"
    FLAG = "true or false"
    NULL = "null"


@dataclass(frozen=True, slots=True)
class Scalar:
    """One value as written. `quoted` or not tells `""` from nothing at all."""

    kind: Kind
    text: str
    at: At | None = None
    quoted: bool = False

    @property
    def blank(self) -> bool:
        """`key:` and nothing behind it."""
        return not self.text and not self.quoted


@dataclass(frozen=True, slots=True)
class List:
    """A list and its parts."""

    items: tuple["Node", ...]
    at: At | None = None


class Entry(NamedTuple):
    """One `key: value`."""

    key: "Node"
    value: "Node"
    merged: bool = False
    """Came by `<<`: gives way to a key written out."""


@dataclass(frozen=True, slots=True)
class Mapping:
    """A mapping as written: a key may be there twice."""

    entries: tuple[Entry, ...]
    at: At | None = None


Node = Scalar | List | Mapping


class NotReadable(Exception):
    """The text is not YAML, or more than is read; `at` is where, if known."""

    def __init__(self, message: str, at: At | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.at = at


def from_yaml(text: str) -> Node | None:
    """The one document in `text` (JSON is YAML); `None`: there is nothing in it but comments."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    if len(text) > MAX_CHARACTERS:
        raise NotReadable(f"has {len(text)} characters, {MAX_CHARACTERS} are read at most")
    composer = _Composer()
    try:
        for event in YAML(typ="safe", pure=True).parse(text):
            composer.take(event)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        said = " ".join(str(error.problem or error.context or "").split())
        if "\\t" in said:
            said += "; indent with spaces"
        raise NotReadable(
            f"is not YAML: {said}", At(mark.line + 1, mark.column + 1) if mark else None
        ) from None
    except YAMLError as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise NotReadable(f"is not YAML: {first}") from None
    except (ArithmeticError, LookupError, RecursionError, TypeError, ValueError) as error:
        # The scanner's own failures on malformed escapes, tags and directives.
        raise NotReadable(f"is not YAML: {error}") from None
    return composer.document


def from_json(text: str) -> Node | None:
    """The same, without positions but many times faster; `None` when it isn't JSON."""
    if len(text) > MAX_CHARACTERS or not text.lstrip().startswith("{"):
        return None
    try:
        return from_plain(
            json.loads(text, object_pairs_hook=_Pairs, parse_float=Decimal, parse_int=Decimal)
        )
    except (ValueError, RecursionError, NotReadable):
        return None


class _Pairs(list[tuple[str, object]]):
    """A JSON object with its duplicate keys."""


def from_plain(value: object) -> Node:
    """What `json.loads` made, as nodes."""
    match value:
        case _Pairs():
            return Mapping(tuple(Entry(from_plain(k), from_plain(v)) for k, v in value))
        case dict():
            return Mapping(tuple(Entry(from_plain(k), from_plain(v)) for k, v in value.items()))
        case list() | tuple():
            return List(tuple(from_plain(item) for item in value))
        case _:
            return _plain_scalar(value)


def _plain_scalar(value: object) -> Scalar:
    if isinstance(value, Decimal):
        # What `from_json` makes of every number, so that none is rounded.
        whole = value.is_finite() and value.as_tuple().exponent == 0
        return Scalar(Kind.WHOLE if whole else Kind.NUMBER, str(value))
    match value:
        case None:
            return Scalar(Kind.NULL, "null")
        case bool():
            return Scalar(Kind.FLAG, "true" if value else "false")
        case int():
            return Scalar(Kind.WHOLE, str(value))
        case float():
            return Scalar(Kind.NUMBER, repr(value))
        case str():
            return Scalar(Kind.TEXT, value, quoted=True)
        case _:
            raise NotReadable(f"holds a {type(value).__name__}, which JSON does not have")


_WHOLE: Final = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_NUMBER: Final = re.compile(
    r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
)
_FLAGS: Final = frozenset({"true", "True", "TRUE", "false", "False", "FALSE"})
_NULLS: Final = frozenset({"", "~", "null", "Null", "NULL"})


def _kind(text: str) -> Kind:
    """What an unquoted scalar is by YAML 1.2's core schema."""
    if text in _NULLS:
        return Kind.NULL
    if text in _FLAGS:
        return Kind.FLAG
    if _WHOLE.fullmatch(text):
        return Kind.WHOLE
    if _NUMBER.fullmatch(text):
        return Kind.NUMBER
    return Kind.TEXT


_TAGS: Final = {
    "tag:yaml.org,2002:str": Kind.TEXT,
    "tag:yaml.org,2002:int": Kind.WHOLE,
    "tag:yaml.org,2002:float": Kind.NUMBER,
    "tag:yaml.org,2002:bool": Kind.FLAG,
    "tag:yaml.org,2002:null": Kind.NULL,
    "!": Kind.TEXT,
}
_STRUCTURE_TAGS: Final = {
    False: ("tag:yaml.org,2002:seq", "!"),
    True: ("tag:yaml.org,2002:map", "!"),
}


@dataclass(slots=True)
class _Open:
    """A list or mapping whose end hasn't come."""

    is_mapping: bool
    at: At
    anchor: str | None
    items: list[Node] = field(default_factory=list)
    weight: int = 1


class _Composer:
    """Builds nodes from parser events without recursion, with depth and aliases bounded."""

    def __init__(self) -> None:
        self.document: Node | None = None
        self._documents = 0
        self._stack: list[_Open] = []
        self._anchors: dict[str, tuple[Node, int]] = {}

    def take(self, event: object) -> None:
        name = type(event).__name__
        mark = event.start_mark  # type: ignore[attr-defined]  # every event of ruamel's has one
        at = At(mark.line + 1, mark.column + 1) if mark else At(1, 1)
        match name:
            case "DocumentStartEvent":
                self._documents += 1
                if self._documents > 1:
                    raise NotReadable("has a second document: keep one in a file", at)
            case "ScalarEvent":
                self._add(_scalar(event, at), 1, event.anchor, at)  # type: ignore[attr-defined]
            case "SequenceStartEvent":
                self._open(event, at, is_mapping=False)
            case "MappingStartEvent":
                self._open(event, at, is_mapping=True)
            case "SequenceEndEvent" | "MappingEndEvent":
                done = self._stack.pop()
                self._add(_close(done), done.weight, done.anchor, done.at)
            case "AliasEvent":
                self._alias(event.anchor, at)  # type: ignore[attr-defined]
            case _:
                pass

    def _open(self, event: object, at: At, *, is_mapping: bool) -> None:
        tag = _tag(event)
        if tag is not None and tag not in _STRUCTURE_TAGS[is_mapping]:
            raise NotReadable(f"has the tag {tag}, which means nothing here", at)
        if len(self._stack) >= MAX_DEPTH:
            raise NotReadable(f"is nested deeper than {MAX_DEPTH}", at)
        anchor = event.anchor  # type: ignore[attr-defined]
        if anchor is not None:
            # A name may be given again; until this part ends it stands for nothing.
            self._anchors.pop(anchor, None)
        self._stack.append(_Open(is_mapping, at, anchor))

    def _alias(self, anchor: str, at: At) -> None:
        if anchor not in self._anchors:
            if any(part.anchor == anchor for part in self._stack):
                raise NotReadable(f"has *{anchor} inside &{anchor} itself", at)
            raise NotReadable(f"has *{anchor}, and no &{anchor} before it", at)
        node, weight = self._anchors[anchor]
        self._add(node, weight, None, at)

    def _add(self, node: Node, weight: int, anchor: str | None, at: At) -> None:
        if anchor is not None:
            self._anchors[anchor] = (node, weight)
        if not self._stack:
            self.document = node
            if isinstance(node, Scalar) and node.blank:
                self.document = None
            return
        top = self._stack[-1]
        top.items.append(node)
        top.weight += weight
        if top.weight > MAX_PARTS:
            raise NotReadable(f"has more than {MAX_PARTS} parts, aliases counted in full", at)


def _tag(event: object) -> str | None:
    tag = event.tag  # type: ignore[attr-defined]  # asked of scalar and start events only, which have one
    return None if tag is None else str(tag)


def _scalar(event: object, at: At) -> Scalar:
    text: str = event.value  # type: ignore[attr-defined]  # a ScalarEvent
    plain, _ = event.implicit  # type: ignore[attr-defined]  # likewise
    tag = _tag(event)
    quoted = event.style in ("'", '"', "|", ">")  # type: ignore[attr-defined]  # likewise
    if any("\ud800" <= c <= "\udfff" for c in text):
        # JSON writes one character above U+FFFF as two escapes.
        try:
            text = text.encode("utf-16", "surrogatepass").decode("utf-16")
        except UnicodeDecodeError:
            raise NotReadable("has half a surrogate pair", at) from None
    if tag is None:
        kind = _kind(text) if plain and not quoted else Kind.TEXT
    elif tag in _TAGS:
        kind = _TAGS[tag]
    else:
        raise NotReadable(f"has the tag {tag}, which means nothing here", at)
    return Scalar(kind, text, at, quoted or tag is not None)


def _close(done: _Open) -> Node:
    if not done.is_mapping:
        return List(tuple(done.items), done.at)
    entries: list[Entry] = []
    for key, value in zip(done.items[::2], done.items[1::2], strict=True):
        if isinstance(key, Scalar) and key.text == "<<" and not key.quoted:
            entries.extend(_merged(value, key.at))
        else:
            entries.append(Entry(key, value))
    return Mapping(tuple(entries), done.at)


def _merged(value: Node, at: At | None) -> list[Entry]:
    """The entries that `<<: *base` or `<<: [*a, *b]` stands for; of a list, earlier ones win."""
    sources: AbstractSequence[Node] = value.items if isinstance(value, List) else (value,)
    entries: list[Entry] = []
    for source in sources:
        if not isinstance(source, Mapping):
            raise NotReadable("merges with << what isn't a mapping", at)
        entries.extend(Entry(key, inner, merged=True) for key, inner, _ in source.entries)
    return entries
