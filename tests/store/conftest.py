from collections.abc import Iterator

import pytest

from postgresql import Cluster


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A PostgreSQL that tests share; each makes a database of its own in it."""
    cluster = Cluster()
    yield cluster
    cluster.end()


@pytest.fixture
def own_cluster() -> Iterator[Cluster]:
    """A PostgreSQL that the test may stop."""
    cluster = Cluster()
    yield cluster
    cluster.end()
