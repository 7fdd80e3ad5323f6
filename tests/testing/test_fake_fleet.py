"""`roost up --fake-fleet`: nodes of a file join, run a catalog, and a chat is answered."""

import asyncio
import json
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest

from agent.node import shard
from agent.wire_server import WireServer
from roost.domain.fleet import Fleet
from roost.formats.fleet import fleet_to_json
from roost.testing.fake_fleet import FakeFleet
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


def test_what_is_in_no_list_goes_on_and_is_reported_as_it_was_started(tmp_path: Path) -> None:
    async def story() -> None:
        async with WireServer().listening() as server:
            token = tmp_path / "token"
            token.write_text("token-1")
            fleet = Fleet(nodes=make_fleet("cpu", 1, 0).nodes)
            nodes = asyncio.ensure_future(
                FakeFleet(fleet=fleet, url=server.url, directory=tmp_path, token_file=token).run()
            )
            try:
                await server.until(lambda: server.reports or None)
                address = server.reports[-1].address
                assert address is not None
                spec = replace(shard(), host=address, port=20500)
                await server.want(spec)
                assert (await server.state("p1", "ready")).spec is None
                await server.want()
                orphan = await server.until(
                    lambda: seen if (seen := server.shard("p1")) and seen.spec else None
                )
                assert orphan.state == "ready"
                assert orphan.spec == spec
                await server.want(stop=("p1",))
                await server.state("p1", "stopped")
                await server.want()
                await server.until(lambda: server.shard("p1") is None)
            finally:
                nodes.cancel()
                await asyncio.gather(nodes, return_exceptions=True)

    asyncio.run(story())


@pytest.mark.timeout(300)
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
