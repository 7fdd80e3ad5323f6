"""Every kind of fault of a made-up node, and its end, as the real server tells of it."""

import asyncio
from pathlib import Path

import pytest

from roost.testing.faults import Kind
from testing.made_up import MadeUp, catalog, made_up, node


def test_a_silent_node_is_lost_and_its_engine_goes_on_until_it_is_back(tmp_path: Path) -> None:
    async def story() -> None:
        async with made_up(tmp_path, node("a"), node("b")) as made:
            await made.apply(catalog())
            first = await made.ready()
            here, there = first["shards"][0]["node"], _other(first)
            await made.fail(here, Kind.SILENT)
            await made.until(lambda: made.node(here)["status"] == "not_ready")
            # Nothing is moved yet.
            assert [row["placement"] for row in made.copies()] == [first["placement"]]
            await made.until(lambda: made.node(here)["status"] == "lost")
            second = await made.moved(first)
            assert second["shards"][0]["node"] == there
            lost = made.copy("lost")
            assert lost is not None
            assert "silent for" in lost["cause"]
            assert await made.answers(first)
            await made.fleet.heal(here, Kind.SILENT)
            await made.until(lambda: made.node(here)["status"] == "ready")
            # Both are ready: the newer one stays.
            await made.until(lambda: len(made.copies()) == 1)
            assert made.copies()[0]["placement"] == second["placement"]
            assert made.fleet.node(here).live == ()
            assert made.fleet.faults() == ()

    asyncio.run(story())


def test_a_node_without_power_loses_its_engine_at_once_and_boots_into_a_fleet_that_went_on(
    tmp_path: Path,
) -> None:
    async def story() -> None:
        async with made_up(tmp_path, node("a"), node("b")) as made:
            await made.apply(catalog())
            first = await made.ready()
            here = first["shards"][0]["node"]
            await made.fail(here, Kind.OFF)
            assert not await made.answers(first)
            assert made.fleet.node(here).live == ()
            await made.until(lambda: made.node(here)["status"] == "lost")
            second = await made.moved(first)
            assert second["shards"][0]["node"] == _other(first)
            await made.fleet.heal(here)
            await made.until(lambda: made.node(here)["status"] == "ready")
            await made.until(lambda: len(made.copies()) == 1)
            await made.until(lambda: made.fleet.node(here).live == ())

    asyncio.run(story())


def test_a_node_that_boots_before_it_is_lost_starts_what_it_ran(tmp_path: Path) -> None:
    async def story() -> None:
        async with made_up(tmp_path, node("a")) as made:
            await made.apply(catalog())
            first = await made.ready()
            await made.fail("a", Kind.OFF)
            await made.fleet.heal("a")
            again = await made.ready(restarts=1)
            assert again["placement"] == first["placement"]
            assert again["cause"] == "the machine was restarted"
            assert await made.answers(again)

    asyncio.run(story())


def test_a_card_with_an_ecc_error_gets_nothing_until_it_is_well(tmp_path: Path) -> None:
    async def story() -> None:
        async with made_up(tmp_path, node("a")) as made:
            await made.fail("a", Kind.ECC, gpu=0)
            await made.until(lambda: made.card("a", 0)["healthy"] is False)
            assert "ECC" in made.card("a", 0)["unhealthy_reason"]
            await made.apply(catalog(replicas=2))
            assert (await made.ready())["shards"][0]["gpus"] == [1]
            waiting = await made.until(lambda: made.copy("pending", "small-1"))
            assert waiting["cause"]
            await made.fleet.heal("a", Kind.ECC, gpu=0)
            assert (await made.ready("small-1"))["shards"][0]["gpus"] == [0]
            assert made.card("a", 0)["healthy"] is True

    asyncio.run(story())


def test_an_engine_on_a_card_with_an_ecc_error_goes_on(tmp_path: Path) -> None:
    async def story() -> None:
        async with made_up(tmp_path, node("a", gpus=1)) as made:
            await made.apply(catalog())
            first = await made.ready()
            await made.fail("a", Kind.ECC)
            await made.until(lambda: made.card("a", 0)["healthy"] is False)
            assert made.copies()[0]["placement"] == first["placement"]
            assert made.copies()[0]["restarts"] == 0
            assert await made.answers(first)

    asyncio.run(story())


def test_the_engine_on_a_card_that_falls_off_the_bus_ends_and_waits_for_the_card(
    tmp_path: Path,
) -> None:
    async def story() -> None:
        async with made_up(tmp_path, node("a", gpus=1)) as made:
            await made.apply(catalog())
            first = await made.ready()
            await made.fail("a", Kind.OFF_BUS)
            failed = await made.until(
                lambda: row if (row := made.copy("failed")) and row["next_try_at"] else None
            )
            assert "bus" in failed["cause"]
            card = made.card("a", 0)
            assert (card["healthy"], card["unhealthy_reason"]) == (
                False,
                "lost: it has fallen off the bus",
            )
            assert not await made.answers(first)
            await made.fleet.heal("a", Kind.OFF_BUS)
            again = await made.ready()
            assert again["shards"][0]["gpu_uuids"] == first["shards"][0]["gpu_uuids"]
            assert made.card("a", 0)["healthy"] is True

    asyncio.run(story())


