"""A gateway of several worker processes: it serves as one, whatever becomes of one of them."""

# ruff: noqa: SIM117 - a client inside a gateway inside an engine reads better nested
import asyncio
import contextlib
import os
import shutil
import signal
import ssl
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.certificates import certificate
from gateway.control import serving
from gateway.process import (
    Process,
    ended,
    metric,
    metrics,
    running,
    started,
    until_metric,
)
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
from roost.errors import Unavailable
from roost.formats.routing import RoutedModel
from roost.gateway.accounts import Log
from roost.gateway.limits import Limits
from roost.gateway.snapshot_file import write_snapshot
from roost.gateway.workers.crew import Crew, Work
from roost.gateway.workers.sockets import listen
from running import alive


@contextlib.asynccontextmanager
async def workers(
    directory: Path, *models: RoutedModel, count: int = 2, more: tuple[str, ...] = ()
) -> AsyncIterator[Process]:
    write_snapshot(directory / "gateway" / "snapshot.json", snapshot(*models))
    async with running(directory, "--workers", str(count), *more) as it:
        assert it.port, it.log.read_text()
        yield it
        for client in it.clients:
            client.close()
        if it.process.returncode is None:
            it.process.send_signal(signal.SIGTERM)
            assert await asyncio.wait_for(it.process.wait(), 60) == 0
        await until(lambda: not any(map(alive, started(it))))


async def ask(it: Process) -> int:
    """One request on a connection of its own; the status."""
    async with await it.client() as client:
        await client.send(request(chat()))
        got = await client.answer()
        assert got.whole
        return got.status


def worker_of(it: Process, client: Client) -> int:
    """Whose connection it is."""
    port = client.writer.get_extra_info("sockname")[1]
    wanted = f"{port:04X}"
    inodes = set()
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[2].endswith(f":{wanted}") and fields[1].endswith(f":{it.port:04X}"):
            inodes.add(f"socket:[{fields[9]}]")
    for pid in set(started(it)) - set(ended(it)):
        for fd in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):
                if str(fd.readlink()) in inodes:
                    return pid
    return 0


async def client_of_each(it: Process, count: int = 2) -> dict[int, Client]:
    """An idle connection to each worker."""
    clients: dict[int, Client] = {}
    async with asyncio.timeout(30):
        while len(clients) < count:
            client = await it.client()
            await client.send(request(b"", method="GET", path="/v1/models"))
            assert (await client.answer()).status == 200
            pid = worker_of(it, client)
            if pid in clients:
                client.writer.transport.abort()
            else:
                clients[pid] = client
    return clients


@in_loop
async def test_all_workers_serve_and_their_counts_are_one(tmp_path: Path) -> None:
    async with engine(answer(completion())) as one:
        async with workers(tmp_path, qwen(one), count=3) as it:
            clients = await client_of_each(it, 3)
            for client in clients.values():
                for _ in range(4):
                    await client.send(request(chat()))
                    assert (await client.answer()).status == 200
            assert set(clients) == set(started(it))
            page = await metrics(it)
            assert metric(page, "roost_gateway_requests_total", model="qwen", code="200") == 12
            assert metric(page, "roost_gateway_connections") == 3
            assert metric(page, "roost_gateway_workers") == 3
            assert metric(page, "roost_gateway_snapshot_revision") == 1
            for client in clients.values():
                client.close()


@in_loop
async def test_slots_are_never_given_twice_and_who_came_first_is_served_first(
    tmp_path: Path,
) -> None:
    turns: list[str] = []
    go = asyncio.Semaphore(0)
    at_once = most = 0

    async def script(received: Received, wire: Wire) -> None:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        turns.append(received.json["messages"][0]["content"])
        await go.acquire()
        at_once -= 1
        await answer(completion())(received, wire)

    async with engine(script) as one:
        async with workers(tmp_path, qwen(one, slots=1)) as it:
            first, second = (await client_of_each(it)).values()
            async with await it.client() as holder:
                await holder.send(request(saying("0")))
                await until(lambda: turns == ["0"])
                # In turn on both workers: the queue is one all the same.
                waiting = []
                for number in range(1, 7):
                    client = await another(it, first if number % 2 else second)
                    waiting.append(client)
                    await client.send(request(saying(str(number))))
                    await until_metric(it, "roost_gateway_queue_depth", number, model="qwen")
                for done in range(1, 8):
                    go.release()
                    await until(lambda done=done: len(turns) == min(done + 1, 7))  # type: ignore[misc]
                assert turns == [str(number) for number in range(7)]
                assert most == 1
                for client in (holder, *waiting):
                    assert (await client.answer()).status == 200
                    client.close()
            await until_metric(it, "roost_gateway_in_flight", 0, model="qwen")


def saying(text: str) -> dict[str, object]:
    return chat(messages=[{"role": "user", "content": text}])


