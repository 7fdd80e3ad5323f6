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
    fsid: int | None = None
    """The kernel's number of the filesystem, where it has one: an overlay has its upper one's."""


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


def sizes(
    *, block: int, fragment: int, blocks: int, available: int, fsid: int | None = None
) -> Sizes:
    """`statvfs` in bytes: what is free is what others than root may write.

    No blocks at all is how a filesystem says that it does not know (sshfs, buckets); more available
    than there is, or more than 2^63 bytes, is nothing that can be counted on.
    """
    unit = fragment if fragment > 0 else block
    total = blocks * unit
    if unit <= 0 or not 0 < total <= MAX_NUMBER:
        return Sizes(free_bytes=None, total_bytes=None, fsid=fsid or None)
    free = available * unit if 0 <= available <= blocks else None
    return Sizes(free_bytes=free, total_bytes=total, fsid=fsid or None)


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


def merged(found: Iterable[tuple[Pool, Sequence[Sizes | None]]]) -> tuple[Pool, ...] | None:
    """The pools again, if the kernel's numbers say that some are one: a container's overlay and the
    disk that it is on. `None`: they are as they were.
    """
    by_number: dict[int, list[Pool]] = {}
    order: list[list[Pool]] = []
    changed = False
    for pool, asked in found:
        number = next((one.fsid for one in asked if one is not None and one.fsid), None)
        if pool.kind is not Kind.LOCAL or number is None:
            order.append([pool])
        elif number in by_number:
            by_number[number].append(pool)
            changed = True
        else:
            by_number[number] = [pool]
            order.append(by_number[number])
    return tuple(_joined(group) for group in order) if changed else None


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
    if len(group) == 1:
        return group[0]
    # The disk says more than the overlay on it.
    named = min(group, key=lambda pool: (not pool.name.startswith("/dev/"), pool.name))
    return Pool(
        name=named.name,
        kind=named.kind,
        places=named.places,
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
