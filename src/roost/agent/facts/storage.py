"""What room is there behind the model directories, by what the mounts of them say?"""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from roost.agent.facts.filesystems import (
    Place,
    Pool,
    Sizes,
    filesystem,
    looks_unmounted,
    merged,
    pools,
    should_be_mounted,
    sizes,
)
from roost.agent.facts.kinds import Kind, kind_of, may_hang
from roost.agent.facts.mountinfo import Mount, is_within, mount_of
from roost.agent.facts.mounts import Mounts, read_table
from roost.agent.facts.probes import Answer, Heard, Probes
from roost.agent.facts.text import shown
from roost.agent.facts.tree import Tree
from roost.domain.node import Filesystem


@dataclass(slots=True)
class _Look:
    """One look at all directories: what was found so far."""

    table: Sequence[Mount]
    expected: Sequence[str]
    places: list[Place] = field(default_factory=list)
    sizes: dict[str, Sizes | None] = field(default_factory=dict)
    """By mount point, of those that may hang."""
    stale: dict[str, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


class Storage:
    """The filesystems behind some directories; remembers where they were mounted."""

    def __init__(self, tree: Tree, directories: Sequence[str], probes: Probes) -> None:
        self._tree = tree
        self._directories = tuple(dict.fromkeys(directories))
        self._probes = probes
        self._were_on: dict[str, str] = {}

    def read(self, mounts: Mounts) -> tuple[tuple[Filesystem, ...] | None, tuple[str, ...]]:
        """Each filesystem once; `None`: not known, or there are no model directories."""
        if not self._directories or mounts.table is None:
            return None, ()
        look = _Look(table=mounts.table, expected=mounts.expected)
        slow: dict[str, tuple[Mount, list[tuple[str, str]]]] = {}
        for directory in self._directories:
            found = self._resolved(directory, look)
            if found is None:
                continue
            path, mount = found
            if may_hang(kind_of(mount.kind, mount.source)) and self._tree.is_live:
                key = f"{mount.point}\0{mount.number}\0{mount.device}"
                slow.setdefault(key, (mount, []))[1].append((directory, path))
            else:
                self._place(directory, path, mount, look)
        self._ask(slow, look)
        return self._filesystems(look), tuple(look.problems)

    # -- from a directory to the mount it is on ----------------------------------------------------

    def _resolved(self, directory: str, look: _Look) -> tuple[str, Mount] | None:
        try:
            path = self._tree.resolve(directory, until=_hanging(look.table).__contains__)
        except (OSError, ValueError) as cause:
            if self._tree.is_live:
                point = self._unmounted(directory, directory, mount_of(look.table, directory), look)
                if point is None:
                    self._missing(directory, getattr(cause, "strerror", None) or str(cause), look)
                return None
            path = directory
            look.problems.append(
                f"storage: {shown(directory)} is not below --root: taken to be what it is called"
            )
        mount = mount_of(look.table, path)
        if mount is None:
            look.problems.append(f"storage: no mount is known for {shown(directory)}")
            return None
        return path, mount

    def _place(self, directory: str, path: str, mount: Mount, look: _Look) -> None:
        """Take a directory that can be looked at, if it is one and what it should be."""
        kind = kind_of(mount.kind, mount.source)
        if kind in {Kind.PSEUDO, Kind.AUTOMOUNT}:
            what = "an automount that mounts nothing" if kind is Kind.AUTOMOUNT else "no place"
            look.problems.append(
                f"storage: {shown(directory)} is on {mount.kind}, {what} for models: left out"
            )
            return
        if self._unmounted(directory, path, mount, look) is not None:
            return
        if kind is Kind.LOCAL and self._tree.is_live:
            try:
                with os.scandir(path) as entries:
                    is_empty = next(entries, None) is None
            except PermissionError:
                is_empty = False
            except OSError as cause:
                self._missing(directory, cause.strerror or str(cause), look)
                return
            if looks_unmounted(path, mount, is_empty=is_empty):
                look.problems.append(
                    f"storage: {shown(directory)} is an empty directory on the root disk, where"
                    " something is usually mounted: not counted as room; mount what belongs there,"
                    f" or if nothing does: touch {shown(path)}/.local"
                )
                return
        self._were_on[directory] = mount.point
        look.places.append(Place(directory=path, mount=mount))

    def _unmounted(self, directory: str, path: str, mount: Mount | None, look: _Look) -> str | None:
        """The mount point above it with nothing mounted, if there is one: said as a problem."""
        if mount is None:
            return None
        point = should_be_mounted(path, mount, look.expected)
        why = "/etc/fstab or a mount unit names it"
        was_on = self._were_on.get(directory)
        # On a mount above the one it was on: what was there is gone, not moved.
        if point is None and was_on is not None and _is_above(mount.point, was_on, path):
            point, why = was_on, "it was"
        if point is not None:
            look.problems.append(
                f"storage: nothing is mounted on {shown(point)}, and {why}:"
                f" {shown(directory)} is not counted as room of {shown(mount.source)}"
            )
        return point

    def _missing(self, directory: str, why: str, look: _Look) -> None:
        look.problems.append(f"storage: the model directory {shown(directory)}: {_lower(why)}")

    # -- mounts that may hang ----------------------------------------------------------------------

    def _ask(self, slow: dict[str, tuple[Mount, list[tuple[str, str]]]], look: _Look) -> None:
        asked = {key: [path for _, path in wanted] for key, (_, wanted) in slow.items()}
        heard = self._probes.ask(asked)
        if any(kind_of(mount.kind, mount.source) is Kind.AUTOMOUNT for mount, _ in slow.values()):
            # Asking has mounted what belongs there.
            look.table = read_table(self._tree)[0] or look.table
        for key, (mount, wanted) in slow.items():
            for directory, path in wanted:
                self._take(directory, path, mount, heard[key], look)

    def _take(self, directory: str, path: str, mount: Mount, heard: Heard, look: _Look) -> None:
        answer = (heard.answers or {}).get(path, Answer())
        if heard.waiting_since is not None:
            self._say_waiting(mount, heard, look)
            if heard.answered_at is not None:
                look.stale.setdefault(mount.point, int(heard.answered_at))
        if answer.problem is not None:
            self._missing(directory, answer.problem, look)
            return
        here: Mount | None = mount
        if answer.real is not None:
            # A link, or an automount, leads to another mount.
            here = mount_of(look.table, answer.real) or mount
        if here is None or answer.sizes is None:
            if kind_of(mount.kind, mount.source) is not Kind.AUTOMOUNT:
                look.sizes.setdefault(mount.point, None)
                look.places.append(Place(directory=path, mount=mount))
            return
        look.sizes.setdefault(here.point, answer.sizes)
        self._place(directory, answer.real or path, here, look)

    def _say_waiting(self, mount: Mount, heard: Heard, look: _Look) -> None:
        since = _clock(heard.waiting_since or 0)
        last = (
            "it has never answered"
            if heard.answered_at is None
            else f"its numbers are of {_clock(heard.answered_at)}"
        )
        problem = (
            f"storage: {shown(mount.source)} on {shown(mount.point)} has not answered"
            f" since {since}; {last}"
        )
        if problem not in look.problems:
            look.problems.append(problem)

    # -- from mounts to bytes ----------------------------------------------------------------------

    def _filesystems(self, look: _Look) -> tuple[Filesystem, ...]:
        found = [(pool, self._sizes(pool, look)) for pool in pools(look.places)]
        found = [(pool, self._sizes(pool, look)) for pool in merged(found)]
        made = []
        for pool, asked in found:
            stale = [look.stale[p.mount.point] for p in pool.places if p.mount.point in look.stale]
            made.append(filesystem(pool, asked, stale_since=min(stale, default=None)))
            if pool.read_only and pool.kind is not Kind.SHARED:
                look.problems.append(
                    f"storage: {shown(pool.name)} is mounted read-only on"
                    f" {', '.join(map(shown, pool.mounts))}: nothing can be written there"
                )
        return tuple(made)

    def _sizes(self, pool: Pool, look: _Look) -> list[Sizes | None]:
        return [self._size(place, look) for place in pool.places]

    def _size(self, place: Place, look: _Look) -> Sizes | None:
        if place.mount.point in look.sizes:
            return look.sizes[place.mount.point]
        if not self._tree.is_live:
            return None
        try:
            said = os.statvfs(place.directory)
        except OSError as cause:
            problem = f"storage: the size of {shown(place.mount.point)} is not known"
            look.problems.append(f"{problem}: {_lower(cause.strerror or str(cause))}")
            return None
        return sizes(
            block=said.f_bsize,
            fragment=said.f_frsize,
            blocks=said.f_blocks,
            available=said.f_bavail,
        )


def _hanging(table: Iterable[Mount]) -> frozenset[str]:
    """Where mounts begin that must not be touched."""
    return frozenset(mount.point for mount in table if may_hang(kind_of(mount.kind, mount.source)))


def _is_above(point: str, before: str, path: str) -> bool:
    return point != before and is_within(before, point) and is_within(path, before)


def _clock(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _lower(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:]
