"""Which control groups limit a process's memory, and how far?"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from roost.agent.facts.mountinfo import Mount, is_within
from roost.agent.facts.text import Lines, path_text, quoted, whole

MAX_DEPTH: Final = 64
"""Groups above a process whose limits are read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """The groups of one process; `None`: it is in no such hierarchy."""

    unified: str | None = None
    """In version 2's hierarchy."""
    memory: str | None = None
    """In version 1's hierarchy with the memory controller."""


def parse_cgroup(data: bytes) -> tuple[Groups, tuple[str, ...]]:
    """`/proc/PID/cgroup`: `0::/system.slice/roost`, or version 1's `4:memory:/docker/1f`."""
    lines = Lines("cgroup")
    unified: str | None = None
    memory: str | None = None
    for number, line in enumerate(data.split(b"\n"), start=1):
        if not line:
            continue
        hierarchy, _, rest = line.partition(b":")
        controllers, colon, path = rest.partition(b":")
        if whole(hierarchy) is None or not colon or not path.startswith(b"/"):
            lines.skip(number, line, "is not number:controllers:/path")
        elif not controllers and whole(hierarchy) == 0:
            unified = path_text(path)
        elif b"memory" in controllers.split(b","):
            memory = path_text(path)
    return Groups(unified=unified, memory=memory), lines.problems()


def parse_limit(data: bytes) -> tuple[int | None, tuple[str, ...]]:
    """`memory.max` or `memory.limit_in_bytes`: the limit; `None` with no problem: none is set."""
    text = data.strip()
    if text in {b"max", b"-1"}:
        return None, ()
    limit = whole(text)
    if limit is None:
        return None, (f"is neither max nor a number of bytes: {quoted(text)}",)
    # Version 1 writes "none" as the largest whole page below 2^63; pages are up to 64 KiB.
    return (None if limit >= (1 << 63) - (1 << 16) else limit), ()


def limit_files(mounts: Sequence[Mount], groups: Groups) -> tuple[str, ...]:
    """The files that may hold a limit: every group's from the process's own up to the top of what
    is mounted, since each of them holds.
    """
    found: dict[str, None] = {}
    for mount in mounts:
        if mount.kind == "cgroup2" and groups.unified is not None:
            path, name = groups.unified, "memory.max"
        elif mount.kind == "cgroup" and groups.memory is not None and _has_memory(mount):
            path, name = groups.memory, "memory.limit_in_bytes"
        else:
            continue
        for directory in _up(mount.point, _below(mount, path)):
            found[f"{directory}/{name}"] = None
    return tuple(found)


def _has_memory(mount: Mount) -> bool:
    return "memory" in mount.options.split(",")


def _below(mount: Mount, path: str) -> tuple[str, ...]:
    """The group's directories below the mount point.

    In a container only a part of the hierarchy is mounted (`root`), while the path may be the
    host's; with a namespace of its own both begin at the container. A path outside of what is
    mounted, also one with `..`, leaves the top of it: the container's own group.
    """
    parts = [part for part in path.split("/") if part]
    if ".." in parts:
        return ()
    root = mount.root or "/"
    if root == "/":
        return tuple(parts[:MAX_DEPTH])
    whole_path = "/" + "/".join(parts)
    if not is_within(whole_path, root):
        return ()
    return tuple(part for part in whole_path[len(root) :].split("/") if part)[:MAX_DEPTH]


def _up(point: str, below: tuple[str, ...]) -> list[str]:
    top = point.rstrip("/")
    return ["/".join((top, *below[:depth])) for depth in range(len(below), -1, -1)]
