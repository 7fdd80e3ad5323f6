"""What is mounted on this machine, and what should be?"""

from dataclasses import dataclass

from roost.agent.facts.fstab import parse_fstab, parse_unit
from roost.agent.facts.mountinfo import Mount, parse_mountinfo, parse_mounts
from roost.agent.facts.tree import Tree

_UNITS = "/etc/systemd/system"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mounts:
    """The mount table, if it could be read, and the mount points that the operator has set up."""

    table: tuple[Mount, ...] | None = None
    expected: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


def read_mounts(tree: Tree) -> Mounts:
    """Both, as far as they can be read."""
    table, said = read_table(tree)
    expected, more = _expected(tree)
    return Mounts(table=table, expected=expected, problems=(*said, *more))


def read_table(tree: Tree) -> tuple[tuple[Mount, ...] | None, tuple[str, ...]]:
    """The mount table as this process sees it."""
    # Under another root `self` may be this process itself, in a namespace of its own: if that is a
    # link, it is no capture's but the kernel's.
    sources = ["/proc/self/mountinfo", "/proc/1/mountinfo", "/proc/self/mounts", "/proc/mounts"]
    if not tree.is_live:
        sources.sort(key=lambda path: "self" in path and _is_kernels(tree))
    causes = []
    for path in sources:
        try:
            data = tree.read(path)
        except OSError as cause:
            causes.append(f"{path}: {cause.strerror}")
            continue
        parse = parse_mountinfo if path.endswith("mountinfo") else parse_mounts
        return parse(data)
    return None, (f"mounts are not known: {causes[0]}",)


def _is_kernels(tree: Tree) -> bool:
    try:
        return tree.resolve("/proc/self") != "/proc/self"
    except OSError:
        return True


def _expected(tree: Tree) -> tuple[tuple[str, ...], tuple[str, ...]]:
    found: list[str] = []
    problems: list[str] = []
    try:
        points, said = parse_fstab(tree.read("/etc/fstab"))
        found.extend(points)
        problems.extend(said)
    except FileNotFoundError:
        pass
    except OSError as cause:
        problems.append(f"fstab: {cause.strerror}")
    try:
        units = [name for name in tree.names(_UNITS) if name.endswith((".mount", ".automount"))]
    except OSError:
        units = []
    for name in units:
        try:
            point = parse_unit(tree.read(f"{_UNITS}/{name}", at_most=100_000))
        except OSError:
            # A masked unit is a link to /dev/null, a broken one a link to nothing.
            continue
        if point is not None:
            found.append(point)
    return tuple(dict.fromkeys(found)), tuple(problems)
