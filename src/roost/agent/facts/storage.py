"""The filesystems behind the model directories: each once, local or shared, with what is free."""

import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from roost.domain.node import Filesystem

SHARED_TYPES: Final = frozenset({
    "nfs", "nfs4", "cifs", "smb3", "ceph", "lustre", "gpfs", "beegfs", "glusterfs", "9p", "afs",
    "ocfs2", "gfs2",
    "weka", "wekafs", "pvfs2", "orangefs", "fuse.glusterfs", "fuse.sshfs", "fuse.s3fs",
    "fuse.juicefs", "fuse.gcsfuse",
    "fuse.rclone", "fuse.ceph", "fuse.goofys", "fuse.mount-s3",
})  # fmt: skip
"""Nobody's own: several machines may mount them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """One line of `/proc/self/mountinfo`."""

    device: str
    """`259:2`; btrfs and overlay subvolumes have made-up ones, but one each."""
    point: str
    kind: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What `statvfs` says."""

    free_bytes: int
    total_bytes: int


def read(
    root: Path, directories: Sequence[Path]
) -> tuple[tuple[Filesystem, ...] | None, list[str]]:
    """The filesystems of the directories that exist; `None`: no model directory was given."""
    if not directories:
        return None, []
    mounts = parse_mountinfo((root / "proc/self/mountinfo").read_text())
    problems: list[str] = []
    there: list[Path] = []
    for directory in directories:
        if directory.is_dir():
            there.append(directory.resolve())
        else:
            problems.append(f"the model directory {directory} does not exist or cannot be read")
    found, said = filesystems(mounts, there, _room)
    return found, problems + said


def filesystems(
    mounts: Sequence[Mount], directories: Iterable[Path], room: Callable[[Path], Room]
) -> tuple[tuple[Filesystem, ...], list[str]]:
    """One entry per filesystem, whatever it is called where it is mounted: bind mounts and
    subdirectories add
    nothing.
    """
    problems: list[str] = []
    by_identity: dict[tuple[str, ...], tuple[Mount, list[str], Path]] = {}
    for directory in directories:
        mount = mount_of(mounts, directory)
        if mount is None:
            problems.append(f"no mount is known for the model directory {directory}")
            continue
        shared = mount.kind in SHARED_TYPES
        # A network filesystem may get a device number per mount; its source is what it is.
        identity = ("shared", mount.source) if shared else ("local", mount.device)
        _, points, _ = by_identity.setdefault(identity, (mount, [], directory))
        if mount.point not in points:
            points.append(mount.point)
    found = []
    for mount, points, directory in by_identity.values():
        free = total = None
        try:
            sizes = room(directory)
            free, total = sizes.free_bytes, sizes.total_bytes
        except OSError as cause:
            problems.append(f"the room on {mount.point} is not known: {cause.strerror}")
        found.append(
            Filesystem(
                filesystem=mount.source,
                mounts=tuple(sorted(points)),
                shared=mount.kind in SHARED_TYPES,
                free_bytes=free,
                total_bytes=total,
            )
        )
    return tuple(sorted(found, key=lambda one: (one.filesystem, one.mounts))), problems


def mount_of(mounts: Sequence[Mount], directory: Path) -> Mount | None:
    """The mount a directory is on: the longest mount point above it, of equal ones the last
    mounted.
    """
    best: Mount | None = None
    for mount in mounts:
        above = Path(mount.point)
        if (above == directory or above in directory.parents) and (
            best is None or len(mount.point) >= len(best.point)
        ):
            best = mount
    return best


def parse_mountinfo(text: str) -> list[Mount]:
    """`36 35 98:0 /root /mnt rw,noatime master:1 - ext3 /dev/root rw`; optional fields end at the
    dash.
    """
    found = []
    for line in text.splitlines():
        head, dash, tail = line.partition(" - ")
        fields, rest = head.split(" "), tail.split(" ")
        if not dash or len(fields) < 5 or len(rest) < 2:
            continue
        found.append(
            Mount(
                device=fields[2],
                point=_unescaped(fields[4]),
                kind=rest[0],
                source=_unescaped(rest[1]),
            )
        )
    return found


def _unescaped(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), text)


def _room(directory: Path) -> Room:
    found = os.statvfs(directory)
    # What root alone may use is not free for a model.
    return Room(
        free_bytes=found.f_bavail * found.f_frsize, total_bytes=found.f_blocks * found.f_frsize
    )
