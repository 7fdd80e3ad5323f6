"""The one home of Hypothesis strategies: small, mixed fleets and catalogs, biased to ties and edges.

Big random machines never tie and hide bugs; so nodes have 0 to 4 cards of few kinds, few sizes, few
names, everything may be unknown, and half of the fleets are copies of one node with small changes.
"""

from dataclasses import dataclass, replace
from typing import TypeVar

from hypothesis import strategies as st

from roost.domain.allocation import Allocation, AllocationState, ReplicaName
from roost.domain.fabric import FabricAttachment, FabricName, HcaName
from roost.domain.fleet import Fleet
from roost.domain.gpu import Gpu, GpuClass, GpuUuid
from roost.domain.model import Catalog, Model, ModelName
from roost.domain.node import Facts, Filesystem, Node, NodeName
from roost.domain.profile import Engine, Profile, ProfileName
from roost.domain.units import GB

NODE_NAMES = ("n1", "n10", "n2", "b", "a", "z")
"""`n10` sorts before `n2`: names are compared as text."""
CLASSES = (GpuClass("h100"), GpuClass("h100-nvl"), GpuClass("rtx-4090"))
"""One contains another: containment is not equality."""
ENGINES = (Engine.VLLM, Engine.LLAMA_CPP)


T = TypeVar("T")


def mostly(usual: T, *others: T) -> st.SearchStrategy[T]:
    """`usual` nine times in ten, else one of `others`."""
    return st.sampled_from([usual] * (9 * len(others)) + list(others))


@st.composite
def gpu_lists(draw: st.DrawFn, node: str) -> tuple[Gpu, ...]:
    """0 to 4 cards, mostly of one class; NVLink whole, split, partly known or not known."""
    count = draw(st.sampled_from([4, 2, 3, 4, 1, 2, 0]))
    main = draw(st.sampled_from([CLASSES[0], CLASSES[0], CLASSES[0], *CLASSES]))
    mixed = draw(st.sampled_from([False, False, True]))
    size = draw(st.sampled_from([None, 24 * GB, 80 * GB]))
    domains = draw(
        st.sampled_from(
            [
                (None, None, None, None),
                (0, 0, 0, 0),
                (0, 0, 1, 1),
                (1, 0, 1, 0),
                (0, 1, 2, 3),
                (0, 0, None, None),
                (None, 1, 1, 1),
                (0, 1, None, 1),
            ]
        )
    )
    gap = draw(mostly(0, 1))
    cards = []
    for at in range(count):
        index = at + (gap if at else 0)
        cards.append(
            Gpu(
                index=index,
                uuid=draw(mostly(GpuUuid(f"GPU-{node}-{index}"), None)),
                gpu_class=draw(st.sampled_from([main, *CLASSES])) if mixed else main,
                memory_bytes=draw(st.sampled_from([size, size, size, None, 16 * GB, 80 * GB])),
                nvlink_domain=domains[at],
                healthy=draw(mostly(True, None, False)),
                unhealthy_reason=draw(mostly(None, "3 uncorrectable ECC errors")),
                foreign_processes=draw(mostly(0, None, 1)),
            )
        )
    return tuple(draw(st.permutations(cards)))


ATTACHMENTS = st.sampled_from(
    [
        (("ib0", ("mlx5_0",)),),
        (("ib0", ("mlx5_0",)),),
        (("ib0", ("mlx5_0", "mlx5_1")), ("ib1", ())),
        (("ib0", ("mlx5_0",)), ("ib1", ("mlx5_1",))),
        (("ib1", ("mlx5_1",)), ("ib0", ("mlx5_0",))),
        (("ib1", ("mlx5_1", "mlx5_2")),),
        (("ib0", ()),),
        (),
        None,
    ]
)


@st.composite
def filesystems(draw: st.DrawFn, *, shared: bool = False, name: str = "/dev/a") -> Filesystem:
    """A small one, with free and total known or not."""
    total = draw(st.sampled_from([None, 50 * GB, 100 * GB]))
    free = draw(st.sampled_from([None, 0, 20 * GB, 40 * GB, 50 * GB]))
    return Filesystem(
        filesystem="filer:/models" if shared else name,
        mounts=("/models",),
        shared=shared,
        free_bytes=free,
        total_bytes=total,
    )


STORAGES = st.one_of(
    st.none(),
    st.just(()),
    st.tuples(filesystems()),
    st.tuples(filesystems(shared=True)),
    st.tuples(filesystems(), filesystems(shared=True)),
    st.tuples(filesystems(), filesystems(name="/dev/b")),
    filesystems().map(lambda one: (one, replace(one, mounts=("/",)))),
)
"""None known, one, one and a shared one, two, and one listed for each of its mounts."""


