"""Every bound has its answer, early, and others are not held up (B048, pitfall 10)."""

# ruff: noqa: SIM117 - a client inside a gateway inside an engine reads better nested
import asyncio
import os
from pathlib import Path

import pytest

from gateway.twins import (
    answer,
    ask,
    chat,
    completion,
    connect,
    counted,
    engine,
    gateway,
    in_loop,
    qwen,
    request,
    silent,
    until,
)
from roost.gateway.limits import Limits

MB = 1_000_000


@in_loop
async def test_large_bodies_pass_whole_up_to_the_limit(tmp_path: Path) -> None:
    async with engine(answer(completion())) as one, gateway(tmp_path, qwen(one)) as it:
        for size in (900_000, 2 * MB, 12 * MB):
            picture = os.urandom(size // 2).hex()
            body = f'{{"messages":[{{"image_url":"{picture}"}}],"model":"coder"}}'
            got = await ask(it, request(body))
            assert got.status == 200
            assert one.received[-1].body.decode() == body[:-8] + '"qwen"}'
            assert it.context.body_bytes == 0


@in_loop
async def test_a_body_over_the_limit_is_413_before_it_is_sent(tmp_path: Path) -> None:
    limits = Limits(body_bytes=MB, drain_s=0.2)
    async with engine(silent) as one, gateway(tmp_path, qwen(one), limits=limits) as it:
        async with await connect(it) as client:
            await client.send(request(headers=[f"Content-Length: {MB + 1}"]))
            got = await client.answer()
            assert got.status == 413
            assert str(MB) in got.json["error"]["message"]
            assert await client.at_end()
        assert one.received == []


@in_loop
async def test_a_chunked_body_over_the_limit_is_413_while_it_is_sent(tmp_path: Path) -> None:
    limits = Limits(body_bytes=MB, drain_s=0.2)
    async with engine(silent) as one, gateway(tmp_path, qwen(one), limits=limits) as it:
        async with await connect(it) as client:
            await client.send(request(headers=["Transfer-Encoding: chunked"]))
            block = b"10000\r\n" + b"x" * 65536 + b"\r\n"
            sent = 0
            for _ in range(20):
                await client.send(block)
                sent += 65536
            got = await client.answer()
            assert got.status == 413
            assert await client.at_end()
        assert it.context.body_bytes == 0


@in_loop
async def test_a_client_that_goes_on_sending_still_reads_its_413(tmp_path: Path) -> None:
    limits = Limits(body_bytes=MB, drain_s=0.2)
    async with gateway(tmp_path, qwen(), limits=limits) as it, await connect(it) as client:
        await client.send(request(headers=[f"Content-Length: {5 * MB}"]) + b"x" * (5 * MB))
        assert (await client.answer()).status == 413


@in_loop
async def test_all_bodies_together_are_bounded_and_others_still_served(tmp_path: Path) -> None:
    limits = Limits(buffered_bytes=3 * MB, drain_s=0.2)
    async with (
        engine(answer(completion())) as one,
        gateway(tmp_path, qwen(one), limits=limits) as it,
    ):
        big = await connect(it)
        await big.send(request(headers=[f"Content-Length: {2_500_000}"]) + b"x" * 2_400_000)
        await until(lambda: it.context.body_bytes == 2_400_000)
        got = await ask(it, request(headers=[f"Content-Length: {MB}"]))
        assert (got.status, got.json["error"]["code"]) == (503, "gateway_full")
        assert int(got.headers["retry-after"]) >= 1
        assert (await ask(it, request(chat()))).status == 200
        big.close()
        await until(lambda: it.context.body_bytes == 0)


@in_loop
async def test_a_large_body_that_is_not_json_is_400(tmp_path: Path) -> None:
    async with engine(silent) as one, gateway(tmp_path, qwen(one)) as it:
        got = await ask(it, request(b'{"model":"qwen","x":"' + b"a" * 5 * MB))
        assert (got.status, got.json["error"]["code"]) == (400, "invalid_body")


@pytest.mark.parametrize("ended", [True, False])
@in_loop
async def test_a_head_that_is_too_large_is_431(tmp_path: Path, ended: bool) -> None:
    async with gateway(tmp_path, qwen()) as it, await connect(it) as client:
        raw = request(headers=["X: " + "a" * 40_000])
        await client.send(raw if ended else raw[:-4])
        got = await client.answer()
        assert got.status == 431
        assert await client.at_end()


@in_loop
async def test_a_head_that_does_not_end_in_time_is_408(tmp_path: Path) -> None:
    limits = Limits(head_s=0.3, sweep_s=0.05, drain_s=0.2)
    async with gateway(tmp_path, qwen(), limits=limits) as it, await connect(it) as client:
        await client.send(b"GET /v1/models HTTP/1.1\r\n")

        async def drip() -> None:
            try:
                while True:
                    await client.send(b"X: 1\r\n")
                    await asyncio.sleep(0.05)
            except ConnectionError:
                pass

        dripping = asyncio.ensure_future(drip())
        assert (await client.answer()).status == 408
        dripping.cancel()
        assert counted(it) == {("_none", 408): 1}


@in_loop
async def test_a_body_that_stops_coming_is_408(tmp_path: Path) -> None:
    limits = Limits(body_idle_s=0.3, sweep_s=0.05, drain_s=0.2)
    async with engine(silent) as one, gateway(tmp_path, qwen(one), limits=limits) as it:
        async with await connect(it) as client:
            await client.send(request(chat())[:-5])
            assert (await client.answer()).status == 408
            assert await client.at_end()
        assert it.context.body_bytes == 0


@in_loop
async def test_an_idle_connection_is_closed_without_a_word(tmp_path: Path) -> None:
    limits = Limits(keep_alive_s=0.2, sweep_s=0.05, drain_s=0.2)
    async with (
        engine(answer(completion())) as one,
        gateway(tmp_path, qwen(one), limits=limits) as it,
    ):
        async with await connect(it) as client:
            await client.send(request(chat()))
            assert (await client.answer()).status == 200
            assert await client.at_end()
        async with await connect(it) as client:
            assert await client.at_end()


@in_loop
async def test_an_engine_that_is_silent_for_too_long_is_504(tmp_path: Path) -> None:
    limits = Limits(first_byte_s=0.3, sweep_s=0.05, drain_s=0.2)
    async with engine(silent) as one, gateway(tmp_path, qwen(one), limits=limits) as it:
        got = await ask(it, request(chat()))
        assert (got.status, got.json["error"]["code"]) == (504, "engine_timeout")
        await asyncio.wait_for(one.received[0].closed.wait(), 10)
        assert it.table.models["qwen"].endpoints[0].health.failures == 1


@in_loop
async def test_a_client_that_reads_slowly_gets_its_whole_answer_before_the_close(
    tmp_path: Path,
) -> None:
    limits = Limits(linger_s=0.1, sweep_s=0.05, drain_s=0.2)
    text = completion(text="x" * 6_000_000)
    async with engine(answer(text)) as one, gateway(tmp_path, qwen(one), limits=limits) as it:
        async with await connect(it) as client:
            client.writer.transport.pause_reading()  # type: ignore[attr-defined]  # a read transport
            await client.send(request(chat(), headers=["Connection: close"]))
            await asyncio.sleep(1)
            client.writer.transport.resume_reading()  # type: ignore[attr-defined]  # as above
            got = await client.answer()
            assert got.whole
            assert len(got.body) == len(text)
