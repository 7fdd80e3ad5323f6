import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import pytest

KEY = {"Authorization": "Bearer k"}


@asynccontextmanager
async def engine(
    tmp_path: Path, *knobs: str
) -> AsyncIterator[tuple[str, asyncio.subprocess.Process]]:
    file = tmp_path / "port"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "roost.testing.fake_engine", "--port-file", str(file), *knobs),
        env={"ROOST_ENGINE_API_KEY": "k"},
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with asyncio.timeout(60):
            while True:
                if file.exists() and file.read_text().endswith("\n"):
                    break
                await asyncio.sleep(0.02)
        yield f"http://127.0.0.1:{file.read_text().strip()}", process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def test_it_speaks_the_openai_api_with_a_key(tmp_path: Path) -> None:
    async def story() -> None:
        async with engine(tmp_path, "--alias", "m", "--slots", "2") as (url, process):
            async with httpx2.AsyncClient(base_url=url, timeout=60) as http:
                assert (await http.get("/health")).json() == {"status": "ok"}
                assert (await http.get("/v1/models")).status_code == 401
                models = (await http.get("/v1/models", headers=KEY)).json()
                assert [one["id"] for one in models["data"]] == ["m"]
                assert (await http.get("/props", headers=KEY)).json()["total_slots"] == 2
                body: dict[str, object] = {"messages": [], "max_tokens": 3}
                chat = await http.post("/v1/chat/completions", json=body, headers=KEY)
                assert chat.json()["choices"][0]["message"]["content"] == "w0 w1 w2 "
                assert chat.json()["usage"]["completion_tokens"] == 3
                options = {"stream": True, "stream_options": {"include_usage": True}}
                body["prompt"] = "eight words of a prompt that has eight"
                stream = await http.post("/v1/completions", json=body | options, headers=KEY)
                events = [line[6:] for line in stream.text.splitlines() if line]
                assert events[-1] == "[DONE]"
                parsed = [json.loads(event) for event in events[:-1]]
                assert "".join(e["choices"][0]["text"] for e in parsed[:3]) == "w0 w1 w2 "
                assert parsed[3]["choices"][0]["finish_reason"] == "stop"
                assert (parsed[4]["choices"], parsed[4]["usage"]["total_tokens"]) == ([], 11)
            process.terminate()
            assert await process.wait() == 0

    asyncio.run(story())


def test_a_client_may_ask_again_on_its_connection_as_soon_as_it_has_the_answer(
    tmp_path: Path,
) -> None:
    async def story() -> None:
        body = b'{"max_tokens":1}'
        request = (
            b"POST /v1/completions HTTP/1.1\r\nAuthorization: Bearer k\r\n"
            b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
        )
        async with engine(tmp_path) as (url, _):
            reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
            # Two at once: the second one's first byte is read while the first is answered.
            writer.write(request + request)
            for _ in range(2):
                head = await reader.readuntil(b"\r\n\r\n")
                assert head.startswith(b"HTTP/1.1 200 OK")
                await reader.readexactly(int(head.split(b"Content-Length: ")[1].split(b"\r")[0]))
            writer.write(request)
            writer.close()

    asyncio.run(story())


def test_requests_beyond_its_slots_wait_and_a_client_that_leaves_frees_its_place(
    tmp_path: Path,
) -> None:
    async def story() -> None:
        async with (
            engine(tmp_path, "--slots", "1", "--tokens-per-s", "5") as (url, _),
            httpx2.AsyncClient(base_url=url, timeout=60) as http,
        ):

            async def now() -> dict[str, int]:
                found: dict[str, int] = (await http.get("/fake")).json()
                return found

            async def until(**wanted: int) -> None:
                async with asyncio.timeout(60):
                    while True:
                        if wanted.items() <= (await now()).items():
                            return
                        await asyncio.sleep(0.02)

            body = {"messages": [], "max_tokens": 1000}
            ask = [http.post("/v1/chat/completions", json=body, headers=KEY) for _ in range(2)]
            tasks = [asyncio.create_task(one) for one in ask]
            await until(running=1, waiting=1)
            page = (await http.get("/metrics", headers=KEY)).text
            assert "llamacpp:requests_processing 1\n" in page
            assert "llamacpp:requests_deferred 1\n" in page
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await until(running=0, waiting=0, disconnected=2, served=0)

    asyncio.run(story())


