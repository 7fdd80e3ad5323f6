"""The two sides of a gateway in tests: engines that follow a script, and a client that speaks bytes."""

import asyncio
import functools
import hashlib
import json
import os
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import uvloop

from roost.formats.routing import GatewayKey, Route, RoutedModel, Snapshot
from roost.gateway.certificate import Certificate
from roost.gateway.limits import Limits
from roost.gateway.options import Options
from roost.gateway.service import Gateway
from roost.gateway.snapshot_file import write_snapshot

KEY = "roost-a-key-that-nobody-else-has"
ENGINE_KEY = "engine-key-that-no-client-sees"
LONG = 30.0
"""How long a test waits for what has to come; a loaded machine is slow."""


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run an async test in a loop of its own, as the gateway runs."""

    @functools.wraps(test)
    def run(*arguments: Any, **named: Any) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(90):
                await test(*arguments, **named)

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(bounded())

    return run


async def until(true: Callable[[], bool], what: str = "") -> None:
    """Wait for a condition."""
    async with asyncio.timeout(LONG):
        while not true():  # noqa: ASYNC110 - any condition
            await asyncio.sleep(0.005)
    assert true(), what


@dataclass
class Received:
    """One request as the engine got it."""

    method: str
    path: str
    headers: list[tuple[str, str]]
    body: bytes
    connection: int
    closed: asyncio.Event = field(default_factory=asyncio.Event)

    def header(self, name: str) -> str | None:
        values = [value for key, value in self.headers if key.lower() == name]
        assert len(values) < 2, f"{name} twice"
        return values[0] if values else None

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Wire:
    """What a script does to the connection."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self.writer = writer

    async def send(self, *parts: bytes) -> None:
        for part in parts:
            self.writer.write(part)
        await self.writer.drain()

    def reset(self) -> None:
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    def close(self) -> None:
        self.writer.close()


Script = Callable[[Received, Wire], Awaitable[None]]


def answer(
    body: bytes | str,
    *,
    status: str = "200 OK",
    content_type: str = "application/json",
    extra: str = "",
) -> Script:
    """A script: one whole answer."""
    raw = body.encode() if isinstance(body, str) else body
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\n"
        f"Content-Length: {len(raw)}\r\n{extra}\r\n"
    )

    async def script(_received: Received, wire: Wire) -> None:
        await wire.send(head.encode() + raw)

    return script


STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)
DONE = b"data: [DONE]\n\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def event(text: str, model: str = "qwen", **more: Any) -> bytes:
    body = {
        "id": "c-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": model,
        "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}],
        **more,
    }
    return b"data: " + json.dumps(body, separators=(",", ":")).encode() + b"\n\n"


def completion(model: str = "qwen", text: str = "hello") -> str:
    return json.dumps(
        {
            "id": "c-1",
            "object": "chat.completion",
            "created": 1,
            "model": model,
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": text},
                    "finish_reason": "stop",
                }
            ],
            "usage": {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7},
        },
        separators=(",", ":"),
    )


async def whole_stream(received: Received, wire: Wire) -> None:
    """A script: three events, the usage, the end."""
    await wire.send(STREAM_HEAD)
    for number in range(3):
        await wire.send(chunk(event(f"word {number}")))
    usage = event("", choices=[], usage={"prompt_tokens": 5, "completion_tokens": 6})
    await wire.send(chunk(usage), chunk(DONE), b"0\r\n\r\n")


async def silent(_received: Received, _wire: Wire) -> None:
    """A script: accepts, and never answers."""
    await asyncio.sleep(3600)


