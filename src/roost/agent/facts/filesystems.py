"""Which filesystems stand behind the model directories, each once however often it is mounted?"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from roost.agent.facts.kinds import Kind, kind_of
from roost.agent.facts.mountinfo import Mount, is_within
from roost.agent.facts.text import MAX_NUMBER, shown
from roost.domain.node import Filesystem


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A model directory that exists, and the mount it is on."""

    directory: str
    mount: Mount


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """What `statvfs` said of one mount, in bytes; `None`: it does not say."""

    free_bytes: int | None
    total_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """One filesystem, or several that take from the same bytes: the datasets of a ZFS pool."""

    name: str
    kind: Kind
    places: tuple[Place, ...]
    """One for each of its parts that has to be asked for its size; others add nothing."""
    mounts: tuple[str, ...]
    read_only: bool


_GENERIC: Final = re.compile(r"[^/:@]*")
"""A source that names no device, host or bucket: `tmpfs`, `s3fs`, `none`."""
_FUSE: Final = "fuse."
_BETWEEN_QUESTIONS: Final = 64 << 20


def sizes(*, block: int, fragment: int, blocks: int, available: int) -> Sizes:
    """`statvfs` in bytes: what is free is what others than root may write.

    No blocks at all is how a filesystem says that it does not know (sshfs, buckets); more available
    than there is, or more than 2^63 bytes, is nothing that can be counted on.
    """
    unit = fragment if fragment > 0 else block
    total = blocks * unit
    if unit <= 0 or not 0 < total <= MAX_NUMBER:
        return Sizes(free_bytes=None, total_bytes=None)
    free = available * unit if 0 <= available <= blocks else None
    return Sizes(free_bytes=free, total_bytes=total)


def pools(places: Iterable[Place]) -> tuple[Pool, ...]:
    """The places by the bytes they take from, in order of their names."""
    groups: list[tuple[set[tuple[str, ...]], list[Place]]] = []
    for place in places:
        keys, members = _identities(place.mount), [place]
        # A place may join two groups that had nothing in common before it.
        rest = []
        for group_keys, group in groups:
            if group_keys & keys:
                keys |= group_keys
                members = [*group, *members]
            else:
                rest.append((group_keys, group))
        groups = [*rest, (keys, members)]
    made = [_pool(members) for _, members in groups]
    return tuple(sorted(made, key=lambda pool: (pool.name, pool.mounts)))


def filesystem(
    pool: Pool, asked: Sequence[Sizes | None], *, stale_since: int | None = None
) -> Filesystem:
    """A pool with what its parts said, in the order of `places`; `None`: no answer.

    Parts share what is free, and each has used its own: so the pool's total is what is free and
    what each part has used, which is never more than there is.
    """
    known = [one for one in asked if one is not None and one.total_bytes is not None]
    frees = [one.free_bytes for one in known if one.free_bytes is not None]
    free = max(frees) if frees else None
    total: int | None = None
    if known and len(known) == len(asked):
        total = known[0].total_bytes
        if len(known) > 1 and free is not None:
            total = free + sum(
                (one.total_bytes or 0) - (one.free_bytes or 0)
                for one in known
                if one.free_bytes is not None
            )
    if pool.read_only and free is not None:
        # Nothing can be written, whatever is unused.
        free = 0
    return Filesystem(
        filesystem=shown(pool.name),
        mounts=tuple(shown(point) for point in pool.mounts),
        shared=pool.kind is Kind.SHARED,
        free_bytes=free,
        total_bytes=total,
        read_only=pool.read_only,
        stale_since=stale_since,
    )


def merged(found: Sequence[tuple[Pool, Sequence[Sizes | None]]]) -> tuple[Pool, ...]:
    """The pools, a container's overlay joined to the disk it is on, if that is there as well: an
    overlay answers with the numbers of the disk below it.
    """
    groups = [[pool] for pool, _ in found]
    for at, (overlay, asked) in enumerate(found):
        if not _is_overlay(overlay):
            continue
        for below, (disk, its) in enumerate(found):
            if disk.kind is Kind.LOCAL and not _is_overlay(disk) and _same_numbers(asked, its):
                groups[below].extend(groups[at])
                groups[at] = []
                break
    return tuple(_joined(group) for group in groups if group)


