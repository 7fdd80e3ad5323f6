"""Mixed load while engines are killed and workers replaced: an answer or an explicit error, always."""

import asyncio
import contextlib
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import uvloop

from gateway.control import Server, serving
from gateway.process import (
    Process,
    ended,
    metric,
    metrics,
    running,
    started,
    until_metric,
)
from gateway.twins import DONE, ENGINE_KEY, Client, chat, request, snapshot
from roost.formats.routing import Route, RoutedModel
from running import alive

ENGINES = 3
CLIENTS = 24


class Engines:
    """Fake engines as processes, killed and started again; the server routes to those that live."""

    def __init__(self, directory: Path, server: Server) -> None:
        self._directory = directory
        self._server = server
        self._routes: dict[int, Route] = {}
        self._revision = 1
        self._starts = 0
        self.running: dict[int, asyncio.subprocess.Process] = {}

    async def start(self, number: int) -> None:
        self._starts += 1
        port_file = self._directory / f"port-{self._starts}"
        self.running[number] = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "roost.testing.fake_engine", "--slots", "4"),
            *("--api-key", ENGINE_KEY, "--tokens-per-s", "150", "--port-file", str(port_file)),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        async with asyncio.timeout(60):
            while not port_file.exists() or not port_file.read_text():  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        self._routes[number] = Route(
            replica=f"qwen-{number}",
            placement=f"p-{self._starts}",
            host="127.0.0.1",
            port=int(port_file.read_text()),
            key=ENGINE_KEY,
            slots=4,
        )
        self._say()

    async def kill(self, number: int, heard_after_s: float) -> None:
        """The server hears of it a while later, as it does of real ones."""
        process = self.running.pop(number)
        process.kill()
        await process.wait()
        await asyncio.sleep(heard_after_s)
        del self._routes[number]
        self._say()

    async def stop(self) -> None:
        for process in self.running.values():
            process.kill()
            await process.wait()

    def _say(self) -> None:
        self._revision += 1
        model = RoutedModel(
            name="qwen",
            replicas=ENGINES,
            queue_size=16,
            queue_max_wait_s=5,
            state="loading",
            routes=tuple(self._routes.values()),
        )
        self._server.says(snapshot(model, revision=self._revision))


class Load:
    """Clients of several kinds; how each request ended."""

    def __init__(self, it: Process, seconds: float, rng: random.Random) -> None:
        self._it = it
        self._until = time.monotonic() + seconds
        self._rng = rng
        self.ends: Counter[str] = Counter()
        self.statuses: Counter[int] = Counter()
        self.lost: list[str] = []

    async def client(self) -> None:
        rng, kept = self._rng, None
        while time.monotonic() < self._until:
            kind = rng.choice(["answer", "stream", "stream", "leave", "leave early", "wrong"])
            if kept is None:
                kept = await self._it.client()
            try:
                async with asyncio.timeout(60):
                    stays = await self._ask(kept, kind)
            except (asyncio.IncompleteReadError, ConnectionError, TimeoutError) as error:
                self.lost.append(f"{time.time():.3f} {kind}: {error!r}")
                stays = False
            if not stays or rng.random() < 0.2:
                kept.close()
                self._it.clients.remove(kept)
                kept = None
        if kept is not None:
            kept.close()

    async def _ask(self, client: Client, kind: str) -> bool:
        """One request; whether the connection can be used again."""
        rng = self._rng
        if kind == "wrong":
            raw = rng.choice(
                [
                    request(chat("nope")),
                    request("{no json"),
                    request(chat(), key="roost-wrong"),
                    request(method="GET", path="/nowhere"),
                ]
            )
            await client.send(raw)
            got = await client.answer()
            assert got.status in (400, 401, 404), got
            return self._book("refused", got.status, got.headers)
        stream = kind in ("stream", "leave")
        asked = chat(stream=stream, max_tokens=rng.randrange(1, 60))
        await client.send(request(asked))
        if kind == "leave early":
            await asyncio.sleep(rng.random() * 0.05)
            self.ends[kind] += 1
            return False
        if kind == "leave":
            status, _ = await client.head()
            if status == 200:
                with contextlib.suppress(asyncio.IncompleteReadError, ValueError):
                    await client.one_chunk()
            self.ends[kind] += 1
            return False
        got = await client.answer()
        if got.status != 200:
            # Explicit: in the shape of an error, with a time where it is worth coming again.
            assert got.whole, got
            assert got.json["error"]["code"], got
            assert got.status in (429, 502, 503), got
            assert got.status == 502 or int(got.headers["retry-after"]) >= 1, got
            return self._book("error", got.status, got.headers)
        if not stream:
            return self._book("answer" if got.whole else "broken", 200, got.headers) and got.whole
        # Whole and with its end, or visibly neither.
        assert got.whole == got.body.endswith(DONE), got
        assert got.whole or b'"error"' in got.body or not got.body.endswith(DONE)
        return self._book("stream" if got.whole else "cut", 200, got.headers) and got.whole

    def _book(self, end: str, status: int, headers: dict[str, str]) -> bool:
        self.ends[end] += 1
        self.statuses[status] += 1
        return headers.get("connection") != "close"


