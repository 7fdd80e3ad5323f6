"""How much main memory may engines use: the machine's, lowered by their control groups' limits?"""

from collections.abc import Sequence
from typing import Final

from roost.agent.facts.cgroup import Groups, limit_files, parse_cgroup, parse_limit
from roost.agent.facts.meminfo import parse_mem_total
from roost.agent.facts.mountinfo import Mount
from roost.agent.facts.tree import Tree

# Where control groups are by custom, for a machine whose mount table says nothing of them.
_CUSTOM: Final = (
    Mount(point="/sys/fs/cgroup", kind="cgroup2", source="cgroup2"),
    Mount(point="/sys/fs/cgroup/unified", kind="cgroup2", source="cgroup2"),
    Mount(point="/sys/fs/cgroup/memory", kind="cgroup", source="cgroup", options="memory"),
)


def read_memory(tree: Tree, mounts: Sequence[Mount] | None) -> tuple[int | None, tuple[str, ...]]:
    """Bytes; `None`: not known. Engines are children of the agent, so its groups are theirs."""
    try:
        total, problems = parse_mem_total(tree.read("/proc/meminfo"))
    except OSError as cause:
        total, problems = None, (f"memory is not known: /proc/meminfo: {cause.strerror}",)
    if total is None:
        return None, problems
    limits, said = _limits(tree, mounts)
    return min([total, *limits]), (*problems, *said)


def _limits(tree: Tree, mounts: Sequence[Mount] | None) -> tuple[list[int], list[str]]:
    groups, problems = _groups(tree)
    found: list[int] = []
    said = list(problems)
    there = [mount for mount in mounts or () if mount.kind in {"cgroup", "cgroup2"}]
    for path in limit_files(there or _CUSTOM, groups):
        try:
            limit, wrong = parse_limit(tree.read(path, at_most=4096))
        except (FileNotFoundError, NotADirectoryError):
            # The top of a hierarchy has no limit, and a host's group may not be seen from here.
            continue
        except OSError as cause:
            said.append(f"cgroup: {path}: {cause.strerror}")
            continue
        said.extend(f"cgroup: {path} {problem}" for problem in wrong)
        if limit is not None:
            found.append(limit)
    return found, said


def _groups(tree: Tree) -> tuple[Groups, tuple[str, ...]]:
    for path in ("/proc/self/cgroup", "/proc/1/cgroup"):
        try:
            return parse_cgroup(tree.read(path))
        except OSError:
            continue
    # What is mounted at the top may still be a container's own group.
    return Groups(unified="/", memory="/"), ()
