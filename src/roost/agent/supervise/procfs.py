"""Which processes live, when they began, and whose marks they carry: `/proc`, read thinly."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PROC: Final = Path("/proc")
MARKS: Final = ("ROOST_AGENT", "ROOST_FLEET", "ROOST_PLACEMENT", "ROOST_RANK")
"""In the environment of every engine, and so of its children: whose it is, whatever becomes of our
files.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stat:
    """One process as `/proc/PID/stat` has it."""

    pid: int
    state: str
    group: int
    session: int
    started: int
    """Clock ticks since boot: with the boot id and the pid, one process for ever."""

    @property
    def lives(self) -> bool:
        """A zombie holds nothing but its number."""
        return self.state not in "ZXx"


def parse_stat(text: str) -> Stat:
    """`1234 (a) b) S 1 …`: the name may hold anything, so count from the last bracket."""
    head, _, tail = text.rpartition(")")
    fields = tail.split()
    return Stat(
        pid=int(head.split(" ", 1)[0]),
        state=fields[0],
        group=int(fields[2]),
        session=int(fields[3]),
        started=int(fields[19]),
    )


def stat(pid: int) -> Stat | None:
    """`None`: there is no such process."""
    try:
        return parse_stat((PROC / str(pid) / "stat").read_text(errors="replace"))
    except (OSError, ValueError, IndexError):
        return None


def processes() -> Iterator[Stat]:
    """Every process that lives."""
    for entry in PROC.iterdir():
        if entry.name.isdigit() and (found := stat(int(entry.name))) is not None and found.lives:
            yield found


def marks(pid: int) -> Mapping[str, str]:
    """Roost's marks on a process; empty where there are none or it isn't ours to read."""
    try:
        raw = (PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return {}
    if b"ROOST_AGENT=" not in raw:
        return {}
    found: dict[str, str] = {}
    for item in raw.split(b"\0"):
        name, _, value = item.decode(errors="replace").partition("=")
        if name in MARKS:
            found[name] = value
    return found


def boot_id() -> str | None:
    """Changes with each boot; `None`: not known."""
    try:
        return (PROC / "sys/kernel/random/boot_id").read_text().strip() or None
    except OSError:
        return None
