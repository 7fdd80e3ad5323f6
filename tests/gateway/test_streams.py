"""Streams: at once, to their end, and never a made-up end (B041, B042, B047)."""

# ruff: noqa: SIM117 - a client inside a gateway inside an engine reads better nested
import asyncio
import json
from pathlib import Path

import pytest

from gateway.twins import (
    DONE,
    STREAM_HEAD,
    Received,
    Script,
    Wire,
    answer,
    ask,
    chat,
    chunk,
    completion,
    connect,
    counted,
    engine,
    event,
    gateway,
    in_flight,
    in_loop,
    log_of,
    qwen,
    request,
    silent,
    until,
    whole_stream,
)
from roost.gateway.limits import Limits


@in_loop
async def test_each_event_arrives_before_the_next_is_made(tmp_path: Path) -> None:
    go = asyncio.Semaphore(0)

    async def script(_received: Received, wire: Wire) -> None:
        await wire.send(STREAM_HEAD)
        for part in parts:
            await go.acquire()
            await wire.send(chunk(part))
        await go.acquire()
        await wire.send(b"0\r\n\r\n")

    parts = [b": ping\n\n", event("ä")[:-9], event("ä")[-9:], event("b"), DONE]
    async with engine(script) as one, gateway(tmp_path, qwen(one)) as it:
        async with await connect(it) as client:
            await client.send(request(chat(stream=True), headers=["Accept-Encoding: gzip"]))
            status, headers = await client.head()
            assert status == 200
            assert headers["content-type"] == "text/event-stream; charset=utf-8"
            assert headers["cache-control"] == "no-cache"
            assert headers["x-accel-buffering"] == "no"
            assert "content-encoding" not in headers
            go.release()
            assert await client.one_chunk() == parts[0]
            go.release()
            go.release()
            # The first event with a name is passed on once it is whole: its name may have to change.
            assert await client.one_chunk() + await client.one_chunk() == event("ä")
            for part in parts[3:]:
                go.release()
                assert await client.one_chunk() == part
            go.release()
            assert await client.one_chunk() == b""


@in_loop
async def test_renamed_events_arrive_before_the_next_is_made(tmp_path: Path) -> None:
    go = asyncio.Semaphore(0)

    async def script(_received: Received, wire: Wire) -> None:
        await wire.send(STREAM_HEAD)
        for number in range(4):
            await go.acquire()
            await wire.send(chunk(event(str(number))))
        await go.acquire()
        await wire.send(chunk(DONE), b"0\r\n\r\n")

    async with engine(script) as one, gateway(tmp_path, qwen(one)) as it:
        async with await connect(it) as client:
            await client.send(request(chat("coder", stream=True)))
            await client.head()
            for number in range(4):
                go.release()
                assert await client.one_chunk() == event(str(number), "coder")


@pytest.mark.parametrize("when", ["before the first byte", "in the stream", "not streamed"])
@in_loop
async def test_the_engine_sees_the_client_leave(tmp_path: Path, when: str) -> None:
    async def stream(_received: Received, wire: Wire) -> None:
        await wire.send(STREAM_HEAD, chunk(event("a")))
        await asyncio.sleep(3600)

    script: Script = stream if when == "in the stream" else silent
    async with engine(script) as one, gateway(tmp_path, qwen(one)) as it:
        client = await connect(it)
        await client.send(request(chat(stream=when != "not streamed")))
        await until(lambda: len(one.received) == 1)
        if when == "in the stream":
            await client.head()
            await client.one_chunk()
        assert in_flight(it) == 1
        client.close()
        async with asyncio.timeout(10):
            await one.received[0].closed.wait()
        await until(lambda: in_flight(it) == 0)
        endpoint = it.table.models["qwen"].endpoints[0]
        assert endpoint.health.failures == 0
        assert counted(it) == {("qwen", 499): 1}
        assert endpoint.idle == []
    line = next(x for x in log_of(tmp_path) if x["event"] == "gateway.request")
    assert (line["status"], line["ended_by"]) == (499, "client")


@in_loop
async def test_all_of_many_streams_that_are_left_are_cancelled(tmp_path: Path) -> None:
    async def stream(_received: Received, wire: Wire) -> None:
        await wire.send(STREAM_HEAD, chunk(event("a")))
        await asyncio.sleep(3600)

    async with engine(stream) as one, gateway(tmp_path, qwen(one)) as it:
        clients = [await connect(it) for _ in range(200)]
        for client in clients:
            await client.send(request(chat(stream=True)))
        await until(lambda: len(one.received) == 200)
        for client in clients:
            client.close()
        await until(lambda: all(received.closed.is_set() for received in one.received))
        await until(lambda: in_flight(it) == 0 and not it.clients)
        assert not it.context.engines


