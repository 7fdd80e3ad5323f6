"""What is mounted where, by `/proc/PID/mountinfo` or the older `/proc/PID/mounts`?"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from roost.agent.facts.text import Lines, path_text, whole

MAX_MOUNTS: Final = 100_000
"""The kernel's own default limit of mounts in one namespace (`fs.mount-max`)."""

_DEVICE: Final = re.compile(rb"[0-9]{1,10}:[0-9]{1,10}")
_ESCAPE: Final = re.compile(rb"\\([0-3][0-7]{2})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """One mount. Paths have any bytes: `text.shown` makes them fit for people."""

    point: str
    """Where it is mounted, absolute."""
    kind: str
    """The filesystem's type: `ext4`, `nfs4`, `fuse.sshfs`."""
    source: str
    """The device or what the filesystem calls its source; may be empty."""
    read_only: bool = False
    options: str = ""
    """The filesystem's own, as written: version 1's control groups name their controllers here."""
    device: str | None = None
    """`259:2`; `None` where only `/proc/PID/mounts` was there. Network filesystems' are made up."""
    root: str | None = None
    """Which directory of the filesystem is mounted: not `/` for bind mounts and subvolumes."""
    number: int | None = None
    parent: int | None = None


def parse_mountinfo(data: bytes) -> tuple[tuple[Mount, ...], tuple[str, ...]]:
    """`36 35 98:0 /root /mnt rw,noatime master:1 - ext3 /dev/sda rw`: the mounts, and a problem if
    some line is no such thing.
    """
    return _parse("mountinfo", data, _mountinfo_line)


def parse_mounts(data: bytes) -> tuple[tuple[Mount, ...], tuple[str, ...]]:
    """`/dev/sda1 / ext4 rw,relatime 0 0`: the same from the older file."""
    return _parse("mounts", data, _mounts_line)


def mount_of(mounts: Sequence[Mount], path: str) -> Mount | None:
    """The mount that an absolute path without symlinks is on, as the kernel walks to it."""
    above = [mount for mount in mounts if is_within(path, mount.point)]
    # Stable, so of several on one point the one mounted last comes last.
    above.sort(key=lambda mount: len(mount.point))
    parents = {mount.number: mount for mount in above if mount.number is not None}
    for mount in reversed(above):
        if not _hidden(mount, above, parents):
            return mount
    return None


def is_within(path: str, directory: str) -> bool:
    """Whether a path is a directory or below it, by its text."""
    return path == directory or path.startswith(directory.rstrip("/") + "/")


def _hidden(mount: Mount, above: list[Mount], parents: Mapping[int, Mount]) -> bool:
    """Whether something was mounted over a directory above this mount, later and on its parent."""
    walked: set[int | None] = set()
    here: Mount | None = mount
    while here is not None and here.number not in walked:
        for other in above:
            if (
                other.parent == here.parent
                and other.parent is not None
                and 1 < len(other.point) < len(here.point)
            ):
                return True
        walked.add(here.number)
        here = None if here.parent is None else parents.get(here.parent)
    return False


def _parse(
    source: str, data: bytes, line_of: Callable[[bytes], Mount | str]
) -> tuple[tuple[Mount, ...], tuple[str, ...]]:
    lines = Lines(source)
    found: list[Mount] = []
    for number, line in enumerate(data.split(b"\n"), start=1):
        if not line.strip(b" "):
            continue
        mount = line_of(line)
        if isinstance(mount, str):
            lines.skip(number, line, mount)
        elif len(found) == MAX_MOUNTS:
            lines.skip(number, line, f"is beyond {MAX_MOUNTS} mounts")
        else:
            found.append(mount)
    return tuple(found), lines.problems()


def _mountinfo_line(line: bytes) -> Mount | str:
    # Single spaces separate, and only they: the kernel escapes them in names, but not \r or \f.
    fields = [field for field in line.split(b" ") if field]
    try:
        dash = fields.index(b"-", 6)
    except ValueError:
        return "has no - behind its mount options"
    if not 2 <= len(fields) - dash - 1 <= 3:
        return "does not have type, source and options behind the -"
    number, parent = whole(fields[0]), whole(fields[1])
    if number is None or parent is None:
        return "does not begin with two numbers"
    if not _DEVICE.fullmatch(fields[2]):
        return "has no device number"
    # A mount made with an empty source leaves two fields behind the dash.
    source = fields[dash + 2] if len(fields) - dash - 1 == 3 else b""
    point = _unescaped(fields[4])
    if not point.startswith("/"):
        return "has a mount point that is not absolute"
    return Mount(
        point=point,
        kind=_unescaped(fields[dash + 1]),
        source=_unescaped(source),
        read_only=_is_read_only(fields[5]) or _is_read_only(fields[-1]),
        options=path_text(fields[-1]),
        device=fields[2].decode(),
        root=_unescaped(fields[3]),
        number=number,
        parent=parent,
    )


def _mounts_line(line: bytes) -> Mount | str:
    fields = [field for field in line.split(b" ") if field]
    if not 4 <= len(fields) <= 6:
        return "does not have source, mount point, type and options"
    point = _unescaped(fields[1])
    if not point.startswith("/"):
        return "has a mount point that is not absolute"
    return Mount(
        point=point,
        kind=_unescaped(fields[2]),
        source=_unescaped(fields[0]),
        read_only=_is_read_only(fields[3]),
        options=path_text(fields[3]),
    )


def _is_read_only(options: bytes) -> bool:
    return b"ro" in options.split(b",")


def _unescaped(name: bytes) -> str:
    return path_text(unescaped(name))


def unescaped(name: bytes) -> bytes:
    r"""A name as it was: `\040` is a space, and only three octal digits are an escape."""
    return _ESCAPE.sub(lambda found: bytes([int(found[1], 8)]), name)
