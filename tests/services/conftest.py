from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from services.small_fleet import FakeClock, SmallFleet


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[SmallFleet]:
    fleet = SmallFleet(tmp_path / "server", FakeClock())
    await fleet.open()
    yield fleet
    await fleet.close()
