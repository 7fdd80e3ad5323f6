import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from api.live import CATALOG, Live, WireNode, states, wait_for


def refused(*words: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "roost.cli.main", "server", *words],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    return done.returncode, done.stderr


def test_where_it_listens_is_written_for_ctl(own_server: Live) -> None:
    written = json.loads((own_server.directory / "server" / "endpoint.json").read_text())
    assert written == {"api": own_server.url}


@pytest.mark.parametrize("seconds", ["1", "4.9", "61"])
def test_an_interval_that_no_agent_would_keep_is_refused(tmp_path: Path, seconds: str) -> None:
    status, said = refused("--dir", str(tmp_path), "--port", "0", "--report-interval", seconds)
    assert status == 2
    assert "5<=x<=60" in said


def test_agents_are_told_the_interval_that_the_server_was_given(tmp_path: Path) -> None:
    with Live(tmp_path / "roost", "--report-interval", "7.5") as server:
        node = WireNode(server).join()
        assert node.report().json() == {"report_interval_s": 7.5}
        assert node.desired().json()["report_interval_s"] == 7.5


def test_it_ends_with_status_0_while_others_wait_for_news(own_server: Live, node: WireNode) -> None:
    told = node.desired().json()
    seen = {key: told[key] for key in ("revision", "incarnation", "epoch")}
    answers = []

    def wait() -> None:
        answers.append(node.desired(**seen, wait=50).status_code)

    def snapshot() -> None:
        with own_server.gateway() as gateway:
            first = gateway.get("/gateway/v1/snapshot").json()
            query = {key: first[key] for key in ("revision", "incarnation", "epoch")}
            answer = gateway.get("/gateway/v1/snapshot", params={**query, "wait": 50})
            answers.append(answer.status_code)

    waiting = [threading.Thread(target=wait), threading.Thread(target=snapshot)]
    for thread in waiting:
        thread.start()
    with own_server.admin() as admin:
        admin.get("/api/v1/nodes")
    for thread in waiting:
        thread.join(0.5)
    assert own_server.stop() == 0
    for thread in waiting:
        thread.join(30)
    assert answers == [204, 204]


def test_a_second_server_on_its_directory_is_refused_naming_the_first(own_server: Live) -> None:
    status, said = refused("--dir", str(own_server.directory), "--port", "0")
    assert status != 0
    assert f"process {own_server.process.pid}" in said
    assert "Traceback" not in said
    with own_server.client() as client:
        assert client.get("/readyz").status_code == 200


def test_a_port_in_use_is_said(own_server: Live, tmp_path: Path) -> None:
    port = own_server.url.rpartition(":")[2]
    status, said = refused("--dir", str(tmp_path / "other"), "--port", port)
    assert status == 2
    assert f"cannot listen on 127.0.0.1:{port}: address already in use" in said


def test_a_directory_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    status, said = refused("--dir", str(tmp_path / "file"), "--port", "0")
    assert status == 2
    assert "Traceback" not in said


def test_a_database_of_a_newer_version_is_refused(own_server: Live) -> None:
    own_server.stop()
    path = own_server.directory / "server" / "roost.db"
    direct = sqlite3.connect(path)
    with direct:
        direct.execute("UPDATE alembic_version SET version_num = '9999'")
    direct.close()
    status, said = refused("--dir", str(own_server.directory), "--port", "0")
    assert status == 2
    assert "from a newer roost" in said


def test_what_was_acknowledged_survives_a_kill(own_server: Live, node: WireNode) -> None:
    with own_server.admin() as admin:
        admin.post("/api/v1/catalog", content=CATALOG)
        admin.post("/api/v1/nodes/n1/cordon", json={"reason": "fan"})
        admin.post("/api/v1/nodes/n1/uncordon")
        wait_for(lambda: states(own_server) == [("coder-0", "placed")])
        node.obey()
        admin.post("/api/v1/nodes/n1/cordon", json={"reason": "fan"})
        key = admin.post("/api/v1/keys", json={"name": "last"}).json()["key"]
    told = node.desired().json()
    own_server.stop(signal.SIGKILL)
    with Live(own_server.directory) as again:
        node.server = again
        assert states(again)[0][0] == "coder-0"
        after = node.desired().json()
        assert after["run"] == told["run"]
        assert after["fleet"] == told["fleet"]
        assert (after["incarnation"], after["epoch"]) > (told["incarnation"], told["epoch"])
        node.obey()
        with again.admin() as admin:
            assert admin.get("/api/v1/nodes/n1").json()["cordon_reason"] == "fan"
            assert admin.get("/api/v1/keys").json()["keys"][0]["ending"] == key[-4:]
        wait_for(lambda: states(again) == [("coder-0", "ready")])


def test_an_agent_of_an_earlier_epoch_gets_its_state_at_once(
    own_server: Live, node: WireNode
) -> None:
    told = node.desired().json()
    own_server.stop()
    with Live(own_server.directory) as again:
        node.server = again
        seen = {key: told[key] for key in ("revision", "incarnation", "epoch")}
        assert node.desired(**seen, wait=50).status_code == 200


def fill(file: Path) -> None:
    """Write until the disk is full."""
    with file.open("wb", buffering=0) as ballast:
        while True:
            ballast.write(b"x" * 4096)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A filesystem of 3 MB."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("only root can mount a small filesystem")
    disk = tmp_path / "disk"
    disk.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(disk)],
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode != 0:
        pytest.skip(f"cannot mount here: {made.stderr.strip()}")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def test_on_a_full_disk_it_says_so_routes_on_and_gets_over_it(small_disk: Path) -> None:
    with Live(small_disk / "roost") as server, server.admin() as admin:
        node = WireNode(server).join()
        node.report()
        admin.post("/api/v1/catalog", content=CATALOG)
        wait_for(lambda: states(server) == [("coder-0", "placed")])
        with pytest.raises(OSError, match="space"):
            fill(small_disk / "x")
        statuses = {
            admin.post("/api/v1/keys", json={"name": f"k{i}" * 15}).status_code for i in range(400)
        }
        assert 507 in statuses
        assert statuses <= {201, 507}
        problem = admin.post("/api/v1/catalog", content=CATALOG + "#" * 900_000 + "\n").json()
        assert "code" not in problem or problem["code"] == "no_space"
        # What agents report is taken and routed, stored or not.
        node.obey()
        assert states(server) == [("coder-0", "ready")]
        with server.gateway() as gateway:
            (model,) = gateway.get("/gateway/v1/snapshot").json()["models"]
        assert len(model["routes"]) == 1
        before = len(admin.get("/api/v1/keys").json()["keys"])
        (small_disk / "x").unlink()
        wait_for(
            lambda: admin.post("/api/v1/keys", json={"name": "after"}).status_code in {201, 409}
        )
        keys = admin.get("/api/v1/keys").json()["keys"]
        assert len(keys) == before + 1
        wait_for(lambda: admin.get("/readyz").json()["status"] == "ok")
    with Live(small_disk / "roost") as again, again.admin() as admin:
        assert admin.get("/api/v1/keys").json()["keys"] == keys
        assert states(again)[0][0] == "coder-0"
