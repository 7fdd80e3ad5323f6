"""A YAML text as plain data, with the line of every part: for what may have unknown keys."""

from decimal import Decimal, InvalidOperation

from roost.errors import Unusable
from roost.formats.nodes import At, Kind, List, Mapping, Node, NotReadable, Scalar, from_yaml

Path = tuple[str | int, ...]
"""Where a value is: `("nodes", 3, "gpus", 0, "index")`."""


class YamlSource:
    """One document; `value` is made of dict, list, str, int, float, bool and None."""

    def __init__(self, text: str, *, filename: str) -> None:
        self._filename = filename
        try:
            self._root = from_yaml(text)
        except NotReadable as error:
            raise self._unusable(error.at, error.message) from None
        self.value: object = None if self._root is None else self._plain(self._root)

    def line(self, path: Path) -> int | None:
        """The line, from 1, of the value at `path`, or of the nearest that exists above it."""
        node, at = self._root, None
        for step in path:
            if isinstance(node, Mapping):
                found = [entry for entry in node.entries if _text(entry.key) == step]
                if not found:
                    break
                node, at = found[0].value, found[0].key.at
            elif isinstance(node, List) and isinstance(step, int) and step < len(node.items):
                node = node.items[step]
                at = node.at
        at = at or (node.at if node is not None else None)
        return at.line if at else None

    def _plain(self, node: Node) -> object:
        if isinstance(node, Scalar):
            return self._scalar(node)
        if isinstance(node, List):
            return [self._plain(item) for item in node.items]
        found: dict[str, object] = {}
        written: set[str] = set()
        for key, value, merged in node.entries:
            name = _text(key)
            if name is None:
                raise self._unusable(key.at, "a key is a word, not a list or a mapping")
            if merged and name in found:
                continue
            if not merged and name in written:
                raise self._unusable(key.at, f"has the key {name!r} twice: keep one")
            if not merged:
                written.add(name)
            found[name] = self._plain(value)
        return found

    def _scalar(self, scalar: Scalar) -> object:
        text = scalar.text
        match scalar.kind:
            case Kind.TEXT:
                return text
            case Kind.NULL:
                return None
            case Kind.FLAG:
                return text.lower() == "true"
            case Kind.WHOLE | Kind.NUMBER:
                try:
                    return _number(text)
                except (ValueError, InvalidOperation, OverflowError):
                    raise self._unusable(scalar.at, f"{text[:40]!r} is no number") from None

    def _unusable(self, at: At | None, sentence: str) -> Unusable:
        where = f":{at.line}:{at.column}" if at else ""
        problem = f"{self._filename}{where}: {sentence}"
        return Unusable(f"{self._filename} can't be used: 1 problem", problems=(problem,))


def _text(node: Node) -> str | None:
    return node.text if isinstance(node, Scalar) else None


def _number(text: str) -> int | float:
    base = {"0o": 8, "0x": 16}.get(text[:2])
    if base is not None:
        return int(text, base)
    if len(text) > 40:
        raise ValueError(text)
    number = Decimal(text)
    whole = number.is_finite() and number.as_tuple().exponent == 0
    return int(number) if whole else float(number)