async def disturb(it: Process, engines: Engines, seconds: float, rng: random.Random) -> int:
    """Kill engines and replace workers, one thing after another; how many things."""
    until, done = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        await asyncio.sleep(rng.uniform(0.3, 1.5))
        done += 1
        match rng.choice(["engine", "engine", "worker", "workers"]):
            case "engine":
                number = rng.randrange(ENGINES)
                await engines.kill(number, heard_after_s=rng.uniform(0, 1))
                await engines.start(number)
            case "worker":
                pids = sorted(set(started(it)) - set(ended(it)))
                with contextlib.suppress(ProcessLookupError):
                    os.kill(rng.choice(pids), signal.SIGTERM)
            case "workers":
                it.process.send_signal(signal.SIGHUP)
    return done


def around(it: Process, lost: list[str]) -> str:
    """What the gateway says of the time when the first request was lost."""
    at = float(lost[0].split()[0])
    near = [e for e in it.events() if abs(float(str(e["at"])) - at) < 1]
    return "\n".join([*lost, *(str(e) for e in near if e["event"] != "gateway.request")])


async def soak(directory: Path, seconds: float, tell: Callable[[object], None]) -> None:
    rng = random.Random(seconds)
    async with serving(directory, snapshot(RoutedModel(name="qwen"))) as server:
        engines = Engines(directory, server)
        try:
            for number in range(ENGINES):
                await engines.start(number)
            async with running(directory, "--workers", "2") as it:
                load = Load(it, seconds, rng)
                disturbing = asyncio.create_task(disturb(it, engines, seconds, rng))
                await asyncio.gather(*(load.client() for _ in range(CLIENTS)))
                assert await disturbing > 0
                assert load.lost == [], around(it, load.lost)
                assert load.ends["stream"] > 0
                assert load.ends["answer"] > 0
                # All is given back.
                await until_metric(it, "roost_gateway_in_flight", 0)
                await until_metric(it, "roost_gateway_queue_depth", 0)
                await until_metric(it, "roost_gateway_connections", 0)
                await until_metric(it, "roost_gateway_workers", 2)
                page = await metrics(it)
                for status, count in load.statuses.items():
                    counted = metric(page, "roost_gateway_requests_total", code=str(status))
                    # A stream that is cut is 200 to its client and 502 here; who left is 499.
                    assert status == 200 or counted >= count, (status, counted, count)
                whole = load.ends["stream"] + load.ends["answer"]
                assert metric(page, "roost_gateway_requests_total", code="200") >= whole
                # No worker ended but those that were to.
                for one in it.events():
                    if one["event"] == "gateway.worker_ended":
                        assert (one["status"], one["in_flight"]) == (0, 0), one
                it.process.send_signal(signal.SIGTERM)
                assert await asyncio.wait_for(it.process.wait(), 60) == 0
                assert not any(map(alive, started(it)))
                tell(f"{seconds} s: {load.ends} {load.statuses}, {len(started(it))} workers")
        finally:
            await engines.stop()


@pytest.mark.parametrize(
    "seconds",
    [
        pytest.param(20, marks=pytest.mark.timeout(300)),
        pytest.param(1800, marks=[pytest.mark.slow, pytest.mark.timeout(2400)]),
    ],
)
def test_every_request_ends_in_an_answer_or_an_explicit_error(
    tmp_path: Path, seconds: float
) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(soak(tmp_path, seconds, print))
