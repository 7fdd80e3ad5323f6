"""How commands print: aligned text for people, JSON for programs, no control characters."""

import os
import sys
import time
from collections.abc import Iterable, Sequence
from typing import Any, Final

import click

from roost.errors import RoostError, Unusable

_COLOURS: Final = {
    "ready": "green",
    "failed": "red",
    "lost": "red",
    "not_ready": "red",
    "unplaceable": "red",
    "cordoned": "yellow",
    "draining": "yellow",
    "loading": "yellow",
    "starting": "yellow",
    "pending": "yellow",
}


def clean(text: str, *, keep: str = "") -> str:
    """Text of others as a terminal may show it: escapes, controls and bidi marks made visible."""
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() or c in keep else c.encode("unicode_escape").decode() for c in text
    )


def say(text: str) -> None:
    """Lines on standard output."""
    click.echo(clean(text, keep="\n"))


def note(text: str) -> None:
    """Lines beside the answer, on standard error."""
    click.echo(clean(text, keep="\n"), err=True)


def say_json(value: object) -> None:
    """Pure ASCII, so that it is safe on a terminal too."""
    import json

    click.echo(json.dumps(value, indent=2))


def say_error(error: RoostError) -> None:
    """`error:`, every problem on a line of its own, and what to do next."""
    if isinstance(error, Unusable) and error.problems:
        for line in error.problems:
            note(line)
    note(f"error: {error.message}")
    if error.hint:
        note(f"hint: {error.hint}")


def error_to_json(error: RoostError) -> dict[str, Any]:
    """What `-o json` prints in place of an answer."""
    told: dict[str, Any] = {"code": error.code, "message": error.message}
    if error.hint:
        told["hint"] = error.hint
    if isinstance(error, Unusable) and error.problems:
        told["problems"] = list(error.problems)
    return {"error": told}


def say_table(columns: Sequence[str], rows: Iterable[Sequence[str | None]]) -> None:
    """One line a row; what isn't known is `-`. On a terminal the last column is cut to fit."""
    cells = [
        [*columns],
        *([_cell(cell) for cell in row] for row in rows),
    ]
    # Only the last column may hold spaces: everything before it can be counted by awk.
    for row in cells[1:]:
        row[:-1] = [cell.replace(" ", "_") for cell in row[:-1]]
    widths = [max(len(row[at]) for row in cells) for at in range(len(columns))]
    colour = _colourful()
    room = _terminal_width() - sum(widths[:-1]) - 2 * (len(columns) - 1)
    lines = []
    for number, row in enumerate(cells):
        last = row[-1]
        if 8 <= room < len(last):
            last = last[: room - 1] + "…"
        padded = [cell.ljust(width) for cell, width in zip(row[:-1], widths, strict=False)]
        if colour and number:
            padded = [_painted(cell) for cell in padded]
            last = _painted(last)
        lines.append("  ".join([*padded, last]).rstrip())
    click.echo("\n".join(lines))


def _cell(value: str | None) -> str:
    return clean(value) if value else "-"


def _painted(cell: str) -> str:
    colour = _COLOURS.get(cell.strip().split(",")[-1])
    return click.style(cell, fg=colour) if colour else cell


def _colourful() -> bool:
    """On a terminal that takes it; NO_COLOR as in no-color.org."""
    return (
        sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    )


def _terminal_width() -> int:
    """Of the terminal; elsewhere lines are as long as they are."""
    if not sys.stdout.isatty():
        return 1_000_000
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or 80
    except OSError:
        return 80


def span(seconds: float | None) -> str | None:
    """A duration in its largest unit: 45s, 12m, 5h, 3d."""
    if seconds is None:
        return None
    whole = max(0, int(seconds))
    for unit, size, up_to in (("s", 1, 100), ("m", 60, 100 * 60), ("h", 3600, 48 * 3600)):
        if whole < up_to:
            return f"{whole // size}{unit}"
    return f"{whole // 86400}d"


def seconds_since(moment: object) -> float | None:
    """How long ago a moment of the API was: seconds since the epoch, or ISO 8601."""
    if isinstance(moment, (int, float)) and not isinstance(moment, bool):
        return time.time() - moment
    if isinstance(moment, str):
        from datetime import UTC, datetime

        try:
            at = datetime.fromisoformat(moment)
        except ValueError:
            return None
        return time.time() - (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
    return None


def clock(moment: object) -> str | None:
    """A moment as people read it, in this machine's time: 2026-11-30T21:03:10."""
    ago = seconds_since(moment)
    if ago is None:
        return str(moment) if moment else None
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(time.time() - ago))


def count(number: object) -> str | None:
    """A measured number without needless decimals."""
    if isinstance(number, bool) or not isinstance(number, (int, float)):
        return None
    return str(int(number)) if number == int(number) else f"{number:.1f}"


def plural(number: int, one: str, many: str | None = None) -> str:
    """`1 node`, `2 nodes`."""
    return f"{number} {one if number == 1 else many or one + 's'}"
