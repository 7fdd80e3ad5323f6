"""Placement once more, stupidly: every node is scanned for every question, and nothing is kept
but who holds what on which node.

Written from the rules alone, so that the real one has something to agree with. Slow on purpose.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from roost.domain.allocation import Allocation, AllocationState, replica_name
from roost.domain.fleet import Fleet
from roost.domain.gpu import Gpu
from roost.domain.model import Catalog, Model
from roost.domain.node import Node
from roost.domain.profile import Profile
from roost.domain.reasons import Code, Unit


@dataclass(frozen=True, slots=True)
class NaiveReason:
    """A reason without its sentence."""

    code: Code
    has: int | None = None
    needs: int | None = None
    unit: Unit | None = None


@dataclass(frozen=True, slots=True)
class NaiveShard:
    """One shard: its rank, its node, and what it gets there."""

    rank: int
    node: str
    gpus: tuple[int, ...] = ()
    hcas: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NaiveTried:
    """One profile against every node."""

    profile: str
    considered: int
    fit: int
    counts: Mapping[Code, int]
    rejected: Mapping[str, tuple[NaiveReason, ...]]
    fabrics: tuple[tuple[str, int, int], ...]
    """Name, eligible nodes, needed nodes."""


@dataclass(frozen=True, slots=True)
class NaiveDecision:
    """The answer for one replica."""

    model: str
    replica: int
    order: int
    outcome: str
    profile: str | None = None
    fabric: str | None = None
    shards: tuple[NaiveShard, ...] = ()
    tried: tuple[NaiveTried, ...] = ()


class World:
    """The catalog, the nodes, and all that is held on them so far, by node."""

    def __init__(
        self, catalog: Catalog, nodes: tuple[Node, ...], held: Iterable[Allocation] = ()
    ) -> None:
        self.catalog = catalog
        self.nodes = nodes
        self.held: dict[str, list[Allocation]] = {}
        for one in held:
            self.hold(one)

    def hold(self, one: Allocation) -> None:
        """One allocation more."""
        self.held.setdefault(one.node, []).append(one)

    def held_on(self, node: Node) -> Sequence[Allocation]:
        """All that is held on one node."""
        return self.held.get(node.name, ())


def naive_plan(catalog: Catalog, fleet: Fleet) -> tuple[NaiveDecision, ...]:
    """Every replica of the catalog, in its order."""
    world = World(catalog, fleet.nodes, fleet.allocations)
    answers: dict[tuple[int, int], NaiveDecision] = {}
    waiting: list[tuple[tuple[int, int, int, int, int], Model]] = []
    for at, model in enumerate(catalog.models):
        for index in range(model.replicas):
            kept = naive_kept(world, model, index, len(answers) + 1)
            if kept is not None:
                answers[at, index] = kept
                continue
            ever = sum(any(could_ever(p, node) for p in model.profiles) for node in fleet.nodes)
            gpus = max(p.gpus_per_node * p.nodes for p in model.profiles)
            waiting.append(((-model.priority, ever, -gpus, at, index), model))
    for order, (key, model) in enumerate(sorted(waiting, key=lambda w: w[0]), len(answers) + 1):
        answers[key[3], key[4]] = naive_decide(world, model, key[4], order)
    return tuple(answers[key] for key in sorted(answers))


def belongs(allocation: Allocation, model: Model, index: int) -> bool:
    """Whether it is this replica that holds it; without a model it is somebody else's."""
    if allocation.model != model.name:
        return False
    if allocation.index is not None:
        return allocation.index == index
    return allocation.replica == replica_name(model.name, index)


def naive_kept(world: World, model: Model, index: int, order: int) -> NaiveDecision | None:
    """What runs stays; its fabric and adapters no allocation says."""
    held = [
        one
        for held_there in world.held.values()
        for one in held_there
        if one.state is AllocationState.HELD and belongs(one, model, index)
    ]
    if not held:
        return None
    held.sort(key=lambda one: (one.node, one.gpus, one.gpu_uuids))
    shards = tuple(
        NaiveShard(rank, one.node, tuple(sorted(one.gpus))) for rank, one in enumerate(held)
    )
    said = {one.profile for one in held if one.profile is not None}
    profile = min(said) if len(said) == 1 else None
    return NaiveDecision(model.name, index, order, "kept", profile, None, shards)


