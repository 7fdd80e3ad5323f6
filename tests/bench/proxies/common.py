"""What the benchmarks of the gateway have in common: what is asked, what it costs, how it is started."""

import asyncio
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

KEY = "roost-bench"
BODY = json.dumps(
    {"messages": [{"role": "user", "content": "x" * 1900}], "max_tokens": 100, "model": "bench"}
).encode()
STREAM_BODY = BODY[:-1] + b', "stream": true}'
CHUNKS = 50


def with_children(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *map(int, children)]


def cpu_s(pid: int) -> float:
    """Of the process and its children, from the scheduler's own accounting (nanoseconds)."""
    return sum(
        int(task.read_text().split()[0]) / 1e9
        for one in with_children(pid)
        for task in Path(f"/proc/{one}/task").glob("*/schedstat")
    )


def rss_kb(pid: int) -> int:
    return sum(
        int(Path(f"/proc/{one}/status").read_text().partition("VmRSS:")[2].split()[0])
        for one in with_children(pid)
    )


def start(argv: list[str], **more: Any) -> "subprocess.Popen[str]":
    return subprocess.Popen([sys.executable, *argv], text=True, **more)


def write_routes(directory: Path, ports: list[int]) -> None:
    """The snapshot that a gateway starts with; its server is never there."""
    (directory / "gateway").mkdir(parents=True)
    routes = [
        {
            "replica": f"bench-{n}",
            "placement": "p",
            "port": port,
            "host": "127.0.0.1",
            "key": "k",
            "slots": 1000,
        }
        for n, port in enumerate(ports)
    ]
    snapshot = {
        "fleet": "bench",
        "incarnation": 1,
        "epoch": 1,
        "revision": 1,
        "models": [{"name": "bench", "aliases": ["other"], "routes": routes}],
        "keys": [{"name": "b", "sha256": hashlib.sha256(KEY.encode()).hexdigest()}],
    }
    (directory / "gateway" / "snapshot.json").write_text(json.dumps(snapshot))


async def start_gateway(
    directory: Path, ports: list[int], *more: str, src: str | None = None
) -> tuple["subprocess.Popen[str]", int]:
    """The process, and the port it serves."""
    write_routes(directory, ports)
    log = directory / "log"
    with log.open("w") as stderr:
        gateway = start(
            [
                "-c",
                "import sys; from roost.cli.main import main; sys.exit(main())",
                *("gateway", "--dir", str(directory), "--port", "0", "--metrics-port", "0", *more),
            ],
            stderr=stderr,
            env=os.environ if src is None else os.environ | {"PYTHONPATH": src},
        )
    while "gateway.listening" not in log.read_text():
        if gateway.poll() is not None:
            raise SystemExit(log.read_text())
        await asyncio.sleep(0.05)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    return gateway, next(x["port"] for x in lines if x["event"] == "gateway.listening")
