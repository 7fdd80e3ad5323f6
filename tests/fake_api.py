"""A management API that answers what a test tells it, over real HTTP on loopback."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

CREDENTIAL = "roost-admin-0123456789"


@dataclass(kw_only=True)
class Asked:
    """One request as it came."""

    method: str
    path: str
    """Still percent-encoded."""
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes


Answer = tuple[int, object]


@dataclass
class FakeApi:
    """`answers` by `METHOD /path`: a value for 200, a (status, value) pair, bytes, or a function."""

    url: str = ""
    answers: dict[str, Any] = field(default_factory=dict)
    asked: list[Asked] = field(default_factory=list)

    def problem(self, route: str, status: int, code: str, detail: str, **more: object) -> None:
        self.answers[route] = (
            status,
            {"title": code, "status": status, "code": code, "detail": detail, **more},
        )

    def answer(self, asked: Asked) -> Answer:
        self.asked.append(asked)
        if asked.headers.get("authorization") != f"Bearer {CREDENTIAL}":
            told = {"title": "Refused", "status": 401, "code": "refused", "detail": "no such thing"}
            return 401, told
        given = self.answers.get(f"{asked.method} {asked.path}")
        if given is None:
            detail = f"there is nothing at {asked.path}"
            return 404, {"title": "Not found", "status": 404, "code": "not_found", "detail": detail}
        if callable(given):
            given = given(asked)
        return given if isinstance(given, tuple) else (200, given)


def _handler(api: FakeApi) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def _serve(self) -> None:
            parts = urlsplit(self.path)
            length = int(self.headers.get("Content-Length") or 0)
            status, value = api.answer(
                Asked(
                    method=self.command,
                    path=parts.path,
                    query={key: values[0] for key, values in parse_qs(parts.query).items()},
                    headers={key.lower(): text for key, text in self.headers.items()},
                    body=self.rfile.read(length),
                )
            )
            body = value if isinstance(value, bytes) else json.dumps(value).encode()
            kind = "application/json" if status < 300 else "application/problem+json"
            self.send_response(status)
            self.send_header("Content-Type", "text/plain" if isinstance(value, bytes) else kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = _serve  # noqa: N815 - the names are http.server's
        do_POST = _serve  # noqa: N815
        do_DELETE = _serve  # noqa: N815

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - http.server's
            pass

    return Handler


@contextmanager
def serving() -> Iterator[FakeApi]:
    """One on a port of its own."""
    fake = FakeApi()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(fake))
    server.daemon_threads = True
    fake.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield fake
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@dataclass
class Ran:
    """How a command ended and what it printed."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Run = Callable[..., Ran]
