"""
What the gateway costs: requests a second and CPU a request of one worker, beside the bare upstream.

`./dev bench gateway [--seconds 5] [--rounds 3] [--streams 50] [--workers N] [--beside SRC]` prints
JSON. `--workers` adds a gateway of N workers, `--beside` another version of Roost (the `src` of its checkout),
for before and after a change. Rounds are interleaved: the same load goes to the upstream directly,
through a pump that looks at nothing (the least a Python proxy can cost), and through the gateway, in
turn. CPU is that of the gateway's processes, from /proc; the load and the upstream run on other cores if
there are some, so on a machine with few cores requests a second say less than CPU a request. 2 KB
bodies, 1 KB answers; streams of 50 chunks.
"""

# ruff: noqa: T201 - a script that prints
import argparse
import asyncio
import functools
import json
import os
import signal
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import uvloop

from bench.proxies.common import BODY, CHUNKS, KEY, STREAM_BODY, cpu_s, rss_kb, start, start_gateway

ANSWER = json.dumps(
    {
        "id": "c-1",
        "object": "chat.completion",
        "created": 1,
        "model": "bench",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "y" * 750}}],
        "usage": {"prompt_tokens": 300, "completion_tokens": 100, "total_tokens": 400},
    },
    separators=(",", ":"),
).encode()
EVENT = (
    b'data: {"id":"c-1","object":"chat.completion.chunk","created":1,"model":"bench",'
    b'"choices":[{"index":0,"delta":{"content":" word"},"finish_reason":null}]}\n\n'
)
DONE = b"data: [DONE]\n\n"


class Upstream(asyncio.Protocol):
    """An engine that costs as little as it can: it looks only for where a request ends."""

    def __init__(self, pause_s: float) -> None:
        self.pause_s = pause_s
        self.buffer = b""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        while (end := self.buffer.find(b"\r\n\r\n")) >= 0:
            head = self.buffer[:end].lower()
            at = head.index(b"content-length:") + 15
            length = int(head[at:].partition(b"\r\n")[0])
            if len(self.buffer) < end + 4 + length:
                return
            body, self.buffer = self.buffer[end + 4 :][:length], self.buffer[end + 4 + length :]
            if body.endswith(b'"stream": true}'):
                self.transport.write(
                    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
                    b"transfer-encoding: chunked\r\n\r\n"
                )
                self._event(CHUNKS)
            else:
                self.transport.write(
                    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
                    b"content-length: %d\r\n\r\n%b" % (len(ANSWER), ANSWER)
                )

    def _event(self, left: int) -> None:
        if left:
            self.transport.write(b"%x\r\n%b\r\n" % (len(EVENT), EVENT))
            asyncio.get_running_loop().call_later(self.pause_s, self._event, left - 1)
        else:
            self.transport.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(DONE), DONE))


class Pump(asyncio.Protocol):
    """The least that a proxy in Python can be: bytes from one connection to another, unread."""

    def __init__(self, to: int, other: "Pump | None" = None) -> None:
        self.to = to
        self.other = other
        self.early = b""
        self.transport: Any = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        if self.other is None:
            self.dialling = asyncio.ensure_future(self._dial())

    async def _dial(self) -> None:
        loop = asyncio.get_running_loop()
        _, other = await loop.create_connection(lambda: Pump(self.to, self), "127.0.0.1", self.to)
        self.other = other
        if self.early:
            other.transport.write(self.early)

    def data_received(self, data: bytes) -> None:
        if self.other is None:
            self.early += data
        else:
            self.other.transport.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.other is not None:
            self.other.transport.close()