def _is_overlay(pool: Pool) -> bool:
    return any(place.mount.kind in {"overlay", "overlayfs"} for place in pool.places)


def _same_numbers(asked: Sequence[Sizes | None], others: Sequence[Sizes | None]) -> bool:
    """Equal sizes, and what is free as near as it may be between two questions."""
    match (*asked, *others):
        case [
            Sizes(free_bytes=int() as free, total_bytes=int() as total),
            Sizes(free_bytes=int() as other_free, total_bytes=int() as other_total),
        ]:
            return total == other_total and abs(free - other_free) <= _BETWEEN_QUESTIONS
    return False


def should_be_mounted(directory: str, mount: Mount, expected: Iterable[str]) -> str | None:
    """The mount point above a directory where something belongs and nothing is; `None`: none."""
    missing = [
        point
        for point in expected
        if point != "/" and is_within(directory, point) and not is_within(mount.point, point)
    ]
    return max(missing, key=len, default=None)


_MOUNT_PLACES: Final = (
    "/mnt",
    "/media",
    "/net",
    "/run/media",
    "/autofs",
    "/srv",
    "/export",
    "/nfs",
)


def looks_unmounted(directory: str, mount: Mount, *, is_empty: bool) -> bool:
    """Whether an empty directory of the root disk is where file servers are mounted by custom:
    directly below `/`, or in `/mnt` and its like.
    """
    if not is_empty or mount.point != "/" or directory == "/":
        return False
    return directory.count("/") == 1 or any(is_within(directory, top) for top in _MOUNT_PLACES)


def _identities(mount: Mount) -> set[tuple[str, ...]]:
    """What tells that two mounts are of one pool: equality of any of these."""
    found: set[tuple[str, ...]] = set()
    if mount.device is not None:
        found.add(("device", mount.device))
    source = _source(mount)
    if mount.kind == "zfs":
        found.add(("zfs", _zfs_pool(source)))
    elif kind_of(mount.kind, source) is Kind.SHARED:
        if not _GENERIC.fullmatch(source):
            found.add(("shared", _family(mount.kind), source))
    elif source.startswith("/dev/"):
        # One disk, also where the filesystem makes up its device numbers (btrfs).
        found.add(("disk", source))
    if not found:
        found.add(("point", mount.point))
    return found


def _pool(members: Sequence[Place]) -> Pool:
    first = min(members, key=lambda place: (_name(place.mount), place.mount.point))
    parts: dict[tuple[str, ...], Place] = {}
    for place in members:
        key = (_source(place.mount),) if place.mount.kind == "zfs" else ()
        parts.setdefault(key, place)
    return Pool(
        name=_name(first.mount),
        kind=kind_of(first.mount.kind, _source(first.mount)),
        places=tuple(parts.values()),
        mounts=tuple(sorted({place.mount.point for place in members})),
        read_only=all(place.mount.read_only for place in members),
    )


def _joined(group: Sequence[Pool]) -> Pool:
    # The disk says more than the overlays on it.
    disk = group[0]
    return Pool(
        name=disk.name,
        kind=disk.kind,
        places=disk.places,
        mounts=tuple(sorted({point for pool in group for point in pool.mounts})),
        read_only=all(pool.read_only for pool in group),
    )


def _name(mount: Mount) -> str:
    """What it is called; where the source says nothing, by its mount point."""
    source = _source(mount)
    if mount.kind == "zfs":
        return _zfs_pool(source)
    if _GENERIC.fullmatch(source) or source == "/dev/fuse":
        return f"{mount.kind.removeprefix(_FUSE)}:{mount.point}"
    return source


def _source(mount: Mount) -> str:
    """The source in one spelling: `filer:/models/` is `filer:/models`."""
    source = mount.source
    if kind_of(mount.kind, source) is Kind.SHARED:
        source = source.replace("\\", "/")
        bare = source.rstrip("/")
        return bare if bare and not bare.endswith(":") else source
    return source


def _zfs_pool(source: str) -> str:
    return source.partition("@")[0].partition("/")[0]


def _family(kind: str) -> str:
    """One file server speaks nfs and nfs4, and both are its one filesystem."""
    for family in ("nfs", "smb"):
        if kind.startswith(family):
            return family
    return "smb" if kind == "cifs" else kind