def after(*parts: bytes, reset: bool) -> Script:
    """A script: a stream that stops short."""

    async def script(_received: Received, wire: Wire) -> None:
        await wire.send(STREAM_HEAD, *parts)
        await asyncio.sleep(0.05)
        if reset:
            wire.reset()
        else:
            wire.close()

    return script


CUTS = {
    "reset after five chunks": after(*[chunk(event(str(n))) for n in range(5)], reset=True),
    "reset after the head": after(reset=True),
    "closed after five chunks": after(*[chunk(event(str(n))) for n in range(5)], reset=False),
    "closed inside a chunk": after(chunk(event("a")), chunk(event("b"))[:-20], reset=False),
    "closed inside an event": after(chunk(event("a")), chunk(event("b")[:30]), reset=False),
    "closed in a size": after(chunk(event("a")), b"1", reset=False),
    "ended without its end marker": after(chunk(event("a")), b"0\r\n\r\n", reset=False),
    "ended without its end marker, which a text mentions": after(
        chunk(event("[DONE] data: [DONE]")), b"0\r\n\r\n", reset=False
    ),
    "ended without anything": after(b"0\r\n\r\n", reset=False),
    "no chunk any more": after(chunk(event("a")), b"garbage\r\n", reset=False),
}


@pytest.mark.parametrize("name", ["qwen", "coder"])
@pytest.mark.parametrize("cut", CUTS)
@in_loop
async def test_a_stream_that_is_cut_never_looks_whole(tmp_path: Path, cut: str, name: str) -> None:
    async with engine(CUTS[cut]) as one, gateway(tmp_path, qwen(one)) as it:
        got = await ask(it, request(chat(name, stream=True)))
        assert got.status == 200
        assert not got.whole
        assert b'"finish_reason":"stop"' not in got.body
        assert not got.body.endswith(DONE)
        if "inside" not in cut:
            last = got.body.rstrip(b"\n").rpartition(b"\n\n")[2]
            assert last.startswith(b'data: {"error":')
            error = json.loads(last.removeprefix(b"data: "))["error"]
            assert "engine" in error["message"]
        assert counted(it) == {("qwen", 502): 1}
        assert len(one.received) == 1
        await until(lambda: in_flight(it) == 0)
    line = next(x for x in log_of(tmp_path) if x["event"] == "gateway.request")
    assert line["ended_by"] == "cut"


@in_loop
async def test_the_engines_own_error_event_passes_through_once(tmp_path: Path) -> None:
    error = b'data: {"error":{"message":"out of memory","code":500}}\n\n'
    script = after(chunk(event("a")), chunk(error), b"0\r\n\r\n", reset=False)
    async with engine(script) as one, gateway(tmp_path, qwen(one)) as it:
        got = await ask(it, request(chat(stream=True)))
        assert got.body == event("a") + error
        assert not got.whole


@pytest.mark.parametrize(
    ("path", "end", "whole"),
    [
        ("/v1/messages", b'event: message_stop\ndata: {"type":"message_stop"}\n\n', True),
        ("/v1/messages", b'event: ping\ndata: {"type":"ping"}\n\n', False),
        (
            "/v1/responses",
            b'event: response.completed\ndata: {"type":"response.completed"}\n\n',
            True,
        ),
        ("/v1/responses", b'event: response.created\ndata: {"type":"x"}\n\n', False),
        ("/v1/completions", DONE, True),
        ("/v1/completions", b"data: {}\n\n", False),
        ("/tokenize", b"data: {}\n\n", True),
    ],
)
@in_loop
async def test_every_api_has_its_own_end_of_a_stream(
    tmp_path: Path, path: str, end: bytes, whole: bool
) -> None:
    async with (
        engine(after(chunk(end), b"0\r\n\r\n", reset=False)) as one,
        gateway(tmp_path, qwen(one)) as it,
    ):
        got = await ask(it, request(chat(stream=True), path=path))
        assert got.whole == whole
        if not whole and path in ("/v1/messages", "/v1/responses"):
            assert b"event: error\ndata: " in got.body


@pytest.mark.parametrize("reset", [True, False])
@in_loop
async def test_an_answer_that_is_cut_is_a_broken_transfer_or_an_error(
    tmp_path: Path, reset: bool
) -> None:
    async def script(_received: Received, wire: Wire) -> None:
        await wire.send(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 500\r\n\r\n",
            completion().encode(),
        )
        await asyncio.sleep(0.05)
        wire.reset() if reset else wire.close()

    async with engine(script) as one, gateway(tmp_path, qwen(one)) as it:
        got = await ask(it, request(chat()))
        assert got.status == 502 or not got.whole
        assert counted(it) == {("qwen", 502): 1}


