"""What goes on around a server, as processes of their own: a made-up fleet, and a gateway."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from api.live import Live, wait_for
from roost.errors import RoostError
from roost.run.chat import stream_chat
from running import environment, roost

CATALOG = """
models:
- name: small
  replicas: {replicas}
  profiles:
  - {{name: cpu, engine: llama.cpp, source: small.gguf, min_memory_gb: 4}}
"""
NODES = [
    {"name": name, "memory_bytes": 32 * 10**9, "engines": ["llama.cpp"], "gpus": []}
    for name in ("n1", "n2")
]


def own_address() -> str:
    """Of this process alone: no port of it is anybody else's, also after a listener has gone."""
    pid = os.getpid()
    return f"127.{100 + pid // 65_536 % 100}.{pid // 256 % 256}.{1 + pid % 254}"


@dataclass(kw_only=True)
class Around:
    """Goes on whatever becomes of the server."""

    directory: Path
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    key: str = ""

    def start(self, name: str, *words: str) -> None:
        with (self.directory / f"{name}.log").open("ab") as log:
            self.processes.append(
                subprocess.Popen(
                    roost(*words),
                    env=environment(),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )
            )

    @property
    def gateway(self) -> str:
        told = json.loads((self.directory / "gateway" / "endpoint.json").read_text())
        return str(told["gateway"])

    def chat(self) -> str:
        """An answer, now; raises where there is none."""
        asked = {"model": "small", "question": "?", "max_tokens": 3}
        return stream_chat(self.gateway, self.key, **asked).text  # type: ignore[arg-type]

    def await_chat(self) -> None:
        def answered() -> bool:
            with suppress(RoostError):
                return self.chat() != ""
            return False

        wait_for(answered)

    def stop(self) -> None:
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextmanager
def around(server: Live, directory: Path) -> Iterator[Around]:
    """Two nodes, of which one serves a model, and a gateway that has answered."""
    directory.mkdir()
    (directory / "fleet.json").write_text(json.dumps({"nodes": NODES, "allocations": []}))
    with server.admin() as admin:
        token = admin.post("/api/v1/tokens", json={"uses": len(NODES)}).json()["token"]
        (directory / "token").write_text(token)
        it = Around(
            directory=directory, key=admin.post("/api/v1/keys", json={"name": "k"}).json()["key"]
        )
        assert admin.post("/api/v1/catalog", content=CATALOG.format(replicas=1)).is_success
    shutil.copy(server.directory / "server" / "gateway_credential", directory)
    try:
        it.start(
            "fleet",
            *("fleet", "run", str(directory / "fleet.json"), "--server", server.url),
            *("--token-file", str(directory / "token"), "--dir", str(directory / "nodes")),
        )
        it.start(
            "gateway",
            *("gateway", "--dir", str(directory), "--server", server.url, "--port", "0"),
            *("--metrics-port", "0", "--credential-file", str(directory / "gateway_credential")),
        )
        wait_for((directory / "gateway" / "endpoint.json").exists)
        it.await_chat()
        yield it
    finally:
        it.stop()
