from collections.abc import Iterator
from pathlib import Path

import pytest

from api.live import Live, WireNode


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """One for the tests that leave nothing behind that another would trip over."""
    with Live(tmp_path_factory.mktemp("shared") / "roost") as live:
        yield live


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[Live]:
    with Live(tmp_path / "roost") as live:
        yield live


@pytest.fixture
def node(own_server: Live) -> WireNode:
    node = WireNode(own_server).join()
    assert node.report().status_code == 200
    return node
