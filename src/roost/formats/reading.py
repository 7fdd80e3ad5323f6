"""How typed values are read out of nodes, so that every problem of a file is found in one pass."""

import difflib
import json
import math
from collections.abc import Callable, Iterable
from decimal import Decimal, InvalidOperation
from typing import Final

from roost.domain.units import GB
from roost.formats.nodes import At, Kind, List, Mapping, Node, Scalar

MAX_GB: Final = 1_000_000
"""A petabyte: 15 digits with its bytes, which JSON's numbers carry exactly."""
MAX_SECONDS: Final = 1_000_000_000


class Problems:
    """What is wrong with one file, as `file:line:column: sentence`."""

    def __init__(self, filename: str) -> None:
        self.filename = filename
        self._found: list[tuple[At | None, str]] = []

    def add(self, at: At | None, sentence: str) -> None:
        """Note one; where two say the same of the same place, it is said once."""
        if (at, sentence) not in self._found:
            self._found.append((at, sentence))

    def __len__(self) -> int:
        return len(self._found)

    def lines(self) -> tuple[str, ...]:
        """All of them by position; those without one come first."""
        ordered = sorted(self._found, key=lambda found: found[0] or At(0, 0))
        return tuple(
            f"{self.filename}:{at.line}:{at.column}: {sentence}"
            if at
            else f"{self.filename}: {sentence}"
            for at, sentence in ordered
        )


def shown(node: Node) -> str:
    """A value as a sentence quotes it: one line, and not long."""
    match node:
        case Scalar(blank=True):
            return "nothing"
        case Scalar(kind=Kind.TEXT):
            return quoted(node.text)
        case Scalar():
            return quoted(node.text)[1:-1]
        case List():
            return "a list"
        case Mapping():
            return "a mapping"


def quoted(text: str) -> str:
    """In double quotes, without control characters, cut when long."""
    return json.dumps(text if len(text) <= 60 else text[:57] + "...", ensure_ascii=False)