class Engine:
    """An engine that does what its script says, and remembers what it was sent."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.received: list[Received] = []
        self.connections = 0
        self.open = 0
        self.port = 0
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, limit=2**26)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        self.open += 1
        number = self.connections
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                first, *lines = head[:-4].split("\r\n")
                method, path, _version = first.split(" ")
                headers = [
                    (name, value.strip()) for name, _, value in (x.partition(":") for x in lines)
                ]
                length = next((v for k, v in headers if k.lower() == "content-length"), "0")
                body = await reader.readexactly(int(length))
                received = Received(method, path, headers, body, number)
                self.received.append(received)
                # The next bytes or the end of the connection, seen while the script runs.
                watch = asyncio.ensure_future(reader.read(1))
                play = asyncio.ensure_future(self.script(received, Wire(writer)))
                try:
                    await asyncio.wait({watch, play}, return_when=asyncio.FIRST_COMPLETED)
                    if not play.done():
                        received.closed.set()
                        return
                    play.result()
                    more = await watch
                    if not more:
                        received.closed.set()
                        return
                    reader._buffer[:0] = more  # type: ignore[attr-defined]  # put back
                finally:
                    play.cancel()
                    watch.cancel()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            if self.received and self.received[-1].connection == number:
                self.received[-1].closed.set()
            self.open -= 1
            self._tasks.discard(task)
            writer.close()

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def route(self, replica: str = "qwen-0", **more: Any) -> Route:
        more = {"placement": "p-1", "key": ENGINE_KEY, **more}
        return Route(replica=replica, host="127.0.0.1", port=self.port, **more)


@asynccontextmanager
async def engine(script: Script) -> AsyncIterator[Engine]:
    it = Engine(script)
    await it.start()
    try:
        yield it
    finally:
        await it.stop()


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def snapshot(*models: RoutedModel, revision: int = 1, **more: Any) -> Snapshot:
    more = {"fleet": "f-1", "incarnation": 1, "epoch": 1, **more}
    keys = more.pop("keys", None)
    if keys is None:
        keys = (GatewayKey(name="laptop", sha256=hashlib.sha256(KEY.encode()).hexdigest()),)
    return Snapshot(revision=revision, models=models, keys=keys, **more)


def qwen(*engines: Engine, slots: int | None = None, **more: Any) -> RoutedModel:
    routes = tuple(it.route(f"qwen-{index}", slots=slots) for index, it in enumerate(engines))
    more = {"aliases": ("coder",), "replicas": max(1, len(routes)), **more}
    return RoutedModel(name="qwen", routes=routes, **more)


def in_flight(gateway: Gateway) -> int:
    return sum(e.in_flight for m in gateway.table.models.values() for e in m.endpoints)


def log_of(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / "log").read_bytes().splitlines()]


def counted(gateway: Gateway) -> dict[tuple[str, int], int]:
    return gateway.context.accounts.requests


@asynccontextmanager
async def gateway(
    directory: Path,
    *models: RoutedModel,
    limits: Limits | None = None,
    confirmed: bool = True,
    server: str | None = None,
    first: Snapshot | None = None,
    tls: Certificate | None = None,
    cors_origins: tuple[str, ...] = (),
) -> AsyncIterator[Gateway]:
    """A gateway with these routes in its snapshot file."""
    if first is not None or models:
        write_snapshot(directory / "gateway" / "snapshot.json", first or snapshot(*models))
    log = os.open(directory / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    it = Gateway(
        Options(
            directory=directory,
            credential_file=directory / "server" / "gateway_credential",
            server=server,
            port=0,
            metrics_port=0,
            tls=tls,
            cors_origins=cors_origins,
            limits=limits or Limits(drain_s=0.2),
        ),
        log_fd=log,
    )
    await it.start()
    if confirmed:
        it.table.confirmed.set()
    try:
        yield it
    finally:
        await it.stop()
        os.close(log)


@dataclass
class Answer:
    """One answer as it came over the wire."""

    status: int
    headers: dict[str, str]
    body: bytes
    whole: bool
    """Whether the body ended as its framing says."""
    chunks: list[bytes] = field(default_factory=list)

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Client:
    """A client on a raw connection; it checks framing itself."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def head(self) -> tuple[int, dict[str, str]]:
        async with asyncio.timeout(LONG):
            raw = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = raw[:-4].split("\r\n")
        headers: dict[str, str] = {}
        for line in lines:
            name, _, value = line.partition(": ")
            assert name.lower() not in headers, f"{name} twice"
            headers[name.lower()] = value
        return int(first.split(" ")[1]), headers

    async def answer(self, *, bodiless: bool = False) -> Answer:
        status, headers = await self.head()
        if bodiless or status == 204:
            return Answer(status, headers, b"", True)
        async with asyncio.timeout(LONG):
            if "content-length" in headers:
                try:
                    body = await self.reader.readexactly(int(headers["content-length"]))
                except asyncio.IncompleteReadError as error:
                    return Answer(status, headers, error.partial, False)
                return Answer(status, headers, body, True)
            if headers.get("transfer-encoding") != "chunked":
                try:
                    return Answer(status, headers, await self.reader.read(-1), True)
                except ConnectionError:
                    return Answer(status, headers, b"", False)
            chunks: list[bytes] = []
            while True:
                try:
                    size = int(await self.reader.readuntil(b"\r\n"), 16)
                    chunks.append(await self.reader.readexactly(size))
                    assert await self.reader.readexactly(2) == b"\r\n"
                except (asyncio.IncompleteReadError, ConnectionError):
                    return Answer(status, headers, b"".join(chunks), False, chunks)
                if size == 0:
                    return Answer(status, headers, b"".join(chunks), True, chunks[:-1])

    async def one_chunk(self) -> bytes:
        async with asyncio.timeout(LONG):
            size = int(await self.reader.readuntil(b"\r\n"), 16)
            data = await self.reader.readexactly(size)
            assert await self.reader.readexactly(2) == b"\r\n"
            return data

    async def at_end(self) -> bool:
        """Whether the gateway has closed, with nothing more to say."""
        async with asyncio.timeout(LONG):
            try:
                return await self.reader.read(1) == b""
            except ConnectionError:
                return True

    def close(self) -> None:
        self.writer.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        self.writer.transport.abort()


async def connect(gateway: Gateway) -> Client:
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port, limit=2**26)
    return Client(reader, writer)


def request(
    body: bytes | str | dict[str, Any] | None = None,
    *,
    method: str = "POST",
    path: str = "/v1/chat/completions",
    key: str | None = KEY,
    headers: Sequence[str] = (),
    version: str = "1.1",
    length: bool = True,
) -> bytes:
    """A request's bytes."""
    if isinstance(body, dict):
        body = json.dumps(body)
    raw = body.encode() if isinstance(body, str) else body or b""
    lines = [f"{method} {path} HTTP/{version}", "Host: gateway", *headers]
    if key is not None:
        lines.append(f"Authorization: Bearer {key}")
    if length and body is not None:
        lines.append(f"Content-Length: {len(raw)}")
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + raw


def chat(model: str = "qwen", **more: Any) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": "hi"}], **more}


async def ask(gateway: Gateway, raw: bytes, *, bodiless: bool = False) -> Answer:
    """One request on a connection of its own."""
    async with await connect(gateway) as client:
        await client.send(raw)
        return await client.answer(bodiless=bodiless)
