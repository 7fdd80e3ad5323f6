"""The server of a fake engine: who is answered, with what, how fast, and who waits or is refused.

Where its log goes and what its end is are others' to say: a process's, or those of a made-up node.
"""

import argparse
import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final

from roost.testing.fake_answers import SERVED, Completion, embedded, encoded
from roost.testing.fake_dialects import DIALECTS, Dialect, Figures
from roost.testing.fake_logs import MANNERS, Manner
from roost.testing.fake_ranks import Ranks
from roost.testing.fake_refusals import Refusal, refusal, words

_FAILED: Final = "EngineCore encountered an issue. See stack trace (above) for the root cause."
_OPEN_TO_ALL: Final = frozenset({"/health", "/fake"})


@dataclass(kw_only=True)
class FakeEngine:
    """One engine's HTTP; on one loop."""

    asked: argparse.Namespace
    """Its knobs: `fake_knobs.knobs`."""
    ranks: Ranks
    say: Callable[[str], None]
    """Takes a line for its log."""
    leave: Callable[[int], None]
    """Ends it with an exit status; whatever it does then has no effect any more."""
    key: str = ""
    running: int = 0
    waiting: int = 0
    served: int = 0
    disconnected: int = 0
    """Requests whose client went away before the end."""
    prompt_tokens: int = 0
    generated_tokens: int = 0
    _failures: int = 0
    """Errors answered because `--answer-status` says so."""
    _ending: asyncio.Task[None] | None = None
    _born: float = field(default_factory=time.monotonic)
    _free: asyncio.Semaphore = field(init=False)
    _well: asyncio.Event = field(default_factory=asyncio.Event)
    _ahead: dict[asyncio.StreamReader, bytes] = field(default_factory=dict)
    """What was read of a connection's next request."""
    _listener: asyncio.Server | None = None
    _clients: set[asyncio.Task[Any]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._free = asyncio.Semaphore(self.asked.slots)
        self._well.set()

    # -- how it is -------------------------------------------------------------------------------

    @property
    def dialect(self) -> Dialect:
        """How it speaks."""
        return DIALECTS[self.asked.dialect]

    @property
    def manner(self) -> Manner:
        """How it writes its log."""
        return MANNERS[self.asked.dialect]

    @property
    def listens(self) -> bool:
        """Somebody is answered."""
        return self._listener is not None

    @property
    def loading(self) -> bool:
        """Its model isn't there yet, or a rank isn't."""
        return self.age < self.asked.load_s or not self.ranks.complete.is_set()

    @property
    def hung(self) -> bool:
        """It takes connections and answers none."""
        after = self.asked.hang_health_after
        return not self._well.is_set() or (after is not None and self.age > after)

    @property
    def failed(self) -> bool:
        """It has lost a rank, and somebody has noticed by asking."""
        return self._ending is not None

    @property
    def age(self) -> float:
        """Seconds since it was made."""
        return time.monotonic() - self._born

    def metrics(self) -> str | None:
        """Its page `/metrics`; `None`: it fails to make one."""
        if self.asked.metrics_file is not None:
            try:
                return str(self.asked.metrics_file.read_text())
            except FileNotFoundError:
                return None
        return self.dialect.metrics(
            Figures(
                model=self.asked.alias,
                running=self.running,
                waiting=self.waiting,
                slots=self.asked.slots,
                prompt_tokens=self.prompt_tokens,
                generated_tokens=self.generated_tokens,
            )
        )

    def hang(self) -> None:
        """From here on it answers nobody, and streams stand still."""
        self._well.clear()

    def recover(self) -> None:
        """It goes on where it hung."""
        self.asked.hang_health_after = None
        self._well.set()

    # -- its life --------------------------------------------------------------------------------

    async def serve(self) -> None:
        """Load, listen, and serve for ever."""
        model = self.asked.model or self.asked.alias
        self.say(self.manner.begin(dialect=self.asked.dialect, model=model))
        if self.asked.refuse_while_loading or self.dialect.refuses_while_loading:
            await asyncio.sleep(self.asked.load_s)
            await self.ranks.complete.wait()
        host = self.asked.host
        try:
            self._listener = await asyncio.start_server(self._client, host, self.asked.port)
        except OSError:
            self.say(
                "srv  start: couldn't bind HTTP server socket, "
                f"hostname: {host}, port: {self.asked.port}"
            )
            self.leave(1)
            return
        port = self._listener.sockets[0].getsockname()[1]
        if self.asked.port_file is not None:
            self.asked.port_file.write_text(f"{port}\n")
        await asyncio.sleep(self.asked.load_s - self.age)
        await self.ranks.complete.wait()
        self.say(self.manner.ready.format(host=host, port=port))
        await self._listener.serve_forever()

    def sigterm(self) -> None:
        """As it is told to take it."""
        if self.asked.ignore_sigterm:
            self.say("SIGTERM ignored")
            return
        self.say(self.manner.stopping)
        self.leave(0)

    def close(self) -> None:
        """Nobody is answered any more, and connections are cut: its process is gone."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        if self._ending is not None:
            self._ending.cancel()
        self.ranks.close()
        for client in self._clients:
            client.cancel()

    # -- connections -----------------------------------------------------------------------------

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - a coroutine runs in one
        self._clients.add(task)
        try:
            while await self._request(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        except asyncio.CancelledError:
            writer.transport.abort()
        finally:
            self._clients.discard(task)
            self._ahead.pop(reader, None)
            writer.close()

    async def _request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        ahead = self._ahead.pop(reader, b"")
        head = (ahead + await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.split("\r\n")
        method, target, _ = first.split(" ", 2)
        headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines)}
        body = await reader.readexactly(int(headers.get("content-length") or 0))
        if self.hung:
            self._well.clear()
            await self._well.wait()
        path = target.partition("?")[0]
        may = path in _OPEN_TO_ALL or headers.get("authorization") == f"Bearer {self.key}"
        if self.key and not may:
            status = await _send(writer, 401, self.dialect.error(401, "Invalid API Key"))
        elif self.loading and path != "/fake":
            status = await _send(writer, 503, self.dialect.loading())
        elif method == "GET":
            status = await self._get(path, writer)
        else:
            status = await self._post(path, body, reader, writer)
        if method == "POST":
            peer = writer.get_extra_info("peername")[0]
            self.say(self.manner.request.format(method=method, path=path, peer=peer, status=status))
        return headers.get("connection", "").lower() != "close"

    async def _get(self, path: str, writer: asyncio.StreamWriter) -> int:
        name = self.asked.alias
        pages: dict[str, object] = {
            "/v1/models": self.dialect.models(name, self.asked.context),
            "/fake": {
                "running": self.running,
                "waiting": self.waiting,
                "served": self.served,
                "disconnected": self.disconnected,
            },
        }
        if self.asked.dialect.startswith("llama.cpp"):
            pages["/props"] = {"total_slots": self.asked.slots, "model_alias": name}
        if path == "/health":
            if self.failed:
                return await _send(writer, 503, b"")
            return await _send(writer, 200, self.dialect.health())
        if path == "/metrics" and not self.asked.no_metrics:
            page = self.metrics()
            if page is None:
                return await _send(writer, 500, self.dialect.error(500, "no metrics"))
            return await _send(writer, 200, page.encode(), kind=self.dialect.metrics_kind)
        if path in pages:
            return await _send(writer, 200, encoded(pages[path]))
        return await _send(writer, 404, self.dialect.unknown_path())

    # -- requests --------------------------------------------------------------------------------

    def _refusal(self, path: str, body: bytes) -> Refusal | None:
        """The error that a request gets at once; `None`: it is served."""
        if self.ranks.lost.is_set():
            if self._ending is None:
                self._ending = asyncio.ensure_future(self._end_after_loss())
            return 500, self.dialect.error(500, _FAILED)
        wanted = self.asked.answer_status
        if wanted is not None and self._failures != self.asked.answer_times:
            self._failures += 1
            return wanted, self.dialect.error(wanted, f"told to answer {wanted}")
        room = self.asked.queue
        if room is not None and self.waiting >= room and self._free.locked():
            return 503, self.dialect.error(503, "the queue is full")
        return refusal(self.dialect, self.asked, path, body)

    async def _end_after_loss(self) -> None:
        await asyncio.sleep(self.asked.loss_s)
        self.say("RuntimeError: EngineCore died: a rank of this engine has gone")
        self.leave(1)

    async def _post(
        self, path: str, body: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> int:
        if path not in SERVED:
            return await _send(writer, 404, self.dialect.unknown_path())
        refused = self._refusal(path, body)
        if refused is not None:
            return await _send(writer, *refused)
        await self._while_there(self._answer(path, json.loads(body), writer), reader)
        return 200

    async def _while_there(
        self, answering: Coroutine[Any, Any, None], reader: asyncio.StreamReader
    ) -> None:
        """Answer; a client that goes away is seen at once, not at the next write."""
        work = asyncio.ensure_future(answering)
        # A byte instead of the end is the beginning of its next request.
        ahead = asyncio.ensure_future(reader.read(1))
        try:
            await asyncio.wait({ahead, work}, return_when=asyncio.FIRST_COMPLETED)
            if ahead.done() and ahead.result():
                await asyncio.wait({work})
            if not work.done():
                self.disconnected += 1
                raise ConnectionResetError
            work.result()
            self.served += 1
            if ahead.done():
                self._ahead[reader] = ahead.result()
        finally:
            for task in (work, ahead):
                task.cancel()
            await asyncio.gather(work, ahead, return_exceptions=True)

    async def _answer(self, path: str, said: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        self.prompt_tokens += words(said)
        name = self.asked.alias
        if path == "/v1/embeddings":
            await _send(writer, 200, encoded(embedded(said, model=name)))
            return
        answer = Completion.asked(path, said, model=name, tokens=self.asked.tokens)
        async with self._slot():
            if not said.get("stream"):
                async for _ in self._paced(answer):
                    pass
                await _send(writer, 200, encoded(answer.whole()))
                return
            await self._stream(answer, writer)

    async def _stream(self, answer: Completion, writer: asyncio.StreamWriter) -> None:
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        )
        first = answer.first()
        if first is not None:
            await _event(writer, first)
        sent = 0
        async for word in self._paced(answer):
            if sent == self.asked.cut_after:
                writer.transport.abort()
                return
            sent += 1
            await _event(writer, answer.word(word))
        for event in answer.last():
            await _event(writer, event)
        await _chunk(writer, b"data: [DONE]\n\n")
        await _chunk(writer, b"")

    @contextlib.asynccontextmanager
    async def _slot(self) -> AsyncIterator[None]:
        self.waiting += 1
        try:
            await self._free.acquire()
        finally:
            self.waiting -= 1
        self.running += 1
        try:
            yield
        finally:
            self.running -= 1
            self._free.release()

    async def _paced(self, answer: Completion) -> AsyncIterator[str]:
        for word in answer.words():
            await asyncio.sleep(1 / self.asked.tokens_per_s)
            await self._well.wait()
            self.generated_tokens += 1
            yield word


async def _send(
    writer: asyncio.StreamWriter, status: int, body: bytes, *, kind: str = "application/json"
) -> int:
    writer.write(
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nContent-Type: {kind}\r\n"
        f"Content-Length: {len(body)}\r\n\r\n".encode()
        + body
    )
    await writer.drain()
    return status


async def _event(writer: asyncio.StreamWriter, event: object) -> None:
    await _chunk(writer, f"data: {json.dumps(event)}\n\n".encode())


async def _chunk(writer: asyncio.StreamWriter, content: bytes) -> None:
    writer.write(b"%x\r\n%b\r\n" % (len(content), content))
    await writer.drain()
