"""How much main memory there is: MemTotal, lowered by the cgroup's limit. Page cache takes nothing
away.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath


def read(root: Path) -> tuple[int | None, list[str]]:
    """Bytes that processes of this agent may use; `None`: not known."""
    total = parse_mem_total((root / "proc/meminfo").read_text())
    if total is None:
        return None, ["memory is not known: /proc/meminfo has no MemTotal"]
    limits = [limit for limit in _limits(root) if limit is not None]
    return min([total, *limits]), []


def parse_mem_total(text: str) -> int | None:
    """`MemTotal:       24601596 kB`."""
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        if name == "MemTotal":
            number, _, unit = rest.strip().partition(" ")
            if number.isdigit() and unit.strip() == "kB":
                return int(number) * 1024
    return None


def parse_limit(text: str) -> int | None:
    """A cgroup's limit; `None`: none (`max`, or version 1's number near 2^63)."""
    text = text.strip()
    if not text.isdigit() or int(text) >= 1 << 60:
        return None
    return int(text)


def parse_cgroups(text: str) -> tuple[str | None, str | None]:
    """Of `/proc/self/cgroup`: the path in version 2, and that of version 1's memory controller."""
    unified = memory = None
    for line in text.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            unified = path
        elif "memory" in controllers.split(","):
            memory = path
    return unified, memory


def _limits(root: Path) -> Iterator[int | None]:
    try:
        unified, memory = parse_cgroups((root / "proc/self/cgroup").read_text())
    except OSError:
        unified, memory = "/", "/"
    places = [
        (unified, root / "sys/fs/cgroup", "memory.max"),
        (memory, root / "sys/fs/cgroup/memory", "memory.limit_in_bytes"),
    ]
    for path, base, name in places:
        if path is None:
            continue
        # Every ancestor's limit holds too. In a container the path may be the host's and not exist
        # here;
        # then the root of what is mounted is the container's own group.
        here = PurePosixPath(path.lstrip("/"))
        for group in (here, *here.parents):
            with contextlib.suppress(OSError):
                yield parse_limit((base / group / name).read_text())
