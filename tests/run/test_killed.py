"""A server that is killed at any moment, and started again: what it acknowledged is there, once."""

import random
import signal
import sqlite3
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import httpx2
import pytest

from api.live import CATALOG, Live
from postgresql import Cluster


@dataclass
class Books:
    """What a client was told."""

    keys: set[str] = field(default_factory=set)
    replicas: int = 1
    unknown_key: str | None = None
    """Asked for, and not answered."""
    unknown_replicas: int | None = None
    answers: int = 0
    enough: threading.Event = field(default_factory=threading.Event)

    def work(self, server: Live, luck: random.Random, *, until: int) -> None:
        """Change things until nobody answers."""
        with server.admin() as admin:
            try:
                while True:
                    self._change(admin, luck)
                    self.answers += 1
                    if self.answers >= until:
                        self.enough.set()
            except httpx2.TransportError:
                self.enough.set()

    def _change(self, admin: httpx2.Client, luck: random.Random) -> None:
        if luck.random() < 0.6:
            self.unknown_key = name = f"k{luck.randrange(10**12)}"
            assert admin.post("/api/v1/keys", json={"name": name}).status_code == 201
            self.keys.add(name)
            self.unknown_key = None
        else:
            self.unknown_replicas = wanted = luck.randrange(1, 9)
            text = CATALOG.replace("coder\n", f"coder\n  replicas: {wanted}\n")
            assert admin.post("/api/v1/catalog", content=text).status_code == 200
            self.replicas, self.unknown_replicas = wanted, None

    def check(self, server: Live) -> None:
        """The books agree with the server, which then settles what was not answered."""
        with server.admin() as admin:
            present = {key["name"] for key in admin.get("/api/v1/keys").json()["keys"]}
            assert self.keys <= present
            assert present <= self.keys | {self.unknown_key}
            self.keys = present
            (model,) = admin.get("/api/v1/models").json()["models"] or ({"replicas": 1},)
            assert model["replicas"] in {self.replicas, self.unknown_replicas}
            self.replicas = model["replicas"]
            self.unknown_key = self.unknown_replicas = None
            events = admin.get("/api/v1/events", params={"limit": 1000}).json()["events"]
        made = Counter(event["object"] for event in events if event["what"] == "key.created")
        assert set(made) <= present
        assert set(made.values()) <= {1}
        if len(events) < 1000:
            assert set(made) == present


def torture(directory: Path, words: tuple[str, ...], *, seed: int, kills: int) -> None:
    luck, books = random.Random(seed), Books()
    for _ in range(kills):
        with Live(directory, *words) as server:
            books.check(server)
            books.enough.clear()
            until = books.answers + luck.randrange(1, 20)
            working = threading.Thread(
                target=books.work, args=(server, luck), kwargs={"until": until}
            )
            working.start()
            assert books.enough.wait(60)
            time.sleep(luck.random() * 0.02)  # at any point of the next change
            server.stop(signal.SIGKILL)
            working.join(60)
    with Live(directory, *words) as server:
        books.check(server)
        assert server.stop() == 0
    assert books.answers >= kills


def on_sqlite(directory: Path, *, seed: int, kills: int) -> None:
    torture(directory, (), seed=seed, kills=kills)
    kept = sqlite3.connect(directory / "server" / "roost.db")
    assert kept.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    kept.close()


def test_on_sqlite_nothing_acknowledged_is_lost_or_done_twice(tmp_path: Path) -> None:
    on_sqlite(tmp_path / "roost", seed=1, kills=3)


def test_on_postgresql_nothing_acknowledged_is_lost_or_done_twice(
    cluster: Cluster, tmp_path: Path
) -> None:
    torture(tmp_path / "roost", ("--database", cluster.create()), seed=2, kills=3)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", [10, 11])
def test_on_sqlite_100_kills_lose_nothing(tmp_path: Path, seed: int) -> None:
    on_sqlite(tmp_path / "roost", seed=seed, kills=100)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_on_postgresql_100_kills_lose_nothing(cluster: Cluster, tmp_path: Path) -> None:
    torture(tmp_path / "roost", ("--database", cluster.create()), seed=12, kills=100)
