"""What a person reads: the verdict first, for six nodes and for six thousand."""

from dataclasses import replace

from hypothesis import given, settings

import strategies
from roost.domain.fabric import FabricAttachment, FabricName, HcaName
from roost.domain.fleet import Fleet
from roost.domain.gpu import Gpu, GpuClass
from roost.domain.model import Catalog, Model, ModelName
from roost.domain.node import Facts, Node, NodeName
from roost.domain.profile import Engine, Profile, ProfileName
from roost.placement import plan
from roost.placement.decision import Outcome
from roost.placement.explain import explain

ON_2 = Profile(
    name=ProfileName("p"),
    engine=Engine.VLLM,
    source="s",
    gpu_class=GpuClass("l4"),
    gpus_per_node=2,
)


def asking(profile: Profile, replicas: int = 1) -> Catalog:
    model = Model(name=ModelName("coder"), replicas=replicas, profiles=(profile,))
    return Catalog(models=(model,))


def node(name: str, cards: int, **more: object) -> Node:
    gpus = tuple(Gpu(index=at, gpu_class=GpuClass("l4")) for at in range(cards))
    made = Node(name=NodeName(name), facts=Facts(gpus=gpus))
    return replace(made, **more)  # type: ignore[arg-type]  # fields of Node


SIX = Fleet(
    nodes=(
        *(node(f"cpu-{at}", 0) for at in range(4)),
        node("gpu-a", 2, cordoned=True, cordon_reason="fan failure"),
        node("gpu-b", 1),
    )
)


def test_a_refusal_is_told_from_the_verdict_down_to_each_group_of_nodes() -> None:
    assert explain(plan(asking(ON_2), SIX)).splitlines() == [
        "coder-0: unplaceable",
        "  no profile fits: nearest is gpu-a, cordoned: fan failure",
        "  it would fit with one of:",
        "    uncordon gpu-a",
        "    add 1 l4 to gpu-b",
        "    add 2 l4 to cpu-0",
        "    add 2 l4 to cpu-1",
        "    add 2 l4 to cpu-2",
        "  profile p: 0 of 6 nodes fit: 1 cordoned, 5 gpu_class_absent",
        "    gpu-b: has 1 l4, needs 2",
        "    cpu-0, cpu-1, cpu-2, cpu-3: has no l4, needs 2",
        "    gpu-a: is cordoned: fan failure",
    ]


def test_only_replicas_that_follow_each_other_are_told_as_one() -> None:
    every = plan(asking(ON_2, replicas=4), SIX)
    told = explain((every[0], every[2], every[3])).splitlines()
    assert [line for line in told if "coder" in line] == [
        "coder-0: unplaceable",
        "coder-2 to coder-3 (2 replicas): unplaceable",
    ]


def test_every_node_has_a_line_when_asked() -> None:
    told = explain(plan(asking(ON_2), SIX), all_nodes=True)
    for one in SIX.nodes:
        assert any(line.startswith(f"    {one.name}: ") for line in told.splitlines())


def test_a_success_says_what_it_won_by_and_the_runner_up() -> None:
    fleet = Fleet(nodes=(node("a", 4), node("b", 2), node("c", 0)))
    assert explain(plan(asking(ON_2), fleet)).splitlines() == [
        "coder-0: placed on b, GPUs 0, 1 by profile p",
        "  fewest free l4 left (0); next a (2)",
        "  profile p: 2 of 3 nodes fit: 1 gpu_class_absent",
    ]


def test_six_thousand_nodes_are_a_screen_and_all_of_them_when_asked() -> None:
    fleet = Fleet(nodes=tuple(node(f"n{at:04}", at % 2) for at in range(6_000)))
    told = explain(plan(asking(ON_2, replicas=50), fleet))
    assert "coder-0 to coder-49 (50 replicas): unplaceable" in told
    assert "n0001, n0003, n0005, n0007 and 2,996 more: has 1 l4, needs 2" in told
    assert len(told.splitlines()) < 16
    assert len(explain(plan(asking(ON_2), fleet), all_nodes=True).splitlines()) > 6_000


def test_nodes_that_all_differ_are_told_by_code_with_an_example() -> None:
    fleet = Fleet(
        nodes=tuple(
            node(f"n{at:03}", 2, cordoned=True, cordon_reason=f"ticket {at}") for at in range(500)
        )
    )
    told = explain(plan(asking(ON_2), fleet))
    assert "    500 nodes cordoned, such as n000 is cordoned: ticket 0" in told
    assert len(told.splitlines()) < 16


def test_a_group_of_nodes_says_its_fabric_and_every_rank() -> None:
    fabric = FabricAttachment(name=FabricName("ib0"), hcas=(HcaName("mlx5_0"),))
    both = [
        replace(one, facts=replace(one.facts, fabrics=(fabric,)))
        for one in (node("a", 8), node("b", 8))
    ]
    four = replace(ON_2, gpus_per_node=4, nodes=2)
    told = explain(plan(asking(four), Fleet(nodes=tuple(both)))).splitlines()
    assert told[:3] == [
        "coder-0: placed on 2 nodes of fabric ib0 by profile p",
        "  rank 0: a, GPUs 0-3, mlx5_0",
        "  rank 1: b, GPUs 0-3, mlx5_0",
    ]


def test_the_nearest_node_is_told_by_the_profile_that_its_remedy_is_for() -> None:
    on_cards = replace(ON_2, gpus_per_node=16, priority=1)
    labelled = replace(ON_2, name=ProfileName("q"), node_selector={"rack": "r3"})
    model = Model(name=ModelName("coder"), profiles=(on_cards, labelled))
    (decision,) = plan(Catalog(models=(model,)), Fleet(nodes=(node("a", 8),)))
    assert decision.would_fit_if[0].message == "add label rack=r3 to a"
    assert decision.why == "no profile fits: nearest is a, does not carry rack=r3"


def test_of_very_many_fabrics_those_with_most_nodes_are_told() -> None:
    nodes = []
    for at in range(41):
        fabric = FabricAttachment(name=FabricName(f"ib{at // 2:02}"), hcas=(HcaName("mlx5_0"),))
        one = node(f"n{at:02}", 8)
        nodes.append(replace(one, facts=replace(one.facts, fabrics=(fabric,))))
    wide = asking(replace(ON_2, gpus_per_node=8, nodes=3))
    told = explain(plan(wide, Fleet(nodes=tuple(nodes)))).splitlines()
    assert "    ib00 has 2 nodes that fit, needs 3" in told
    assert "    ib20 has 1 node that fits, needs 3" not in told
    assert "    and 11 fabrics more, with no more nodes that fit" in told
    every = explain(plan(wide, Fleet(nodes=tuple(nodes))), all_nodes=True).splitlines()
    assert "    ib20 has 1 node that fits, needs 3" in every


@settings(max_examples=200, deadline=None)
@given(strategies.worlds)
def test_any_plan_can_be_told_in_printable_lines_with_a_verdict_each(
    world: strategies.World,
) -> None:
    odd = replace(
        world.fleet,
        nodes=tuple(replace(one, cordon_reason="\x1b[31m\nred\u202e") for one in world.fleet.nodes),
    )
    decisions = plan(world.catalog, odd)
    for all_nodes in (False, True):
        told = explain(decisions, all_nodes=all_nodes)
        assert all(line.isprintable() for line in told.split("\n"))
        for decision in decisions:
            if decision.outcome is not Outcome.UNPLACEABLE:
                assert f"{decision.model}-{decision.replica}: {decision.outcome.value} on" in told
