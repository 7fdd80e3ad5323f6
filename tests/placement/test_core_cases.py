"""Placement cases that somebody thought of, and the sentences of FORMATS.md §3, word for word."""

from dataclasses import replace

import pytest

from roost.domain.allocation import Allocation, AllocationState, ReplicaName
from roost.domain.fabric import FabricAttachment, FabricName, HcaName
from roost.domain.fleet import Fleet
from roost.domain.gpu import Gpu, GpuClass, GpuUuid
from roost.domain.model import Catalog, Model, ModelName
from roost.domain.node import Facts, Filesystem, Node, NodeName
from roost.domain.profile import Engine, Profile, ProfileName
from roost.domain.units import GB
from roost.placement import plan
from roost.placement.decision import Change, Decision, Outcome

H100 = GpuClass("h100-80gb-hbm3")


def cards(count: int, gpu_class: GpuClass = H100, domain: int | None = 0) -> tuple[Gpu, ...]:
    return tuple(
        Gpu(index=at, gpu_class=gpu_class, uuid=GpuUuid(f"GPU-{at}"), nvlink_domain=domain)
        for at in range(count)
    )


def node(name: str, gpus: tuple[Gpu, ...] | None = (), fabric: str | None = None) -> Node:
    fabrics = (
        ()
        if fabric is None
        else (FabricAttachment(name=FabricName(fabric), hcas=(HcaName("mlx5_0"),)),)
    )
    return Node(name=NodeName(name), facts=Facts(gpus=gpus, fabrics=fabrics))


def asks(gpus: int, nodes: int = 1) -> Profile:
    return Profile(
        name=ProfileName("p"),
        engine=Engine.VLLM if gpus else Engine.LLAMA_CPP,
        source="model",
        gpu_class=H100 if gpus else None,
        gpus_per_node=gpus,
        nodes=nodes,
    )


def model(profile: Profile, replicas: int = 1, name: str = "m", priority: int = 0) -> Model:
    return Model(name=ModelName(name), replicas=replicas, profiles=(profile,), priority=priority)


def planned(fleet: Fleet, *models: Model) -> tuple[Decision, ...]:
    return plan(Catalog(models=models), fleet)


def messages(decision: Decision) -> dict[str, list[str]]:
    return {
        one.node: [reason.message for reason in one.reasons] for one in decision.tried[-1].rejected
    }


def holds(replica: str, on: str, *gpus: int, memory: int | None = None) -> Allocation:
    return Allocation(
        replica=ReplicaName(replica), node=NodeName(on), gpus=gpus, memory_bytes=memory
    )


def test_a_card_with_a_process_of_somebody_else_is_not_free() -> None:
    gpus = tuple(
        replace(gpu, foreign_processes=int(gpu.index < 4)) for gpu in cards(8, domain=None)
    )
    fleet = Fleet(nodes=(node("n", gpus),))
    x, y = planned(fleet, model(asks(4), name="x", priority=1), model(asks(8), name="y"))
    assert x.shards[0].gpus == (4, 5, 6, 7)
    assert y.outcome is Outcome.UNPLACEABLE
    assert messages(y) == {
        "n": [
            "has 0 free of 8 h100-80gb-hbm3 (4 allocated to x-0; 4 held by another process), needs 8"
        ]
    }
    (alone,) = planned(fleet, model(asks(8), name="y"))
    (remedy,) = alone.would_fit_if
    assert remedy.change is Change.END_PROCESS
    assert remedy.message == "end the other processes on GPUs 0, 1, 2, 3 of n"


def test_a_pinned_profile_waits_for_its_node_and_the_reasons_speak_of_nothing_else() -> None:
    a, b = (
        replace(node(name, cards(8)), facts=Facts(gpus=cards(8), labels={"host": name}))
        for name in ("a", "b")
    )
    away = replace(a, ready=False, not_ready_since="12:03:10")
    profile = replace(asks(8), node_selector={"host": "a"})
    (waits,) = planned(Fleet(nodes=(away, b)), model(profile))
    assert messages(waits) == {
        "a": ["is not ready since 12:03:10"],
        "b": ["carries host=b, needs host=a"],
    }
    (back,) = planned(Fleet(nodes=(a, b)), model(profile))
    assert back.shards[0].node == "a"


def test_what_runs_is_not_moved_for_a_higher_priority_and_its_holder_is_named() -> None:
    low = Allocation(
        replica=ReplicaName("low-0"),
        model=ModelName("low"),
        index=0,
        node=NodeName("n"),
        gpus=(0, 1),
    )
    fleet = Fleet(nodes=(node("n", cards(2)),), allocations=(low,))
    for profile, replicas in ((asks(1), 2), (asks(2), 1)):
        kept, *high = planned(
            fleet, model(asks(2), name="low"), model(profile, replicas, "high", priority=90)
        )
        assert (kept.outcome, kept.order) == (Outcome.KEPT, 1)
        for decision in high:
            assert decision.outcome is Outcome.UNPLACEABLE
            assert "2 allocated to low-0" in messages(decision)["n"][0]
            assert decision.would_fit_if[0].change is Change.FREE_GPUS


