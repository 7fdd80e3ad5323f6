"""PostgreSQL goes away under a running server, and comes back."""

from pathlib import Path

import psycopg

from api.live import Live, WireNode, states, wait_for
from postgresql import Cluster
from roost.cli.client import TIMEOUT_S
from run.around import CATALOG, around


def test_while_postgresql_is_away_the_gateway_serves_and_changes_are_refused_with_the_reason(
    own_cluster: Cluster, tmp_path: Path
) -> None:
    url = own_cluster.create()
    with (
        Live(tmp_path / "roost", "--database", url) as server,
        around(server, tmp_path / "around") as others,
        server.admin() as admin,
    ):

        def says(event: str) -> bool:
            return event in server.log.read_text()

        wait_for(lambda: states(server) == [("small-0", "ready")])
        own_cluster.stop()
        wait_for(lambda: says("database.away"))
        for change in (
            admin.post("/api/v1/keys", json={"name": "later"}),
            admin.post("/api/v1/nodes/n1/cordon", json={"reason": "fan"}),
            admin.post("/api/v1/catalog", content=CATALOG.format(replicas=2)),
            admin.delete("/api/v1/keys/k"),
            admin.get("/api/v1/events"),
        ):
            assert change.status_code == 503
            assert change.headers["retry-after"]
            said = change.json()
            assert "postgresql://" in said["detail"]
            assert said["code"] == "unreachable"
            others.chat()
        assert "cannot be reached" in admin.get("/readyz").json()["status"]
        assert admin.get("/healthz").is_success
        # What agents say is taken, and known.
        told = server.log.read_text().count("database.away")
        with server.gateway() as gateway:
            (model,) = gateway.get("/gateway/v1/snapshot").json()["models"]
        assert len(model["routes"]) == 1
        assert {n["status"] for n in admin.get("/api/v1/nodes").json()["nodes"]} == {"ready"}
        own_cluster.start()
        wait_for(lambda: says("database.back"))
        assert told == server.log.read_text().count("database.away") == 1
        wait_for(lambda: admin.get("/readyz").json()["status"] == "ok")
        others.chat()
        assert admin.get("/api/v1/nodes/n1").json()["cordoned"] is False
        assert [key["name"] for key in admin.get("/api/v1/keys").json()["keys"]] == ["k"]
        assert admin.post("/api/v1/catalog", content=CATALOG.format(replicas=2)).is_success
        wait_for(lambda: [state for _, state in states(server)] == ["ready"] * 2)
        assert server.stop() == 0
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT epoch FROM lease").fetchall() == [(1,)]


def test_while_postgresql_stands_still_changes_are_refused_before_ctl_gives_up(
    own_cluster: Cluster, tmp_path: Path
) -> None:
    with (
        Live(tmp_path / "roost", "--database", own_cluster.create()) as server,
        server.client(server.secret("admin_credential")) as admin,
    ):
        node = WireNode(server).join()
        admin.timeout = TIMEOUT_S
        with own_cluster.frozen():
            for name in ("first", "second"):
                answer = admin.post("/api/v1/keys", json={"name": name})
                assert answer.status_code == 503
                assert answer.json()["code"] in {"unreachable", "undecided", "unavailable"}
                assert node.report().status_code == 200
        wait_for(lambda: admin.post("/api/v1/keys", json={"name": "third"}).status_code == 201)
        # What was refused was not made; what nobody knew may have been.
        names = {key["name"] for key in admin.get("/api/v1/keys").json()["keys"]}
        assert names <= {"first", "third"}
        assert server.stop() == 0


def test_a_server_ends_in_time_while_its_database_is_away(
    own_cluster: Cluster, tmp_path: Path
) -> None:
    with Live(tmp_path / "roost", "--database", own_cluster.create()) as server:
        with server.admin() as admin:
            assert admin.post("/api/v1/keys", json={"name": "k"}).is_success
        own_cluster.stop()
        wait_for(lambda: "database.away" in server.log.read_text())
        assert server.stop() == 0
        assert "Traceback" not in server.log.read_text()