def test_it_says_503_while_it_loads_and_ends_as_it_is_told(tmp_path: Path) -> None:
    async def story() -> None:
        knobs = ("--load-s", "600", "--exit-after", "1", "--exit-code", "7")
        async with engine(tmp_path, *knobs) as (url, process):
            async with httpx2.AsyncClient(base_url=url, timeout=60) as http:
                assert (await http.get("/health")).status_code == 503
            async with asyncio.timeout(60):
                assert await process.wait() == 7

    asyncio.run(story())


@pytest.mark.parametrize("status", [400, 401, 404, 429, 500, 503])
def test_it_answers_so_many_requests_with_an_error(tmp_path: Path, status: int) -> None:
    async def story() -> None:
        knobs = ("--answer-status", str(status), "--answer-times", "2")
        async with (
            engine(tmp_path, *knobs) as (url, _),
            httpx2.AsyncClient(base_url=url, timeout=60) as http,
        ):
            body = {"messages": [], "max_tokens": 1}
            ask = [
                await http.post("/v1/chat/completions", json=body, headers=KEY) for _ in range(3)
            ]
            assert [one.status_code for one in ask] == [status, status, 200]
            assert ask[0].json()["error"]["message"]

    asyncio.run(story())


def test_it_breaks_a_stream_off_without_an_end(tmp_path: Path) -> None:
    async def story() -> None:
        async with (
            engine(tmp_path, "--cut-after", "2") as (url, _),
            httpx2.AsyncClient(base_url=url, timeout=60) as http,
        ):
            body = {"prompt": "", "max_tokens": 9, "stream": True}
            came = b""

            async def read() -> None:
                nonlocal came
                async with http.stream("POST", "/v1/completions", json=body, headers=KEY) as answer:
                    async for part in answer.aiter_raw():
                        came += part

            with pytest.raises(httpx2.RemoteProtocolError):
                await read()
            assert came.count(b"data:") == 2
            assert b"[DONE]" not in came

    asyncio.run(story())


def test_beyond_its_queue_it_is_busy(tmp_path: Path) -> None:
    async def story() -> None:
        knobs = ("--slots", "1", "--queue", "0", "--tokens-per-s", "5")
        async with (
            engine(tmp_path, *knobs) as (url, _),
            httpx2.AsyncClient(base_url=url, timeout=60) as http,
        ):
            body = {"messages": [], "max_tokens": 1000}
            first = asyncio.create_task(http.post("/v1/chat/completions", json=body, headers=KEY))
            async with asyncio.timeout(60):
                while (await http.get("/fake")).json()["running"] < 1:  # noqa: ASYNC110 - its own count
                    await asyncio.sleep(0.02)
            second = await http.post("/v1/chat/completions", json=body, headers=KEY)
            assert second.status_code == 503
            first.cancel()
            await asyncio.gather(first, return_exceptions=True)

    asyncio.run(story())


def test_it_embeds_where_it_is_to(tmp_path: Path) -> None:
    async def story() -> None:
        for knobs, status in (((), 501), (("--embeddings",), 200)):
            async with (
                engine(tmp_path, *knobs) as (url, _),
                httpx2.AsyncClient(base_url=url, timeout=60) as http,
            ):
                body = {"input": "one two"}
                got = await http.post("/v1/embeddings", json=body, headers=KEY)
                assert got.status_code == status
            (tmp_path / "port").unlink()
        assert len(got.json()["data"][0]["embedding"]) > 1

    asyncio.run(story())
