"""HTTP as clients speak it: pipelined, 1.0, in pieces, with expectations; and what is no HTTP at all."""

# ruff: noqa: SIM117 - a client inside a gateway inside an engine reads better nested
import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.feeding import Fed
from gateway.smuggling import SMUGGLING
from gateway.twins import (
    KEY,
    Received,
    Wire,
    answer,
    ask,
    chat,
    completion,
    connect,
    counted,
    engine,
    gateway,
    in_flight,
    in_loop,
    qwen,
    request,
    silent,
    until,
    whole_stream,
)
from roost.gateway.service import Gateway


@in_loop
async def test_pipelined_requests_are_answered_in_order_one_at_a_time(tmp_path: Path) -> None:
    at_once = most = 0

    async def script(received: Received, wire: Wire) -> None:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await asyncio.sleep(0.02)
        at_once -= 1
        await answer(completion(text=received.json["messages"][0]["content"]))(received, wire)

    async with engine(script) as one, gateway(tmp_path, qwen(one)) as it:
        async with await connect(it) as client:
            texts = [f"number {n}" for n in range(8)]
            raw = b"".join(request(chat(messages=[{"content": text}])) for text in texts)
            models = request(method="GET", path="/v1/models")
            await client.send(raw[: len(raw) // 2])
            await client.send(raw[len(raw) // 2 :] + models)
            for text in texts:
                got = await client.answer()
                assert got.json["choices"][0]["message"]["content"] == text
            assert (await client.answer()).json["object"] == "list"
        assert most == 1


@in_loop
async def test_more_than_is_held_of_pipelined_requests_waits_in_the_socket(tmp_path: Path) -> None:
    async with engine(answer(completion())) as one, gateway(tmp_path, qwen(one)) as it:
        async with await connect(it) as client:
            big = request(chat(messages=[{"content": "x" * 50_000}]))
            sending = asyncio.ensure_future(client.send(big * 40))
            for _ in range(40):
                assert (await client.answer()).status == 200
            await sending
        assert len(one.received) == 40


@in_loop
async def test_what_is_held_behind_a_request_is_bounded(tmp_path: Path) -> None:
    async with engine(silent) as one, gateway(tmp_path, qwen(one)) as it:
        async with await connect(it) as client:
            await client.send(request(chat()))
            await until(lambda: len(one.received) == 1)
            client.writer.write(b"x" * 20_000_000)
            (connection,) = it.clients
            await until(lambda: len(connection._buffer) > it.context.limits.pipelined_bytes)
            await asyncio.sleep(0.3)
            assert len(connection._buffer) < 2_000_000


@in_loop
async def test_a_client_that_pipelines_and_leaves_is_noticed(tmp_path: Path) -> None:
    async with engine(silent) as one, gateway(tmp_path, qwen(one)) as it:
        client = await connect(it)
        await client.send(request(chat()) * 3)
        await until(lambda: len(one.received) == 1)
        client.close()
        await asyncio.wait_for(one.received[0].closed.wait(), 10)
        await until(lambda: not it.clients)
        assert len(one.received) == 1


@in_loop
async def test_a_request_split_at_every_byte_is_one_request(tmp_path: Path) -> None:
    body = b'{"model":"qwen"}'
    plain = request(body, headers=["X-A: 1"])
    chunked = request(headers=["Transfer-Encoding: chunked"]) + (
        b"5\r\n" + body[:5] + b"\r\nb;x=y\r\n" + body[5:] + b"\r\n0\r\nx: y\r\n\r\n"
    )
    async with engine(answer(completion())) as one, gateway(tmp_path, qwen(one)) as it:
        for raw in (plain, chunked):
            connections = [connection async for connection in _split_everywhere(it, raw)]
            assert connections == [200] * (len(raw) - 1)
        assert {received.body for received in one.received} == {body}
        assert {received.header("content-length") for received in one.received} == {"16"}
        assert {received.header("transfer-encoding") for received in one.received} == {None}


async def _split_everywhere(it: Gateway, raw: bytes) -> AsyncIterator[int]:
    """The statuses of requests fed to the protocol directly: a socket would join the pieces."""
    for at in range(1, len(raw)):
        fed = Fed(it)
        fed.feed(raw[:at])
        fed.feed(raw[at:])
        yield await fed.status()


@in_loop
async def test_a_request_that_comes_byte_by_byte_is_one_request(tmp_path: Path) -> None:
    async with engine(whole_stream) as one, gateway(tmp_path, qwen(one)) as it:
        async with await connect(it) as client:
            for byte in request(chat(stream=True)):
                await client.send(bytes([byte]))
            got = await client.answer()
            assert got.whole


@pytest.mark.parametrize("head", SMUGGLING.values(), ids=SMUGGLING.keys())
@in_loop
async def test_what_could_smuggle_a_request_is_400_and_the_connection_closes(
    tmp_path: Path, head: bytes
) -> None:
    async with engine(answer(completion())) as one, gateway(tmp_path, qwen(one)) as it:
        async with await connect(it) as client:
            smuggled = request(chat())
            await client.send(head + b"0\r\n\r\n" + smuggled)
            got = await client.answer()
            assert got.status == 400
            assert got.json["error"]["code"] == "bad_http"
            assert got.headers["connection"] == "close"
            assert await client.at_end()
        assert one.received == []


@pytest.mark.parametrize("bad", [b"zz\r\n", b"5\nhello", b"+5\r\n", b"3\r\nabcd\r\n"])
@in_loop
async def test_a_body_that_is_no_chunks_is_400_and_the_connection_closes(
    tmp_path: Path, bad: bytes
) -> None:
    async with engine(answer(completion())) as one, gateway(tmp_path, qwen(one)) as it:
        async with await connect(it) as client:
            await client.send(request(headers=["Transfer-Encoding: chunked"]) + bad)
            assert (await client.answer()).status == 400
            assert await client.at_end()
        assert one.received == []
        assert it.context.body_bytes == 0


@pytest.mark.parametrize(
    "junk", [b"\x16\x03\x01\x02\x00\x01\x00", b"hello\r\n\r\n", b"\x00" * 20 + b"\r\n\r\n"]
)
@in_loop
async def test_what_is_no_http_is_400(tmp_path: Path, junk: bytes) -> None:
    async with gateway(tmp_path, qwen()) as it, await connect(it) as client:
        await client.send(junk + b"\n")
        assert (await client.answer()).status == 400
        assert await client.at_end()


@in_loop
async def test_an_empty_line_before_a_request_is_let_pass(tmp_path: Path) -> None:
    async with engine(answer(completion())) as one, gateway(tmp_path, qwen(one)) as it:
        async with await connect(it) as client:
            for _ in range(2):
                await client.send(b"\r\n" + request(chat()) + b"\r\n")
                assert (await client.answer()).status == 200


@in_loop
async def test_an_expectation_is_met_before_the_body_is_sent(tmp_path: Path) -> None:
    async with engine(answer(completion())) as one, gateway(tmp_path, qwen(one)) as it:
        async with await connect(it) as client:
            raw = request(chat(), headers=["Expect: 100-continue"])
            head, _, body = raw.partition(b"\r\n\r\n")
            await client.send(head + b"\r\n\r\n")
            assert (await client.head())[0] == 100
            await client.send(body)
            assert (await client.answer()).status == 200
            assert one.received[0].header("expect") is None


@pytest.mark.parametrize(
    ("key", "length", "path", "status"),
    [
        ("roost-wrong", 100, "/v1/chat/completions", 401),
        (None, 100, "/v1/chat/completions", 401),
        (KEY, 10**9, "/v1/chat/completions", 413),
        (KEY, 100, "/v1/nothing", 404),
    ],
)
@in_loop
async def test_an_expectation_that_will_not_be_met_is_refused_before_the_body(
    tmp_path: Path, key: str | None, length: int, path: str, status: int
) -> None:
    async with gateway(tmp_path, qwen()) as it, await connect(it) as client:
        headers = ["Expect: 100-continue", f"Content-Length: {length}"]
        await client.send(request(key=key, headers=headers, path=path))
        got = await client.answer()
        assert got.status == status
        assert got.headers["connection"] == "close"
        assert await client.at_end()


@in_loop
async def test_http_1_0_is_answered_in_kind(tmp_path: Path) -> None:
    async with engine(answer(completion())) as one, gateway(tmp_path, qwen(one)) as it:
        async with await connect(it) as client:
            for _ in range(2):
                await client.send(
                    request(chat(), version="1.0", headers=["Connection: keep-alive"])
                )
                got = await client.answer()
                assert (got.status, got.headers["connection"]) == (200, "keep-alive")
            await client.send(request(chat(), version="1.0"))
            got = await client.answer()
            assert (got.status, got.headers["connection"]) == (200, "close")
            assert await client.at_end()


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/models"])
@in_loop
async def test_a_client_that_wants_to_close_is_closed(tmp_path: Path, path: str) -> None:
    async with engine(answer(completion())) as one, gateway(tmp_path, qwen(one)) as it:
        async with await connect(it) as client:
            method = "GET" if path == "/v1/models" else "POST"
            body = None if method == "GET" else chat()
            raw = request(body, method=method, path=path, headers=["Connection: close"])
            await client.send(raw)
            got = await client.answer()
            assert (got.status, got.headers["connection"]) == (200, "close")
            assert await client.at_end()


@in_loop
async def test_a_refusal_leaves_the_connection_for_the_next_request(tmp_path: Path) -> None:
    async with engine(answer(completion())) as one, gateway(tmp_path, qwen(one)) as it:
        async with await connect(it) as client:
            refused = [
                (request(chat(), key="wrong"), 401),
                (request(chat(), path="/nothing"), 404),
                (request(chat("nope")), 404),
                (request("not json"), 400),
                (request("{}"), 400),
                (request(), 400),
                (request(method="GET"), 405),
            ]
            for raw, status in refused:
                await client.send(raw)
                assert (await client.answer()).status == status
                await client.send(request(chat()))
                assert (await client.answer()).status == 200
        assert it.context.body_bytes == 0
        assert in_flight(it) == 0
        assert sum(counted(it).values()) == 2 * len(refused)


@in_loop
async def test_both_sides_send_small_packets_at_once(tmp_path: Path) -> None:
    import socket

    async with engine(silent) as one, gateway(tmp_path, qwen(one)) as it:
        async with await connect(it) as client:
            await client.send(request(chat()))
            await until(lambda: len(it.context.engines) == 1)
            (theirs,) = it.clients
            (ours,) = it.context.engines
            for connection in (theirs, ours):
                transport = connection._transport
                assert transport is not None
                sock = transport.get_extra_info("socket")
                assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@in_loop
async def test_an_idle_client_costs_no_request_and_leaves_without_a_word(tmp_path: Path) -> None:
    async with gateway(tmp_path, qwen()) as it:
        async with await connect(it):
            await until(lambda: len(it.clients) == 1)
        await until(lambda: not it.clients)
        assert counted(it) == {}


@in_loop
async def test_half_a_request_and_then_the_end_is_no_request(tmp_path: Path) -> None:
    async with engine(answer(completion())) as one, gateway(tmp_path, qwen(one)) as it:
        raw = request(chat())
        for at in (3, 40, len(raw) - 1):
            client = await connect(it)
            await client.send(raw[:at])
            client.close()
        await until(lambda: not it.clients)
        assert one.received == []
        assert it.context.body_bytes == 0


@in_loop
async def test_answers_are_the_same_on_one_connection_as_on_many(tmp_path: Path) -> None:
    async with engine(whole_stream) as one, gateway(tmp_path, qwen(one)) as it:
        alone = await ask(it, request(chat(stream=True)))
        async with await connect(it) as client:
            for _ in range(3):
                await client.send(request(chat(stream=True)))
                assert (await client.answer()).body == alone.body
