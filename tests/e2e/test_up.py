"""`roost up` for the programs that start it (FORMATS of the ready file and of `ctl … -o json`)."""

import json
import stat
import subprocess
from pathlib import Path

import httpx2
import pytest

from running import CATALOG, Served, environment, processes_of, roost, start, wait_for


def test_the_ready_file_says_where_everything_is(tmp_path: Path) -> None:
    ready_file = tmp_path / "ready.json"
    catalog = tmp_path / "catalog.yaml"
    catalog.write_text(CATALOG)
    words = ("--ready-file", str(ready_file), "--catalog", str(catalog), "--workers", "2")
    stack = start(tmp_path / "state", *words)
    try:
        ready = stack.ready
        wait_for(ready_file.exists)  # it is written after up.json, which has told us
        assert ready_file.read_text() == (stack.directory / "up.json").read_text()
        assert stat.S_IMODE(ready_file.stat().st_mode) == 0o600
        assert set(ready) == {"api", "gateway", "metrics", "admin_credential_file", "pids"}
        assert set(ready["pids"]) >= {"server", "agent", "gateway"}
        credential = Path(ready["admin_credential_file"])
        assert stat.S_IMODE(credential.stat().st_mode) == 0o600
        nodes = httpx2.get(
            f"{ready['api']}/api/v1/nodes",
            headers={"Authorization": f"Bearer {credential.read_text().strip()}"},
        )
        assert nodes.status_code == 200
        assert httpx2.get(f"{ready['api']}/api/v1/nodes").status_code == 401
        assert httpx2.get(f"{ready['gateway']}/v1/models").status_code == 401
        for page in ready["metrics"]:
            assert "roost_" in httpx2.get(page).text
        assert "roost_gateway_workers 2.0" in httpx2.get(ready["metrics"][1]).text
        stack.await_state("ready")
    finally:
        assert stack.stop() == 0, stack.logs()
    assert not ready_file.exists()
    assert processes_of(tmp_path) == []


def test_the_json_of_ctl_has_the_documented_keys(shared: Served) -> None:
    row = shared.stack.replica()
    assert set(row) >= {
        *("replica", "model", "profile", "state", "since", "restarts", "cause", "shards"),
        *("running", "waiting", "kv_usage"),
    }
    assert set(row["shards"][0]) >= {"rank", "node", "pid", "port", "gpus"}
    assert row["kv_usage"] is None  # this llama.cpp does not say: not measured is not 0
    fleet = shared.stack.json("nodes")
    assert set(fleet) >= {"nodes", "allocations"}
    held = fleet["allocations"][0]
    assert (held["replica"], held["model"], held["profile"], held["state"]) == (
        *("smollm2-0", "smollm2", "cpu", "held"),
    )
    assert fleet["nodes"][0]["memory_bytes"] > 1_000_000_000


def test_a_saved_fleet_can_be_asked_about_offline(shared: Served, tmp_path: Path) -> None:
    fleet, catalog = tmp_path / "fleet.json", tmp_path / "catalog.yaml"
    fleet.write_text(shared.stack.ctl("nodes", "-o", "json").stdout)
    catalog.write_text(CATALOG)
    ran = subprocess.run(
        roost("plan", "--fleet", str(fleet), "--catalog", str(catalog), "-o", "json"),
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr == ""  # nothing in our own file is unknown to us
    decision = json.loads(ran.stdout)["decisions"][0]
    assert (decision["model"], decision["replica"], decision["outcome"]) == ("smollm2", 0, "kept")


@pytest.mark.parametrize(
    "words",
    [
        ("nodes",),
        ("models",),
        ("replicas",),
        ("keys", "list"),
        ("token", "list"),
        ("events",),
        ("orphans",),
    ],
)
def test_each_list_has_a_table_and_json(shared: Served, words: tuple[str, ...]) -> None:
    assert isinstance(shared.stack.json(*words), dict)
    table = shared.stack.ctl(*words).stdout
    assert all(len(line) <= 200 for line in table.splitlines())
    assert "\x1b" not in table