async def another(it: Process, like: Client) -> Client:
    """A new connection to the same worker."""
    pid = worker_of(it, like)
    while True:
        client = await it.client()
        await client.send(request(b"", method="GET", path="/v1/models"))
        await client.answer()
        if worker_of(it, client) == pid:
            return client
        client.close()


@in_loop
async def test_a_full_queue_is_full_for_all_workers(tmp_path: Path) -> None:
    async with engine(silent) as one:
        async with workers(
            tmp_path, qwen(one, slots=1, queue_size=2), more=("--drain-timeout", "0")
        ) as it:
            first, second = (await client_of_each(it)).values()
            async with await another(it, first) as holder, await another(it, second) as waits:
                await holder.send(request(chat()))
                await until(lambda: len(one.received) == 1)
                await waits.send(request(chat()))
                await until_metric(it, "roost_gateway_queue_depth", 1, model="qwen")
                await first.send(request(chat()))
                await until_metric(it, "roost_gateway_queue_depth", 2, model="qwen")
                await second.send(request(chat()))
                got = await second.answer()
                assert got.status == 429
                assert got.json["error"]["code"] == "queue_full"
                first.close()
                # Its place is free again, for a client of the other worker, too.
                await until_metric(it, "roost_gateway_queue_depth", 1, model="qwen")
                await second.send(request(chat()))
                await until_metric(it, "roost_gateway_queue_depth", 2, model="qwen")
                second.close()


@in_loop
async def test_a_worker_that_is_killed_is_replaced_and_no_connection_is_refused(
    tmp_path: Path,
) -> None:
    held: list[Received] = []

    async def script(received: Received, wire: Wire) -> None:
        if received.json["messages"][0]["content"] == "hold":
            held.append(received)
            await asyncio.sleep(3600)
        await answer(completion())(received, wire)

    async with engine(script) as one:
        async with workers(tmp_path, qwen(one, slots=64)) as it:
            clients = await client_of_each(it)
            victim, cut = next(iter(clients.items()))
            for client in clients.values():
                await client.send(request(chat()))
                assert (await client.answer()).status == 200
            await cut.send(request(saying("hold")))
            await until(lambda: len(held) == 1)
            await until_metric(it, "roost_gateway_in_flight", 1, model="qwen")
            before = metric(await metrics(it), "roost_gateway_requests_total", model="qwen")
            os.kill(victim, signal.SIGKILL)
            statuses = await asyncio.gather(*(ask(it) for _ in range(40)))
            assert statuses == [200] * 40
            assert await cut.at_end()
            await until(lambda: len(started(it)) == 3)
            await until_metric(it, "roost_gateway_workers", 2)
            # What it held is given back, what it had counted is not forgotten.
            await until_metric(it, "roost_gateway_in_flight", 0, model="qwen")
            after = metric(await metrics(it), "roost_gateway_requests_total", model="qwen")
            assert after == before + 40
            gone = next(e for e in it.events() if e["event"] == "gateway.worker_ended")
            assert (gone["worker"], gone["status"], gone["in_flight"]) == (victim, -9, 1)


async def hammer(it: Process, stop: asyncio.Event) -> int:
    """Ask on new connections until told to stop; how often. Each has to be answered."""
    asked = 0
    while not stop.is_set():
        assert await ask(it) == 200
        asked += 1
    return asked


@in_loop
@pytest.mark.parametrize("how", ["SIGHUP to the gateway", "SIGTERM to each worker"])
async def test_workers_are_replaced_under_load_without_a_refused_or_broken_request(
    tmp_path: Path, how: str
) -> None:
    go = asyncio.Event()

    async def script(received: Received, wire: Wire) -> None:
        if not received.json.get("stream"):
            await answer(completion())(received, wire)
            return
        await wire.send(STREAM_HEAD, chunk(event("a")))
        await go.wait()
        await wire.send(chunk(event("b")), chunk(DONE), b"0\r\n\r\n")

    async with engine(script) as one:
        async with workers(tmp_path, qwen(one)) as it:
            old = set(started(it))
            streams = await client_of_each(it)
            idle = [await another(it, client) for client in streams.values()]
            for client in streams.values():
                await client.send(request(chat(stream=True)))
            await until(lambda: len(one.received) == 2)
            stop = asyncio.Event()
            load = [asyncio.create_task(hammer(it, stop)) for _ in range(4)]
            if how.startswith("SIGHUP"):
                it.process.send_signal(signal.SIGHUP)
            else:
                for pid in old:
                    os.kill(pid, signal.SIGTERM)
            await until(lambda: len(started(it)) == 4)
            await until_metric(it, "roost_gateway_workers", 2)
            await until(lambda: sum(e["event"] == "gateway.stopping" for e in it.events()) == 2)
            # A client that kept its connection may use it once more, and is told that it ends.
            for client in idle:
                await client.send(request(chat()))
                got = await client.answer()
                assert got.status == 200
                assert got.headers["connection"] == "close"
                assert await client.at_end()
            go.set()
            for client in streams.values():
                got = await client.answer()
                assert got.whole
                assert got.body == event("a") + event("b") + DONE
                client.close()
            stop.set()
            assert sum(await asyncio.gather(*load)) > 0
            await until(lambda: set(ended(it)) == old)
            assert set(await client_of_each(it)) == set(started(it)) - old


