"""Which ports engines may use here, and which of them somebody else has."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

DEFAULT_RANGE: Final = (21000, 21999)
LOWEST_EPHEMERAL: Final = 32768
MOST_TOLD: Final = 1000


def parse_ephemeral(text: str) -> tuple[int, int]:
    """`32768	60999`: what the kernel gives to outgoing connections."""
    first, last = text.split()
    return int(first), int(last)


def choose(root: Path) -> tuple[int, int]:
    """The default range, or where that would be ephemeral, the thousand ports below the ephemeral
    ones.
    """
    try:
        first, last = parse_ephemeral((root / "proc/sys/net/ipv4/ip_local_port_range").read_text())
    except (OSError, ValueError):
        first, last = LOWEST_EPHEMERAL, 60999
    if DEFAULT_RANGE[1] < first or DEFAULT_RANGE[0] > last:
        return DEFAULT_RANGE
    if first > 2048:
        return max(1024, first - 1000), first - 1
    return last + 1, min(65535, last + 1000)


def parse_local_ports(text: str) -> Iterator[int]:
    """The local ports of `/proc/net/tcp`, whatever the connection's state but TIME_WAIT, which a
    listener may
    take over.
    """
    for line in text.splitlines()[1:]:
        fields = line.split()
        if len(fields) > 3 and fields[3] != "06":
            yield int(fields[1].rpartition(":")[2], 16)


def taken(root: Path, within: tuple[int, int], ours: Iterable[int]) -> tuple[int, ...]:
    """Ports of the range that somebody else has; an unreadable table tells nothing."""
    found: set[int] = set()
    for name in ("tcp", "tcp6"):
        try:
            found.update(parse_local_ports((root / "proc/net" / name).read_text()))
        except (OSError, ValueError):
            continue
    first, last = within
    own = set(ours)
    return tuple(sorted(p for p in found if first <= p <= last and p not in own))[:MOST_TOLD]