@st.composite
def nodes(draw: st.DrawFn, name: str = "n1") -> Node:
    """A node that mostly could take work."""
    reported = draw(ATTACHMENTS)
    return Node(
        name=NodeName(name),
        ready=draw(mostly(True, False)),
        not_ready_since=draw(mostly(None, "12:03:10")),
        cordoned=draw(mostly(False, True)),
        cordon_reason=draw(mostly(None, "fan failure")),
        facts=Facts(
            labels=draw(st.sampled_from([{}, {"pool": "x"}, {"pool": "y", "ram": "32g"}])),
            memory_bytes=draw(st.sampled_from([None, 16 * GB, 32 * GB, 32 * GB, 64 * GB])),
            engines=draw(
                mostly(None, frozenset(), frozenset({"vllm"}), frozenset({"vllm", "llama.cpp"}))
            ),
            gpus=draw(gpu_lists(name)) if draw(mostly(True, False)) else None,
            fabrics=None
            if reported is None
            else tuple(
                FabricAttachment(name=FabricName(fabric), hcas=tuple(HcaName(h) for h in hcas))
                for fabric, hcas in reported
            ),
            storage=draw(STORAGES),
        ),
    )


def renamed(node: Node, name: str) -> Node:
    """The same machine under another name, with its own uuids."""
    gpus = node.facts.gpus
    if gpus is not None:
        gpus = tuple(
            replace(gpu, uuid=None if gpu.uuid is None else GpuUuid(f"GPU-{name}-{gpu.index}"))
            for gpu in gpus
        )
    return replace(node, name=NodeName(name), facts=replace(node.facts, gpus=gpus))


@st.composite
def node_lists(draw: st.DrawFn, *, least: int = 0) -> tuple[Node, ...]:
    """Up to six nodes: copies of one with small changes, or each for itself."""
    names = draw(st.permutations(NODE_NAMES))
    names = names[: draw(st.sampled_from([4, 6, 3, 5, 2, 1, least]))]
    if draw(st.booleans()):
        return tuple(draw(nodes(name)) for name in names)
    template = draw(nodes())
    found = []
    for name in names:
        node = renamed(template, name)
        change = draw(
            st.sampled_from(["", "", "", "node", "fabrics", "gpus", "memory_bytes", "labels"])
        )
        if change == "node":
            node = replace(draw(nodes(name)), facts=node.facts)
        elif change:
            fact = getattr(draw(nodes(name)).facts, change)
            node = replace(node, facts=replace(node.facts, **{change: fact}))
        found.append(node)
    return tuple(found)


HOLDERS = ("m0-0", "m0-1", "m1-0", "other-0", "other-1")


@st.composite
def allocations(draw: st.DrawFn, node: Node) -> tuple[Allocation, ...]:
    """0 to 2 replicas on a node, on no card twice; some are the catalog's own."""
    indices = sorted(gpu.index for gpu in node.facts.gpus or ())
    uuids = {gpu.index: gpu.uuid for gpu in node.facts.gpus or ()}
    found = []
    for holder in draw(st.lists(st.sampled_from(HOLDERS), max_size=2, unique=True)):
        gpus = tuple(
            sorted(draw(st.lists(st.sampled_from(indices), max_size=2, unique=True)))
            if indices
            else ()
        )
        indices = [index for index in indices if index not in gpus]
        model, _, index = holder.rpartition("-")
        ours = model != "other" and draw(st.sampled_from([True, True, False]))
        known = tuple(uuid for i in gpus if (uuid := uuids[i]) is not None)
        by_uuid = draw(st.sampled_from([known, known, known[:1], ()]))
        # A card fell off the bus: what was numbered 1 is 0 now.
        shift = 1 if len(by_uuid) == len(gpus) > 0 and draw(mostly(False, True)) else 0
        found.append(
            Allocation(
                replica=ReplicaName(holder),
                node=node.name,
                model=ModelName(model) if ours else None,
                index=int(index) if ours and draw(st.booleans()) else None,
                profile=ProfileName("p0") if ours else None,
                gpus=tuple(index + shift for index in gpus),
                gpu_uuids=by_uuid,
                memory_bytes=draw(st.sampled_from([8 * GB, None, 0, 16 * GB, 40 * GB])),
                disk_bytes=draw(st.sampled_from([None, None, 10 * GB, 20 * GB, 30 * GB])),
                state=draw(st.sampled_from([AllocationState.HELD, *AllocationState])),
            )
        )
    return tuple(found)


@st.composite
def fleets(draw: st.DrawFn, *, least: int = 0, held: bool = True) -> Fleet:
    """Nodes, and what is held on some of them."""
    machines = draw(node_lists(least=least))
    holds: list[Allocation] = []
    if held:
        for node in machines:
            if draw(st.booleans()):
                holds.extend(draw(allocations(node)))
    return Fleet(nodes=machines, allocations=tuple(draw(st.permutations(holds))))


