"""An engine without a model: a real process that speaks the OpenAI API and fails in the ways
engines fail.

`python -m roost.testing.fake_engine --port P [knobs]`. It takes the command lines of
`llama-server`, `vllm serve` and `python -m sglang.launch_server` too, speaks as that engine does,
and ignores flags it has no use for, so that an agent can be pointed at a script that runs it. The
key comes in `LLAMA_API_KEY`, `VLLM_API_KEY`, `ROOST_ENGINE_API_KEY` or `--api-key`.
"""

import argparse
import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

from roost.testing.fake_dialects import DIALECTS, STATUSES, Dialect, Figures
from roost.testing.fake_ranks import Ranks
from roost.testing.fake_refusals import Refusal, refusal, words

_SGLANG: Final = "sglang.launch_server"
_FAILED: Final = "EngineCore encountered an issue. See stack trace (above) for the root cause."


def knobs(argv: Sequence[str]) -> argparse.Namespace:
    """The command line; what isn't known is some engine's own flag and does nothing here."""
    parser = argparse.ArgumentParser(prog="fake_engine", allow_abbrev=False, add_help=True)
    parser.add_argument("-m", "--model", "--model-path")
    parser.add_argument("-a", "--alias", "--served-model-name", default="fake")
    parser.add_argument("--dialect", choices=DIALECTS, help="default: by the command line")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument(
        *("-np", "--slots", "--parallel", "--max-num-seqs", "--max-running-requests"),
        dest="slots",
        type=int,
        default=4,
        help="requests at once",
    )
    parser.add_argument("--queue", type=int, help="that wait; one more gets 503. Default: all")
    parser.add_argument("--context", type=int, help="words of a prompt that fit. Default: all")
    parser.add_argument("--api-key", default="")
    parser.add_argument("--embeddings", action="store_true", help="serve /v1/embeddings too")
    parser.add_argument("--nnodes", type=int, default=1, help="ranks; only 0 serves HTTP")
    parser.add_argument("--node-rank", type=int, default=0)
    parser.add_argument("--headless", action="store_true")
    parser.add_argument("--master-addr", default="127.0.0.1", help="where the ranks meet")
    parser.add_argument("--master-port", type=int, default=29501)
    parser.add_argument("--dist-init-addr", metavar="HOST:PORT", help="the same, to SGLang")
    parser.add_argument("--answer-status", type=int, choices=STATUSES, help="to every POST")
    parser.add_argument("--answer-times", type=int, help="only to so many of them")
    parser.add_argument("--cut-after", type=int, metavar="TOKENS", help="ends every stream there")
    parser.add_argument("--end-as-rank", type=int, help="--exit-after is for this rank alone")
    parser.add_argument(
        "--loss-s", type=float, default=7.0, help="from a request after a rank's loss to the end"
    )
    parser.add_argument("--port-file", type=Path, help="gets the port once it listens")
    parser.add_argument("--tokens", type=int, default=16, help="of an answer without max_tokens")
    parser.add_argument("--tokens-per-s", type=float, default=200.0)
    parser.add_argument("--load-s", type=float, default=0.0, help="seconds until it is ready")
    parser.add_argument("--refuse-while-loading", action="store_true", help="not 503: no listener")
    parser.add_argument("--load-lines", type=float, help="a line of progress each so many seconds")
    parser.add_argument("--ignore-sigterm", action="store_true")
    parser.add_argument("--children", type=int, default=0, help="that outlive it, in its group")
    parser.add_argument("--stray-children", type=int, default=0, help="in sessions of their own")
    parser.add_argument("--children-file", type=Path, help="gets the children's process ids")
    parser.add_argument("--exit-after", type=float, help="seconds after which it ends by itself")
    parser.add_argument("--exit-code", type=int, default=1)
    parser.add_argument("--once-file", type=Path, help="ends by itself only if this isn't there")
    parser.add_argument("--stderr", action="append", default=[], help="a line written at the end")
    parser.add_argument("--hang-health-after", type=float, help="seconds; requests hang too")
    parser.add_argument("--no-metrics", action="store_true")
    asked, others = parser.parse_known_args(argv)
    asked.dialect = asked.dialect or _dialect(asked, others)
    if asked.dist_init_addr is not None:
        asked.master_addr, _, port = asked.dist_init_addr.rpartition(":")
        asked.master_port = int(port)
    return asked


def _dialect(asked: argparse.Namespace, others: Sequence[str]) -> str:
    if others[:1] == ["serve"]:
        return "vllm"
    by_sglang = asked.model == _SGLANG or _SGLANG in others or asked.dist_init_addr is not None
    return "sglang" if by_sglang else "llama.cpp"


