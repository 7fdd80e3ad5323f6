"""A small XML document as a tree, or why it isn't one; hostile ones are bounded."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final
from xml.parsers import expat

MOST_BYTES: Final = 16_000_000
MOST_ELEMENTS: Final = 200_000
MOST_DEPTH: Final = 64
MOST_TEXT: Final = 4096
"""Of one element; what a driver says is shorter."""


@dataclass(slots=True)
class Element:
    """One element: its own text is joined and stripped."""

    tag: str
    attributes: dict[str, str]
    children: list["Element"] = field(default_factory=list)
    text: str = ""

    def all(self, tag: str) -> Iterator["Element"]:
        """The children of that name."""
        return (child for child in self.children if child.tag == tag)

    def first(self, path: str) -> "Element | None":
        """`a/b/c`: the first of each."""
        here: Element | None = self
        for tag in path.split("/"):
            here = next(here.all(tag), None) if here is not None else None
        return here


class NotXml(ValueError):
    """The text is not a document that is read; says why."""


def parse(text: str) -> Element:
    """The root element; raises `NotXml`."""
    if len(text) > MOST_BYTES:
        raise NotXml(f"it has {len(text)} characters, {MOST_BYTES} are read at most")
    builder = _Builder()
    parser = expat.ParserCreate()
    parser.buffer_text = True
    parser.StartElementHandler = builder.start
    parser.EndElementHandler = builder.end
    parser.CharacterDataHandler = builder.data
    parser.EntityDeclHandler = builder.entity
    try:
        parser.Parse(text.encode("utf-8", "replace"), True)
    except expat.ExpatError as cause:
        raise NotXml(f"it is not well-formed: {cause}") from None
    if builder.root is None:
        raise NotXml("it is empty")
    return builder.root


class _Builder:
    def __init__(self) -> None:
        self.root: Element | None = None
        self._open: list[Element] = []
        self._count = 0

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        self._count += 1
        if self._count > MOST_ELEMENTS:
            raise NotXml(f"it has more than {MOST_ELEMENTS} elements")
        if len(self._open) >= MOST_DEPTH:
            raise NotXml(f"it is more than {MOST_DEPTH} elements deep")
        element = Element(tag, attributes)
        if self._open:
            self._open[-1].children.append(element)
        else:
            self.root = element
        self._open.append(element)

    def end(self, _tag: str) -> None:
        element = self._open.pop()
        element.text = element.text.strip()

    def data(self, data: str) -> None:
        if self._open and len(self._open[-1].text) < MOST_TEXT:
            self._open[-1].text += data[:MOST_TEXT]

    def entity(self, name: str, *_: object) -> None:
        raise NotXml(f"it declares the entity {name[:80]!r}, which no driver does")
