"""From what a driver says to where a replica goes: faults.md's cases, through the one placement."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from roost.agent.facts import infiniband
from roost.agent.facts.gpu_sources import Sources
from roost.agent.facts.gpus import Reader, gone, labels
from roost.agent.facts.processes import Ours
from roost.agent.facts.remembered import Memory
from roost.domain.allocation import Allocation, ReplicaName
from roost.domain.fleet import Fleet
from roost.domain.gpu import GpuClass
from roost.domain.model import Catalog, Model, ModelName
from roost.domain.node import Facts, Node, NodeName
from roost.domain.profile import Engine, Profile, ProfileName
from roost.placement import plan
from roost.placement.decision import Decision, Outcome
from roost.testing.fake_nvml import (
    FakeInstance,
    FakeMachine,
    FakeNvml,
    FakeProcess,
    eight_h100,
)

H100 = GpuClass("h100-80gb-hbm3")


def model(name: str, gpus: int, *, replicas: int = 1, nodes: int = 1, kind: str = H100) -> Model:
    profile = Profile(
        name=ProfileName("gpu"),
        engine=Engine.VLLM,
        source="hf:example/model",
        gpu_class=GpuClass(kind),
        gpus_per_node=gpus,
        nodes=nodes,
        tensor_parallel=gpus,
        pipeline_parallel=nodes,
    )
    return Model(name=ModelName(name), replicas=replicas, profiles=(profile,))


def facts(machine: FakeMachine, root: Path, ours: Ours | None = None, **more: object) -> Facts:
    reader = Reader(Sources(root=root), library=lambda: FakeNvml(lambda: machine))
    found = reader.read(ours or Ours())
    known = Facts(gpus=found.gpus, engines=frozenset({"vllm"}), labels=labels(found.gpus))
    return replace(known, **more)  # type: ignore[arg-type]  # fields of Facts


def decide(
    models: Sequence[Model], *nodes: Facts, allocations: Sequence[Allocation] = ()
) -> list[Decision]:
    fleet = Fleet(
        nodes=tuple(
            Node(name=NodeName(f"n{number}"), facts=one) for number, one in enumerate(nodes, 1)
        ),
        allocations=tuple(allocations),
    )
    return list(plan(Catalog(models=tuple(models)), fleet))


def given(decision: Decision) -> list[int]:
    return [index for shard in decision.shards for index in shard.gpus]


def four() -> FakeMachine:
    return replace(eight_h100(), cards=eight_h100().cards[:4])


def test_a_card_with_ecc_errors_is_named_and_the_others_serve(tmp_path: Path) -> None:
    # B002.
    ill = facts(four().but(1, ecc=1), tmp_path)
    placed = decide([model("coder", 1, replicas=4)], ill)
    assert sorted(index for one in placed for index in given(one)) == [0, 2, 3]
    (left,) = [one for one in placed if one.outcome is Outcome.UNPLACEABLE]
    (reason,) = left.tried[0].rejected[0].reasons
    assert reason.code == "gpus_short"
    assert "1 unhealthy: 1 uncorrectable ECC error" in reason.message


def test_evidence_that_persists_outlives_the_agent_and_its_end_frees_the_card(
    tmp_path: Path,
) -> None:
    # B001: each look is a new agent's first.
    whole = [model("coder", 8)]
    ill = eight_h100().but(3, ecc=2)
    for _ in range(2):
        (decision,) = decide(whole, facts(ill, tmp_path))
        assert decision.outcome is Outcome.UNPLACEABLE
    (decision,) = decide(whole, facts(eight_h100(), tmp_path))
    assert decision.outcome is Outcome.PLACED


def test_memory_that_is_not_known_turns_no_profile_away(tmp_path: Path) -> None:
    # B005.
    machine = eight_h100().but(0, name="NVIDIA GB10", memory=None)
    node = facts(replace(machine, cards=machine.cards[:1]), tmp_path, memory_bytes=128520671232)
    (decision,) = decide([model("coder", 1, kind="gb10")], node)
    assert decision.outcome is Outcome.PLACED
    assert node.memory_bytes == 128520671232


def test_a_foreign_process_takes_its_cards_until_it_ends(tmp_path: Path) -> None:
    # B011: 0 to 3 are somebody else's, on 4 runs our own engine.
    strangers = (FakeProcess(pid=10**7),)
    machine = eight_h100()
    for index in range(4):
        machine = machine.but(index, processes=strangers)
    machine = machine.but(4, processes=(FakeProcess(pid=10**7 + 1),))
    ours = Ours(gpus=frozenset({machine.cards[4].uuid}))
    node = facts(machine, tmp_path, ours)
    assert [gpu.foreign_processes for gpu in node.gpus or ()] == [1, 1, 1, 1, 0, 0, 0, 0]
    (x,) = decide([model("x", 4)], node)
    assert given(x) == [4, 5, 6, 7]
    (y,) = decide([model("y", 8)], node)
    (reason,) = y.tried[0].rejected[0].reasons
    assert "4 held by another process" in reason.message
    (y,) = decide([model("y", 8)], facts(eight_h100(), tmp_path))
    assert y.outcome is Outcome.PLACED


def test_a_card_that_fell_off_the_bus_is_listed_missing_and_the_rest_is_scheduled(
    tmp_path: Path,
) -> None:
    machine = eight_h100()
    reader = Reader(
        Sources(root=tmp_path),
        library=lambda: FakeNvml(lambda: machine),
        memory=Memory(tmp_path / "gpus.json"),
    )
    reader.read(Ours())
    machine = FakeMachine(cards=machine.cards[:5] + machine.cards[6:])
    node = Facts(gpus=reader.read(Ours()).gpus)
    seven, eight = decide([model("seven", 7), model("eight", 8)], node)
    assert seven.outcome is Outcome.PLACED
    gone = eight_h100().cards[5].uuid
    assert gone not in {uuid for shard in seven.shards for uuid in shard.gpu_uuids}
    (reason,) = eight.tried[0].rejected[0].reasons
    assert "1 unhealthy: missing" in reason.message
    machine = eight_h100()
    (eight,) = decide([model("eight", 8)], Facts(gpus=reader.read(Ours()).gpus))
    assert eight.outcome is Outcome.PLACED


def test_instances_are_had_by_their_own_class_and_their_card_by_nobody(tmp_path: Path) -> None:
    parts = tuple(
        FakeInstance(profile="1g.10gb", uuid=f"MIG-{n}", gpu_instance=n, memory=10468982784)
        for n in range(7)
    )
    node = facts(
        replace(four().but(0, mig=parts), cards=four().but(0, mig=parts).cards[:2]), tmp_path
    )
    small = "h100-80gb-hbm3-mig-1g.10gb"
    placed = decide(
        [model("small", 1, replicas=8, kind=small), model("large", 1, replicas=2)], node
    )
    assert [one.outcome for one in placed].count(Outcome.PLACED) == 8
    large = [one for one in placed if one.model == "large"]
    assert [given(one) for one in large if one.outcome is Outcome.PLACED] == [[1]]
    (reason,) = (
        next(o for o in large if o.outcome is not Outcome.PLACED).tried[0].rejected[0].reasons
    )
    assert "split into 7 MIG instances" in reason.message
    (one,) = [shard for d in placed if d.model == "small" for shard in d.shards][:1]
    assert one.gpu_uuids[0].startswith("MIG-")


def test_a_driver_that_fails_makes_no_cpu_node(tmp_path: Path) -> None:
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    node = facts(FakeMachine(init=999), tmp_path)
    assert node.gpus is None
    (decision,) = decide([model("coder", 1)], node)
    assert [reason.code for reason in decision.tried[0].rejected[0].reasons] == ["gpus_unknown"]


def test_a_group_stays_in_the_nvlink_domain_that_the_driver_describes(tmp_path: Path) -> None:
    cards = four().cards
    pairs = tuple(
        replace(card, links=(cards[number ^ 1].pci,)) for number, card in enumerate(cards)
    )
    node = facts(FakeMachine(cards=pairs), tmp_path)
    held = Allocation(replica=ReplicaName("other-0"), node=NodeName("n1"), gpus=(0,), gpu_uuids=())
    (decision,) = decide([model("coder", 2)], node, allocations=[held])
    assert given(decision) == [2, 3]


def adapters(root: Path, fabric: str, states: Sequence[str]) -> Facts:
    for number, state in enumerate(states):
        place = root / f"sys/class/infiniband/mlx5_{number}/ports/1"
        place.mkdir(parents=True, exist_ok=True)
        (place / "state").write_text(f"{state}\n")
        (place / "link_layer").write_text("InfiniBand\n")
    attached, _, _ = infiniband.read(root, {fabric: ("mlx5_*",)})
    return facts(eight_h100(), root, fabrics=attached)


def test_only_nodes_of_one_fabric_with_active_ports_are_offered_together(tmp_path: Path) -> None:
    # B010: A 4/4 on f1, B 2/4 on f1, C 4/4 on f2.
    up, down = "4: ACTIVE", "1: DOWN"
    a = adapters(tmp_path / "a", "f1", [up] * 4)
    b = adapters(tmp_path / "b", "f1", [up, down, up, down])
    c = adapters(tmp_path / "c", "f2", [up] * 4)
    two = [model("big", 8, nodes=2)]
    (decision,) = decide(two, a, b, c)
    assert decision.fabric == "f1"
    assert {shard.node: list(shard.hcas) for shard in decision.shards} == {
        "n1": ["mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3"], "n2": ["mlx5_0", "mlx5_2"],
    }  # fmt: skip
    (decision,) = decide(two, a, c)
    assert decision.outcome is Outcome.UNPLACEABLE
    assert {r.code for n in decision.tried[0].rejected for r in n.reasons} == {"fabric_short"}


def test_a_flap_moves_nothing_that_runs(tmp_path: Path) -> None:
    a, b = (adapters(tmp_path / name, "f1", ["4: ACTIVE"]) for name in "ab")
    (placed,) = decide([model("big", 8, nodes=2)], a, b)
    held = [
        Allocation(
            replica=ReplicaName("big-0"), model=ModelName("big"), index=0,
            profile=ProfileName("gpu"), node=shard.node, gpus=shard.gpus, gpu_uuids=shard.gpu_uuids,
        )
        for shard in placed.shards
    ]  # fmt: skip
    flapping = adapters(tmp_path / "a", "f1", ["1: DOWN"])
    (kept,) = decide([model("big", 8, nodes=2)], flapping, b, allocations=held)
    assert kept.outcome is Outcome.KEPT
    assert [list(shard.gpus) for shard in kept.shards] == [list(range(8))] * 2


def test_a_node_of_one_class_carries_it_as_a_label(tmp_path: Path) -> None:
    assert facts(eight_h100(), tmp_path).labels == {"roost/gpu-class": H100}
    mixed = eight_h100().but(0, name="NVIDIA L40S")
    assert facts(mixed, tmp_path).labels == {}
    assert facts(FakeMachine(), tmp_path).labels == {}


def test_a_replica_that_runs_on_a_card_that_fell_ill_says_so(tmp_path: Path) -> None:
    ill = facts(eight_h100().but(1, ecc=2), tmp_path)
    cards = ill.gpus or ()
    held = [
        Allocation(
            replica=ReplicaName(f"m-{number}"),
            model=ModelName("m"),
            node=NodeName("n1"),
            gpus=(number,),
            gpu_uuids=tuple(uuid for uuid in (cards[number].uuid,) if uuid),
        )
        for number in (0, 1)
    ]
    well, on_ill = decide([model("m", 1, replicas=2)], ill, allocations=held)
    assert well.why == "already holds its place on n1"
    assert on_ill.outcome is Outcome.KEPT
    assert on_ill.why == (
        "already holds its place on n1; GPU 1 of n1 is unhealthy: 2 uncorrectable ECC errors"
    )


def test_a_mig_instance_that_was_unmade_is_gone_and_what_is_not_known_is_not(
    tmp_path: Path,
) -> None:
    half = FakeInstance(profile="3g.40gb", uuid="MIG-a", gpu_instance=1, memory=42949672960)
    split = facts(eight_h100().but(0, mig=(half,)), tmp_path).gpus
    whole = facts(eight_h100(), tmp_path).gpus
    assert gone(split, ["MIG-a"]) is None
    assert gone(whole, ["MIG-a"]) == "MIG-a is no card of this machine"
    assert gone(None, ["MIG-a"]) is None
    nameless = facts(eight_h100().but(0, failing={"nvmlDeviceGetUUID": 999}), tmp_path).gpus
    assert gone(nameless, ["MIG-a"]) is None
