"""Two servers on one PostgreSQL: one leads, the other waits and follows, and neither undoes what
the other did.
"""

import shutil
import signal
import threading
from pathlib import Path
from typing import Any

import httpx2
import psycopg

from api.live import CATALOG, Live, WireNode, states, wait_for
from postgresql import Cluster
from run.around import CATALOG as SMALL
from run.around import around, own_address
from running import alive


def second_directory(first: Live, directory: Path) -> Path:
    """Of a server that takes the same credentials."""
    (directory / "server").mkdir(parents=True)
    for name in ("admin_credential", "gateway_credential"):
        shutil.copy(first.directory / "server" / name, directory / "server")
    return directory


def waits(server: Live) -> bool:
    assert server.process.poll() is None, server.log.read_text()
    return "server.waits" in server.log.read_text()


def kept(url: str) -> dict[str, list[Any]]:
    """All rows of all tables."""
    with psycopg.connect(url) as connection:
        named = connection.execute(
            "SELECT table_name FROM information_schema.tables WHERE table_schema = 'public'"
        ).fetchall()
        return {
            name: sorted(map(repr, connection.execute(f'TABLE "{name}"'.encode()).fetchall()))
            for (name,) in named
        }


def test_when_the_first_is_killed_the_second_goes_on_and_agents_and_gateway_with_it(
    cluster: Cluster, tmp_path: Path
) -> None:
    url, host = cluster.create(), own_address()
    words = ("--database", url, "--host", host)
    with Live(tmp_path / "first", *words) as first, around(first, tmp_path / "around") as others:
        port = first.url.rpartition(":")[2]
        wait_for(lambda: states(first) == [("small-0", "ready")])
        with first.admin() as admin:
            before = admin.get("/api/v1/replicas").json()["replicas"][0]["placement"]
        directory = second_directory(first, tmp_path / "second")
        with Live(directory, *words, "--port", port, wait=False) as second:
            wait_for(lambda: waits(second))
            said = second.log.read_text()
            assert f"(in {tmp_path / 'first' / 'server'} on " in said
            first.stop(signal.SIGKILL)
            others.chat()
            second.await_url()
            assert second.url == first.url
            assert second.log.read_text().count("server.waits") == 1
            assert "server.other_credentials" not in second.log.read_text()
            others.chat()
            # The agents speak to it, what ran runs on, and what is asked of it happens.
            wait_for(lambda: states(second) == [("small-0", "ready")])
            with second.admin() as admin:
                assert admin.post("/api/v1/catalog", content=SMALL.format(replicas=2)).is_success
                wait_for(lambda: [state for _, state in states(second)] == ["ready"] * 2)
                rows = admin.get("/api/v1/replicas").json()["replicas"]
                assert before in {row["placement"] for row in rows}
                # The gateway hears of it too: a key that is gone is refused.
                assert admin.delete("/api/v1/keys/k").is_success
            wait_for(lambda: refused_with(others.gateway, others.key) == 401)
            assert second.stop() == 0


def refused_with(gateway: str, key: str) -> int:
    with httpx2.Client(base_url=gateway, headers={"authorization": f"Bearer {key}"}) as client:
        return client.get("/v1/models").status_code


def test_one_that_was_stopped_for_a_while_wakes_up_deposed_and_writes_nothing(
    cluster: Cluster, tmp_path: Path
) -> None:
    url = cluster.create()
    with Live(tmp_path / "first", "--database", url) as first:
        node = WireNode(first).join()
        node.report()
        with first.admin() as admin:
            admin.post("/api/v1/catalog", content=CATALOG)
        wait_for(lambda: states(first) == [("coder-0", "placed")])
        node.obey()
        directory = second_directory(first, tmp_path / "second")
        with Live(directory, "--database", url, wait=False) as second:
            wait_for(lambda: waits(second))
            first.process.send_signal(signal.SIGSTOP)
            second.await_url()
            node.server = second
            node.report()
            with second.admin() as admin:
                assert admin.post("/api/v1/keys", json={"name": "second"}).is_success
            wait_for(lambda: states(second) == [("coder-0", "ready")])
            assert second.stop() == 0
            settled = kept(url)

            # What lies in its queue when it wakes up, and what its agents told it before.
            answers: list[int | None] = []

            def ask() -> None:
                try:
                    with first.admin() as admin:
                        answer = admin.post("/api/v1/keys", json={"name": "late"})
                        answers.append(answer.status_code)
                except httpx2.TransportError:
                    answers.append(None)

            asking = threading.Thread(target=ask)
            asking.start()
            wait_for(lambda: has_unread(first.url))
            first.process.send_signal(signal.SIGCONT)
            assert first.process.wait(60) == 1
            asking.join(60)
            assert answers in ([503], [None])
            assert kept(url) == settled
    said = first.log.read_text()
    assert "error: another server leads this fleet in epoch 2: server-" in said
    assert "this one led in epoch 1, and changes nothing any more" in said
    assert "Traceback" not in said


def has_unread(url: str) -> bool:
    """Somebody has connected to a listener that accepts nobody now."""
    port = int(url.rpartition(":")[2])
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    fields = [line.split() for line in lines]
    return any(
        f[1].endswith(f":{port:04X}") and f[3] == "01" and int(f[4].partition(":")[2], 16) > 0
        for f in fields
    )


def test_two_that_start_at_once_on_an_empty_database_are_one_fleet(
    cluster: Cluster, tmp_path: Path
) -> None:
    url = cluster.create()
    with (
        Live(tmp_path / "a", "--database", url, wait=False) as a,
        Live(tmp_path / "b", "--database", url, wait=False) as b,
    ):
        wait_for(lambda: waits(a) or waits(b))
        leads, follows = (b, a) if waits(a) else (a, b)
        leads.await_url()
        assert leads.stop() == 0
        # It let go: nobody waits until its time is over, and it is followed by the other.
        follows.await_url()
        assert follows.stop() == 0
        with psycopg.connect(url) as connection:
            (fleets,) = connection.execute("SELECT count(*) FROM fleet").fetchall()
            assert fleets == (1,)


def test_one_that_waits_ends_when_it_is_told_to(cluster: Cluster, tmp_path: Path) -> None:
    url = cluster.create()
    with (
        Live(tmp_path / "a", "--database", url) as a,
        Live(tmp_path / "b", "--database", url, wait=False) as b,
    ):
        wait_for(lambda: waits(b))
        assert not (tmp_path / "b" / "server" / "endpoint.json").exists()
        # It was given no copy of the first one's credentials.
        wait_for(lambda: "server.other_credentials" in b.log.read_text())
        assert b.stop() == 0
        assert alive(a.process.pid)
        assert a.stop() == 0
        assert "another server" not in a.log.read_text()