def naive_decide(world: World, model: Model, index: int, order: int) -> NaiveDecision:
    """One replica: the first profile that fits, in descending priority; it then holds its part."""
    tried: list[NaiveTried] = []
    for profile in sorted(model.profiles, key=lambda p: -p.priority):
        attempt, able = naive_try(world, profile)
        tried.append(attempt)
        if not able:
            continue
        fabric: str | None = None
        if profile.nodes > 1:
            enough = [one for one in attempt.fabrics if one[1] >= profile.nodes]
            fabric = min(enough, key=lambda one: (one[1], one[0]))[0]
            on_it = [node for node in able if hcas(node, fabric)]
            chosen = sorted(on_it, key=lambda n: (-len(free_of_class(world, profile, n)), n.name))
            chosen = chosen[: profile.nodes]
        elif profile.gpus_per_node:
            chosen = [min(able, key=lambda node: rank_for_gpus(world, profile, node))]
        else:
            chosen = [min(able, key=lambda node: rank_for_cpu(world, node))]
        shards = tuple(
            NaiveShard(
                rank,
                node.name,
                pick_gpus(world, profile, node),
                hcas(node, fabric) if fabric is not None else (),
            )
            for rank, node in enumerate(chosen)
        )
        for shard, node in zip(shards, chosen, strict=True):
            world.hold(
                Allocation(
                    replica=replica_name(model.name, index),
                    node=node.name,
                    gpus=shard.gpus,
                    memory_bytes=profile.min_memory_bytes,
                    disk_bytes=profile.min_disk_bytes,
                )
            )
        return NaiveDecision(
            model.name, index, order, "placed", profile.name, fabric, shards, tuple(tried)
        )
    return NaiveDecision(model.name, index, order, "unplaceable", tried=tuple(tried))


def naive_try(world: World, profile: Profile) -> tuple[NaiveTried, list[Node]]:
    """One profile against every node, and the nodes that could be chosen."""
    reasons: dict[str, list[NaiveReason]]
    reasons = {node.name: reasons_against(world, profile, node) for node in world.nodes}
    able = [node for node in world.nodes if not reasons[node.name]]
    fabrics: tuple[tuple[str, int, int], ...] = ()
    if profile.nodes > 1:
        names = {one.name for node in world.nodes for one in node.facts.fabrics or () if one.hcas}
        eligible = {name: sum(bool(hcas(node, name)) for node in able) for name in names}
        fabrics = tuple((name, eligible[name], profile.nodes) for name in sorted(names))
        for node in able:
            most = max(eligible[one.name] for one in node.facts.fabrics or () if one.hcas)
            if most < profile.nodes:
                reasons[node.name] = [
                    NaiveReason(Code.FABRIC_SHORT, most, profile.nodes, Unit.NODES)
                ]
        able = [node for node in able if not reasons[node.name]]
    rejected = {name: tuple(against) for name, against in reasons.items() if against}
    counts = Counter(against[0].code for against in rejected.values())
    tried = NaiveTried(profile.name, len(world.nodes), len(able), dict(counts), rejected, fabrics)
    return tried, able


def reasons_against(world: World, profile: Profile, node: Node) -> list[NaiveReason]:
    """All that speaks against one node by itself, in the order of the table."""
    facts = node.facts
    found: list[NaiveReason] = []
    if not node.ready:
        found.append(NaiveReason(Code.NOT_READY))
    if node.cordoned or node.draining:
        found.append(NaiveReason(Code.CORDONED))
    if not carries_labels(profile, node):
        found.append(NaiveReason(Code.LABEL_MISMATCH))
    if not has_engine(profile, node):
        found.append(NaiveReason(Code.ENGINE_ABSENT))
    memory = memory_left(world, node)
    if is_short(memory, profile.min_memory_bytes):
        need = profile.min_memory_bytes
        found.append(NaiveReason(Code.MEMORY_SHORT, at_least_0(memory), need, Unit.BYTES))
    disk = disk_left(world, node)
    if is_short(disk, profile.min_disk_bytes):
        need = profile.min_disk_bytes
        found.append(NaiveReason(Code.DISK_SHORT, at_least_0(disk), need, Unit.BYTES))
    found.extend(gpu_reasons(world, profile, node))
    if profile.nodes > 1 and not any(one.hcas for one in facts.fabrics or ()):
        found.append(NaiveReason(Code.NO_FABRIC))
    return found


