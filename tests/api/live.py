"""A real `roost server` process, and a node that speaks the wire by plain HTTP."""

import json
import os
import re
import selectors
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, TypeVar

import httpx2

T = TypeVar("T")

TLS = ssl.create_default_context()
"""Made once: it is what a client's start costs."""

CATALOG = """
models:
- name: coder
  profiles:
  - {name: cpu, engine: llama.cpp, source: m.gguf, min_memory_gb: 4}
"""


def wait_for(what: Callable[[], T | None], *, limit_s: float = 60) -> T:
    deadline = time.monotonic() + limit_s
    while not (answer := what()):
        assert time.monotonic() < deadline, f"not within {limit_s} s"
        time.sleep(0.05)
    return answer


class Live:
    """Started at once; `url` is known when it listens."""

    url: str

    def __init__(
        self,
        directory: Path,
        *words: str,
        wait: bool = True,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.directory = directory
        clean = {k: v for k, v in os.environ.items() if not k.startswith("ROOST_")}
        self.log = directory.parent / f"{directory.name}.log"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "roost.cli.main", "server"),
                    *("--dir", str(directory), "--port", "0", "--log-level", "debug", *words),
                ],
                stdout=subprocess.PIPE,
                stderr=log,
                env={**clean, **(environment or {})},
                text=True,
            )
        if wait:
            self.await_url()

    def await_url(self) -> None:
        """Until it listens."""
        line = self._line()
        found = re.search(r"roost server at (\S+),", line)
        assert found, f"{line!r}\n{self.log.read_text()}"
        self.url = found[1]

    def _line(self) -> str:
        assert self.process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            assert selector.select(60), "the server says nothing"
        return self.process.stdout.readline()

    def secret(self, name: str) -> str:
        return (self.directory / "server" / name).read_text().strip()

    def client(self, credential: str | None = None) -> httpx2.Client:
        headers = {} if credential is None else {"authorization": f"Bearer {credential}"}
        return httpx2.Client(base_url=self.url, headers=headers, timeout=60, verify=TLS)

    def admin(self) -> httpx2.Client:
        return self.client(self.secret("admin_credential"))

    def gateway(self) -> httpx2.Client:
        return self.client(self.secret("gateway_credential"))

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        status = self.process.wait(60)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return status

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.stop(signal.SIGKILL)
        elif self.process.stdout is not None:
            self.process.stdout.close()


@dataclass
class WireNode:
    """One node: everything it says is a plain request."""

    server: Live
    name: str = "n1"
    identity: str = ""
    boot_id: str | None = None
    credential: str = ""
    sequence: int = 0
    started_at: float = 1
    shards: list[dict[str, Any]] = field(default_factory=list)
    facts: dict[str, Any] = field(
        default_factory=lambda: {"memory_bytes": 32 * 10**9, "engines": ["llama.cpp"], "gpus": []}
    )

    def ask_to_join(self, token: str) -> httpx2.Response:
        with self.server.client() as client:
            return client.post(
                "/agent/v1/join",
                json={
                    "token": token,
                    "name": self.name,
                    "identity": self.identity or f"identity-of-{self.name}",
                    "boot_id": self.boot_id,
                },
            )

    def join(self) -> "WireNode":
        with self.server.admin() as admin:
            token = admin.post("/api/v1/tokens", json={}).json()["token"]
        answer = self.ask_to_join(token)
        assert answer.status_code == 200, answer.text
        self.credential = answer.json()["credential"]
        return self

    def client(self) -> httpx2.Client:
        return self.server.client(self.credential)

    def report(self, **more: Any) -> httpx2.Response:
        self.sequence += 1
        body = {
            "identity": self.identity or f"identity-of-{self.name}",
            "sequence": self.sequence,
            "started_at": self.started_at,
            "boot_id": self.boot_id,
            "facts": self.facts,
            "shards": self.shards,
            "address": "127.0.0.1",
            "port_range": [21000, 21099],
            **more,
        }
        with self.client() as client:
            return client.post("/agent/v1/report", content=json.dumps(body))

    def desired(self, **query: Any) -> httpx2.Response:
        with self.client() as client:
            return client.get("/agent/v1/desired", params=query)

    def obey(self, state: str = "ready") -> None:
        """Run what is to run, at once."""
        told = self.desired().json()
        self.shards = [
            {
                "placement": spec["placement"],
                "rank": spec["rank"],
                "replica": spec["replica"],
                "state": state,
                "since": time.time(),
                "pid": 4242,
                "port": spec["port"],
            }
            for spec in told["run"]
        ]
        # Having said that it has this state, it reports.
        seen = {key: told[key] for key in ("revision", "incarnation", "epoch")}
        assert self.desired(**seen).status_code in {200, 204}
        assert self.report().status_code == 200


def states(server: Live) -> list[tuple[str, str]]:
    with server.admin() as admin:
        rows = admin.get("/api/v1/replicas").json()["replicas"]
    return [(row["replica"], row["state"]) for row in rows]
