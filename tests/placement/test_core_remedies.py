"""What would make it fit: every remedy carried out, and the question asked again."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import combinations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import strategies
from roost.domain.allocation import Allocation, ReplicaName
from roost.domain.fabric import FabricAttachment, FabricName, HcaName
from roost.domain.fleet import Fleet
from roost.domain.gpu import Gpu, GpuUuid
from roost.domain.node import Facts, Filesystem, Node, NodeName
from roost.domain.profile import Engine, Profile, ProfileName
from roost.domain.units import GB
from roost.placement import plan
from roost.placement.bits import members
from roost.placement.cards import by_index
from roost.placement.decision import Change, Outcome, Remedy
from roost.placement.rows import taken_by

often = settings(
    max_examples=400,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@st.composite
def near_misses(draw: st.DrawFn) -> tuple[Profile, Fleet]:
    """A profile that asks for something of everything, and nodes with one or two defects."""
    profile = Profile(
        name=ProfileName("p"),
        engine=Engine.VLLM,
        source="model",
        gpu_class=strategies.CLASSES[0],
        gpus_per_node=draw(st.integers(1, 3)),
        nodes=draw(st.sampled_from([1, 1, 2])),
        node_selector={"pool": "x"},
        min_memory_bytes=24 * GB,
        min_disk_bytes=40 * GB,
        min_gpu_memory_bytes=draw(st.sampled_from([None, 24 * GB])),
    )
    nodes: list[Node] = []
    holds: list[Allocation] = []
    for name in draw(st.lists(st.sampled_from(strategies.NODE_NAMES), min_size=1, unique=True)):
        node, held = _defective(name, draw(st.lists(st.sampled_from(DEFECTS), max_size=2)))
        nodes.append(node)
        holds.extend(held)
    return profile, Fleet(nodes=tuple(nodes), allocations=tuple(holds))


DEFECTS = (
    *("cordoned", "draining", "labels", "broken", "foreign", "taken", "all taken", "few", "small"),
    *("memory", "held memory", "disk", "held disk", "two disks", "fabric", "fabrics unknown"),
    *("gpus unknown", "not ready"),
)


def _defective(name: str, defects: list[str]) -> tuple[Node, list[Allocation]]:
    cards = [
        Gpu(
            index=at,
            gpu_class=strategies.CLASSES[0],
            uuid=GpuUuid(f"{name}-{at}"),
            memory_bytes=(16 if "small" in defects and at == 0 else 80) * GB,
            healthy=not ("broken" in defects and at < 2),
            foreign_processes=int("foreign" in defects and at > 0),
        )
        for at in range(1 if "few" in defects else 3)
    ]
    attached = FabricAttachment(name=FabricName("ib0"), hcas=(HcaName("mlx5_0"),))
    disks = [
        Filesystem(filesystem=f"/dev/{disk}", free_bytes=free * GB, total_bytes=100 * GB)
        for disk, free in (
            ("a", 20 if "disk" in defects else 50),
            ("b", 30 if "two disks" in defects else 10),
        )
    ]
    facts = Facts(
        labels={} if "labels" in defects else {"pool": "x"},
        memory_bytes=(16 if "memory" in defects else 32) * GB,
        gpus=None if "gpus unknown" in defects else tuple(cards),
        fabrics=None
        if "fabrics unknown" in defects
        else ()
        if "fabric" in defects
        else (attached,),
        storage=tuple(disks),
    )
    node = Node(
        name=NodeName(name),
        facts=facts,
        ready="not ready" not in defects,
        cordoned="cordoned" in defects,
        draining="draining" in defects,
    )
    hold = Allocation(
        replica=ReplicaName(f"x-{name}"),
        node=node.name,
        gpus=(0, 1, 2) if "all taken" in defects else (1,) if "taken" in defects else (),
        memory_bytes=20 * GB if "held memory" in defects else None,
        disk_bytes=30 * GB if "held disk" in defects else None,
    )
    if "few" in defects:
        hold = replace(hold, gpus=hold.gpus[:0])
    return node, [hold]


def fits(profile: Profile, fleet: Fleet) -> bool:
    (decision,) = plan(strategies.one_replica(profile), fleet)
    return decision.outcome is Outcome.PLACED


def with_node(fleet: Fleet, name: str, change: Callable[[Node], Node]) -> Fleet:
    nodes = tuple(change(node) if node.name == name else node for node in fleet.nodes)
    assert nodes != fleet.nodes
    return replace(fleet, nodes=nodes)


def uncordoned(node: Node) -> Node:
    return replace(node, cordoned=False, draining=False)


def with_facts(fleet: Fleet, name: str, change: Callable[[Facts], Facts]) -> Fleet:
    return with_node(fleet, name, lambda node: replace(node, facts=change(node.facts)))


def with_cards(
    fleet: Fleet, name: str, change: Callable[[Gpu], Gpu], amount: int
) -> Iterator[Fleet]:
    """Every way of changing so many cards of a node."""
    (node,) = (node for node in fleet.nodes if node.name == name)
    cards = node.facts.gpus or ()
    for some in combinations(range(len(cards)), amount):
        gpus = tuple(change(gpu) if at in some else gpu for at, gpu in enumerate(cards))
        if gpus != cards:
            yield with_facts(fleet, name, lambda facts, gpus=gpus: replace(facts, gpus=gpus))  # type: ignore[misc]  # bound now


def without_cards(fleet: Fleet, name: str, amount: int) -> Iterator[Fleet]:
    """Every way of taking so many cards from those who hold them; the others stay held."""
    (node,) = (node for node in fleet.nodes if node.name == name)
    cards = by_index(node.facts.gpus or ())
    for some in combinations(range(len(cards)), amount):
        holds = tuple(
            without(hold, cards, some) if hold.node == name else hold for hold in fleet.allocations
        )
        yield replace(fleet, allocations=holds)


def without(hold: Allocation, cards: tuple[Gpu, ...], some: tuple[int, ...]) -> Allocation:
    # By index, as the node numbers its cards now: uuids may be half known, or shifted.
    left = [at for at in members(taken_by(hold, cards)) if at not in some]
    return replace(hold, gpus=tuple(cards[at].index for at in left), gpu_uuids=())


def freed_memory(fleet: Fleet, name: str, amount: int) -> Fleet:
    left, holds = amount, []
    for hold in fleet.allocations:
        less = min(left, hold.memory_bytes or 0) if hold.node == name else 0
        left -= less
        holds.append(replace(hold, memory_bytes=(hold.memory_bytes or 0) - less))
    assert left == 0, "more than is held"
    return replace(fleet, allocations=tuple(holds))


def carried_out(remedy: Remedy, profile: Profile, fleet: Fleet) -> Iterator[Fleet]:
    """The fleet after that one change; of cards and disks, each choice there is."""
    name, amount = remedy.node, remedy.amount or 0
    assert name is not None
    assert name in remedy.message
    gpu_class = profile.gpu_class
    match remedy.change:
        case Change.UNCORDON:
            yield with_node(fleet, name, uncordoned)
        case Change.REPAIR_GPU:
            yield from with_cards(fleet, name, lambda gpu: replace(gpu, healthy=True), amount)
        case Change.END_PROCESS:
            yield from with_cards(fleet, name, lambda g: replace(g, foreign_processes=0), amount)
        case Change.FREE_GPUS:
            yield from without_cards(fleet, name, amount)
        case Change.ADD_LABEL:
            yield with_facts(
                fleet, name, lambda f: replace(f, labels={**f.labels, **profile.node_selector})
            )
        case Change.FREE_MEMORY:
            yield freed_memory(fleet, name, amount)
        case Change.ADD_MEMORY:
            yield with_facts(
                fleet, name, lambda f: replace(f, memory_bytes=(f.memory_bytes or 0) + amount)
            )
        case Change.FREE_DISK:
            yield from freed_disk(fleet, name, amount)
        case Change.ADD_GPUS:
            assert gpu_class is not None
            more = tuple(Gpu(index=90 + at, gpu_class=gpu_class) for at in range(amount))
            yield with_facts(fleet, name, lambda f: replace(f, gpus=(f.gpus or ()) + more))
        case Change.JOIN_FABRIC:
            yield joined(remedy, fleet)
        case Change.REPORT_FACTS if remedy.fabric is not None:
            yield joined(remedy, fleet)
        case Change.REPORT_FACTS:
            assert gpu_class is not None
            cards = tuple(Gpu(index=90 + at, gpu_class=gpu_class) for at in range(amount))
            yield with_facts(fleet, name, lambda f: replace(f, gpus=cards))


def joined(remedy: Remedy, fleet: Fleet) -> Fleet:
    assert remedy.fabric is not None
    assert remedy.node is not None
    more = FabricAttachment(name=remedy.fabric, hcas=(HcaName("mlx5_9"),))
    return with_facts(fleet, remedy.node, lambda f: replace(f, fabrics=(*(f.fabrics or ()), more)))


def freed_disk(fleet: Fleet, name: str, amount: int) -> Iterator[Fleet]:
    (node,) = (node for node in fleet.nodes if node.name == name)
    for which in node.facts.storage or ():
        if not which.shared:
            storage = tuple(
                replace(one, free_bytes=(one.free_bytes or 0) + amount)
                if one.filesystem == which.filesystem
                else one
                for one in node.facts.storage or ()
            )
            yield with_facts(fleet, name, lambda f, storage=storage: replace(f, storage=storage))  # type: ignore[misc]  # bound now


@often
@given(st.one_of(near_misses(), st.tuples(strategies.profiles(), strategies.fleets(least=1))))
def test_every_remedy_is_true(asked: tuple[Profile, Fleet]) -> None:
    profile, fleet = asked
    (decision,) = plan(strategies.one_replica(profile), fleet)
    told = decision.would_fit_if
    assert len(told) <= 5
    assert len({(one.change, one.node, one.fabric) for one in told}) == len(told)
    ranks = [list(Change).index(one.change) for one in told]
    assert ranks == sorted(ranks)
    for remedy in told:
        assert any(fits(profile, after) for after in carried_out(remedy, profile, fleet)), remedy


@often
@given(st.one_of(near_misses(), st.tuples(strategies.profiles(), strategies.fleets(least=1))))
def test_every_node_that_only_its_cordon_keeps_out_is_told_first(
    asked: tuple[Profile, Fleet],
) -> None:
    profile, fleet = asked
    (decision,) = plan(strategies.one_replica(profile), fleet)
    if decision.outcome is not Outcome.UNPLACEABLE:
        return
    shut = [node for node in fleet.nodes if node.cordoned or node.draining]
    would = {node.name for node in shut if fits(profile, with_node(fleet, node.name, uncordoned))}
    told = {one.node for one in decision.would_fit_if if one.change is Change.UNCORDON}
    assert told == set(sorted(would)[:5])


def test_freeing_disk_counts_the_claims_that_move_to_the_roomier_filesystem() -> None:
    disks = tuple(
        Filesystem(filesystem=f"/dev/{name}", free_bytes=free * GB, total_bytes=500 * GB)
        for name, free in (("a", 100), ("b", 80))
    )
    node = Node(name=NodeName("n"), facts=Facts(storage=disks, gpus=()))
    hold = Allocation(replica=ReplicaName("x-0"), node=node.name, disk_bytes=50 * GB)
    fleet = Fleet(nodes=(node,), allocations=(hold,))
    profile = Profile(
        name=ProfileName("p"),
        engine=Engine.LLAMA_CPP,
        source="model.gguf",
        min_disk_bytes=120 * GB,
    )
    (decision,) = plan(strategies.one_replica(profile), fleet)
    (remedy,) = decision.would_fit_if
    # 50 GB are charged to whichever is roomier: 70 GB more on `a` makes room, 40 on `b` doesn't.
    assert (remedy.change, remedy.amount) == (Change.FREE_DISK, 70 * GB)
    assert remedy.message == "free 70 GB on a local disk of n"


def test_no_label_is_proposed_that_only_an_agent_gives() -> None:
    selector = {"pool": "x", "roost/gpu-class": "t4"}
    profile = Profile(
        name=ProfileName("p"), engine=Engine.LLAMA_CPP, source="m.gguf", node_selector=selector
    )
    nodes = (
        Node(name=NodeName("a"), facts=Facts(labels={"pool": "x"})),
        Node(name=NodeName("b"), facts=Facts(labels={"roost/gpu-class": "t4"})),
        Node(name=NodeName("c")),
    )
    (decision,) = plan(strategies.one_replica(profile), Fleet(nodes=nodes))
    assert [one.message for one in decision.would_fit_if] == ["add label pool=x to b"]
    (decision,) = plan(strategies.one_replica(profile), Fleet(nodes=nodes[:1]))
    assert tuple(decision.would_fit_if) == ()
    assert decision.why == "no profile fits: nearest is a, does not carry roost/gpu-class=t4"
