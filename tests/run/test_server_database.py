"""`roost server --database URL`: what it takes, what it refuses, and what nobody gets to see."""

import asyncio
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import psycopg
import pytest

from api.live import CATALOG, Live, WireNode, states, wait_for
from postgresql import Cluster, program
from roost.errors import Unusable
from roost.run.database import named_database
from roost.store.migrate import migrate
from roost.store.postgresql import PostgreSql
from roost.store.store import Store
from running import environment


def refused(tmp_path: Path, *words: str, status: int = 2, env: dict[str, str] | None = None) -> str:
    """What a server says that does not start."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "roost.cli.main", "server", "--port", "0"),
            *("--dir", str(tmp_path / "roost"), *words),
        ],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env=environment(**(env or {})),
    )
    assert done.returncode == status, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    return done.stderr


def query(url: str, sql: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url) as connection:
        return connection.execute(sql.encode()).fetchall()


def test_a_fleet_is_kept_in_postgresql_over_a_restart(cluster: Cluster, tmp_path: Path) -> None:
    url = cluster.create()
    with Live(tmp_path / "roost", "--database", url) as server:
        node = WireNode(server).join()
        node.report()
        with server.admin() as admin:
            assert admin.post("/api/v1/catalog", content=CATALOG).status_code == 200
        wait_for(lambda: states(server) == [("coder-0", "placed")])
        node.obey()
        wait_for(lambda: states(server) == [("coder-0", "ready")])
        assert server.stop() == 0
    assert not (tmp_path / "roost" / "server" / "roost.db").exists()
    # On its own directory it need not wait, whatever became of it.
    with Live(tmp_path / "roost", "--database", url) as server:
        assert states(server)[0][0] == "coder-0"
        server.stop(9)
    with Live(tmp_path / "roost", environment={"ROOST_DATABASE": url}) as server:
        assert states(server)[0][0] == "coder-0"
        assert server.stop() == 0
        assert "server.waits" not in server.log.read_text()
    assert query(url, "SELECT epoch FROM lease") == [(3,)]


def test_a_password_in_the_command_line_is_refused_and_not_repeated(tmp_path: Path) -> None:
    said = refused(tmp_path, "--database", "postgresql://roost:hush%2Fhush@127.0.0.1:1/x")
    assert "a password in --database is seen by everybody" in said
    assert "PGPASSFILE" in said
    assert "--database-file FILE" in said
    assert "hush" not in said
    assert not (tmp_path / "roost").exists()


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("postgres://127.0.0.1:1/x?user=roost&password=hush", "a password in --database"),
        ("postgresql://127.0.0.1:1/x?sslpassword=hush", "a password in --database"),
        ("postgresql://roost:hush@[broken/x", "the URL of the database cannot be read"),
        ("mysql://roost:hush@h/x", "no database is reached by mysql://"),
    ],
)
def test_what_no_command_line_may_say_is_not_repeated(url: str, why: str) -> None:
    with pytest.raises(Unusable, match=why) as caught:
        named_database(url, on_command_line=True, file=None)
    assert "hush" not in caught.value.message + str(caught.value.hint)


def test_a_server_that_cannot_reach_its_database_says_so_without_the_password(
    tmp_path: Path,
) -> None:
    url = "postgresql://roost:hush@127.0.0.1:1/x"
    said = refused(tmp_path, env={"ROOST_DATABASE": url}, status=5)
    assert "postgresql://roost@127.0.0.1:1/x cannot be reached: connection failed" in said
    assert "hint: does it answer this machine? psql postgresql://roost@127.0.0.1:1/x" in said
    assert "hush" not in said


def test_a_file_holds_the_url_and_a_password_only_if_others_cannot_read_it(
    cluster: Cluster, tmp_path: Path
) -> None:
    file = tmp_path / "url"

    def no(why: str, *, given: str | None = None) -> str:
        with pytest.raises(Unusable, match=why) as caught:
            named_database(given, on_command_line=given is not None, file=file)
        assert "hush" not in caught.value.message
        return str(caught.value.hint)

    url = cluster.create().replace("roost@", "roost:hush@")
    no("cannot be read: No such file")
    file.write_text("roost.db\n")
    no("does not hold one line with the URL")
    file.write_text(f"{url}\n")
    file.chmod(0o640)
    assert no("has a password, and others can read it") == f"chmod 600 {file}"
    file.chmod(0o600)
    no("both name a database", given="roost.db")
    # The command line wins over the environment.
    words = ("--database-file", str(file))
    with Live(tmp_path / "roost", *words, environment={"ROOST_DATABASE": "other.db"}) as server:
        assert server.stop() == 0
        assert "hush" not in server.log.read_text()
    assert query(url, "SELECT count(*) FROM fleet") == [(1,)]


def test_a_database_of_another_program_is_left_as_it_is(cluster: Cluster, tmp_path: Path) -> None:
    url = cluster.create()
    cluster.do("CREATE TABLE nodes (x int)", database=cluster.named(url))
    said = refused(tmp_path, "--database", url)
    assert "has tables of another program: nodes" in said
    assert "hint: give Roost a database of its own: CREATE DATABASE roost" in said


def test_a_database_of_a_newer_roost_is_left_to_it(cluster: Cluster, tmp_path: Path) -> None:
    url = cluster.create()

    async def make() -> None:
        database = PostgreSql(url)
        await migrate(database)
        await Store(database).lead("somebody")
        await database.close()

    asyncio.run(make())
    cluster.do("UPDATE alembic_version SET version_num = '9999'", database=cluster.named(url))
    before = query(url, "SELECT * FROM lease")
    assert "is from a newer roost: its schema is 9999" in refused(tmp_path, "--database", url)
    assert query(url, "SELECT * FROM lease") == before


def test_a_port_in_use_lets_the_next_server_lead_at_once(cluster: Cluster, tmp_path: Path) -> None:
    url = cluster.create()
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        assert "address already in use" in refused(tmp_path, "--database", url, "--port", port)
    assert query(url, "SELECT expires_at <= extract(epoch FROM now()) FROM lease") == [(True,)]


def test_a_restored_backup_is_noticed_and_stops_nothing(cluster: Cluster, tmp_path: Path) -> None:
    url, dump = cluster.create(), str(tmp_path / "roost.dump")
    words = ("--database", url)
    two = CATALOG.replace("name: coder\n", "name: coder\n  replicas: 2\n")

    def run(*command: str) -> None:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

    with Live(tmp_path / "roost", *words) as server, server.admin() as admin:
        node = WireNode(server).join()
        node.report()
        assert admin.post("/api/v1/catalog", content=CATALOG).is_success
        wait_for(lambda: states(server) == [("coder-0", "placed")])
        run(program("pg_dump"), "--format=custom", "--file", dump, url)
        assert admin.post("/api/v1/catalog", content=two).is_success
        wait_for(lambda: len(node.desired().json()["run"]) == 2)
        assert server.stop() == 0
    with Live(tmp_path / "roost", *words) as server:
        node.server = server
        told = node.desired().json()
        node.obey()
        assert server.stop() == 0
    run(program("pg_restore"), "--clean", "--if-exists", "--dbname", url, dump)
    # It leads in an epoch in which the agents were told something else before.
    with Live(tmp_path / "roost", *words) as server, server.admin() as admin:
        node.server = server
        assert query(url, "SELECT epoch FROM lease") == [(told["epoch"],)]
        specs = {spec["placement"]: spec for spec in told["run"]}
        node.shards = [{**one, "spec": specs[one["placement"]]} for one in node.shards]
        known = {key: told[key] for key in ("revision", "incarnation", "epoch")}

        def is_noticed() -> bool:
            now = node.desired(**known).json()
            assert now["stop"] == []
            assert node.report().status_code == 200
            return bool(now["incarnation"] > told["incarnation"])

        wait_for(is_noticed)
        events = [event["what"] for event in admin.get("/api/v1/events").json()["events"]]
        assert "fleet.restored" in events
        (orphan,) = admin.get("/api/v1/orphans").json()["orphans"]
        assert orphan["replica"] == "coder-1"
        assert [spec["replica"] for spec in node.desired().json()["run"]] == ["coder-0"]
        assert server.stop() == 0
