"""How is a kernel's text taken apart: bytes in, lines and numbers out, hostile or not?"""

import re
from typing import Final

MAX_NUMBER: Final = (1 << 63) - 1
"""No count of bytes is larger; what is has lost its meaning on the way."""
MAX_QUOTED: Final = 60

_DECIMAL: Final = re.compile(rb"[0-9]{1,20}")
_UNPRINTABLE: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def whole(data: bytes) -> int | None:
    """A decimal number of at most 63 bits; `None`: it isn't one."""
    if not _DECIMAL.fullmatch(data):
        return None
    number = int(data)
    return number if number <= MAX_NUMBER else None


def path_text(data: bytes) -> str:
    """A file name as Python has it: any bytes there and back."""
    return data.decode("utf-8", "surrogateescape")


def shown(text: str) -> str:
    """The same for people and JSON: valid Unicode on one line, without terminal codes."""
    printable = text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return _UNPRINTABLE.sub(lambda found: f"\\x{ord(found[0]):02x}", printable)


def quoted(data: bytes) -> str:
    """The beginning of a line that was not understood, for a problem."""
    cut = data[:MAX_QUOTED]
    return shown(path_text(cut)) + ("…" if len(data) > MAX_QUOTED else "")


class Lines:
    """Counts lines that are not understood, and says so once a source."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._bad = 0
        self._first: tuple[int, str, bytes] | None = None

    def skip(self, number: int, line: bytes, why: str) -> None:
        """Leave out line `number` (from 1)."""
        self._bad += 1
        if self._first is None:
            self._first = (number, why, line)

    def problems(self) -> tuple[str, ...]:
        """At most one."""
        if self._first is None:
            return ()
        number, why, line = self._first
        others = f" (and {self._bad - 1} more)" if self._bad > 1 else ""
        return (f"{self._source}: line {number} {why}{others}: {quoted(line)}",)
