"""What a YAML 1.2 text says as plain data, and on which line it says it."""

import json
from collections.abc import Mapping, Sequence
from typing import Final

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from roost.errors import Unusable

Path = tuple[str | int, ...]
"""Where a value is: `("nodes", 3, "gpus", 0, "index")`."""

_STR: Final = "tag:yaml.org,2002:str"
_MERGE: Final = "tag:yaml.org,2002:merge"


class YamlSource:
    """One YAML document; `value` is made of dict, list, str, int, float, bool and None."""

    def __init__(self, text: str, *, filename: str) -> None:
        self._filename = filename
        self._yaml = YAML(typ="safe", pure=True)
        self._seen: dict[int, object] = {}
        try:
            self._root = self._yaml.compose(text)
            self.value: object = None if self._root is None else self._plain(self._root)
        except MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            at = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
            raise _unusable(f"{filename}{at}: {error.problem or 'is not YAML'}") from error
        except (YAMLError, ValueError) as error:
            raise _unusable(f"{filename}: {' '.join(str(error).split())}") from error
        except RecursionError as error:
            raise _unusable(f"{filename}: is nested too deeply to be read") from error

    def line(self, path: Path) -> int | None:
        """The line, from 1, of the value at `path`, or of the nearest that exists above it."""
        node: Node | None = self._root
        if node is None:
            return None
        line = int(node.start_mark.line)
        for step in path:
            child = _child(node, step)
            if child is None:
                break
            line, node = child
        return line + 1

    def _plain(self, node: Node) -> object:
        """Its value; an alias is read once, so that a few lines can't unfold into gigabytes."""
        key = id(node)
        if key in self._seen:
            value = self._seen[key]
            if value is _UNFINISHED:
                raise _unusable(f"{self._at(node)}: contains itself")
            return value
        if isinstance(node, ScalarNode):
            return node.value if node.tag == _STR else self._yaml.constructor.construct_object(node)
        self._seen[key] = _UNFINISHED
        if isinstance(node, SequenceNode):
            value = [self._plain(item) for item in node.value]
        elif isinstance(node, MappingNode):
            value = self._mapping(node)
        else:
            raise _unusable(f"{self._at(node)}: is neither a value, a list nor a mapping")
        self._seen[key] = value
        return value

    def _mapping(self, node: MappingNode) -> dict[str, object]:
        found: dict[str, object] = {}
        merged: dict[str, object] = {}
        for key_node, value_node in node.value:
            value = self._plain(value_node)
            if key_node.tag == _MERGE:
                for more in value if isinstance(value, list) else [value]:
                    merged = {**more, **merged} if isinstance(more, Mapping) else merged
                continue
            if not isinstance(key_node, ScalarNode):
                raise _unusable(f"{self._at(key_node)}: a key is a word, not a list or a mapping")
            key = key_node.value
            if key in found:
                raise _unusable(f"{self._at(key_node)}: has {json.dumps(key)} twice: leave one out")
            found[key] = value
        return {**merged, **found} if merged else found

    def _at(self, node: Node) -> str:
        mark = node.start_mark
        return f"{self._filename}:{mark.line + 1}:{mark.column + 1}"


_UNFINISHED: Final = object()


def _child(node: Node, step: str | int) -> tuple[int, Node] | None:
    if isinstance(node, MappingNode):
        for key, value in node.value:
            if key.value == step:
                return int(key.start_mark.line), value
    elif isinstance(node, SequenceNode) and isinstance(step, int) and step < len(node.value):
        item = node.value[step]
        return int(item.start_mark.line), item
    return None


def _unusable(problem: str) -> Unusable:
    return Unusable(problem, problems=(problem,))


def raise_all(problems: Sequence[str], *, filename: str) -> None:
    """Raise `Unusable` with all of them, if there are any."""
    if len(problems) == 1:
        raise Unusable(problems[0], problems=tuple(problems))
    if problems:
        more = f"{filename} has {len(problems)} problems, the first: {problems[0]}"
        raise Unusable(more, problems=tuple(problems))