def at_least_0(left: int | None) -> int:
    """Claims may be larger than what is there; nobody has less than nothing."""
    return max(0, left or 0)


def is_short(has: int | None, needs: int | None) -> bool:
    """Known to have less than what is asked."""
    return has is not None and needs is not None and has < needs


def gpu_reasons(world: World, profile: Profile, node: Node) -> list[NaiveReason]:
    """At most one of four, the first that applies."""
    need = profile.gpus_per_node
    if profile.gpu_class is None:
        return []
    if node.facts.gpus is None:
        return [NaiveReason(Code.GPUS_UNKNOWN)]
    of_class = [gpu for gpu in node.facts.gpus if gpu.gpu_class == profile.gpu_class]
    if len(of_class) < need:
        return [NaiveReason(Code.GPU_CLASS_ABSENT, len(of_class), need, Unit.GPUS)]
    large = [gpu for gpu in of_class if large_enough(profile, gpu)]
    if len(large) < need:
        return [NaiveReason(Code.GPU_MEMORY_SHORT, len(large), need, Unit.GPUS)]
    free = [gpu for gpu in large if is_free(world, node, gpu)]
    if len(free) < need:
        return [NaiveReason(Code.GPUS_SHORT, len(free), need, Unit.GPUS)]
    return []


def carries_labels(profile: Profile, node: Node) -> bool:
    """Every label equal; a selector that isn't there constrains nothing."""
    return all(node.facts.labels.get(key) == value for key, value in profile.node_selector.items())


def has_engine(profile: Profile, node: Node) -> bool:
    """Installed, or not reported."""
    return node.facts.engines is None or profile.engine.value in node.facts.engines


def memory_left(world: World, node: Node) -> int | None:
    """Total less all claims; `None`: not reported."""
    if node.facts.memory_bytes is None:
        return None
    claims = sum(one.memory_bytes or 0 for one in world.held_on(node))
    return node.facts.memory_bytes - claims


def disk_left(world: World, node: Node) -> int | None:
    """Free bytes of the local filesystem with most room, claims off; `None`: nothing is known."""
    local = [one for one in node.facts.storage or () if not one.shared]
    rooms = []
    for disk in {(one.filesystem, one.total_bytes): None for one in local}:
        said = [one.free_bytes for one in local if (one.filesystem, one.total_bytes) == disk]
        known = [free for free in said if free is not None]
        if not known:
            return None
        rooms.append(min(known))
    if not rooms:
        return None
    claims = [one.disk_bytes for one in world.held_on(node) if one.disk_bytes]
    # The largest claim first: who came when is not known, and must not matter.
    for claim in sorted(claims, reverse=True):
        roomiest = rooms.index(max(rooms))
        rooms[roomiest] -= claim
    return max(rooms)


def is_allocated(world: World, node: Node, gpu: Gpu) -> bool:
    """Held by some replica, in whatever state: by uuid where both sides know it, else by index."""
    for one in world.held_on(node):
        if gpu.uuid is not None and one.gpu_uuids:
            # Who knows fewer uuids than cards means the others by their indices.
            all_known = len(one.gpu_uuids) >= len(one.gpus)
            if gpu.uuid in one.gpu_uuids or (not all_known and gpu.index in one.gpus):
                return True
        elif gpu.index in one.gpus:
            return True
    return False


def is_free(world: World, node: Node, gpu: Gpu) -> bool:
    """Not known to be unhealthy, no process of others known on it, not allocated."""
    return (
        gpu.healthy is not False
        and not gpu.foreign_processes
        and not is_allocated(world, node, gpu)
    )


