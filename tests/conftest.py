"""What every test relies on, however the suite was started."""

import os
import signal
from collections.abc import Iterator

import pytest

from postgresql import Cluster

# In the background of a script SIGINT is ignored, and the children that a test starts inherit that:
# none of them could be stopped by Ctrl-C.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The settings of whoever runs the tests are no part of them; children inherit this.
os.environ["ROOST_CONFIG"] = os.devnull


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