class Fields:
    """The keys of one mapping; what isn't known or isn't right goes to `problems`."""

    def __init__(
        self,
        node: Mapping,
        problems: Problems,
        *,
        known: Iterable[str],
        of: str,
        elsewhere: Callable[[str], str | None] = lambda _key: None,
    ) -> None:
        self.at = node.at
        self.problems = problems
        self.of = of
        self.bad: set[str] = set()
        """Keys whose value can't be relied on."""
        self._values: dict[str, tuple[At | None, Node]] = {}
        names = tuple(known)
        written: dict[str, At | None] = {}
        for key, value, merged in node.entries:
            if not isinstance(key, Scalar):
                problems.add(key.at, f"a key of {of} must be a word, not {shown(key)}")
                continue
            if merged and key.text in self._values:
                continue
            if not merged and key.text in written:
                first = written[key.text]
                where = f", first on line {first.line}" if first else ""
                problems.add(key.at, f"{quoted(key.text)} is there twice{where}: keep one")
                self.bad.add(key.text)
                continue
            if not merged:
                written[key.text] = key.at
            if key.text not in names:
                near = nearest(key.text, names)
                if near is not None and near not in written:
                    self.bad.add(near)
                hint = elsewhere(key.text) or (
                    f"did you mean {near}?" if near else f"known are {', '.join(names)}"
                )
                problems.add(key.at, f"unknown key {quoted(key.text)} in {of}: {hint}")
                continue
            self._values[key.text] = (key.at, value)

    def where(self, key: str) -> At | None:
        """The place of a key or part of its value (`args[2]`, `env.NAME`); else of the mapping."""
        name, _, inside = key.partition("[") if "[" in key else key.partition(".")
        if name not in self._values:
            return self.at
        at, value = self._values[name]
        if isinstance(value, List) and inside:
            index = inside.rstrip("]")
            if index.isdecimal() and int(index) < len(value.items):
                return value.items[int(index)].at or at
        if isinstance(value, Mapping) and inside:
            for entry in value.entries:
                if isinstance(entry.key, Scalar) and entry.key.text == inside:
                    return entry.key.at or at
        return at

    def has(self, key: str) -> bool:
        """Whether the key is written, with whatever value."""
        return key in self._values

    def wrong(self, key: str, sentence: str, at: At | None = None) -> None:
        """Note what is wrong with a key, at its value if `at` isn't given."""
        self.bad.add(key)
        if at is None and key in self._values:
            key_at, value = self._values[key]
            blank = isinstance(value, Scalar) and value.blank
            at = key_at if blank else value.at or key_at
        self.problems.add(at or self.at, sentence)

    def node(
        self, key: str, *, may_be_null: bool = False, instead: str = "give it one, or leave it out"
    ) -> Node | None:
        """The value, if there is one; `null` written out is none where a key may be left out."""
        if key not in self._values:
            return None
        value = self._values[key][1]
        if isinstance(value, Scalar) and value.blank:
            self.wrong(key, f"{key} has no value: {instead}")
            return None
        if may_be_null and isinstance(value, Scalar) and value.kind is Kind.NULL:
            return None
        return value

    def need(self, key: str, why: str) -> None:
        """Note a key that must be there and isn't."""
        if key not in self._values and key not in self.bad:
            self.bad.add(key)
            self.problems.add(self.at, f"{key} is missing in {self.of}: {why}")

    def text(self, key: str, *, may_be_null: bool = False) -> str | None:
        """A text, not empty, without control characters."""
        value = self.node(key, may_be_null=may_be_null)
        return None if value is None else self._text(key, value)

    def _text(
        self, key: str, value: Node, *, name: str | None = None, empty: bool = False
    ) -> str | None:
        name = name or key
        if not isinstance(value, Scalar):
            self.wrong(key, f"{name} must be text, not {shown(value)}", value.at)
            return None
        if value.kind is not Kind.TEXT:
            hint = f": quote it, as {quoted(value.text)}" if value.text else ""
            self.wrong(key, f"{name} must be text, not {shown(value)}{hint}", value.at)
            return None
        if not value.text and not empty:
            self.wrong(key, f"{name} must not be empty", value.at)
            return None
        if any(not c.isprintable() and c not in "\n\t" for c in value.text):
            self.wrong(key, f"{name} has a control character in it", value.at)
            return None
        return value.text

    def texts(self, key: str) -> tuple[str, ...] | None:
        """A list of texts, which may be empty; where one is wrong, what it may have meant."""
        value = self.node(key)
        if value is None:
            return None
        if not isinstance(value, List):
            self.wrong(key, f"{key} must be a list, as [{_inside(value)}], not {shown(value)}")
            return None
        read = []
        for index, item in enumerate(value.items):
            text = self._text(key, item, name=f"{key}[{index}]", empty=True)
            if text is None:
                text = item.text if isinstance(item, Scalar) else ""
            read.append(text)
        return tuple(read)

    def text_by_text(self, key: str) -> dict[str, str] | None:
        """A mapping of texts to texts."""
        value = self.node(key)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            self.wrong(key, f"{key} must be a mapping, as {{name: value}}, not {shown(value)}")
            return None
        read: dict[str, str] = {}
        written: set[str] = set()
        for name, inner, merged in value.entries:
            label = self._text(key, name, name=f"a name in {key}")
            if label is None or (merged and label in read):
                continue
            if label in written and not merged:
                self.wrong(key, f"{quoted(label)} is twice in {key}: keep one", name.at)
                continue
            if not merged:
                written.add(label)
            if isinstance(inner, Scalar) and inner.blank:
                self.wrong(key, f'{label} in {key} has no value: write "" for none', name.at)
                continue
            text = self._text(key, inner, name=f"{label} in {key}", empty=True)
            if text is not None:
                read[label] = text
        return read

    def whole(
        self, key: str, *, least: int, most: int, may_be_null: bool = False, instead: str = ""
    ) -> int | None:
        """A whole number in a range; `instead` says what to write for none."""
        value = self.node(key, may_be_null=may_be_null)
        if value is None:
            return None
        number = _integer(value)
        if number is None or not least <= number <= most:
            span = f"from {least} to {most}"
            said = shown(value)
            if isinstance(value, Scalar) and value.kind is Kind.TEXT and value.text.isdecimal():
                said += ", which is text: leave the quotes out"
            self.wrong(key, f"{key} must be a whole number {span}, not {said}{instead}")
            return None
        return number

    def gigabytes(self, key: str) -> int | None:
        """A size in GB above 0, as bytes: exact, and what isn't a whole byte is rounded up."""
        number = self._above_zero(key, "GB", MAX_GB, may_be_null=True)
        if number is None:
            return None
        return math.ceil(number * GB)

    def seconds(self, key: str) -> float | None:
        """A duration above 0."""
        number = self._above_zero(key, "seconds", MAX_SECONDS, may_be_null=False)
        return None if number is None else float(number)

    def _above_zero(self, key: str, unit: str, most: int, *, may_be_null: bool) -> Decimal | None:
        value = self.node(key, may_be_null=may_be_null)
        if value is None:
            return None
        number = _decimal(value)
        # Below a billionth, bytes and clocks no longer tell it from nothing.
        if number is None or not Decimal("1e-9") <= number <= most:
            said = shown(value)
            if isinstance(value, Scalar) and value.kind is Kind.TEXT:
                said += f": it is in {unit}, write the number alone"
            self.wrong(
                key, f"{key} must be a number of {unit} above 0 and up to {most}, not {said}"
            )
            return None
        return number


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word most like this one, if one is."""
    near = difflib.get_close_matches(word[:60].lower().replace("-", "_"), known, n=1, cutoff=0.6)
    return near[0] if near else None


def _inside(value: Node) -> str:
    return shown(value) if isinstance(value, Scalar) else "..."


def _integer(value: Node) -> int | None:
    if not isinstance(value, Scalar) or value.kind is not Kind.WHOLE or len(value.text) > 30:
        return None
    base = {"0o": 8, "0x": 16}.get(value.text[:2], 10)
    try:
        return int(value.text, base)
    except ValueError:
        return None


def _decimal(value: Node) -> Decimal | None:
    """The number exactly as written; `None` for what isn't finite or isn't a number."""
    if not isinstance(value, Scalar) or value.kind not in (Kind.WHOLE, Kind.NUMBER):
        return None
    whole = _integer(value)
    if whole is not None:
        return Decimal(whole)
    if len(value.text) > 40:
        return None
    try:
        number = Decimal(value.text)
    except InvalidOperation:
        return None
    return number if number.is_finite() else None
