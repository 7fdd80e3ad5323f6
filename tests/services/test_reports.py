"""What a report changes, and what it does not."""

from dataclasses import replace

import pytest

from services.small_fleet import SmallFleet, catalog, facts

pytestmark = pytest.mark.anyio


async def test_a_report_from_before_the_order_to_stop_proves_nothing(fleet: SmallFleet) -> None:
    """The agent was told to start and to stop before it reported either."""
    agent = await fleet.join("a")
    await fleet.apply(catalog())
    await fleet.steps()
    await fleet.server.operations.delete_model("coder", who="test")  # type: ignore[arg-type]
    await fleet.steps()
    agent.report()  # lists nothing: it has heard of neither
    await fleet.steps()
    assert fleet.rows() == [("coder-0", "draining", "a")]
    await fleet.rest()
    assert fleet.rows() == []


async def test_a_report_that_changes_nothing_writes_nothing(fleet: SmallFleet) -> None:
    agent = await fleet.join("a")
    await fleet.apply(catalog())
    await fleet.rest()
    stored = fleet.server.ledger.stored
    for _ in range(5):
        agent.facts = replace(
            agent.facts,
            storage=tuple(
                replace(d, free_bytes=(d.free_bytes or 0) - 1000) for d in agent.facts.storage or ()
            ),
        )
        agent.report()
        assert not fleet.server.ledger.has_unstored
        assert not await fleet.server.scheduler.step()
    assert fleet.server.ledger.stored is stored


async def test_an_older_report_that_arrives_late_changes_nothing(fleet: SmallFleet) -> None:
    agent = await fleet.join("a")
    await fleet.apply(catalog())
    await fleet.rest(turns=2)
    agent.sequence -= 2
    engines, agent.engines = agent.engines, {}
    agent.report()
    await fleet.steps()
    assert fleet.rows() == [("coder-0", "ready", "a")]
    agent.engines = engines


async def test_a_card_that_falls_off_the_bus_is_listed_as_missing_while_it_is_held(
    fleet: SmallFleet,
) -> None:
    agent = await fleet.join("a", gpus=2)
    await fleet.apply(catalog(replicas=2))
    await fleet.rest(turns=2)
    agent.facts = replace(facts("a", 2), gpus=(facts("a", 2).gpus or ())[1:])
    await fleet.rest(turns=2)
    gpus = fleet.server.views.node("a")["gpus"]  # type: ignore[arg-type]
    assert [(g["uuid"], g["healthy"], g["unhealthy_reason"]) for g in gpus] == [
        ("a-1", None, None),
        ("a-0", False, "missing"),
    ]
    await fleet.restart()
    await fleet.rest(turns=2)
    assert len(fleet.server.views.node("a")["gpus"]) == 2  # type: ignore[arg-type]
