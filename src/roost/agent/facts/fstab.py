"""What should be mounted where, by `/etc/fstab` and systemd's mount units?"""

from typing import Final

from roost.agent.facts.mountinfo import unescaped
from roost.agent.facts.text import Lines, path_text

MAX_ENTRIES: Final = 10_000


def parse_fstab(data: bytes) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The mount points of `/etc/fstab`, and a problem if some line is no entry."""
    lines = Lines("fstab")
    found: list[str] = []
    for number, raw in enumerate(data.split(b"\n"), start=1):
        line = raw.strip()
        if not line or line.startswith(b"#"):
            continue
        fields = line.split()
        if len(fields) < 3:
            lines.skip(number, line, "does not have source, mount point and type")
            continue
        point = _point(unescaped(fields[1]))
        if point is None:
            # Swap has `none`; anything else that is no path is nothing that can be mounted.
            continue
        if len(found) == MAX_ENTRIES:
            lines.skip(number, line, f"is beyond {MAX_ENTRIES} entries")
            continue
        found.append(point)
    return tuple(found), lines.problems()


def parse_unit(data: bytes) -> str | None:
    """The `Where=` of a systemd `.mount` or `.automount` unit; `None`: it has none."""
    for raw in data.split(b"\n"):
        key, equals, value = raw.strip().partition(b"=")
        if equals and key.strip() == b"Where":
            # A specifier (`%i`) would have to be expanded by systemd itself.
            return None if b"%" in value else _point(value.strip().strip(b'"'))
    return None


def _point(data: bytes) -> str | None:
    if not data.startswith(b"/") or b"\0" in data:
        return None
    return path_text(b"/" + b"/".join(part for part in data.split(b"/") if part))
