from dataclasses import replace

import pytest

from roost.domain.gpu import Gpu
from services.small_fleet import FakeAgent, SmallFleet, facts

pytestmark = pytest.mark.anyio


def with_card(agent: FakeAgent, index: int, **changes: object) -> None:
    cards: list[Gpu] = list(facts(agent.name, 4).gpus or ())
    cards[index] = replace(cards[index], **changes)  # type: ignore[arg-type]  # fields of Gpu
    agent.facts = replace(agent.facts, gpus=tuple(cards))


async def history(fleet: SmallFleet) -> list[tuple[str, str, str]]:
    await fleet.steps()
    told = await fleet.server.ledger.store.events(limit=100)
    return [(one.what, one.object, one.why) for one in reversed(told) if one.what[:4] == "gpu."]


async def test_a_card_that_falls_ill_and_recovers_is_in_the_history_once_each(
    fleet: SmallFleet,
) -> None:
    agent = await fleet.join("a", gpus=4)
    ill = ("gpu.unhealthy", "a", "gpu 1 (a-1): 3 uncorrectable ECC errors")
    for _ in range(3):
        with_card(agent, 1, healthy=False, unhealthy_reason="3 uncorrectable ECC errors")
        agent.report()
    assert await history(fleet) == [ill]
    await fleet.restart()
    agent.report()
    assert await history(fleet) == [ill]
    with_card(agent, 1, healthy=True)
    agent.report()
    assert await history(fleet) == [
        ill,
        ("gpu.healthy", "a", "gpu 1 (a-1): no more 3 uncorrectable ECC errors"),
    ]
