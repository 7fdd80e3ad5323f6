"""Stacks to test against: one shared by the tests that only use it, one each for those that break it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from running import Served, serve


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """For tests that leave it as it was."""
    served = serve(tmp_path_factory.mktemp("roost") / "state dir")
    yield served
    assert served.stack.stop() == 0, served.stack.logs()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    """For tests that break it."""
    served = serve(tmp_path / "state dir")
    yield served
    assert served.stack.stop() == 0, served.stack.logs()