def test_replicas_of_several_nodes_are_placed_whole_or_not_at_all() -> None:
    fleet = Fleet(nodes=tuple(node(f"n{at}", cards(1), "ib0") for at in range(4)))
    decisions = planned(fleet, model(asks(1, nodes=2), replicas=3))
    assert [one.outcome for one in decisions[:2]] == [Outcome.PLACED] * 2
    assert len({shard.node for one in decisions for shard in one.shards}) == 4
    third = decisions[2]
    assert third.shards == ()
    assert third.why == "no profile fits: ib0 has 0 nodes that fit, needs 2"
    both = planned(fleet, *(model(asks(1, nodes=2), replicas=2, name=name) for name in ("v", "w")))
    assert [len(one.shards) for one in both] == [2, 2, 0, 0]


def test_two_pairs_fit_on_four_cards_and_a_third_is_told_so() -> None:
    first, second, third = planned(Fleet(nodes=(node("n", cards(4)),)), model(asks(2), replicas=3))
    assert {first.shards[0].gpus, second.shards[0].gpus} == {(0, 1), (2, 3)}
    assert messages(third) == {
        "n": ["has 0 free of 4 h100-80gb-hbm3 (4 allocated to m-0, m-1), needs 2"]
    }


@pytest.mark.parametrize("state", list(AllocationState))
def test_what_is_stopping_or_lost_holds_its_cards_and_does_not_count_for_its_model(
    state: AllocationState,
) -> None:
    hold = Allocation(
        replica=ReplicaName("m-0"),
        model=ModelName("m"),
        index=0,
        node=NodeName("a"),
        gpus=(0,),
        state=state,
    )
    fleet = Fleet(nodes=(node("a", cards(1)), node("b", cards(1))), allocations=(hold,))
    (decision,) = planned(fleet, model(asks(1)))
    if state is AllocationState.HELD:
        assert (decision.outcome, decision.shards[0].node) == (Outcome.KEPT, "a")
    else:
        assert (decision.outcome, decision.shards[0].node) == (Outcome.PLACED, "b")


def test_a_card_is_held_by_uuid_when_the_indices_have_shifted() -> None:
    gpus = tuple(replace(gpu, uuid=GpuUuid(f"GPU-{gpu.index + 1}")) for gpu in cards(3))
    hold = replace(holds("x-0", "n", 1), gpu_uuids=(GpuUuid("GPU-1"),))
    (decision,) = planned(Fleet(nodes=(node("n", gpus),), allocations=(hold,)), model(asks(2)))
    assert decision.shards[0].gpu_uuids == ("GPU-2", "GPU-3")


