"""Who leads a fleet that several servers could, and when it is over."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from postgresql import Cluster, Proxy
from roost.errors import Led, Undecided
from roost.services.leading import Lease, lead
from roost.store.postgresql import PostgreSql
from roost.store.store import Store
from services.small_fleet import FakeClock, SmallFleet

pytestmark = pytest.mark.anyio

LONG_S = 1000.0
SHORT_S = 0.3


@pytest.fixture
async def proxy(cluster: Cluster) -> AsyncIterator[Proxy]:
    async with Proxy.before(cluster, cluster.create()) as proxy:
        yield proxy


@pytest.fixture
async def kept(proxy: Proxy, tmp_path: Path) -> AsyncIterator[SmallFleet]:
    """Behind the proxy."""
    fleet = SmallFleet(tmp_path / "server", FakeClock(), database=proxy.url, patience_s=0.2)
    await fleet.open()
    yield fleet
    proxy.refuse = False
    await fleet.close()


@pytest.fixture
async def other(proxy: Proxy, kept: SmallFleet) -> AsyncIterator[Store]:
    """Another server's."""
    database = PostgreSql(proxy.url)
    yield Store(database)
    await database.close()


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while True:
            if true():
                return
            await asyncio.sleep(0.01)


async def test_a_server_that_ends_lets_the_next_one_lead_at_once(
    kept: SmallFleet, other: Store
) -> None:
    await other.renew(kept.server.ledger.epoch, for_s=LONG_S)
    with pytest.raises(Led, match=r"server-.* leads the fleet of postgresql://"):
        await other.lead("other", for_s=LONG_S)
    await kept.close()
    assert await other.lead("other", for_s=LONG_S) == 2


async def test_a_server_that_is_gone_without_a_word_is_followed_when_its_time_is_over(
    kept: SmallFleet, other: Store
) -> None:
    await other.renew(kept.server.ledger.epoch, for_s=SHORT_S)
    assert await lead(other, "other", for_s=LONG_S) == 2


async def test_a_leader_that_sleeps_while_another_follows_it_learns_so_as_it_renews(
    kept: SmallFleet, other: Store
) -> None:
    ledger = kept.server.ledger
    await other.renew(ledger.epoch, for_s=0)
    await other.lead("other", for_s=LONG_S)
    await Lease(ledger, for_s=SHORT_S).keep()
    said = ledger.deposed.result().message
    assert said.startswith("another server leads this fleet in epoch 2: other")


async def test_a_database_that_is_away_and_back_is_noticed_and_what_was_cut_is_found_out(
    kept: SmallFleet, proxy: Proxy
) -> None:
    ledger = kept.server.ledger
    proxy.cut, proxy.refuse_after_cut = "after", True
    with pytest.raises(Undecided):
        await kept.server.operations.create_key("k", who="test")
    lease = Lease(ledger, for_s=SHORT_S)
    keeping = asyncio.ensure_future(lease.keep())
    await until(lambda: lease.trouble is not None)
    assert "127.0.0.1" in str(lease.trouble)
    assert not ledger.is_settled
    proxy.refuse = False
    await until(lambda: lease.trouble is None and ledger.is_settled)
    assert set(ledger.stored.keys) == {"k"}
    keeping.cancel()
    await asyncio.gather(keeping, return_exceptions=True)
    assert not ledger.deposed.done()
