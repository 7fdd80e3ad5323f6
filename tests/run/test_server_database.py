"""`roost server --database URL`: what it takes, what it refuses, and what nobody gets to see."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import psycopg

from api.live import CATALOG, Live, WireNode, states, wait_for
from postgresql import Cluster
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
    for url in (
        "postgresql://roost:hush%2Fhush@127.0.0.1:1/x",
        "postgres://127.0.0.1:1/x?user=roost&password=hush",
    ):
        said = refused(tmp_path, "--database", url)
        assert "a password in --database is seen by everybody" in said
        assert "PGPASSFILE" in said
        assert "--database-file FILE" in said
        assert "hush" not in said
    assert not (tmp_path / "roost").exists()


def test_a_url_that_cannot_be_used_is_refused_without_its_password(tmp_path: Path) -> None:
    assert "no database is reached by mysql://" in refused(
        tmp_path, "--database", "mysql://roost:hush@h/x"
    )
    said = refused(tmp_path, env={"ROOST_DATABASE": "postgresql://roost:hush@[broken/x"})
    assert "the URL of the database cannot be read" in said
    assert "hush" not in said
    said = refused(
        tmp_path, env={"ROOST_DATABASE": "postgresql://roost:hush@127.0.0.1:1/x"}, status=5
    )
    assert "postgresql://roost@127.0.0.1:1/x cannot be reached: connection failed" in said
    assert "hint: does it answer this machine? psql postgresql://roost@127.0.0.1:1/x" in said
    assert "hush" not in said


def test_a_file_holds_the_url_and_a_password_only_if_others_cannot_read_it(
    cluster: Cluster, tmp_path: Path
) -> None:
    file = tmp_path / "url"
    url = cluster.create().replace("roost@", "roost:hush@")
    assert f"{file} cannot be read: No such file" in refused(tmp_path, "--database-file", str(file))
    file.write_text("roost.db\n")
    assert "does not hold one line with the URL" in refused(tmp_path, "--database-file", str(file))
    file.write_text(f"{url}\n")
    file.chmod(0o640)
    said = refused(tmp_path, "--database-file", str(file))
    assert f"hint: chmod 600 {file}" in said
    assert "hush" not in said
    file.chmod(0o600)
    both = refused(tmp_path, "--database-file", str(file), "--database", "roost.db")
    assert "both name a database" in both
    # The command line wins over the environment.
    words = ("--database-file", str(file))
    with Live(tmp_path / "roost", *words, environment={"ROOST_DATABASE": "other.db"}) as server:
        assert server.stop() == 0
        assert "hush" not in server.log.read_text()
        assert "hush" not in " ".join(map(str, server.process.args))  # type: ignore[arg-type]
    assert query(url, "SELECT count(*) FROM fleet") == [(1,)]


def test_a_database_of_another_program_is_left_as_it_is(cluster: Cluster, tmp_path: Path) -> None:
    url = cluster.create()
    name = url.partition("@/")[2].partition("?")[0]
    cluster.do("CREATE TABLE nodes (x int)", database=name)
    said = refused(tmp_path, "--database", url)
    assert "has tables of another program: nodes" in said
    assert "hint: give Roost a database of its own: CREATE DATABASE roost" in said


def test_a_database_of_a_newer_roost_is_left_to_it(cluster: Cluster, tmp_path: Path) -> None:
    url = cluster.create()
    with Live(tmp_path / "roost", "--database", url) as server:
        server.stop()
    name = url.partition("@/")[2].partition("?")[0]
    cluster.do("UPDATE alembic_version SET version_num = '9999'", database=name)
    before = query(url, "SELECT * FROM lease")
    assert "is from a newer roost: its schema is 9999" in refused(tmp_path, "--database", url)
    assert query(url, "SELECT * FROM lease") == before


def test_a_port_in_use_lets_the_next_server_lead_at_once(cluster: Cluster, tmp_path: Path) -> None:
    url = cluster.create()
    with Live(tmp_path / "other") as other:
        port = other.url.rpartition(":")[2]
        assert "address already in use" in refused(tmp_path, "--database", url, "--port", port)
    with Live(tmp_path / "second", "--database", url) as second:
        assert second.stop() == 0
        assert "server.waits" not in second.log.read_text()
