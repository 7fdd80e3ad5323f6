"""
The gateway beside other proxies: requests a second of one core, CPU a request and a streamed chunk.

`./dev bench gateway-peers [--rounds 3] [--seconds 2] [--streams 100] [--cache DIR] [--only NAME …]`
prints JSON. One worker each, pinned to one core, in turn in every round; clients and engines are C programs
(proxies/c, compiled here) on the other cores. All are to do the same: check a key, read the model out
of the body, take the less busy of two engines. nginx looks at no body and no key. CPU is that of all of a proxy's
processes, from the scheduler's accounting; so requests a second of a core is what it implies, and
says nothing about the load's own speed. nginx and haproxy are found on PATH; the others get an
environment of their own each under --cache. One that is not there is listed with the reason.
"""

# ruff: noqa: T201 - a script that prints
import argparse
import asyncio
import contextlib
import json
import os
import signal
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.proxies.common import BODY, CHUNKS, KEY, STREAM_BODY, cpu_s, rss_kb, start_gateway
from bench.proxies.peers import PEERS, AbsentError, Cache

C = Path(__file__).parent / "proxies" / "c"


SLOW = {"litellm": 10, "aiohttp": 4}
"""A tenth, a quarter of the streams: all of them would be more than they can do in time."""


def pinned(words: list[str], cores: set[int], **more: Any) -> "subprocess.Popen[str]":
    """A process on these cores alone."""
    return subprocess.Popen([*on(cores), *words], text=True, **more)


def on(cores: set[int]) -> list[str]:
    return ["taskset", "-c", ",".join(map(str, sorted(cores)))]


def pin(pid: int, cores: set[int]) -> None:
    for task in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(task.name), cores)


def compiled(directory: Path, name: str) -> str:
    program = directory / name
    subprocess.run(["cc", "-O2", "-o", str(program), str(C / f"{name}.c")], check=True)
    return str(program)


def request(body: bytes, key: str) -> bytes:
    return (
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"
        b"user-agent: bench\r\naccept: */*\r\nauthorization: Bearer %b\r\n"
        b"content-length: %d\r\n\r\n%b" % (key.encode(), len(body), body)
    )


async def answers(port: int, raw: bytes, process: "subprocess.Popen[str]") -> None:
    """Wait until it passes a request on; raises `AbsentError`: it never does."""
    deadline = time.monotonic() + 90
    last = b"nothing"
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(5):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(raw)
                last = await reader.read(65536)
                writer.close()
                if last.startswith(b"HTTP/1.1 200"):
                    return
        await asyncio.sleep(0.2)
    raise AbsentError(f"it does not serve (exit {process.poll()}): {last[:200]!r}")


