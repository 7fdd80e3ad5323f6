"""Engines over several nodes, faked: real processes given vLLM's and SGLang's own flags."""

import asyncio
import contextlib
import socket
import sys
from collections.abc import AsyncIterator, Sequence

import httpx2

LIMIT_S = 60


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


@contextlib.asynccontextmanager
async def rank(words: Sequence[str]) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "roost.testing.fake_engine", *words),
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def vllm(meeting: int, *more: str) -> list[str]:
    return [
        *("serve", "/models/m", "--served-model-name", "m", "-tp", "2", "--nnodes", "2"),
        *("--distributed-executor-backend", "mp", "--master-addr", "127.0.0.1"),
        *("--master-port", str(meeting), *more),
    ]


def sglang(meeting: int, *more: str) -> list[str]:
    return [
        *("-m", "sglang.launch_server", "--model-path", "/models/m", "--served-model-name", "m"),
        *("--tp-size", "2", "--nnodes", "2", "--dist-init-addr", f"127.0.0.1:{meeting}", *more),
    ]


async def until_healthy(http: httpx2.AsyncClient) -> None:
    async with asyncio.timeout(LIMIT_S):
        while True:
            with contextlib.suppress(httpx2.TransportError):
                if (await http.get("/health")).status_code == 200:
                    return
            await asyncio.sleep(0.05)


def test_vllm_serves_once_every_rank_is_there_and_fails_its_next_request_after_a_loss() -> None:
    async def story() -> None:
        meeting, port = free_port(), free_port()
        first = ("--node-rank", "0", "--port", str(port), "--loss-s", "0.2")
        body = {"model": "m", "messages": [], "max_tokens": 1}
        async with (
            httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=LIMIT_S) as http,
            rank(vllm(meeting, *first)) as zero,
        ):
            async with rank(vllm(meeting, "--node-rank", "1", "--headless")) as one:
                await until_healthy(http)
                one.kill()
                await one.wait()
            assert (await http.get("/health")).status_code == 200  # nobody has asked it anything
            async with asyncio.timeout(LIMIT_S):
                answer = await http.post("/v1/chat/completions", json=body)
                while answer.status_code == 200:
                    answer = await http.post("/v1/chat/completions", json=body)
            assert answer.status_code == 500
            assert "EngineCore encountered an issue" in answer.json()["error"]["message"]
            async with asyncio.timeout(LIMIT_S):
                assert await zero.wait() == 1

    asyncio.run(story())


def test_sglang_says_503_until_every_rank_is_there_and_the_others_end_with_rank_0() -> None:
    async def story() -> None:
        meeting, port = free_port(), free_port()
        first = ("--node-rank", "0", "--port", str(port))
        async with (
            httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=LIMIT_S) as http,
            rank(sglang(meeting, *first)) as zero,
        ):
            async with asyncio.timeout(LIMIT_S):
                while True:
                    with contextlib.suppress(httpx2.TransportError):
                        assert (await http.get("/health")).status_code == 503
                        break
                    await asyncio.sleep(0.05)
            async with rank(sglang(meeting, "--node-rank", "1")) as one:
                await until_healthy(http)
                zero.terminate()
                async with asyncio.timeout(LIMIT_S):
                    assert await zero.wait() == 0
                    assert await one.wait() == 1

    asyncio.run(story())


def test_only_the_rank_that_is_told_to_ends() -> None:
    async def story() -> None:
        meeting, port = free_port(), free_port()
        knobs = ("--end-as-rank", "1", "--exit-after", "0", "--exit-code", "9")
        first = ("--node-rank", "0", "--port", str(port))
        async with (
            rank(vllm(meeting, *first, *knobs)) as zero,
            rank(vllm(meeting, "--node-rank", "1", "--headless", *knobs)) as one,
        ):
            async with asyncio.timeout(LIMIT_S):
                assert await one.wait() == 9
            assert zero.returncode is None

    asyncio.run(story())