@pytest.mark.parametrize("version", ["1.0", "1.1"])
@in_loop
async def test_a_stream_without_framing_gets_some(tmp_path: Path, version: str) -> None:
    async def script(_received: Received, wire: Wire) -> None:
        head = b"HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
        await wire.send(head, event("a"), DONE)
        wire.close()

    async with engine(script) as one, gateway(tmp_path, qwen(one)) as it:
        got = await ask(it, request(chat(stream=True), version=version))
        assert got.body == event("a") + DONE
        assert got.whole
        assert ("transfer-encoding" in got.headers) == (version == "1.1")


@in_loop
async def test_a_client_that_does_not_read_stops_the_engine_and_no_memory_fills(
    tmp_path: Path,
) -> None:
    sent = 0

    async def flood(_received: Received, wire: Wire) -> None:
        nonlocal sent
        await wire.send(STREAM_HEAD)
        block = chunk(event("x" * 50_000))
        for _ in range(2000):
            await wire.send(block)
            sent += len(block)
        await wire.send(chunk(DONE), b"0\r\n\r\n")

    async with engine(flood) as one, gateway(tmp_path, qwen(one)) as it:
        async with await connect(it) as client:
            client.writer.transport.pause_reading()  # type: ignore[attr-defined]  # a read transport
            await client.send(request(chat(stream=True)))
            before = -1
            while before != sent or sent == 0:
                before = sent
                await asyncio.sleep(0.3)
            # What fits into the sockets' buffers, and no more: 100 MB were to be had.
            assert sent < 40_000_000
            (connection,) = it.clients
            transport = connection._transport
            assert transport is not None
            assert transport.get_write_buffer_size() < 2_000_000
            client.writer.transport.resume_reading()  # type: ignore[attr-defined]  # as above
            got = await client.answer()
            assert got.whole
            assert got.body.endswith(DONE)
            # The connection that was paused serves the next request.
            one.script = answer(completion())
            await client.send(request(chat()))
            assert (await client.answer()).status == 200
            assert one.connections == 1


@in_loop
async def test_a_client_that_never_reads_on_is_given_up(tmp_path: Path) -> None:
    async def flood(_received: Received, wire: Wire) -> None:
        await wire.send(STREAM_HEAD)
        while True:
            await wire.send(chunk(event("x" * 50_000)))

    limits = Limits(stalled_s=0.3, sweep_s=0.05, drain_s=0.2)
    async with engine(flood) as one, gateway(tmp_path, qwen(one), limits=limits) as it:
        async with await connect(it) as client:
            client.writer.transport.pause_reading()  # type: ignore[attr-defined]  # a read transport
            await client.send(request(chat(stream=True)))
            await until(lambda: counted(it) == {("qwen", 499): 1})
            await until(lambda: one.open == 0)
            assert in_flight(it) == 0
            assert it.table.models["qwen"].endpoints[0].health.failures == 0


@in_loop
async def test_a_stream_to_an_http_1_0_client_ends_with_its_connection(tmp_path: Path) -> None:
    async with engine(whole_stream) as one, gateway(tmp_path, qwen(one)) as it:
        got = await ask(it, request(chat(stream=True), version="1.0"))
        assert "transfer-encoding" not in got.headers
        assert got.headers["connection"] == "close"
        assert got.body.startswith(event("word 0"))
        assert got.body.endswith(DONE)


@in_loop
async def test_a_cut_answer_to_an_http_1_0_client_is_a_reset(tmp_path: Path) -> None:
    async def script(_received: Received, wire: Wire) -> None:
        await wire.send(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n",
            chunk(b"half of"),
        )
        await asyncio.sleep(0.05)
        wire.close()

    async with engine(script) as one, gateway(tmp_path, qwen(one)) as it:
        got = await ask(it, request(chat(), version="1.0"))
        assert not got.whole


@in_loop
async def test_a_live_stream_is_not_cut_and_a_dead_one_is(tmp_path: Path) -> None:
    pause = 0.1

    async def slow(_received: Received, wire: Wire) -> None:
        await wire.send(STREAM_HEAD)
        for number in range(12):
            await wire.send(chunk(event(str(number))))
            await asyncio.sleep(pause)
        await wire.send(chunk(DONE), b"0\r\n\r\n")

    limits = Limits(first_byte_s=2, stream_idle_s=2, sweep_s=0.05, drain_s=0.2)
    async with engine(slow) as one, gateway(tmp_path, qwen(one), limits=limits) as it:
        assert (await ask(it, request(chat(stream=True)))).whole
        pause = 3600
        got = await ask(it, request(chat(stream=True)))
        assert not got.whole
        assert b"has said nothing for 2 s" in got.body
        await until(lambda: one.open == 0)
