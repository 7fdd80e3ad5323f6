"""`roost gateway` as a process: it starts, serves, and stops in order."""

# ruff: noqa: SIM117 - a client inside a gateway inside an engine reads better nested
import asyncio
import contextlib
import json
import os
import signal
import sys
from pathlib import Path

from gateway.process import running
from gateway.twins import (
    DONE,
    STREAM_HEAD,
    Client,
    Received,
    Wire,
    answer,
    chat,
    chunk,
    completion,
    engine,
    event,
    in_loop,
    qwen,
    request,
    silent,
    snapshot,
    until,
)
from roost.gateway.snapshot_file import write_snapshot


@in_loop
async def test_sigterm_lets_what_is_in_flight_finish(tmp_path: Path) -> None:
    go = asyncio.Event()

    async def script(_received: Received, wire: Wire) -> None:
        await wire.send(STREAM_HEAD, chunk(event("a")))
        await go.wait()
        await wire.send(chunk(DONE), b"0\r\n\r\n")

    async with engine(script) as one:
        write_snapshot(tmp_path / "gateway" / "snapshot.json", snapshot(qwen(one)))
        async with running(tmp_path) as it:
            async with await it.client() as busy, await it.client() as idle:
                await busy.send(request(chat(stream=True)))
                await until(lambda: len(one.received) == 1)
                it.process.send_signal(signal.SIGTERM)
                assert await idle.at_end()
                with contextlib.suppress(ConnectionError):
                    async with await it.client() as late:
                        assert await late.at_end()
                go.set()
                got = await busy.answer()
                assert got.whole
                assert got.body == event("a") + DONE
                assert await busy.at_end()
            assert await asyncio.wait_for(it.process.wait(), 20) == 0


@in_loop
async def test_sigterm_waits_no_longer_than_it_is_told(tmp_path: Path) -> None:
    async with engine(silent) as one:
        write_snapshot(tmp_path / "gateway" / "snapshot.json", snapshot(qwen(one)))
        async with running(tmp_path, "--drain-timeout", "0.3") as it:
            async with await it.client() as client:
                await client.send(request(chat()))
                await until(lambda: len(one.received) == 1)
                it.process.send_signal(signal.SIGTERM)
                assert await client.at_end()
            assert await asyncio.wait_for(it.process.wait(), 20) == 0
            await asyncio.wait_for(one.received[0].closed.wait(), 10)


@in_loop
async def test_a_second_sigterm_waits_for_nothing(tmp_path: Path) -> None:
    async with engine(silent) as one:
        write_snapshot(tmp_path / "gateway" / "snapshot.json", snapshot(qwen(one)))
        async with running(tmp_path, "--drain-timeout", "3600") as it:
            async with await it.client() as client:
                await client.send(request(chat()))
                await until(lambda: len(one.received) == 1)
                it.process.send_signal(signal.SIGTERM)
                await until(lambda: any(e["event"] == "gateway.stopping" for e in it.events()))
                it.process.send_signal(signal.SIGTERM)
                assert await client.at_end()
            assert await asyncio.wait_for(it.process.wait(), 60) == 0


@in_loop
async def test_a_port_in_use_is_said(tmp_path: Path) -> None:
    async with engine(answer(completion())) as one:
        async with running(tmp_path, "--port", str(one.port)) as it:
            assert await it.process.wait() == 1
            text = it.log.read_text()
            assert f"127.0.0.1:{one.port}" in text
            assert "--port" in text
            assert "Traceback" not in text


@in_loop
async def test_a_log_that_nobody_reads_holds_up_no_request(tmp_path: Path) -> None:
    async with engine(answer(completion())) as one:
        write_snapshot(tmp_path / "gateway" / "snapshot.json", snapshot(qwen(one)))
        reading, writing = os.pipe()
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            "import sys; from roost.cli.main import main; sys.exit(main())",
            *("gateway", "--dir", str(tmp_path), "--port", "0", "--metrics-port", "0"),
            stderr=writing,
        )
        os.close(writing)
        try:
            text = b""
            while b"gateway.listening" not in text:
                text += await asyncio.to_thread(os.read, reading, 4096)
            line = next(x for x in text.splitlines() if b"gateway.listening" in x)
            port = json.loads(line)["port"]
            async with Client(*await asyncio.open_connection("127.0.0.1", port)) as client:
                # The pipe holds 64 KB; each line is some 250 bytes.
                for _ in range(1000):
                    await client.send(request(chat()))
                    assert (await client.answer()).status == 200
            process.send_signal(signal.SIGTERM)
            assert await asyncio.wait_for(process.wait(), 30) == 0
        finally:
            os.close(reading)
            if process.returncode is None:
                process.kill()
            await process.wait()


@in_loop
async def test_a_second_gateway_on_a_directory_is_refused_and_told_of_the_first(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as first:
        again = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            "import sys; from roost.cli.main import main; sys.exit(main())",
            *("gateway", "--dir", str(tmp_path), "--port", "0", "--metrics-port", "0"),
            stderr=asyncio.subprocess.PIPE,
        )
        _, text = await asyncio.wait_for(again.communicate(), 60)
        assert again.returncode == 1
        assert f"process {first.process.pid}" in text.decode()
        assert str(tmp_path) in text.decode()
        assert first.process.returncode is None
