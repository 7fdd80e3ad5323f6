"""A replica on two made-up nodes, as the real server starts, restarts and replaces it."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from roost.domain.node import NodeName
from roost.testing.faults import Kind
from testing.made_up import RULES, MadeUp, made_up, node

CATALOG = """
models:
- name: small
  profiles:
  - name: wide
    engine: {engine}
    source: org/model
    gpu_class: h100
    gpus_per_node: 1
    nodes: 2
    tensor_parallel: 2
    pipeline_parallel: 1
    args: [--loss-s, "0.2"]
"""


def wide(engine: str = "vllm") -> str:
    return CATALOG.format(engine=engine)


def starts(made: MadeUp) -> set[tuple[int, int]]:
    """Of each shard, which start of the replica it is in, and how often it was started again."""
    (replica,) = made.server.ledger.replicas.values()
    return {(shard.generation, shard.restarts) for shard in replica.shards}


def run_on(made: MadeUp, row: dict[str, Any]) -> list[int]:
    """Of the engines that run on the nodes of a replica, which starts of it they are."""
    nodes = [shard["node"] for shard in row["shards"]]
    return [spec.generation for name in nodes for spec in made.fleet.node(name).live]


@pytest.mark.parametrize(("rank", "engine"), [(0, "vllm"), (1, "vllm"), (1, "sglang")])
def test_the_end_of_a_rank_starts_both_again_together(
    tmp_path: Path, rank: int, engine: str
) -> None:
    async def story() -> None:
        async with made_up(tmp_path, node("a", gpus=1), node("b", gpus=1)) as made:
            await made.apply(wide(engine))
            first = await made.ready()
            assert sorted(shard["node"] for shard in first["shards"]) == ["a", "b"]
            assert starts(made) == {(0, 0)}
            assert await made.answers(first)
            where = first["shards"][rank]["node"]
            await made.fail(where, Kind.CRASH)
            failed = await made.until(
                lambda: row if (row := made.copy("failed")) and row["next_try_at"] else None
            )
            assert failed["cause"].startswith(f"rank {rank} on {where}: exit status 1: ")
            again = await made.ready(restarts=1)
            assert again["placement"] == first["placement"]
            assert starts(made) == {(1, 1)}
            assert run_on(made, again) == [1, 1]
            assert await made.answers(again)

    asyncio.run(story())


@pytest.mark.slow
def test_a_rank_that_ends_at_every_start_is_told_as_a_crash_loop_of_its_replica(
    tmp_path: Path,
) -> None:
    async def story() -> None:
        async with made_up(tmp_path, node("a", gpus=1), node("b", gpus=1)) as made:
            await made.apply(wide())
            first = await made.ready()
            where = first["shards"][1]["node"]
            await made.fail(where, Kind.CRASH_LOOP)
            looping = await made.until(
                lambda: (
                    row
                    if (row := made.copy("failed")) and row["cause"].startswith("crash-looping, 3 ")
                    else None
                )
            )
            assert f"rank 1 on {where}: exit status 1: " in looping["cause"]
            await made.fleet.heal(where)
            well = await made.ready()
            assert well["placement"] == first["placement"]
            ((generation, restarts),) = starts(made)
            assert generation >= restarts >= 3
            assert run_on(made, well) == [generation, generation]

    asyncio.run(story())


@pytest.mark.slow
def test_a_node_that_boots_before_it_is_lost_takes_both_ranks_along(tmp_path: Path) -> None:
    # It is taken for a copy of itself until it has been silent for two reports.
    patient = replace(RULES, lost_after_s=60)

    async def story() -> None:
        nodes = (node("a", gpus=1), node("b", gpus=1))
        async with made_up(tmp_path, *nodes, rules=patient) as made:
            await made.apply(wide())
            first = await made.ready()
            where = first["shards"][1]["node"]
            await made.fail(where, Kind.OFF)
            assert len(run_on(made, first)) == 1
            await made.fleet.heal(where)
            again = await made.ready(restarts=1)
            assert again["placement"] == first["placement"]
            assert len({generation for generation, _ in starts(made)}) == 1
            assert len(run_on(made, again)) == 2
            assert await made.answers(again)

    asyncio.run(story())


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Kind.OFF, Kind.SILENT])
def test_with_a_lost_node_the_other_rank_ends_and_two_nodes_that_are_left_take_over(
    tmp_path: Path, kind: Kind
) -> None:
    async def story() -> None:
        nodes = (node("a", gpus=1), node("b", gpus=1), node("c", gpus=1))
        async with made_up(tmp_path, *nodes) as made:
            await made.apply(wide())
            first = await made.ready()
            mine = {shard["node"] for shard in first["shards"]}
            where = first["shards"][0]["node"]
            await made.fail(where, kind)
            await made.until(lambda: made.node(where)["status"] == "lost")
            second = await made.moved(first)
            left = {"a", "b", "c"} - {where}
            assert {shard["node"] for shard in second["shards"]} == left
            assert mine & left
            stopping = made.copy("draining")
            assert stopping is not None
            # Only what the lost node may still run is held.
            assert [shard["node"] for shard in stopping["shards"]] == [where]
            await made.fleet.heal(where)
            await made.until(lambda: len(made.copies()) == 1)
            assert made.copies()[0]["placement"] == second["placement"]
            assert made.copies()[0]["restarts"] == 0
            await made.until(lambda: made.server.inventory.node(NodeName(where)).ready)
            assert made.fleet.node(where).live == ()

    asyncio.run(story())
