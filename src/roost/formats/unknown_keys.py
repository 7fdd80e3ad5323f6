"""Which keys of a JSON document does the type that reads it not know?"""

from collections.abc import Iterator
from functools import cache
from typing import Any, Final

import msgspec
from msgspec import inspect

MOST: Final = 20
"""Keys that are named."""
LONGEST: Final = 80


def unknown_keys(body: bytes, type_: type) -> tuple[str, ...]:
    """Each once, with where it is: `quantum`, `facts.gpus[].sparkle`; none of what isn't JSON."""
    try:
        document = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ()
    found: dict[str, None] = {}
    for key in _walk(document, _shape(type_), ""):
        found[_printable(key)] = None
        if len(found) == MOST:
            break
    return tuple(sorted(found))


@cache
def _shape(type_: type) -> inspect.Type:
    return inspect.type_info(type_)


def _walk(value: Any, shape: inspect.Type, where: str) -> Iterator[str]:
    match shape:
        case inspect.UnionType():
            for one in shape.types:
                yield from _walk(value, one, where)
        case inspect.DataclassType() if isinstance(value, dict):
            fields = {field.encode_name: field.type for field in shape.fields}
            for key, inner in value.items():
                here = f"{where}.{key}" if where else key
                if key not in fields:
                    yield here
                else:
                    yield from _walk(inner, fields[key], here)
        case inspect.CollectionType() if isinstance(value, list):
            for inner in value:
                yield from _walk(inner, shape.item_type, f"{where}[]")
        case _:
            # Of mappings and plain values every key is the sender's own.
            pass


def _printable(key: str) -> str:
    """A name that somebody else chose, as a log can take it."""
    return "".join(c if c.isprintable() else "?" for c in key[:LONGEST])
