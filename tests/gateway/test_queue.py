"""Admission: a bounded queue before what the replicas can take, and no slot is ever lost.

B053, B055, B056; B058: who is turned away is told when to come again; B059: first come, first served,
whatever priority a client gives itself. Keys carry none, so nobody can starve.
"""

# ruff: noqa: SIM117 - a client inside a gateway inside an engine reads better nested
import asyncio
from pathlib import Path

import pytest

from gateway.twins import (
    STREAM_HEAD,
    Client,
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
    snapshot,
    until,
)
from roost.formats.routing import RoutedModel
from roost.gateway.limits import Limits
from roost.gateway.refusals import Refusal, unavailable
from roost.gateway.service import Gateway


class Gate:
    """A script whose answers wait until they are let go."""

    def __init__(self) -> None:
        self.let_go = asyncio.Semaphore(0)

    async def __call__(self, received: Received, wire: Wire) -> None:
        await self.let_go.acquire()
        await answer(completion(text=received.json["messages"][0]["content"]))(received, wire)


def depth(it: Gateway) -> int:
    return len(it.table.models["qwen"].queue)


@in_loop
async def test_one_runs_one_waits_and_the_others_are_refused_at_once(tmp_path: Path) -> None:
    gate = Gate()
    async with engine(gate) as one, gateway(tmp_path, qwen(one, slots=1, queue_size=1)) as it:
        first = asyncio.ensure_future(ask(it, request(chat())))
        await until(lambda: len(one.received) == 1)
        second = asyncio.ensure_future(ask(it, request(chat())))
        await until(lambda: depth(it) == 1)
        for _ in range(4):
            got = await ask(it, request(chat()))
            assert (got.status, got.json["error"]["code"]) == (429, "queue_full")
            assert int(got.headers["retry-after"]) >= 1
        gate.let_go.release()
        gate.let_go.release()
        assert (await first).status == (await second).status == 200
        assert depth(it) == in_flight(it) == 0


@in_loop
async def test_who_came_first_is_served_first(tmp_path: Path) -> None:
    gate = Gate()
    async with (
        engine(gate) as one,
        gateway(tmp_path, qwen(one, slots=1), limits=Limits(sweep_s=3600, drain_s=0.2)) as it,
    ):
        waiting = []
        for number in range(6):
            # vLLM reads `priority`, the lowest first; the gateway passes it on and has none.
            body = chat(messages=[{"content": str(number)}], priority=-number)
            raw = request(body, headers=[f"X-Priority: {number}"])
            waiting.append(asyncio.ensure_future(ask(it, raw)))
            await until(lambda: len(one.received) + depth(it) == len(waiting))
        for _ in waiting:
            gate.let_go.release()
        await asyncio.gather(*waiting)
        order = [received.json["messages"][0]["content"] for received in one.received]
        assert order == [str(number) for number in range(6)]
        assert [received.json["priority"] for received in one.received] == [
            -number for number in range(6)
        ]


@pytest.mark.parametrize("status", [429, 503])
def test_who_is_turned_away_is_always_told_when_to_come_again(status: int) -> None:
    with pytest.raises(ValueError, match="without a time"):
        Refusal(status=status, code="busy", message="no")
    for seconds, told in ((0.0, 1), (0.2, 1), (11.2, 12), (30, 30)):
        assert unavailable("no", code="busy", retry_after=seconds).retry_after == told


@in_loop
async def test_no_replica_gets_more_than_its_slots(tmp_path: Path) -> None:
    now = most = 0

    async def script(received: Received, wire: Wire) -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.01)
        now -= 1
        await answer(completion())(received, wire)

    async with engine(script) as one, gateway(tmp_path, qwen(one, slots=3)) as it:
        got = await asyncio.gather(*(ask(it, request(chat())) for _ in range(40)))
        assert {answered.status for answered in got} == {200}
        assert most == 3


@in_loop
async def test_unknown_slots_are_no_limit(tmp_path: Path) -> None:
    async with engine(silent) as one, gateway(tmp_path, qwen(one, queue_size=0)) as it:
        clients = [await connect(it) for _ in range(50)]
        for client in clients:
            await client.send(request(chat()))
        await until(lambda: len(one.received) == 50)
        for client in clients:
            client.close()