@contextlib.contextmanager
def ended(processes: list["subprocess.Popen[str]"]) -> Iterator[None]:
    try:
        yield
    finally:
        for process in processes[::-1]:
            process.send_signal(signal.SIGTERM)
        for process in processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    cores = sorted(os.sched_getaffinity(0))
    gateway_cores, others = {cores[0]}, set(cores[1:]) or set(cores)
    targets: dict[str, tuple[int, int, str]] = {}
    absent: dict[str, str] = {}
    processes: list[subprocess.Popen[str]] = []
    with tempfile.TemporaryDirectory() as name, ended(processes):
        directory = Path(name)
        load = compiled(directory, "load")
        upstream = compiled(directory, "upstream")
        engines = []
        for _ in range(2):
            words = [upstream, "20", str(CHUNKS)]
            processes.append(pinned(words, others, stdout=subprocess.PIPE))
            engines.append(int(processes[-1].stdout.readline()))  # type: ignore[union-attr]
        targets["direct"] = (engines[0], processes[0].pid, KEY)
        ours, port = await start_gateway(directory / "roost", engines)
        processes.append(ours)
        pin(ours.pid, gateway_cores)
        targets["roost"] = (port, ours.pid, KEY)
        for title, make in PEERS.items():
            if options.only and title not in options.only:
                continue
            try:
                (directory / title).mkdir()
                peer = make(directory / title, engines, Cache(options.cache))
                log = (directory / title / "log").open("w")
                process = pinned(
                    peer.words,
                    gateway_cores,
                    stdout=log,
                    stderr=log,
                    env=os.environ | peer.env,
                )
                processes.append(process)
                key = f"sk-{KEY}" if title == "litellm" else KEY
                await answers(peer.port, request(BODY, key), process)
                targets[title] = (peer.port, process.pid, key)
            except AbsentError as error:
                text = (
                    (directory / title / "log").read_text()[-300:]
                    if log_of(directory / title)
                    else ""
                )
                absent[title] = f"{error} {text}".strip()
        found: dict[str, dict[str, list[dict[str, float]]]] = {}
        for number in range(options.rounds):
            for target in list(targets)[:: 1 if number % 2 else -1]:
                to, pid, key = targets[target]
                jobs = {
                    "answers": (BODY, options.connections),
                    "one at a time": (BODY, 1),
                    "streams": (STREAM_BODY, max(1, options.streams // SLOW.get(target, 1))),
                }
                for job, (body, connections) in jobs.items():
                    before = cpu_s(pid)
                    ran = await asyncio.to_thread(
                        subprocess.run,
                        [*on(others), load, str(to), str(connections), str(options.seconds)],
                        input=request(body, key),
                        capture_output=True,
                        check=True,
                    )
                    got = json.loads(ran.stdout)
                    cpu = cpu_s(pid) - before
                    whole = max(1, got["answered"])
                    got |= {
                        "cpu_us": round(cpu / whole * 1e6, 1),
                        "per_second_of_core": round(whole / cpu, 1) if cpu else 0.0,
                    }
                    if job == "streams":
                        got["cpu_us_per_chunk"] = round(got["cpu_us"] / (CHUNKS + 1), 2)
                    found.setdefault(job, {}).setdefault(target, []).append(got)
        memory = {target: rss_kb(pid) for target, (_, pid, _) in targets.items()}
    medians = {
        job: {
            target: {what: statistics.median(run[what] for run in runs) for what in runs[0]}
            for target, runs in there.items()
        }
        for job, there in found.items()
    }
    return {
        "cores": len(cores),
        "load_average": os.getloadavg(),
        "options": {key: str(value) for key, value in vars(options).items()},
        "absent": absent,
        "rss_kb": memory,
        "ratios": ratios(medians),
        "medians": medians,
    }


def log_of(directory: Path) -> bool:
    return (directory / "log").exists()


def ratios(medians: dict[str, dict[str, dict[str, float]]]) -> dict[str, dict[str, float]]:
    """Ours to each peer's: requests a second of a core, CPU a chunk, first byte beyond direct."""
    told: dict[str, dict[str, float]] = {}
    ours = {job: there["roost"] for job, there in medians.items()}
    for target in medians["answers"]:
        if target in ("direct", "roost"):
            continue
        theirs = {job: there[target] for job, there in medians.items()}
        told[target] = {
            "requests_per_second_of_core": round(
                ours["answers"]["per_second_of_core"]
                / max(0.1, theirs["answers"]["per_second_of_core"]),
                2,
            ),
            "cpu_per_chunk": round(
                ours["streams"]["cpu_us_per_chunk"] / theirs["streams"]["cpu_us_per_chunk"], 2
            ),
        }
    direct = medians["one at a time"]["direct"]["p50_ms"]
    told["added_p50_ms"] = {
        target: round(run["p50_ms"] - direct, 3)
        for target, run in medians["one at a time"].items()
        if target != "direct"
    }
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--streams", type=int, default=100)
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "roost-bench")
    parser.add_argument("--only", nargs="*", choices=PEERS)
    print(json.dumps(asyncio.run(measure(parser.parse_args())), indent=1))


if __name__ == "__main__":
    main()
