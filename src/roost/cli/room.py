"""What a node has left, from the API's JSON: the sums that `ctl nodes` and `ctl node` show."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from roost.domain.node import Filesystem
from roost.domain.storage import Room, room_in_fleet, room_on_node
from roost.domain.units import has_gb

Json = Mapping[str, Any]


def held_on(node: str, allocations: Iterable[Json]) -> list[Json]:
    """The allocations of one node; each holds, whatever its state."""
    return [hold for hold in allocations if hold.get("node") == node]


def memory(node: Json, held: Sequence[Json]) -> str | None:
    """`free/total` in GB: what no replica claims, of what is there."""
    total = node.get("memory_bytes")
    if total is None:
        return None
    claimed = sum(hold.get("memory_bytes") or 0 for hold in held)
    return f"{has_gb(total - claimed)}/{has_gb(total)}"


def disk(node: Json, held: Sequence[Json]) -> str | None:
    """`free/total` in GB of the local filesystem with most room: what one profile can have.

    Claims are charged as placement charges them: largest first, each to the roomiest.
    """
    local = [store for store in node.get("storage") or () if not store.get("shared")]
    if not local:
        return None
    rooms = [store.get("free_bytes") for store in local]
    if any(room is None for room in rooms):
        return None
    claims = sorted((hold.get("disk_bytes") or 0 for hold in held), reverse=True)
    for claim in claims:
        rooms[rooms.index(max(rooms))] -= claim
    best = rooms.index(max(rooms))
    total = local[best].get("total_bytes")
    return f"{has_gb(rooms[best])}/{'-' if total is None else has_gb(total)}"


def shared(node: Json) -> str | None:
    """`free/total` in GB of all that other nodes may mount as well."""
    return _both(room_on_node(_filesystems(node), shared=True))


def fleet_disks(nodes: Iterable[Json]) -> str:
    """What all nodes have on disks of their own and on file servers, each server once."""
    told = [_filesystems(node) for node in nodes]
    local, servers = (_both(room_in_fleet(told, shared=shared)) for shared in (False, True))
    return f"in all, free/total GB: local {local or '-'}, shared {servers or '-'}"


def _both(room: Room) -> str | None:
    if room.free_bytes is None and room.total_bytes is None:
        return None
    told = (room.free_bytes, room.total_bytes)
    return "/".join("-" if size is None else has_gb(size) for size in told)


def _filesystems(node: Json) -> tuple[Filesystem, ...]:
    return tuple(
        Filesystem(
            filesystem=str(store.get("filesystem")),
            shared=bool(store.get("shared")),
            free_bytes=store.get("free_bytes"),
            total_bytes=store.get("total_bytes"),
            read_only=store.get("read_only"),
            stale_since=store.get("stale_since"),
        )
        for store in node.get("storage") or ()
    )


def gpus(node: Json, held: Sequence[Json]) -> str | None:
    """`class:free/total(unhealthy:1;foreign:2;stopping:1)`, one for each class, what there is none
    of left out; `0` for none, `None` where not reported.
    """
    cards = node.get("gpus")
    if cards is None:
        return None
    if not cards:
        return "0"
    classes: dict[str, list[list[str]]] = {}
    for card in cards:
        classes.setdefault(str(card.get("class")), []).append(_words(card, held))
    return ",".join(f"{name}:{_count(told)}" for name, told in sorted(classes.items()))


def _words(card: Json, held: Sequence[Json]) -> list[str]:
    """All that is so of a card; one that is given away may be ill as well."""
    stopping = any(
        card.get("index") in (hold.get("gpus") or ())
        for hold in held
        if hold.get("state") == "stopping"
    )
    said = {
        "free": card_state(card, held) == "free",
        "unhealthy": card.get("healthy") is False,
        "foreign": bool(card.get("foreign_processes")),
        "stopping": stopping,
    }
    return [word for word, so in said.items() if so]


def _count(told: Sequence[Sequence[str]]) -> str:
    counts = {w: sum(w in words for words in told) for w in ("unhealthy", "foreign", "stopping")}
    against = ";".join(f"{word}:{count}" for word, count in counts.items() if count)
    free = sum("free" in words for words in told)
    return f"{free}/{len(told)}" + (f"({against})" if against else "")


def card_state(card: Json, held: Sequence[Json]) -> str:
    """Who has it: the replica's name, `unhealthy`, `foreign`, or `free`."""
    for hold in held:
        if card.get("index") in (hold.get("gpus") or ()):
            return str(hold.get("replica"))
    if card.get("healthy") is False:
        return "unhealthy"
    return "foreign" if card.get("foreign_processes") else "free"


def status(node: Json) -> str:
    """`ready`, `not_ready` or `lost`; and whether new work is kept away."""
    told = node.get("status") or ("ready" if node.get("ready", True) else "not_ready")
    if node.get("draining"):
        return f"{told},draining"
    return f"{told},cordoned" if node.get("cordoned") else str(told)
