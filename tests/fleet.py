"""Two real agents on two loopback addresses, with a real server and a real gateway."""

import json
import socket
import subprocess
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from roost.errors import RoostError
from roost.run.chat import Answer, stream_chat
from roost.run.ports import answers
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

    def __init__(self, folder: Path, *, model: str, vllm: Path, env: Mapping[str, str]) -> None:
        self.folder = folder
        self.model = model
        self.vllm, self.env = vllm, env
        self.api, self.gateway = free_port(), free_port()
        self.key: str | None = None
        self.processes: list[subprocess.Popen[bytes]] = []
        self.started = 0
        self.agents: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def server(self) -> str:
        return f"http://127.0.0.1:{self.api}"

    def run(self, *words: str, **env: str) -> subprocess.Popen[bytes]:
        """Start `roost …`, with its output beside the others'."""
        self.started += 1
        with (self.folder / f"{self.started}-{words[0]}.log").open("wb") as out:
            process = subprocess.Popen(
                roost(*words),
                env=environment(HOME=str(self.folder), XDG_CONFIG_HOME="", **env),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
            )
        self.processes.append(process)
        return process

    def start_agent(self, number: int) -> None:
        """Of `node-NUMBER`, on the directory that it has or gets."""
        name = f"node-{number}"
        place = self.folder / name
        self.agents[name] = self.run(
            *("agent", "--dir", str(place / "state"), "--server", self.server),
            *("--token-file", str(self.folder / "token"), "--name", name),
            *("--host", HOSTS[number], "--root", str(place), "--fabric", "ib0=mlx5_*"),
            *("--vllm", str(self.vllm), "--model-dir", str(self.folder / "models")),
            *("--port-range", "23000-23099"),
            ROOST_FAKE_NVML=str(place / "cards.json"),
            **self.env,
        )

    def kill_agent(self, name: str) -> None:
        """Its engines go on."""
        agent = self.agents.pop(name)
        agent.kill()
        agent.wait()
        self.processes.remove(agent)

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
        return next(iter(self.rows()), {})

    def rows(self) -> list[dict[str, Any]]:
        """All of it that there is, also what waits for a lost node."""
        rows = json.loads(self.ctl("replicas", "-o", "json"))["replicas"]
        return [row for row in rows if row["replica"] == f"{self.model}-0"]

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
        """Engines first; then agents, the gateway and the server, whatever went wrong before."""
        try:
            if self.row():
                self.ctl("delete", self.model)
                wait_for(lambda: not self.row(), limit_s=90)
        finally:
            for process in reversed(self.processes):
                process.terminate()
            ended = [process.wait(timeout=60) for process in reversed(self.processes)]
        assert set(ended) <= {0}, f"{ended}\n{self.logs()}"


def machine(place: Path, number: int) -> None:
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


@contextmanager
def two_nodes(
    folder: Path, *, model: str, vllm: Path, server: Sequence[str] = (), **env: str
) -> Iterator[Fleet]:
    """`folder/models` is the agents' model directory, `vllm` their vLLM, `server` has options."""
    fleet = Fleet(folder, model=model, vllm=vllm, env=env)
    state = ("--dir", str(folder / "state"))
    try:
        fleet.run(
            *("server", *state, "--port", str(fleet.api), "--allow-address", "127.0.0.0/8"),
            *server,
        )
        wait_for(lambda: answers(f"{fleet.server}/healthz"))
        token = json.loads(fleet.ctl("token", "create", "--uses", "2", "-o", "json"))["token"]
        (folder / "token").write_text(token)
        fleet.run(
            *("gateway", *state, "--server", fleet.server, "--port", str(fleet.gateway)),
            *("--metrics-port", "0"),
        )
        for number in range(len(HOSTS)):
            machine(folder / f"node-{number}", number)
            fleet.start_agent(number)
        yield fleet
    finally:
        fleet.stop()