@dataclass
class FakeEngine:
    """The server; one on a loop."""

    asked: argparse.Namespace
    ranks: Ranks
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
    _ahead: dict[asyncio.StreamReader, bytes] = field(default_factory=dict)
    """What was read of a connection's next request."""

    def __post_init__(self) -> None:
        self._free = asyncio.Semaphore(self.asked.slots)

    @property
    def dialect(self) -> Dialect:
        """How it speaks."""
        return DIALECTS[self.asked.dialect]

    @property
    def loading(self) -> bool:
        """Its model isn't there yet, or a rank isn't."""
        return self.age < self.asked.load_s or not self.ranks.complete.is_set()

    @property
    def age(self) -> float:
        """Seconds since it was made."""
        return time.monotonic() - self._born

    async def serve(self) -> None:
        """Load, listen, and serve for ever."""
        if self.asked.refuse_while_loading or self.dialect.refuses_while_loading:
            await asyncio.sleep(self.asked.load_s)
            await self.ranks.complete.wait()
        try:
            server = await self.listen()
        except OSError:
            say(
                "srv  start: couldn't bind HTTP server socket, "
                f"hostname: {self.asked.host}, port: {self.asked.port}"
            )
            leave(1)
        port = server.sockets[0].getsockname()[1]
        if self.asked.port_file is not None:
            self.asked.port_file.write_text(f"{port}\n")
        say(f"listening on http://{self.asked.host}:{port}")
        async with server:
            await server.serve_forever()

    async def listen(self) -> asyncio.Server:
        """A listener, on this loop; raises `OSError` where there can be none."""
        return await asyncio.start_server(self._client, self.asked.host, self.asked.port)

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while await self._request(reader, writer):
                pass
        self._ahead.pop(reader, None)
        writer.close()

    async def _request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        ahead = self._ahead.pop(reader, b"")
        head = (ahead + await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.split("\r\n")
        method, target, _ = first.split(" ", 2)
        headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines)}
        body = await reader.readexactly(int(headers.get("content-length") or 0))
        if self.asked.hang_health_after is not None and self.age > self.asked.hang_health_after:
            await asyncio.sleep(86400)
        path = target.partition("?")[0]
        open_to_all = path in {"/health", "/fake"}
        if self.key and not open_to_all and headers.get("authorization") != f"Bearer {self.key}":
            await _send(writer, 401, self.dialect.error(401, "Invalid API Key"))
        elif self.loading and path != "/fake":
            await _send(writer, 503, self.dialect.loading())
        elif method == "GET":
            await self._get(path, writer)
        else:
            await self._post(path, body, reader, writer)
        return headers.get("connection", "").lower() != "close"

    async def _get(self, path: str, writer: asyncio.StreamWriter) -> None:
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
            failed = self._ending is not None
            await _send(writer, 503 if failed else 200, b"" if failed else self.dialect.health())
        elif path == "/metrics" and not self.asked.no_metrics:
            page = self.dialect.metrics(
                Figures(
                    model=name,
                    running=self.running,
                    waiting=self.waiting,
                    slots=self.asked.slots,
                    prompt_tokens=self.prompt_tokens,
                    generated_tokens=self.generated_tokens,
                )
            )
            await _send(writer, 200, page.encode(), kind=self.dialect.metrics_kind)
        elif path in pages:
            await _send(writer, 200, json.dumps(pages[path]).encode())
        else:
            await _send(writer, 404, self.dialect.unknown_path())

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
        say("RuntimeError: EngineCore died: a rank of this engine has gone")
        leave(1)

    async def _post(
        self, path: str, body: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        if path not in {"/v1/chat/completions", "/v1/completions", "/v1/embeddings"}:
            await _send(writer, 404, self.dialect.unknown_path())
            return
        refused = self._refusal(path, body)
        if refused is not None:
            await _send(writer, *refused)
            return
        asked: dict[str, Any] = json.loads(body)
        work = asyncio.ensure_future(self._answer(path, asked, writer))
        # A client that goes away is seen at once, not at the next write. A byte instead of the end
        # is the
        # beginning of its next request.
        ahead = asyncio.ensure_future(reader.read(1))
        await asyncio.wait({ahead, work}, return_when=asyncio.FIRST_COMPLETED)
        if ahead.done() and ahead.result():
            await asyncio.wait({work})
        if work.done():
            work.result()
            self.served += 1
            if not ahead.done():
                ahead.cancel()
                await asyncio.wait({ahead})
            if not ahead.cancelled():
                self._ahead[reader] = ahead.result()
            return
        work.cancel()
        with contextlib.suppress(asyncio.CancelledError, ConnectionError):
            await work
        self.disconnected += 1
        raise ConnectionResetError

    async def _answer(self, path: str, asked: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        self.prompt_tokens += words(asked)
        if path == "/v1/embeddings":
            await _send(writer, 200, json.dumps(self._embedded(asked)).encode())
            return
        chat = path.endswith("/chat/completions")
        count = int(asked.get("max_tokens") or self.asked.tokens)
        usage = {"prompt_tokens": 8, "completion_tokens": count, "total_tokens": 8 + count}
        kind = "chat.completion" if chat else "text_completion"
        base = {"id": "fake-1", "object": kind, "created": 0, "model": self.asked.alias}
        async with self._slot():
            if not asked.get("stream"):
                text = "".join([token async for token in self._tokens(count)])
                said = (
                    {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
                )
                choice = {"index": 0, "finish_reason": "stop", **said}
                whole = {**base, "choices": [choice], "usage": usage}
                await _send(writer, 200, json.dumps(whole).encode())
                return
            base["object"] = kind + ".chunk" if chat else kind
            writer.write(
                b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
                b"Transfer-Encoding: chunked\r\n\r\n"
            )
            if chat:
                first = {"index": 0, "delta": {"role": "assistant", "content": ""}}
                await _event(writer, {**base, "choices": [first]})
            sent = 0
            async for token in self._tokens(count):
                if sent == self.asked.cut_after:
                    writer.transport.abort()
                    return
                sent += 1
                said = {"delta": {"content": token}} if chat else {"text": token}
                await _event(writer, {**base, "choices": [{"index": 0, **said}]})
            last: dict[str, object] = {"delta": {}} if chat else {"text": ""}
            await _event(
                writer, {**base, "choices": [{"index": 0, "finish_reason": "stop", **last}]}
            )
            if (asked.get("stream_options") or {}).get("include_usage"):
                await _event(writer, {**base, "choices": [], "usage": usage})
            await _chunk(writer, b"data: [DONE]\n\n")
            await _chunk(writer, b"")

    def _embedded(self, asked: dict[str, Any]) -> dict[str, object]:
        given = asked.get("input", "")
        texts = given if isinstance(given, list) else [given]
        data = [
            {"object": "embedding", "index": index, "embedding": [float(len(str(text))), 1.0]}
            for index, text in enumerate(texts)
        ]
        tokens = words(asked)
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        return {"object": "list", "model": self.asked.alias, "data": data, "usage": usage}

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

    async def _tokens(self, count: int) -> AsyncIterator[str]:
        for number in range(count):
            await asyncio.sleep(1 / self.asked.tokens_per_s)
            self.generated_tokens += 1
            yield f"w{number} "


async def _send(
    writer: asyncio.StreamWriter, status: int, body: bytes, *, kind: str = "application/json"
) -> None:
    writer.write(
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nContent-Type: {kind}\r\n"
        f"Content-Length: {len(body)}\r\n\r\n".encode()
        + body
    )
    await writer.drain()


async def _event(writer: asyncio.StreamWriter, event: object) -> None:
    await _chunk(writer, f"data: {json.dumps(event)}\n\n".encode())


async def _chunk(writer: asyncio.StreamWriter, content: bytes) -> None:
    writer.write(b"%x\r\n%b\r\n" % (len(content), content))
    await writer.drain()


def say(line: str) -> None:
    """To where engines write their logs."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def leave(status: int) -> None:
    """End at once, as an engine that crashes does."""
    os._exit(status)


def _bear_children(asked: argparse.Namespace) -> None:
    sleeper = [sys.executable, "-S", "-c", "import signal; signal.pause()"]
    pids = []
    for number in range(asked.children + asked.stray_children):
        child = subprocess.Popen(sleeper, start_new_session=number >= asked.children)
        pids.append(child.pid)
    if asked.children_file is not None:
        asked.children_file.write_text(" ".join(map(str, pids)))


async def _end_by_itself(asked: argparse.Namespace) -> None:
    if asked.exit_after is None or asked.end_as_rank not in {None, asked.node_rank}:
        return
    if asked.once_file is not None:
        if asked.once_file.exists():
            return
        asked.once_file.touch()
    await asyncio.sleep(asked.exit_after)
    for line in asked.stderr:
        say(line)
    leave(asked.exit_code)


async def _progress(asked: argparse.Namespace) -> None:
    while asked.load_lines is not None:
        await asyncio.sleep(asked.load_lines)
        say("loading …")


async def run(asked: argparse.Namespace) -> None:
    """Serve until SIGTERM, or until a knob ends it."""
    loop = asyncio.get_running_loop()
    if asked.ignore_sigterm:
        loop.add_signal_handler(signal.SIGTERM, lambda: say("SIGTERM ignored"))
    else:
        loop.add_signal_handler(signal.SIGTERM, lambda: leave(0))
    _bear_children(asked)
    ranks = Ranks(
        rank=asked.node_rank,
        count=asked.nnodes,
        address=asked.master_addr,
        port=asked.master_port,
    )
    work = [_end_by_itself(asked), _progress(asked), ranks.meet()]
    if asked.node_rank == 0 and not asked.headless:
        work.append(FakeEngine(asked=asked, ranks=ranks, key=_key(asked)).serve())
    else:
        work.append(_follow(ranks))
    await asyncio.gather(*work)


async def _follow(ranks: Ranks) -> None:
    """What a rank without HTTP does: wait for rank 0 to go."""
    await ranks.lost.wait()
    say("rank 0 has gone")
    leave(1)


def _key(asked: argparse.Namespace) -> str:
    names = ("LLAMA_API_KEY", "VLLM_API_KEY", "ROOST_ENGINE_API_KEY")
    return asked.api_key or next((os.environ[name] for name in names if os.environ.get(name)), "")


def main() -> None:
    """The process."""
    asyncio.run(run(knobs(sys.argv[1:])))


if __name__ == "__main__":
    main()