@st.composite
def profiles(draw: st.DrawFn, name: str = "p0", *, most_nodes: int = 3) -> Profile:
    """One that asks for little in most ways, so that it often fits."""
    gpu_class = draw(st.sampled_from([*[CLASSES[0]] * 6, CLASSES[1], CLASSES[2], None, None]))
    count = draw(st.sampled_from([1, 1, 1, 2, 2, 2, 3, 4])) if gpu_class else 0
    several = draw(st.sampled_from([1, 1, 1, 2, 2, 3])) if gpu_class else 1
    return Profile(
        name=ProfileName(name),
        engine=draw(st.sampled_from(ENGINES)),
        source="model.gguf",
        priority=draw(st.integers(0, 1)),
        gpu_class=gpu_class,
        gpus_per_node=count,
        nodes=min(several, most_nodes),
        tensor_parallel=max(1, count),
        pipeline_parallel=min(several, most_nodes),
        node_selector=draw(mostly({}, {"pool": "x"}, {"pool": "y", "ram": "32g"})),
        min_memory_bytes=draw(st.sampled_from([None, None, None, 8 * GB, 32 * GB])),
        min_disk_bytes=draw(mostly(None, 10 * GB, 40 * GB)),
        min_gpu_memory_bytes=draw(st.sampled_from([None, None, None, 24 * GB]))
        if gpu_class
        else None,
    )


@st.composite
def catalogs(
    draw: st.DrawFn, *, most_models: int = 3, most_replicas: int = 3, least: int = 0
) -> Catalog:
    """Up to three models of up to three profiles each."""
    count = draw(st.integers(least, most_models))
    return Catalog(
        models=tuple(
            Model(
                name=ModelName(f"m{at}"),
                replicas=draw(st.integers(least, most_replicas)),
                priority=draw(mostly(0, 1)),
                profiles=tuple(
                    draw(profiles(f"p{which}"))
                    for which in range(draw(st.sampled_from([1, 2, 1, 3])))
                ),
            )
            for at in range(count)
        )
    )


def one_replica(profile: Profile) -> Catalog:
    """The smallest catalog that asks for a profile."""
    return Catalog(models=(Model(name=ModelName("m0"), profiles=(profile,)),))


@dataclass(frozen=True, slots=True)
class World:
    """What `plan` is asked."""

    catalog: Catalog
    fleet: Fleet


def model_of(name: str, replicas: int, *shapes: Profile) -> Model:
    return Model(name=ModelName(name), replicas=replicas, profiles=shapes)


@st.composite
def disk_worlds(draw: st.DrawFn) -> World:
    """Nodes that differ in local filesystems and in what is claimed on them."""
    machines, holds = [], []
    for name in NODE_NAMES[: draw(st.integers(1, 3))]:
        frees = draw(st.lists(st.sampled_from([20, 30, 40, 50]), min_size=1, max_size=2))
        storage = tuple(
            Filesystem(filesystem=f"/dev/{at}", free_bytes=free * GB, total_bytes=100 * GB)
            for at, free in enumerate(frees)
        )
        machines.append(Node(name=NodeName(name), facts=Facts(storage=storage, gpus=())))
        holds += [
            Allocation(replica=ReplicaName(f"x-{at}"), node=NodeName(name), disk_bytes=claim * GB)
            for at, claim in enumerate(draw(st.lists(st.sampled_from([10, 20, 30]), max_size=3)))
        ]
    models = [
        model_of(
            f"m{at}",
            draw(st.integers(1, 3)),
            Profile(
                name=ProfileName("p0"),
                engine=Engine.LLAMA_CPP,
                source="s",
                min_disk_bytes=draw(st.sampled_from([10, 20, 40])) * GB,
            ),
        )
        for at in range(draw(st.integers(1, 2)))
    ]
    fleet = Fleet(nodes=tuple(machines), allocations=tuple(draw(st.permutations(holds))))
    return World(Catalog(models=tuple(models)), fleet)


def cards(count: int) -> tuple[Gpu, ...]:
    return tuple(Gpu(index=at, gpu_class=CLASSES[0]) for at in range(count))


@st.composite
def some_cards_held(draw: st.DrawFn, machines: list[Node]) -> Fleet:
    """One card taken on some of the nodes."""
    holds = tuple(
        Allocation(replica=ReplicaName(f"x-{at}"), node=node.name, gpus=(0,))
        for at, node in enumerate(machines)
        if draw(st.sampled_from([False, False, True]))
    )
    return Fleet(nodes=tuple(draw(st.permutations(machines))), allocations=holds)


