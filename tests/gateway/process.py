"""`roost gateway` as a process of its own."""

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from gateway.twins import Client, until


@dataclass
class Process:
    process: asyncio.subprocess.Process
    log: Path
    port: int = 0
    metrics_port: int = 0
    clients: list[Client] = field(default_factory=list)
    """All that were made; closed at the end."""

    def events(self) -> list[dict[str, object]]:
        lines = self.log.read_text().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line[:1] == "{" and line[-1:] == "\n"]

    async def client(self) -> Client:
        client = Client(*await asyncio.open_connection("127.0.0.1", self.port))
        self.clients.append(client)
        return client


@contextlib.asynccontextmanager
async def running(directory: Path, *more: str) -> AsyncIterator[Process]:
    log = directory / "stderr"
    with log.open("wb") as stderr:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            "import sys; from roost.cli.main import main; sys.exit(main())",
            *("gateway", "--dir", str(directory), "--port", "0", "--metrics-port", "0", *more),
            stderr=stderr,
            env={**os.environ, "ROOST_DIR": "", "ROOST_SERVER": ""} | {"ROOST_DIR": str(directory)},
        )
    it = Process(process, log)
    try:
        await until(
            lambda: (
                process.returncode is not None
                or any(e["event"] == "gateway.listening" for e in it.events())
            )
        )
        for line in it.events():
            if line["event"] == "gateway.listening":
                it.port = int(str(line["port"]))
                it.metrics_port = int(str(line["metrics_port"]))
        yield it
    finally:
        for client in it.clients:
            client.writer.transport.abort()
        if process.returncode is None:
            process.kill()
        await process.wait()


def started(it: Process) -> list[int]:
    return [int(str(e["worker"])) for e in it.events() if e["event"] == "gateway.worker_started"]


def ended(it: Process) -> list[int]:
    return [int(str(e["worker"])) for e in it.events() if e["event"] == "gateway.worker_ended"]


async def metrics(it: Process) -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", it.metrics_port)
    writer.write(b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n")
    page = (await reader.read(-1)).decode()
    writer.close()
    return page


def metric(page: str, name: str, **labels: str) -> float:
    """The sum of the samples of that name with these labels."""
    return sum(
        sample.value
        for family in text_string_to_metric_families(page.partition("\r\n\r\n")[2])
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )


async def until_metric(it: Process, name: str, value: float, **labels: str) -> None:
    async with asyncio.timeout(30):
        while metric(await metrics(it), name, **labels) != value:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
