"""The fleet as text and as JSON: what nodes have and what replicas hold (FORMATS.md §2)."""

from dataclasses import dataclass
from typing import Any, Final, NotRequired, TypedDict

import msgspec

from roost.domain.allocation import Allocation
from roost.domain.fleet import Fleet
from roost.domain.gpu import Gpu
from roost.domain.node import Filesystem, Node
from roost.errors import Unusable
from roost.formats.fleet_reader import FleetReader
from roost.formats.yaml_source import YamlSource

_LINES_UP_TO: Final = 1_000_000
"""Characters of JSON that are read again, as YAML, to say on which line a problem is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedFleet:
    """A fleet that can be used, and what was odd about its file."""

    fleet: Fleet
    warnings: tuple[str, ...] = ()


def parse_fleet(text: str, *, filename: str) -> ParsedFleet:
    """Read a fleet; raise `Unusable` with every problem: file, line if known, what to change."""
    text = text.removeprefix("\ufeff")
    value, source = _load(text, filename)
    reader = FleetReader()
    fleet = reader.fleet(value)
    if reader.problems:
        if source is None and len(text) <= _LINES_UP_TO:
            source = YamlSource(text, filename=filename)
        placed = [
            (source.line(path) if source else None, sentence) for path, sentence in reader.problems
        ]
        lines = [
            f"{filename}:{line}: {sentence}" if line else f"{filename}: {sentence}"
            for line, sentence in sorted(placed, key=lambda one: one[0] or 0)
        ]
        raise _unusable(lines, filename)
    warnings: tuple[str, ...] = ()
    if reader.unknown:
        keys = ", ".join(reader.unknown)
        what = "a key" if len(reader.unknown) == 1 else "keys"
        warnings = (f"{filename}: ignored {what} this version does not know: {keys}",)
    return ParsedFleet(fleet=fleet, warnings=warnings)


def _load(text: str, filename: str) -> tuple[object, YamlSource | None]:
    """JSON if it looks like it, because that is read a hundred times faster; else YAML."""
    if text.lstrip()[:1] == "{":
        try:
            return msgspec.json.decode(text), None
        except msgspec.DecodeError as error:
            if filename.endswith(".json") or len(text) > _LINES_UP_TO:
                raise _unusable([f"{filename}: is not JSON: {error}"], filename) from None
        except RecursionError:
            raise _unusable([f"{filename}: is nested too deeply"], filename) from None
    source = YamlSource(text, filename=filename)
    return source.value, source


def _unusable(problems: list[str], filename: str) -> Unusable:
    many = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
    return Unusable(f"{filename} can't be used: {many}", problems=tuple(problems))


GpuJson = TypedDict(
    "GpuJson",
    {
        "index": int,
        "uuid": str | None,
        "class": str,
        "memory_bytes": int | None,
        "nvlink_domain": int | None,
        "healthy": bool | None,
        "unhealthy_reason": str | None,
        "foreign_processes": int | None,
    },
)


class FabricJson(TypedDict):
    """A node's usable adapters on one fabric."""

    name: str
    hcas: list[str]


class FilesystemJson(TypedDict):
    """One filesystem, however often it is mounted."""

    filesystem: str
    mounts: list[str]
    shared: bool
    free_bytes: int | None
    total_bytes: int | None
    read_only: NotRequired[bool]
    stale_since: NotRequired[int]


class NodeJson(TypedDict):
    """One node; null is "not reported"."""

    name: str
    ready: bool
    not_ready_since: NotRequired[str]
    cordoned: bool
    cordon_reason: str | None
    draining: bool
    labels: dict[str, str]
    memory_bytes: int | None
    engines: list[str] | None
    gpus: list[GpuJson] | None
    fabrics: list[FabricJson] | None
    storage: list[FilesystemJson] | None


class AllocationJson(TypedDict):
    """What one replica holds on one node."""

    replica: str
    model: str | None
    index: int | None
    profile: str | None
    node: str
    gpus: list[int]
    gpu_uuids: NotRequired[list[str]]
    memory_bytes: int | None
    disk_bytes: int | None
    state: str


class FleetJson(TypedDict):
    """What `fleet_to_json` returns: its JSON Schema is made from this."""

    nodes: list[NodeJson]
    allocations: list[AllocationJson]


def fleet_schema() -> dict[str, Any]:
    """The JSON Schema of what Roost writes; what it reads may leave out whatever is not known."""
    return msgspec.json.schema(FleetJson)


def fleet_to_json(fleet: Fleet) -> dict[str, Any]:
    """The fleet as `parse_fleet` reads it back, with every key."""
    return {
        "nodes": [node_to_json(node) for node in fleet.nodes],
        "allocations": [allocation_to_json(allocation) for allocation in fleet.allocations],
    }


def node_to_json(node: Node) -> NodeJson:
    """One node of FORMATS.md §2."""
    facts = node.facts
    since = node.not_ready_since
    return {
        "name": node.name,
        "ready": node.ready,
        **({} if since is None else {"not_ready_since": since}),  # type: ignore[typeddict-item]  # a key that may be absent
        "cordoned": node.cordoned,
        "cordon_reason": node.cordon_reason,
        "draining": node.draining,
        "labels": dict(facts.labels),
        "memory_bytes": facts.memory_bytes,
        "engines": None if facts.engines is None else sorted(facts.engines),
        "gpus": None if facts.gpus is None else [_gpu_to_json(gpu) for gpu in facts.gpus],
        "fabrics": (
            None
            if facts.fabrics is None
            else [{"name": one.name, "hcas": list(one.hcas)} for one in facts.fabrics]
        ),
        "storage": (
            None if facts.storage is None else [_filesystem_to_json(one) for one in facts.storage]
        ),
    }


def allocation_to_json(allocation: Allocation) -> AllocationJson:
    """One allocation of FORMATS.md §2; `gpu_uuids` only where they are known."""
    uuids = list(allocation.gpu_uuids)
    return {
        "replica": allocation.replica,
        "model": allocation.model,
        "index": allocation.index,
        "profile": allocation.profile,
        "node": allocation.node,
        "gpus": list(allocation.gpus),
        **({"gpu_uuids": uuids} if uuids else {}),  # type: ignore[typeddict-item]  # a key that may be absent
        "memory_bytes": allocation.memory_bytes,
        "disk_bytes": allocation.disk_bytes,
        "state": allocation.state.value,
    }


def _gpu_to_json(gpu: Gpu) -> GpuJson:
    return {
        "index": gpu.index,
        "uuid": gpu.uuid,
        "class": gpu.gpu_class,
        "memory_bytes": gpu.memory_bytes,
        "nvlink_domain": gpu.nvlink_domain,
        "healthy": gpu.healthy,
        "unhealthy_reason": gpu.unhealthy_reason,
        "foreign_processes": gpu.foreign_processes,
    }


def _filesystem_to_json(one: Filesystem) -> FilesystemJson:
    told: FilesystemJson = {
        "filesystem": one.filesystem,
        "mounts": list(one.mounts),
        "shared": one.shared,
        "free_bytes": one.free_bytes,
        "total_bytes": one.total_bytes,
    }
    if one.read_only is not None:
        told["read_only"] = one.read_only
    if one.stale_since is not None:
        told["stale_since"] = one.stale_since
    return told
