"""A replica on two nodes: two agents on two loopback addresses, and an engine of two ranks.

The ranks are stand-ins that take vLLM's own command lines and meet at rank 0's address.
"""

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from roost.errors import RoostError
from roost.run.chat import stream_chat
from roost.run.stack import answers
from roost.testing.fake_nvml import eight_h100
from running import alive, environment, roost, wait_for

FAKE = f"exec {shlex.quote(sys.executable)} -P -m roost.testing.fake_engine"
CATALOG = """\
models:
- name: wide
  profiles:
  - name: two-nodes
    engine: vllm
    source: tiny
    gpu_class: h100-80gb-hbm3
    gpus_per_node: 1
    nodes: 2
    tensor_parallel: 2
    pipeline_parallel: 1
    drain_timeout_s: 20
"""


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


class Fleet:
    """A server, a gateway and an agent at each of two addresses, in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.api, self.gateway = free_port(), free_port()
        self.key: str | None = None
        self.processes: list[subprocess.Popen[bytes]] = []

    def run(self, *words: str, **env: str) -> None:
        """Start `roost …`, with its output beside the others'."""
        with (self.folder / f"{len(self.processes)}-{words[0]}.log").open("wb") as out:
            self.processes.append(
                subprocess.Popen(
                    roost(*words),
                    env=environment(HOME=str(self.folder), XDG_CONFIG_HOME="", **env),
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                )
            )

    def ctl(self, *words: str, text: str | None = None) -> str:
        ran = subprocess.run(
            roost("ctl", *words),
            env=environment(ROOST_DIR=str(self.folder / "state")),
            input=text,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert ran.returncode == 0, f"{words}: {ran.stdout}{ran.stderr}\n{self.logs()}"
        return ran.stdout

    def row(self) -> dict[str, Any]:
        rows = json.loads(self.ctl("replicas", "-o", "json"))["replicas"]
        return next((row for row in rows if row["replica"] == "wide-0"), {})

    def ready(self, *, without: Collection[int] = ()) -> list[int]:
        """Wait until it is ready, on none of those processes; its ranks' process ids."""

        def pids() -> list[int] | None:
            row = self.row()
            if row.get("state") != "ready":
                return None
            found = [shard["pid"] for shard in row["shards"]]
            return None if None in found or set(found) & set(without) else found

        try:
            return wait_for(pids)
        except AssertionError as error:
            raise AssertionError(f"{error}: {self.row()}\n{self.logs()}") from error

    def ask(self) -> list[str]:
        if self.key is None:
            self.key = str(json.loads(self.ctl("keys", "create", "test", "-o", "json"))["key"])
        key = self.key

        def answer() -> list[str] | None:
            try:
                url = f"http://127.0.0.1:{self.gateway}"
                return stream_chat(url, key, model="wide", question="?", max_tokens=3).text.split()
            except RoostError:
                return None  # the gateway is about to hear of the key, or of the replica

        return wait_for(answer)

    def logs(self) -> str:
        return "\n".join(
            f"--- {file.name}\n{file.read_text(errors='replace')[-3000:]}"
            for file in sorted(self.folder.glob("*.log"))
        )

    def stop(self) -> None:
        """Engines first; then agents, the gateway and the server."""
        if self.row():
            self.ctl("delete", "wide")
            wait_for(lambda: not self.row())
        for process in reversed(self.processes):
            process.terminate()
            assert process.wait(timeout=60) == 0, self.logs()


def machine(place: Path, number: int) -> Path:
    """A root with one adapter on InfiniBand."""
    port = place / "sys/class/infiniband/mlx5_0/ports/1"
    port.mkdir(parents=True)
    (port / "state").write_text("4: ACTIVE\n")
    (port / "phys_state").write_text("5: LinkUp\n")
    (port / "link_layer").write_text("InfiniBand\n")
    (port / "rate").write_text("400 Gb/sec (4X NDR)\n")
    cards = eight_h100()
    one = replace(cards.cards[0], uuid=f"GPU-{number:08x}-0000-4000-8000-00000000000a")
    replace(cards, cards=(one,)).save(place / "cards.json")
    return place


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    (tmp_path / "models" / "tiny").mkdir(parents=True)
    vllm = tmp_path / "vllm"
    vllm.write_text(f'#!/bin/sh\n{FAKE} --loss-s 0.2 "$@"\n')
    vllm.chmod(0o755)
    fleet = Fleet(tmp_path)
    state, api = ("--dir", str(tmp_path / "state")), f"http://127.0.0.1:{fleet.api}"
    try:
        fleet.run("server", *state, "--port", str(fleet.api), "--allow-address", "127.0.0.0/8")
        wait_for(lambda: answers(f"{api}/healthz"))
        token = json.loads(fleet.ctl("token", "create", "--uses", "2", "-o", "json"))["token"]
        (tmp_path / "token").write_text(token)
        fleet.run(
            *("gateway", *state, "--server", api, "--port", str(fleet.gateway)),
            *("--metrics-port", "0"),
        )
        for number, host in enumerate(("127.0.0.1", "127.0.0.2")):
            place = machine(tmp_path / f"node-{number}", number)
            fleet.run(
                *("agent", "--dir", str(place / "state"), "--server", api),
                *("--token-file", str(tmp_path / "token"), "--name", f"node-{number}"),
                *("--host", host, "--root", str(place), "--fabric", "ib0=mlx5_*"),
                *("--vllm", str(vllm), "--model-dir", str(tmp_path / "models")),
                *("--port-range", "23000-23099"),
                ROOST_FAKE_NVML=str(place / "cards.json"),
            )
        yield fleet
    finally:
        fleet.stop()


def test_two_ranks_start_fail_and_stop_together(fleet: Fleet) -> None:
    fleet.ctl("apply", "-f", "-", text=CATALOG)
    first = fleet.ready()
    assert sorted(shard["node"] for shard in fleet.row()["shards"]) == ["node-0", "node-1"]
    assert fleet.ask() == ["w0", "w1", "w2"]

    os.kill(first[1], signal.SIGKILL)
    second = fleet.ready(without=first)
    assert not any(alive(pid) for pid in first)
    assert fleet.ask() == ["w0", "w1", "w2"]

    os.kill(second[0], signal.SIGKILL)
    third = fleet.ready(without=[*first, *second])
    assert not any(alive(pid) for pid in second)

    fleet.ctl("delete", "wide")
    wait_for(lambda: not fleet.row())
    assert not any(alive(pid) for pid in third)