@in_loop
async def test_who_waits_too_long_is_turned_away(tmp_path: Path) -> None:
    limits = Limits(sweep_s=0.05, drain_s=0.2)
    async with engine(silent) as one:
        model = qwen(one, slots=1, queue_max_wait_s=0.3)
        async with gateway(tmp_path, model, limits=limits) as it, await connect(it) as client:
            await client.send(request(chat()))
            await until(lambda: len(one.received) == 1)
            got = await ask(it, request(chat()))
            assert (got.status, got.json["error"]["code"]) == (429, "queue_timeout")
            assert int(got.headers["retry-after"]) >= 1
            assert depth(it) == 0


@in_loop
async def test_who_leaves_while_waiting_is_out_of_the_queue(tmp_path: Path) -> None:
    gate = Gate()
    async with engine(gate) as one, gateway(tmp_path, qwen(one, slots=1, queue_size=2)) as it:
        first = asyncio.ensure_future(ask(it, request(chat())))
        await until(lambda: len(one.received) == 1)
        gone: list[Client] = []
        for _ in range(2):
            client = await connect(it)
            await client.send(request(chat()))
            gone.append(client)
        await until(lambda: depth(it) == 2)
        for client in gone:
            client.close()
        await until(lambda: depth(it) == 0)
        last = asyncio.ensure_future(ask(it, request(chat())))
        await until(lambda: depth(it) == 1)
        gate.let_go.release()
        gate.let_go.release()
        assert (await first).status == (await last).status == 200
        assert len(one.received) == 2


async def _cut(_received: Received, wire: Wire) -> None:
    await wire.send(STREAM_HEAD, chunk(event("a")))
    wire.reset()


async def _open_stream(_received: Received, wire: Wire) -> None:
    await wire.send(STREAM_HEAD, chunk(event("a")))
    await asyncio.sleep(3600)


async def _reset(_received: Received, wire: Wire) -> None:
    wire.reset()


@in_loop
async def test_every_slot_is_given_back_however_a_request_ends(tmp_path: Path) -> None:
    limits = Limits(first_byte_s=0.2, sweep_s=0.02, drain_s=0.2)
    async with engine(answer(completion())) as one:
        model = qwen(one, slots=2, queue_size=100)
        async with gateway(tmp_path, model, limits=limits) as it:

            async def leave(*, after_event: bool) -> None:
                async with await connect(it) as client:
                    await client.send(request(chat(stream=True)))
                    if after_event:
                        await client.head()
                        await client.one_chunk()
                    else:
                        await asyncio.sleep(0.01)

            async def whole(raw: bytes) -> None:
                await ask(it, raw)

            stream = request(chat(stream=True))
            batches: list[tuple[Script, list[object]]] = [
                (_open_stream, [leave(after_event=True) for _ in range(50)]),
                (silent, [leave(after_event=False) for _ in range(50)]),
                (silent, [whole(request(chat())) for _ in range(6)]),
                (answer("{}", status="500 Oops"), [whole(request(chat())) for _ in range(50)]),
                (_cut, [whole(stream) for _ in range(50)]),
                (_reset, [whole(stream) for _ in range(50)]),
                (silent, [whole(request(chat("nope"))) for _ in range(50)]),
                (silent, [whole(request("{")) for _ in range(50)]),
            ]
            for script, batch in batches:
                one.script = script
                await asyncio.gather(*batch)  # type: ignore[call-overload]  # coroutines
                # A client that has left may still have bytes on their way.
                await until(lambda: not it.clients)
                await until(lambda: in_flight(it) == 0 and depth(it) == 0)
                assert not it.context.engines
                assert it.context.body_bytes == 0
            one.script = answer(completion())
            async with asyncio.timeout(30):
                # The replica may be left alone for a while after so many failures.
                while (await ask(it, request(chat()))).status != 200:  # noqa: ASYNC110 - asks again
                    await asyncio.sleep(0.05)


