"""`roost_gpus`: every card once, in one state."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from roost.domain.allocation import Allocation, AllocationState, ReplicaName
from roost.domain.gpu import Gpu, GpuClass, GpuUuid
from roost.domain.node import Facts, Node, NodeName
from roost.domain.replica import ReplicaState
from roost.services.metrics import exposition
from services.small_fleet import SmallFleet, catalog


def gpu(index: int, kind: str = "h100", **more: object) -> Gpu:
    return Gpu(index=index, gpu_class=GpuClass(kind), uuid=GpuUuid(f"GPU-{index}"), **more)  # type: ignore[arg-type]  # by name


def hold(*uuids: str, gpus: tuple[int, ...] = (), **more: object) -> Allocation:
    return Allocation(
        replica=ReplicaName("r-0"),
        node=NodeName("a"),
        gpus=gpus,
        gpu_uuids=tuple(GpuUuid(uuid) for uuid in uuids),
        **more,  # type: ignore[arg-type]  # by name
    )


def cards(node: Node, *allocations: Allocation) -> dict[tuple[str, str], float]:
    text = exposition(lambda: [node], lambda: allocations).decode()
    return {
        (sample.labels["class"], sample.labels["state"]): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "roost_gpus"
    }


def node(*gpus: Gpu) -> Node:
    return Node(name=NodeName("a"), facts=Facts(gpus=gpus))


def test_a_card_is_in_the_first_state_that_applies() -> None:
    found = cards(
        node(
            gpu(0),
            gpu(1, healthy=True, foreign_processes=0),
            gpu(2, foreign_processes=2),
            gpu(3, healthy=False, unhealthy_reason="ecc"),
            gpu(4),
            gpu(5, foreign_processes=1),
            gpu(6),
            gpu(7, healthy=False),
        ),
        # By uuid: the index that it was given may be another card's by now.
        hold("GPU-4", "GPU-5", "GPU-7", gpus=(0, 1, 2)),
        hold(gpus=(6,), state=AllocationState.STOPPING),
    )
    assert found == {
        ("h100", "free"): 2,
        ("h100", "foreign"): 1,
        ("h100", "unhealthy"): 2,
        ("h100", "allocated"): 2,
        ("h100", "stopping"): 1,
    }


def test_classes_are_apart_and_what_is_not_reported_is_absent() -> None:
    found = cards(node(gpu(0), gpu(1, "l40s")))
    assert (found["h100", "free"], found["l40s", "free"], found["l40s", "allocated"]) == (1, 1, 0)
    assert cards(Node(name=NodeName("a"))) == {}
    assert cards(node()) == {}


@pytest.mark.anyio
async def test_a_card_is_one_in_every_moment_while_one_replica_goes_and_another_comes(
    fleet: SmallFleet,
) -> None:
    """B040: its owner is in no label, so no series comes or goes with it."""
    agent = await fleet.join("a")
    inventory, views = fleet.server.inventory, fleet.server.views
    seen: list[str] = []

    def scrape() -> None:
        text = exposition(inventory.nodes, views.allocations).decode()
        series = [line for line in text.splitlines() if line.startswith("roost_gpus{")]
        assert len(series) == 5, "a series for each state, whoever has the card"
        (one,) = [line for line in series if not line.endswith(" 0.0")]
        assert one.endswith(" 1.0"), "one card, in one state"
        assert 'class="h100",node="a"' in one
        state = one.partition('state="')[2].partition('"')[0]
        if seen[-1:] != [state]:
            seen.append(state)

    async def turn() -> None:
        scrape()
        await fleet.steps()
        scrape()
        await agent.fetch()
        agent.obey()
        scrape()
        agent.report()
        scrape()
        await fleet.turn()
        scrape()

    scrape()
    await fleet.apply(catalog())
    await turn()
    await turn()
    await fleet.server.operations.delete_model("coder", who="test")  # type: ignore[arg-type]
    await fleet.apply(catalog().replace("coder", "next"))
    # The order to stop is on its way, and then its engine takes long to end.
    await fleet.steps()
    scrape()
    await agent.fetch()
    agent.become(ReplicaState.DRAINING)
    agent.report()
    scrape()
    agent.becomes = ReplicaState.READY
    for _ in range(4):
        await turn()
    assert fleet.rows() == [("next-0", "ready", "a")]
    assert seen == ["free", "allocated", "stopping", "allocated"]