async def pump(to: int) -> None:
    server = await asyncio.get_running_loop().create_server(lambda: Pump(to), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


async def upstream(pause_s: float) -> None:
    server = await asyncio.get_running_loop().create_server(
        lambda: Upstream(pause_s), "127.0.0.1", 0
    )
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


class Load(asyncio.Protocol):
    """A client that asks again as soon as it is answered."""

    def __init__(
        self, request: bytes, end: bytes, book: list[float], until: float, wait: float
    ) -> None:
        self.wait = wait
        self.request, self.end, self.book, self.until = request, end, book, until
        self.tail = b""
        self.done = asyncio.get_running_loop().create_future()
        self.firsts: list[float] = []

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        # Not all at once: nobody's clients are in step.
        asyncio.get_running_loop().call_later(self.wait, self._ask)

    def _ask(self) -> None:
        self.asked = time.perf_counter()
        self.first = True
        self.tail = b""
        self.transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        if self.first:
            self.first = False
            self.firsts.append(time.perf_counter() - self.asked)
            if not data.startswith(b"HTTP/1.1 200"):
                self.done.set_exception(RuntimeError(data[:300].decode("latin-1")))
                self.transport.abort()
                return
        self.tail = (self.tail + data)[-len(self.end) :]
        if self.tail == self.end:
            now = time.perf_counter()
            self.book.append(now - self.asked)
            if now < self.until:
                self._ask()
            else:
                self.transport.close()
                self.done.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(RuntimeError(f"the connection was lost: {exc}"))


def quantile(times: list[float], part: float) -> float:
    return round(sorted(times)[int(len(times) * part)] * 1000, 3)


async def load(
    port: int, pid: int, *, body: bytes, end: bytes, connections: int, seconds: float
) -> dict[str, float]:
    request = (
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"
        b"user-agent: bench\r\naccept: */*\r\nauthorization: Bearer %b\r\n"
        b"content-length: %d\r\n\r\n%b" % (KEY.encode(), len(body), body)
    )
    loop = asyncio.get_running_loop()
    book: list[float] = []
    before, started = cpu_s(pid), time.perf_counter()
    clients = []
    for number in range(connections):
        wait = number / connections * 0.8
        _, client = await loop.create_connection(
            functools.partial(Load, request, end, book, started + seconds, wait), "127.0.0.1", port
        )
        clients.append(client)
    await asyncio.gather(*(client.done for client in clients))
    took, cpu = time.perf_counter() - started, cpu_s(pid) - before
    firsts = [first for client in clients for first in client.firsts]
    return {
        "requests": len(book),
        "per_second": round(len(book) / took, 1),
        "per_second_of_cpu": round(len(book) / cpu, 1) if cpu else 0.0,
        "cpu_us": round(cpu / len(book) * 1e6, 1),
        "p50_ms": quantile(book, 0.5),
        "p99_ms": quantile(book, 0.99),
        "first_byte_p50_ms": quantile(firsts, 0.5),
    }


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    processes: list[subprocess.Popen[str]] = []
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        try:
            ports = []
            for _ in range(2):
                words = [__file__, "--upstream", "--pause", str(options.pause)]
                processes.append(start(words, stdout=subprocess.PIPE))
                ports.append(int(processes[-1].stdout.readline()))  # type: ignore[union-attr]
            processes.append(start([__file__, "--pump", str(ports[0])], stdout=subprocess.PIPE))
            bare_port = int(processes[-1].stdout.readline())  # type: ignore[union-attr]
            targets = {
                "direct": (ports[0], processes[0].pid),
                "bare pump": (bare_port, processes[-1].pid),
            }
            gateways: dict[str, tuple[list[str], str | None]] = {"gateway": ([], None)}
            if options.workers:
                words = ["--workers", str(options.workers)]
                gateways[f"gateway of {options.workers} workers"] = (words, None)
            if options.beside:
                gateways["beside"] = ([], options.beside)
            idle, busy = {}, {}
            for title, (more, src) in gateways.items():
                process, port = await start_gateway(
                    directory / title.replace(" ", "-"), ports, *more, src=src
                )
                processes.append(process)
                targets[title] = (port, process.pid)
                idle_cpu, at = cpu_s(process.pid), time.perf_counter()
                await asyncio.sleep(3)
                share = (cpu_s(process.pid) - idle_cpu) / (time.perf_counter() - at)
                idle[title] = {"rss_kb": rss_kb(process.pid), "cpu_share": round(share, 4)}
            alias = BODY.replace(b'"bench"', b'"other"')
            jobs = {
                "answers": (BODY, ANSWER[-20:], options.connections),
                "answers by alias": (alias, ANSWER[-20:], options.connections),
                "one at a time": (BODY, ANSWER[-20:], 1),
                "streams": (STREAM_BODY, DONE + b"\r\n0\r\n\r\n", options.streams),
            }
            found: dict[str, dict[str, list[dict[str, float]]]] = {}
            for number in range(options.rounds):
                for job, (body, end, connections) in jobs.items():
                    # Whoever is first in one round is last in the next.
                    for target in list(targets)[:: 1 if number % 2 else -1]:
                        to, pid = targets[target]
                        result = await load(
                            to,
                            pid,
                            body=body,
                            end=end,
                            connections=connections,
                            seconds=options.seconds,
                        )
                        found.setdefault(job, {}).setdefault(target, []).append(result)
            busy = {title: {"rss_kb": rss_kb(targets[title][1])} for title in gateways}
        finally:
            for process in processes[::-1]:
                process.send_signal(signal.SIGTERM)
                process.wait()
    medians = {
        job: {
            target: {what: statistics.median(run[what] for run in runs) for what in runs[0]}
            for target, runs in there.items()
        }
        for job, there in found.items()
    }
    for found_there in medians["streams"].values():
        found_there["cpu_us_per_chunk"] = round(found_there["cpu_us"] / (CHUNKS + 1), 1)
    return {
        "cores": os.cpu_count(),
        "load_average": os.getloadavg(),
        "options": vars(options),
        "idle": idle,
        "busy": busy,
        "medians": medians,
        "cpu_us_of_each_round": {
            job: {target: [run["cpu_us"] for run in runs] for target, runs in there.items()}
            for job, there in found.items()
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--streams", type=int, default=50)
    parser.add_argument("--pause", type=float, default=0.02)
    parser.add_argument("--workers", type=int, default=0, help="also a gateway of so many")
    parser.add_argument("--beside", help="src of another version of Roost")
    parser.add_argument("--upstream", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--pump", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.pump:
        uvloop.run(pump(options.pump))
        return
    if options.upstream:
        uvloop.run(upstream(options.pause))
    else:
        print(json.dumps(uvloop.run(measure(options)), indent=1))


if __name__ == "__main__":
    main()
