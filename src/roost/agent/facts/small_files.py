"""What does one of the kernel's small files say? None where it is not there or says nothing."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

MOST_BYTES: Final = 4096


def said(path: Path, *, most: int = MOST_BYTES) -> str | None:
    """The text, without blanks around it."""
    try:
        with path.open("rb") as file:
            return file.read(most).decode("utf-8", "replace").strip() or None
    except OSError:
        return None


def word(path: Path) -> str | None:
    """`0x10DE`: `10de`."""
    return (said(path) or "").lower().removeprefix("0x") or None


def entries(place: Path) -> Iterator[Path]:
    """What is in a directory; nothing, if it is none."""
    try:
        yield from place.iterdir()
    except OSError:
        return