def test_every_sentence_is_word_for_word_that_of_the_table() -> None:
    ecc = "3 uncorrectable ECC errors"
    short = tuple(
        replace(
            gpu,
            healthy=gpu.index != 2,
            unhealthy_reason=ecc if gpu.index == 2 else None,
        )
        for gpu in cards(4)
    )
    small = tuple(replace(gpu, memory_bytes=(80 if gpu.index < 4 else 24) * GB) for gpu in cards(8))
    disk = Filesystem(filesystem="/dev/a", free_bytes=24 * GB, total_bytes=100 * GB)

    def having(name: str, **facts: object) -> Node:
        known = Facts(gpus=cards(8), fabrics=node("x", (), "ib0").facts.fabrics)
        return Node(name=NodeName(name), facts=replace(known, **facts))  # type: ignore[arg-type]  # by keyword

    nodes = (
        replace(having("away"), ready=False, not_ready_since="12:03:10"),
        replace(having("cordoned"), cordoned=True, cordon_reason="fan failure"),
        replace(having("draining"), draining=True),
        having("disk", storage=(disk,)),
        having("engine", engines=frozenset({"llama.cpp"})),
        having("held", memory_bytes=32 * GB),
        having("label", labels={"ram": "16g"}),
        having("memory", memory_bytes=8 * GB),
        having("no-cards", gpus=()),
        having("no-fabric", fabrics=()),
        having("one-card", gpus=cards(1)),
        having("short", gpus=short),
        having("small", gpus=small),
        having("unknown-cards", gpus=None),
        having("unknown-fabric", fabrics=None),
    )
    named = {one.name: one for one in nodes}

    def told(name: str, gpus: int, *held: Allocation, **more: object) -> list[str]:
        profile = replace(asks(gpus, nodes=2), **more)  # type: ignore[arg-type]  # by keyword
        fleet = Fleet(nodes=(named[NodeName(name)],), allocations=held)
        return messages(planned(fleet, model(profile))[0])[name]

    assert told("away", 2) == ["is not ready since 12:03:10"]
    assert told("cordoned", 2) == ["is cordoned: fan failure"]
    assert told("draining", 2) == ["is cordoned and draining"]
    assert told("label", 2, node_selector={"ram": "32g"}) == ["carries ram=16g, needs ram=32g"]
    assert told("memory", 2, node_selector={"ram": "32g"}) == ["does not carry ram=32g"]
    assert told("engine", 2) == ["does not have vllm installed"]
    assert told("memory", 2, min_memory_bytes=24 * GB) == ["has 8 GB of memory, needs 24"]
    assert told("held", 2, holds("coder-0", "held", memory=24 * GB), min_memory_bytes=24 * GB) == [
        "has 32 GB of memory, 24 held by coder-0, needs 24"
    ]
    assert told("disk", 2, min_disk_bytes=40 * GB) == [
        "has 24 GB free of 100 GB on local disk, needs 40"
    ]
    assert told("unknown-cards", 2) == ["does not report its GPUs"]
    assert told("no-cards", 2) == ["has no h100-80gb-hbm3, needs 2"]
    assert told("one-card", 2) == ["has 1 h100-80gb-hbm3, needs 2"]
    assert told("small", 8, min_gpu_memory_bytes=70 * GB) == [
        "has 4 h100-80gb-hbm3 with 70 GB or more of 8, needs 8"
    ]
    assert told("short", 2, holds("m-0", "short", 0), holds("m-1", "short", 1)) == [
        "has 1 free of 4 h100-80gb-hbm3 (2 allocated to m-0, m-1; 1 unhealthy: 3 uncorrectable ECC errors), needs 2"
    ]
    assert told("no-fabric", 2) == ["is on no fabric"]
    assert told("unknown-fabric", 2) == ["does not report fabrics"]
    assert told("held", 2) == ["ib0 has 1 node that fits, needs 2"]


def test_the_winner_says_what_it_won_by_and_names_the_next() -> None:
    a, c = node("gpu-a", cards(4)), node("gpu-c", cards(8))
    held = (holds("x-0", "gpu-c", 0), holds("x-1", "gpu-a", 0))
    (decision,) = planned(Fleet(nodes=(c, a), allocations=held), model(asks(2)))
    assert decision.shards[0].node == "gpu-a"
    assert decision.why == "fewest free h100-80gb-hbm3 left (1); next gpu-c (5)"
    (split,) = planned(
        Fleet(nodes=(node("n", tuple(replace(g, nvlink_domain=g.index) for g in cards(2))),)),
        model(asks(2)),
    )
    assert split.why == "the only node that fits; the group spans 2 NVLink domains"


def test_the_nearest_node_and_what_would_help_are_told() -> None:
    fleet = Fleet(
        nodes=(
            replace(node("gpu-b", cards(2)), cordoned=True),
            node("gpu-a", tuple(replace(gpu, healthy=False) for gpu in cards(2))),
            node("cpu-1"),
        )
    )
    (decision,) = planned(fleet, model(asks(2)))
    assert decision.why == "no profile fits: nearest is gpu-b, cordoned"
    assert [(one.change, one.message, one.amount) for one in decision.would_fit_if] == [
        (Change.UNCORDON, "uncordon gpu-b", None),
        (Change.REPAIR_GPU, "repair GPUs 0, 1 of gpu-a", 2),
        (Change.ADD_GPUS, "add 2 h100-80gb-hbm3 to cpu-1", 2),
    ]


def test_an_empty_fleet_and_an_empty_catalog_are_answered() -> None:
    (decision,) = planned(Fleet(), model(asks(1)))
    assert decision.why == "no profile fits: the fleet has no nodes"
    assert (decision.tried[0].considered, list(decision.tried[0].rejected)) == (0, [])
    assert planned(Fleet(nodes=(node("n"),))) == ()


def test_any_page_of_the_rejected_is_the_same_as_that_part_of_all() -> None:
    fleet = Fleet(nodes=tuple(node(f"n{at:03}", cards(at % 2)) for at in range(300)))
    rejected = planned(fleet, model(asks(1)))[0].tried[0].rejected
    rows = list(rejected)
    assert [row.node for row in rows] == [f"n{at:03}" for at in range(0, 300, 2)]
    assert len(rejected) == len(rows)
    assert list(rejected[100:120]) == rows[100:120]
    assert list(rejected[-3:]) == rows[-3:]
    assert list(rejected[::7]) == rows[::7]
    assert (rejected[0], rejected[149], rejected[-1]) == (rows[0], rows[149], rows[-1])
    with pytest.raises(IndexError):
        rejected[150]