@in_loop
async def test_of_too_many_that_finish_the_oldest_is_hurried_and_loses_no_idle_client(
    tmp_path: Path,
) -> None:
    async def script(received: Received, wire: Wire) -> None:
        if not received.json.get("stream"):
            await answer(completion())(received, wire)
            return
        await wire.send(STREAM_HEAD, chunk(event("a")))
        await asyncio.sleep(3600)

    async with engine(script) as one:
        async with workers(tmp_path, qwen(one), more=("--drain-timeout", "5")) as it:
            # Each holds a stream that does not end, so each stays when it is replaced.
            streams: dict[int, Client] = {}
            idle: list[Client] = []
            oldest = started(it)[0]
            for number in range(5):
                pid = oldest if number == 0 else started(it)[-1]
                streams[pid] = await client_of(it, pid)
                idle.append(await client_of(it, pid))
                await streams[pid].send(request(chat(stream=True)))
                await streams[pid].head()
                os.kill(pid, signal.SIGTERM)
                if number < 4:
                    await until(lambda number=number: len(started(it)) == 3 + number)  # type: ignore[misc]
                    await until_metric(it, "roost_gateway_workers", 2)
            hurried = [e for e in it.events() if e["event"] == "gateway.worker_hurried"]
            while not hurried:
                await asyncio.sleep(0.02)
                hurried = [e for e in it.events() if e["event"] == "gateway.worker_hurried"]
            assert [e["worker"] for e in hurried] == [oldest]
            await idle[0].send(request(chat()))
            got = await idle[0].answer()
            assert (got.status, got.headers["connection"]) == (200, "close")
            # Its time over, it makes room for the one that was asked for; the others go on.
            await until(lambda: oldest in ended(it))
            await until(lambda: len(started(it)) == 7)
            for client in idle[1:]:
                await client.send(request(chat()))
                assert (await client.answer()).status == 200


async def client_of(it: Process, pid: int) -> Client:
    """An idle connection to that worker."""
    async with asyncio.timeout(30):
        while True:
            client = await it.client()
            await client.send(request(b"", method="GET", path="/v1/models"))
            await client.answer()
            if worker_of(it, client) == pid:
                return client
            client.close()


@in_loop
async def test_connections_of_a_worker_that_stands_still_go_to_another(tmp_path: Path) -> None:
    async with engine(answer(completion())) as one:
        async with workers(tmp_path, qwen(one)) as it:
            still, lives = started(it)
            os.kill(still, signal.SIGSTOP)
            try:
                await until_metric(it, "roost_gateway_workers", 1)
                assert await asyncio.gather(*(ask(it) for _ in range(20))) == [200] * 20
            finally:
                os.kill(still, signal.SIGCONT)
            await until_metric(it, "roost_gateway_workers", 2)
            assert started(it) == [still, lives]
            assert set(await client_of_each(it)) == {still, lives}


@in_loop
async def test_workers_of_a_gateway_that_was_killed_finish_and_end(tmp_path: Path) -> None:
    go = asyncio.Event()

    async def script(_received: Received, wire: Wire) -> None:
        await wire.send(STREAM_HEAD, chunk(event("a")))
        await go.wait()
        await wire.send(chunk(DONE), b"0\r\n\r\n")

    async with engine(script) as one:
        async with workers(tmp_path, qwen(one)) as it:
            async with await it.client() as client:
                await client.send(request(chat(stream=True)))
                await until(lambda: len(one.received) == 1)
                it.process.kill()
                await it.process.wait()
                # Nobody listens any more, so another gateway can take the port.
                await until(lambda: not listens(it.port))
                async with running(tmp_path, "--workers", "2", "--port", str(it.port)) as again:
                    assert again.port == it.port, again.log.read_text()
                    go.set()
                    got = await client.answer()
                    assert got.body == event("a") + DONE


def listens(port: int) -> bool:
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return any(row[1].endswith(f":{port:04X}") and row[3] == "0A" for row in rows)


