"""How a fleet's plain data becomes nodes and allocations, and what is said when it can't."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, TypeVar

from roost.domain.allocation import Allocation, AllocationState, ReplicaName
from roost.domain.fabric import FabricAttachment, FabricName, HcaName
from roost.domain.fleet import Fleet
from roost.domain.gpu import Gpu, GpuClass, GpuUuid
from roost.domain.model import ModelName
from roost.domain.node import Facts, Filesystem, Node, NodeName
from roost.domain.profile import ProfileName
from roost.formats.yaml_source import Path

T = TypeVar("T")

_FLEET_KEYS: Final = frozenset({"nodes", "allocations"})
_NODE_KEYS: Final = frozenset(
    {
        "name", "ready", "not_ready_since", "cordoned", "cordon_reason", "draining", "labels",
        "memory_bytes", "engines", "gpus", "fabrics", "storage",
        # What a live server says beside: for people, nothing to place by.
        "status", "last_report_age_s", "agent_version", "address", "problems", "hostname",
        "joined_at", "gpu_details", "hcas",
    }
)  # fmt: skip
_GPU_KEYS: Final = frozenset(
    {
        "index", "uuid", "class", "memory_bytes", "nvlink_domain", "healthy", "unhealthy_reason",
        "foreign_processes",
    }
)  # fmt: skip
_FABRIC_KEYS: Final = frozenset({"name", "hcas"})
_STORAGE_KEYS: Final = frozenset(
    {
        "filesystem", "mounts", "shared", "free_bytes", "total_bytes", "read_only", "stale_since"
    }
)  # fmt: skip
_ALLOCATION_KEYS: Final = frozenset(
    {
        "replica", "model", "index", "profile", "node", "gpus", "gpu_uuids", "memory_bytes",
        "disk_bytes", "state",
    }
)  # fmt: skip


class FleetReader:
    """Turns plain data into a fleet; gathers all that is wrong before anybody is told."""

    def __init__(self) -> None:
        self.problems: list[tuple[Path, str]] = []
        self.unknown: dict[str, None] = {}
        self._interned: dict[str, str] = {}

    def fleet(self, value: object) -> Fleet:
        """The fleet as far as it can be made; complete exactly when there are no `problems`."""
        if value is None:
            self._wrong(
                (), "is empty: a fleet is `nodes: [...]`, and `nodes: []` is one without any"
            )
            return Fleet()
        if not isinstance(value, dict):
            self._wrong(
                (), f"is {_kind(value)}: a fleet is a mapping with `nodes` and `allocations`"
            )
            return Fleet()
        self._note_unknown(value, _FLEET_KEYS, "")
        if value.get("nodes") is None:
            self._wrong((), "has no `nodes`: add them (`nodes: []` is a fleet without any)")
        nodes = self._items(value, "nodes", (), "the file", self._node) or ()
        names = ((("nodes", i), node.name) for i, node in enumerate(nodes))
        self._no_name_twice("node", names, "rename one or leave it out")
        by_name = {node.name: node for node in nodes}

        def allocation(item: object, path: Path) -> Allocation | None:
            return self._allocation(item, path, by_name)

        allocations = self._items(value, "allocations", (), "the file", allocation) or ()
        return Fleet(nodes=nodes, allocations=allocations)

    def _node(self, value: object, path: Path) -> Node | None:
        if not isinstance(value, dict):
            self._wrong(path, f"a node is a mapping, not {_kind(value)}")
            return None
        self._note_unknown(value, _NODE_KEYS, "nodes[].")
        name = self._name(value, path, "a node")
        who = f"node {name}" if name else "a node"
        draining = self._flag(value, "draining", path, who, default=False)
        before = len(self.problems)
        gpus = self._items(value, "gpus", path, who, lambda v, p: self._gpu(v, p, who))
        fabrics = self._items(value, "fabrics", path, who, lambda v, p: self._fabric(v, p, who))
        storage = self._items(value, "storage", path, who, lambda v, p: self._filesystem(v, p, who))
        if gpus and len(self.problems) == before:
            self._no_gpu_twice(gpus, path, who)
        if fabrics:
            names = (((*path, "fabrics", i), f.name) for i, f in enumerate(fabrics))
            self._no_name_twice(f"{who}: fabric", names, "list its HCAs in one entry")
        engines = self._words(value, "engines", path, who)
        facts = Facts(
            labels=self._labels(value, path, who),
            memory_bytes=self._count(value, "memory_bytes", path, who),
            engines=None if engines is None else frozenset(engines),
            gpus=gpus,
            fabrics=fabrics,
            storage=None if storage is None else _mounted_once(storage),
        )
        return Node(
            name=NodeName(name),
            facts=facts,
            ready=self._flag(value, "ready", path, who, default=True),
            not_ready_since=self._word(value, "not_ready_since", path, who),
            cordoned=self._flag(value, "cordoned", path, who, default=False) or draining,
            cordon_reason=self._word(value, "cordon_reason", path, who),
            draining=draining,
        )

    def _gpu(self, value: object, path: Path, node: str) -> Gpu | None:
        if not isinstance(value, dict):
            self._wrong(path, f"{node}: a GPU is a mapping, not {_kind(value)}")
            return None
        if not value.keys() <= _GPU_KEYS:
            self._note_unknown(value, _GPU_KEYS, "nodes[].gpus[].")
        who = f"{node}, gpus[{path[-1]}]"
        index = self._count(value, "index", path, who)
        if index is None and value.get("index") is None:
            self._wrong(path, f"{who}: has no `index`: add the number the node gives the card")
        gpu_class = self._word(value, "class", path, who)
        if not gpu_class and value.get("class") in (None, ""):
            self._wrong(path, f"{who}: has no `class`: add what kind of card it is, as rtx-4090")
        uuid = self._word(value, "uuid", path, who)
        return Gpu(
            index=index or 0,
            gpu_class=GpuClass(self._intern((gpu_class or "").lower())),
            uuid=None if uuid is None else GpuUuid(uuid),
            memory_bytes=self._count(value, "memory_bytes", path, who),
            nvlink_domain=self._count(value, "nvlink_domain", path, who),
            healthy=self._maybe_flag(value, "healthy", path, who),
            unhealthy_reason=self._word(value, "unhealthy_reason", path, who),
            foreign_processes=self._count(value, "foreign_processes", path, who),
        )

    def _fabric(self, value: object, path: Path, node: str) -> FabricAttachment | None:
        if not isinstance(value, dict):
            self._wrong(path, f"{node}: a fabric is a mapping, not {_kind(value)}")
            return None
        self._note_unknown(value, _FABRIC_KEYS, "nodes[].fabrics[].")
        name = self._name(value, path, f"{node}: a fabric")
        hcas = self._words(value, "hcas", path, f"{node}, fabric {name}") or ()
        return FabricAttachment(name=FabricName(name), hcas=tuple(HcaName(hca) for hca in hcas))

    def _filesystem(self, value: object, path: Path, node: str) -> Filesystem | None:
        if not isinstance(value, dict):
            self._wrong(path, f"{node}: a filesystem is a mapping, not {_kind(value)}")
            return None
        self._note_unknown(value, _STORAGE_KEYS, "nodes[].storage[].")
        name = self._name(value, path, f"{node}: an entry of storage", key="filesystem")
        who = f"{node}, filesystem {name}"
        return Filesystem(
            filesystem=name,
            mounts=self._words(value, "mounts", path, who) or (),
            shared=self._flag(value, "shared", path, who, default=False),
            free_bytes=self._count(value, "free_bytes", path, who),
            total_bytes=self._count(value, "total_bytes", path, who),
            read_only=self._maybe_flag(value, "read_only", path, who),
            stale_since=self._count(value, "stale_since", path, who),
        )

    def _allocation(
        self, value: object, path: Path, nodes: Mapping[NodeName, Node]
    ) -> Allocation | None:
        if not isinstance(value, dict):
            self._wrong(path, f"an allocation is a mapping, not {_kind(value)}")
            return None
        if not value.keys() <= _ALLOCATION_KEYS:
            self._note_unknown(value, _ALLOCATION_KEYS, "allocations[].")
        replica = self._name(value, path, "an allocation", key="replica")
        who = f"allocation of {replica}"
        node_name = NodeName(self._name(value, path, who, key="node"))
        gpus = self._numbers(value, "gpus", path, who)
        uuids = self._words(value, "gpu_uuids", path, who) or ()
        node = nodes.get(node_name)
        if node is None and node_name:
            sentence = f"{who}: there is no node {node_name}: add the node, or leave this out"
            self._wrong((*path, "node"), sentence)
        elif node is not None and node.facts.gpus is not None:
            for card in _unlisted(gpus, uuids, node.facts.gpus):
                sentence = f"{who}: node {node_name} lists no GPU {card}"
                self._wrong((*path, "gpus"), f"{sentence}: list the card, or leave it out here")
        model = self._word(value, "model", path, who)
        profile = self._word(value, "profile", path, who)
        return Allocation(
            replica=ReplicaName(replica),
            node=node_name,
            model=None if model is None else ModelName(model),
            index=self._count(value, "index", path, who),
            profile=None if profile is None else ProfileName(profile),
            gpus=gpus,
            gpu_uuids=tuple(GpuUuid(uuid) for uuid in uuids),
            memory_bytes=self._count(value, "memory_bytes", path, who),
            disk_bytes=self._count(value, "disk_bytes", path, who),
            state=self._state(value, path, who),
        )

    # One value of a mapping each; what is absent or null is not reported.

    def _count(self, value: Mapping[str, object], key: str, path: Path, who: str) -> int | None:
        found = value.get(key)
        if found is None or (type(found) is int and found >= 0):
            return found
        # Programs that know only one kind of number write 5.4e11.
        if type(found) is float and found >= 0 and found.is_integer():
            return int(found)
        self._wrong((*path, key), f"{who}: `{key}` is {_shown(found)}: it is a whole number from 0")
        return None

    def _maybe_flag(
        self, value: Mapping[str, object], key: str, path: Path, who: str
    ) -> bool | None:
        found = value.get(key)
        if found is None or isinstance(found, bool):
            return found
        self._wrong((*path, key), f"{who}: `{key}` is {_shown(found)}: it is true or false")
        return None

    def _flag(
        self, value: Mapping[str, object], key: str, path: Path, who: str, *, default: bool
    ) -> bool:
        found = self._maybe_flag(value, key, path, who)
        return default if found is None else found

    def _word(self, value: Mapping[str, object], key: str, path: Path, who: str) -> str | None:
        found = value.get(key)
        if found is None or isinstance(found, str):
            return found
        self._wrong((*path, key), f"{who}: `{key}` is {_shown(found)}: it is text, so quote it")
        return None

    def _name(self, value: Mapping[str, object], path: Path, who: str, *, key: str = "name") -> str:
        found = self._word(value, key, path, who)
        if not found and value.get(key) in (None, ""):
            self._wrong(path, f"{who} has no `{key}`: add it")
        return found or ""

    def _words(
        self, value: Mapping[str, object], key: str, path: Path, who: str
    ) -> tuple[str, ...] | None:
        found = value.get(key)
        if found is None:
            return None
        if isinstance(found, list) and all(isinstance(word, str) for word in found):
            return tuple(self._intern(word) for word in found)
        self._wrong((*path, key), f"{who}: `{key}` is {_shown(found)}: it is a list of texts")
        return None

    def _numbers(
        self, value: Mapping[str, object], key: str, path: Path, who: str
    ) -> tuple[int, ...]:
        found = value.get(key)
        if found is None:
            return ()
        if isinstance(found, list) and all(type(n) is int and n >= 0 for n in found):
            return tuple(found)
        self._wrong((*path, key), f"{who}: `{key}` is {_shown(found)}: it is a list of GPU indices")
        return ()

    def _labels(self, value: Mapping[str, object], path: Path, who: str) -> Mapping[str, str]:
        found = value.get("labels")
        if found is None:
            return {}
        if not isinstance(found, dict):
            sentence = f"{who}: `labels` is {_shown(found)}: it is a mapping of texts"
            self._wrong((*path, "labels"), sentence)
            return {}
        for key, text in found.items():
            if not isinstance(text, str):
                sentence = f"{who}: label {key} is {_shown(text)}: a label is text, so quote it"
                self._wrong((*path, "labels", key), sentence)
        return {self._intern(key): self._intern(str(text)) for key, text in found.items()}

    def _state(self, value: Mapping[str, object], path: Path, who: str) -> AllocationState:
        found = value.get("state")
        if found is None:
            return AllocationState.HELD
        try:
            return AllocationState(found)  # type: ignore[arg-type]  # whatever it is: that is the test
        except ValueError:
            states = ", ".join(AllocationState)
            sentence = f"{who}: `state` is {_shown(found)}: it is one of {states}"
            self._wrong((*path, "state"), sentence)
            return AllocationState.HELD

    def _items(
        self,
        value: Mapping[str, object],
        key: str,
        path: Path,
        who: str,
        read: Callable[[object, Path], T | None],
    ) -> tuple[T, ...] | None:
        found = value.get(key)
        if found is None:
            return None
        if not isinstance(found, list):
            self._wrong((*path, key), f"{who}: `{key}` is {_shown(found)}: it is a list")
            return None
        here = (*path, key)
        made = [read(item, (*here, i)) for i, item in enumerate(found)]
        return tuple([item for item in made if item is not None])

    # What must not be there twice, and what is only noted.

    def _no_gpu_twice(self, gpus: tuple[Gpu, ...], path: Path, who: str) -> None:
        if len({gpu.index for gpu in gpus}) != len(gpus):
            indices = (((*path, "gpus", i), str(gpu.index)) for i, gpu in enumerate(gpus))
            self._no_name_twice(f"{who}: GPU index", indices, "give each card its own")
        uuids = [gpu.uuid for gpu in gpus if gpu.uuid is not None]
        if len(set(uuids)) != len(uuids):
            named = (((*path, "gpus", i), gpu.uuid) for i, gpu in enumerate(gpus) if gpu.uuid)
            self._no_name_twice(f"{who}: GPU uuid", named, "give each card its own, or null")

    def _no_name_twice(self, what: str, named: Iterable[tuple[Path, str]], change: str) -> None:
        seen: set[str] = set()
        for path, name in named:
            if name in seen and name:
                self._wrong(path, f"{what} {name} is there twice: {change}")
            seen.add(name)

    def _note_unknown(self, value: Mapping[str, object], known: frozenset[str], where: str) -> None:
        for key in value:
            if key not in known:
                self.unknown[f"{where}{key}"] = None

    def _wrong(self, path: Path, sentence: str) -> None:
        self.problems.append((path, sentence))

    def _intern(self, word: str) -> str:
        """One object for equal words: a fleet says the same few ten thousand times."""
        return self._interned.setdefault(word, word)


def _unlisted(
    indices: Sequence[int], uuids: Sequence[str], gpus: Iterable[Gpu]
) -> Iterator[int | str]:
    """The cards that an allocation names and its node doesn't; what isn't listed can't be held."""
    by_index = {gpu.index: gpu.uuid for gpu in gpus}
    by_uuid = set(by_index.values())
    if len(uuids) != len(indices):
        yield from (index for index in indices if index not in by_index)
        # It may be that of a card held by its index whose own isn't known.
        if not any(index in by_index and by_index[index] is None for index in indices):
            yield from (uuid for uuid in uuids if uuid not in by_uuid)
        return
    for index, uuid in zip(indices, uuids, strict=True):
        # A card known by its uuid may have another index by now.
        if uuid in by_uuid:
            continue
        if index not in by_index:
            yield index
        elif by_index[index] is not None:
            yield uuid


def _mounted_once(storage: tuple[Filesystem, ...]) -> tuple[Filesystem, ...]:
    """The same filesystem listed twice, once for each mount, is one; two called `tmpfs` are two."""
    merged: dict[Filesystem, Filesystem] = {}
    for one in storage:
        key = replace(one, mounts=())
        before = merged.get(key)
        mounts = (before.mounts if before else ()) + one.mounts
        merged[key] = replace(one, mounts=tuple(dict.fromkeys(mounts)))
    return tuple(merged.values())


def _kind(value: object) -> str:
    names = {
        dict: "a mapping",
        list: "a list",
        str: "text",
        bool: "true or false",
        type(None): "null",
    }
    return names.get(type(value), "a number" if isinstance(value, int | float) else "a date")


def _shown(value: object) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."
