"""What is sent twice, and what never is (B045); who is left alone (B050)."""

import asyncio
from pathlib import Path

import pytest

from gateway.twins import (
    STREAM_HEAD,
    Engine,
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
    qwen,
    request,
    silent,
    snapshot,
    until,
)
from roost.gateway.limits import Limits
from roost.reconcile.routing import HEALTHY


class First:
    """Luck that always draws the first replica, then the next."""

    def random(self) -> float:
        return 0.0


async def refused_engine() -> Engine:
    """An engine that has just gone: its port refuses."""
    gone = Engine(silent)
    await gone.start()
    await gone.stop()
    return gone


@in_loop
async def test_a_refused_connection_is_tried_once_on_another_replica(tmp_path: Path) -> None:
    gone = await refused_engine()
    async with engine(answer(completion())) as one, gateway(tmp_path, qwen(gone, one)) as it:
        it.table.models["qwen"]._rng = First()  # type: ignore[assignment]  # all that is asked of it
        got = await ask(it, request(chat()))
        assert got.status == 200
        assert len(one.received) == 1
        await until(lambda: in_flight(it) == 0)


@in_loop
async def test_two_refused_connections_are_503_with_a_time(tmp_path: Path) -> None:
    models = qwen(await refused_engine(), await refused_engine(), await refused_engine())
    async with gateway(tmp_path, models) as it:
        got = await ask(it, request(chat()))
        assert got.status == 503
        assert int(got.headers["retry-after"]) >= 1
        assert got.json["error"]["code"] == "replica_unreachable"
        assert sum(e.health.failures for e in it.table.models["qwen"].endpoints) == 2
        assert in_flight(it) == 0


async def reset_at_once(_received: Received, wire: Wire) -> None:
    wire.reset()


async def close_at_once(_received: Received, wire: Wire) -> None:
    wire.close()


async def cut_after_three(_received: Received, wire: Wire) -> None:
    await wire.send(STREAM_HEAD, *[chunk(event(str(n))) for n in range(3)])
    await asyncio.sleep(0.05)
    wire.reset()


@pytest.mark.parametrize("script", [reset_at_once, close_at_once, cut_after_three, silent])
@in_loop
async def test_what_an_engine_has_accepted_is_never_sent_again(
    tmp_path: Path, script: Script
) -> None:
    limits = Limits(first_byte_s=0.5, sweep_s=0.05, drain_s=0.2)
    async with (
        engine(script) as one,
        engine(script) as two,
        gateway(tmp_path, qwen(one, two), limits=limits) as it,
    ):
        got = await ask(it, request(chat(stream=True)))
        assert got.status in (502, 504) or not got.whole
        if script is silent:
            assert got.status == 504
        assert len(one.received) + len(two.received) == 1
        assert got.body.count(b'"content":"0"') <= 1
        await until(lambda: in_flight(it) == 0)


@in_loop
async def test_a_connection_that_was_closing_is_replaced_once(tmp_path: Path) -> None:
    second_of_a_connection = 0

    async def script(received: Received, wire: Wire) -> None:
        nonlocal second_of_a_connection
        earlier = [r for r in one.received if r.connection == received.connection]
        if len(earlier) > 1:
            second_of_a_connection += 1
            wire.reset()
        else:
            await answer(completion())(received, wire)

    async with engine(script) as one, gateway(tmp_path, qwen(one)) as it:
        async with await connect(it) as client:
            for _ in range(20):
                await client.send(request(chat()))
                assert (await client.answer()).status == 200
        assert second_of_a_connection == 19
        assert counted(it) == {("qwen", 200): 20}
        assert it.table.models["qwen"].endpoints[0].health == HEALTHY


@in_loop
async def test_an_idle_connection_that_the_engine_closes_drops_out(tmp_path: Path) -> None:
    async def script(received: Received, wire: Wire) -> None:
        await answer(completion())(received, wire)
        wire.close()

    async with engine(script) as one, gateway(tmp_path, qwen(one)) as it:
        for _ in range(10):
            assert (await ask(it, request(chat()))).status == 200
        await until(lambda: it.table.models["qwen"].endpoints[0].idle == [])
        assert len(one.received) == 10


@in_loop
async def test_a_replaced_connection_that_closes_again_is_an_error(tmp_path: Path) -> None:
    async with engine(answer(completion())) as one, gateway(tmp_path, qwen(one)) as it:
        await ask(it, request(chat()))
        one.script = reset_at_once
        got = await ask(it, request(chat()))
        assert got.status == 502
        assert len(one.received) == 3


@in_loop
async def test_an_engine_that_works_for_a_while_and_closes_is_not_asked_again(
    tmp_path: Path,
) -> None:
    async def late(_received: Received, wire: Wire) -> None:
        await asyncio.sleep(1.3)
        wire.reset()

    async with engine(answer(completion())) as one, gateway(tmp_path, qwen(one)) as it:
        await ask(it, request(chat()))
        one.script = late
        assert (await ask(it, request(chat()))).status == 502
        assert len(one.received) == 2