@in_loop
async def test_sigterm_refuses_new_connections_and_lets_what_is_in_flight_finish(
    tmp_path: Path,
) -> None:
    go = asyncio.Event()

    async def script(_received: Received, wire: Wire) -> None:
        await wire.send(STREAM_HEAD, chunk(event("a")))
        await go.wait()
        await wire.send(chunk(DONE), b"0\r\n\r\n")

    async with engine(script) as one:
        async with workers(tmp_path, qwen(one)) as it:
            clients = await client_of_each(it)
            for client in clients.values():
                await client.send(request(chat(stream=True)))
            await until(lambda: len(one.received) == 2)
            it.process.send_signal(signal.SIGTERM)
            await until(lambda: not listens(it.port))
            with pytest.raises(ConnectionRefusedError):
                await it.client()
            go.set()
            for client in clients.values():
                assert (await client.answer()).body == event("a") + DONE
                client.close()
            assert await asyncio.wait_for(it.process.wait(), 20) == 0


@in_loop
async def test_a_second_sigterm_waits_for_nothing(tmp_path: Path) -> None:
    async with engine(silent) as one:
        async with workers(tmp_path, qwen(one), more=("--drain-timeout", "3600")) as it:
            async with await it.client() as client:
                await client.send(request(chat()))
                await until(lambda: len(one.received) == 1)
                it.process.send_signal(signal.SIGTERM)
                await until(lambda: any(e["event"] == "gateway.stopping" for e in it.events()))
                it.process.send_signal(signal.SIGTERM)
                assert await client.at_end()
            assert await asyncio.wait_for(it.process.wait(), 20) == 0


@in_loop
@pytest.mark.parametrize("count", ["1", "2"])
async def test_a_port_in_use_is_said_whoever_else_would_share_it(
    tmp_path: Path, count: str
) -> None:
    async with engine(answer(completion())) as one:
        async with workers(tmp_path / "first", qwen(one)) as first:
            other = tmp_path / "other"
            other.mkdir()
            more = ("--workers", count, "--port", str(first.port))
            async with running(other, *more) as it:
                assert await it.process.wait() == 1
                text = it.log.read_text()
                assert f"cannot listen on 127.0.0.1:{first.port}" in text
                assert "--port" in text
                assert "Traceback" not in text


@in_loop
async def test_new_routes_reach_every_worker(tmp_path: Path) -> None:
    # The engine stays, its model goes: columns of the shared memory change hands.
    async with engine(answer(completion())) as one:
        async with serving(tmp_path, snapshot(qwen(one))) as server:
            async with running(tmp_path, "--workers", "2") as it:
                clients = await client_of_each(it)
                renamed = RoutedModel(name="llama", routes=(one.route("llama-0"),))
                server.says(snapshot(renamed, revision=2))
                await until_metric(it, "roost_gateway_snapshot_revision", 2)
                for client in clients.values():
                    await client.send(request(chat("llama")))
                    assert (await client.answer()).status == 200
                    await client.send(request(chat()))
                    assert (await client.answer()).status == 404
                    client.close()


@in_loop
async def test_a_worker_that_does_not_start_leaves_its_connections_to_the_others(
    tmp_path: Path,
) -> None:
    cert, key = (Path(file) for file in certificate(tmp_path).files)
    async with engine(answer(completion())) as one:
        async with workers(
            tmp_path, qwen(one), more=("--tls-cert", str(cert), "--tls-key", str(key))
        ) as it:
            kept = key.read_bytes()
            key.unlink()
            victim, lives = started(it)
            os.kill(victim, signal.SIGKILL)
            await until(lambda: len(ended(it)) >= 3)
            failed = next(e for e in it.events() if e["event"] == "gateway.worker_failed")
            assert failed["cause"] == f"--tls-key {key}: No such file or directory"
            assert metric(await metrics(it), "roost_gateway_workers") == 1
            trust = ssl.create_default_context(cafile=str(cert))
            for _ in range(10):
                async with Client(
                    *await asyncio.open_connection(
                        "127.0.0.1", it.port, ssl=trust, server_hostname="localhost"
                    )
                ) as client:
                    await client.send(request(chat()))
                    assert (await client.answer()).status == 200
            # A restart is refused while the certificate can't be read: what serves goes on.
            it.process.send_signal(signal.SIGHUP)
            await until(
                lambda: any(e["event"] == "gateway.certificate_refused" for e in it.events())
            )
            key.write_bytes(kept)
            await until_metric(it, "roost_gateway_workers", 2)
            assert lives not in ended(it)
            it.process.send_signal(signal.SIGHUP)
            await until(lambda: lives in ended(it))


@in_loop
async def test_workers_that_end_while_they_start_are_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    sockets = listen("127.0.0.1", 0, 2)
    log = os.open(os.devnull, os.O_WRONLY)
    crew = Crew(Work(sockets=sockets, limits=Limits(), tls=None, cors_origins=()), Log(log))
    with pytest.raises(Unavailable, match="does not start"):
        await crew.start()
    await crew.stop(0)
    os.close(log)
