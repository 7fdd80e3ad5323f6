"""`roost up --fake-fleet`: nodes of a file join, run a catalog, and a chat is answered."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx2

from roost.formats.fleet import fleet_to_json
from roost.testing.fleet_shapes import make_fleet

LIMIT_S = 120
CATALOG = """
models:
- name: small
  replicas: 3
  profiles:
  - {name: cpu, engine: llama.cpp, source: small.gguf, min_memory_gb: 4, slots: 2}
"""


def until(ready: Any) -> Any:
    end = time.monotonic() + LIMIT_S
    while not (found := ready()):
        assert time.monotonic() < end
        time.sleep(0.1)
    return found


def test_nodes_of_a_file_run_a_catalog_and_the_gateway_reaches_their_engines(
    tmp_path: Path,
) -> None:
    fleet, catalog = tmp_path / "fleet.json", tmp_path / "catalog.yaml"
    fleet.write_text(json.dumps(fleet_to_json(make_fleet("mixed", 12, 0))))
    catalog.write_text(CATALOG)
    at = tmp_path / "ready"
    up = subprocess.Popen(
        [
            *(sys.executable, "-m", "roost.cli.main", "up", "--dir", str(tmp_path / "roost")),
            *("--fake-fleet", str(fleet), "--catalog", str(catalog), "--ready-file", str(at)),
        ],
        stdout=subprocess.DEVNULL,
    )
    try:
        until(lambda: at.exists() or up.poll() is not None)
        said = json.loads(at.read_text())
        admin = Path(said["admin_credential_file"]).read_text().strip()
        with httpx2.Client(headers={"Authorization": f"Bearer {admin}"}, timeout=60) as http:

            def rows(what: str) -> list[dict[str, Any]]:
                found: list[dict[str, Any]] = http.get(f"{said['api']}/api/v1/{what}").json()[what]
                return found

            until(lambda: [node["ready"] for node in rows("nodes")] == [True] * 12)
            until(lambda: [one["state"] for one in rows("replicas")] == ["ready"] * 3)
            key = http.post(f"{said['api']}/api/v1/keys", json={"name": "t"}).json()["key"]

            def answer() -> str | None:
                body = {"model": "small", "messages": [], "max_tokens": 2}
                got = http.post(
                    f"{said['gateway']}/v1/chat/completions",
                    json=body,
                    headers={"Authorization": f"Bearer {key}"},
                )
                if got.status_code != 200:
                    return None
                text: str = got.json()["choices"][0]["message"]["content"]
                return text

            assert until(answer) == "w0 w1 "
        up.send_signal(signal.SIGINT)
        assert up.wait(timeout=LIMIT_S) == 0
        assert not at.exists()
    finally:
        if up.poll() is None:
            up.kill()
            up.wait()