def large_enough(profile: Profile, gpu: Gpu) -> bool:
    """As large as asked, or of a size not reported."""
    need = profile.min_gpu_memory_bytes
    return need is None or gpu.memory_bytes is None or gpu.memory_bytes >= need


def free_of_class(world: World, profile: Profile, node: Node) -> list[Gpu]:
    """The free cards of the class, of whatever size."""
    return [
        gpu
        for gpu in node.facts.gpus or ()
        if gpu.gpu_class == profile.gpu_class and is_free(world, node, gpu)
    ]


def hcas(node: Node, fabric: str) -> tuple[str, ...]:
    """A node's usable adapters on one fabric."""
    return tuple(h for one in node.facts.fabrics or () if one.name == fabric for h in one.hcas)


def domains_of(gpus: Sequence[Gpu]) -> dict[int, list[Gpu]]:
    """The cards whose NVLink domain is known, by domain."""
    known = [(gpu.nvlink_domain, gpu) for gpu in gpus]
    return {
        domain: [gpu for other, gpu in known if other == domain]
        for domain in {domain for domain, _ in known if domain is not None}
    }


def pick_gpus(world: World, profile: Profile, node: Node) -> tuple[int, ...]:
    """The cards: the tightest known domain that fits, lowest indices; else the lowest indices."""
    need = profile.gpus_per_node
    if not need:
        return ()
    of_class = free_of_class(world, profile, node)
    usable = sorted(
        (gpu for gpu in of_class if large_enough(profile, gpu)), key=lambda gpu: gpu.index
    )
    fitting = [
        (len(domains_of(of_class)[domain]), [gpu.index for gpu in gpus])
        for domain, gpus in domains_of(usable).items()
        if len(gpus) >= need
    ]
    if fitting:
        return tuple(min(fitting)[1][:need])
    return tuple(gpu.index for gpu in usable[:need])


def rank_for_gpus(world: World, profile: Profile, node: Node) -> tuple[bool, bool, int, int, str]:
    """Known to span NVLink domains, untouched, free cards of the class, scarcity, name."""
    of_class = free_of_class(world, profile, node)
    usable = [gpu for gpu in of_class if large_enough(profile, gpu)]
    unknown = sum(gpu.nvlink_domain is None for gpu in usable)
    largest = max((len(gpus) for gpus in domains_of(usable).values()), default=0)
    spans = largest + unknown < profile.gpus_per_node
    touched = any(is_allocated(world, node, gpu) for gpu in node.facts.gpus or ())
    return spans, not touched, len(of_class), scarcity(world.catalog, node), node.name


def rank_for_cpu(world: World, node: Node) -> tuple[int, bool, bool, int, str]:
    """CPU replicas there, has or may have GPUs, memory left (most first, unknown last), name."""
    replicas = {one.replica for one in world.held_on(node) if not one.gpus}
    memory = memory_left(world, node)
    has_or_may_have_gpus = node.facts.gpus is None or len(node.facts.gpus) > 0
    return len(replicas), has_or_may_have_gpus, memory is None, -(memory or 0), node.name


def scarcity(catalog: Catalog, node: Node) -> int:
    """Replicas × GPUs of all profiles that could ever use the node."""
    return sum(
        model.replicas * profile.gpus_per_node * profile.nodes
        for model in catalog.models
        for profile in model.profiles
        if could_ever(profile, node)
    )


def could_ever(profile: Profile, node: Node) -> bool:
    """By what the node is, not by what is free, ready or healthy now."""
    facts = node.facts
    if not carries_labels(profile, node) or not has_engine(profile, node):
        return False
    if is_short(facts.memory_bytes, profile.min_memory_bytes):
        return False
    sizes = [one.total_bytes for one in facts.storage or () if not one.shared]
    if sizes and all(is_short(size, profile.min_disk_bytes) for size in sizes):
        return False
    if profile.gpu_class is not None:
        cards = [gpu for gpu in facts.gpus or () if gpu.gpu_class == profile.gpu_class]
        if sum(large_enough(profile, gpu) for gpu in cards) < profile.gpus_per_node:
            return False
    return profile.nodes == 1 or any(one.hcas for one in facts.fabrics or ())
