"""Silence: of a node, of most nodes, and of the server itself."""

import pytest

from services.small_fleet import SmallFleet, catalog

pytestmark = pytest.mark.anyio


async def test_after_a_long_absence_of_the_server_no_node_is_lost(fleet: SmallFleet) -> None:
    await fleet.join("a")
    await fleet.apply(catalog())
    await fleet.rest(turns=2)
    fleet.clock.advance(100_000)
    await fleet.restart()
    fleet.server.inventory.tick()
    await fleet.steps()
    assert fleet.rows() == [("coder-0", "ready", "a")]


async def test_a_stalled_server_blames_no_node(fleet: SmallFleet) -> None:
    await fleet.join("a")
    await fleet.rest(turns=2)
    fleet.clock.advance(300)
    fleet.server.inventory.tick()
    assert fleet.server.inventory.status("a").value == "ready"  # type: ignore[arg-type]


async def test_a_node_lost_before_a_restart_is_not_believed_back_until_it_reports(
    fleet: SmallFleet,
) -> None:
    await fleet.join("a")
    await fleet.join("b")
    await fleet.apply(catalog())
    await fleet.rest(turns=2)
    ((_, _, old),) = fleet.rows()
    assert old is not None
    await fleet.rest(old, turns=15)
    await fleet.restart()
    await fleet.rest(old)
    assert ("coder-0", "lost", old) in fleet.rows()
    await fleet.rest()
    assert len(fleet.rows()) == 1


async def test_most_nodes_silent_at_once_moves_nothing_and_is_said(fleet: SmallFleet) -> None:
    for name in "abcd":
        await fleet.join(name)
    await fleet.apply(catalog(replicas=3))
    await fleet.rest(turns=2)
    before = fleet.rows()
    await fleet.rest("a", "b", "c", turns=20)
    assert fleet.rows() == before
    said = [e.what for e in await fleet.server.ledger.store.events(limit=100)]
    assert "fleet.vanished" in said
    await fleet.rest()
    assert fleet.rows() == before