@in_loop
async def test_an_engine_that_says_something_unasked_is_not_used_again(tmp_path: Path) -> None:
    async def script(received: Received, wire: Wire) -> None:
        await answer(completion())(received, wire)
        await wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nbad")

    async with engine(script) as one, gateway(tmp_path, qwen(one)) as it:
        for _ in range(5):
            got = await ask(it, request(chat()))
            assert got.body == completion().encode()


@in_loop
async def test_a_replica_that_does_not_answer_is_left_alone_and_the_other_serves(
    tmp_path: Path,
) -> None:
    gone = await refused_engine()
    async with engine(answer(completion())) as one, gateway(tmp_path, qwen(gone, one)) as it:
        it.table.models["qwen"]._rng = First()  # type: ignore[assignment]  # all that is asked of it
        for _ in range(6):
            assert (await ask(it, request(chat()))).status == 200
        bad, good = it.table.models["qwen"].endpoints
        assert bad.health.until is not None
        assert good.health == HEALTHY
        bad.health = HEALTHY
        # It comes back on the same port, and is used again.
        again = Engine(answer(completion()))
        again.port = gone.port
        await again.start()
        try:
            assert (await ask(it, request(chat()))).status == 200
            await until(lambda: len(again.received) == 1)
        finally:
            await again.stop()


@in_loop
async def test_the_only_replica_is_probed_and_comes_back(tmp_path: Path) -> None:
    gone = await refused_engine()
    async with gateway(tmp_path, qwen(gone)) as it:
        codes = []
        for _ in range(5):
            got = await ask(it, request(chat()))
            assert got.status == 503
            assert int(got.headers["retry-after"]) >= 1
            codes.append(got.json["error"]["code"])
        assert codes == ["replica_unreachable"] * 3 + ["model_not_answering"] * 2
        again = Engine(answer(completion()))
        again.port = gone.port
        await again.start()
        try:
            async with asyncio.timeout(20):
                while (await ask(it, request(chat()))).status != 200:  # noqa: ASYNC110 - asks again
                    await asyncio.sleep(0.05)
            assert it.table.models["qwen"].endpoints[0].health == HEALTHY
        finally:
            await again.stop()


@in_loop
async def test_a_hung_replica_does_not_hold_up_the_others(tmp_path: Path) -> None:
    limits = Limits(first_byte_s=0.4, sweep_s=0.05, drain_s=0.2)
    async with (
        engine(silent) as hung,
        engine(answer(completion())) as good,
        gateway(tmp_path, qwen(hung, good), limits=limits) as it,
    ):
        statuses = []

        async def one_client() -> None:
            for _ in range(10):
                got = await ask(it, request(chat()))
                statuses.append(got.status)

        await asyncio.gather(*(one_client() for _ in range(10)))
        assert statuses.count(504) + statuses.count(200) == 100
        # Three failures end its turn; only those already on their way to it fail with them.
        assert statuses.count(504) <= 20
        assert len(hung.received) <= 25
        assert await_count(it) <= 20
        await until(lambda: in_flight(it) == 0)


def await_count(it: object) -> int:
    return len(it.context.engines)  # type: ignore[attr-defined]  # a gateway


@in_loop
async def test_a_replica_that_refuses_the_key_has_a_stale_route(tmp_path: Path) -> None:
    refuses = answer('{"error":"Invalid API Key"}', status="401 Unauthorized")
    async with engine(refuses) as one, gateway(tmp_path, qwen(one)) as it:
        got = await ask(it, request(chat()))
        assert (got.status, got.json["error"]["code"]) == (503, "route_stale")
        assert int(got.headers["retry-after"]) >= 1
        assert (await ask(it, request(chat()))).status == 503
        assert len(one.received) == 1
        one.script = answer(completion())
        # A route with a new key is another route.
        fresh = qwen()
        fresh = type(fresh)(name="qwen", routes=(one.route(key="the-new-key"),))
        it.table.adopt(snapshot(fresh, revision=2))
        assert (await ask(it, request(chat()))).status == 200
        assert one.received[-1].header("authorization") == "Bearer the-new-key"


@pytest.mark.parametrize(
    "junk",
    [
        b"garbage\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\nX: " + b"a" * 40_000,
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200",
    ],
)
@in_loop
async def test_an_answer_that_is_not_http_is_502(tmp_path: Path, junk: bytes) -> None:
    async def script(_received: Received, wire: Wire) -> None:
        await wire.send(junk)
        wire.close()

    async with engine(script) as one, gateway(tmp_path, qwen(one)) as it:
        got = await ask(it, request(chat()))
        assert (got.status, got.json["error"]["code"]) == (502, "engine_failed")
        assert len(one.received) == 1
        assert in_flight(it) == 0


@in_loop
async def test_interim_answers_are_between_the_engine_and_the_gateway(tmp_path: Path) -> None:
    async def script(received: Received, wire: Wire) -> None:
        await wire.send(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n")
        await answer(completion())(received, wire)

    async with engine(script) as one, gateway(tmp_path, qwen(one)) as it:
        got = await ask(it, request(chat()))
        assert (got.status, got.body) == (200, completion().encode())
        assert "link" not in got.headers