def test_a_card_that_somebody_else_computes_on_gets_nothing_until_they_are_gone(
    tmp_path: Path,
) -> None:
    async def story() -> None:
        async with made_up(tmp_path, node("a", gpus=1)) as made:
            await made.fail("a", Kind.FOREIGN)
            await made.until(lambda: made.card("a", 0)["foreign_processes"] == 1)
            await made.apply(catalog())
            await made.until(lambda: made.copy("pending"))
            await made.fleet.heal("a")
            await made.ready()
            assert made.card("a", 0)["foreign_processes"] == 0

    asyncio.run(story())


def test_an_engine_that_crashes_is_started_again_in_place(tmp_path: Path) -> None:
    async def story() -> None:
        async with made_up(tmp_path, node("a")) as made:
            await made.apply(catalog())
            first = await made.ready()
            await made.fail("a", Kind.CRASH)
            # It happened: nothing of it stands.
            assert made.fleet.faults() == ()
            again = await made.ready(restarts=1)
            assert "told to crash by roost fleet fault" in again["cause"]
            assert again["placement"] == first["placement"]
            assert again["shards"][0]["port"] == first["shards"][0]["port"]

    asyncio.run(story())


def test_an_engine_that_crashes_at_every_start_is_told_as_that_until_it_is_healed(
    tmp_path: Path,
) -> None:
    async def story() -> None:
        async with made_up(tmp_path, node("a")) as made:
            await made.apply(catalog())
            await made.ready()
            await made.fail("a", Kind.CRASH_LOOP)
            looping = await made.until(
                lambda: (
                    row
                    if (row := made.copy("failed")) and "crash-looping, 3 failures" in row["cause"]
                    else None
                )
            )
            assert "told to crash at every start by roost fleet fault" in looping["cause"]
            assert [str(fault) for fault in made.fleet.faults()] == [
                "a crash-loop --replica small-0"
            ]
            await made.fleet.heal("a", Kind.CRASH_LOOP)
            well = await made.ready()
            assert well["restarts"] >= 3
            assert made.fleet.faults() == ()

    asyncio.run(story())


def test_a_replica_that_is_placed_anew_on_a_node_loops_there_still(tmp_path: Path) -> None:
    async def story() -> None:
        async with made_up(tmp_path, node("a")) as made:
            await made.apply(catalog())
            first = await made.ready()
            await made.fail("a", Kind.CRASH_LOOP)
            await made.apply(catalog(replicas=0))
            await made.until(lambda: made.copies() == [])
            await made.apply(catalog())
            failed = await made.until(lambda: made.copy("failed"))
            assert failed["placement"] != first["placement"]
            await made.fleet.heal("a")
            await made.ready()

    asyncio.run(story())


def test_an_engine_that_hangs_gets_no_traffic_and_goes_on_when_it_is_healed(tmp_path: Path) -> None:
    async def story() -> None:
        async with made_up(tmp_path, node("a")) as made:
            await made.apply(catalog())
            await made.ready()
            await made.fail("a", Kind.HANG)
            silent = await made.until(lambda: made.copy("starting"))
            assert "no good answer" in silent["cause"]
            assert _routes(made) == []
            await made.fleet.heal("a", Kind.HANG)
            well = await made.ready()
            assert well["restarts"] == 0
            await made.until(lambda: _routes(made) == [well["placement"]])

    asyncio.run(story())


@pytest.mark.slow
def test_an_engine_that_hangs_is_started_again_and_its_fault_is_over(tmp_path: Path) -> None:
    async def story() -> None:
        async with made_up(tmp_path, node("a")) as made:
            await made.apply(catalog())
            await made.ready()
            await made.fail("a", Kind.HANG)
            assert [fault.kind for fault in made.fleet.faults()] == [Kind.HANG]
            again = await made.ready(restarts=1)
            assert "no good answer" in again["cause"]
            assert made.fleet.faults() == ()

    asyncio.run(story())


def _other(row: dict[str, object]) -> str:
    """Of two nodes, a and b, the one where the copy isn't."""
    assert isinstance(row["shards"], list)
    return "b" if row["shards"][0]["node"] == "a" else "a"


def _routes(made: MadeUp) -> list[str]:
    snapshot = made.server.routing.snapshot()
    return [route.placement for model in snapshot.models for route in model.routes]
