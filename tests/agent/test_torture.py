"""Real engines and agents, killed and cycled many times: few times in CI, many where it is asked."""

import asyncio
import os
import random
import signal
import socket
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import httpx2
import pytest

from agent.conftest import Story
from agent.node import KEY, Node, shard
from agent.wire_server import WireServer
from roost.agent.supervise import procfs
from roost.domain.replica import ReplicaState

Tell = Callable[[Story], None]


def many(few: int, all_of_them: int) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        "times",
        [
            pytest.param(few, marks=pytest.mark.timeout(300)),
            pytest.param(all_of_them, marks=[pytest.mark.slow, pytest.mark.timeout(1800)]),
        ],
    )


def per_placement(node: Node) -> Counter[str]:
    """Engine processes, by the mark they carry."""
    found: Counter[str] = Counter()
    for pid in node.engines():
        found[procfs.marks(pid).get("ROOST_PLACEMENT", "-")] += 1
    return found


@many(2, 50)
def test_engines_killed_at_any_moment_are_back_and_never_two(tell: Tell, times: int) -> None:
    # Each failure doubles the delay, so the kills are spread over several engines.
    each = min(times, 5)
    placements = [f"p{number}" for number in range(times // each)]
    rng = random.Random(times)
    moments = {name: [rng.uniform(0, 3) for _ in range(each)] for name in placements}

    async def story(server: WireServer, node: Node) -> None:
        await node.start()
        await server.want(*(shard(name) for name in placements))
        over = asyncio.Event()

        async def watch() -> None:
            while not over.is_set():
                counted = per_placement(node)
                assert all(count == 1 for count in counted.values()), counted
                await asyncio.sleep(0.05)

        async def torment(name: str) -> None:
            killed: set[int] = set()
            for moment in moments[name]:
                seen = await server.until(
                    lambda: (
                        one
                        if (one := server.shard(name)) and one.pid and one.pid not in killed
                        else None
                    ),
                    within=300,
                )
                await asyncio.sleep(moment)
                assert seen.pid is not None
                killed.add(seen.pid)
                with suppress(ProcessLookupError):
                    os.kill(seen.pid, signal.SIGKILL)
            await server.until(
                lambda: (
                    (one := server.shard(name)) is not None
                    and one.state is ReplicaState.READY
                    and one.pid not in killed
                    and one.restarts >= each
                ),
                within=300,
            )

        watching = asyncio.ensure_future(watch())
        await asyncio.gather(*(torment(name) for name in placements))
        over.set()
        await watching
        await server.want(stop=tuple(placements))
        for name in placements:
            await server.state(name, ReplicaState.STOPPED)
        assert node.engines() == []

    tell(story)


@many(2, 20)
def test_streams_go_on_while_their_agent_is_killed(tell: Tell, times: int) -> None:
    async def story(server: WireServer, node: Node) -> None:
        await node.start()
        spec = shard(args=("-c", "1024", "-np", "2", "--no-warmup"))
        await server.want(spec)
        first = await server.state("p1", ReplicaState.READY)
        over = asyncio.Event()
        whole = 0

        async def stream(http: httpx2.AsyncClient) -> None:
            nonlocal whole
            body = {"prompt": "Once", "max_tokens": 200, "stream": True, "ignore_eos": True}
            url = f"http://127.0.0.1:{spec.port}/v1/completions"
            headers = {"Authorization": f"Bearer {KEY}"}
            while not over.is_set():
                async with http.stream("POST", url, json=body, headers=headers) as answer:
                    lines = [line async for line in answer.aiter_lines() if line]
                assert lines[-1] == "data: [DONE]"
                whole += 1

        async with httpx2.AsyncClient(timeout=120) as http:
            streams = [asyncio.ensure_future(stream(http)) for _ in range(2)]
            for _ in range(times):
                await node.end(signal.SIGKILL)
                count = len(server.reports)
                await node.start()
                await server.until(lambda count=count: len(server.reports) > count)  # type: ignore[misc]
            over.set()
            await asyncio.gather(*streams)
        assert whole >= 2
        now = server.shard("p1")
        assert now is not None
        assert (now.pid, now.state, now.restarts) == (first.pid, ReplicaState.READY, 0)

    tell(story)


@many(3, 100)
def test_starting_and_stopping_leaves_nothing_behind(tell: Tell, times: int) -> None:
    async def story(server: WireServer, node: Node) -> None:
        agent = await node.start()
        spec = shard()

        async def cycle(name: str) -> None:
            await server.want(shard(name, port=spec.port))
            await server.state(name, ReplicaState.READY)
            await server.want(stop=(name,))
            await server.state(name, ReplicaState.STOPPED)
            assert node.engines() == []
            with socket.socket() as again:
                again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                again.bind(("127.0.0.1", spec.port))
            await server.want()
            await server.until(lambda: server.shard(name) is None)

        def open_files() -> int:
            return len(list(Path(f"/proc/{agent.pid}/fd").iterdir()))

        await cycle("first")
        before = open_files()
        for number in range(times):
            await cycle(f"c{number}")
        # Connections to the server come and go by a few.
        assert open_files() <= before + 4
        for folder in ("shards", "logs"):
            assert list((node.directory / "agent" / folder).iterdir()) == []

    tell(story)
