"""What do the filesystems of one or many nodes add up to, each counted once?"""

from collections.abc import Iterable
from dataclasses import dataclass

from roost.domain.node import Filesystem


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """Bytes of several filesystems; `None`: not known."""

    free_bytes: int | None = None
    total_bytes: int | None = None


def room_on_node(storage: Iterable[Filesystem] | None, *, shared: bool) -> Room:
    """Of one node's local or shared ones; a single one of unknown size leaves the sum unknown."""
    found = _each_once(storage, shared=shared)
    frees = [one.free_bytes for one in found if one.free_bytes is not None]
    totals = [one.total_bytes for one in found if one.total_bytes is not None]
    return Room(
        free_bytes=sum(frees) if frees and len(frees) == len(found) else None,
        total_bytes=sum(totals) if totals and len(totals) == len(found) else None,
    )


def room_in_fleet(nodes: Iterable[Iterable[Filesystem] | None], *, shared: bool) -> Room:
    """Of all that many nodes report: a file server is one, however many mount it; what is local is
    each node's own, whatever it is called.
    """
    frees: list[int] = []
    totals: list[int] = []
    servers: dict[str, Filesystem] = {}
    for storage in nodes:
        for one in _each_once(storage, shared=shared):
            if shared:
                servers[one.filesystem] = _better(one, servers.get(one.filesystem))
                continue
            frees += [] if one.free_bytes is None else [one.free_bytes]
            totals += [] if one.total_bytes is None else [one.total_bytes]
    for one in servers.values():
        frees += [] if one.free_bytes is None else [one.free_bytes]
        totals += [] if one.total_bytes is None else [one.total_bytes]
    return Room(
        free_bytes=sum(frees) if frees else None, total_bytes=sum(totals) if totals else None
    )


def _each_once(storage: Iterable[Filesystem] | None, *, shared: bool) -> tuple[Filesystem, ...]:
    """Of one node, as placement counts them: two called `tmpfs` of different sizes are two."""
    found = {
        (one.filesystem, None if shared else one.total_bytes): one
        for one in storage or ()
        if one.shared is shared
    }
    return tuple(found.values())


def _better(one: Filesystem, other: Filesystem | None) -> Filesystem:
    """Of two nodes' words on one file server the one to believe: known, fresh, writable, larger."""
    return one if other is None else max(one, other, key=_worth)


def _worth(one: Filesystem) -> tuple[bool, bool, bool, int, int]:
    return (
        one.total_bytes is not None,
        one.stale_since is None,
        not one.read_only,
        one.total_bytes or 0,
        one.free_bytes or 0,
    )
