"""Two real agents on two loopback addresses, with a real server and a real gateway."""

import json
import socket
import subprocess
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from roost.errors import RoostError
from roost.run.chat import Answer, stream_chat
from roost.run.stack import answers
from roost.testing.fake_nvml import eight_h100
from running import environment, roost, wait_for

HOSTS: Final = ("127.0.0.1", "127.0.0.2")


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


class Fleet:
    """A server, a gateway and an agent at each of two addresses, in one folder."""

    def __init__(self, folder: Path, *, model: str) -> None:
        self.folder = folder
        self.model = model
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
        """The model's only replica in `ctl replicas`; empty when it isn't there."""
        rows = json.loads(self.ctl("replicas", "-o", "json"))["replicas"]
        return next((row for row in rows if row["replica"] == f"{self.model}-0"), {})

    def ready(self, *, without: Collection[int] = (), limit_s: float = 60) -> list[int]:
        """Wait until it is ready, on none of those processes; its ranks' process ids."""

        def pids() -> list[int] | None:
            row = self.row()
            if row.get("state") != "ready":
                return None
            found = [shard["pid"] for shard in row["shards"]]
            return None if None in found or set(found) & set(without) else found

        try:
            return wait_for(pids, limit_s=limit_s)
        except AssertionError as error:
            raise AssertionError(f"{error}: {self.row()}\n{self.logs()}") from error

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.gateway}"

    def ask(self) -> Answer:
        """Ask until there is an answer."""
        if self.key is None:
            self.key = str(json.loads(self.ctl("keys", "create", "test", "-o", "json"))["key"])
        key = self.key

        def answer() -> Answer | None:
            try:
                return stream_chat(self.url, key, model=self.model, question="?", max_tokens=3)
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
            self.ctl("delete", self.model)
            wait_for(lambda: not self.row(), limit_s=90)
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


@contextmanager
def two_nodes(folder: Path, *, model: str, vllm: Path, **env: str) -> Iterator[Fleet]:
    """`folder/models` is the agents' model directory, `vllm` their vLLM."""
    fleet = Fleet(folder, model=model)
    state, api = ("--dir", str(folder / "state")), f"http://127.0.0.1:{fleet.api}"
    try:
        fleet.run("server", *state, "--port", str(fleet.api), "--allow-address", "127.0.0.0/8")
        wait_for(lambda: answers(f"{api}/healthz"))
        token = json.loads(fleet.ctl("token", "create", "--uses", "2", "-o", "json"))["token"]
        (folder / "token").write_text(token)
        fleet.run(
            *("gateway", *state, "--server", api, "--port", str(fleet.gateway)),
            *("--metrics-port", "0"),
        )
        for number, host in enumerate(HOSTS):
            place = machine(folder / f"node-{number}", number)
            fleet.run(
                *("agent", "--dir", str(place / "state"), "--server", api),
                *("--token-file", str(folder / "token"), "--name", f"node-{number}"),
                *("--host", host, "--root", str(place), "--fabric", "ib0=mlx5_*"),
                *("--vllm", str(vllm), "--model-dir", str(folder / "models")),
                *("--port-range", "23000-23099"),
                ROOST_FAKE_NVML=str(place / "cards.json"),
                **env,
            )
        yield fleet
    finally:
        fleet.stop()
