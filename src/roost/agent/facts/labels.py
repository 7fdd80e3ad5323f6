"""Which labels does a machine carry by itself: system, architecture, processors?"""

import os
import platform

from roost.agent.facts.cpuinfo import count_processors, parse_model, parse_online, parse_quota
from roost.agent.facts.text import shown
from roost.agent.facts.tree import Tree


def read_labels(tree: Tree) -> dict[str, str]:
    """`roost/os`, `roost/arch`, `roost/cpus`, `roost/cpu-model`, each if it is known."""
    cpuinfo = _text(tree, "/proc/cpuinfo") or b""
    if tree.is_live:
        # What a container may use of the machine is what engines get.
        found = {
            "roost/os": platform.system().lower(),
            "roost/arch": platform.machine(),
            "roost/cpus": str(_usable(tree)),
        }
    else:
        online = parse_online(_text(tree, "/sys/devices/system/cpu/online") or b"")
        count = online or count_processors(cpuinfo)
        found = {
            "roost/os": _word(tree, "/proc/sys/kernel/ostype").lower(),
            "roost/arch": _word(tree, "/proc/sys/kernel/arch"),
            "roost/cpus": "" if count is None else str(count),
        }
    found["roost/cpu-model"] = parse_model(cpuinfo) or ""
    return {key: value for key, value in found.items() if value}


def _usable(tree: Tree) -> int:
    """CPUs that this process may run on, lowered by its container's quota."""
    allowed = len(os.sched_getaffinity(0))
    quota = parse_quota(_text(tree, "/sys/fs/cgroup/cpu.max") or b"")
    return allowed if quota is None else min(allowed, quota)


def _word(tree: Tree, path: str) -> str:
    data = _text(tree, path) or b""
    return shown(data.strip()[:64].decode("utf-8", "replace"))


def _text(tree: Tree, path: str) -> bytes | None:
    try:
        return tree.read(path)
    except OSError:
        return None