@in_loop
async def test_a_fault_in_the_accounts_gives_the_slot_back(tmp_path: Path) -> None:
    async with engine(answer(completion())) as one, gateway(tmp_path, qwen(one, slots=1)) as it:
        accounts = it.context.accounts
        real = accounts.count

        def faulty(*_arguments: object) -> None:
            raise RuntimeError("no room for another count")

        accounts.count = faulty  # type: ignore[method-assign,assignment]  # the fault
        async with await connect(it) as client:
            for _ in range(5):
                await client.send(request(chat()))
                assert (await client.answer()).status == 200
        accounts.count = real  # type: ignore[method-assign]  # as it was
        await until(lambda: in_flight(it) == 0)
        assert (await ask(it, request(chat()))).status == 200


@in_loop
async def test_a_model_that_is_not_ready_holds_nobody_up(tmp_path: Path) -> None:
    cold = RoutedModel(name="cold", state="loading")
    async with engine(answer(completion())) as one, gateway(tmp_path, cold, qwen(one)) as it:
        assert (await ask(it, request(chat("cold")))).status == 503
        got = await asyncio.gather(*(ask(it, request(chat())) for _ in range(20)))
        assert {answered.status for answered in got} == {200}


@in_loop
async def test_those_who_wait_are_told_when_the_last_replica_goes(tmp_path: Path) -> None:
    async with engine(silent) as one, gateway(tmp_path, qwen(one, slots=1)) as it:
        async with await connect(it) as client:
            await client.send(request(chat()))
            await until(lambda: len(one.received) == 1)
            waiting = asyncio.ensure_future(ask(it, request(chat())))
            await until(lambda: depth(it) == 1)
            it.table.adopt(snapshot(qwen(state="loading"), revision=2))
            assert (await waiting).status == 503
            waiting = asyncio.ensure_future(ask(it, request(chat())))
            assert (await waiting).status == 503


@in_loop
async def test_those_who_wait_go_on_when_a_replica_comes(tmp_path: Path) -> None:
    async with engine(silent) as one, engine(answer(completion())) as two:
        async with gateway(tmp_path, qwen(one, slots=1)) as it, await connect(it) as client:
            await client.send(request(chat()))
            await until(lambda: len(one.received) == 1)
            waiting = [asyncio.ensure_future(ask(it, request(chat()))) for _ in range(3)]
            await until(lambda: depth(it) == 3)
            it.table.adopt(snapshot(qwen(one, two, slots=1), revision=2))
            assert {(await one_of).status for one_of in waiting} == {200}
            assert in_flight(it) == 1
        assert counted(it)[("qwen", 200)] == 3


@in_loop
async def test_a_session_stays_on_its_replica_as_long_as_that_has_room(tmp_path: Path) -> None:
    gate = Gate()
    async with engine(answer(completion())) as one, engine(answer(completion())) as two:
        async with gateway(tmp_path, qwen(one, two, slots=1)) as it:
            session = ["X-Session-Id: conversation 7"]
            for _ in range(8):
                assert (await ask(it, request(chat(), headers=session))).status == 200
            mine, other = (one, two) if one.received else (two, one)
            assert (len(mine.received), len(other.received)) == (8, 0)
            assert mine.received[0].header("x-session-id") == "conversation 7"
            mine.script = gate
            busy = asyncio.ensure_future(ask(it, request(chat(), headers=session)))
            await until(lambda: len(mine.received) == 9)
            assert (await ask(it, request(chat(), headers=session))).status == 200
            assert len(other.received) == 1
            gate.let_go.release()
            assert (await busy).status == 200
            gate.let_go.release()
            assert (await ask(it, request(chat(), headers=session))).status == 200
            assert len(mine.received) == 10


@in_loop
async def test_the_log_says_how_long_a_request_waited_for_room(tmp_path: Path) -> None:
    gate = Gate()
    async with engine(gate) as one, gateway(tmp_path, qwen(one, slots=1)) as it:
        first = asyncio.ensure_future(ask(it, request(chat())))
        await until(lambda: len(one.received) == 1)
        second = asyncio.ensure_future(ask(it, request(chat())))
        await until(lambda: depth(it) == 1)
        gate.let_go.release()
        gate.let_go.release()
        await asyncio.gather(first, second)
    told = [e.get("queue_ms") for e in log_of(tmp_path) if e["event"] == "gateway.request"]
    assert told[0] is None
    assert told[1] is not None
    assert told[1] > 0
