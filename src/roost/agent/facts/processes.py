"""Which processes on a card are our engines', and how many are somebody else's."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from roost.agent.facts.card import Process

_MARK: Final = b"ROOST_AGENT="
_DEEPEST: Final = 64
"""Of a process tree; a longer line of parents is not followed."""
_MOST_ENVIRON: Final = 2_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Ours:
    """How this agent's engines are known."""

    agent: str | None = None
    """The mark in their environment (`ROOST_AGENT`), which outlives agents."""
    pids: frozenset[int] = frozenset()
    """The first process of each that runs."""
    gpus: frozenset[str] = frozenset()
    """Uuids of the cards given to those."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One process as `/proc` has it."""

    parent: int
    session: int
    marked: bool
    cgroup: str | None


Look = Callable[[int], Seen | None]
"""None: there is no such process here: it has ended, or the pid is of another namespace."""


def foreign(
    listed: Iterable[Process] | None,
    *,
    ours: Ours,
    look: Look,
    given_to_us: bool,
    own_cgroup: str | None = None,
    graphics_too: bool = False,
) -> int | None:
    """How many processes with a compute context are not of our engines; None: not known.

    Those that only draw don't take a card (X, Wayland) unless `graphics_too`. A pid that isn't of
    this machine as we see it is our engine's on a card that was given to one, else a stranger's.
    """
    if listed is None:
        return None
    strangers: set[int] = set()
    nameless = 0
    for process in listed:
        if not (process.compute or graphics_too):
            continue
        seen = look(process.pid) if process.pid else None
        if seen is None:
            if given_to_us:
                continue
            if process.pid:
                strangers.add(process.pid)
            else:
                nameless += 1
        elif process.pid and not _is_ours(process.pid, seen, ours, look, own_cgroup):
            strangers.add(process.pid)
    return len(strangers) + nameless


def _is_ours(pid: int, seen: Seen, ours: Ours, look: Look, own_cgroup: str | None) -> bool:
    """By itself, its session, its control group, or any of its parents."""
    groups = {
        found.cgroup
        for engine in ours.pids
        if (found := look(engine)) is not None and found.cgroup not in {None, "/", own_cgroup}
    }
    here: Seen | None = seen
    for _ in range(_DEEPEST):
        if here is None:
            return False
        if pid in ours.pids or here.session in ours.pids or here.marked or here.cgroup in groups:
            return True
        if here.parent <= 1 or here.parent == pid:
            return False
        pid = here.parent
        here = look(pid)
    return False


@dataclass(slots=True)
class Proc:
    """`/proc` under a root path, each process read once."""

    root: Path
    agent: str | None = None
    _seen: dict[int, Seen | None] = field(default_factory=dict)

    def __call__(self, pid: int) -> Seen | None:
        """One process; None: there is none of that number here."""
        if pid not in self._seen:
            self._seen[pid] = self._read(self.root / "proc" / str(pid))
        return self._seen[pid]

    def own_cgroup(self) -> str | None:
        """The control group of this agent: what is in it need not be an engine."""
        return _cgroup(self.root / "proc/self")

    def _read(self, place: Path) -> Seen | None:
        try:
            parent, session = parse_stat((place / "stat").read_bytes())
        except (OSError, ValueError, IndexError):
            return None
        return Seen(
            parent=parent, session=session, marked=self._marked(place), cgroup=_cgroup(place)
        )

    def _marked(self, place: Path) -> bool:
        if self.agent is None:
            return False
        try:
            with (place / "environ").open("rb") as file:
                environ = file.read(_MOST_ENVIRON)
        except OSError:
            return False
        return (_MARK + self.agent.encode()) in environ.split(b"\0")


def parse_stat(data: bytes) -> tuple[int, int]:
    """Parent and session of `1234 (a) b) S 1 …`; raises ValueError or IndexError."""
    fields = data.rpartition(b")")[2].split()
    return int(fields[1]), int(fields[3])


def _cgroup(place: Path) -> str | None:
    try:
        text = (place / "cgroup").read_text(errors="replace")
    except OSError:
        return None
    return next((line[3:] for line in text.splitlines() if line.startswith("0::")), None)