@st.composite
def group_worlds(draw: st.DrawFn) -> World:
    """Nodes that differ in cards and fabrics, and replicas of several nodes."""
    machines = []
    for name in NODE_NAMES[: draw(st.integers(2, 6))]:
        names = draw(st.lists(st.sampled_from(["ib0", "ib1", "ib2"]), min_size=1, unique=True))
        fabrics = tuple(
            FabricAttachment(name=FabricName(one), hcas=(HcaName(f"mlx_{one}"),))
            for one in names[:2]
        )
        facts = Facts(gpus=cards(draw(st.sampled_from([2, 2, 4]))), fabrics=fabrics)
        machines.append(Node(name=NodeName(name), facts=facts))
    models = []
    for at in range(draw(st.integers(1, 2))):
        count, several = draw(st.sampled_from([1, 2])), draw(st.sampled_from([2, 2, 3]))
        shape = Profile(
            name=ProfileName("p0"),
            engine=Engine.VLLM,
            source="s",
            gpu_class=CLASSES[0],
            gpus_per_node=count,
            nodes=several,
        )
        models.append(model_of(f"m{at}", draw(st.integers(1, 2)), shape))
    return World(Catalog(models=tuple(models)), draw(some_cards_held(machines)))


@st.composite
def wanted_worlds(draw: st.DrawFn) -> World:
    """Nodes that differ only in who could ever use them."""
    machines = [
        Node(
            name=NodeName(name),
            facts=Facts(
                labels=draw(st.sampled_from([{}, {"pool": "x"}, {"pool": "y"}])),
                memory_bytes=draw(st.sampled_from([None, 32 * GB, 64 * GB])),
                gpus=cards(2),
            ),
        )
        for name in NODE_NAMES[: draw(st.integers(2, 5))]
    ]
    models = [
        model_of(
            f"m{at}",
            draw(st.integers(1, 2)),
            Profile(
                name=ProfileName("p0"),
                engine=Engine.VLLM,
                source="s",
                gpu_class=CLASSES[0],
                gpus_per_node=draw(st.sampled_from([1, 1, 2])),
                node_selector=draw(st.sampled_from([{}, {}, {"pool": "x"}, {"pool": "y"}])),
                min_memory_bytes=draw(st.sampled_from([None, 24 * GB, 48 * GB])),
            ),
        )
        for at in range(draw(st.integers(1, 4)))
    ]
    return World(Catalog(models=tuple(models)), draw(some_cards_held(machines)))


@st.composite
def card_worlds(draw: st.DrawFn) -> World:
    """Nodes that differ card by card: NVLink, health, processes, size, who holds it."""
    machines, holds = [], []
    for name in NODE_NAMES[: draw(st.integers(1, 3))]:
        gpus = tuple(
            Gpu(
                index=at,
                uuid=GpuUuid(f"GPU-{name}-{at}"),
                gpu_class=CLASSES[0],
                memory_bytes=draw(st.sampled_from([80 * GB, 80 * GB, None, 24 * GB])),
                nvlink_domain=draw(st.sampled_from([0, 1, None, 2])),
                healthy=draw(st.sampled_from([True, True, None, False])),
                foreign_processes=draw(st.sampled_from([0, 0, None, 1])),
            )
            for at in range(draw(st.integers(2, 5)))
        )
        machines.append(Node(name=NodeName(name), facts=Facts(gpus=gpus)))
        held = draw(st.sampled_from([None, None, *gpus]))
        if held is not None:
            holds.append(
                Allocation(
                    replica=ReplicaName(f"x-{name}"),
                    node=NodeName(name),
                    gpus=(held.index,),
                    gpu_uuids=draw(st.sampled_from([(), (GpuUuid(f"GPU-{name}-0"),)])),
                )
            )
    models = [
        model_of(
            f"m{at}",
            draw(st.integers(1, 2)),
            Profile(
                name=ProfileName("p0"),
                engine=Engine.VLLM,
                source="s",
                gpu_class=CLASSES[0],
                gpus_per_node=draw(st.sampled_from([2, 1, 3])),
                min_gpu_memory_bytes=draw(st.sampled_from([None, None, 48 * GB])),
            ),
        )
        for at in range(draw(st.integers(1, 2)))
    ]
    fleet = Fleet(nodes=tuple(draw(st.permutations(machines))), allocations=tuple(holds))
    return World(Catalog(models=tuple(models)), fleet)


anything = st.builds(World, catalogs(least=1), fleets())
KINDS: dict[str, st.SearchStrategy[World]] = {
    "anything": anything,
    "disks": disk_worlds(),
    "groups": group_worlds(),
    "wanted": wanted_worlds(),
    "cards": card_worlds(),
}
"""Any fleet, and those in which a single thing makes the difference."""
worlds = st.one_of(anything, anything, anything, *KINDS.values())
"""At least one replica is asked for."""


def one_of_it(world: World) -> World:
    """The same with one replica of the first model."""
    first = replace(world.catalog.models[0], replicas=1)
    return World(Catalog(models=(first,)), world.fleet)


singles = worlds.map(one_of_it)
"""A fleet that is asked for one replica."""
